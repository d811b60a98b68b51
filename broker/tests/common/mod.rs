//! A cluster of real processes with what a test remembers about it, and what is in its stores.

#![allow(dead_code, reason = "every test binary uses its own part")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use epochlog_broker::group::{BROKER_NAME, Group, Plan};
use epochlog_broker::observe::{MasterView, Observer};
use epochlog_broker::producer::{Producer, Receipt, SendError};
use epochlog_engine::{Store, StoreConfig};

pub(crate) const LIMIT: Duration = Duration::from_secs(20);
pub(crate) const SEGMENT_SIZE: u64 = 64 * 1024;

pub(crate) fn plan(dir: &Path, replicas: usize) -> Plan {
    Plan {
        binary: PathBuf::from(env!("CARGO_BIN_EXE_epochlog")),
        dir: dir.to_owned(),
        replicas,
        controllers: 1,
        embedded: false,
        min_in_sync: replicas.min(2),
        segment_size: SEGMENT_SIZE,
        broker_extra: String::new(),
        controller_extra: String::new(),
        log_filter: None,
    }
}

pub(crate) struct Cluster {
    pub(crate) group: Group,
    pub(crate) observer: Observer,
    /// Acknowledged messages: id of the attempt and where the broker said it is.
    pub(crate) acked: BTreeMap<String, Receipt>,
}

impl Cluster {
    pub(crate) fn start(plan: &Plan) -> Self {
        let group = Group::start(plan).expect("starts");
        let observer = Observer::new(BROKER_NAME, &group.controller_addr).expect("addresses");
        Self {
            group,
            observer,
            acked: BTreeMap::new(),
        }
    }

    pub(crate) async fn in_sync(&self, members: usize, above_epoch: u32) -> MasterView {
        let master = self
            .observer
            .wait_in_sync(members, above_epoch, LIMIT)
            .await;
        master.unwrap_or_else(|late| panic!("{late}\n{}", self.logs()))
    }

    pub(crate) fn logs(&self) -> String {
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

    /// Sends `count` messages to the master, 16 at a time, until every one is acknowledged.
    pub(crate) async fn produce(&mut self, master: &MasterView, round: &str, count: usize) {
        let producer = Producer::new("orders", 16, LIMIT);
        let mut sends = tokio::task::JoinSet::new();
        for at in 0..count {
            let (producer, address) = (producer.clone(), master.address.clone());
            let id = format!("{round}-{at}");
            sends.spawn(async move {
                let body = Bytes::from(vec![b'x'; 10 + at % 700]);
                let end = std::time::Instant::now() + LIMIT;
                let mut attempt = 0;
                loop {
                    let id = format!("{id}.{attempt}");
                    let properties = format!("ATTEMPT\u{1}{id}\u{2}TAGS\u{1}t\u{2}");
                    let sent = producer.send(&address, body.clone(), &properties).await;
                    match &sent {
                        // On a machine this busy the master was without authority for a moment.
                        Err(error)
                            if matches!(error.code(), Some(12 | 14))
                                && std::time::Instant::now() < end =>
                        {
                            attempt += 1;
                            tokio::time::sleep(Duration::from_millis(20)).await;
                        }
                        _ => return (id, sent),
                    }
                }
            });
            if sends.len() == 16 {
                self.take(sends.join_next().await);
            }
        }
        while let Some(sent) = sends.join_next().await {
            self.take(Some(sent));
        }
    }

    fn take(&mut self, sent: Option<Result<Sent, tokio::task::JoinError>>) {
        let (id, sent) = sent.expect("one is under way").expect("no panic");
        match sent {
            Ok(receipt) => {
                assert!(self.acked.insert(id, receipt).is_none());
            }
            Err(error) => panic!("{id}: {error}\n{}", self.logs()),
        }
    }

    pub(crate) fn addresses(&self) -> Vec<&str> {
        self.group
            .brokers
            .iter()
            .map(|broker| broker.address.as_str())
            .collect()
    }

    pub(crate) async fn level(&self) -> u64 {
        let end = self.observer.wait_level(&self.addresses(), LIMIT).await;
        end.unwrap_or_else(|late| panic!("{late}\n{}", self.logs()))
    }

    /// Stops everything clean, the master last; every store must hold the same, and every
    /// acknowledged message where its receipt says.
    pub(crate) async fn stop_and_compare(&mut self, master: &MasterView) -> Vec<Content> {
        let end = self.level().await;
        let last = self.group.broker_at(&master.address).expect("one of ours");
        let order: Vec<usize> = (0..self.group.brokers.len())
            .filter(|at| *at != last)
            .chain([last])
            .collect();
        let unclean = self.group.stop(&order, LIMIT).expect("signals");
        assert_eq!(unclean, Vec::<String>::new(), "{}", self.logs());

        let stores: Vec<Content> = self
            .group
            .brokers
            .iter()
            .map(|broker| content(&broker.store))
            .collect();
        assert_eq!(stores[0].bytes.len() as u64, end);
        for other in &stores[1..] {
            assert!(stores[0] == *other, "the stores differ");
        }
        for (attempt, receipt) in &self.acked {
            let offset = stores[0].attempts.get(attempt);
            let offset = offset.unwrap_or_else(|| panic!("{attempt} was acknowledged and is lost"));
            assert!(
                receipt.msg_id.ends_with(&format!("{offset:016X}")),
                "{attempt}: {receipt:?}"
            );
        }
        stores
    }
}

/// An attempt and what became of it.
type Sent = (String, Result<Receipt, SendError>);

/// Everything a store folder holds that the group has to agree on.
#[derive(PartialEq)]
pub(crate) struct Content {
    pub(crate) bytes: Vec<u8>,
    pub(crate) epochs: Vec<(u32, u64)>,
    pub(crate) attempts: BTreeMap<String, u64>,
}

pub(crate) fn content(dir: &Path) -> Content {
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
