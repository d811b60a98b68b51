//! Consume queues: what they show and when, across cuts, kills and folders that others have touched.

#![expect(
    clippy::unwrap_used,
    reason = "a test stops where its own input is wrong"
)]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use common::{HOST, SEGMENT, segment_path};
use epochlog_engine::{
    Appended, Checkpoint, CheckpointFile, EncodeOptions, EpochEntry, Error, Message, Offset,
    QUEUE_UNIT_LEN, Stamp, Store, StoreConfig, TimeBoundary, encode_into, encoded_len, sys_flag,
    write_filler,
};

const LONG: Duration = Duration::from_secs(60);

/// As the others, with queue files of ten units that are synced when a test says so.
fn config(dir: &Path) -> StoreConfig {
    let mut config = common::config(dir);
    config.queue_file_size = 10 * QUEUE_UNIT_LEN as u64;
    config.queue_flush_interval_ms = 3_600_000;
    config
}

fn open(dir: &Path) -> Store {
    Store::open(config(dir)).unwrap()
}

fn master(dir: &Path, epoch: u32) -> Store {
    let store = open(dir);
    store.promote(epoch).unwrap();
    store
}

fn message<'a>(topic: &'a str, queue_id: i32, body: &'a [u8]) -> Message<'a> {
    let mut message = Message::new(topic, body, HOST, 1_700_000_000_000);
    message.queue_id = queue_id;
    message
}

/// A message whose record has 100 bytes.
fn put(store: &Store, topic: &str, queue_id: i32) -> Appended {
    let empty = encoded_len(&message(topic, queue_id, b""), EncodeOptions::default()).unwrap();
    let body = vec![b'x'; 100 - empty];
    store.append(&message(topic, queue_id, &body)).unwrap()
}

/// Raises the confirm offset and waits until the queues have followed.
fn confirm(store: &Store, to: Offset) {
    store.set_confirm(to);
    settle(store);
}

