//! Store folders RocketMQ left behind, opened: what is found is what `expect.toml` says, opening again
//! finds the same, and a fixture that must be refused stays as it is.

use std::fs;
use std::path::Path;

use epochlog_engine::{EpochEntry, Error, Message, Store, StoreConfig};
use serde::Deserialize;

use crate::fixtures::{self, Manifest};

/// `expect.toml` of a store folder, and what an open found.
#[derive(Deserialize, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
struct Outcome {
    segment_size: u64,
    segments: usize,
    messages: usize,
    min_offset: u64,
    end_offset: u64,
    epochs: Vec<(u32, u64)>,
    problem: Option<String>,
}

fn expected(folder: &Path, file: &str) -> Outcome {
    let text = fs::read_to_string(folder.join(file)).expect("an expectation");
    toml::from_str(&text).expect("a well-formed expectation")
}

fn config(dir: &Path) -> StoreConfig {
    let mut config = StoreConfig::new(dir);
    config.adopt_segment_size = true;
    config.segment_size = 65536;
    config
}

fn entries(store: &Store) -> Vec<(u32, u64)> {
    let list = store.epochs();
    list.entries()
        .iter()
        .map(|&EpochEntry { epoch, start }| (epoch, start))
        .collect()
}

/// Opens `dir`; a refusal is answered by its word in `expect.toml`.
fn open(dir: &Path) -> Result<Store, &'static str> {
    match Store::open(config(dir)) {
        Ok(store) => Ok(store),
        Err(Error::Damaged { .. }) => Err("damage"),
        Err(Error::Epochs { .. }) => Err("epoch-file-missing"),
        Err(error) => panic!("{error}"),
    }
}

/// What an opened store says about itself; `segments` were counted before the open.
fn found(store: &Store, segments: usize) -> Outcome {
    let (min, end) = (store.min_offset(), store.end_offset());
    let mut records = store.records(min..end);
    let messages = records
        .by_ref()
        .inspect(|record| assert!(record.is_ok()))
        .count();
    Outcome {
        segment_size: store.segment_size(),
        segments,
        messages,
        min_offset: min,
        end_offset: end,
        epochs: entries(store),
        problem: store.opened().torn.as_ref().map(|_| "torn".to_owned()),
    }
}

fn segment_files(dir: &Path) -> usize {
    fs::read_dir(dir.join("commitlog")).map_or(0, Iterator::count)
}

#[test]
fn each_store_opens_as_expected_twice_or_is_refused_untouched() {
    for folder in fixtures::folders("", "java-") {
        let name = fixtures::name(&folder);
        let expect = expected(&folder, "expect.toml");
        let wrong = expected(&folder, "expect-wrong.toml");
        let copy = fixtures::copy(&folder);
        let segments = segment_files(copy.path());
        match open(copy.path()) {
            Ok(store) => {
                let outcome = found(&store, segments);
                assert_eq!(outcome, expect, "{name}");
                assert_ne!(outcome, wrong, "{name}: the wrong expectation passes");
                store.close().expect("a clean close");
                drop(store);
                let again = open(copy.path()).expect("what was closed opens");
                assert_eq!(
                    again.opened().scanned_bytes,
                    0,
                    "{name}: scanned after a clean close"
                );
                let outcome = found(&again, segments);
                let expect = Outcome {
                    problem: None,
                    ..expect
                };
                assert_eq!(outcome, expect, "{name}, opened again");
            }
            Err(word) => {
                assert_eq!(Some(word), expect.problem.as_deref(), "{name}");
                let difference = fixtures::difference(&folder, copy.path());
                assert!(
                    difference.is_empty(),
                    "{name}: refused, yet changed {difference:?}"
                );
            }
        }
    }
}

#[test]
fn a_log_written_by_rocketmq_goes_on_in_a_new_epoch() {
    let folder = fixtures::root().join("java-clean-three-epochs");
    let manifest = Manifest::read(&folder);
    let copy = fixtures::copy(&folder);
    let store = open(copy.path()).expect("a clean store");
    store.promote(4).expect_err("epoch 4 was another master's");
    let entry = store.promote(5).expect("a newer epoch");
    assert_eq!(
        entry,
        EpochEntry {
            epoch: 5,
            start: manifest.head.end_offset
        }
    );
    let last = manifest
        .messages
        .iter()
        .rfind(|line| line.topic == "orders" && line.queue == 2)
        .expect("RocketMQ wrote to that queue");
    let host = "10.0.0.9:10911".parse().expect("an address");
    let appended = store
        .append(&Message {
            topic: "orders",
            queue_id: 2,
            flag: 0,
            sys_flag: 0,
            born_timestamp_ms: 1,
            born_host: host,
            store_host: host,
            reconsume_times: 0,
            prepared_transaction_offset: 0,
            body: b"after RocketMQ",
            properties: b"",
        })
        .expect("a master takes messages");
    assert_eq!(appended.offset, manifest.head.end_offset);
    assert_eq!(appended.queue_offset, last.queue_offset + 1);
    assert_eq!(
        entries(&store),
        [(1, 0), (3, 1_455_454), (4, 2_928_553), (5, 4_898_718)]
    );
}
