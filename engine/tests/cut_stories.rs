//! Truncation: what is cut stays cut, readers keep what they hold, nothing is left that reads on.
#![allow(clippy::unwrap_used, reason = "a story ends where it fails")]

mod common;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use common::{SEGMENT, append, config, epochs, image, master, open, segment_path, starts};
use epochlog_engine::{Error, Store, inspect};

/// A slave with records of 1000 bytes: four in the first segment, `count` in all, as epoch 1.
fn slave(dir: &Path, count: usize) -> Store {
    let store = master(dir, 1);
    append(&store, count, 1000);
    store.fence();
    store
}

fn reopen(store: Store, dir: &Path, clean: bool) -> Store {
    if clean {
        store.close().unwrap();
    } else {
        store.abandon();
    }
    drop(store);
    open(dir)
}

#[test]
fn a01_a_cut_tail_does_not_come_back() {
    // In the middle, at a segment's start, at its end, at the log's end, at its start.
    for to in [2000, SEGMENT, 4000, SEGMENT + 3000, 0] {
        for clean in [false, true] {
            let dir = tempfile::tempdir().unwrap();
            let store = slave(dir.path(), 7);
            let list = if to == 0 {
                epochs(&[])
            } else {
                epochs(&[(1, 0)])
            };
            let done = store.truncate(to, list.clone(), "test").unwrap();
            assert_eq!(done.cut_bytes, SEGMENT + 3000 - to);
            assert_eq!(store.end_offset(), to);
            let kept = image(&store);
            let store = reopen(store, dir.path(), clean);
            assert_eq!(store.end_offset(), to, "clean: {clean}");
            assert_eq!(image(&store), kept);
            assert_eq!(*store.epochs(), list);
            assert_eq!(store.opened().clean, clean);
            let found = inspect::scan(dir.path()).unwrap();
            assert_eq!((&found.problems[..], found.end_offset), (&[][..], to));
        }
    }
}

#[test]
fn a_cut_four_bytes_before_the_end_of_a_segment_is_no_record_boundary() {
    let dir = tempfile::tempdir().unwrap();
    let store = slave(dir.path(), 7);
    for to in [SEGMENT - 4, 1, 3999, SEGMENT + 1] {
        let refused = store.truncate(to, epochs(&[(1, 0)]), "test");
        assert!(matches!(refused, Err(Error::NotARecordBoundary { offset }) if offset == to));
    }
    assert_eq!(store.end_offset(), SEGMENT + 3000);
}

#[test]
fn k2_a_shorter_overwrite_does_not_bring_the_old_records_behind_it_back() {
    let dir = tempfile::tempdir().unwrap();
    let store = slave(dir.path(), 4);
    store.truncate(1000, epochs(&[(1, 0)]), "test").unwrap();
    store.promote(2).unwrap();
    // Equal to the old record in length: the next old one would begin right behind it.
    append(&store, 1, 1000);
    let store = reopen(store, dir.path(), false);
    assert_eq!(starts(&store), [0, 1000]);
    assert_eq!(store.end_offset(), 2000);
    assert_eq!(*store.epochs(), epochs(&[(1, 0), (2, 1000)]));
}

#[test]
fn e19_appends_go_on_at_the_cut_without_a_gap() {
    let dir = tempfile::tempdir().unwrap();
    let store = slave(dir.path(), 7);
    for to in [SEGMENT + 1000, SEGMENT, 3000, 1000] {
        store.truncate(to, epochs(&[(1, 0)]), "test").unwrap();
        store
            .promote(store.promises().max_epoch.unwrap() + 1)
            .unwrap();
        assert_eq!(append(&store, 1, 500)[0], to);
        store.fence();
        store.truncate(to, epochs(&[(1, 0)]), "test").unwrap();
    }
    assert_eq!(starts(&store), [0]);
    assert_eq!(store.record_start_before(1000).unwrap(), Some(0));
}

