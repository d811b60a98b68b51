//! Several segments kept ready behind the log, and what becomes of them.

use std::fs;
use std::path::Path;

use super::{SEGMENT, append, check_invariants, config, epochs, image, in_memory, message};
use crate::durable::watch::{Fate, Watching};
use crate::error::Error;
use crate::inspect;
use crate::store::Store;

/// As many as are kept ready of segments this small.
const ALL: u64 = 2;

/// A master with `records` records of 1000 bytes, four in a segment, and all segments ready behind them.
/// The thread is off: the test makes them, so that it knows when.
fn ready(dir: &Path, records: usize) -> Store {
    let store = super::open(dir);
    store.promote(1).unwrap();
    append(&store, records, 1000, b'1');
    store.shared.log.make_ready().unwrap();
    store
}

/// The bases of what is there, in segments.
fn files(dir: &Path) -> Vec<u64> {
    let entries = fs::read_dir(dir.join("commitlog")).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let bases = names.map(|name| name.parse::<u64>().unwrap() / SEGMENT);
    let mut bases: Vec<_> = bases.collect();
    bases.sort_unstable();
    bases
}

fn numbers(to: u64) -> Vec<u64> {
    (0..to).collect()
}

#[test]
fn an_append_that_finds_a_segment_ready_changes_no_file_to_roll() {
    let dir = in_memory();
    let store = ready(dir.path(), 1);
    assert_eq!(files(dir.path()), numbers(1 + ALL));
    let watching = Watching::begin(dir.path(), Fate::Die(0));
    let rolls = usize::try_from(ALL).unwrap();
    append(&store, 3 + 4 * rolls, 1000, b'2');
    assert_eq!(watching.calls(), 0, "calls that change the folder");
    assert_eq!(store.segments().len(), 1 + rolls);
    // None is left: the appender has to make the next one, which is refused here.
    assert!(store.append(&message(&[b'x'; 900])).is_err());
    assert!(watching.calls() > 0);
    drop(watching);
    append(&store, 1, 1000, b'3');
    store.shared.log.make_ready().unwrap();
    assert_eq!(files(dir.path()), numbers(2 + 2 * ALL));
    check_invariants(dir.path(), &store);
}

#[test]
fn a_clean_stop_leaves_two_of_them_which_the_next_open_takes_over() {
    let dir = in_memory();
    let store = ready(dir.path(), 5);
    assert_eq!(files(dir.path()), numbers(2 + ALL));
    let bytes = image(&store);
    store.close().unwrap();
    drop(store);
    assert_eq!(files(dir.path()), numbers(4));
    let found = inspect::scan(dir.path()).unwrap();
    assert_eq!((found.problems, found.prepared.len()), (vec![], 2));
    let store = super::open(dir.path());
    assert!(store.opened().clean);
    assert_eq!(store.opened().removed, [] as [std::path::PathBuf; 0]);
    assert_eq!(image(&store), bytes);
    store.promote(2).unwrap();
    let watching = Watching::begin(dir.path(), Fate::Die(0));
    append(&store, 3 + 4 + 4, 1000, b'2');
    drop(watching);
    assert_eq!(store.segments().len(), 4);
    check_invariants(dir.path(), &store);
}

#[test]
fn after_a_kill_all_of_them_go_because_nothing_proves_their_later_pages() {
    let dir = in_memory();
    let store = ready(dir.path(), 5);
    let bytes = image(&store);
    store.abandon();
    drop(store);
    let found = inspect::scan(dir.path()).unwrap();
    assert_eq!((found.problems, found.prepared.len() as u64), (vec![], ALL));
    let store = super::open(dir.path());
    assert_eq!(store.opened().removed.len() as u64, ALL);
    assert_eq!(files(dir.path()), numbers(2));
    assert_eq!(image(&store), bytes);
    check_invariants(dir.path(), &store);
}

