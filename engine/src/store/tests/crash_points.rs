//! A stop before every durable step of cut, promotion, roll, receive and open. The kill model: what was
//! done stays done.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::{
    SEGMENT, append, check_invariants, config, copy, epochs, image, in_memory, message, open,
};
use crate::checkpoint::CheckpointFile;
use crate::epoch_list::EpochList;
use crate::error::Error;
use crate::position::{EpochEntry, Offset};
use crate::state_file::STATE_FILE_NAME;
use crate::steps::StopBefore;
use crate::store::Store;

/// Steps any of these can take at most.
pub(super) const MOST_STEPS: usize = 40;

/// For every n: a copy of `template` is opened, `act` runs and is stopped before its step n, the folder
/// is opened again and shown to `check`. Ends when `act` runs through; answers how many steps it took.
pub(super) fn sweep(
    template: &Path,
    act: impl Fn(&Store) -> Result<(), Error>,
    check: impl Fn(&Path, &Store, bool),
) -> usize {
    for step in 0..MOST_STEPS {
        let dir = in_memory();
        copy(template, dir.path());
        let hook = StopBefore::never();
        let mut config = config(dir.path());
        config.stop_before = Some(hook.clone());
        let store = Store::open(config).unwrap();
        hook.after(step);
        let done = match act(&store) {
            Ok(()) => true,
            Err(Error::Stopped { step: stopped }) => {
                assert_eq!(stopped, step);
                false
            }
            Err(error) => panic!("step {step}: {error}"),
        };
        store.abandon();
        drop(store);
        let store = open(dir.path());
        check(dir.path(), &store, done);
        drop(store);
        if done {
            return step;
        }
    }
    panic!("more than {MOST_STEPS} steps");
}

/// Four segments: [1:0, 2:5096] over eleven records of 1000 bytes.
fn template(dir: &Path) {
    let store = open(dir);
    store.promote(1).unwrap();
    append(&store, 5, 1000, b'1');
    store.promote(2).unwrap();
    append(&store, 8, 1000, b'2');
    store.abandon();
}

#[test]
fn a01_a_cut_stopped_anywhere_is_a_prefix_of_the_old_log_with_its_own_labels() {
    let dir = in_memory();
    template(dir.path());
    let old = {
        let store = open(dir.path());
        let old = image(&store);
        store.abandon();
        old
    };
    let before = epochs(&[(1, 0), (2, 5096)]);
    let cuts: [(Offset, EpochList); 5] = [
        (2000, epochs(&[(1, 0), (3, 2000)])),
        (SEGMENT, epochs(&[(1, 0)])),
        (5096, epochs(&[(1, 0)])),
        (2 * SEGMENT + 1000, epochs(&[(1, 0), (2, 5096)])),
        (0, epochs(&[])),
    ];
    for (to, after) in cuts {
        for with_view in [false, true] {
            let cut = |store: &Store| {
                let base = to - to % SEGMENT;
                let view = with_view.then(|| store.slice(base, usize::MAX).unwrap());
                let done = store.truncate(to, after.clone(), "test").map(drop);
                drop(view);
                done
            };
            let steps = sweep(dir.path(), cut, |path, store, done| {
                let end = store.end_offset();
                assert!(
                    (to..=old.len() as u64).contains(&end),
                    "end {end}, cut {to}"
                );
                assert!(image(store) == old[..usize::try_from(end).unwrap()]);
                let mut own = before.clone();
                own.drop_starting_after(end);
                let list = store.epochs();
                if done {
                    assert_eq!((end, &*list), (to, &after));
                } else {
                    assert!(
                        *list == own || (*list == after && end == to),
                        "{list:?} at {end}"
                    );
                }
                check_invariants(path, store);
                // The same cut asked for again ends where it would have.
                let store = open(path);
                store.truncate(to, after.clone(), "again").unwrap();
                assert_eq!((store.end_offset(), &*store.epochs()), (to, &after));
                store.promote(9).unwrap();
                append(&store, 1, 1000, b'9');
                check_invariants(path, &store);
            });
            assert!(steps >= 5, "{steps} steps");
        }
    }
}