#[test]
fn queue_offsets_go_back_with_the_records() {
    let dir = tempfile::tempdir().unwrap();
    let store = slave(dir.path(), 7);
    store.truncate(2000, epochs(&[(1, 0)]), "test").unwrap();
    store.promote(2).unwrap();
    let appended = store.append(&common::message(b"next")).unwrap();
    assert_eq!(appended.queue_offset, 2);
}

#[test]
fn a_view_keeps_what_it_holds_and_the_file_is_replaced_only_for_it() {
    let dir = tempfile::tempdir().unwrap();
    let store = slave(dir.path(), 7);
    let path = segment_path(dir.path(), 0);
    let inode = || fs::metadata(&path).unwrap().ino();
    let before = inode();
    let short = store.slice(0, 2000).unwrap();
    let single = store.record(2000).unwrap();
    store
        .truncate(3000, epochs(&[(1, 0)]), "edit in place")
        .unwrap();
    assert_eq!(inode(), before, "no view reached past the cut");
    drop(single);
    let long = store.record(2000).unwrap();
    let held = long.bytes().to_vec();
    store.truncate(2000, epochs(&[(1, 0)]), "replace").unwrap();
    assert_ne!(inode(), before, "a view reached past the cut");
    store.promote(2).unwrap();
    append(&store, 2, 900);
    assert_eq!(*long.bytes().to_vec(), held);
    assert_eq!(long.record().physical_offset(), 2000);
    assert_eq!(short.len(), 2000);
    assert_eq!(starts(&store), [0, 1000, 2000, 2900]);
    let store = reopen(store, dir.path(), false);
    assert_eq!(starts(&store), [0, 1000, 2000, 2900]);
}

#[test]
fn a13_all_marks_are_at_or_below_the_cut() {
    let dir = tempfile::tempdir().unwrap();
    let store = slave(dir.path(), 5);
    store.flush().unwrap();
    store.set_confirm(SEGMENT + 1000);
    let done = store.truncate(2000, epochs(&[(1, 0)]), "test").unwrap();
    assert!(done.below_confirm);
    assert_eq!(store.confirm_offset(), 2000);
    assert_eq!(store.flushed_offset(), 2000);
    store.set_confirm(9000);
    assert_eq!(store.confirm_offset(), 2000, "never past the end");
    store.abandon();
    let found = inspect::scan(dir.path()).unwrap();
    assert_eq!(found.checkpoint.unwrap().confirm_offset, 2000);
    assert_eq!(found.state.unwrap().flushed, 2000);
}

#[test]
fn the_cut_bytes_are_kept_with_the_reason_unless_turned_off() {
    for (save, kept) in [(None, false), (Some(3000), false), (Some(5000), true)] {
        let dir = tempfile::tempdir().unwrap();
        let mut config = config(dir.path());
        config.save_truncated_bytes = save;
        let store = Store::open(config).unwrap();
        store.promote(1).unwrap();
        append(&store, 6, 1000);
        store.fence();
        let old = image(&store);
        let done = store
            .truncate(2000, epochs(&[(1, 0)]), "the master says so")
            .unwrap();
        assert_eq!(done.removed_segments, 1);
        assert_eq!(done.saved_to.is_some(), kept, "{save:?}");
        let Some(saved) = done.saved_to else { continue };
        let reason = fs::read_to_string(saved.join("reason.txt")).unwrap();
        assert!(
            reason.contains("the master says so") && reason.contains("2000"),
            "{reason}"
        );
        let tail = fs::read(saved.join("00000000000000000000.from-2000")).unwrap();
        assert_eq!(tail, old[2000..4096]);
        let later = fs::read(saved.join("00000000000000004096")).unwrap();
        assert_eq!(later[..2000], old[4096..]);
    }
}

#[test]
fn a_cut_below_confirm_is_kept_whatever_the_cap() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = config(dir.path());
    config.save_truncated_bytes = Some(10);
    let store = Store::open(config).unwrap();
    store.promote(1).unwrap();
    append(&store, 3, 1000);
    store.set_confirm(3000);
    store.fence();
    let done = store.truncate(2000, epochs(&[(1, 0)]), "test").unwrap();
    assert!(done.below_confirm && done.saved_to.is_some());
}

