//! The lease between brokers and a running group of controllers.

mod common;

use std::time::{Duration, Instant};

use common::{Broker, Group, brokers, wait};
use epochlog_raft_glue::lease::LeaseRefusal;
use epochlog_raft_glue::remoting::BrokerHeartbeatResponse;

fn ask(broker: &mut Broker, epoch: i32) {
    broker.heartbeat.lease_mills = Some(1_200);
    broker.heartbeat.lease_ack_mills = Some(100);
    broker.heartbeat.lease_epoch = Some(epoch);
}

async fn answer(broker: &Broker, to: &str) -> BrokerHeartbeatResponse {
    let answer = broker.beat(to).await;
    assert_eq!(answer.code, 0);
    answer.header().expect("reads")
}

/// Asks until it is granted: a leader may just have begun.
async fn granted(broker: &Broker, to: &str) -> BrokerHeartbeatResponse {
    wait("a grant", || async {
        let answer = answer(broker, to).await;
        (answer.lease_mills == Some(1_200)).then_some(answer)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn k15_only_the_leader_grants_and_only_to_the_master_of_the_epoch() {
    let group = Group::start(3).await;
    let leader = group.wait_leader().await;
    let mut brokers = brokers(&group, 2).await;
    let to = group.leader_address();
    assert_eq!(
        answer(&brokers[0], &to).await.lease_mills,
        Some(0),
        "it did not ask"
    );
    ask(&mut brokers[0], 1);
    let first = granted(&brokers[0], &to).await;
    assert_eq!(first.lease_epoch, Some(1));
    assert_eq!(first.incarnations.as_deref(), Some("1:1,2:1"));
    // A Java broker does not name its life; its registrations without one are counted: none yet.
    brokers[1].heartbeat.incarnation = None;
    answer(&brokers[1], &to).await;
    let with_java = granted(&brokers[0], &to).await;
    assert_eq!(with_java.incarnations.as_deref(), Some("1:1,2:0"));
    brokers[1].heartbeat.incarnation = Some(1);

    let follower = group.addresses[(leader + 1) % 3].clone();
    let by_follower = answer(&brokers[0], &follower).await;
    assert_eq!(by_follower.lease_mills, Some(0), "{by_follower:?}");
    let code = |refusal: LeaseRefusal| Some(refusal.value());
    assert_eq!(by_follower.lease_code, code(LeaseRefusal::NotLeader));

    ask(&mut brokers[1], 1);
    let other = answer(&brokers[1], &to).await;
    assert_eq!(other.lease_mills, Some(0));
    assert_eq!(other.lease_code, code(LeaseRefusal::NotMaster));
    assert!(other.lease_why.expect("says why").contains("another one"));
    ask(&mut brokers[0], 2);
    assert_eq!(
        answer(&brokers[0], &to).await.lease_mills,
        Some(0),
        "no such epoch"
    );
    ask(&mut brokers[0], 1);
    brokers[0].heartbeat.lease_mills = Some(1_400);
    let long = answer(&brokers[0], &to).await;
    assert_eq!(long.lease_mills, Some(0));
    assert_eq!(long.lease_code, code(LeaseRefusal::Times));
    assert!(
        long.lease_why
            .expect("says why")
            .contains("needs a controller that waits 1504 ms")
    );
}

/// Waits for a notice of epoch 2 and says how long after `begin` it came.
async fn told(broker: &mut Broker, group: &Group, begin: Instant) -> Duration {
    loop {
        broker.beat_all(group).await;
        let (info, _) = broker.replica_info(&group.leader_address()).await;
        if info.master_epoch == Some(2) {
            return begin.elapsed();
        }
        assert!(begin.elapsed() < Duration::from_secs(20), "no election");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn k15_a_leased_master_is_waited_for_and_one_that_leaves_is_not() {
    for (leaves, wait_ms) in [(false, 3_000), (true, 3_000)] {
        let group = Group::start_with(1, |config| config.lease_wait_ms = 3_000).await;
        group.wait_leader().await;
        let mut brokers = brokers(&group, 2).await;
        let to = group.leader_address();
        let mut master = brokers.remove(0);
        ask(&mut master, 1);
        // Past the wait for a leader that has just begun.
        tokio::time::sleep(Duration::from_millis(3_200)).await;
        let begin = Instant::now();
        granted(&master, &to).await;
        if leaves {
            master.heartbeat.lease_mills = Some(0);
            master.heartbeat.leaving = Some(true);
            master.beat(&to).await;
        }
        drop(master);
        let took = told(&mut brokers[0], &group, begin).await;
        let wait = Duration::from_millis(wait_ms);
        assert_eq!(took < wait, leaves, "{leaves}: {took:?}");
    }
}
