//! What a single broker answers to producers, on the wire.

mod common;

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use common::{Cluster, LIMIT, SEGMENT_SIZE, plan};
use epochlog_broker::topics::DEFAULT_TOPIC;
use epochlog_engine::{RecordView, Store, StoreConfig};
use epochlog_raft_glue::remoting::{
    Client, ClientConfig, Coding, RemotingCommand, SendMessageRequest, SendMessageResponse,
    request_code, response_code,
};

fn header(topic: &str) -> SendMessageRequest {
    SendMessageRequest {
        producer_group: "g".into(),
        topic: topic.into(),
        default_topic: Some(DEFAULT_TOPIC.into()),
        default_topic_queue_nums: Some(4),
        queue_id: 2,
        born_timestamp: 1_700_000_000_000,
        flag: 7,
        properties: Some("TAGS\u{1}A\u{2}KEYS\u{1}k1 k2\u{2}".into()),
        reconsume_times: Some(0),
        ..SendMessageRequest::default()
    }
}

/// A batch in the client's wire form.
fn batch(bodies: &[&[u8]]) -> Bytes {
    let mut out = BytesMut::new();
    for body in bodies {
        let properties = b"TAGS\x01B\x02";
        let size = 22 + body.len() + properties.len();
        out.put_u32(u32::try_from(size).expect("small"));
        out.put_u64(0);
        out.put_i32(9);
        out.put_u32(u32::try_from(body.len()).expect("small"));
        out.put_slice(body);
        out.put_u16(u16::try_from(properties.len()).expect("small"));
        out.put_slice(properties);
    }
    out.freeze()
}

struct Sender {
    client: Client,
    address: String,
}

impl Sender {
    async fn ask(&self, command: RemotingCommand) -> RemotingCommand {
        self.client
            .request(&self.address, command, LIMIT)
            .await
            .expect("answered")
    }

    async fn send(&self, header: &SendMessageRequest, body: &[u8]) -> RemotingCommand {
        let command = RemotingCommand::request_with(request_code::SEND_MESSAGE_V2, header);
        self.ask(command.with_body(Bytes::copy_from_slice(body)))
            .await
    }
}

fn receipt(answer: &RemotingCommand) -> SendMessageResponse {
    assert_eq!(answer.code, 0, "{:?}", answer.remark);
    assert_eq!(answer.field("MSG_REGION"), Some("DefaultRegion"));
    assert_eq!(answer.field("TRACE_ON"), Some("true"));
    answer.header().expect("the fields of a receipt")
}

async fn refused(sender: &Sender, header: &SendMessageRequest, body: &[u8], code: i32) {
    let answer = sender.send(header, body).await;
    assert_eq!(answer.code, code, "{:?}", answer.remark);
    assert!(answer.remark.is_some_and(|remark| !remark.is_empty()));
    assert_eq!(
        answer.ext_fields.get("MSG_REGION").map(String::as_str),
        Some("DefaultRegion")
    );
}

/// Sends in every form and gives the receipts.
async fn send_all_forms(cluster: &Cluster) -> Vec<SendMessageResponse> {
    let master = cluster.in_sync(1, 0).await;
    let of = |coding| Sender {
        client: Client::new(ClientConfig {
            coding,
            ..ClientConfig::default()
        }),
        address: master.address.clone(),
    };
    let (sender, binary) = (of(Coding::Json), of(Coding::RocketMq));
    let mut receipts = Vec::new();

    receipts.push(receipt(&sender.send(&header("T"), b"one").await));
    let answer = binary.send(&header("T"), b"two").await;
    assert_eq!(answer.coding, Coding::RocketMq);
    receipts.push(receipt(&answer));
    let mut long = RemotingCommand::request(request_code::SEND_MESSAGE);
    header("T").write_long(&mut long.ext_fields);
    receipts.push(receipt(&sender.ask(long.with_body(&b"three"[..])).await));

    let list = SendMessageRequest {
        batch: Some(true),
        ..header("T")
    };
    let command = RemotingCommand::request_with(request_code::SEND_BATCH_MESSAGE, &list);
    let body = batch(&[b"four", b"five"]);
    receipts.push(receipt(&sender.ask(command.with_body(body)).await));

    let any = SendMessageRequest {
        queue_id: -1,
        ..header("U")
    };
    let queues: BTreeSet<i32> = {
        let mut queues = BTreeSet::new();
        for _ in 0..8 {
            queues.insert(receipt(&sender.send(&any, b"any").await).queue_id);
        }
        queues
    };
    assert_eq!(
        queues,
        BTreeSet::from([0, 1, 2, 3]),
        "all four queues in turn"
    );
    receipts
}

