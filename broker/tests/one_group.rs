//! One group of real processes: a controller and three brokers that lose their master.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use epochlog_broker::group::{BROKER_NAME, Group, Plan};
use epochlog_broker::observe::{MasterView, Observer};
use epochlog_broker::producer::{Producer, Receipt, SendError};
use epochlog_engine::{Store, StoreConfig};

const LIMIT: Duration = Duration::from_secs(20);
const SEGMENT_SIZE: u64 = 64 * 1024;

fn plan(dir: &Path) -> Plan {
    Plan {
        binary: PathBuf::from(env!("CARGO_BIN_EXE_epochlog")),
        dir: dir.to_owned(),
        replicas: 3,
        controllers: 1,
        min_in_sync: 2,
        segment_size: SEGMENT_SIZE,
        broker_extra: String::new(),
    }
}

struct Cluster {
    group: Group,
    observer: Observer,
    /// Acknowledged messages: id of the attempt and where the broker said it is.
    acked: BTreeMap<String, Receipt>,
}

impl Cluster {
    fn start(plan: &Plan) -> Self {
        let group = Group::start(plan).expect("starts");
        let observer = Observer::new(BROKER_NAME, &group.controller_addr).expect("addresses");
        Self {
            group,
            observer,
            acked: BTreeMap::new(),
        }
    }

    async fn in_sync(&self, members: usize, above_epoch: u32) -> MasterView {
        let master = self
            .observer
            .wait_in_sync(members, above_epoch, LIMIT)
            .await;
        master.unwrap_or_else(|late| panic!("{late}\n{}", self.logs()))
    }

    fn logs(&self) -> String {
        let brokers = self.group.brokers.iter().map(|broker| broker.process.log());
        let controllers = self.group.controllers.iter().map(|process| process.log());
        let mut text = String::new();
        for log in controllers.chain(brokers) {
            let content = std::fs::read_to_string(log).unwrap_or_default();
            let tail: Vec<&str> = content.lines().rev().take(40).collect();
            text += &format!("--- {}\n", log.display());
            text += &tail.into_iter().rev().collect::<Vec<_>>().join("\n");
            text.push('\n');
        }
        text
    }

    /// Sends `count` messages to the master, 16 at a time; every one is acknowledged.
    async fn produce(&mut self, master: &MasterView, round: &str, count: usize) {
        let producer = Producer::new("orders", 16, LIMIT);
        let mut sends = tokio::task::JoinSet::new();
        for at in 0..count {
            let (producer, address) = (producer.clone(), master.address.clone());
            let id = format!("{round}-{at}");
            sends.spawn(async move {
                let properties = format!("ATTEMPT\u{1}{id}\u{2}TAGS\u{1}t\u{2}");
                let body = Bytes::from(vec![b'x'; 10 + at % 700]);
                let sent = producer.send(&address, body, &properties).await;
                (id, sent)
            });
            if sends.len() == 16 {
                self.take(sends.join_next().await);
            }
        }
        while let Some(sent) = sends.join_next().await {
            self.take(Some(sent));
        }
    }

    fn take(
        &mut self,
        sent: Option<Result<(String, Result<Receipt, SendError>), tokio::task::JoinError>>,
    ) {
        let (id, sent) = sent.expect("one is under way").expect("no panic");
        match sent {
            Ok(receipt) => {
                assert!(self.acked.insert(id, receipt).is_none());
            }
            Err(error) => panic!("{id}: {error}\n{}", self.logs()),
        }
    }

    fn addresses(&self) -> Vec<&str> {
        self.group
            .brokers
            .iter()
            .map(|broker| broker.address.as_str())
            .collect()
    }

    async fn level(&self) -> u64 {
        let end = self.observer.wait_level(&self.addresses(), LIMIT).await;
        end.unwrap_or_else(|late| panic!("{late}\n{}", self.logs()))
    }
}

/// Everything a store folder holds that the group has to agree on.
#[derive(PartialEq)]
struct Content {
    bytes: Vec<u8>,
    epochs: Vec<(u32, u64)>,
    attempts: BTreeMap<String, u64>,
}

fn content(dir: &Path) -> Content {
    let mut config = StoreConfig::new(dir);
    config.segment_size = SEGMENT_SIZE;
    let store = Store::open(config).expect("opens");
    let (min, end) = (store.min_offset(), store.end_offset());
    let mut bytes = Vec::new();
    let mut at = min;
    while at < end {
        let slice = store.slice(at, usize::MAX).expect("readable");
        bytes.extend_from_slice(&slice);
        at += slice.len() as u64;
    }
    let mut attempts = BTreeMap::new();
    for record in store.records(min..end) {
        let record = record.expect("whole");
        let record = record.record();
        let attempt = record
            .property("ATTEMPT")
            .expect("every message has one")
            .into_owned();
        let twice = attempts.insert(attempt, record.physical_offset());
        assert_eq!(twice, None, "an attempt is stored once");
    }
    let epochs = store
        .epochs()
        .entries()
        .iter()
        .map(|entry| (entry.epoch, entry.start))
        .collect();
    store.close().expect("closes");
    Content {
        bytes,
        epochs,
        attempts,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_survives_the_loss_of_its_master_byte_for_byte() {
    let dir = tempfile::tempdir().expect("temp dir");
    let mut cluster = Cluster::start(&plan(dir.path()));
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

    let end = cluster.level().await;
    let master = cluster
        .group
        .broker_at(&third.address)
        .expect("one of ours");
    let order: Vec<usize> = (0..3).filter(|at| *at != master).chain([master]).collect();
    let unclean = cluster.group.stop(&order, LIMIT).expect("signals");
    assert_eq!(unclean, Vec::<String>::new(), "{}", cluster.logs());

    let stores: Vec<Content> = cluster
        .group
        .brokers
        .iter()
        .map(|broker| content(&broker.store))
        .collect();
    assert_eq!(stores[0].bytes.len() as u64, end);
    for other in &stores[1..] {
        assert!(stores[0] == *other, "the stores differ");
    }
    for (attempt, receipt) in &cluster.acked {
        let offset = stores[0].attempts.get(attempt);
        let offset = offset.unwrap_or_else(|| panic!("{attempt} was acknowledged and is lost"));
        assert!(
            receipt.msg_id.ends_with(&format!("{offset:016X}")),
            "{attempt}: {receipt:?}"
        );
    }
    assert_eq!(stores[0].epochs.len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slave_and_a_fenced_broker_refuse_with_their_own_codes() {
    let dir = tempfile::tempdir().expect("temp dir");
    let mut plan = plan(dir.path());
    plan.replicas = 2;
    let mut cluster = Cluster::start(&plan);
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
