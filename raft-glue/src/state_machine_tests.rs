use std::collections::BTreeSet;

use super::*;
use crate::command::Report;

const CLUSTER: &str = "c";
pub(super) const SET: &str = "b";

pub(super) fn report(epoch: i32, max_offset: i64) -> Report {
    Report {
        epoch,
        max_epoch: epoch,
        max_offset,
        priority: i32::MAX,
        incarnation: Some(1),
        unclean: true,
    }
}

pub(super) fn alive(ids: &[u64]) -> Reports {
    ids.iter().map(|&id| (id, report(0, 0))).collect()
}

pub(super) fn apply_id(id: u64, code: &str) -> Command {
    Command::ApplyBrokerId(ApplyBrokerId {
        cluster: CLUSTER.to_owned(),
        broker: SET.to_owned(),
        id,
        check_code: code.to_owned(),
    })
}

pub(super) fn register(id: u64, address: &str, alive: &[u64]) -> RegisterBroker {
    RegisterBroker {
        cluster: CLUSTER.to_owned(),
        broker: SET.to_owned(),
        id,
        address: address.to_owned(),
        incarnation: Some(1),
        unclean: true,
        alive: alive.iter().copied().collect(),
    }
}

pub(super) fn elect(asker: Option<u64>, alive: Reports) -> ElectMaster {
    ElectMaster {
        broker: SET.to_owned(),
        broker_id: asker,
        designate: false,
        allow_unclean: false,
        expected_master_epoch: None,
        alive,
    }
}

pub(super) fn alter(
    master: u64,
    epoch: u32,
    set_epoch: u32,
    set: &[u64],
    who: &[u64],
) -> AlterSyncStateSet {
    AlterSyncStateSet {
        broker: SET.to_owned(),
        master_id: master,
        master_epoch: epoch,
        sync_state_set_epoch: set_epoch,
        new_set: set.iter().copied().collect(),
        seen_in: None,
        alive: alive(who),
    }
}

pub(super) fn clean(ids: Option<&[u64]>, living: bool, alive: &[u64]) -> CleanBrokerData {
    CleanBrokerData {
        broker: SET.to_owned(),
        ids: ids.map(|ids| ids.iter().copied().collect()),
        clean_living: living,
        alive: alive.iter().copied().collect(),
    }
}

/// Brokers 1, 2 and 3, master 1 in epoch 1, set {1, 2} in set epoch 2.
pub(super) fn group_of_three() -> ControllerState {
    let mut state = ControllerState::new();
    for id in 1..=3 {
        ok(&mut state, &apply_id(id, &format!("h{id}:1;x{id}")));
    }
    ok(
        &mut state,
        &Command::ElectMaster(elect(Some(1), alive(&[1, 2, 3]))),
    );
    ok(
        &mut state,
        &Command::AlterSyncStateSet(alter(1, 1, 1, &[1, 2], &[1, 2])),
    );
    state
}

pub(super) fn ok(state: &mut ControllerState, command: &Command) -> Answer {
    let answer = state.apply(command);
    assert_eq!(answer.code, Code::Success, "{command:?}: {}", answer.remark);
    answer
}

/// Applies and checks the code, and that a refusal changes nothing.
fn code(state: &mut ControllerState, command: &Command) -> Code {
    let before = state.clone();
    let answer = state.apply(command);
    assert_eq!(answer.changed, *state != before, "{command:?}");
    answer.code
}

pub(super) fn set(state: &ControllerState) -> (Option<u64>, u32, BTreeSet<u64>, u32) {
    let group = state.group(SET).unwrap();
    let ids = group.sync_state_set.keys().copied().collect();
    (
        group.master,
        group.master_epoch,
        ids,
        group.sync_state_set_epoch,
    )
}

#[test]
fn b11_b18_ids_are_granted_once_and_again_to_the_same_check_code() {
    let mut state = ControllerState::new();
    assert_eq!(state.next_broker_id(SET), 1);
    assert_eq!(
        code(&mut state, &apply_id(2, "h:1;x")),
        Code::BrokerIdInvalid
    );
    assert_eq!(
        code(&mut state, &apply_id(0, "h:1;x")),
        Code::BrokerIdInvalid
    );
    assert_eq!(code(&mut state, &apply_id(1, "h:1;x")), Code::Success);
    assert_eq!(
        code(&mut state, &apply_id(1, "h:1;x")),
        Code::Success,
        "the same broker again"
    );
    assert_eq!(
        code(&mut state, &apply_id(1, "h:1;y")),
        Code::BrokerIdInvalid,
        "another broker"
    );
    assert_eq!(state.next_broker_id(SET), 2);
    assert_eq!(state.group(SET).unwrap().replicas[&1].address, "h:1");
}

