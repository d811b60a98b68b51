//! Masters that do not serve yet, and the lives of members.

use super::tests::{SET, alive, alter, elect, group_of_three, ok, set};
use super::*;

/// As [`group_of_three`], with these members in the set, in set epoch 3.
fn with_set(ids: &[u64]) -> ControllerState {
    let mut state = group_of_three();
    ok(
        &mut state,
        &Command::AlterSyncStateSet(alter(1, 1, 2, ids, ids)),
    );
    state
}

fn confirm(id: u64, master_epoch: u32, incarnation: u64, unclean: bool) -> Command {
    Command::ConfirmMaster(ConfirmMaster {
        broker: SET.to_owned(),
        id,
        master_epoch,
        incarnation: Some(incarnation),
        unclean,
    })
}

#[test]
fn a_master_that_died_before_it_served_is_replaced_from_the_set_before() {
    let mut state = with_set(&[1, 2, 3]);
    // 1 is gone; 2 is elected by a heartbeat it sent before it lost power.
    ok(
        &mut state,
        &Command::ElectMaster(elect(None, alive(&[2, 3]))),
    );
    assert_eq!(set(&state).0, Some(2));
    // It comes back with a shorter log, alone with 3: 3 has all that was acknowledged.
    let mut reports = alive(&[2, 3]);
    let lost = reports.get_mut(&2).unwrap();
    (lost.incarnation, lost.max_offset) = (Some(2), 1);
    ok(
        &mut state,
        &Command::ElectMaster(elect(None, reports.clone())),
    );
    assert_eq!((set(&state).0, set(&state).1), (Some(3), 3));
    // Once 3 serves, 2 is nobody to elect from any more.
    ok(&mut state, &confirm(3, 3, 1, true));
    assert!(state.group(SET).unwrap().former_set.is_empty());
    reports.remove(&3);
    let answer = state.apply(&Command::ElectMaster(elect(None, reports)));
    assert_eq!(answer.code, Code::MasterNotAvailable);
}

#[test]
fn an_epoch_is_above_every_one_that_was_promised_be_it_without_writes() {
    for (promised, next) in [
        (0, 2),
        (1, 2),
        (9, 10),
        (-1, 2),
        (REPORTED_EPOCH_MAX, 2 + (1 << 30) - 1),
    ] {
        let mut state = with_set(&[1, 2, 3]);
        let mut reports = alive(&[2, 3]);
        reports.get_mut(&3).unwrap().max_epoch = promised;
        ok(&mut state, &Command::ElectMaster(elect(None, reports)));
        assert_eq!(set(&state).1, next, "{promised}");
    }
}

#[test]
fn only_the_master_of_the_epoch_in_a_life_that_holds_is_confirmed() {
    let cases = [
        (2, 2, 1, true, Code::Success, true),
        (2, 2, 2, false, Code::Success, true),
        (2, 2, 2, true, Code::InvalidMaster, false),
        (2, 2, 3, false, Code::InvalidMaster, false),
        (3, 2, 1, true, Code::InvalidMaster, false),
        (2, 1, 1, true, Code::InvalidMaster, false),
    ];
    for (id, epoch, life, unclean, code, clears) in cases {
        let mut state = with_set(&[1, 2, 3]);
        ok(
            &mut state,
            &Command::ElectMaster(elect(None, alive(&[2, 3]))),
        );
        let answer = state.apply(&confirm(id, epoch, life, unclean));
        let group = state.group(SET).unwrap();
        assert_eq!(answer.code, code, "{id} {epoch} {life} {unclean}");
        assert_eq!(group.former_set.is_empty(), clears);
        if clears {
            assert_eq!(group.sync_state_set[&2], Incarnation::Opened(life));
        }
    }
}

#[test]
fn e16_a_newcomer_is_admitted_only_in_the_life_it_was_seen_caught_up_in() {
    let seen = |pairs: &[(u64, u64)]| Some(pairs.iter().copied().collect());
    let mut reports = alive(&[1, 2]);
    reports.get_mut(&2).unwrap().incarnation = Some(7);
    let cases = [
        (seen(&[(2, 7)]), Code::Success),
        (None, Code::Success),
        (seen(&[(2, 6)]), Code::BrokerNotAlive),
        (seen(&[(1, 1)]), Code::BrokerNotAlive),
        (seen(&[]), Code::BrokerNotAlive),
    ];
    for (seen_in, code) in cases {
        let mut state = with_set(&[1]);
        let epoch = set(&state).3;
        let command = AlterSyncStateSet {
            seen_in: seen_in.clone(),
            alive: reports.clone(),
            ..alter(1, 1, epoch, &[1, 2], &[])
        };
        let answer = state.apply(&Command::AlterSyncStateSet(command));
        assert_eq!(answer.code, code, "{seen_in:?}");
    }
}

/// A Java broker does not name its life: its registrations are counted, and its master is told.
#[test]
fn a_java_newcomer_is_admitted_only_in_the_registration_it_was_seen_caught_up_in() {
    for (seen, code) in [(0, Code::Success), (1, Code::BrokerNotAlive)] {
        let mut state = with_set(&[1]);
        let epoch = set(&state).3;
        assert_eq!(state.group(SET).unwrap().replicas[&2].registrations, 0);
        let mut reports = alive(&[1, 2]);
        reports.get_mut(&2).unwrap().incarnation = None;
        let command = AlterSyncStateSet {
            seen_in: Some([(2, seen)].into()),
            alive: reports,
            ..alter(1, 1, epoch, &[1, 2], &[])
        };
        let answer = state.apply(&Command::AlterSyncStateSet(command));
        assert_eq!(answer.code, code, "{seen}");
        if code == Code::Success {
            let life = state.group(SET).unwrap().sync_state_set[&2];
            assert_eq!(life, Incarnation::Registered(0));
        }
    }
}
