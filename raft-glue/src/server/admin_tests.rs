//! Tables of the changes of members that are let through and of those that are not.

use std::collections::BTreeSet;

use super::*;
use crate::admin::MemberRequest;
use crate::ledger::MemberProgress;

fn member(number: u64) -> Member {
    Member {
        name: format!("n{number}"),
        address: format!("h:{number}"),
    }
}

/// `n1` to `n3` with votes, ids 2 to 4, led by `n1`; `n4` without.
fn metadata() -> LedgerMetadata {
    LedgerMetadata {
        id: 2,
        role: Role::Leader,
        is_ready: true,
        leader: Some(2),
        term: 3,
        first: 1,
        committed: 5_000,
        applied: 5_000,
        last: 5_000,
        members: (1..=4).map(|number| (number + 1, member(number))).collect(),
        learners: BTreeSet::from([5]),
        is_joint: false,
        failure: None,
    }
}

fn state(matched: u64, is_active: bool) -> MemberProgress {
    MemberProgress {
        matched,
        is_active,
        needs_snapshot: false,
    }
}

/// `n3` is dead; `n4` has caught up.
fn progress() -> Progress {
    BTreeMap::from([
        (3, state(5_000, true)),
        (4, state(10, false)),
        (5, state(4_990, true)),
    ])
}

fn learner(name: &str, address: &str) -> MemberRequest {
    MemberRequest::AddLearner {
        name: name.to_owned(),
        address: address.to_owned(),
    }
}

fn promote(id: u64) -> MemberRequest {
    MemberRequest::Promote { id }
}

fn remove(id: u64) -> MemberRequest {
    MemberRequest::Remove { id }
}

fn add_step(id: u64, member: Member) -> MemberStep {
    MemberStep::AddLearner { id, member }
}

fn vote_step(id: u64, member: Member) -> MemberStep {
    MemberStep::AddVoter { id, member }
}

#[test]
fn what_is_asked_for_becomes_steps_and_what_is_so_already_none() {
    let dead = MemberStep::Remove { id: 4 };
    for (asked, steps) in [
        (vec![learner("n8", "h:8")], vec![add_step(9, member(8))]),
        (vec![learner("n4", "h:4")], vec![]),
        (vec![promote(5)], vec![vote_step(5, member(4))]),
        (vec![promote(3)], vec![]),
        (vec![remove(4)], vec![dead.clone()]),
        (
            vec![promote(5), remove(4)],
            vec![vote_step(5, member(4)), dead],
        ),
        (vec![remove(5)], vec![MemberStep::Remove { id: 5 }]),
    ] {
        assert_eq!(
            plan(&asked, &metadata(), &progress()).unwrap(),
            steps,
            "{asked:?}"
        );
    }
}

#[test]
fn a_change_the_group_would_not_survive_is_refused_with_the_reason() {
    let refusal = |asked: &[MemberRequest], at: &LedgerMetadata| {
        let refusal = plan(asked, at, &progress()).expect_err("is let through");
        (refusal.code, refusal.remark)
    };
    for (asked, why) in [
        (vec![], "0 steps"),
        ((10..50).map(remove).collect(), "40 steps"),
        (vec![learner("n1", "h:9")], "a name that was never used"),
        (vec![learner("n9", "h:2")], "address of n2 (id 3 at h:2)"),
        (vec![learner("n-9", "h:9")], "n-9 at h:9"),
        (vec![learner("n9", "h")], "name-host:port"),
        (vec![learner("n9", "0.0.0.0:9")], "can reach"),
        (
            vec![promote(77)],
            "77 is no member: there are n1 (id 2 at h:1), n2",
        ),
        (vec![remove(77)], "77 is no member"),
        (vec![remove(2)], "n1 (id 2 at h:1) leads"),
        // n1 and the dead n3 would be left.
        (vec![remove(3)], "only 1 answer"),
        (vec![remove(3)], "n3 (id 4 at h:3)"),
    ] {
        let (code, remark) = refusal(&asked, &metadata());
        assert!(remark.contains(why), "{asked:?}: {remark}");
        assert_eq!(code, Code::InvalidRequest, "{remark}");
    }
    let mut joint = metadata();
    joint.is_joint = true;
    assert_eq!(refusal(&[remove(4)], &joint).0, Code::SystemBusy);
    let mut alone = metadata();
    alone.members.retain(|id, _| *id == 2);
    let (_, remark) = refusal(&[remove(2)], &alone);
    assert!(remark.contains("last member with a vote"), "{remark}");
}

#[test]
fn a_learner_gets_a_vote_only_when_it_lives_and_has_caught_up() {
    for (state, why) in [
        (Some(state(4_990, false)), "does not answer"),
        (Some(state(0, true)), "does not answer"),
        (None, "does not answer"),
        (Some(state(4_000, true)), "1000 entries behind"),
    ] {
        let mut progress = progress();
        progress.remove(&5);
        progress.extend(state.map(|state| (5, state)));
        let refusal = plan(&[promote(5)], &metadata(), &progress).unwrap_err();
        assert!(
            refusal.remark.contains(why),
            "{state:?}: {}",
            refusal.remark
        );
    }
    let mut close = progress();
    close.insert(5, state(4_001, true));
    assert_eq!(plan(&[promote(5)], &metadata(), &close).unwrap().len(), 1);
}

#[test]
fn a_request_with_a_field_too_many_is_not_read() {
    let read = |text: &str| serde_json::from_str::<MembersRequest>(text);
    let good =
        r#"{"steps":[{"step":"addLearner","name":"n3","address":"h:3"},{"step":"remove","id":2}]}"#;
    assert_eq!(read(good).unwrap().steps, [learner("n3", "h:3"), remove(2)]);
    for bad in [
        "",
        "{}",
        r#"{"steps":[{"step":"remove","id":-1}]}"#,
        r#"{"steps":[{"step":"addVoter","id":1}]}"#,
        r#"{"steps":[{"step":"remove","id":1,"force":true}]}"#,
        r#"{"steps":[],"force":true}"#,
    ] {
        assert!(read(bad).is_err(), "{bad}");
    }
}

#[test]
fn a_status_never_outgrows_a_frame() {
    let replica = |len: usize| crate::group::Replica {
        address: "\u{1}".repeat(len),
        check_code: String::new(),
        registrations: 0,
    };
    let group = |count: u64, len: usize| BrokerGroup {
        cluster: "c".to_owned(),
        next_broker_id: 1,
        replicas: (0..count).map(|id| (id, replica(len))).collect(),
        master: None,
        master_epoch: 0,
        sync_state_set: BTreeMap::new(),
        sync_state_set_epoch: 0,
        former_set: BTreeMap::new(),
    };
    let fits = |group: &BrokerGroup| {
        let mut room = Room::default();
        (0..2_000).filter(|_| room.take("b", group)).count()
    };
    assert_eq!(fits(&group(3, 10)), SET_STATUS_LIMIT);
    assert_eq!(fits(&group(1_000, 10)), 10, "the limit of brokers");
    assert_eq!(fits(&group(1_000, 1_000)), 1, "the limit of text");
    let liveness = Liveness::new(1, 1);
    let largest: Vec<SetStatus> = (0..10)
        .map(|_| set(&liveness, 1, "b", &group(1_000, 100), true))
        .collect();
    let len = serde_json::to_vec(&largest).unwrap().len();
    assert!(len < crate::remoting::MAX_FRAME_LEN * 3 / 4, "{len}");
}
