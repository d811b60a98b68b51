use super::*;
use crate::elect::Incarnation;
use crate::group::Replica;

pub(super) const GRACE: u64 = 10_000;

pub(super) fn table() -> Liveness {
    Liveness::new(GRACE, 5_000)
}

pub(super) fn beat(id: u64, connection: u64) -> Heartbeat {
    Heartbeat {
        cluster: "c".to_owned(),
        broker: "b".to_owned(),
        id,
        address: format!("h{id}:1"),
        report: Report {
            epoch: 1,
            max_epoch: 1,
            max_offset: 100,
            priority: i32::MAX,
            incarnation: Some(1),
            unclean: true,
        },
        confirm_offset: 0,
        timeout_ms: 1_000,
        connection,
        lease: LeaseNews::Silent,
        leaving: false,
    }
}

/// Master 1, set {1, 2}; 3 is registered only.
pub(super) fn group() -> BrokerGroup {
    let replica = |id: u64| Replica {
        address: format!("h{id}:1"),
        check_code: "x".to_owned(),
        registrations: 0,
    };
    BrokerGroup {
        cluster: "c".to_owned(),
        next_broker_id: 4,
        replicas: (1..=3).map(|id| (id, replica(id))).collect(),
        master: Some(1),
        master_epoch: 1,
        sync_state_set: (1..=2).map(|id| (id, Incarnation::Opened(1))).collect(),
        sync_state_set_epoch: 2,
        former_set: BTreeMap::new(),
    }
}

