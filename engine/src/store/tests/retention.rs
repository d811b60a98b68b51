//! Retention stopped before each of its durable steps, and a file that cannot be removed.

use std::fs;
use std::path::Path;
use std::time::Duration;

use super::crash_points::sweep;
use super::{
    SEGMENT, append, check_invariants, config, copy, epochs, image, in_memory, message, open,
};
use crate::error::Error;
use crate::position::Offset;
use crate::retention::{DiskUse, RetentionPolicy, RetentionTick};
use crate::steps::{Hook, StopBefore};
use crate::store::Store;

fn retain(store: &Store) -> Result<Offset, Error> {
    let tick = RetentionTick {
        now_ms: i64::MAX,
        due: true,
        disk: DiskUse { used: 1, usable: 9 },
        slaves_need: None,
    };
    let retained = store.retain(&RetentionPolicy::default(), &tick)?;
    Ok(retained.min_offset)
}

fn settle(store: &Store) {
    store.flush().unwrap();
    store.set_confirm(store.end_offset());
    let dispatched = store.wait_for_dispatch(store.end_offset() - 1, Duration::from_secs(60));
    assert_eq!(dispatched, store.end_offset());
    store.shared.sync_queues().unwrap();
}

/// Four segments under four epochs, all of it confirmed, durable and in the queues.
fn template(dir: &Path) {
    let store = open(dir);
    for epoch in 1..=4 {
        store.promote(epoch).unwrap();
        append(&store, 4, 1000, b'0' + u8::try_from(epoch).unwrap());
    }
    settle(&store);
    store.close().unwrap();
}

#[test]
fn retention_stopped_anywhere_leaves_a_log_without_a_gap() {
    let dir = in_memory();
    template(dir.path());
    let store = open(dir.path());
    let (old, list) = (image(&store), store.epochs());
    drop(store);
    let steps = sweep(
        dir.path(),
        |store| retain(store).map(drop),
        |path, store, done| {
            let min = store.min_offset();
            assert!(min.is_multiple_of(SEGMENT) && min <= 3 * SEGMENT);
            assert_eq!(done, *store.epochs() != *list, "entries go last");
            let from = usize::try_from(min).unwrap();
            assert!(image(store) == old[from..]);
            let queue = store.queue("topic", 0).unwrap();
            let first = queue.min_offset().unwrap();
            assert_eq!(first, i64::try_from(min / SEGMENT).unwrap() * 4);
            assert_eq!(queue.max_offset().unwrap(), 16);
            check_invariants(path, store);
            // Asked again it ends where it would have.
            let store = open(path);
            settle(&store);
            assert_eq!(retain(&store).unwrap(), 3 * SEGMENT);
            let mut left = (*list).clone();
            left.cut_prefix(3 * SEGMENT);
            assert_eq!(*store.epochs(), left);
            store.promote(9).unwrap();
            append(&store, 1, 1000, b'9');
            check_invariants(path, &store);
        },
    );
    // Three files and the epoch file.
    assert_eq!(steps, 4);
}

/// The store in `path`, settled, and what stops it before a step.
fn stoppable(path: &Path) -> (Store, Hook) {
    let hook = StopBefore::never();
    let mut config = config(path);
    config.stop_before = Some(hook.clone());
    let store = Store::open(config).unwrap();
    settle(&store);
    (store, hook)
}

#[test]
fn c33_a_file_that_could_not_be_removed_is_tried_again_before_any_other() {
    let dir = in_memory();
    template(dir.path());
    let (store, hook) = stoppable(dir.path());
    let held = store.slice(0, 1000).unwrap();
    let bytes = held.to_vec();
    hook.after(1);
    assert!(matches!(retain(&store), Err(Error::Stopped { .. })));
    // The log begins behind what is to go; nobody is shown a file that is half gone.
    assert_eq!(store.min_offset(), 3 * SEGMENT);
    let names = || fs::read_dir(dir.path().join("commitlog")).unwrap().count();
    assert_eq!(names(), 3);
    hook.after(0);
    assert!(matches!(retain(&store), Err(Error::Stopped { .. })));
    assert_eq!(names(), 3);
    hook.after(usize::MAX);
    assert_eq!(retain(&store).unwrap(), 3 * SEGMENT);
    assert_eq!(names(), 1);
    assert_eq!(&held[..], &bytes[..]);
    store.promote(5).unwrap();
    append(&store, 1, 1000, b'x');
    check_invariants(dir.path(), &store);
}

#[test]
fn a_log_that_begins_elsewhere_takes_along_what_retention_left() {
    let dir = in_memory();
    template(dir.path());
    let (store, hook) = stoppable(dir.path());
    hook.after(1);
    assert!(matches!(retain(&store), Err(Error::Stopped { .. })));
    hook.after(usize::MAX);
    store.truncate(3 * SEGMENT, epochs(&[]), "resync").unwrap();
    let mut receiver = store.receive().unwrap();
    receiver.start_at(9 * SEGMENT).unwrap();
    receiver.finish().unwrap();
    drop(store);
    let store = open(dir.path());
    assert_eq!(store.min_offset(), 9 * SEGMENT);
    check_invariants(dir.path(), &store);
}

#[test]
fn an_epoch_whose_entry_a_list_took_away_is_not_served_again() {
    for moved in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path());
        store.promote(1).unwrap();
        append(&store, 1, 1000, b'1');
        store.promote(2).unwrap();
        store.fence();
        let end = store.end_offset();
        // No byte is cut: the master knows nothing of the epoch without any, or begins it elsewhere.
        let list = if moved {
            epochs(&[(1, 0), (2, 0)])
        } else {
            epochs(&[(1, 0)])
        };
        store.truncate(end, list, "test").unwrap();
        assert!(!store.promises().may_serve_again);
        let refused =
            |store: &Store| matches!(store.promote(2), Err(Error::NeedsNewerEpoch { epoch: 2 }));
        assert!(refused(&store));
        store.abandon();
        assert!(refused(&open(dir.path())));
    }
    let dir = in_memory();
    template(dir.path());
    let copied = tempfile::tempdir().unwrap();
    copy(dir.path(), copied.path());
    let store = open(copied.path());
    settle(&store);
    retain(&store).unwrap();
    assert!(store.promises().may_serve_again, "retention takes none");
    store.promote(4).unwrap();
    store.append(&message(b"x")).unwrap();
}
