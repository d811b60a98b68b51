//! What a transport owes peers that are not of our making: the other end is bare, a socket's or the
//! simulated network's, and does what the story says.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use epochlog_ha::{Close, CloseReason, ConnId, TransportConfig};
use socket2::SockRef;

use super::bed::{Lease, Maker, PATIENCE, Side, pattern};

/// The other end of one connection. No call waits.
pub(crate) trait Peer {
    /// Its address, if it can tell.
    fn addr(&self) -> Option<SocketAddr>;

    /// Hands over bytes; how many were taken.
    fn say(&mut self, bytes: &[u8]) -> usize;

    /// Ends its side after what it has said.
    fn end(&mut self);

    fn reset(&mut self);

    /// Adds at most `most` bytes that have come to `into`; false once the stream has ended in order.
    fn take(&mut self, most: usize, into: &mut Vec<u8>) -> io::Result<bool>;
}

/// A peer that is a plain socket.
pub(crate) struct SocketPeer(Option<TcpStream>);

impl SocketPeer {
    pub(crate) fn connect(addr: SocketAddr) -> Self {
        let stream = TcpStream::connect(addr).unwrap();
        stream.set_nonblocking(true).unwrap();
        Self(Some(stream))
    }

    fn stream(&mut self) -> &mut TcpStream {
        self.0.as_mut().unwrap()
    }
}

/// What a call that does not wait did; none where it would have had to wait.
fn at_once(done: io::Result<usize>) -> io::Result<Option<usize>> {
    match done {
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
        done => done.map(Some),
    }
}

impl Peer for SocketPeer {
    fn addr(&self) -> Option<SocketAddr> {
        self.0.as_ref()?.local_addr().ok()
    }

    fn say(&mut self, bytes: &[u8]) -> usize {
        at_once(self.stream().write(bytes)).unwrap().unwrap_or(0)
    }

    fn end(&mut self) {
        self.0 = None;
    }

    fn reset(&mut self) {
        let linger = SockRef::from(&*self.stream()).set_linger(Some(Duration::ZERO));
        linger.unwrap();
        self.0 = None;
    }

    fn take(&mut self, most: usize, into: &mut Vec<u8>) -> io::Result<bool> {
        let mut bytes = vec![0; most];
        let Some(len) = at_once(self.stream().read(&mut bytes))? else {
            return Ok(true);
        };
        into.extend_from_slice(&bytes[..len]);
        Ok(len > 0)
    }
}

/// A peer on a transport of its own: what the simulated network has in place of sockets.
pub(crate) struct SidePeer {
    side: Side,
    conn: ConnId,
    receiving: bool,
    sends: usize,
}

impl SidePeer {
    pub(crate) fn connect(mut side: Side, addr: SocketAddr) -> Self {
        let conn = side.transport.connect(addr).unwrap();
        Self {
            side,
            conn,
            receiving: false,
            sends: 0,
        }
    }

    /// Its waits are virtual: they let time pass.
    fn step(&mut self) {
        self.side.step(Duration::from_millis(1));
    }
}

impl Peer for SidePeer {
    fn addr(&self) -> Option<SocketAddr> {
        None
    }

    fn say(&mut self, bytes: &[u8]) -> usize {
        self.step();
        if self.side.sent(self.conn) < self.sends {
            return 0;
        }
        self.sends += 1;
        let len = bytes.len().min(1000);
        self.side.send(self.conn, &bytes[..len], None);
        len
    }

    fn end(&mut self) {
        self.side.close(self.conn, Close::Graceful);
    }

    fn reset(&mut self) {
        self.step();
        self.side.close(self.conn, Close::Reset);
    }

    fn take(&mut self, most: usize, into: &mut Vec<u8>) -> io::Result<bool> {
        if !self.receiving {
            self.side.recv(self.conn, most, 1);
            self.receiving = true;
        }
        self.step();
        if let Some(bytes) = self.side.received.remove(&self.conn) {
            into.extend(bytes);
            self.receiving = false;
        }
        match self.side.closed.get(&self.conn) {
            Some((CloseReason::Failed(error), _)) => Err(io::Error::from(error.kind())),
            ended => Ok(ended.is_none()),
        }
    }
}