fn settle(store: &Store) {
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
fn offsets(store: &Store, topic: &str, queue_id: i32) -> Vec<Offset> {
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
fn queue_files(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
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
fn close_and_compare(store: Store, dir: &Path) {
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
struct Wire {
    bytes: Vec<u8>,
    base: Offset,
}

impl Wire {
    fn at(base: Offset) -> Self {
        Self {
            bytes: Vec::new(),
            base,
        }
    }

    fn end(&self) -> Offset {
        self.base + self.bytes.len() as u64
    }

    fn record(&mut self, message: &Message<'_>, queue_offset: i64, store_timestamp_ms: i64) {
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

    fn fill(&mut self, len: usize) {
        let mut filler = vec![0; len];
        write_filler(&mut filler);
        self.bytes.extend(filler);
    }

    /// Feeds all of it to a slave that has nothing from `base` on.
    fn feed(&self, store: &Store) {
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

#[test]
fn messages_are_read_by_queue_once_they_are_confirmed() {
    let dir = tempfile::tempdir().unwrap();
    let store = master(dir.path(), 1);
    let mut of = BTreeMap::<(&str, i32), Vec<Offset>>::new();
    for n in 0..60 {
        let topic = ["orders", "%RETRY%"][n % 2];
        let queue_id = [0, 3, 0][n % 3];
        let appended = put(&store, topic, queue_id);
        of.entry((topic, queue_id))
            .or_default()
            .push(appended.offset);
    }
    assert!(store.queue("orders", 0).is_none());
    let confirmed = store.records(0..store.end_offset()).nth(29).unwrap();
    confirm(&store, confirmed.unwrap().record().physical_offset());
    for ((topic, queue_id), all) in &of {
        let visible: Vec<_> = all
            .iter()
            .copied()
            .filter(|at| *at < store.confirm_offset())
            .collect();
        assert!(!visible.is_empty() && visible.len() < all.len());
        assert_eq!(offsets(&store, topic, *queue_id), visible);
    }
    confirm(&store, store.end_offset());
    for ((topic, queue_id), all) in &of {
        assert_eq!(&offsets(&store, topic, *queue_id), all);
    }
    assert_eq!(store.queues().len(), of.len());
    assert_eq!(store.queue_counts().stored, 60);
    let queue = store.queue("orders", 0).unwrap();
    assert_eq!(queue.read(3, 2).unwrap().len(), 2);
    let max = queue.max_offset().unwrap();
    assert!(queue.read(max, 9).unwrap().is_empty());
    for outside in [-1, max + 1] {
        assert!(matches!(
            queue.read(outside, 1),
            Err(Error::QueueRange { offset, .. }) if offset == outside
        ));
    }
    close_and_compare(store, dir.path());
}

#[test]
fn a14_a_record_across_the_confirm_offset_stays_hidden() {
    let dir = tempfile::tempdir().unwrap();
    let store = master(dir.path(), 1);
    for _ in 0..5 {
        put(&store, "t", 0);
    }
    for (to, visible) in [(350, 3), (399, 3), (400, 4), (450, 4), (500, 5)] {
        confirm(&store, to);
        assert_eq!(offsets(&store, "t", 0).len(), visible, "{to}");
    }
    // A confirm offset behind the end is one at the end.
    confirm(&store, 9999);
    assert_eq!(store.confirm_offset(), 500);
}

#[test]
fn a06_queue_offsets_go_on_behind_messages_that_are_not_dispatched_yet() {
    for close in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let store = master(dir.path(), 1);
        for _ in 0..10 {
            put(&store, "t", 0);
        }
        confirm(&store, 1000);
        // Over the end of a segment, with a filler between them.
        for n in 10..45 {
            assert_eq!(put(&store, "t", 0).queue_offset, n);
        }
        assert!(store.segments().len() > 1);
        store.sync_queues().unwrap();
        if close {
            store.close().unwrap();
        } else {
            store.abandon();
        }
        drop(store);
        let store = master(dir.path(), 2);
        assert_eq!(store.confirm_offset(), 1000);
        assert_eq!(offsets(&store, "t", 0).len(), 10);
        assert_eq!(put(&store, "t", 0).queue_offset, 45);
        confirm(&store, store.end_offset());
        let all = offsets(&store, "t", 0);
        assert_eq!(all.len(), 46);
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), 46);
        close_and_compare(store, dir.path());
    }
}

#[test]
fn a16_a_queue_whose_messages_were_all_cut_can_be_read_again() {
    let dir = tempfile::tempdir().unwrap();
    // The slave's log begins with queue offset 10 of the queue.
    let mut wire = Wire::at(SEGMENT);
    for n in 0..4 {
        wire.record(&message("other", 0, b"x"), n, 1);
    }
    let before = wire.end();
    for n in 10..13 {
        wire.record(&message("t", 0, b"x"), n, 1);
    }
    let store = open(dir.path());
    wire.feed(&store);
    confirm(&store, store.end_offset());
    let queue = store.queue("t", 0).unwrap();
    assert_eq!(queue.min_offset().unwrap(), 10);
    assert_eq!(queue.max_offset().unwrap(), 13);
    store.sync_queues().unwrap();
    store
        .truncate(before, (*store.epochs()).clone(), "elected another")
        .unwrap();
    assert_eq!(queue.min_offset().unwrap(), queue.max_offset().unwrap());
    drop(queue);
    store.abandon();
    drop(store);
    let store = master(dir.path(), 2);
    if let Some(queue) = store.queue("t", 0) {
        assert_eq!(queue.min_offset().unwrap(), queue.max_offset().unwrap());
    }
    assert_eq!(put(&store, "t", 0).queue_offset, 0);
    confirm(&store, store.end_offset());
    assert_eq!(offsets(&store, "t", 0).len(), 1);
    assert_eq!(offsets(&store, "other", 0).len(), 4);
    close_and_compare(store, dir.path());
}

#[test]
fn c03_every_record_is_indexed_once_whatever_the_clocks_said() {
    // Store times of the last record of file 0 and the first of file 1, around the checkpoint's.
    for (last, first) in [
        (5000, 5000),
        (5000, 4999),
        (5000, 5001),
        (5000, 100),
        (5000, 0),
    ] {
        for checkpoint_ms in [4999, 5000, 5001, 8000, 8001, i64::MAX] {
            let dir = tempfile::tempdir().unwrap();
            let mut wire = Wire::at(0);
            let mut at = 0;
            let body = vec![b'x'; 700];
            let mut record = |wire: &mut Wire, ms| {
                wire.record(&message("t", 0, &body), at, ms);
                at += 1;
                wire.end()
            };
            record(&mut wire, 5000);
            let dispatched = record(&mut wire, 5000);
            record(&mut wire, 5000);
            record(&mut wire, 5000);
            record(&mut wire, last);
            assert!(wire.end() < SEGMENT);
            record(&mut wire, first);
            assert!(wire.end() > SEGMENT);
            let store = open(dir.path());
            wire.feed(&store);
            confirm(&store, dispatched);
            store.sync_queues().unwrap();
            // In the queue, but nowhere on disk.
            confirm(&store, wire.end());
            store.flush().unwrap();
            store.abandon();
            drop(store);
            let path = dir.path().join("checkpoint");
            let mut file = CheckpointFile::open(&path).unwrap();
            let checkpoint = Checkpoint {
                physic_msg_timestamp_ms: checkpoint_ms,
                logics_msg_timestamp_ms: checkpoint_ms,
                ..file.current()
            };
            file.store(checkpoint).unwrap();
            let store = open(dir.path());
            assert!(!store.opened().queues_verified);
            confirm(&store, wire.end());
            assert_eq!(offsets(&store, "t", 0).len(), 6);
            assert_eq!(store.queue_counts().known, 0, "once");
            close_and_compare(store, dir.path());
        }
    }
}

#[test]
fn c04_no_unit_outlives_a_record_that_recovery_cut() {
    // Positions in the record: size, magic, body, properties.
    for (place, damage) in [(0, 1), (4, 1), (88, 1), (99, 1)] {
        let dir = tempfile::tempdir().unwrap();
        let store = master(dir.path(), 1);
        for _ in 0..3 {
            let body = [b'x'; 6];
            let mut message = message("t", 0, &body);
            // With a CRC over all of it no byte can change unseen.
            message.properties = b"";
            store.append(&message).unwrap();
        }
        let end = store.end_offset();
        let third = end / 3 * 2;
        confirm(&store, end);
        assert_eq!(offsets(&store, "t", 0), [0, end / 3, third]);
        store.abandon();
        drop(store);
        let segment = segment_path(dir.path(), 0);
        let file = fs::File::options()
            .read(true)
            .write(true)
            .open(segment)
            .unwrap();
        let mut byte = [0];
        let at = third + u64::min(place, end / 3 - 1);
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ damage], at).unwrap();
        drop(file);
        let store = open(dir.path());
        assert_eq!(store.end_offset(), third, "{place}");
        store.promote(2).unwrap();
        confirm(&store, store.end_offset());
        assert_eq!(offsets(&store, "t", 0), [0, end / 3]);
        assert_eq!(put(&store, "t", 0).queue_offset, 2);
        confirm(&store, store.end_offset());
        assert_eq!(offsets(&store, "t", 0), [0, end / 3, third]);
        close_and_compare(store, dir.path());
    }
}

#[test]
fn c28_many_writers_leave_no_queue_offset_out_and_give_none_twice() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = config(dir.path());
    config.segment_size = 1 << 20;
    let store = Arc::new(Store::open(config).unwrap());
    store.promote(1).unwrap();
    let writers: Vec<_> = (0..8)
        .map(|writer| {
            let store = Arc::clone(&store);
            std::thread::spawn(move || {
                for n in 0..200 {
                    let queue_id = (writer + n) % 3;
                    if n % 5 == 0 {
                        let batch = [
                            message("t", queue_id, b"1"),
                            message("t", (queue_id + 1) % 3, b"2"),
                            message("u", 0, b"3"),
                        ];
                        store.append_batch(&batch).unwrap();
                    } else {
                        put(&store, "t", queue_id);
                    }
                    store.set_confirm(store.end_offset());
                }
            })
        })
        .collect();
    for writer in writers {
        writer.join().unwrap();
    }
    confirm(&store, store.end_offset());
    let mut counted = 0;
    for (topic, queue_id) in [("t", 0), ("t", 1), ("t", 2), ("u", 0)] {
        counted += offsets(&store, topic, queue_id).len();
    }
    assert_eq!(counted, 8 * (160 + 40 * 3));
    let counts = store.queue_counts();
    assert_eq!((counts.known, counts.gaps), (0, 0));
}

#[test]
fn e11_a_cut_under_the_dispatcher_is_a_cut_after_it() {
    for round in 0..30_u64 {
        let dir = tempfile::tempdir().unwrap();
        let store = Arc::new(master(dir.path(), 1));
        for n in 0..200 {
            put(&store, "t", n % 2);
        }
        store.demote(2).unwrap();
        let end = store.end_offset();
        let records: Vec<_> = store
            .records(0..end)
            .map(|view| view.unwrap().record().physical_offset())
            .collect();
        let cut = records[20 + usize::try_from(round).unwrap() * 5];
        let raiser = {
            let store = Arc::clone(&store);
            std::thread::spawn(move || {
                for at in records.into_iter().skip(1) {
                    store.set_confirm(at);
                    if at % (round + 1) == 0 {
                        std::thread::yield_now();
                    }
                }
            })
        };
        if round % 3 == 0 {
            store.sync_queues().unwrap();
        }
        let epochs = (*store.epochs()).clone();
        store.truncate(cut, epochs, "test").unwrap();
        raiser.join().unwrap();
        confirm(&store, cut);
        let visible = offsets(&store, "t", 0).len() + offsets(&store, "t", 1).len();
        assert_eq!(visible, store.records(0..cut).count());
        let store = Arc::into_inner(store).unwrap();
        close_and_compare(store, dir.path());
    }
}

#[test]
fn e15_opening_and_closing_changes_no_byte() {
    let dir = tempfile::tempdir().unwrap();
    let store = master(dir.path(), 1);
    for n in 0..50 {
        put(&store, "t", n % 3);
    }
    confirm(&store, store.end_offset());
    store.close().unwrap();
    drop(store);
    let before = queue_files(dir.path());
    for _ in 0..2 {
        let store = open(dir.path());
        assert!(store.opened().clean && !store.opened().queues_verified);
        assert_eq!(offsets(&store, "t", 0).len(), 17);
        store.close().unwrap();
        drop(store);
        assert!(queue_files(dir.path()) == before);
    }
}

#[test]
fn after_a_clean_stop_nothing_of_the_log_is_walked_for_queues() {
    let dir = tempfile::tempdir().unwrap();
    let store = master(dir.path(), 1);
    for n in 0..200 {
        put(&store, "t", n % 3);
    }
    confirm(&store, store.end_offset());
    store.close().unwrap();
    drop(store);
    // Damage that any walk over the log would stop at.
    let file = fs::File::options()
        .write(true)
        .open(segment_path(dir.path(), SEGMENT))
        .unwrap();
    file.write_all_at(&[0xFF; 8], 1000).unwrap();
    let told = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&told);
    let mut config = config(dir.path());
    config.progress = Some(Arc::new(move |_, _| {
        counter.fetch_add(1, Ordering::SeqCst);
    }));
    let store = Store::open(config).unwrap();
    assert_eq!(told.load(Ordering::SeqCst), 0);
    store.promote(2).unwrap();
    assert_eq!(put(&store, "t", 0).queue_offset, 67);
    assert_eq!(put(&store, "new", 0).queue_offset, 0);
}

