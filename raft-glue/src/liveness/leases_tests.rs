use super::super::Verdict;
use super::super::tests::{GRACE, beat, group, table};
use super::*;
use crate::lease::LeaseError;

const WAIT: u64 = 1_500;
/// When the controller begins to lead.
const LEADS: u64 = 10_000;

fn asks(epoch: u32) -> LeaseNews {
    LeaseNews::Asks {
        epoch,
        lease_ms: 1_200,
        ack_ms: 100,
    }
}

/// Master 1 of epoch 1 in life 1; it said `news` at these times.
fn told(news: &[(u64, LeaseNews, u64)]) -> Liveness {
    let mut table = table().with_lease_wait(WAIT);
    for &(at, lease, life) in news {
        if at > LEADS {
            table.set_leader(LEADS, Some(1));
        }
        let mut beat = beat(1, 1);
        beat.lease = lease;
        beat.report.incarnation = Some(life);
        table.heartbeat(at, beat).unwrap();
    }
    table.set_leader(LEADS, Some(1));
    table
}

#[test]
fn k15_an_election_waits_for_the_lease_and_only_for_a_lease() {
    /// What it is, what was heard, when the lease is over.
    type Case<'a> = (&'a str, &'a [(u64, LeaseNews, u64)], u64);
    let back = |epoch| LeaseNews::GivenBack { epoch };
    let slow = LeaseNews::Asks {
        epoch: 1,
        lease_ms: 5_000,
        ack_ms: 100,
    };
    let cases: &[Case<'_>] = &[
        ("a Java broker", &[(9_000, LeaseNews::Silent, 1)], 0),
        ("never heard of", &[], LEADS + WAIT),
        ("asked", &[(11_000, asks(1), 1)], 11_000 + WAIT),
        (
            "asked of the leader before",
            &[(9_900, asks(1), 1)],
            LEADS + WAIT,
        ),
        (
            "gave back",
            &[(11_000, asks(1), 1), (11_100, back(1), 1)],
            0,
        ),
        (
            "gave back an older epoch",
            &[(11_100, back(0), 1)],
            LEADS + WAIT,
        ),
        (
            "gave back in another life",
            &[(11_100, back(1), 2)],
            LEADS + WAIT,
        ),
        (
            "an old word after giving back",
            &[(11_100, back(1), 1), (11_200, back(0), 1)],
            0,
        ),
        (
            "silent after asking",
            &[(11_000, asks(1), 1), (11_200, LeaseNews::Silent, 1)],
            11_000 + WAIT,
        ),
        (
            "asked in an older epoch",
            &[(11_000, asks(0), 1)],
            LEADS + WAIT,
        ),
        ("a longer lease", &[(11_000, slow, 1)], 11_000 + 5_111),
    ];
    for (what, news, over) in cases {
        let table = told(news);
        assert_eq!(table.lease_over_ms("b", &group()), *over, "{what}");
    }
    let none = BrokerGroup {
        master: None,
        ..group()
    };
    assert_eq!(told(&[]).lease_over_ms("b", &none), 0, "no master");
}

#[test]
fn k15_a_closed_connection_elects_at_once_only_without_a_lease() {
    for (lease, verdict) in [
        (LeaseNews::Silent, Verdict::Elect),
        (asks(1), Verdict::Leased(20_000 + WAIT)),
    ] {
        let mut table = told(&[(20_000, lease, 1)]);
        table.heartbeat(20_000, beat(2, 2)).unwrap();
        assert_eq!(
            table.verdict(20_000, "b", &group(), false),
            Verdict::Healthy
        );
        assert!(table.closed(1));
        assert_eq!(table.verdict(20_000, "b", &group(), false), verdict);
        table.heartbeat(20_000 + WAIT - 1, beat(2, 2)).unwrap();
        let before = table.verdict(20_000 + WAIT - 1, "b", &group(), false);
        assert_eq!(before, verdict);
        let after = table.verdict(20_000 + WAIT, "b", &group(), false);
        assert_eq!(after, Verdict::Elect);
    }
}

