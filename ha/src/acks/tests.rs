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
fn many_that_time_out_one_after_the_other_cost_one_look_each() {
    let mut w = Waiters::new();
    const MANY: u64 = 100_000;
    for end in 1..=MANY {
        w.push(waiter(end, AckPolicy::AllInSync, Durability::Memory, end));
    }
    let began = std::time::Instant::now();
    for now in 1..=MANY {
        let mut ended = Vec::new();
        w.expire(now, |_, _| 0, |token, _| ended.push(token));
        assert_eq!(ended, [now]);
        let next = if now == MANY { u64::MAX } else { now + 1 };
        assert_eq!(w.next_deadline_ms(), next);
    }
    // A look at each that waits, each time, takes minutes.
    assert!(began.elapsed() < std::time::Duration::from_secs(20));
}

#[test]
fn deadlines_in_any_order_end_as_a_plain_list_of_them_does() {
    let seed = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap()
        .subsec_nanos();
    for seed in [42, u64::from(seed) | 1] {
        println!("seed {seed}");
        let mut random = seed;
        let mut below = |limit: u64| {
            random ^= random >> 12;
            random ^= random << 25;
            random ^= random >> 27;
            (random.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % limit
        };
        let (mut w, mut plain) = (Waiters::new(), Vec::new());
        let (mut end, mut now, mut acked) = (0, 0, 0);
        for _ in 0..20_000 {
            match below(10) {
                0..6 => {
                    end += 1 + below(3);
                    // Mostly as long as the others; sometimes behind one that came later.
                    let time = if below(5) == 0 { below(50) } else { 20 };
                    let at = if below(8) == 0 { end - 1 } else { end };
                    let mut new = waiter(at, AckPolicy::AllInSync, Durability::Memory, now + time);
                    new.token = plain.len() as u64;
                    plain.push(Some((at, now + time)));
                    w.push(new);
                }
                6..8 => {
                    acked = (acked + below(8)).min(end);
                    let got: Vec<_> = released(&mut w, acked, 0, 0);
                    for token in &got {
                        let place = usize::try_from(*token).unwrap();
                        let (at, _) = plain[place].take().expect("it waits");
                        assert!(at <= acked);
                    }
                    assert!(plain.iter().flatten().all(|(at, _)| *at > acked));
                }
                _ => {
                    now += below(6);
                    let mut ended = Vec::new();
                    w.expire(now, |_, _| 0, |token, _| ended.push(token));
                    for token in ended {
                        let place = usize::try_from(token).unwrap();
                        let (_, deadline) = plain[place].take().expect("it waits");
                        assert!(deadline <= now, "ended too early");
                    }
                    let next = plain.iter().flatten().map(|(_, at)| *at).min();
                    assert!(next.is_none_or(|next| next > now), "one was forgotten");
                    assert!(w.next_deadline_ms() <= next.unwrap_or(u64::MAX));
                }
            }
            assert_eq!(w.len(), plain.iter().flatten().count());
        }
    }
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