#[test]
fn a_slave_fills_its_queues_up_to_what_its_master_confirms() {
    let dir = tempfile::tempdir().unwrap();
    let mut wire = Wire::at(0);
    for n in 0..60 {
        wire.record(&message("t", 0, &[b'x'; 60]), n, n);
    }
    let store = open(dir.path());
    wire.feed(&store);
    let heard = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&heard);
    store.on_dispatch(Arc::new(move || {
        counter.fetch_add(1, Ordering::SeqCst);
    }));
    let starts = common::starts(&store);
    confirm(&store, starts[40]);
    assert_eq!(offsets(&store, "t", 0), starts[..40]);
    // Its master elects itself: it goes on where the log ends, not where the queue does.
    store.promote(2).unwrap();
    assert_eq!(put(&store, "t", 0).queue_offset, 60);
    confirm(&store, store.end_offset());
    assert_eq!(offsets(&store, "t", 0).len(), 61);
    assert!(heard.load(Ordering::SeqCst) >= 2);
    close_and_compare(store, dir.path());
}

#[test]
fn a_time_stands_for_the_first_message_from_it_or_the_last_up_to_it() {
    let dir = tempfile::tempdir().unwrap();
    let mut wire = Wire::at(0);
    for (at, ms) in (0..).zip([100, 200, 200, 200, 300, 500]) {
        wire.record(&message("t", 0, b"x"), at, ms);
        wire.record(&message("u", 0, b"x"), at, 7);
    }
    let store = open(dir.path());
    wire.feed(&store);
    confirm(&store, wire.end());
    let queue = store.queue("t", 0).unwrap();
    for (ms, lower, upper) in [
        (i64::MIN, 0, 0),
        (99, 0, 0),
        (100, 0, 0),
        (101, 1, 0),
        (200, 1, 3),
        (250, 4, 3),
        (300, 4, 4),
        (499, 5, 4),
        (500, 5, 5),
        (501, 6, 5),
        (i64::MAX, 6, 5),
    ] {
        let found = [TimeBoundary::Lower, TimeBoundary::Upper]
            .map(|boundary| queue.offset_by_time(ms, boundary).unwrap());
        assert_eq!(found, [lower, upper], "{ms}");
    }
}

