//! Slaves beside the SyncStateSet: one that is far behind, one that only learns, one that stalls.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use epochlog_ha::{AckPolicy, AckRequest, SyncStateSet, TransportKind, UnknownReason};

use crate::bed::{Node, acked, assert_equal, wait_until};
use crate::fakes::FakeSlave;

const KIND: TransportKind = TransportKind::Auto;
/// What the newcomer has to catch up with, in bytes.
const BEHIND: u64 = 12 << 20;

pub(crate) fn catching_up_from_far_behind_does_not_hold_live_acks_up(kind: TransportKind) {
    let (a, b, c) = (Node::new(1, kind), Node::new(2, kind), Node::new(3, kind));
    a.lead(1, &[1, 2]);
    b.follow(1, &a);
    let large = vec![7; 32 << 10];
    while a.store.end_offset() < BEHIND {
        acked(a.write(&large, AckPolicy::Local));
    }
    wait_until(
        || format!("b at {}", b.store.end_offset()),
        || b.store.end_offset() == a.store.end_offset(),
    );
    c.follow(1, &a);
    let (mut longest, mut meanwhile) = (Duration::ZERO, 0);
    let asked = Instant::now();
    // From its first bytes until it has what was there when it came.
    while c.store.end_offset() < BEHIND {
        let began = Instant::now();
        acked(a.write(b"live", AckPolicy::AllInSync));
        if (1..BEHIND).contains(&c.store.end_offset()) {
            meanwhile += 1;
            longest = longest.max(began.elapsed());
        }
    }
    let took = asked.elapsed();
    println!("{kind:?}: {meanwhile} acks in {took:?}, the longest {longest:?}");
    // Held up, they would come one at a time, behind all that is to be sent to the other.
    assert!(meanwhile >= 5, "{meanwhile} acks while another caught up");
    assert!(longest < Duration::from_secs(10), "{longest:?} for an ack");
    assert_equal(&[&a, &b, &c]);
}

#[test]
fn a_learner_gets_every_byte_and_is_never_counted_nor_proposed() {
    let a = Node::new(1, KIND);
    let learner = Node::tuned(3, KIND, |config| config.async_learner = true);
    a.lead(1, &[1]);
    learner.follow(1, &a);
    a.write_all(50, AckPolicy::AllInSync);
    assert_equal(&[&a, &learner]);
    let level = || {
        let connections = a.ha.runtime_info().connections;
        let end = a.store.end_offset();
        connections
            .iter()
            .any(|it| it.slave_ack_offset == Some(end))
    };
    wait_until(|| format!("{:#?}", a.ha.runtime_info()), level);
    assert_eq!(a.ha.next_proposal(), None, "a learner does not join");
    // Neither does its copy count where two are asked for.
    let two = AckRequest::new(AckPolicy::Replicas(2), Duration::from_millis(200));
    let outcome = a.write_within(b"two copies", two);
    let why = UnknownReason::ReplicasTimeout;
    assert!(
        matches!(&outcome, epochlog_ha::Outcome::Unknown(_, it) if *it == why),
        "{outcome:?}"
    );
    assert_equal(&[&a, &learner]);
    assert_eq!(a.ha.next_proposal(), None);
}

/// Ours asks every member of the set for what is visible, whatever a write asked for: what consumers
/// read no election takes back. A member that stalls holds it up until it leaves the set.
#[test]
fn a30_what_is_visible_follows_the_set_and_not_what_a_write_asked_for() {
    let a = Node::tuned(1, KIND, |config| {
        config.max_time_slave_not_catchup_ms = 400;
        config.heartbeat_interval_ms = 100;
    });
    a.lead(1, &[1, 2]);
    let first = acked(a.write(b"first", AckPolicy::Local));
    let mut slave = FakeSlave::joined(a.ha.listen_addr(), 2);
    slave.report(0);
    slave.read_to(first.end);
    slave.report(first.end);
    wait_until(
        || format!("confirm {}", a.store.confirm_offset()),
        || a.store.confirm_offset() == first.end,
    );
    // It stalls; writes that wait for nobody go on, and stay hidden.
    for _ in 0..5 {
        acked(a.write(b"more", AckPolicy::Local));
        assert_eq!(a.store.confirm_offset(), first.end);
    }
    wait_until(
        || format!("{:#?}", a.ha.runtime_info()),
        || a.ha.next_proposal() == Some(SyncStateSet::new([1], 1)),
    );
    assert_eq!(a.store.confirm_offset(), first.end, "still a member");
    a.ha.set_sync_state_set(SyncStateSet::new([1], 2));
    assert_eq!(a.store.confirm_offset(), a.store.end_offset());
    // Back in the set it holds the mark again, which does not fall.
    let before = a.store.confirm_offset();
    a.ha.set_sync_state_set(SyncStateSet::new([1, 2], 3));
    acked(a.write(b"hidden", AckPolicy::Local));
    assert_eq!(a.store.confirm_offset(), before);
}

#[test]
fn two_slaves_that_come_and_go_leave_the_third_alone() {
    let (a, b) = (Node::new(1, KIND), Node::new(2, KIND));
    a.lead(1, &[1, 2]);
    b.follow(1, &a);
    let addr = a.ha.listen_addr();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for id in [7, 8] {
            let stop = &stop;
            scope.spawn(move || {
                while !stop.load(Ordering::SeqCst) {
                    let mut guest = FakeSlave::joined(addr, id);
                    guest.report(0);
                    // It leaves in the middle of a frame, or before one.
                    std::thread::sleep(Duration::from_millis(id));
                }
            });
        }
        let written = a.write_all(150, AckPolicy::AllInSync);
        stop.store(true, Ordering::SeqCst);
        assert_eq!(written.len(), 150);
    });
    assert_equal(&[&a, &b]);
    let left = b.ha.runtime_info().metrics.closes_by_slave;
    assert!(left.is_empty(), "{left:?}");
}