#[test]
fn a_cut_is_refused_before_anything_is_done() {
    let dir = tempfile::tempdir().unwrap();
    let store = master(dir.path(), 1);
    append(&store, 2, 1000);
    let list = || epochs(&[(1, 0)]);
    assert!(matches!(
        store.truncate(0, list(), "x"),
        Err(Error::IsMaster { .. })
    ));
    store.fence();
    assert!(matches!(
        store.truncate(2001, list(), "x"),
        Err(Error::OutOfRange { .. })
    ));
    let past = epochs(&[(1, 0), (2, 1500)]);
    assert!(matches!(
        store.truncate(1000, past, "x"),
        Err(Error::EpochEntry { epoch: 2, .. })
    ));
    let late = epochs(&[(1, 500)]);
    assert!(matches!(
        store.truncate(1000, late, "x"),
        Err(Error::EpochEntry { .. })
    ));
    assert!(matches!(
        store.truncate(1000, epochs(&[]), "x"),
        Err(Error::EpochEntry { .. })
    ));
    let receiver = store.receive().unwrap();
    assert!(matches!(
        store.truncate(1000, list(), "x"),
        Err(Error::ReceiverActive)
    ));
    receiver.finish().unwrap();
    assert_eq!(store.end_offset(), 2000);
    // With nothing to cut the list alone changes.
    let adopted = epochs(&[(1, 0), (3, 2000), (4, 2000)]);
    store.truncate(2000, adopted.clone(), "x").unwrap();
    let store = reopen(store, dir.path(), false);
    assert_eq!((store.end_offset(), &*store.epochs()), (2000, &adopted));
}

#[test]
fn d19_bytes_appended_at_old_offsets_after_a_cut_are_flushed_again() {
    let dir = tempfile::tempdir().unwrap();
    let store = slave(dir.path(), 3);
    assert_eq!(store.flush().unwrap(), 3000);
    store.truncate(1000, epochs(&[(1, 0)]), "test").unwrap();
    store.promote(2).unwrap();
    append(&store, 1, 500);
    assert_eq!(store.flushed_offset(), 1000);
    assert_eq!(store.flush().unwrap(), 1500);
}

#[test]
fn e17_two_cuts_in_a_row_both_hold() {
    let dir = tempfile::tempdir().unwrap();
    let store = slave(dir.path(), 7);
    store
        .truncate(SEGMENT + 1000, epochs(&[(1, 0)]), "first")
        .unwrap();
    store.truncate(3000, epochs(&[(1, 0)]), "second").unwrap();
    let store = reopen(store, dir.path(), false);
    assert_eq!(starts(&store), [0, 1000, 2000]);
}

/// C31: what is derived is moved away, not deleted, and Java makes it anew.
#[test]
fn k20_what_java_derived_from_the_log_is_out_of_its_sight_before_it_is_wrong() {
    let dir = tempfile::tempdir().unwrap();
    let store = slave(dir.path(), 3);
    store.close().unwrap();
    for name in ["index", "consumequeue/topic/0", "batchconsumequeue/b/0"] {
        fs::create_dir_all(dir.path().join(name)).unwrap();
    }
    let store = open(dir.path());
    assert!(
        dir.path().join("index").exists(),
        "opening alone changes nothing for Java"
    );
    store.promote(2).unwrap();
    assert!(!dir.path().join("index").exists());
    assert!(
        dir.path().join("consumequeue").exists(),
        "right up to where it goes"
    );
    store.fence();
    store.truncate(1000, epochs(&[(1, 0)]), "test").unwrap();
    assert!(
        dir.path().join("consumequeue/topic/0").exists(),
        "cut with the log"
    );
    assert!(!dir.path().join("batchconsumequeue").exists());
    assert!(dir.path().join("aside/batchconsumequeue/b/0").exists());
}
