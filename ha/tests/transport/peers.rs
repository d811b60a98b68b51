//! What a transport over sockets owes peers that are not of our making.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use epochlog_ha::{Close, CloseReason, ConnId, TransportConfig};
use socket2::SockRef;

use super::bed::{Lease, Maker, PATIENCE, Side, pattern};

struct Guest {
    side: Side,
    stream: TcpStream,
    conn: ConnId,
}

impl Guest {
    fn new(maker: &mut dyn Maker) -> Self {
        let mut side = Side::new(maker.make(TransportConfig::default()));
        let addr = side.transport.listen(maker.addr()).unwrap();
        let stream = TcpStream::connect(addr).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        run(&mut side, |side| !side.accepted.is_empty());
        let conn = side.accepted[0];
        Self { side, stream, conn }
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
    let mut guest = Guest::new(maker);
    guest.side.recv(guest.conn, 36, 36);
    guest.stream.write_all(&[9; 20]).unwrap();
    drop(guest.stream);
    run(&mut guest.side, |side| !side.closed.is_empty());
    let (reason, filled) = &guest.side.closed[&guest.conn];
    assert!(matches!(reason, CloseReason::PeerClosed), "{reason}");
    assert_eq!(*filled, Some(20));
    assert_eq!(guest.side.received(guest.conn), [9; 20]);
}

pub(crate) fn g16_a_reset_of_the_peer_is_one_error_that_names_it(maker: &mut dyn Maker) {
    let mut guest = Guest::new(maker);
    let peer = guest.stream.local_addr().unwrap();
    guest.side.recv(guest.conn, 36, 36);
    guest.side.step(Duration::ZERO);
    SockRef::from(&guest.stream)
        .set_linger(Some(Duration::ZERO))
        .unwrap();
    drop(guest.stream);
    run(&mut guest.side, |side| !side.closed.is_empty());
    let (reason, filled) = &guest.side.closed[&guest.conn];
    let CloseReason::Failed(error) = reason else {
        panic!("{reason}")
    };
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    assert!(error.to_string().contains(&peer.to_string()), "{error}");
    assert_eq!(*filled, Some(0));
}

pub(crate) fn k07_a_reset_of_ours_discards_what_the_peer_has_not_got(maker: &mut dyn Maker) {
    let mut guest = Guest::new(maker);
    let leases = Arc::new(AtomicUsize::new(0));
    let body = Arc::new(pattern(21, 16 << 20));
    guest
        .side
        .send(guest.conn, b"head", Some(Lease::new(&body, &leases)));
    for _ in 0..10 {
        guest.side.step(Duration::from_millis(2));
    }
    guest.side.close(guest.conn, Close::Reset);
    run(&mut guest.side, |side| !side.closed.is_empty());
    assert_eq!(leases.load(Ordering::SeqCst), 0);
    // The receive queue of the peer's kernel may still be read; after it comes an error, not an
    // end in order.
    let mut bytes = Vec::new();
    let error = guest.stream.read_to_end(&mut bytes).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    assert!(bytes.len() < body.len());
    assert!(
        bytes.starts_with(b"head") && bytes[4..] == body[..bytes.len() - 4] || bytes.is_empty()
    );
}

pub(crate) fn a_frame_of_many_quanta_reaches_a_slow_peer_whole(maker: &mut dyn Maker) {
    let mut guest = Guest::new(maker);
    let leases = Arc::new(AtomicUsize::new(0));
    let body = Arc::new(pattern(22, 6 << 20));
    let mut stream = guest.stream;
    let total = body.len() + 4;
    let reader = std::thread::spawn(move || {
        let mut bytes = vec![0; total];
        for chunk in bytes.chunks_mut(100_000) {
            stream.read_exact(chunk).unwrap();
            std::thread::sleep(Duration::from_micros(300));
        }
        bytes
    });
    guest
        .side
        .send(guest.conn, b"head", Some(Lease::new(&body, &leases)));
    let conn = guest.conn;
    run(&mut guest.side, |side| {
        side.sent(conn) == 1 && leases.load(Ordering::SeqCst) == 0
    });
    let bytes = reader.join().unwrap();
    assert!(bytes[..4] == *b"head" && bytes[4..] == body[..]);
    let stats = guest.side.transport.stats();
    let zero_copy = stats.zero_copy_quanta + stats.copied_quanta;
    match guest.side.transport.name() {
        "uring" => assert!(zero_copy > 10, "{stats:?}"),
        _ => assert_eq!(zero_copy, 0, "{stats:?}"),
    }
}

pub(crate) fn sockets_are_set_for_frames_and_closed_on_exec(maker: &mut dyn Maker) {
    let guest = Guest::new(maker);
    // Nagle's delay shows as 40 ms per small frame.
    let mut side = guest.side;
    let mut stream = guest.stream;
    let began = Instant::now();
    for count in 1..=40 {
        side.send(guest.conn, b"one", None);
        run(&mut side, |side| side.sent(guest.conn) == count);
        let mut bytes = [0; 3];
        stream.read_exact(&mut bytes).unwrap();
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