#[test]
fn a_log_that_begins_elsewhere_forgets_the_queues_of_the_old_one() {
    let dir = tempfile::tempdir().unwrap();
    let mut wire = Wire::at(0);
    for n in 0..30 {
        wire.record(&message("t", 0, b"x"), n, 1);
    }
    let store = open(dir.path());
    wire.feed(&store);
    confirm(&store, wire.end());
    store.sync_queues().unwrap();
    let epochs = (*store.epochs()).clone();
    store.truncate(0, epochs, "a new start").unwrap();
    let mut later = Wire::at(2 * SEGMENT);
    for n in 7..20 {
        later.record(&message("t", 0, b"y"), n, 1);
    }
    let mut receiver = store.receive().unwrap();
    receiver.adopt_epochs(&common::epochs(&[])).unwrap();
    drop(receiver);
    later.feed(&store);
    confirm(&store, later.end());
    let queue = store.queue("t", 0).unwrap();
    assert_eq!(queue.min_offset().unwrap(), 7);
    assert_eq!(offsets(&store, "t", 0).len(), 13);
    drop(queue);
    close_and_compare(store, dir.path());
}

#[test]
fn queue_files_of_another_length_are_made_again_or_taken_as_they_are() {
    let dir = tempfile::tempdir().unwrap();
    let store = master(dir.path(), 1);
    for _ in 0..25 {
        put(&store, "t", 0);
    }
    confirm(&store, store.end_offset());
    store.close().unwrap();
    drop(store);
    let mut adopting = config(dir.path());
    adopting.queue_file_size = 400;
    adopting.adopt_segment_size = true;
    let store = Store::open(adopting.clone()).unwrap();
    assert!(!store.opened().queues_verified);
    store.close().unwrap();
    drop(store);
    assert_eq!(queue_files(dir.path()).len(), 3);
    for aside in ["aside/consumequeue", "aside/consumequeue.1"] {
        let size = if aside.ends_with('1') { 200 } else { 400 };
        let mut other = adopting.clone();
        other.adopt_segment_size = false;
        other.queue_file_size = size;
        let store = Store::open(other).unwrap();
        assert!(store.opened().queues_verified);
        assert_eq!(offsets(&store, "t", 0).len(), 25);
        store.close().unwrap();
        assert!(dir.path().join(aside).is_dir());
        let files = queue_files(dir.path());
        assert!(files.values().all(|bytes| bytes.len() as u64 == size));
    }
    for wrong in [0, 10, 30, (1 << 30) + 20] {
        let mut config = config(dir.path());
        config.queue_file_size = wrong;
        assert!(matches!(
            Store::open(config),
            Err(Error::Setting {
                name: "queue_file_size",
                ..
            })
        ));
    }
}

