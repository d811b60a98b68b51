//! A whole RocketMQ broker as slave of ours: a RocketMQ name server tells it where our broker ships its
//! log, and it copies topics and settings from it. RocketMQ's producer and mqadmin find both by name.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use epochlog_raft_glue::remoting::{
    Client, ClientConfig, RemotingCommand, from_json, request_code, response_code,
};
use serde_json::Value;

use crate::processes::{BROKER, CLUSTER, mqadmin, produce_by_name};
use crate::whole::{Group, Kind};

const PATIENCE: Duration = Duration::from_secs(60);
/// A Java slave copies every 12 s; the errors of two rounds would stand in its log by then.
const TWO_ROUNDS: Duration = Duration::from_secs(26);

/// The topics a broker has, as a slave is told them: name, queues to write, queues to read, permissions.
async fn topics(client: &Client, address: &str) -> BTreeSet<(String, i64, i64, i64)> {
    let request = RemotingCommand::request(request_code::GET_ALL_TOPIC_CONFIG);
    let answer = client.request(address, request, PATIENCE).await;
    let answer = answer.expect("answered");
    assert_eq!(answer.code, response_code::SUCCESS, "{:?}", answer.remark);
    let body: Value = from_json(&answer.body).expect("JSON");
    let table = body["topicConfigTable"].as_object().expect("a table");
    let number = |topic: &Value, key: &str| topic[key].as_i64().expect("a number");
    let topics = table.iter().map(|(name, topic)| {
        let write = number(topic, "writeQueueNums");
        let read = number(topic, "readQueueNums");
        (name.clone(), write, read, number(topic, "perm"))
    });
    topics.collect()
}

/// Waits until `slave` has the topics of `master`, `topic` among them.
async fn wait_for_topics(group: &Group, client: &Client, master: &str, slave: &str, topic: &str) {
    let give_up = Instant::now() + PATIENCE;
    loop {
        let of_master = topics(client, master).await;
        assert!(of_master.iter().any(|it| it.0 == topic), "{of_master:?}");
        let of_slave = topics(client, slave).await;
        if of_master == of_slave {
            return;
        }
        if Instant::now() > give_up {
            let missing: Vec<_> = of_master.symmetric_difference(&of_slave).collect();
            panic!("the topics differ in {missing:?}\n{}", group.logs());
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

/// What mqadmin says of the group by its names, which takes it to the brokers by the name server.
fn assert_tools_find(group: &Group, ours: usize, java: usize) {
    let lines = [
        "clusterList".to_owned(),
        "topicRoute -t orders".to_owned(),
        format!("getBrokerEpoch -b {BROKER}"),
        format!("getBrokerEpoch -c {CLUSTER}"),
        format!("haStatus -c {CLUSTER}"),
    ];
    let words = |line: &String| -> Vec<String> {
        let words = line.split(' ').chain(["-n", &group.namesrv_addr]);
        words.map(str::to_owned).collect()
    };
    let said = mqadmin(&lines.iter().map(words).collect::<Vec<_>>());
    let (ours, java) = (group.address(ours), group.address(java));
    for (line, text) in lines.iter().zip(&said) {
        assert!(text.contains(&ours), "{line}: {text}\n{}", group.logs());
        // haStatus of a cluster asks its masters.
        let of_masters = line.starts_with("haStatus");
        assert!(of_masters || text.contains(&java), "{line}: {text}");
    }
    let id_of = |address: &str| {
        // Errors name an address too.
        let mut rows = said[0].lines().filter(|row| row.starts_with(CLUSTER));
        let row = rows.find(|row| row.contains(address));
        let words: Vec<_> = row.unwrap_or_default().split_whitespace().collect();
        words.get(2).copied().unwrap_or_default().to_owned()
    };
    let ids = (id_of(&ours), id_of(&java));
    assert_eq!(ids, ("0".to_owned(), "2".to_owned()), "{}", said[0]);
    for text in &said[2..4] {
        assert_eq!(text.to_lowercase().matches("epoch=1,").count(), 2, "{text}");
    }
    assert!(said[4].contains("#InSyncSlaveNum\t1"), "{}", said[4]);
}

/// RocketMQ logs each table it could not copy as an error, and goes on.
fn assert_copied_without_errors(group: &Group, at: usize) {
    let log = group.log_of(at);
    let errors: Vec<_> = log
        .lines()
        .filter(|line| line.to_lowercase().contains("sync") && line.contains("Exception"))
        .collect();
    assert!(errors.is_empty(), "{errors:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a JVM; .ci/interop runs it"]
async fn a_java_broker_is_slave_of_ours_and_leads_after_it() {
    let mut group = Group::start(Kind::Ours);
    group.extra = "timerWheelEnable=true\n";
    let ours = group.add(Kind::Ours);
    let alone = group
        .wait_until("a first master", |view| view.master == 1)
        .await;
    group.produce(&alone, "alone", 40).await;
    let java = group.add(Kind::Java);
    let both = group
        .wait_until("both in the set", |view| view.members == [1, 2])
        .await;
    let joined = Instant::now();
    assert_eq!(both.address, group.address(ours));
    group.produce(&both, "both", 40).await;
    let client = Client::new(ClientConfig::default());
    let (at_ours, at_java) = (group.address(ours), group.address(java));
    wait_for_topics(&group, &client, &at_ours, &at_java, "orders").await;
    assert_tools_find(&group, ours, java);
    let sent = produce_by_name(&group.namesrv_addr, "by-name", 10);
    assert_eq!(sent.len(), 10, "{sent:?}");
    assert!(sent.iter().all(|line| line.contains("SEND_OK")), "{sent:?}");
    wait_for_topics(&group, &client, &at_ours, &at_java, "by-name").await;
    tokio::time::sleep(TWO_ROUNDS.saturating_sub(joined.elapsed())).await;
    assert_copied_without_errors(&group, java);

    group.kill(ours);
    let second = group
        .wait_until("the Java broker leads", |view| view.master == 2)
        .await;
    group.produce(&second, "java", 40).await;
    group.run(ours);
    let again = group
        .wait_until("both in the set again", |view| view.members == [1, 2])
        .await;
    assert_eq!(again.address, at_java);
    group.produce(&again, "again", 40).await;
    wait_for_topics(&group, &client, &at_java, &at_ours, "by-name").await;
    let sent = produce_by_name(&group.namesrv_addr, "by-name", 10);
    assert!(sent.iter().all(|line| line.contains("SEND_OK")), "{sent:?}");
    group.stop_java(java);
    group.kill(ours);
    group.assert_all_acked_are_in(&[ours, java]);
}
