//! When a slave reports: it may hold a report for a frame that is coming in, and never for one that does
//! not come. The master is a bare socket, so the frames come as the test says.

use std::time::{Duration, Instant};

use epochlog_ha::{AckPolicy, TransportKind};

use crate::bed::{Node, wait_until};
use crate::fakes::{FakeMaster, FakeMasterConnection};

/// Far more than a report may be held, far less than a heartbeat's time or a test's patience.
const SOON: Duration = Duration::from_secs(4);

/// The bytes of a log of epoch 1, cut into frames that hold whole records or not.
fn log_of(len: usize) -> Vec<u8> {
    let a = Node::new(1, TransportKind::Std);
    a.lead(1, &[1]);
    while a.store.end_offset() < len as u64 {
        a.write_all(10, AckPolicy::Local);
    }
    a.bytes()
}

fn frame(at: usize, body: &[u8]) -> Vec<u8> {
    FakeMasterConnection::frame(at as u64, (1, 0), body)
}

/// Reads reports until one says `end`; returns how many came.
fn reports_up_to(conn: &mut FakeMasterConnection, end: u64) -> usize {
    let (mut count, mut last) = (0, 0);
    while last < end {
        let next = conn.report().expect("the slave stays");
        assert!(
            next > last || next == end,
            "a report fell from {last} to {next}"
        );
        (last, count) = (next, count + 1);
    }
    assert_eq!(last, end, "more was reported than was sent");
    count
}

pub(crate) fn a_report_does_not_wait_for_a_body_that_does_not_come(kind: TransportKind) {
    let (b, fake) = (Node::new(2, kind), FakeMaster::listen());
    let log = log_of(40_000);
    b.follow_at(1, 1, fake.addr());
    let mut conn = fake.join(log.len() as u64, &[(1, 0)]);
    assert_eq!(conn.report(), Some(0));
    // One whole frame, and of the next one its head and nothing, a byte, or a part of its body.
    let (mut at, mut left_over) = (0, Vec::new());
    for part in [0, 1, 5000] {
        let body = &log[at..at + 10_000];
        let next = frame(at + 10_000, &log[at + 10_000..at + 12_000 + part]);
        let shown = next.len() - 2000;
        conn.say(&[&left_over, &frame(at, body)[..], &next[..shown]].concat());
        let began = Instant::now();
        wait_until(
            || format!("{part}: {:#?}", b.ha.runtime_info()),
            || b.store.end_offset() > at as u64,
        );
        let end = b.store.end_offset();
        reports_up_to(&mut conn, end);
        assert!(began.elapsed() < SOON, "{part}: {:?}", began.elapsed());
        left_over = next[shown..].to_vec();
        at += 12_000 + part;
    }
    conn.say(&left_over);
    wait_until(
        || format!("{:#?}", b.ha.runtime_info()),
        || b.store.end_offset() > at as u64 - 3100,
    );
    reports_up_to(&mut conn, b.store.end_offset());
}

pub(crate) fn reports_of_a_stream_come_while_it_goes_on(kind: TransportKind) {
    let (b, fake) = (Node::new(2, kind), FakeMaster::listen());
    let log = log_of(200_000);
    b.follow_at(1, 1, fake.addr());
    let mut conn = fake.join(log.len() as u64, &[(1, 0)]);
    assert_eq!(conn.report(), Some(0));
    // Frames of 500 bytes in one piece: heads and bodies are always there already.
    let frames: Vec<u8> = (0..log.len())
        .step_by(500)
        .flat_map(|at| frame(at, &log[at..(at + 500).min(log.len())]))
        .collect();
    conn.say(&frames);
    let count = reports_up_to(&mut conn, log.len() as u64);
    assert!(count <= log.len() / 500 + 1, "{count} reports");
    // The last one, with nothing behind it, was not held for the next heartbeat.
    assert_eq!(b.store.end_offset(), log.len() as u64);
}