#[test]
fn what_belongs_in_no_queue_is_counted_and_holds_nothing_up() {
    let dir = tempfile::tempdir().unwrap();
    let mut wire = Wire::at(0);
    let plain = message("t", 0, b"x");
    let of = |flag, topic| {
        let mut message = message(topic, 0, b"x");
        message.sys_flag = flag;
        message
    };
    wire.record(&plain, 0, 1);
    wire.record(&of(sys_flag::TRANSACTION_PREPARED, "t"), 0, 1);
    wire.record(&of(sys_flag::TRANSACTION_ROLLBACK, "t"), 0, 1);
    wire.record(&of(sys_flag::TRANSACTION_COMMIT, "t"), 1, 1);
    let mut batch = of(sys_flag::INNER_BATCH | sys_flag::NEED_UNWRAP, "bulk");
    batch.properties = b"INNER_NUM\x015\x02INNER_BASE\x010\x02";
    wire.record(&batch, 0, 1);
    for topic in ["..", "../up", "a/b"] {
        wire.record(&message(topic, 0, b"x"), 0, 1);
    }
    wire.record(&plain, -1, 1);
    wire.record(&plain, i64::MAX, 1);
    // A queue offset that is taken already.
    wire.record(&plain, 0, 1);
    wire.record(&plain, 2, 1);
    let store = open(dir.path());
    wire.feed(&store);
    confirm(&store, wire.end());
    assert_eq!(offsets(&store, "t", 0).len(), 3);
    assert_eq!(store.queues().len(), 1);
    let counts = store.queue_counts();
    assert_eq!(counts.stored, 3);
    assert_eq!((counts.transactions, counts.inner_batches), (2, 1));
    assert_eq!((counts.bad_topics, counts.bad_offsets), (3, 2));
    assert_eq!(counts.known, 1);
    assert!(!dir.path().join("up").exists());
    // Java would have put them into queues: it must look at everything from there on again.
    store.close().unwrap();
    drop(store);
    let checkpoint = CheckpointFile::read(&dir.path().join("checkpoint"));
    let offset = checkpoint.unwrap().unwrap().logics_physical_offset;
    let starts: Vec<_> = {
        let store = open(dir.path());
        assert!(!store.opened().queues_verified);
        // Only the log knows how many messages the inner batch took.
        store.promote(2).unwrap();
        assert_eq!(
            store
                .append(&message("bulk", 0, b"x"))
                .unwrap()
                .queue_offset,
            5
        );
        common::starts(&store)
    };
    assert_eq!(offset, starts[3].cast_signed());
}