#[test]
fn c16_a_cut_keeps_them_where_the_log_goes_on_and_else_takes_them_first() {
    // To the middle of the last segment, to its start, below it, and to nothing.
    for (to, left) in [
        (9192, 3 + ALL),
        (2 * SEGMENT, 2),
        (5096, 2),
        (SEGMENT, 1),
        (0, 1),
    ] {
        let dir = in_memory();
        let store = ready(dir.path(), 10);
        assert_eq!(store.segments().len(), 3);
        let kept = image(&store)[..usize::try_from(to).unwrap()].to_vec();
        store.fence();
        let list = if to == 0 { vec![] } else { vec![(1, 0)] };
        let cut = store.truncate(to, epochs(&list), "test").unwrap();
        assert_eq!(files(dir.path()), numbers(left), "cut at {to}");
        let removed = cut.removed_segments as u64;
        assert_eq!(removed, if left > ALL { 0 } else { 3 - left }, "at {to}");
        assert_eq!(image(&store), kept);
        store.shared.log.make_ready().unwrap();
        let log = store.segments().len() as u64;
        assert_eq!(files(dir.path()), numbers(log + ALL));
        store.promote(2).unwrap();
        append(&store, 4 * 10, 1000, b'2');
        check_invariants(dir.path(), &store);
    }
}

#[test]
fn a_log_that_begins_elsewhere_keeps_none_for_the_old_place() {
    let dir = in_memory();
    let store = super::open(dir.path());
    store.shared.log.make_ready().unwrap();
    assert_eq!(files(dir.path()), numbers(ALL));
    let mut receiver = store.receive().unwrap();
    receiver.start_at(20 * SEGMENT).unwrap();
    receiver.finish().unwrap();
    assert_eq!(files(dir.path()), [20]);
    store.shared.log.make_ready().unwrap();
    assert_eq!(files(dir.path()), (20..21 + ALL).collect::<Vec<_>>());
    check_invariants(dir.path(), &store);
}

#[test]
fn fewer_are_made_when_fewer_bytes_are_asked_for_and_none_is_lost_over_it() {
    let dir = in_memory();
    ready(dir.path(), 1).close().unwrap();
    let mut config = config(dir.path());
    config.ready_ahead_bytes = 1;
    let store = Store::open(config).unwrap();
    store.promote(2).unwrap();
    // Both that were left are used, and one is made anew.
    append(&store, 3 + 4 + 1, 1000, b'2');
    assert_eq!(files(dir.path()), numbers(3));
    store.shared.log.make_ready().unwrap();
    store.shared.log.make_ready().unwrap();
    assert_eq!(files(dir.path()), numbers(4));
    check_invariants(dir.path(), &store);
}

/// The thread makes the first segments of a new log before there is an epoch: a kill then leaves them alone.
#[test]
fn a_new_store_that_was_killed_before_its_first_epoch_opens_again() {
    let dir = in_memory();
    // What was ready is the log's first segment then.
    for count in [ALL, 1 + ALL] {
        let store = super::open(dir.path());
        store.shared.log.make_ready().unwrap();
        assert_eq!(files(dir.path()), numbers(count));
        store.abandon();
    }
    let store = super::open(dir.path());
    store.promote(1).unwrap();
    append(&store, 5, 1000, b'1');
    check_invariants(dir.path(), &store);
    store.abandon();
    drop(store);
    // With a record anywhere, the list that is missing is one that was lost: behind zeros too.
    fs::remove_file(dir.path().join("epochFileCheckpoint")).unwrap();
    let refused = || matches!(Store::open(config(dir.path())), Err(Error::Epochs { .. }));
    assert!(refused());
    let first = dir.path().join("commitlog").join(format!("{:020}", 0));
    fs::write(first, vec![0; usize::try_from(SEGMENT).unwrap()]).unwrap();
    fs::remove_file(dir.path().join("epochlog.state")).ok();
    assert!(refused());
}

#[test]
fn a_new_store_that_was_stopped_before_its_first_record_is_clean() {
    for promoted in [false, true] {
        let dir = in_memory();
        let store = super::open(dir.path());
        store.shared.log.make_ready().unwrap();
        if promoted {
            store.promote(1).unwrap();
        }
        store.close().unwrap();
        // Once more: what was ready is the log's first segment then.
        for _ in 0..2 {
            let store = super::open(dir.path());
            assert!(store.opened().clean, "promoted: {promoted}");
            store.shared.log.make_ready().unwrap();
            store.close().unwrap();
        }
        assert_eq!(files(dir.path()), numbers(1 + ALL));
    }
}
