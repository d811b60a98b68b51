//! Frames over loopback TCP, one connection: each transport beside plain blocking sockets.
//!
//! Data set: heads of 36 bytes and bodies of one size, sent from one heap buffer and received
//! into another, over and over; nothing is checked or stored. Loopback always copies, so the
//! zero-copy figures show that the path works and what it costs, not what it saves on a network
//! card; the share of copied quanta is printed.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use epochlog_ha::{
    Body, Event, FrameBytes, RecvInto, Transport, TransportConfig, TransportKind, TransportStats,
};

const HEAD: usize = 36;
const BODIES: [usize; 4] = [1 << 10, 32 << 10, 64 << 10, 256 << 10];
/// Bytes moved per sample at least, so that setting up a connection does not count.
const BYTES_PER_SAMPLE: u64 = 64 << 20;

type Boxed = Box<dyn Transport<Vec<u8>, Shared>>;

/// A body that many frames share.
#[derive(Clone)]
struct Shared(Arc<Vec<u8>>);

impl Body for Shared {
    fn bytes(&self) -> &[u8] {
        &self.0
    }
}

const SLICE: Duration = Duration::from_millis(100);
const LOOPBACK: ([u8; 4], u16) = ([127, 0, 0, 1], 0);

fn next(transport: &mut Boxed, events: &mut Vec<Event<Vec<u8>>>) -> Event<Vec<u8>> {
    while events.is_empty() {
        transport.wait(SLICE, events).expect("the transport works");
    }
    events.remove(0)
}

/// Takes `frames` frames: the head into a small buffer, then the body into its place.
fn receive(mut transport: Boxed, body: usize, frames: u64) {
    let mut events = Vec::new();
    let Event::Accepted { conn, .. } = next(&mut transport, &mut events) else {
        panic!("not accepted");
    };
    let mut head = Some(RecvInto::Bytes(vec![0; HEAD]));
    let mut room = Some(RecvInto::Window(vec![0; body]));
    for _ in 0..frames {
        for (buffer, len) in [(&mut head, HEAD), (&mut room, body)] {
            let into = buffer.take().expect("it came back");
            transport.recv(conn, into, len);
            let Event::Received { into, .. } = next(&mut transport, &mut events) else {
                panic!("connection lost");
            };
            *buffer = Some(into);
        }
    }
    // One byte says that everything has been read.
    transport.send(conn, FrameBytes::new(b"."), None);
    next(&mut transport, &mut events);
}

fn transfer(open: &dyn Fn() -> Boxed, body: usize, frames: u64) -> (Duration, TransportStats) {
    let mut server = open();
    let addr = server.listen(SocketAddr::from(LOOPBACK)).expect("listen");
    let receiver = thread::spawn(move || receive(server, body, frames));
    let mut client = open();
    let conn = client.connect(addr).expect("connect");
    let mut events = Vec::new();
    next(&mut client, &mut events);
    let bytes = Shared(Arc::new(vec![7; body]));
    let head = FrameBytes::new(&[1; HEAD]);
    let began = Instant::now();
    client.recv(conn, RecvInto::Bytes(vec![0; 1]), 1);
    let mut asked = 0;
    let mut sent = 0;
    loop {
        if asked == sent && asked < frames {
            client.send(conn, head.clone(), Some(bytes.clone()));
            asked += 1;
        }
        match next(&mut client, &mut events) {
            Event::Sent { .. } => sent += 1,
            Event::Received { .. } => break,
            other => panic!("{other:?}"),
        }
    }
    let elapsed = began.elapsed();
    let stats = client.stats();
    receiver.join().expect("the receiver is done");
    (elapsed, stats)
}

fn blocking_sockets(body: usize, frames: u64) -> Duration {
    let listener = TcpListener::bind(SocketAddr::from(LOOPBACK)).expect("bind");
    let addr = listener.local_addr().expect("bound");
    let receiver = thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("accept");
        let mut room = vec![0; HEAD + body];
        for _ in 0..frames {
            stream.read_exact(&mut room).expect("read");
        }
        stream.write_all(b".").expect("write");
    });
    let mut stream = TcpStream::connect(addr).expect("connect");
    let frame = vec![7; HEAD + body];
    let began = Instant::now();
    for _ in 0..frames {
        stream.write_all(&frame).expect("write");
    }
    stream.read_exact(&mut [0]).expect("read");
    let elapsed = began.elapsed();
    receiver.join().expect("the receiver is done");
    elapsed
}

fn bench(criterion: &mut Criterion) {
    let zero_copy_off = TransportConfig {
        zero_copy_min_bytes: usize::MAX,
        ..TransportConfig::default()
    };
    let kinds = [
        ("uring", TransportKind::Uring, TransportConfig::default()),
        ("uring_copying", TransportKind::Uring, zero_copy_off.clone()),
        (
            "tokio_uring",
            TransportKind::TokioUring,
            zero_copy_off.clone(),
        ),
        ("std", TransportKind::Std, zero_copy_off),
    ];
    for body in BODIES {
        let mut group = criterion.benchmark_group(format!("transport/{}KiB", body >> 10));
        let frames_per_iteration = (BYTES_PER_SAMPLE / 16).div_ceil((HEAD + body) as u64);
        group.throughput(Throughput::Bytes(
            frames_per_iteration * (HEAD + body) as u64,
        ));
        group
            .sample_size(10)
            .warm_up_time(Duration::from_millis(300));
        group.measurement_time(Duration::from_secs(2));
        group.bench_function("blocking_sockets", |bencher| {
            bencher.iter_custom(|count| blocking_sockets(body, count * frames_per_iteration));
        });
        for (name, kind, config) in &kinds {
            let open = || match kind.open(config.clone()) {
                Ok(transport) => transport,
                Err(refused) => panic!("{refused}"),
            };
            let mut last = TransportStats::default();
            group.bench_function(*name, |bencher| {
                bencher.iter_custom(|count| {
                    let (elapsed, stats) = transfer(&open, body, count * frames_per_iteration);
                    last = stats;
                    elapsed
                });
            });
            let quanta = last.zero_copy_quanta + last.copied_quanta;
            if quanta > 0 {
                println!(
                    "{name}, {body} bytes: {quanta} quanta zero-copy, {} of them copied by the \
                     kernel, {} sent plain",
                    last.copied_quanta, last.fallback_quanta
                );
            }
        }
        group.finish();
    }
}

criterion_group!(benches, bench);
criterion_main!(benches);