#[test]
fn a_promotion_stopped_anywhere_can_be_repeated() {
    let dir = in_memory();
    template(dir.path());
    let end = 2 * SEGMENT + 4 * 1000 + 96 + 1000;
    let steps = sweep(
        dir.path(),
        |store| store.promote(5).map(drop),
        |path, store, done| {
            assert_eq!(store.end_offset(), end);
            let promises = store.promises();
            let list = store.epochs();
            if list.find(5).is_some() {
                assert_eq!(
                    promises.served_epoch,
                    Some(5),
                    "the promise comes before the entry"
                );
            }
            assert_eq!(done, list.find(5).is_some());
            check_invariants(path, store);
            let store = open(path);
            assert_eq!(
                store.promote(5).unwrap(),
                EpochEntry {
                    epoch: 5,
                    start: end
                }
            );
            append(&store, 1, 1000, b'5');
            check_invariants(path, &store);
        },
    );
    assert_eq!(steps, 2);
}

#[test]
fn a_roll_stopped_anywhere_changes_nothing() {
    let dir = in_memory();
    let store = open(dir.path());
    store.promote(1).unwrap();
    append(&store, 4, 1000, b'1');
    store.abandon();
    drop(store);
    let act = |store: &Store| {
        store.promote(1)?;
        store.append(&message(&[b'x'; 500])).map(drop)
    };
    // The promotion writes its state first; the list has the entry already.
    let steps = sweep(dir.path(), act, |path, store, done| {
        let end = if done { SEGMENT + 600 } else { 4000 };
        assert!(
            (end - 10..end + 10).contains(&store.end_offset()),
            "{}",
            store.end_offset()
        );
        check_invariants(path, store);
        let store = open(path);
        store.promote(1).unwrap();
        append(&store, 1, 1000, b'x');
        check_invariants(path, &store);
    });
    assert_eq!(steps, 3);
}

#[test]
fn h01_a_segment_that_cannot_be_had_leaves_the_log_readable_and_works_later() {
    let dir = in_memory();
    let hook = StopBefore::never();
    let mut config = config(dir.path());
    config.stop_before = Some(hook.clone());
    let store = Store::open(config).unwrap();
    store.promote(1).unwrap();
    append(&store, 4, 1000, b'1');
    let before = image(&store);
    for step in [0, 1] {
        hook.after(step);
        let refused = store.append(&message(&[b'x'; 500]));
        assert!(matches!(refused, Err(Error::Stopped { .. })));
        assert_eq!(image(&store), before);
    }
    hook.after(usize::MAX);
    let appended = store.append(&message(&[b'x'; 500])).unwrap();
    assert_eq!((appended.offset, appended.queue_offset), (SEGMENT, 4));
    check_invariants(dir.path(), &store);
}

#[test]
fn beginning_elsewhere_stopped_anywhere_leaves_an_empty_log() {
    let dir = in_memory();
    let store = open(dir.path());
    store.promote(1).unwrap();
    append(&store, 5, 1000, b'1');
    store.fence();
    store.truncate(0, epochs(&[]), "resync").unwrap();
    store.abandon();
    drop(store);
    let act = |store: &Store| {
        let mut receiver = store.receive()?;
        receiver.start_at(3 * SEGMENT)?;
        receiver.adopt_epoch(EpochEntry {
            epoch: 7,
            start: 100,
        })?;
        receiver.finish()
    };
    sweep(dir.path(), act, |path, store, done| {
        assert_eq!(store.min_offset(), store.end_offset());
        assert!([0, 3 * SEGMENT].contains(&store.end_offset()));
        assert_eq!(store.epochs().is_empty(), !done);
        store.abandon();
        let store = open(path);
        act(&store).unwrap();
        assert_eq!(store.end_offset(), 3 * SEGMENT);
        check_invariants(path, &store);
    });
}

