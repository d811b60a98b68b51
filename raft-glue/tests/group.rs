//! Three controllers: leaders come and go, what was decided stays, masters are replaced.

mod common;

use std::time::{Duration, Instant};

use common::{Broker, Group, SET, brokers, wait};
use epochlog_raft_glue::remoting::{
    ElectMasterResponse, GetMetadataResponse, GetReplicaInfoRequest, NotifyRoleChangedRequest,
    RemotingCommand, request_code,
};
use epochlog_raft_glue::{Member, MemberStep};

/// Sends heartbeats until the leader names another master than `old`.
async fn wait_master(group: &Group, alive: &[&Broker], old: i64) -> (i64, i32) {
    wait("another master", || async {
        group.leader()?;
        for broker in alive {
            broker.beat_all(group).await;
        }
        let (header, _) = alive[0].replica_info(&group.leader_address()).await;
        let master = header.master_broker_id?;
        (master != old).then_some((master, header.master_epoch?))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_decided_outlives_leaders_and_restarts() {
    let mut group = Group::start(3).await;
    let first = group.wait_leader().await;
    let mut brokers = brokers(&group, 2).await;

    let follower = group.addresses[(first + 1) % 3].clone();
    let header = GetReplicaInfoRequest {
        broker_name: SET.to_owned(),
    };
    let request = RemotingCommand::request_with(request_code::CONTROLLER_GET_REPLICA_INFO, &header);
    let answer = brokers[0].call(&follower, request).await;
    assert_eq!(answer.code, 2007);
    assert_eq!(
        answer.remark,
        Some(group.leader_address()),
        "where to go instead"
    );
    let request = RemotingCommand::request(request_code::CONTROLLER_GET_METADATA_INFO);
    let metadata: GetMetadataResponse = brokers[0].call(&follower, request).await.header().unwrap();
    assert_eq!(metadata.is_leader, Some(false));
    assert_eq!(
        metadata.controller_leader_address,
        Some(group.leader_address())
    );
    assert_eq!(metadata.peers.unwrap().matches(';').count(), 3);

    group.stop_one(first).await;
    let second = group.wait_leader().await;
    assert_ne!(first, second);
    for broker in &brokers {
        broker.beat_all(&group).await;
    }
    let (header, set) = brokers[0].replica_info(&group.leader_address()).await;
    assert_eq!(
        (header.master_broker_id, header.master_epoch),
        (Some(1), Some(1))
    );
    assert_eq!(set.len(), 2);
    assert_eq!(
        brokers[0]
            .alter(&group.leader_address(), 1, 2, &[1])
            .await
            .code,
        0
    );

    group.start_one(first).await;
    group.stop_one(second).await;
    group.wait_leader().await;
    let (_, set) = brokers[0].replica_info(&group.leader_address()).await;
    assert_eq!(set.len(), 1, "decided while the first leader was down");

    for at in 0..3 {
        if group.running[at].is_some() {
            group.stop_one(at).await;
        }
    }
    for at in 0..3 {
        group.start_one(at).await;
    }
    group.wait_leader().await;
    let (header, set) = brokers[0].replica_info(&group.leader_address()).await;
    assert_eq!(
        (header.master_broker_id, header.master_epoch, set.len()),
        (Some(1), Some(1), 1)
    );
    brokers.pop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_connection_elects_at_once_and_the_rest_are_told() {
    let group = Group::start(3).await;
    group.wait_leader().await;
    let mut brokers = brokers(&group, 3).await;
    let begin = Instant::now();
    let master = brokers.remove(0);
    drop(master);
    let mut told = Vec::new();
    for broker in &mut brokers {
        let notice = loop {
            let wanted = request_code::NOTIFY_BROKER_ROLE_CHANGED;
            let limit = Duration::from_secs(10);
            let notice = tokio::time::timeout(limit, broker.notices.recv())
                .await
                .unwrap()
                .unwrap();
            let header: NotifyRoleChangedRequest = notice.header().unwrap();
            if notice.code == wanted && header.master_epoch == 2 {
                break header;
            }
        };
        told.push(notice);
    }
    let elapsed = begin.elapsed();
    assert!(
        elapsed < Duration::from_millis(1_500),
        "long before a timeout: {elapsed:?}"
    );
    assert_eq!(
        told[0].master_broker_id,
        Some(2),
        "the lower id among equals"
    );
    assert_eq!(told[0].master_address.as_ref(), Some(&brokers[0].address));
    assert_eq!(told[0], told[1]);
    let (header, set) = brokers[0].replica_info(&group.leader_address()).await;
    assert_eq!(
        (header.master_epoch, set.into_iter().collect::<Vec<_>>()),
        (Some(2), vec![2])
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_master_that_falls_silent_is_replaced_by_the_one_that_holds_most() {
    let group = Group::start(1).await;
    group.wait_leader().await;
    let mut brokers = brokers(&group, 3).await;
    brokers[1].heartbeat.max_offset = Some(700);
    brokers[2].heartbeat.max_offset = Some(800);
    // The master's connection stays open; it only sends no more.
    let alive = [&brokers[1], &brokers[2]];
    assert_eq!(wait_master(&group, &alive, 1).await, (3, 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn b05_b06_leader_and_master_die_together() {
    let mut group = Group::start(3).await;
    let leader = group.wait_leader().await;
    let mut brokers = brokers(&group, 2).await;
    drop(brokers.remove(0));
    drop(group.running[leader].take());
    assert_eq!(wait_master(&group, &[&brokers[0]], 1).await, (2, 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn e16_a_master_that_lost_its_bytes_is_not_let_go_on() {
    let group = Group::start(1).await;
    group.wait_leader().await;
    let mut brokers = brokers(&group, 2).await;
    let to = group.leader_address();
    brokers[0].heartbeat.incarnation = Some(2);
    let (code, header) = brokers[0].register(&to).await;
    assert_eq!(
        (code, header.master_broker_id),
        (0, None),
        "it is not told to go on"
    );
    let alive = [&brokers[0], &brokers[1]];
    assert_eq!(wait_master(&group, &alive, 1).await, (2, 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_restarted_uncleanly_leaves_the_set_until_admitted_again() {
    let group = Group::start(1).await;
    group.wait_leader().await;
    let mut brokers = brokers(&group, 2).await;
    let to = group.leader_address();
    brokers[1].heartbeat.incarnation = Some(2);
    let set = wait("the set without it", || async {
        brokers[0].beat(&to).await;
        brokers[1].beat(&to).await;
        let (_, set) = brokers[0].replica_info(&to).await;
        (set.len() == 1).then_some(set)
    })
    .await;
    assert_eq!(set.into_iter().collect::<Vec<_>>(), [1]);
    assert_eq!(brokers[0].alter(&to, 1, 3, &[1, 2]).await.code, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn b03_healthy_masters_stay_while_controllers_restart() {
    let mut group = Group::start(3).await;
    group.wait_leader().await;
    let brokers = brokers(&group, 2).await;
    for round in 0..3 {
        let leader = group.wait_leader().await;
        group.stop_one(leader).await;
        group.wait_leader().await;
        for _ in 0..10 {
            brokers[0].beat_all(&group).await;
            brokers[1].beat_all(&group).await;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let (header, _) = brokers[0].replica_info(&group.leader_address()).await;
        assert_eq!(
            (header.master_broker_id, header.master_epoch),
            (Some(1), Some(1)),
            "{round}"
        );
        group.start_one(leader).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn controllers_that_lost_their_data_take_up_above_what_the_brokers_hold() {
    let group = Group::start_with(1, |config| {
        config.grace_ms = 1_000;
        config.lease_wait_ms = 300;
    })
    .await;
    group.wait_leader().await;
    let to = group.leader_address();
    let (mut one, mut two) = (Broker::new(1).await, Broker::new(2).await);
    for (broker, end) in [(&mut one, 500), (&mut two, 900)] {
        broker.heartbeat.epoch = Some(7);
        broker.heartbeat.max_offset = Some(end);
    }
    // It promised an epoch in which it has written nothing yet.
    one.heartbeat.max_epoch = Some(9);
    one.join(&group).await;
    let early = one.elect(&to, Some(1), false).await;
    assert_eq!(
        early.code, 2012,
        "the other may hold more: {:?}",
        early.remark
    );
    two.join(&group).await;
    let master = wait("a master", || async {
        one.beat(&to).await;
        two.beat(&to).await;
        let answer = one.elect(&to, Some(1), false).await;
        let header: ElectMasterResponse = answer.header().ok()?;
        (answer.code == 0).then_some((header.master_broker_id?, header.master_epoch?))
    })
    .await;
    assert_eq!(master, (2, 10));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_controller_is_replaced_by_a_new_one_while_the_group_decides() {
    let mut group = Group::start(3).await;
    let leader = group.wait_leader().await;
    let brokers = brokers(&group, 2).await;
    let dead = (leader + 1) % 3;
    group.stop_one(dead).await;
    let new = group.start_joining().await;
    let id = |at: usize| at as u64 + 1;
    let member = Member {
        name: format!("n{new}"),
        address: group.addresses[new].clone(),
    };
    let change = async |steps: Vec<MemberStep>| {
        let leader = group.running[group.wait_leader().await]
            .as_ref()
            .expect("runs");
        leader.change_members(steps).await.expect("in force");
    };
    change(vec![MemberStep::AddLearner {
        id: id(new),
        member: member.clone(),
    }])
    .await;
    wait("the state on the new one", || async {
        let groups = group.running[new].as_ref()?.groups();
        (groups.len() == 1 && groups[0].sync_state_set.len() == 2).then_some(())
    })
    .await;
    change(vec![
        MemberStep::AddVoter {
            id: id(new),
            member,
        },
        MemberStep::Remove { id: id(dead) },
    ])
    .await;
    // With the old members alone there would be no majority any more.
    let other = (0..3)
        .find(|at| *at != dead && group.running[*at].is_some())
        .expect("two run");
    group.stop_one(other).await;
    group.wait_leader().await;
    for broker in &brokers {
        broker.beat_all(&group).await;
    }
    assert_eq!(
        brokers[0]
            .alter(&group.leader_address(), 1, 2, &[1])
            .await
            .code,
        0
    );
}