struct Guest {
    side: Side,
    peer: Box<dyn Peer>,
    conn: ConnId,
}

impl Guest {
    fn new(maker: &mut dyn Maker) -> Self {
        let mut side = Side::new(maker.make(TransportConfig::default()));
        let addr = side.transport.listen(maker.addr()).unwrap();
        let peer = maker.peer(addr);
        run(&mut side, |side| !side.accepted.is_empty());
        let conn = side.accepted[0];
        if let Some(addr) = peer.addr() {
            assert_eq!(side.accepted_from, [addr]);
        }
        Self { side, peer, conn }
    }

    fn send(&mut self, head: &[u8], body: &Arc<Vec<u8>>, leases: &Arc<AtomicUsize>) {
        let lease = Lease::new(body, leases);
        self.side.send(self.conn, head, Some(lease));
    }
}

fn run(side: &mut Side, mut until: impl FnMut(&mut Side) -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !until(side) {
        assert!(Instant::now() < deadline, "waited in vain");
        side.step(Duration::from_millis(5));
    }
}

pub(crate) fn g16_half_a_frame_and_a_fin_is_one_end_with_the_half_inside(maker: &mut dyn Maker) {
    let Guest {
        mut side,
        mut peer,
        conn,
    } = Guest::new(maker);
    side.recv(conn, 36, 36);
    assert_eq!(peer.say(&[9; 20]), 20);
    peer.end();
    run(&mut side, |side| !side.closed.is_empty());
    let (reason, filled) = &side.closed[&conn];
    assert!(matches!(reason, CloseReason::PeerClosed), "{reason}");
    assert_eq!(*filled, Some(20));
    assert_eq!(side.received(conn), [9; 20]);
}

pub(crate) fn g16_a_reset_of_the_peer_is_one_error_that_names_it(maker: &mut dyn Maker) {
    let Guest {
        mut side,
        mut peer,
        conn,
    } = Guest::new(maker);
    side.recv(conn, 36, 36);
    side.step(Duration::ZERO);
    peer.reset();
    run(&mut side, |side| !side.closed.is_empty());
    let (reason, filled) = &side.closed[&conn];
    let CloseReason::Failed(error) = reason else {
        panic!("{reason}")
    };
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    let name = side.accepted_from[0].to_string();
    assert!(error.to_string().contains(&name), "{error}: not {name}");
    assert_eq!(*filled, Some(0));
}

