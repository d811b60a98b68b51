//! Release in bulk, deadlines of their own, and the table of codes.

use epochlog_engine::MAX_OFFSET;

use super::*;

fn waiter(end: Offset, policy: AckPolicy, durability: Durability, deadline_ms: u64) -> Waiter<u64> {
    Waiter {
        end,
        policy,
        durability,
        deadline_ms,
        token: end,
    }
}

fn released(w: &mut Waiters<u64>, all: Offset, two: Offset, flushed: Offset) -> Vec<u64> {
    let mut out = Vec::new();
    let acked = |policy, _| match policy {
        AckPolicy::AllInSync => all,
        AckPolicy::Replicas(_) => two,
        AckPolicy::Local => MAX_OFFSET,
    };
    w.release(acked, flushed, |token| out.push(token));
    out
}

#[test]
fn waiters_are_released_in_bulk_up_to_what_their_policy_has() {
    let mut w = Waiters::new();
    for end in [100, 200, 300] {
        w.push(waiter(end, AckPolicy::AllInSync, Durability::Memory, 1000));
    }
    w.push(waiter(
        150,
        AckPolicy::Replicas(2),
        Durability::Memory,
        1000,
    ));
    w.push(waiter(250, AckPolicy::Local, Durability::Flushed, 1000));
    w.push(waiter(260, AckPolicy::AllInSync, Durability::Flushed, 1000));
    assert_eq!(released(&mut w, 99, 99, 0), [0; 0]);
    assert_eq!(released(&mut w, 200, 149, 0), [100, 200]);
    assert_eq!(released(&mut w, 200, 150, 250), [150, 250]);
    assert_eq!(released(&mut w, 300, 150, 250), [300]);
    assert_eq!(released(&mut w, 300, 150, 260), [260]);
    assert!(w.is_empty());
}

#[test]
fn ends_that_come_out_of_order_are_put_in_order() {
    let mut w = Waiters::new();
    for end in [100, 300, 200, 50] {
        w.push(waiter(end, AckPolicy::AllInSync, Durability::Memory, 1000));
    }
    assert_eq!(released(&mut w, 200, 0, 0), [50, 100, 200]);
    assert_eq!(w.len(), 1);
}

#[test]
fn a34_each_write_has_its_own_deadline() {
    let mut w = Waiters::new();
    w.push(waiter(100, AckPolicy::AllInSync, Durability::Memory, 5000));
    w.push(waiter(200, AckPolicy::AllInSync, Durability::Memory, 300));
    w.push(waiter(300, AckPolicy::AllInSync, Durability::Flushed, 400));
    let mut ended = Vec::new();
    // Ten thousand wake-ups change nothing before the time is up.
    for _ in 0..10_000 {
        w.expire(299, |_, _| 0, |token, reason| ended.push((token, reason)));
    }
    assert_eq!(ended, []);
    assert_eq!(w.next_deadline_ms(), 300);
    w.expire(300, |_, _| 0, |token, reason| ended.push((token, reason)));
    assert_eq!(ended, [(200, UnknownReason::ReplicasTimeout)]);
    assert_eq!(w.next_deadline_ms(), 400);
    w.expire(450, |_, _| 300, |token, reason| ended.push((token, reason)));
    assert_eq!(ended[1], (300, UnknownReason::FlushTimeout));
    assert_eq!(w.next_deadline_ms(), 5000);
    assert_eq!(released(&mut w, 100, 0, 0), [100]);
}

#[test]
fn a_deadline_keeps_the_order_of_those_that_stay() {
    let mut w = Waiters::new();
    for (end, deadline) in [(1, 10), (2, 99), (3, 10), (4, 99)] {
        w.push(waiter(
            end,
            AckPolicy::AllInSync,
            Durability::Memory,
            deadline,
        ));
    }
    w.expire(10, |_, _| 0, |_, _| ());
    assert_eq!(released(&mut w, 9, 0, 0), [2, 4]);
}

#[test]
fn a_role_change_ends_everybody_once() {
    let mut w = Waiters::new();
    for end in 1..=3 {
        w.push(waiter(end, AckPolicy::Replicas(2), Durability::Memory, 10));
        w.push(waiter(end, AckPolicy::AllInSync, Durability::Memory, 10));
    }
    let mut ended = Vec::new();
    w.end_all(|token| ended.push(token));
    assert_eq!(ended.len(), 6);
    assert!(w.is_empty());
    w.end_all(|_| panic!("twice"));
    w.expire(1 << 40, |_, _| 0, |_, _| panic!("twice"));
}

#[test]
fn put_status_codes_are_rocketmqs() {
    let cases = [
        (PutStatus::Ok, 0, true),
        (PutStatus::FlushDiskTimeout, 10, true),
        (PutStatus::FlushSlaveTimeout, 12, true),
        (PutStatus::InSyncReplicasNotEnough, 1, false),
        (PutStatus::MessageIllegal, 13, false),
        (PutStatus::ServiceNotAvailable, 14, false),
        (PutStatus::OsPageCacheBusy, 2, false),
        (PutStatus::CreateMappedFileFailed, 1, false),
        (PutStatus::UnknownError, 1, false),
    ];
    for (status, code, stored) in cases {
        assert_eq!(
            (status.response_code(), status.is_stored()),
            (code, stored),
            "{status:?}"
        );
    }
    for reason in [
        UnknownReason::ReplicasTimeout,
        UnknownReason::RoleChanged,
        UnknownReason::ShutDown,
    ] {
        assert_eq!(
            PutStatus::from(Ended::Unknown(reason)),
            PutStatus::FlushSlaveTimeout
        );
    }
    for reason in [UnknownReason::FlushTimeout, UnknownReason::LogFailed] {
        assert_eq!(
            PutStatus::from(Ended::Unknown(reason)),
            PutStatus::FlushDiskTimeout
        );
    }
    assert_eq!(PutStatus::from(Ended::Acked), PutStatus::Ok);
}