#[test]
fn e44_the_next_id_is_above_every_id_taken() {
    let mut state = ControllerState::new();
    ok(&mut state, &apply_id(1, "h:1;x"));
    ok(&mut state, &apply_id(7, "h:2;x"));
    assert_eq!(state.next_broker_id(SET), 8);
    ok(&mut state, &apply_id(3, "h:3;x"));
    assert_eq!(state.next_broker_id(SET), 8);
    assert_eq!(
        code(&mut state, &apply_id(u64::MAX, "h:4;x")),
        Code::BrokerIdInvalid
    );
    ok(&mut state, &apply_id(BROKER_ID_MAX, "h:4;x"));
    assert_eq!(state.next_broker_id(SET), BROKER_ID_MAX + 1);
}

#[test]
fn a_set_stays_in_its_cluster() {
    let mut state = group_of_three();
    let mut command = register(1, "h1:1", &[1]);
    command.cluster = "other".to_owned();
    let command = Command::RegisterBroker(command);
    assert_eq!(code(&mut state, &command), Code::BrokerNeedToBeRegistered);
    let Command::ApplyBrokerId(mut command) = apply_id(4, "h4:1;x") else {
        unreachable!()
    };
    command.cluster = "other".to_owned();
    assert_eq!(
        code(&mut state, &Command::ApplyBrokerId(command)),
        Code::BrokerIdInvalid
    );
}

#[test]
fn b11_a_broker_keeps_its_membership_when_its_address_changes() {
    let mut state = group_of_three();
    let before = set(&state);
    let answer = ok(
        &mut state,
        &Command::RegisterBroker(register(2, "new:9", &[1, 2])),
    );
    assert_eq!(set(&state), before);
    let view = answer.group.unwrap();
    assert_eq!(view.members[&2], "new:9");
    assert_eq!(view.master.unwrap().address, "h1:1");

    let moved = UpdateAddress {
        broker: SET.to_owned(),
        id: 2,
        address: "newer:9".to_owned(),
    };
    ok(&mut state, &Command::UpdateAddress(moved.clone()));
    assert_eq!(
        code(&mut state, &Command::UpdateAddress(moved.clone())),
        Code::Success
    );
    let unknown = Command::UpdateAddress(UpdateAddress {
        id: 9,
        ..moved.clone()
    });
    assert_eq!(code(&mut state, &unknown), Code::BrokerNeedToBeRegistered);
    let empty = Command::UpdateAddress(UpdateAddress {
        address: String::new(),
        ..moved
    });
    assert_eq!(code(&mut state, &empty), Code::InvalidRequest);
}

#[test]
fn register_names_the_master_only_when_it_is_alive_and_sound() {
    let mut state = group_of_three();
    let master = |state: &mut ControllerState, command: RegisterBroker| {
        ok(state, &Command::RegisterBroker(command))
            .group
            .unwrap()
            .master
            .map(|m| m.id)
    };
    assert_eq!(master(&mut state, register(2, "h2:1", &[1, 2])), Some(1));
    assert_eq!(
        master(&mut state, register(2, "h2:1", &[2])),
        None,
        "the master is dead"
    );
    assert_eq!(
        master(&mut state, register(1, "h1:1", &[])),
        Some(1),
        "its own life goes on"
    );
    let reborn = RegisterBroker {
        incarnation: Some(2),
        ..register(1, "h1:1", &[1])
    };
    assert_eq!(
        master(&mut state, reborn.clone()),
        None,
        "it may have lost acknowledged bytes"
    );
    let clean = RegisterBroker {
        unclean: false,
        ..reborn
    };
    assert_eq!(master(&mut state, clean), Some(1));
    let java = RegisterBroker {
        incarnation: None,
        ..register(1, "h1:1", &[1])
    };
    assert_eq!(master(&mut state, java), None);

    let unknown = Command::RegisterBroker(register(9, "h9:1", &[]));
    assert_eq!(code(&mut state, &unknown), Code::BrokerNeedToBeRegistered);
    let mut empty = ControllerState::new();
    let command = Command::RegisterBroker(register(1, "h1:1", &[]));
    assert_eq!(code(&mut empty, &command), Code::BrokerNeedToBeRegistered);
}

