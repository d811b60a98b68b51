//! One group of real processes that loses its master, or its slave, or its controller.

mod common;

use std::time::Duration;

use bytes::Bytes;
use common::{Cluster, LIMIT, plan};
use epochlog_broker::producer::Producer;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_survives_the_loss_of_its_master_byte_for_byte() {
    let dir = tempfile::tempdir().expect("temp dir");
    let mut cluster = Cluster::start(&plan(dir.path(), 3));
    let first = cluster.in_sync(3, 0).await;
    cluster.produce(&first, "first", 1000).await;

    let old = cluster
        .group
        .broker_at(&first.address)
        .expect("one of ours");
    cluster.group.brokers[old].process.kill().expect("killed");
    let second = cluster.in_sync(2, first.epoch).await;
    assert_ne!(second.id, first.id);
    cluster.produce(&second, "second", 300).await;

    cluster.group.brokers[old].process.start().expect("starts");
    let third = cluster.in_sync(3, first.epoch).await;
    assert_eq!(
        third.id, second.id,
        "the restarted one does not depose its successor"
    );
    cluster.produce(&third, "third", 100).await;

    let stores = cluster.stop_and_compare(&third).await;
    assert_eq!(stores[0].epochs.len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a17_a_slave_and_a_fenced_broker_refuse_with_their_own_codes() {
    let dir = tempfile::tempdir().expect("temp dir");
    let mut cluster = Cluster::start(&plan(dir.path(), 2));
    let master = cluster.in_sync(2, 0).await;
    let producer = Producer::new("orders", 1, LIMIT);
    let at = cluster
        .group
        .broker_at(&master.address)
        .expect("one of ours");
    let slave = cluster.group.brokers[1 - at].address.clone();
    let body = || Bytes::from_static(b"x");
    let refused = producer
        .send(&slave, body(), "")
        .await
        .expect_err("a slave");
    assert_eq!(
        (refused.code(), refused.may_be_stored()),
        (Some(2), false),
        "{refused}"
    );

    // With the slave gone the set has one member, which is fewer than two.
    cluster.group.brokers[1 - at]
        .process
        .kill()
        .expect("killed");
    loop {
        let sent = producer
            .send(&master.address, body(), "")
            .await
            .expect_err("too few in sync");
        match sent.code() {
            // Until the set is shrunk, writes wait for the lost member.
            Some(12) => assert!(sent.may_be_stored()),
            code => {
                assert_eq!((code, sent.may_be_stored()), (Some(1), false), "{sent}");
                assert!(sent.to_string().contains("in-sync replicas"), "{sent}");
                break;
            }
        }
    }

    // a17: a broker whose controllers are gone restarts fenced and stays so.
    cluster.group.controllers[0].kill().expect("killed");
    cluster.group.brokers[at].process.kill().expect("killed");
    cluster.group.brokers[at].process.start().expect("starts");
    let refused = loop {
        let sent = producer
            .send(&master.address, body(), "")
            .await
            .expect_err("fenced");
        if sent.to_string().contains("fenced") {
            break sent;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    assert_eq!((refused.code(), refused.may_be_stored()), (Some(14), false));
    let status = cluster
        .observer
        .status(&master.address)
        .await
        .expect("answers");
    assert_eq!((status.role.as_str(), status.epoch), ("FENCED", None));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_survives_the_loss_of_master_and_leading_controller_at_once() {
    let dir = tempfile::tempdir().expect("temp dir");
    let mut plan = plan(dir.path(), 3);
    plan.controllers = 3;
    let mut cluster = Cluster::start(&plan);
    let first = cluster.in_sync(3, 0).await;
    cluster.produce(&first, "first", 100).await;

    let leader = cluster
        .observer
        .controller()
        .find_leader()
        .await
        .expect("one leads");
    let addresses: Vec<&str> = cluster.group.controller_addr.split(';').collect();
    let leader = addresses
        .iter()
        .position(|address| *address == leader)
        .expect("one of ours");
    let old = cluster
        .group
        .broker_at(&first.address)
        .expect("one of ours");
    cluster.group.controllers[leader].kill().expect("killed");
    cluster.group.brokers[old].process.kill().expect("killed");
    let second = cluster.in_sync(2, first.epoch).await;
    assert_ne!(second.id, first.id);
    cluster.produce(&second, "second", 100).await;

    cluster.group.controllers[leader].start().expect("starts");
    cluster.group.brokers[old].process.start().expect("starts");
    let third = cluster.in_sync(3, first.epoch).await;
    cluster.produce(&third, "third", 100).await;
    cluster.stop_and_compare(&third).await;
}
