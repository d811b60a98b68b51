//! Apache RocketMQ opens folders with consume queues of ours: it reads the same messages from them and
//! puts nothing into them twice.

use std::fs;
use std::path::Path;
use std::time::Duration;

use epochlog_engine::{EpochEntry, Message, PropertiesBuilder, Store};
use serde::Deserialize;

use crate::stores::open;
use crate::{SEGMENT_SIZE, java};

const LONG: Duration = Duration::from_secs(60);

/// One queue: name, first queue offset and the one behind the last, units as (offset, size, tags code).
#[derive(Debug, Deserialize, PartialEq)]
struct Queue {
    topic: String,
    queue: i32,
    min: i64,
    max: i64,
    units: Vec<(u64, u32, i64)>,
}

/// What stands before the first message in its file.
const PRE_FILL: (u64, u32, i64) = (0, i32::MAX as u32, 0);

/// Java's reading of the queues of a copy of `dir`. Queues without a message are left out, and so is
/// pre-fill: a RocketMQ that has just started takes it for messages, its own as well.
fn read_by_java(dir: &Path) -> Vec<Queue> {
    let out = tempfile::NamedTempFile::new().expect("a temporary file");
    java::run(dir, "queues", &["--out", &out.path().to_string_lossy()]);
    let text = fs::read_to_string(out.path()).expect("what Java wrote");
    let queues = text.lines().map(|line| {
        let mut queue: Queue = serde_json::from_str(line).expect("a queue");
        while queue.units.first() == Some(&PRE_FILL) {
            queue.units.remove(0);
            queue.min += 1;
        }
        queue
    });
    queues.filter(|queue| !queue.units.is_empty()).collect()
}

fn read_by_us(store: &Store) -> Vec<Queue> {
    let queues = store.queues().into_iter().map(|queue| {
        let (min, max) = (queue.min_offset(), queue.max_offset());
        let (min, max) = (min.expect("min"), max.expect("max"));
        let entries = queue.read(min, usize::MAX).expect("its messages");
        let unit = entries.iter().map(|entry| entry.unit);
        Queue {
            topic: queue.topic().to_owned(),
            queue: queue.queue_id(),
            min,
            max,
            units: unit
                .map(|unit| (unit.offset, unit.size, unit.tags_code))
                .collect(),
        }
    });
    let mut queues: Vec<_> = queues.filter(|queue| !queue.units.is_empty()).collect();
    queues.sort_by(|a, b| (&a.topic, a.queue).cmp(&(&b.topic, b.queue)));
    queues
}

fn assert_same(java: &[Queue], ours: &[Queue]) {
    assert_eq!(java.len(), ours.len());
    for (java, ours) in java.iter().zip(ours) {
        assert_eq!(java, ours);
    }
}

fn append(store: &Store, count: usize) {
    for n in 0..count {
        let mut properties = PropertiesBuilder::new();
        if n % 3 != 0 {
            let tags = ["TagA", "created", "København"][n % 3];
            properties.push("TAGS", tags).expect("a property");
        }
        let body = vec![b'x'; n * 37 % 500];
        let host = ([10, 0, 0, 2], 10911).into();
        let mut message = Message::new(["orders", "%RETRY%billing"][n % 2], &body, host, 1);
        message.queue_id = i32::try_from(n % 4).expect("a queue");
        message.properties = properties.as_bytes();
        store.append(&message).expect("a master takes messages");
    }
}

fn confirm_all(store: &Store) {
    let end = store.end_offset();
    store.set_confirm(end);
    while store.dispatched_offset() < end {
        let before = store.dispatched_offset();
        assert!(store.wait_for_dispatch(before, LONG) > before);
    }
}

#[test]
#[ignore = "needs a JVM; .ci/interop runs it"]
fn java_reads_the_queues_we_wrote() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let store = open(dir.path());
    store.promote(1).expect("a newer epoch");
    append(&store, 700);
    confirm_all(&store);
    let ours = read_by_us(&store);
    assert_eq!(ours.len(), 4);
    // Not closed, and most units not on disk: Java makes them, and those that are there not again.
    store.flush().expect("a sync");
    assert_same(&read_by_java(dir.path()), &ours);
    store.sync_queues().expect("a sync");
    append(&store, 100);
    confirm_all(&store);
    let ours = read_by_us(&store);
    store.close().expect("a clean close");
    drop(store);
    assert_same(&read_by_java(dir.path()), &ours);
}

#[test]
#[ignore = "needs a JVM; .ci/interop runs it"]
fn java_finds_nothing_of_what_we_cut_in_our_queues() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let store = open(dir.path());
    store.promote(1).expect("a newer epoch");
    append(&store, 600);
    confirm_all(&store);
    store.sync_queues().expect("a sync");
    let record = store.records(0..store.end_offset()).nth(311);
    let to = record.expect("a record").expect("a whole record");
    let to = to.record().physical_offset();
    store.demote(2).expect("a newer epoch");
    let epochs = (*store.epochs()).clone();
    store
        .truncate(to, epochs, "a test of the cut")
        .expect("the cut");
    let ours = read_by_us(&store);
    assert_eq!(
        ours.iter().map(|queue| queue.units.len()).sum::<usize>(),
        311
    );
    assert_same(&read_by_java(dir.path()), &ours);
    store.promote(3).expect("a newer epoch");
    append(&store, 50);
    confirm_all(&store);
    let ours = read_by_us(&store);
    store.close().expect("a clean close");
    drop(store);
    assert_same(&read_by_java(dir.path()), &ours);
}

#[test]
#[ignore = "needs a JVM; .ci/interop runs it"]
fn java_reads_queues_that_begin_inside_a_file() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let master = open(&dir.path().join("master"));
    master.promote(1).expect("a newer epoch");
    append(&master, 600);
    let path = dir.path().join("slave");
    let store = open(&path);
    let mut receiver = store.receive().expect("a receiver");
    receiver.start_at(SEGMENT_SIZE).expect("an empty log");
    let entry = EpochEntry { epoch: 1, start: 0 };
    receiver.adopt_epoch(entry).expect("the first epoch");
    while receiver.received_end() < master.end_offset() {
        let bytes = master.slice(receiver.received_end(), 1 << 16);
        let bytes = bytes.expect("bytes of the log");
        let mut window = receiver.window(bytes.len()).expect("room");
        let n = window.len();
        window.as_mut_slice().copy_from_slice(&bytes[..n]);
        receiver.filled(window, n);
        receiver.publish().expect("whole records");
    }
    receiver.finish().expect("the end");
    confirm_all(&store);
    let ours = read_by_us(&store);
    assert!(ours.iter().all(|queue| queue.min > 0));
    store.close().expect("a clean close");
    drop(store);
    assert_same(&read_by_java(&path), &ours);
}
