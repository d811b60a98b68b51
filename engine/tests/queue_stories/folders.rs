//! The dispatcher beside cuts, slaves, times, and folders that others have touched.

use std::fs;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use crate::common::{SEGMENT, segment_path};
use epochlog_engine::{CheckpointFile, Error, Store, TimeBoundary, sys_flag};

use crate::bed::*;
use crate::common;

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
    // Listeners are told after the position they can see has moved.
    let deadline = Instant::now() + LONG;
    while heard.load(Ordering::SeqCst) < 2 {
        assert!(Instant::now() < deadline, "the listener was not told");
        std::thread::yield_now();
    }
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

#[test]
fn next_queue_offsets_are_those_of_the_log_that_began_elsewhere() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let mut old = Wire::at(SEGMENT);
    old.record(&message("t", 0, b"old"), 100, 1);
    old.feed(&store);
    store
        .truncate(SEGMENT, common::epochs(&[]), "resync")
        .unwrap();
    let mut new = Wire::at(3 * SEGMENT);
    new.record(&message("t", 0, b"new"), 7, 1);
    new.feed(&store);
    store.promote(2).unwrap();
    assert_eq!(put(&store, "t", 0).queue_offset, 8);
}
