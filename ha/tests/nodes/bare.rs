//! Peers that dribble, stall, flood, reset or end in the middle of a frame: what a node makes of them,
//! over each transport. The peers are bare sockets.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use epochlog_ha::{AckPolicy, FrameFromSlave, HaConfig, TransportKind};

use crate::bed::{Node, assert_equal, assert_holds, wait_until};
use crate::fakes::{FakeMaster, FakeMasterConnection, FakeSlave};

/// A silent peer is left after 400 ms.
fn impatient(config: &mut HaConfig) {
    config.heartbeat_interval_ms = 100;
    config.housekeeping_interval_ms = 400;
}

pub(crate) fn a_slave_that_says_and_reads_single_bytes_is_served(kind: TransportKind) {
    let a = Node::new(1, kind);
    a.lead(1, &[1, 2]);
    a.write_all(10, AckPolicy::Local);
    let end = a.store.end_offset();
    let mut slave = FakeSlave::connect(a.ha.listen_addr());
    slave.dribbles();
    slave.hello(2);
    assert!(slave.frame().is_some(), "the handshake is answered");
    slave.report(0);
    slave.read_to(end);
    slave.report(end);
    wait_until(
        || format!("confirm {} of {end}", a.store.confirm_offset()),
        || a.store.confirm_offset() == end,
    );
}

pub(crate) fn slaves_that_stall_flood_or_break_off_hold_nobody_up(kind: TransportKind) {
    let (a, b) = (Node::new(1, kind), Node::new(2, kind));
    a.lead(1, &[1, 2]);
    b.follow(1, &a);
    let mut written = a.write_all(50, AckPolicy::AllInSync);
    let addr = a.ha.listen_addr();
    // It reads nothing: what is sent to it stays in its way.
    let mut stalls = FakeSlave::joined(addr, 3);
    stalls.report(0);
    let (over, flooded) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut floods = FakeSlave::joined(addr, 4);
            let many = FrameFromSlave::encode_report(0).repeat(5000);
            while !over.load(Ordering::SeqCst) {
                floods.say(&many);
                flooded.store(true, Ordering::SeqCst);
            }
        });
        scope.spawn(|| {
            while !over.load(Ordering::SeqCst) {
                // Half a handshake; half a report; each ends in order or with a reset.
                for (id, resets) in [(5, false), (6, true)] {
                    let mut early = FakeSlave::connect(addr);
                    early.say(&[0, 0, 0, 1, 0]);
                    early.break_off(resets);
                    let mut late = FakeSlave::joined(addr, id);
                    late.say(&FrameFromSlave::encode_report(0)[..7]);
                    late.break_off(resets);
                }
            }
        });
        wait_until(|| "the flood".to_owned(), || flooded.load(Ordering::SeqCst));
        written.extend(a.write_all(200, AckPolicy::AllInSync));
        over.store(true, Ordering::SeqCst);
    });
    assert!(a.ha.is_running(), "{:?}", a.ha.stopped_because());
    assert_equal(&[&a, &b]);
    assert_holds(&b, &written);
    let left = b.ha.runtime_info().metrics.closes_by_slave;
    assert!(left.is_empty(), "the slave in order was held up: {left:?}");
}

/// A short log of epoch 1 and where its records end.
fn short_log() -> Vec<u8> {
    let a = Node::new(1, TransportKind::Std);
    a.lead(1, &[1]);
    a.write_all(4, AckPolicy::Local);
    a.bytes()
}

pub(crate) fn a_master_that_says_single_bytes_is_followed(kind: TransportKind) {
    let (b, fake, log) = (Node::new(2, kind), FakeMaster::listen(), short_log());
    b.follow_at(1, 1, fake.addr());
    let mut conn = fake.join(log.len() as u64, &[(1, 0)]);
    assert_eq!(conn.report(), Some(0));
    let mut at = 0;
    // Frames end anywhere, also inside of records.
    for len in [1, 90, 200, 1000, log.len() - 1291] {
        let frame = FakeMasterConnection::frame(at as u64, (1, 0), &log[at..at + len]);
        frame.iter().for_each(|byte| conn.say(&[*byte]));
        at += len;
    }
    while conn.report().expect("the slave stays") < log.len() as u64 {}
    assert!(b.bytes() == log);
}

pub(crate) fn a_master_that_stalls_or_breaks_off_leaves_nothing_behind(kind: TransportKind) {
    let b = Node::tuned(2, kind, impatient);
    let (fake, log) = (FakeMaster::listen(), short_log());
    b.follow_at(1, 1, fake.addr());
    let frame = FakeMasterConnection::frame(0, (1, 0), &log);
    // In the head; behind it; with whole records there; a byte before the end.
    for shown in [1, 35, 36, 50, frame.len() / 2, frame.len() - 1] {
        for ends in ["in order", "with a reset", "never"] {
            let mut conn = fake.join(log.len() as u64, &[(1, 0)]);
            assert_eq!(conn.report(), Some(0), "{shown}, {ends}");
            conn.say(&frame[..shown]);
            let began = Instant::now();
            match ends {
                "never" => {
                    while conn.report().is_some() {
                        assert!(
                            began.elapsed() < Duration::from_secs(10),
                            "it is waited for"
                        );
                    }
                }
                _ => conn.break_off(ends == "with a reset"),
            }
            assert_eq!(b.store.end_offset(), 0, "{shown}, {ends}");
        }
    }
    // What was half there is gone, and the same bytes are taken anew.
    let mut conn = fake.join(log.len() as u64, &[(1, 0)]);
    assert_eq!(conn.report(), Some(0));
    conn.say(&frame);
    while conn.report().expect("the slave stays") < log.len() as u64 {}
    assert!(b.bytes() == log);
    assert!(b.ha.is_running());
}
