//! What a broker and an operator see of one controller: codes, fields and bodies.

mod common;

use std::collections::BTreeMap;

use common::{Broker, CLUSTER, Group, SET, brokers};
use epochlog_raft_glue::remoting::{
    AlterSyncStateSetResponse, BrokerReplicasInfo, CleanBrokerDataRequest, Coding, ElectMasterBody,
    ElectMasterResponse, GetMetadataResponse, GetNextBrokerIdRequest, RemotingCommand,
    SyncStateSetBody, from_json, request_code,
};

fn next_id() -> RemotingCommand {
    let header = GetNextBrokerIdRequest {
        cluster_name: CLUSTER.to_owned(),
        broker_name: SET.to_owned(),
    };
    RemotingCommand::request_with(request_code::CONTROLLER_GET_NEXT_BROKER_ID, &header)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_lives_its_life_as_with_a_java_controller() {
    let group = Group::start(1).await;
    group.wait_leader().await;
    let to = group.leader_address();
    let one = Broker::new(1).await;

    let request = RemotingCommand::request(request_code::CONTROLLER_GET_METADATA_INFO);
    let metadata: GetMetadataResponse = one.call(&to, request).await.header().unwrap();
    assert_eq!(metadata.is_leader, Some(true));
    assert_eq!(metadata.controller_leader_id.as_deref(), Some("n0"));
    assert_eq!(metadata.controller_leader_address.as_ref(), Some(&to));
    assert_eq!(metadata.peers, Some(format!("n0:{to};")));

    let answer = one.call(&to, next_id()).await;
    assert_eq!(answer.field("nextBrokerId"), Some("1"));
    assert_eq!(answer.field("brokerName"), Some(SET));
    assert_eq!(one.register(&to).await.0, 2010);
    assert_eq!(one.apply_id(&to).await, 0);
    assert_eq!(one.apply_id(&to).await, 0, "the same check code");
    assert_eq!(
        one.call(&to, next_id()).await.field("nextBrokerId"),
        Some("2")
    );

    let (code, header) = one.register(&to).await;
    assert_eq!(
        (code, header.master_broker_id, header.master_epoch),
        (0, None, None)
    );
    assert_eq!(one.beat(&to).await.code, 0);

    let answer = one.elect(&to, Some(1), false).await;
    assert_eq!(answer.code, 0);
    let header: ElectMasterResponse = answer.header().unwrap();
    assert_eq!(header.master_address.as_ref(), Some(&one.address));
    assert_eq!(
        (header.master_epoch, header.sync_state_set_epoch),
        (Some(1), Some(1))
    );
    let body: ElectMasterBody = from_json(&answer.body).unwrap();
    let members = body.broker_member_group.expect("with success");
    assert_eq!(
        members.broker_addrs,
        BTreeMap::from([(1, one.address.clone())])
    );

    let again = one.elect(&to, Some(1), false).await;
    assert_eq!(again.code, 2011);
    assert_eq!(
        again.header::<ElectMasterResponse>().unwrap().master_epoch,
        Some(1)
    );
    let body: ElectMasterBody = from_json(&again.body).unwrap();
    assert!(body.broker_member_group.is_none());
    assert_eq!(body.sync_state_set.len(), 1);

    let (header, set) = one.replica_info(&to).await;
    assert_eq!(
        (header.master_broker_id, header.master_epoch),
        (Some(1), Some(1))
    );
    assert_eq!(set.into_iter().collect::<Vec<_>>(), [1]);
    let (_, header) = one.register(&to).await;
    assert_eq!(
        (header.master_broker_id, header.sync_state_set_epoch),
        (Some(1), Some(1))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn sets_are_altered_as_the_protocol_says() {
    let group = Group::start(1).await;
    group.wait_leader().await;
    let to = group.leader_address();
    let brokers = brokers(&group, 2).await;
    let (one, two) = (&brokers[0], &brokers[1]);

    let repeated = one.alter(&to, 1, 1, &[1, 2]).await;
    assert_eq!(
        repeated.code, 0,
        "the answer to a request whose first answer was lost"
    );
    let header: AlterSyncStateSetResponse = repeated.header().unwrap();
    assert_eq!(header.new_sync_state_set_epoch, 2);
    let body: SyncStateSetBody = from_json(&repeated.body).unwrap();
    assert_eq!(
        (body.sync_state_set.len(), body.sync_state_set_epoch),
        (2, 2)
    );
    for (who, epoch, set_epoch, set, code) in [
        (one, 1, 2, vec![1, 2], 2013),
        (two, 1, 2, vec![1], 2002),
        (one, 2, 2, vec![1], 2000),
        (one, 1, 9, vec![1], 2001),
        (one, 1, 2, vec![1, 7], 2003),
        (one, 1, 2, vec![1, -7], 2003),
        (one, 1, 2, vec![2], 2013),
    ] {
        assert_eq!(
            who.alter(&to, epoch, set_epoch, &set).await.code,
            code,
            "{set:?}"
        );
    }
    Broker::new(3).await.apply_id(&to).await;
    assert_eq!(
        one.alter(&to, 1, 2, &[1, 2, 3]).await.code,
        2006,
        "3 sent no heartbeat"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn sets_are_listed_and_cleaned() {
    let group = Group::start(1).await;
    group.wait_leader().await;
    let to = group.leader_address();
    let brokers = brokers(&group, 2).await;
    let one = &brokers[0];
    Broker::new(3).await.apply_id(&to).await;
    let request = RemotingCommand::request(request_code::CONTROLLER_GET_SYNC_STATE_DATA);
    let names = format!("[\"{SET}\",\"unknown\"]").into_bytes();
    let answer = one.call(&to, request.clone().with_body(names)).await;
    let data: BrokerReplicasInfo = from_json(&answer.body).unwrap();
    let info = &data.replicas_info_table[SET];
    assert_eq!(data.replicas_info_table.len(), 1);
    assert_eq!(
        (info.in_sync_replicas.len(), info.not_in_sync_replicas.len()),
        (2, 1)
    );
    assert!(info.in_sync_replicas.iter().all(|replica| replica.alive));
    assert!(!info.not_in_sync_replicas[0].alive);
    assert_eq!(
        (info.master_broker_id, info.sync_state_set_epoch),
        (Some(1), 2)
    );
    assert_eq!(one.call(&to, request).await.code, 1, "without names");

    let clean = async |ids: &str, living: bool| {
        let header = CleanBrokerDataRequest {
            cluster_name: Some("wrong".to_owned()),
            broker_name: SET.to_owned(),
            broker_controller_ids_to_clean: Some(ids.to_owned()),
            is_clean_living_broker: Some(living),
            invoke_time: None,
        };
        let request = RemotingCommand::request_with(request_code::CLEAN_BROKER_DATA, &header);
        one.call(&to, request).await.code
    };
    assert_eq!(clean("", false).await, 2009);
    assert_eq!(
        clean("1;2", false).await,
        2009,
        "alive, whatever cluster the request names"
    );
    assert_eq!(clean("1;x", false).await, 2009);
    assert_eq!(clean("3", false).await, 0);
    assert_eq!(clean("", true).await, 0);
    assert_eq!(
        clean("1", true).await,
        2009,
        "there is no such set any more"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn e52_requests_that_are_malformed_are_answered() {
    let group = Group::start(1).await;
    group.wait_leader().await;
    let to = group.leader_address();
    let mut one = Broker::new(1).await;
    one.join(&group).await;

    one.heartbeat.broker_id = None;
    assert_eq!(one.beat(&to).await.code, 2005);
    for code in [904, 1001, 1002, 1003, 1004, 1006, 1011, 1012, 1013] {
        let answer = one.call(&to, RemotingCommand::request(code)).await;
        assert_eq!(answer.code, 1, "{code}");
        assert!(answer.remark.is_some());
    }
    assert_eq!(
        one.call(&to, RemotingCommand::request(12_345)).await.code,
        3
    );
    let frame = RemotingCommand::request(30_100).with_body(&b"\xff\xff"[..]);
    assert_eq!(
        one.call(&to, frame).await.code,
        1,
        "bytes that are no frame of a controller"
    );
    assert_eq!(
        one.alter(&to, 1, 1, &[]).await.code,
        2013,
        "an empty set is the set there is"
    );
    assert_eq!(one.elect(&to, Some(9), false).await.code, 2010);
    assert_eq!(
        one.elect(&to, None, false).await.code,
        0,
        "the controller may choose"
    );
    assert_eq!(group.running[0].as_ref().unwrap().metadata().failure, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_are_read_and_some_are_changed() {
    let group = Group::start(1).await;
    group.wait_leader().await;
    let to = group.leader_address();
    let one = Broker::new(1).await;
    let read = async || {
        let request = RemotingCommand::request(request_code::GET_CONTROLLER_CONFIG);
        String::from_utf8(one.call(&to, request).await.body.to_vec()).unwrap()
    };
    let write = async |text: &'static str| {
        let request = RemotingCommand::request(request_code::UPDATE_CONTROLLER_CONFIG);
        one.call(&to, request.with_body(text.as_bytes())).await.code
    };
    assert!(read().await.contains("enableElectUncleanMaster=false\n"));
    assert_eq!(
        write("scanInactiveMasterInterval=77\nenableElectUncleanMaster=true\n").await,
        0
    );
    let text = read().await;
    assert!(text.contains("enableElectUncleanMaster=true\n"), "{text}");
    assert!(text.contains("scanInactiveMasterInterval=77\n"), "{text}");
    assert_eq!(
        write("enableElectUncleanMaster=false\ncontrollerStorePath=/x\n").await,
        16
    );
    assert!(
        read().await.contains("enableElectUncleanMaster=true\n"),
        "all or nothing"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn both_header_codings_are_understood() {
    let group = Group::start(1).await;
    group.wait_leader().await;
    let to = group.leader_address();
    let client =
        epochlog_raft_glue::remoting::Client::new(epochlog_raft_glue::remoting::ClientConfig {
            coding: Coding::RocketMq,
            ..Default::default()
        });
    let answer = client
        .request(&to, next_id(), std::time::Duration::from_secs(3))
        .await
        .unwrap();
    assert_eq!(answer.field("nextBrokerId"), Some("1"));
    assert_eq!(answer.coding, Coding::RocketMq);
}
