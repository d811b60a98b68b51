//! Stores with small queues, records at chosen places, and what a queue shows.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::common::{HOST, SEGMENT};
use epochlog_engine::{
    Appended, EncodeOptions, EpochEntry, Message, Offset, QUEUE_UNIT_LEN, Stamp, Store,
    StoreConfig, encode_into, encoded_len, write_filler,
};

use crate::common;

pub(crate) const LONG: Duration = Duration::from_secs(60);

/// As the others, with queue files of ten units that are synced when a test says so.
pub(crate) fn config(dir: &Path) -> StoreConfig {
    let mut config = common::config(dir);
    config.queue_file_size = 10 * QUEUE_UNIT_LEN as u64;
    config.queue_flush_interval_ms = 3_600_000;
    config
}

pub(crate) fn open(dir: &Path) -> Store {
    Store::open(config(dir)).unwrap()
}

pub(crate) fn master(dir: &Path, epoch: u32) -> Store {
    let store = open(dir);
    store.promote(epoch).unwrap();
    store
}

pub(crate) fn message<'a>(topic: &'a str, queue_id: i32, body: &'a [u8]) -> Message<'a> {
    let mut message = Message::new(topic, body, HOST, 1_700_000_000_000);
    message.queue_id = queue_id;
    message
}

/// A message whose record has 100 bytes.
pub(crate) fn put(store: &Store, topic: &str, queue_id: i32) -> Appended {
    let empty = encoded_len(&message(topic, queue_id, b""), EncodeOptions::default()).unwrap();
    let body = vec![b'x'; 100 - empty];
    store.append(&message(topic, queue_id, &body)).unwrap()
}

/// Raises the confirm offset and waits until the queues have followed.
pub(crate) fn confirm(store: &Store, to: Offset) {
    store.set_confirm(to);
    settle(store);
}

pub(crate) fn settle(store: &Store) {
    // Up to the last record that ends at or before it.
    let last = store.record_start_before(store.confirm_offset()).unwrap();
    let Some(last) = last else { return };
    while store.dispatched_offset() <= last {
        let before = store.dispatched_offset();
        assert!(
            store.wait_for_dispatch(before, LONG) > before,
            "the dispatcher has stopped at {before}"
        );
    }
}

/// Start of the record behind each unit.
pub(crate) fn offsets(store: &Store, topic: &str, queue_id: i32) -> Vec<Offset> {
    let queue = store.queue(topic, queue_id).unwrap();
    let min = queue.min_offset().unwrap();
    let entries = queue.read(min, usize::MAX).unwrap();
    for (at, entry) in (min..).zip(&entries) {
        let record = entry.record.record();
        assert_eq!(
            (entry.queue_offset, record.queue_offset()),
            (at, at),
            "{topic}"
        );
        assert_eq!(
            (record.topic(), record.queue_id()),
            (queue.topic(), queue_id)
        );
        assert_eq!(
            u64::from(entry.unit.size) + entry.unit.offset,
            record.end(),
            "{topic}"
        );
    }
    assert_eq!(
        queue.max_offset().unwrap(),
        min + i64::try_from(entries.len()).unwrap()
    );
    entries.iter().map(|entry| entry.unit.offset).collect()
}

/// Every file under `consumequeue/` with its bytes.
pub(crate) fn queue_files(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut dirs = vec![dir.join("consumequeue")];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).into_iter().flatten() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                dirs.push(path);
            } else {
                found.insert(path.clone(), fs::read(&path).unwrap());
            }
        }
    }
    found
}

/// Closes the store and holds its queues against queues made anew from its log.
pub(crate) fn close_and_compare(store: Store, dir: &Path) {
    store.close().unwrap();
    drop(store);
    let found = queue_files(dir);
    fs::rename(dir.join("consumequeue"), dir.join("queues-before")).unwrap();
    let store = open(dir);
    assert!(store.opened().queues_verified);
    store.close().unwrap();
    drop(store);
    assert!(queue_files(dir) == found, "not what the log says");
    fs::remove_dir_all(dir.join("queues-before")).unwrap();
}

/// Records at chosen places and times, as a master would send them.
pub(crate) struct Wire {
    pub(crate) bytes: Vec<u8>,
    pub(crate) base: Offset,
}

impl Wire {
    pub(crate) fn at(base: Offset) -> Self {
        Self {
            bytes: Vec::new(),
            base,
        }
    }

    pub(crate) fn end(&self) -> Offset {
        self.base + self.bytes.len() as u64
    }

    pub(crate) fn record(
        &mut self,
        message: &Message<'_>,
        queue_offset: i64,
        store_timestamp_ms: i64,
    ) {
        let options = EncodeOptions::default();
        let len = encoded_len(message, options).unwrap();
        let room = SEGMENT - self.end() % SEGMENT;
        if len as u64 + 8 > room {
            self.fill(usize::try_from(room).unwrap());
        }
        let stamp = Stamp {
            queue_offset,
            physical_offset: self.end(),
            store_timestamp_ms,
        };
        let mut record = vec![0; len];
        encode_into(&mut record, message, stamp, options).unwrap();
        self.bytes.extend(record);
    }

    pub(crate) fn fill(&mut self, len: usize) {
        let mut filler = vec![0; len];
        write_filler(&mut filler);
        self.bytes.extend(filler);
    }

    /// Feeds all of it to a slave that has nothing from `base` on.
    pub(crate) fn feed(&self, store: &Store) {
        let mut receiver = store.receive().unwrap();
        if self.base != receiver.received_end() {
            receiver.start_at(self.base).unwrap();
        }
        if store.epochs().is_empty() {
            let start = self.base;
            receiver
                .adopt_epoch(EpochEntry { epoch: 1, start })
                .unwrap();
        }
        common::feed(&mut receiver, &self.bytes, 3000);
        receiver.finish().unwrap();
        assert_eq!(store.end_offset(), self.end());
    }
}
