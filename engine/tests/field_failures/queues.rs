//! What consumers read by.

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use epochlog_engine::{Error, RetentionPolicy, RetentionTick, Store, StoreConfig};

use super::common::{append, config, epochs, message, open};

/// Queue files of four units.
fn queued(dir: &Path) -> StoreConfig {
    let mut config = config(dir);
    config.queue_file_size = 80;
    config
}

fn settle(store: &Store) {
    store.flush().unwrap();
    let end = store.end_offset();
    store.set_confirm(end);
    let limit = Duration::from_secs(60);
    assert_eq!(store.wait_for_dispatch(end - 1, limit), end);
}

#[test]
fn a15_a_consumer_above_a_cut_is_told_and_misses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(queued(dir.path())).unwrap();
    store.promote(1).unwrap();
    append(&store, 6, 100);
    settle(&store);
    let queue = store.queue("topic", 0).unwrap();
    assert_eq!(
        queue.read(6, 10).unwrap().len(),
        0,
        "it has come to the end"
    );
    store.fence();
    let cut = store.truncate(300, epochs(&[(1, 0)]), "test").unwrap();
    assert!(cut.below_confirm);
    store.promote(2).unwrap();
    for appended in 0..3 {
        match queue.read(6, 10) {
            Err(Error::QueueRange { offset: 6, max, .. }) => assert_eq!(max, 3 + appended),
            other => panic!("{other:?}"),
        }
        append(&store, 1, 100);
        settle(&store);
    }
    // From where it was told to go on, it sees all three.
    let entries = queue.read(3, 10).unwrap();
    let offsets: Vec<_> = entries.iter().map(|it| it.queue_offset).collect();
    assert_eq!(offsets, [3, 4, 5]);
}

#[test]
fn c02_with_acks_from_disk_nothing_is_shown_that_a_crash_may_take_back() {
    for flushed_only in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let mut config = queued(dir.path());
        config.queues_hold_flushed_only = flushed_only;
        let store = Store::open(config).unwrap();
        store.promote(1).unwrap();
        append(&store, 3, 100);
        store.flush().unwrap();
        append(&store, 3, 100);
        store.set_confirm(600);
        // All that is durable comes in; then the dispatcher has time to do wrong.
        let limit = Duration::from_secs(60);
        assert!(store.wait_for_dispatch(299, limit) >= 300);
        let more = store.wait_for_dispatch(300, Duration::from_millis(100));
        let queue = store.queue("topic", 0).unwrap();
        if flushed_only {
            assert_eq!((more, queue.max_offset().unwrap()), (300, 3));
            assert!(matches!(queue.read(4, 1), Err(Error::QueueRange { .. })));
        } else {
            assert_eq!(store.wait_for_dispatch(599, limit), 600);
            assert_eq!(queue.max_offset().unwrap(), 6);
        }
        assert_eq!(store.confirm_offset(), 600, "replication goes its own way");
        store.flush().unwrap();
        assert_eq!(store.wait_for_dispatch(599, limit), 600);
        assert_eq!(queue.read(0, 10).unwrap().len(), 6);
        store.close().unwrap();
    }
}

#[test]
fn c27_queue_files_of_an_odd_length_and_units_of_what_is_gone_are_no_obstacle() {
    for odd in [0, 7, 70, 79] {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(queued(dir.path())).unwrap();
        store.promote(1).unwrap();
        append(&store, 22, 1000);
        settle(&store);
        // The queue file at hand speaks of messages in front of the log's first, too.
        let tick = RetentionTick {
            now_ms: i64::MAX,
            due: true,
            disk: store.disk_use().unwrap(),
            slaves_need: Some(3 * 4096),
        };
        let retained = store.retain(&RetentionPolicy::default(), &tick).unwrap();
        assert!(retained.min_offset >= 3 * 4096);
        let first = i64::try_from(retained.min_offset / 4096).unwrap() * 4;
        store.close().unwrap();
        drop(store);
        let path = dir
            .path()
            .join(format!("consumequeue/topic/0/{:020}", 5 * 80));
        let file = File::options().write(true).open(path).unwrap();
        file.set_len(odd).unwrap();
        let store = open_with(dir.path());
        let queue = store.queue("topic", 0).unwrap();
        assert_eq!(queue.min_offset().unwrap(), first, "{odd}");
        assert_eq!(queue.max_offset().unwrap(), 22, "{odd}");
        let read = queue.read(first, 100).unwrap();
        assert_eq!(i64::try_from(read.len()).unwrap(), 22 - first);
        store.promote(2).unwrap();
        assert_eq!(store.append(&message(b"x")).unwrap().queue_offset, 22);
    }
    drop(open(tempfile::tempdir().unwrap().path()));
}

fn open_with(dir: &Path) -> Store {
    Store::open(queued(dir)).unwrap()
}
