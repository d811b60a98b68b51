//! Apache RocketMQ reads the stores we write, and we read what it makes of them.
//!
//! The Java side opens a copy of a folder as a starting broker does, with its own recovery, walks the
//! log with its own validator and decoder, and writes down what it read.

use std::collections::HashMap;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;

use epochlog_engine::{EpochEntry, Message, PropertiesBuilder, Record, Store, StoreConfig};
use serde::Deserialize;
use sha2::{Digest, Sha256};

use crate::{QUEUE_FILE_SIZE, SEGMENT_SIZE, generation, java};

/// First line of what Java read.
#[derive(Debug, Deserialize, PartialEq)]
struct Head {
    messages: usize,
    min_offset: u64,
    end_offset: u64,
    epochs: Vec<(u32, u64)>,
}

/// A message as Java read it, or as we do.
#[derive(Debug, Deserialize, PartialEq)]
struct Line {
    offset: u64,
    size: usize,
    topic: String,
    queue: i32,
    queue_offset: i64,
    flag: i32,
    sys_flag: i32,
    born_ms: i64,
    store_ms: i64,
    born_host: SocketAddr,
    store_host: SocketAddr,
    tags: Option<String>,
    keys: Option<String>,
    body_len: usize,
    body_sha256: String,
}

impl Line {
    fn of(record: &Record<'_>) -> Self {
        let property = |name| record.property(name).map(|value| value.into_owned());
        Self {
            offset: record.physical_offset(),
            size: record.total_size(),
            topic: record.topic().to_owned(),
            queue: record.queue_id(),
            queue_offset: record.queue_offset(),
            flag: record.flag(),
            sys_flag: record.sys_flag(),
            born_ms: record.born_timestamp_ms(),
            store_ms: record.store_timestamp_ms(),
            born_host: record.born_host().expect("a port"),
            store_host: record.store_host().expect("a port"),
            tags: property("TAGS"),
            keys: property("KEYS"),
            body_len: record.body().len(),
            body_sha256: hex(&Sha256::digest(record.body())),
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Java's reading of a folder.
fn read_by_java(dir: &Path) -> (Head, Vec<Line>) {
    let out = tempfile::NamedTempFile::new().expect("a temporary file");
    java::run(dir, "read", &["--out", &out.path().to_string_lossy()]);
    let text = fs::read_to_string(out.path()).expect("what Java wrote");
    let mut lines = text.lines();
    let head = serde_json::from_str(lines.next().expect("a head line")).expect("a head");
    let lines = lines.map(|line| serde_json::from_str(line).expect("a message"));
    (head, lines.collect())
}

/// Our reading of an open store, in the same form.
fn read_by_us(store: &Store) -> (Head, Vec<Line>) {
    let range = store.min_offset()..store.end_offset();
    let lines: Vec<Line> = store
        .records(range.clone())
        .map(|record| Line::of(&record.expect("a whole record").record()))
        .collect();
    let list = store.epochs();
    let epochs = list.entries().iter();
    let head = Head {
        messages: lines.len(),
        min_offset: range.start,
        end_offset: range.end,
        epochs: epochs
            .map(|&EpochEntry { epoch, start }| (epoch, start))
            .collect(),
    };
    (head, lines)
}

/// Compares both readings of a store that is closed in between, as a folder that changes hands is.
fn assert_java_reads_the_same(store: Store, dir: &Path) {
    let ours = read_by_us(&store);
    store.close().expect("a clean close");
    drop(store);
    let java = read_by_java(dir);
    assert_eq!(java.0, ours.0);
    for (java, ours) in java.1.iter().zip(&ours.1) {
        assert_eq!(java, ours);
    }
    assert_eq!(java.1.len(), ours.1.len());
}

pub(crate) fn open(dir: &Path) -> Store {
    let mut config = StoreConfig::new(dir);
    config.segment_size = SEGMENT_SIZE;
    config.queue_file_size = QUEUE_FILE_SIZE;
    Store::open(config).expect("the store opens")
}

/// Appends `count` times, in all the shapes the format has; `seed` makes the messages differ.
fn append(store: &Store, count: usize, seed: u32) {
    let long_topic = "t".repeat(if generation::has_second_layout() {
        200
    } else {
        127
    });
    let address = |text: &str| -> SocketAddr { text.parse().expect("an address") };
    for n in 0..count {
        let body = vec![b"epochlog"[(n + seed as usize) % 8]; 10 + n * 37 % 3000];
        let mut properties = PropertiesBuilder::new();
        for (name, value) in [
            ("TAGS", ["created", "TagA"][n % 2]),
            ("KEYS", &format!("key-{seed}-{n}")),
            ("city", "Łódź 大阪"),
        ] {
            properties.push(name, value).expect("a property");
        }
        let message = Message {
            topic: if n % 7 == 3 { &long_topic } else { "orders" },
            queue_id: i32::try_from(n % 4).expect("a queue"),
            flag: i32::try_from(n).expect("a flag") - 3,
            sys_flag: 0,
            born_timestamp_ms: 1_700_000_000_000,
            born_host: address(["10.1.2.3:4000", "[2001:db8::7]:4000"][usize::from(n % 5 == 1)]),
            store_host: address(["10.0.0.2:10911", "[2001:db8::2]:1"][usize::from(n % 3 == 2)]),
            reconsume_times: 0,
            prepared_transaction_offset: 0,
            body: &body,
            properties: properties.as_bytes(),
        };
        if n % 11 == 5 {
            store
                .append_batch(&[message; 3])
                .expect("a master takes batches");
        } else {
            store.append(&message).expect("a master takes messages");
        }
    }
}

#[test]
#[ignore = "needs a JVM; .ci/interop runs it"]
fn java_opens_a_store_we_wrote() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let store = open(dir.path());
    for (epoch, count) in [(1, 120), (3, 1), (7, 150)] {
        store.promote(epoch).expect("a newer epoch");
        append(&store, count, epoch);
    }
    assert!(store.segments().len() >= 4, "{:?}", store.segments());
    assert_java_reads_the_same(store, dir.path());
}

#[test]
#[ignore = "needs a JVM; .ci/interop runs it"]
fn java_reads_our_property_crc() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let mut config = StoreConfig::new(dir.path());
    config.segment_size = SEGMENT_SIZE;
    config.queue_file_size = QUEUE_FILE_SIZE;
    config.encode.append_property_crc = true;
    let store = Store::open(config).expect("the store opens");
    store.promote(1).expect("a newer epoch");
    append(&store, 60, 1);
    assert_java_reads_the_same(store, dir.path());
}

#[test]
#[ignore = "needs a JVM; .ci/interop runs it"]
fn java_sees_elections_without_writes() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let store = open(dir.path());
    for epoch in [1, 2, 3] {
        store.promote(epoch).expect("a newer epoch");
    }
    append(&store, 5, 0);
    for epoch in [4, 9] {
        store.promote(epoch).expect("a newer epoch");
    }
    assert_eq!(read_by_us(&store).0.epochs.len(), 5);
    assert_java_reads_the_same(store, dir.path());
}