/// A log with a torn record, whole records behind it in the same and in a later segment, a prepared
/// segment with leftovers, an entry behind the end and half-built files.
fn wreck(dir: &Path) -> Offset {
    template(dir);
    let path = |base: Offset| dir.join("commitlog").join(format!("{base:020}"));
    let file = fs::OpenOptions::new()
        .write(true)
        .open(path(SEGMENT))
        .unwrap();
    file.write_all_at(&[0; 300], 2500).unwrap();
    fs::write(path(4 * SEGMENT), vec![0; 100]).unwrap();
    fs::create_dir_all(dir.join("prepare")).unwrap();
    fs::write(dir.join("prepare/00000000000000020480"), "half").unwrap();
    let late = epochs(&[(1, 0), (2, 5096), (3, 9000)]);
    crate::epoch_file::EpochFile::new(dir.join("epochFileCheckpoint"))
        .replace(&late)
        .unwrap();
    SEGMENT + 2000
}

#[test]
fn e13_e20_an_open_stopped_anywhere_and_repeated_gives_what_it_would_have() {
    for step in 0..MOST_STEPS {
        let dir = in_memory();
        let end = wreck(dir.path());
        let hook = StopBefore::never();
        hook.after(step);
        let mut config = config(dir.path());
        config.stop_before = Some(hook);
        let opened = Store::open(config);
        let done = opened.is_ok();
        if let Err(error) = &opened {
            assert!(matches!(error, Error::Stopped { .. }), "{error}");
        }
        drop(opened);
        let store = open(dir.path());
        assert_eq!(store.end_offset(), end, "stopped before {step}");
        assert_eq!(*store.epochs(), epochs(&[(1, 0), (2, 5096)]));
        assert!(!dir.path().join("prepare/00000000000000020480").exists());
        check_invariants(dir.path(), &store);
        if done {
            assert!(step > 5);
            return;
        }
    }
    panic!("an open takes more than {MOST_STEPS} steps");
}

#[test]
fn k20_a_cut_stopped_anywhere_leaves_no_mark_of_javas_above_what_is_there() {
    let dir = in_memory();
    let store = open(dir.path());
    store.promote(1).unwrap();
    append(&store, 9, 1000, b'1');
    store.set_confirm(store.end_offset());
    store.close().unwrap();
    drop(store);
    for keep_queues in [true, false] {
        for step in 0..MOST_STEPS {
            let copied = in_memory();
            copy(dir.path(), copied.path());
            let hook = StopBefore::never();
            let mut config = config(copied.path());
            config.consume_queues = keep_queues;
            config.stop_before = Some(hook.clone());
            let store = Store::open(config).unwrap();
            let read = || {
                let read = CheckpointFile::read(&copied.path().join("checkpoint"));
                read.unwrap().unwrap()
            };
            let before = read();
            assert_eq!(before.logics_physical_offset.cast_unsigned(), 2 * SEGMENT);
            hook.after(step);
            let done = store.truncate(2000, epochs(&[(1, 0)]), "test").is_ok();
            store.abandon();
            drop(store);
            let after = read();
            let dir = copied.path();
            let file = fs::read(dir.join("commitlog/00000000000000000000")).unwrap();
            let whole = file[2000..2008] != [0; 8]
                && dir.join("commitlog/00000000000000008192").exists()
                && dir.join("consumequeue/topic/0").exists();
            if after != before {
                let most = if keep_queues { 1000 } else { 0 };
                assert_eq!(after.logics_physical_offset, most, "step {step}");
                assert!(after.confirm_offset <= 2000, "step {step}");
            } else {
                assert!(
                    whole,
                    "step {step}: the marks stand, what they vouch for went"
                );
                let state = crate::state_file::StateFile::read(&dir.join(STATE_FILE_NAME));
                let mark = state.unwrap().unwrap().queues.unwrap();
                assert!(mark.through > 2 * SEGMENT, "step {step}");
            }
            if done {
                break;
            }
        }
    }
}