fn verdict(table: &Liveness, now: u64) -> Verdict {
    table.verdict(now, "b", &group(), false)
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Master {
    Alive,
    Dead,
    Never,
}

#[test]
fn b02_b03_b04_the_scan_decides_as_the_table_says() {
    let now = 1_000_000;
    let mut elections = 0;
    for row in 0..48 {
        let master = [Master::Alive, Master::Dead, Master::Never][row % 3];
        let bit = |n: usize| (row / 3) >> n & 1 == 1;
        let (in_set, out_of_set, allow_unclean, grace_over) = (bit(0), bit(1), bit(2), bit(3));
        let mut table = table();
        table.set_leader(
            if grace_over {
                now - GRACE
            } else {
                now - GRACE + 1
            },
            Some(1),
        );
        match master {
            Master::Alive => table.heartbeat(now, beat(1, 1)).unwrap(),
            Master::Dead => table.heartbeat(now - 1_001, beat(1, 1)).unwrap(),
            Master::Never => {}
        }
        if in_set {
            table.heartbeat(now, beat(2, 2)).unwrap();
        }
        if out_of_set {
            table.heartbeat(now, beat(3, 3)).unwrap();
        }
        let electable = in_set || (out_of_set && allow_unclean);
        let expected = match master {
            Master::Alive => Verdict::Healthy,
            Master::Never if !grace_over => Verdict::Wait,
            Master::Dead | Master::Never if electable => Verdict::Elect,
            Master::Dead | Master::Never => Verdict::Stuck,
        };
        let got = table.verdict(now, "b", &group(), allow_unclean);
        assert_eq!(
            got, expected,
            "row {row}: {master:?} {in_set} {out_of_set} {allow_unclean}"
        );
        elections += usize::from(got == Verdict::Elect);
    }
    // Dead: 8 rows with a member alive, 2 with an outsider and unclean allowed; of the rows without
    // any heartbeat of the master half are within the grace time.
    assert_eq!(elections, 10 + 5);
}

#[test]
fn b05_b06_an_election_is_wanted_until_there_is_a_master() {
    let mut table = table();
    table.set_leader(0, Some(1));
    for now in (0..GRACE).step_by(500) {
        table.heartbeat(now, beat(2, 2)).unwrap();
        table.tick(now);
        assert_eq!(verdict(&table, now), Verdict::Wait, "at {now}");
    }
    for now in (GRACE..2 * GRACE).step_by(500) {
        table.heartbeat(now, beat(2, 2)).unwrap();
        table.tick(now);
        assert_eq!(verdict(&table, now), Verdict::Elect, "at {now}");
    }
}

#[test]
fn a_new_leader_that_heard_the_brokers_before_needs_no_grace() {
    let mut table = table();
    table.heartbeat(0, beat(1, 1)).unwrap();
    table.heartbeat(0, beat(2, 2)).unwrap();
    table.closed(1);
    table.set_leader(10, Some(1));
    assert_eq!(verdict(&table, 10), Verdict::Elect);
}

#[test]
fn a_controller_that_restarted_with_all_brokers_alive_elects_nobody() {
    let mut table = table();
    table.set_leader(0, Some(1));
    assert_eq!(verdict(&table, 1), Verdict::Wait);
    for now in (1_000..30_000).step_by(500) {
        table.tick(now);
        table.heartbeat(now, beat(1, 1)).unwrap();
        table.heartbeat(now, beat(2, 2)).unwrap();
        assert_eq!(verdict(&table, now), Verdict::Healthy);
    }
}

#[test]
fn only_the_present_connection_counts_and_its_end_counts_at_once() {
    let mut table = table();
    table.heartbeat(0, beat(1, 1)).unwrap();
    table.heartbeat(0, beat(2, 2)).unwrap();
    table.heartbeat(10, beat(1, 7)).unwrap();
    assert!(!table.closed(1), "an old connection");
    assert_eq!(verdict(&table, 20), Verdict::Healthy);
    assert!(table.closed(7));
    assert_eq!(verdict(&table, 20), Verdict::Elect);
    assert!(!table.closed(7));
    table.heartbeat(30, beat(1, 8)).unwrap();
    assert_eq!(
        verdict(&table, 30),
        Verdict::Healthy,
        "it is back in the same life"
    );
}

#[test]
fn e42_a_heartbeat_overwrites_downwards_too() {
    let mut table = table();
    table.heartbeat(0, beat(1, 1)).unwrap();
    let mut lower = beat(1, 2);
    lower.report.epoch = 0;
    lower.report.max_offset = 5;
    lower.address = "new:1".to_owned();
    lower.timeout_ms = 0;
    table.heartbeat(1, lower).unwrap();
    let Seen::Alive(now) = table.seen(DEFAULT_TIMEOUT_MS, "c", "b", 1) else {
        panic!("dead")
    };
    assert_eq!((now.report.epoch, now.report.max_offset), (0, 5));
    assert_eq!(table.moved(1, "b", &group()), vec![(1, "new:1".to_owned())]);
    assert_eq!(
        table.seen(1 + DEFAULT_TIMEOUT_MS + 1, "c", "b", 1),
        Seen::Dead
    );
}

#[test]
fn another_cluster_is_another_broker() {
    let mut table = table();
    let mut other = beat(1, 1);
    other.cluster = "d".to_owned();
    table.heartbeat(0, other).unwrap();
    assert_eq!(table.seen(0, "c", "b", 1), Seen::Never);
}

#[test]
fn a_pause_of_this_process_kills_nobody() {
    let mut table = table();
    table.set_leader(0, Some(1));
    table.tick(0);
    table.heartbeat(0, beat(1, 1)).unwrap();
    table.heartbeat(0, beat(2, 2)).unwrap();
    table.tick(20_000);
    table.heartbeat(20_000, beat(2, 2)).unwrap();
    assert_eq!(
        verdict(&table, 20_000),
        Verdict::Healthy,
        "it had no chance to be heard"
    );
    table.tick(20_500);
    table.tick(21_001);
    table.heartbeat(21_001, beat(2, 2)).unwrap();
    assert_eq!(verdict(&table, 21_001), Verdict::Elect, "now it had");
}

#[test]
fn e16_a_master_in_a_new_life_is_elected_away_from() {
    let mut table = table();
    table.heartbeat(0, beat(2, 2)).unwrap();
    let mut reborn = beat(1, 1);
    reborn.report.incarnation = Some(2);
    table.heartbeat(0, reborn.clone()).unwrap();
    assert_eq!(verdict(&table, 0), Verdict::Elect);
    assert!(table.restarted(0, "b", &group()).is_empty());

    reborn.report.unclean = false;
    table.heartbeat(0, reborn).unwrap();
    assert_eq!(verdict(&table, 0), Verdict::Healthy);
    assert_eq!(
        table
            .restarted(0, "b", &group())
            .into_keys()
            .collect::<Vec<_>>(),
        [1]
    );
}

#[test]
fn a_set_that_never_had_a_master_waits_for_a_broker_to_ask() {
    let mut table = table();
    table.set_leader(0, Some(1));
    table.heartbeat(GRACE, beat(1, 1)).unwrap();
    let first = BrokerGroup {
        master: None,
        master_epoch: 0,
        sync_state_set: BTreeMap::new(),
        ..group()
    };
    assert_eq!(table.verdict(GRACE, "b", &first, true), Verdict::Healthy);
    let lost = BrokerGroup {
        master: None,
        ..group()
    };
    assert_eq!(table.verdict(GRACE, "b", &lost, false), Verdict::Elect);
}

#[test]
fn the_long_dead_are_forgotten_and_bad_heartbeats_refused() {
    let mut table = table();
    table.heartbeat(0, beat(1, 1)).unwrap();
    table.tick(FORGET_AFTER_MS);
    assert_eq!(table.seen(FORGET_AFTER_MS, "c", "b", 1), Seen::Dead);
    table.tick(FORGET_AFTER_MS + 1);
    assert_eq!(table.seen(FORGET_AFTER_MS + 1, "c", "b", 1), Seen::Never);
    assert_eq!(table.count, 0);

    let bad = Heartbeat {
        address: String::new(),
        ..beat(1, 1)
    };
    assert_eq!(table.heartbeat(0, bad), Err(HeartbeatError::Text));
    table.count = BEAT_LIMIT;
    assert_eq!(table.heartbeat(0, beat(1, 1)), Err(HeartbeatError::Full));
}
