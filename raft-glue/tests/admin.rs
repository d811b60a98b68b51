//! What operators ask of running controllers: how they stand, other members, another leader.

mod common;

use std::time::Duration;

use common::{Group, SET, brokers, wait};
use epochlog_raft_glue::admin::{ControllerRole, ControllerStatus, MemberRequest};
use epochlog_raft_glue::client::{ControllerClient, ControllerClientConfig, ControllerError};

fn client(group: &Group) -> ControllerClient {
    let mut config = ControllerClientConfig::new(group.addresses.join(";"));
    config.request_timeout = Duration::from_secs(10);
    ControllerClient::new(config).expect("addresses")
}

async fn leader_status(group: &Group) -> ControllerStatus {
    group.wait_leader().await;
    let status = client(group).status(&group.leader_address()).await;
    status.expect("answers")
}

fn learner(group: &Group, at: usize) -> MemberRequest {
    MemberRequest::AddLearner {
        name: format!("n{at}"),
        address: group.addresses[at].clone(),
    }
}

fn refusal(outcome: Result<(), ControllerError>) -> (i32, String) {
    match outcome {
        Err(ControllerError::Refused { code, remark, .. }) => (code, remark),
        other => panic!("{other:?}"),
    }
}

/// Waits until the leader may give a learner its vote.
async fn caught_up(group: &Group, id: u64) {
    wait("a learner that has caught up", || async {
        let status = leader_status(group).await;
        let member = status.members.iter().find(|it| it.id == id)?.clone();
        let lag = member.progress?;
        (!member.is_voter && lag.is_active && lag.matched > 0).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_controller_says_how_it_stands() {
    let group = Group::start_with(3, |config| {
        config.preferred_leaders.insert("n1".to_owned());
    })
    .await;
    // The preferred one comes to lead whoever was first.
    wait("n1 as leader", || async {
        (group.leader() == Some(1)).then_some(())
    })
    .await;
    let mut brokers = brokers(&group, 2).await;
    let status = leader_status(&group).await;
    assert_eq!((status.name.as_str(), status.id), ("n1", 2));
    assert_eq!(status.role, ControllerRole::Leader);
    assert!(status.is_ready && !status.is_joint && status.term > 0);
    assert_eq!(status.preferred_leaders, ["n1"]);
    assert!(status.first <= status.applied && status.applied <= status.committed);
    assert!(status.committed <= status.last);
    assert_eq!(status.members.len(), 3);
    for (at, member) in status.members.iter().enumerate() {
        assert_eq!(member.name, format!("n{at}"));
        assert_eq!(member.address, group.addresses[at]);
        assert!(member.is_voter);
        let lag = member.progress.expect("the leader knows");
        assert!(lag.matched > 0 && lag.behind < 100, "{lag:?}");
    }
    let set = &status.sets[0];
    assert_eq!((set.broker.as_str(), set.master), (SET, Some(1)));
    assert_eq!((set.master_epoch, &set.sync_state_set), (1, &vec![1, 2]));
    assert!(set.brokers.iter().all(|it| it.is_alive));
    let age = set.brokers[1].heartbeat_age_ms.expect("heard of");
    assert!(age < 5_000, "{age}");

    // A broker whose connection closed is dead at once, and its last words stay.
    drop(brokers.pop());
    wait("a dead broker", || async {
        let status = leader_status(&group).await;
        let broker = &status.sets[0].brokers[1];
        (!broker.is_alive && broker.max_offset == Some(0)).then_some(())
    })
    .await;

    let follower = client(&group).status(&group.addresses[0]).await;
    let follower = follower.expect("answers");
    assert_eq!(follower.role, ControllerRole::Follower);
    assert_eq!((follower.leader, follower.is_ready), (Some(2), false));
    assert_eq!(follower.leader_address, Some(group.addresses[1].clone()));
    assert!(follower.members.iter().all(|it| it.progress.is_none()));
    assert_eq!(follower.sets[0].lease_ms, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_controller_is_replaced_by_requests() {
    let mut group = Group::start(3).await;
    let leader = group.wait_leader().await;
    let _brokers = brokers(&group, 2).await;
    let controllers = client(&group);
    let (dead, other) = ((leader + 1) % 3, (leader + 2) % 3);
    let id = |at: usize| at as u64 + 1;
    group.stop_one(dead).await;

    let other_gone = vec![MemberRequest::Remove { id: id(other) }];
    let (code, why) = refusal(controllers.change_members(other_gone).await);
    assert_eq!(code, 2005, "{why}");
    assert!(why.contains("no majority"), "{why}");

    let new = group.start_joining().await;
    let status = controllers.status(&group.addresses[new]).await;
    assert_eq!(status.expect("answers").role, ControllerRole::Joining);
    let add = vec![learner(&group, new)];
    controllers
        .change_members(add.clone())
        .await
        .expect("added");
    let again = controllers.change_members(add).await;
    again.expect("what is so already counts as done");
    caught_up(&group, id(new)).await;
    let steps = vec![
        MemberRequest::Promote { id: id(new) },
        MemberRequest::Remove { id: id(dead) },
    ];
    controllers.change_members(steps).await.expect("in force");
    let status = leader_status(&group).await;
    let members: Vec<(u64, bool)> = status
        .members
        .iter()
        .map(|it| (it.id, it.is_voter))
        .collect();
    let mut wanted = [(id(leader), true), (id(other), true), (id(new), true)];
    wanted.sort_unstable();
    assert_eq!(members, wanted);
    assert!(!status.is_joint);

    let gone = vec![MemberRequest::Remove { id: id(dead) }];
    let (code, why) = refusal(controllers.change_members(gone).await);
    assert_eq!(code, 2005, "{why}");
    assert!(why.contains("is no member: there are n"), "{why}");

    // The old members alone would have no majority.
    group.stop_one(other).await;
    group.wait_leader().await;
    let to = if leader_status(&group).await.id == id(new) {
        leader
    } else {
        new
    };
    controllers.transfer_leader(id(to)).await.expect("leads");
    assert_eq!(leader_status(&group).await.id, id(to));
    let (code, why) = refusal(controllers.transfer_leader(77).await);
    assert!(code == 2005 && why.contains("77 is no member"), "{why}");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_cannot_be_added_is_named_with_the_reason() {
    let mut group = Group::start(1).await;
    group.wait_leader().await;
    let controllers = client(&group);
    let refused = async |name: &str, address: &str| {
        let step = MemberRequest::AddLearner {
            name: name.to_owned(),
            address: address.to_owned(),
        };
        let (code, why) = refusal(controllers.change_members(vec![step]).await);
        assert_eq!(code, 2005, "{why}");
        why
    };
    let why = refused("n9", "127.0.0.1:1").await;
    assert!(
        why.contains("does not answer") && why.contains("controllerJoin"),
        "{why}"
    );

    let alone = Group::start(1).await;
    let why = refused("n7", &alone.addresses[0]).await;
    assert!(why.contains("is n0, not n7"), "{why}");
    let foreign = Group::start_with(1, |config| config.group = "other".to_owned()).await;
    let why = refused("n7", &foreign.addresses[0]).await;
    assert!(why.contains("of group other"), "{why}");

    // Another name, so that only its having a group is in the way.
    let new = group.start_joining().await;
    group.stop_one(new).await;
    let dir = tempfile::tempdir().expect("temp dir");
    let peers = format!("{};n1-{}", group.peers, group.addresses[new]);
    let config = epochlog_raft_glue::ControllerConfig::new("n1", &peers, dir.path());
    let founding = epochlog_raft_glue::Controller::start(config.expect("good")).await;
    let why = refused("n1", &group.addresses[new]).await;
    assert!(why.contains("has a group already"), "{why}");
    founding.expect("starts").shutdown().await;

    let dir = tempfile::tempdir().expect("temp dir");
    let peers = format!("n5-127.0.0.1:1;n1-{}", group.addresses[new]);
    let config = epochlog_raft_glue::ControllerConfig::new("n1", &peers, dir.path());
    let mut config = config.expect("good");
    config.join = true;
    let stranger = epochlog_raft_glue::Controller::start(config).await;
    let why = refused("n1", &group.addresses[new]).await;
    assert!(why.contains("does not know n0, which leads"), "{why}");
    stranger.expect("starts").shutdown().await;

    let (code, why) = refusal(
        controllers
            .change_members(vec![MemberRequest::Remove { id: 1 }])
            .await,
    );
    assert!(
        code == 2005 && why.contains("last member with a vote"),
        "{why}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn two_changes_at_once_are_refused() {
    let mut group = Group::start_with(3, |config| {
        // The leader goes on for a while without the others.
        config.timings.election_min_ms = 4_000;
        config.timings.election_max_ms = 5_000;
        config.timings.append_timeout_ms = 6_000;
    })
    .await;
    let leader = group.wait_leader().await;
    let new = group.start_joining().await;
    let controllers = client(&group);
    let add = vec![learner(&group, new)];
    controllers.change_members(add).await.expect("added");
    caught_up(&group, new as u64 + 1).await;
    for at in (0..3).filter(|at| *at != leader) {
        group.stop_one(at).await;
    }
    let step = vec![MemberRequest::Remove { id: new as u64 + 1 }];
    let first = {
        let (controllers, step) = (controllers.clone(), step.clone());
        tokio::spawn(async move { controllers.change_members(step).await })
    };
    let before = leader_status(&group).await.last;
    wait("the first change in the log", || async {
        (leader_status(&group).await.last > before || first.is_finished()).then_some(())
    })
    .await;
    let (code, why) = refusal(controllers.change_members(step).await);
    assert_eq!(code, 2, "{why}");
    assert!(
        why.contains("another change of members is under way"),
        "{why}"
    );
    let (code, why) = refusal(first.await.expect("no panic"));
    assert!(
        code == 1 && why.contains("controller status"),
        "{code} {why}"
    );
}
