//! Rings under pressure and across a fork: a submission queue that is always full, and mappings that a
//! child must not have.
#![expect(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a test stops at what it did not expect, and its sizes are small"
)]

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use epochlog_ha::{ConnId, Event, FrameBytes, RecvInto, Transport, TransportConfig, TransportKind};

type Boxed = Box<dyn Transport<Vec<u8>, Vec<u8>>>;

const PATIENCE: Duration = Duration::from_secs(60);
const LOOPBACK: ([u8; 4], u16) = ([127, 0, 0, 1], 0);
const RINGS: [TransportKind; 2] = [TransportKind::Uring, TransportKind::TokioUring];

fn open(kind: TransportKind, ring_entries: u32) -> Boxed {
    let config = TransportConfig {
        ring_entries,
        max_connections: 1024,
        ..TransportConfig::default()
    };
    kind.open(config).unwrap()
}

/// Connections of one side: what came in on each, and how many sends were done.
#[derive(Default)]
struct Seen {
    conns: Vec<ConnId>,
    received: HashMap<ConnId, Vec<u8>>,
    sent: usize,
}

fn step(side: &mut Boxed, seen: &mut Seen) {
    let mut events = Vec::new();
    side.wait(Duration::from_millis(1), &mut events).unwrap();
    for event in events {
        match event {
            Event::Accepted { conn, .. } | Event::Connected { conn } => seen.conns.push(conn),
            Event::Received { conn, into, len } => {
                let RecvInto::Bytes(bytes) = into else {
                    panic!("nobody gave a window")
                };
                seen.received
                    .entry(conn)
                    .or_default()
                    .extend_from_slice(&bytes[..len]);
            }
            Event::Sent { .. } => seen.sent += 1,
            Event::Closed { reason, .. } => panic!("a connection ended: {reason}"),
        }
    }
}

/// 250 connections; on each both sides receive and send at once: a thousand operations, and their
/// cancellations at the end, through a queue of 16 entries.
fn a_thousand_operations(kind: TransportKind) {
    const CONNS: usize = 250;
    const BODY: usize = 20_000;
    let (mut server, mut client) = (open(kind, 1), open(kind, 1));
    let addr = server.listen(SocketAddr::from(LOOPBACK)).unwrap();
    let (mut of_server, mut of_client) = (Seen::default(), Seen::default());
    let began = Instant::now();
    for _ in 0..CONNS {
        client.connect(addr).unwrap();
    }
    while of_server.conns.len() < CONNS || of_client.conns.len() < CONNS {
        assert!(began.elapsed() < PATIENCE, "{kind:?}: not all are up");
        step(&mut server, &mut of_server);
        step(&mut client, &mut of_client);
    }
    // Asked for without a wait between: the queue is full many times over.
    for (side, seen) in [(&mut server, &of_server), (&mut client, &of_client)] {
        for (number, conn) in seen.conns.iter().enumerate() {
            side.recv(*conn, RecvInto::Bytes(vec![0; BODY + 8]), BODY + 8);
            let body = vec![number as u8; BODY];
            side.send(*conn, FrameBytes::new(&number.to_be_bytes()), Some(body));
        }
    }
    let done = |seen: &Seen| seen.sent == CONNS && seen.received.len() == CONNS;
    while !done(&of_server) || !done(&of_client) {
        assert!(
            began.elapsed() < PATIENCE,
            "{kind:?}: operations are missing"
        );
        step(&mut server, &mut of_server);
        step(&mut client, &mut of_client);
    }
    for bytes in of_server
        .received
        .values()
        .chain(of_client.received.values())
    {
        let number = usize::from_be_bytes(bytes[..8].try_into().unwrap());
        assert_eq!(bytes.len(), BODY + 8);
        assert!(bytes[8..].iter().all(|byte| *byte == number as u8));
    }
    // Receives that will not end, to be cancelled together.
    for conn in &of_client.conns {
        client.recv(*conn, RecvInto::Bytes(vec![0; 100]), 100);
    }
    let dropped = Instant::now();
    drop(client);
    drop(server);
    assert!(dropped.elapsed() < Duration::from_secs(2), "{kind:?}");
}

#[test]
fn g09_a_queue_of_sixteen_entries_takes_a_thousand_operations() {
    RINGS.into_iter().for_each(a_thousand_operations);
}

/// The mappings of this process whose name has `part`: their flags.
fn flags_of(part: &str) -> Vec<String> {
    let text = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut found = Vec::new();
    let mut wanted = false;
    for line in text.lines() {
        let first = line.split(' ').next().unwrap();
        if first.contains('-') && !first.ends_with(':') {
            wanted = line.contains(part);
        } else if let Some(flags) = line.strip_prefix("VmFlags:")
            && wanted
        {
            found.push(format!(" {flags} "));
        }
    }
    found
}

#[test]
fn g19_a_fork_gets_no_ring_and_a_child_no_descriptor() {
    for kind in RINGS {
        let mut ring = open(kind, 64);
        ring.listen(SocketAddr::from(LOOPBACK)).unwrap();
        ring.wait(Duration::ZERO, &mut Vec::new()).unwrap();
        // "dc": not copied on fork.
        let flags = flags_of("[io_uring]");
        assert!(!flags.is_empty(), "{kind:?}: no ring is mapped");
        assert!(
            flags.iter().all(|flags| flags.contains(" dc ")),
            "{kind:?}: a fork gets the ring: {flags:?}"
        );
        let child = std::process::Command::new("ls")
            .args(["-l", "/proc/self/fd"])
            .output()
            .unwrap();
        let text = String::from_utf8(child.stdout).unwrap();
        for kept in ["io_uring", "socket:", "eventfd"] {
            assert!(
                !text.contains(kept),
                "{kind:?}: a child has {kept}:\n{text}"
            );
        }
    }
}
