//! Descriptors and rings: nothing leaks, many fit. One test, since descriptors are counted for
//! the whole process.
#![expect(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use epochlog_ha::{
    Event, FrameBytes, RecvInto, Transport, TransportConfig, TransportKind, UringTransport,
};

type Boxed = Box<dyn Transport<Vec<u8>, Vec<u8>>>;

fn open_descriptors() -> usize {
    // One of them is the directory being read.
    std::fs::read_dir("/proc/self/fd").unwrap().count() - 1
}

/// Descriptors are closed by the kernel a moment after a ring is.
fn settle_at(expected: usize) -> usize {
    let deadline = Instant::now() + Duration::from_secs(10);
    while open_descriptors() > expected && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(10));
    }
    open_descriptors()
}

fn open(kind: TransportKind) -> Boxed {
    kind.open(TransportConfig::default()).unwrap()
}

/// Drops two transports with an accept, connects, receives and sends pending.
fn drop_with_everything_pending(kind: TransportKind) {
    let (mut server, mut client) = (open(kind), open(kind));
    let addr = server
        .listen(SocketAddr::from(([127, 0, 0, 1], 0)))
        .unwrap();
    let mut events = Vec::new();
    for _ in 0..4 {
        client.connect(addr).unwrap();
    }
    let mut open = 0;
    let deadline = Instant::now() + Duration::from_secs(20);
    while open < 8 {
        assert!(Instant::now() < deadline, "{kind:?}: {open} ends are up");
        server.wait(Duration::from_millis(2), &mut events).unwrap();
        for event in events.drain(..) {
            server.recv(event.conn(), RecvInto::Bytes(vec![0; 1000]), 1000);
            open += 1;
        }
        client.wait(Duration::from_millis(2), &mut events).unwrap();
        for event in events.drain(..) {
            assert!(matches!(event, Event::Connected { .. }), "{event:?}");
            client.recv(event.conn(), RecvInto::Bytes(vec![0; 1000]), 1000);
            client.send(event.conn(), FrameBytes::new(b"x"), Some(vec![1; 8 << 20]));
            open += 1;
        }
    }
    // A peer that nobody has accepted, or whose accept is never looked at.
    let late = std::net::TcpStream::connect(addr).unwrap();
    client.connect(addr).unwrap();
    client.wait(Duration::from_millis(2), &mut events).unwrap();
    let began = Instant::now();
    drop(server);
    drop(client);
    assert!(
        began.elapsed() < Duration::from_secs(2),
        "{kind:?}: {:?}",
        began.elapsed()
    );
    drop(late);
}

#[test]
fn g07_g10_g15_descriptors_come_back_and_64_rings_fit() {
    // tokio opens a pair of its own for signals, once per process.
    drop(open(TransportKind::TokioUring));
    let before = open_descriptors();
    for kind in [
        TransportKind::Std,
        TransportKind::Uring,
        TransportKind::TokioUring,
    ] {
        for _ in 0..3 {
            drop_with_everything_pending(kind);
            assert_eq!(settle_at(before), before, "{kind:?} leaks descriptors");
        }
        drop(open(kind));
        assert_eq!(settle_at(before), before, "{kind:?}: an unused one leaks");
    }
    let mut rings: Vec<UringTransport<Vec<u8>, Vec<u8>>> = (0..64)
        .map(|_| UringTransport::new(TransportConfig::default()).unwrap())
        .collect();
    let mut events = Vec::new();
    for ring in &mut rings {
        ring.listen(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        ring.wait(Duration::ZERO, &mut events).unwrap();
    }
    drop(rings);
    assert_eq!(settle_at(before), before, "rings leak");
}
