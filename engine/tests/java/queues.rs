//! Consume queues that RocketMQ wrote: they are read as it reads them, opening them changes no byte, and
//! those made here from the same log are the same.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use epochlog_engine::{Store, StoreConfig};
use serde::Deserialize;

use crate::fixtures;

const LONG: Duration = Duration::from_secs(60);

/// A line of `queues.jsonl`.
#[derive(Deserialize)]
struct Line {
    topic: String,
    queue: i32,
    min: i64,
    max: i64,
    units: Vec<(u64, u32, i64)>,
}

fn java_read() -> Vec<Line> {
    let path = fixtures::root().join("java-consume-queues/queues.jsonl");
    let text = fs::read_to_string(path).expect("what RocketMQ read");
    let lines = text.lines();
    lines
        .map(|line| serde_json::from_str(line).expect("a queue"))
        .collect()
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a folder");
    for entry in fs::read_dir(from).expect("a folder") {
        let from = entry.expect("an entry").path();
        let to = to.join(from.file_name().expect("a name"));
        if from.is_dir() {
            copy(&from, &to);
        } else {
            fs::copy(&from, &to).expect("a copy");
        }
    }
}

fn files(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut dirs = vec![dir.join("consumequeue")];
    while let Some(next) = dirs.pop() {
        for entry in fs::read_dir(next).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                dirs.push(path);
            } else {
                let name = path.strip_prefix(dir).expect("inside").to_path_buf();
                found.insert(name, fs::read(&path).expect("a file"));
            }
        }
    }
    found
}

fn open(dir: &Path) -> Store {
    let mut config = StoreConfig::new(dir);
    config.segment_size = 65536;
    config.queue_file_size = 600;
    Store::open(config).expect("the store opens")
}

fn confirm_all(store: &Store) {
    let end = store.end_offset();
    store.set_confirm(end);
    while store.dispatched_offset() < end {
        let before = store.dispatched_offset();
        assert!(store.wait_for_dispatch(before, LONG) > before);
    }
}

fn assert_reads_as_java(store: &Store, lines: &[Line]) {
    assert_eq!(store.queues().len(), lines.len());
    for line in lines {
        let queue = store.queue(&line.topic, line.queue).expect("the queue");
        assert_eq!(queue.min_offset().expect("min"), line.min, "{queue:?}");
        assert_eq!(queue.max_offset().expect("max"), line.max, "{queue:?}");
        let entries = queue.read(line.min, usize::MAX).expect("its messages");
        let units: Vec<_> = entries
            .iter()
            .map(|entry| (entry.unit.offset, entry.unit.size, entry.unit.tags_code))
            .collect();
        assert_eq!(units, line.units, "{queue:?}");
    }
}

#[test]
fn queues_of_rocketmq_are_taken_as_they_are() {
    let dir = tempfile::tempdir().expect("a folder");
    copy(&fixtures::root().join("java-consume-queues"), dir.path());
    let before = files(dir.path());
    let mut lines = java_read();
    assert!(lines.len() > 20 && lines.iter().any(|line| line.max > 30));
    for opened in 0..3 {
        let store = open(dir.path());
        assert_eq!(store.opened().queues_verified, opened == 0);
        confirm_all(&store);
        assert_reads_as_java(&store, &lines);
        assert_eq!(store.queue_counts().repaired, 0);
        if opened == 1 {
            store.abandon();
        } else {
            store.close().expect("a clean close");
        }
        drop(store);
        assert!(files(dir.path()) == before, "a byte has changed");
    }
    // The comparison would see a difference.
    lines[3].units[1].2 += 1;
    let store = open(dir.path());
    let differs = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        assert_reads_as_java(&store, &lines);
    }));
    assert!(differs.is_err());
}

#[test]
fn queues_made_here_are_those_rocketmq_made() {
    let dir = tempfile::tempdir().expect("a folder");
    copy(&fixtures::root().join("java-consume-queues"), dir.path());
    let theirs = files(dir.path());
    fs::remove_dir_all(dir.path().join("consumequeue")).expect("removed");
    let store = open(dir.path());
    confirm_all(&store);
    assert_reads_as_java(&store, &java_read());
    store.close().expect("a clean close");
    assert!(files(dir.path()) == theirs, "other bytes than RocketMQ's");
}

#[test]
fn a_queue_of_rocketmq_that_lies_is_made_again() {
    let dir = tempfile::tempdir().expect("a folder");
    copy(&fixtures::root().join("java-consume-queues"), dir.path());
    let theirs = files(dir.path());
    let path = dir
        .path()
        .join("consumequeue/orders/2/00000000000000000000");
    for place in [0, 7, 11, 19, 20 * 15 + 3, 599] {
        let mut bytes = fs::read(&path).expect("a file");
        bytes[place] ^= 0x40;
        fs::write(&path, bytes).expect("written");
        // As RocketMQ leaves it: no state file, no mark.
        fs::remove_file(dir.path().join("epochlog.state")).ok();
        let store = open(dir.path());
        confirm_all(&store);
        assert_reads_as_java(&store, &java_read());
        assert!(store.queue_counts().repaired > 0, "{place}");
        store.close().expect("a clean close");
        drop(store);
        assert!(files(dir.path()) == theirs, "{place}");
    }
}