#[test]
fn a_master_that_leaves_and_gave_back_is_replaced_at_once() {
    let mut table = told(&[(20_000, asks(1), 1)]);
    table.heartbeat(20_010, beat(2, 2)).unwrap();
    let mut bye = beat(1, 1);
    bye.lease = LeaseNews::GivenBack { epoch: 1 };
    bye.leaving = true;
    table.heartbeat(20_020, bye).unwrap();
    assert_eq!(table.verdict(20_020, "b", &group(), false), Verdict::Elect);
}

#[test]
fn another_term_counts_as_another_leader() {
    let mut table = told(&[(20_000, LeaseNews::GivenBack { epoch: 0 }, 1)]);
    table.set_leader(30_000, Some(1));
    assert_eq!(table.lease_over_ms("b", &group()), LEADS + WAIT);
    // Lost and won again between two looks.
    table.set_leader(30_000, Some(3));
    assert_eq!(table.lease_over_ms("b", &group()), 30_000 + WAIT);
    table.set_leader(30_000, None);
    assert_eq!(table.lease_over_ms("b", &group()), u64::MAX);
}

#[test]
fn every_condition_of_a_grant_refuses_alone() {
    let decide = |change: &dyn Fn(&mut Liveness, &mut BrokerGroup)| {
        let mut table = told(&[(20_000, asks(1), 1)]);
        let ask = table.asked("c", "b", 1).unwrap();
        let mut group = group();
        change(&mut table, &mut group);
        table.may_grant("b", &group, 1, &ask)
    };
    assert_eq!(decide(&|_, _| {}), Ok(()));
    assert_eq!(
        decide(&|t, _| t.set_leader(0, None)),
        Err(NoLease::NotLeader)
    );
    assert_eq!(
        decide(&|t, _| t.begin_election("b")),
        Err(NoLease::Electing)
    );
    assert_eq!(decide(&|t, _| t.begin_election("other")), Ok(()));
    assert_eq!(decide(&|_, g| g.master = Some(2)), Err(NoLease::NotMaster));
    assert_eq!(decide(&|_, g| g.master = None), Err(NoLease::NotMaster));
    assert_eq!(decide(&|_, g| g.master_epoch = 2), Err(NoLease::NotMaster));
    let former = |_: &mut Liveness, g: &mut BrokerGroup| {
        g.former_set.clone_from(&g.sync_state_set);
    };
    assert_eq!(decide(&former), Err(NoLease::NotConfirmed));
    let reborn = |_: &mut Liveness, g: &mut BrokerGroup| {
        g.sync_state_set.insert(1, Incarnation::Opened(2));
    };
    assert_eq!(decide(&reborn), Err(NoLease::NotConfirmed));
    let short = decide(&|t, _| t.lease_wait_ms = 1_302);
    assert!(
        matches!(
            short,
            Err(NoLease::Times(LeaseError::Unsafe {
                needed_ms: 1_303,
                ..
            }))
        ),
        "{short:?}"
    );
}

#[test]
fn nothing_is_granted_until_an_election_is_settled() {
    let mut table = told(&[(20_000, asks(1), 1)]);
    let ask = table.asked("c", "b", 1).unwrap();
    table.begin_election("b");
    table.begin_election("b");
    table.end_election("b", true);
    assert_eq!(
        table.may_grant("b", &group(), 1, &ask),
        Err(NoLease::Electing)
    );
    table.end_election("b", false);
    assert_eq!(table.unsettled(), [("b".to_owned(), 1)]);
    assert_eq!(
        table.may_grant("b", &group(), 1, &ask),
        Err(NoLease::Electing)
    );
    table.settle("b", 1);
    assert_eq!(table.may_grant("b", &group(), 1, &ask), Ok(()));

    // The receipt of what was asked meanwhile is not waited for, so it is never granted.
    table.begin_election("b");
    let mut late = beat(1, 1);
    late.lease = asks(1);
    table.heartbeat(21_000, late).unwrap();
    let late = table.asked("c", "b", 1).unwrap();
    table.end_election("b", true);
    assert_eq!(table.lease_over_ms("b", &group()), 20_000 + WAIT);
    assert_eq!(
        table.may_grant("b", &group(), 1, &late),
        Err(NoLease::Electing)
    );

    table.begin_election("b");
    table.end_election("b", false);
    table.set_leader(GRACE, Some(2));
    assert_eq!(
        table.may_grant("b", &group(), 1, &ask),
        Ok(()),
        "a new term knows"
    );
}