#[test]
fn a_gap_in_the_log_lets_the_queue_begin_anew_behind_it() {
    let dir = tempfile::tempdir().unwrap();
    let mut wire = Wire::at(0);
    for at in [0, 1, 2, 57, 58] {
        wire.record(&message("t", 0, b"x"), at, 1);
        wire.record(&message("u", 0, b"x"), at.min(3) + at / 58, 1);
    }
    let store = open(dir.path());
    wire.feed(&store);
    confirm(&store, wire.end());
    let queue = store.queue("t", 0).unwrap();
    assert_eq!(queue.min_offset().unwrap(), 57);
    assert_eq!(offsets(&store, "t", 0).len(), 2);
    assert_eq!(offsets(&store, "u", 0).len(), 5);
    assert_eq!(store.queue_counts().gaps, 1);
    store.promote(2).unwrap();
    assert_eq!(put(&store, "t", 0).queue_offset, 59);
    confirm(&store, store.end_offset());
    drop(queue);
    close_and_compare(store, dir.path());
}

#[test]
fn without_queues_a_cut_takes_those_of_java_out_of_its_sight() {
    let dir = tempfile::tempdir().unwrap();
    let store = master(dir.path(), 1);
    for _ in 0..5 {
        put(&store, "t", 0);
    }
    confirm(&store, 500);
    store.close().unwrap();
    drop(store);
    let mut without = config(dir.path());
    without.consume_queues = false;
    let store = Store::open(without).unwrap();
    assert!(store.queue("t", 0).is_none() && store.queues().is_empty());
    store.promote(2).unwrap();
    assert_eq!(put(&store, "t", 0).queue_offset, 5);
    store.demote(3).unwrap();
    let epochs = common::epochs(&[(1, 0)]);
    store.truncate(300, epochs, "test").unwrap();
    assert!(!dir.path().join("consumequeue").exists());
    assert!(dir.path().join("aside/consumequeue").is_dir());
    store.close().unwrap();
    drop(store);
    let checkpoint = CheckpointFile::read(&dir.path().join("checkpoint")).unwrap();
    let checkpoint = checkpoint.unwrap();
    assert_eq!(checkpoint.logics_physical_offset, 0);
    assert_eq!(checkpoint.logics_msg_timestamp_ms, 0);
    let store = open(dir.path());
    assert!(store.opened().queues_verified);
    assert_eq!(offsets(&store, "t", 0), [0, 100, 200]);
}

#[test]
fn the_marks_for_java_say_no_more_than_what_is_on_disk() {
    let dir = tempfile::tempdir().unwrap();
    let store = master(dir.path(), 1);
    let read = || {
        let checkpoint = CheckpointFile::read(&dir.path().join("checkpoint"));
        let checkpoint = checkpoint.unwrap().unwrap();
        (
            checkpoint.logics_physical_offset,
            checkpoint.logics_msg_timestamp_ms,
        )
    };
    let mut times = Vec::new();
    for _ in 0..6 {
        times.push(put(&store, "t", 0).store_timestamp_ms);
    }
    confirm(&store, 300);
    assert_eq!(read(), (0, 0));
    store.sync_queues().unwrap();
    assert_eq!(read(), (200, times[2]));
    confirm(&store, 600);
    assert_eq!(read(), (200, times[2]));
    store.sync_queues().unwrap();
    assert_eq!(read(), (500, times[5]));
    store.demote(2).unwrap();
    store
        .truncate(400, common::epochs(&[(1, 0)]), "test")
        .unwrap();
    assert_eq!(read(), (300, times[3]));
    store.close().unwrap();
    assert_eq!(read(), (300, times[3]));
}
