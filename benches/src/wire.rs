//! The transports without replication, and the same bytes over plain blocking sockets.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use epochlog_ha::{
    Body, Event, FrameBytes, RecvInto, Transport, TransportConfig, TransportKind, TransportStats,
    Window,
};

use crate::raw::HEAD_LEN;

const LOOPBACK: ([u8; 4], u16) = ([127, 0, 0, 1], 0);
const SLICE: Duration = Duration::from_millis(100);

/// One transport and the events it has reported.
struct Loop<W: Window, B: Body> {
    transport: Box<dyn Transport<W, B>>,
    events: Vec<Event<W>>,
}

impl<W: Window, B: Body> Loop<W, B> {
    fn open(kind: TransportKind, config: &TransportConfig) -> io::Result<Self> {
        let transport = kind.open(config.clone()).map_err(io::Error::other)?;
        Ok(Self {
            transport,
            events: Vec::new(),
        })
    }

    fn next(&mut self) -> io::Result<Event<W>> {
        while self.events.is_empty() {
            self.transport.wait(SLICE, &mut self.events)?;
        }
        match self.events.remove(0) {
            Event::Closed { reason, .. } => Err(io::Error::other(reason.to_string())),
            event => Ok(event),
        }
    }
}

/// How a transfer went.
#[derive(Clone, Copy, Debug)]
pub struct Shipped {
    /// From the first send until the receiver said that it has everything.
    pub elapsed: Duration,
    /// Of the sender.
    pub stats: TransportStats,
}

/// Sends a head and a body, `frames` times, to a receiver that takes every body into a buffer of
/// its own. One frame at a time per connection, as replication does.
///
/// # Errors
/// The ring being refused, or a lost connection.
pub fn ship_frames<B: Body + Clone>(
    kind: TransportKind,
    config: &TransportConfig,
    body: &B,
    frames: u64,
) -> io::Result<Shipped> {
    let room = vec![0; body.bytes().len()];
    let source = std::iter::repeat_n(body.clone(), usize::try_from(frames).unwrap_or(usize::MAX));
    ship(kind, config, source, move |server| {
        take_frames(server, room, frames)
    })
}

fn take_frames<B: Body>(
    mut server: Loop<Vec<u8>, B>,
    room: Vec<u8>,
    frames: u64,
) -> io::Result<()> {
    let conn = server.next()?.conn();
    let mut buffers = [
        Some(RecvInto::Bytes(vec![0; HEAD_LEN])),
        Some(RecvInto::Window(room)),
    ];
    for _ in 0..frames {
        for buffer in &mut buffers {
            let Some(mut into) = buffer.take() else {
                return Err(io::Error::other("a buffer did not come back"));
            };
            let len = into.room().len();
            server.transport.recv(conn, into, len);
            if let Event::Received { into, .. } = server.next()? {
                *buffer = Some(into);
            }
        }
    }
    say_done(&mut server, conn)
}

fn say_done<W: Window, B: Body>(
    server: &mut Loop<W, B>,
    conn: epochlog_ha::ConnId,
) -> io::Result<()> {
    server.transport.send(conn, FrameBytes::new(b"."), None);
    server.next()?;
    Ok(())
}

fn ship<W: Window, B: Body>(
    kind: TransportKind,
    config: &TransportConfig,
    source: impl Iterator<Item = B>,
    take: impl FnOnce(Loop<W, B>) -> io::Result<()> + Send + 'static,
) -> io::Result<Shipped> {
    let mut server = Loop::<W, B>::open(kind, config)?;
    let addr = server.transport.listen(SocketAddr::from(LOOPBACK))?;
    let receiver = thread::spawn(move || take(server));
    let mut client = Loop::<Vec<u8>, B>::open(kind, config)?;
    let conn = client.transport.connect(addr)?;
    client.next()?;
    let head = FrameBytes::new(&[1; HEAD_LEN]);
    let began = Instant::now();
    client.transport.recv(conn, RecvInto::Bytes(vec![0; 1]), 1);
    for body in source {
        client.transport.send(conn, head.clone(), Some(body));
        client.next()?;
    }
    client.next()?;
    let shipped = Shipped {
        elapsed: began.elapsed(),
        stats: client.transport.stats(),
    };
    match receiver.join() {
        Ok(taken) => taken.map(|()| shipped),
        Err(_) => Err(io::Error::other("the receiver panicked")),
    }
}

/// The same bytes over plain blocking sockets, written and read a whole frame at a time.
///
/// # Errors
/// Those of the sockets.
pub fn blocking_frames(body_len: usize, frames: u64) -> io::Result<Duration> {
    let listener = TcpListener::bind(SocketAddr::from(LOOPBACK))?;
    let addr = listener.local_addr()?;
    let receiver = thread::spawn(move || -> io::Result<()> {
        let (mut stream, _) = listener.accept()?;
        let mut room = vec![0; HEAD_LEN + body_len];
        for _ in 0..frames {
            stream.read_exact(&mut room)?;
        }
        stream.write_all(b".")
    });
    let mut stream = TcpStream::connect(addr)?;
    let frame = vec![7; HEAD_LEN + body_len];
    let began = Instant::now();
    for _ in 0..frames {
        stream.write_all(&frame)?;
    }
    stream.read_exact(&mut [0])?;
    let elapsed = began.elapsed();
    match receiver.join() {
        Ok(received) => received.map(|()| elapsed),
        Err(_) => Err(io::Error::other("the receiver panicked")),
    }
}