#[test]
fn every_election_raises_both_epochs_and_begins_with_a_set_of_one() {
    let mut state = group_of_three();
    assert_eq!(set(&state), (Some(1), 1, BTreeSet::from([1, 2]), 2));
    let answer = ok(
        &mut state,
        &Command::ElectMaster(elect(None, alive(&[2, 3]))),
    );
    assert_eq!(set(&state), (Some(2), 2, BTreeSet::from([2]), 3));
    let view = answer.group.unwrap();
    assert_eq!((view.master.unwrap().id, view.master_epoch), (2, 2));
    assert_eq!(view.members.len(), 3);
}

#[test]
fn elect_answers_with_the_codes_of_the_protocol() {
    let mut unknown = ControllerState::new();
    let command = Command::ElectMaster(elect(Some(1), alive(&[1])));
    assert_eq!(code(&mut unknown, &command), Code::BrokerNeedToBeRegistered);

    let mut state = group_of_three();
    let unregistered = Command::ElectMaster(elect(Some(9), alive(&[1, 9])));
    assert_eq!(
        code(&mut state, &unregistered),
        Code::BrokerNeedToBeRegistered
    );
    // An operator who names nobody is told what RocketMQ tells.
    let designated = Command::ElectMaster(ElectMaster {
        designate: true,
        ..elect(Some(9), alive(&[1, 9]))
    });
    assert_eq!(code(&mut state, &designated), Code::ElectMasterFailed);

    let answer = state.apply(&Command::ElectMaster(elect(Some(2), alive(&[1, 2]))));
    assert_eq!(
        (answer.code, answer.changed),
        (Code::MasterStillExist, false)
    );
    assert_eq!(answer.group.unwrap().master.unwrap().id, 1);

    let by_broker = Command::ElectMaster(elect(Some(3), alive(&[3])));
    assert_eq!(code(&mut state, &by_broker), Code::ElectMasterFailed);
    assert_eq!(set(&state).0, Some(1), "the dead master stays recorded");

    let stale = ElectMaster {
        expected_master_epoch: Some(7),
        ..elect(None, alive(&[2]))
    };
    assert_eq!(
        code(&mut state, &Command::ElectMaster(stale)),
        Code::MasterStillExist
    );
}

#[test]
fn e43_a_failed_election_without_a_broker_raises_the_epoch_once() {
    let mut state = group_of_three();
    let nobody = Command::ElectMaster(elect(None, alive(&[3])));
    assert_eq!(code(&mut state, &nobody), Code::MasterNotAvailable);
    assert_eq!(set(&state), (None, 2, BTreeSet::from([1, 2]), 2));
    assert_eq!(code(&mut state, &nobody), Code::MasterNotAvailable);
    assert_eq!(
        set(&state).1,
        2,
        "nothing changes when there is no master already"
    );
    ok(&mut state, &Command::ElectMaster(elect(None, alive(&[2]))));
    assert_eq!(set(&state), (Some(2), 3, BTreeSet::from([2]), 3));
}

#[test]
fn a_designated_broker_is_elected_or_nobody() {
    let mut state = group_of_three();
    let wish = |id, ids: &[u64]| {
        Command::ElectMaster(ElectMaster {
            designate: true,
            ..elect(Some(id), alive(ids))
        })
    };
    assert_eq!(
        code(&mut state, &wish(3, &[1, 2, 3])),
        Code::ElectMasterFailed,
        "not in the set"
    );
    assert_eq!(
        code(&mut state, &wish(1, &[1, 2, 3])),
        Code::MasterStillExist
    );
    assert_eq!(code(&mut state, &wish(2, &[1, 2, 3])), Code::Success);
    assert_eq!(set(&state).0, Some(2));
}

#[test]
fn an_unclean_election_happens_only_when_allowed() {
    let mut state = group_of_three();
    let mut command = elect(Some(3), alive(&[3]));
    assert_eq!(
        code(&mut state, &Command::ElectMaster(command.clone())),
        Code::ElectMasterFailed
    );
    command.allow_unclean = true;
    assert_eq!(
        code(&mut state, &Command::ElectMaster(command)),
        Code::Success
    );
    assert_eq!(set(&state).0, Some(3));
}