pub(crate) fn k07_a_reset_of_ours_discards_what_the_peer_has_not_got(maker: &mut dyn Maker) {
    let mut guest = Guest::new(maker);
    let leases = Arc::new(AtomicUsize::new(0));
    let body = Arc::new(pattern(21, 16 << 20));
    guest.send(b"head", &body, &leases);
    let Guest {
        mut side,
        mut peer,
        conn,
    } = guest;
    for _ in 0..10 {
        side.step(Duration::from_millis(2));
    }
    side.close(conn, Close::Reset);
    run(&mut side, |side| !side.closed.is_empty());
    assert_eq!(leases.load(Ordering::SeqCst), 0);
    // What has arrived may still be read; after it comes an error, not an end in order.
    let mut bytes = Vec::new();
    let mut ended = Ok(true);
    run(&mut side, |_| {
        ended = peer.take(1 << 20, &mut bytes);
        !matches!(ended, Ok(true))
    });
    assert_eq!(ended.unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert!(bytes.len() < body.len());
    assert!(
        bytes.starts_with(b"head") && bytes[4..] == body[..bytes.len() - 4] || bytes.is_empty()
    );
}

/// Sends a head and a body to a peer that takes `most` bytes at a time; both arrive as they are.
fn to_a_slow_peer(maker: &mut dyn Maker, len: usize, most: usize, pause: Duration) -> Side {
    let mut guest = Guest::new(maker);
    let leases = Arc::new(AtomicUsize::new(0));
    let body = Arc::new(pattern(22, len));
    guest.send(b"head", &body, &leases);
    let Guest {
        mut side,
        mut peer,
        conn,
    } = guest;
    let mut bytes = Vec::new();
    let began = Instant::now();
    while bytes.len() < len + 4 {
        assert!(began.elapsed() < PATIENCE, "{} bytes came", bytes.len());
        side.step(Duration::ZERO);
        assert!(peer.take(most, &mut bytes).unwrap(), "it ended early");
        std::thread::sleep(pause);
    }
    assert!(bytes[..4] == *b"head" && bytes[4..] == body[..]);
    run(&mut side, |side| {
        side.sent(conn) == 1 && leases.load(Ordering::SeqCst) == 0
    });
    side
}

pub(crate) fn a_frame_of_many_quanta_reaches_a_slow_peer_whole(maker: &mut dyn Maker) {
    let side = to_a_slow_peer(maker, 6 << 20, 100_000, Duration::from_micros(300));
    let stats = side.transport.stats();
    let zero_copy = stats.zero_copy_quanta + stats.copied_quanta;
    match side.transport.name() {
        "uring" => assert!(zero_copy > 10, "{stats:?}"),
        _ => assert_eq!(zero_copy, 0, "{stats:?}"),
    }
}

pub(crate) fn a_peer_that_reads_single_bytes_gets_them_all(maker: &mut dyn Maker) {
    to_a_slow_peer(maker, 20_000, 1, Duration::ZERO);
}

pub(crate) fn a_peers_flood_is_taken_in_order_at_our_pace(maker: &mut dyn Maker) {
    let Guest {
        mut side,
        mut peer,
        conn,
    } = Guest::new(maker);
    let flood = pattern(23, 1 << 20);
    // Nobody receives, so the peer is held up in the end.
    let (mut said, mut refused) = (0, 0);
    while said < flood.len() && refused < 1000 {
        let taken = peer.say(&flood[said..]);
        refused = if taken == 0 { refused + 1 } else { 0 };
        said += taken;
        side.step(Duration::ZERO);
    }
    assert_eq!(side.received(conn).len(), 0, "bytes nobody asked for");
    side.recv(conn, 1024, 1);
    let began = Instant::now();
    while side.received(conn).len() < flood.len() {
        assert!(began.elapsed() < PATIENCE);
        said += if said < flood.len() {
            peer.say(&flood[said..])
        } else {
            0
        };
        side.step(Duration::from_millis(1));
        if side.idle_receives.pop().is_some() {
            side.recv(conn, 1024, 1);
        }
    }
    assert!(side.received(conn) == flood, "out of order");
}

pub(crate) fn sockets_are_set_for_frames_and_closed_on_exec(maker: &mut dyn Maker) {
    let guest = Guest::new(maker);
    // Nagle's delay shows as 40 ms per small frame.
    let (mut side, mut peer) = (guest.side, guest.peer);
    let began = Instant::now();
    for count in 1..=40 {
        side.send(guest.conn, b"one", None);
        let mut bytes = Vec::new();
        run(&mut side, |side| {
            assert!(peer.take(3, &mut bytes).unwrap());
            side.sent(guest.conn) == count && bytes.len() == 3
        });
    }
    assert!(
        began.elapsed() < Duration::from_millis(1400),
        "{:?}",
        began.elapsed()
    );
    let inherited = std::process::Command::new("ls")
        .args(["-l", "/proc/self/fd"])
        .output();
    let text = String::from_utf8(inherited.unwrap().stdout).unwrap();
    assert!(
        !text.contains("socket:"),
        "a child inherits sockets:\n{text}"
    );
    assert!(
        !text.contains("io_uring") && !text.contains("eventfd"),
        "{text}"
    );
}