/// Both sides give out queue offsets without a gap, whoever wrote the records before.
fn assert_queue_offsets_have_no_gap(lines: &[Line]) {
    let mut next: HashMap<(&str, i32), i64> = HashMap::new();
    for line in lines {
        let next = next.entry((&line.topic, line.queue)).or_default();
        assert_eq!(line.queue_offset, *next, "{line:?}");
        *next += 1;
    }
}

/// Where to cut, found among all records of the log.
type Cut = fn(&[Line]) -> u64;

#[test]
#[ignore = "needs a JVM; .ci/interop runs it"]
fn java_ends_where_we_cut() {
    let cuts: [(&str, Cut); 3] = [
        ("inside a segment", |all| all[all.len() - 20].offset),
        ("at the start of a segment", |_| 2 * SEGMENT_SIZE),
        ("before the last record of a segment", |all| {
            let last = all.iter().rfind(|line| line.offset < SEGMENT_SIZE);
            last.expect("a record").offset
        }),
    ];
    for (place, cut) in cuts {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let store = open(dir.path());
        for (epoch, count) in [(1, 60), (2, 150)] {
            store.promote(epoch).expect("a newer epoch");
            append(&store, count, epoch);
        }
        let to = cut(&read_by_us(&store).1);
        store.demote(3).expect("a newer epoch");
        let mut epochs = (*store.epochs()).clone();
        epochs.drop_starting_after(to);
        store
            .truncate(to, epochs, "a test of the cut")
            .expect("the cut");
        // Not closed: a process that dies after the cut must not leave the old tail to Java.
        let java = read_by_java(dir.path()).0;
        assert_eq!((java.min_offset, java.end_offset), (0, to), "{place}");
        store.promote(4).expect("a newer epoch");
        append(&store, 10, 4);
        assert_java_reads_the_same(store, dir.path());
    }
}

#[test]
#[ignore = "needs a JVM; .ci/interop runs it"]
fn a_store_goes_from_java_to_us_and_back() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let java = [
        "--small-only",
        "--messages",
        "200",
        "--epochs",
        "1,2",
        "--seed",
        "5",
    ];
    java::run(dir.path(), "write", &java);
    let store = open(dir.path());
    let before = read_by_us(&store).1;
    store.promote(3).expect("a newer epoch");
    append(&store, 100, 3);
    let after = read_by_us(&store).1;
    assert!(after.len() > before.len() + 100, "{} records", after.len());
    assert_eq!(after[..before.len()], before);
    assert_java_reads_the_same(store, dir.path());
    let java = [
        "--small-only",
        "--messages",
        "50",
        "--epochs",
        "4",
        "--seed",
        "6",
        "--append",
    ];
    java::run(dir.path(), "write", &java);
    let (head, lines) = read_by_us(&open(dir.path()));
    assert_eq!(lines.len(), after.len() + 50);
    assert_eq!(lines[..after.len()], after);
    assert_eq!(head.epochs.len(), 4);
    assert_eq!(head.epochs[3], (4, lines[after.len()].offset));
    assert_queue_offsets_have_no_gap(&lines);
}