#[test]
fn an_empty_controller_takes_up_above_the_epochs_reported_to_it() {
    let mut state = ControllerState::new();
    for id in 1..=2 {
        ok(&mut state, &apply_id(id, &format!("h{id}:1;x{id}")));
    }
    let reports = Reports::from([(1, report(7, 500)), (2, report(7, 900))]);
    ok(&mut state, &Command::ElectMaster(elect(Some(1), reports)));
    assert_eq!(
        set(&state),
        (Some(2), 8, BTreeSet::from([2]), 1),
        "2 holds more than the asker"
    );
}

#[test]
fn an_absurd_reported_epoch_is_not_believed_and_the_last_epoch_is_the_last() {
    let mut state = group_of_three();
    let reports = Reports::from([(2, report(i32::MAX, 0))]);
    ok(&mut state, &Command::ElectMaster(elect(None, reports)));
    assert_eq!(set(&state).1, 2);

    let mut group = state.group(SET).unwrap().clone();
    group.master_epoch = EPOCH_MAX;
    state.put_group(SET.to_owned(), Some(group));
    let next = Command::ElectMaster(ElectMaster {
        allow_unclean: true,
        ..elect(None, alive(&[1]))
    });
    assert_eq!(code(&mut state, &next), Code::ElectMasterFailed);
}

#[test]
fn alter_checks_in_the_order_of_the_protocol() {
    let mut state = group_of_three();
    let mut check = |command: AlterSyncStateSet, expected: Code| {
        let text = format!("{command:?}");
        assert_eq!(
            code(&mut state, &Command::AlterSyncStateSet(command)),
            expected,
            "{text}"
        );
    };
    let unknown = AlterSyncStateSet {
        broker: "?".into(),
        ..alter(1, 1, 2, &[1], &[1])
    };
    check(unknown, Code::AlterSyncStateSetFailed);
    check(alter(9, 9, 9, &[1, 2], &[]), Code::AlterSyncStateSetFailed);
    check(alter(2, 9, 9, &[1, 9], &[]), Code::InvalidMaster);
    check(alter(1, 2, 9, &[1, 9], &[]), Code::FencedMasterEpoch);
    check(alter(1, 1, 1, &[1, 9], &[]), Code::FencedSyncStateSetEpoch);
    check(alter(1, 1, 2, &[1, 9], &[1, 9]), Code::InvalidReplicas);
    check(alter(1, 1, 2, &[1, 3], &[1]), Code::BrokerNotAlive);
    check(alter(1, 1, 2, &[2], &[2]), Code::AlterSyncStateSetFailed);
    check(alter(1, 1, 2, &[1], &[2]), Code::BrokerNotAlive);
    check(alter(1, 1, 2, &[1], &[1]), Code::Success);
}

#[test]
fn b09_b10_a_repeated_alter_is_known_as_done_and_a_stale_one_is_not() {
    let mut state = group_of_three();
    let first = Command::AlterSyncStateSet(alter(1, 1, 2, &[1, 2, 3], &[1, 2, 3]));
    assert_eq!(
        ok(&mut state, &first).group.unwrap().sync_state_set_epoch,
        3
    );
    let again = state.apply(&first);
    assert_eq!((again.code, again.changed), (Code::Success, false));
    assert_eq!(again.group.unwrap().sync_state_set_epoch, 3);
    let other_epoch = Command::AlterSyncStateSet(alter(1, 1, 3, &[1, 2, 3], &[1, 2, 3]));
    assert_eq!(
        code(&mut state, &other_epoch),
        Code::AlterSyncStateSetFailed
    );
    let old_master = Command::AlterSyncStateSet(alter(2, 1, 2, &[1, 2, 3], &[1, 2, 3]));
    assert_eq!(code(&mut state, &old_master), Code::AlterSyncStateSetFailed);

    code(&mut state, &Command::ElectMaster(elect(None, alive(&[]))));
    assert_eq!(set(&state).0, None);
    let orphan = Command::AlterSyncStateSet(alter(1, 2, 3, &[1], &[1]));
    assert_eq!(
        code(&mut state, &orphan),
        Code::InvalidMaster,
        "a set without a master"
    );
}