/// Sends what must be refused.
async fn send_what_is_refused(cluster: &Cluster) {
    let master = cluster.in_sync(1, 0).await;
    let client = Client::new(ClientConfig::default());
    let sender = Sender {
        client,
        address: master.address,
    };
    let list = SendMessageRequest {
        batch: Some(true),
        ..header("T")
    };
    refused(&sender, &header("a.b"), b"x", 29).await;
    refused(&sender, &header("SELF_TEST_TOPIC"), b"x", 16).await;
    refused(
        &sender,
        &SendMessageRequest {
            queue_id: 4,
            ..header("T")
        },
        b"x",
        29,
    )
    .await;
    let other = SendMessageRequest {
        default_topic: Some("X".into()),
        ..header("V")
    };
    refused(&sender, &other, b"x", 17).await;
    let delayed = Some("DELAY\u{1}3\u{2}".into());
    refused(
        &sender,
        &SendMessageRequest {
            properties: delayed,
            ..header("T")
        },
        b"x",
        13,
    )
    .await;
    refused(&sender, &header("T"), b"", 1).await;
    // Longer than a segment of this test, shorter than maxMessageSize.
    refused(&sender, &header("T"), &vec![0; 80_000], 13).await;
    refused(&sender, &list, b"no list", 13).await;

    let missing = RemotingCommand::request(request_code::SEND_MESSAGE_V2).with_body(&b"x"[..]);
    let answer = sender.ask(missing).await;
    assert_eq!(answer.code, 1);
    assert!(
        answer
            .remark
            .is_some_and(|remark| remark.contains("field a is missing"))
    );
    let unknown = sender.ask(RemotingCommand::request(12_345)).await;
    assert_eq!(unknown.code, response_code::REQUEST_CODE_NOT_SUPPORTED);
}

fn records(cluster: &Cluster) -> Vec<RecordView> {
    let mut config = StoreConfig::new(&cluster.group.brokers[0].store);
    config.segment_size = SEGMENT_SIZE;
    let store = Store::open(config).expect("opens");
    let range = store.min_offset()..store.end_offset();
    let records = store
        .records(range)
        .collect::<Result<_, _>>()
        .expect("whole");
    store.close().expect("closes");
    records
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_form_of_sending_is_stored_as_java_would_store_it() {
    let dir = tempfile::tempdir().expect("temp dir");
    let mut cluster = Cluster::start(&plan(dir.path(), 1));
    let receipts = send_all_forms(&cluster).await;
    send_what_is_refused(&cluster).await;
    let unclean = cluster.group.stop(&[], LIMIT).expect("signals");
    assert_eq!(unclean, Vec::<String>::new(), "{}", cluster.logs());

    let stored = records(&cluster);
    let bodies: Vec<&[u8]> = stored.iter().map(|view| view.record().body()).collect();
    assert_eq!(
        &bodies[..5],
        [&b"one"[..], b"two", b"three", b"four", b"five"]
    );
    assert_eq!(stored.len(), 13);
    for (at, view) in stored.iter().take(5).enumerate() {
        let record = view.record();
        assert_eq!((record.topic(), record.queue_id()), ("T", 2));
        assert_eq!(record.queue_offset(), i64::try_from(at).expect("small"));
        assert_eq!(record.born_timestamp_ms(), 1_700_000_000_000);
        assert_eq!(
            record.born_host().map(|host| host.ip().to_string()),
            Some("127.0.0.1".into())
        );
        let store_host = record.store_host().map(|host| host.to_string());
        assert_eq!(
            store_host.as_deref(),
            Some(cluster.group.brokers[0].address.as_str())
        );
        let is_batch = at >= 3;
        assert_eq!(record.flag(), if is_batch { 9 } else { 7 });
        assert_eq!(
            record.property("TAGS").as_deref(),
            Some(if is_batch { "B" } else { "A" })
        );
        let cluster_name = record.property("CLUSTER");
        assert_eq!(cluster_name.as_deref(), (!is_batch).then_some("epochlog"));
        assert_eq!(
            record.property("KEYS").as_deref(),
            (!is_batch).then_some("k1 k2")
        );
    }
    for (receipt, at) in receipts.iter().zip([0, 1, 2, 3]) {
        let record = stored[at].record();
        let id = record.message_id().expect("has hosts");
        assert_eq!(receipt.msg_id.split(',').next(), Some(id.as_str()));
        assert_eq!(
            (receipt.queue_id, receipt.queue_offset),
            (2, record.queue_offset())
        );
        let unique = record
            .property("UNIQ_KEY")
            .map(std::borrow::Cow::into_owned);
        assert_eq!(receipt.transaction_id, unique.filter(|_| at < 3));
    }
    assert_eq!(
        receipts[3].msg_id.split(',').count(),
        2,
        "a batch has an id per message"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_was_killed_serves_its_epoch_again_and_knows_its_topics() {
    let dir = tempfile::tempdir().expect("temp dir");
    let mut plan = plan(dir.path(), 1);
    plan.broker_extra = "autoCreateTopicEnable=true\n".into();
    let mut cluster = Cluster::start(&plan);
    let master = cluster.in_sync(1, 0).await;
    cluster.produce(&master, "first", 50).await;
    // The table of topics is written behind.
    let topics = cluster.group.brokers[0].store.join("config/topics.json");
    while !topics.exists() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    cluster.group.brokers[0].process.kill().expect("killed");
    cluster.group.brokers[0].process.start().expect("starts");
    let again = cluster.in_sync(1, 0).await;
    cluster.produce(&again, "second", 50).await;
    cluster.group.brokers[0]
        .process
        .stop(LIMIT)
        .expect("signals");
    cluster.group.brokers[0].process.start().expect("starts");
    let third = cluster.in_sync(1, 0).await;
    assert_eq!(
        (again.id, third.id),
        (master.id, master.id),
        "the identity is kept"
    );
    cluster.produce(&third, "third", 50).await;
    let unclean = cluster.group.stop(&[], LIMIT).expect("signals");
    assert_eq!(unclean, Vec::<String>::new(), "{}", cluster.logs());
    let content = common::content(&cluster.group.brokers[0].store);
    assert_eq!(content.attempts.len(), 150);
    let starts: Vec<u64> = content.epochs.iter().map(|(_, start)| *start).collect();
    assert!(starts.is_sorted() && starts[0] == 0, "{:?}", content.epochs);
}
