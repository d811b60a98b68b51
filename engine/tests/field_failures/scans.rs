//! How much an open looks at, and what is one file's one owner.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::thread;

use epochlog_engine::{Store, inspect};

use super::common::{
    SEGMENT, append, body_for, config, epochs, feed, image, master, message, open, starts,
};

#[test]
fn c22_an_open_that_is_repeated_does_not_begin_again() {
    let dir = tempfile::tempdir().unwrap();
    let store = master(dir.path(), 1);
    append(&store, 40, 1000);
    store.abandon();
    drop(store);
    // Nothing was marked as durable yet: everything is scanned, once.
    let store = open(dir.path());
    let all = store.opened().scanned_bytes;
    assert!(all >= 40_000, "{all}");
    let confirm = store.confirm_offset();
    store.abandon();
    drop(store);
    for _ in 0..3 {
        let store = open(dir.path());
        let again = store.opened().scanned_bytes;
        assert!(again <= 2000, "{again}");
        assert_eq!(store.confirm_offset(), confirm, "progress confirms nothing");
        store.abandon();
    }
}

#[test]
fn c23_a_slave_that_was_killed_scans_from_its_last_mark_on() {
    let from = tempfile::tempdir().unwrap();
    let leader = master(from.path(), 1);
    append(&leader, 16, 1000);
    let bytes = image(&leader);
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let mut receiver = store.receive().unwrap();
    receiver.adopt_epochs(&epochs(&[(1, 0)])).unwrap();
    let most = bytes.len() - 2500;
    feed(&mut receiver, &bytes[..most], 900);
    let published = receiver.publish().unwrap();
    assert_eq!(store.flush().unwrap(), published);
    // The mark in the state file follows the sync within a second.
    thread::sleep(std::time::Duration::from_millis(1100));
    feed(&mut receiver, &bytes[most..], 900);
    store.flush().unwrap();
    drop(receiver);
    store.abandon();
    drop(store);
    let store = open(dir.path());
    assert!(!store.opened().clean);
    let scanned = store.opened().scanned_bytes;
    assert!(scanned <= 4000, "{scanned} of {}", bytes.len());
    assert_eq!(image(&store), bytes);
}

#[test]
fn c24_appenders_that_meet_at_the_end_of_a_segment_make_one_file_of_it() {
    for prefault in [0, 2 * SEGMENT] {
        let dir = tempfile::tempdir().unwrap();
        let mut config = config(dir.path());
        config.prefault_ahead_bytes = prefault;
        let store = Store::open(config).unwrap();
        store.promote(1).unwrap();
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let body = body_for(1500);
                    for _ in 0..40 {
                        store.append(&message(&body)).unwrap();
                    }
                });
            }
        });
        let segments = store.segments();
        assert_eq!(segments.len(), 80, "two records in each");
        let inodes: BTreeSet<_> = segments
            .iter()
            .map(|it| fs::metadata(&it.path).unwrap().ino())
            .collect();
        assert_eq!(inodes.len(), segments.len());
        assert_eq!(starts(&store).len(), 160);
        store.close().unwrap();
        let found = inspect::scan(dir.path()).unwrap();
        assert_eq!((found.messages, found.problems), (160, Vec::new()));
    }
}