#[test]
fn e45_cleaning_leaves_nothing_half_done() {
    let mut state = group_of_three();
    let command = |c: CleanBrokerData| Command::CleanBrokerData(c);
    let bad = Code::InvalidCleanBrokerMetadata;
    assert_eq!(code(&mut state, &command(clean(None, false, &[]))), bad);
    assert_eq!(
        code(&mut state, &command(clean(Some(&[1, 2]), false, &[2]))),
        bad
    );
    let unknown = CleanBrokerData {
        broker: "?".into(),
        ..clean(None, true, &[])
    };
    assert_eq!(code(&mut state, &command(unknown)), bad);

    assert_eq!(
        code(&mut state, &command(clean(Some(&[1]), false, &[2, 3]))),
        Code::Success
    );
    assert_eq!(
        set(&state),
        (None, 1, BTreeSet::from([2]), 3),
        "the master went with its id"
    );
    ok(
        &mut state,
        &Command::ElectMaster(elect(None, alive(&[2, 3]))),
    );
    assert_eq!(set(&state).0, Some(2));
    assert_eq!(state.next_broker_id(SET), 4, "ids are not used again");

    assert_eq!(
        code(&mut state, &command(clean(Some(&[2, 3]), false, &[]))),
        Code::Success
    );
    assert!(state.group(SET).is_none());

    let mut state = group_of_three();
    assert_eq!(
        code(&mut state, &command(clean(Some(&[9]), true, &[1, 2, 3]))),
        Code::Success
    );
    assert!(state.group(SET).is_none(), "the whole set, ids or not");
}

#[test]
fn e16_members_that_restarted_are_vouched_for_or_leave_the_set() {
    let mut state = group_of_three();
    let review = |reports: Reports, set_epoch| {
        Command::ReviewMembers(ReviewMembers {
            broker: SET.to_owned(),
            master_epoch: 1,
            sync_state_set_epoch: set_epoch,
            alive: reports,
        })
    };
    let life = |n, unclean| Report {
        incarnation: Some(n),
        unclean,
        ..report(1, 5)
    };

    code(&mut state, &review(Reports::from([(2, life(2, true))]), 9));
    assert_eq!(
        set(&state).2,
        BTreeSet::from([1, 2]),
        "another set epoch: nothing"
    );
    code(
        &mut state,
        &review(Reports::from([(2, life(2, false)), (3, life(4, true))]), 2),
    );
    assert_eq!(set(&state).3, 2, "same members, same epoch");
    let group = state.group(SET).unwrap();
    assert!(group.is_sound(2, &life(3, false)), "vouched for in life 2");

    code(
        &mut state,
        &review(Reports::from([(2, life(3, true)), (1, life(9, true))]), 2),
    );
    assert_eq!(
        set(&state),
        (Some(1), 1, BTreeSet::from([1]), 3),
        "2 left, the master did not"
    );
    let back = Reports::from([(1, life(1, true)), (2, life(3, true))]);
    let command = AlterSyncStateSet {
        alive: back,
        ..alter(1, 1, 3, &[1, 2], &[])
    };
    ok(&mut state, &Command::AlterSyncStateSet(command));
    assert!(
        state.group(SET).unwrap().is_sound(2, &life(3, true)),
        "admitted in its new life"
    );
}

#[test]
fn a_member_that_stays_keeps_the_life_it_was_admitted_in() {
    let mut state = group_of_three();
    let mut command = alter(1, 1, 2, &[1, 2, 3], &[1, 2, 3]);
    command.alive.get_mut(&2).unwrap().incarnation = Some(2);
    ok(&mut state, &Command::AlterSyncStateSet(command));
    let reborn = Report {
        incarnation: Some(2),
        ..report(1, 5)
    };
    assert!(!state.group(SET).unwrap().is_sound(2, &reborn));
    assert!(state.group(SET).unwrap().is_sound(3, &report(1, 5)));
}

#[test]
fn texts_over_the_limit_are_refused() {
    let mut state = ControllerState::new();
    let long = "x".repeat(TEXT_LIMIT + 1);
    assert_eq!(code(&mut state, &apply_id(1, &long)), Code::BrokerIdInvalid);
    assert_eq!(code(&mut state, &apply_id(1, "")), Code::BrokerIdInvalid);
    ok(&mut state, &apply_id(1, ";no address"));
    let first = Command::ElectMaster(elect(Some(1), alive(&[1])));
    assert_eq!(
        code(&mut state, &first),
        Code::ElectMasterFailed,
        "a master needs an address"
    );
    let command = Command::RegisterBroker(register(1, &long, &[]));
    assert_eq!(code(&mut state, &command), Code::InvalidRequest);
}
