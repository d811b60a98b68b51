//! What is shown, in which order, and what a cut or a kill leaves.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use crate::common::{SEGMENT, segment_path};
use epochlog_engine::{Checkpoint, CheckpointFile, Error, Offset, Store};

use crate::bed::*;

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
    // Consumers have come as far as where it began.
    let queue = store.queue("t", 0).unwrap();
    assert_eq!(queue.min_offset().unwrap(), 10);
    assert_eq!(queue.max_offset().unwrap(), 10);
    assert_eq!(put(&store, "t", 0).queue_offset, 10);
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
