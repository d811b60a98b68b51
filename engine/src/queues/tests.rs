//! What needs a look inside: a position that is wrong, a dispatcher that fails, units that lie.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::error::Error;
use crate::position::Offset;
use crate::record::Message;
use crate::steps::StopBefore;
use crate::store::{Store, StoreConfig};

const LONG: Duration = Duration::from_secs(60);

fn config(dir: &Path) -> StoreConfig {
    let mut config = StoreConfig::new(dir);
    config.segment_size = 4096;
    config.prefault_ahead_bytes = 0;
    config.flush_interval_ms = 3_600_000;
    config.queue_flush_interval_ms = 3_600_000;
    config.queue_file_size = 200;
    config
}

fn open(dir: &Path) -> Store {
    Store::open(config(dir)).unwrap()
}

/// Appends `count` messages to each of three queues; answers the end.
fn append(store: &Store, count: usize) -> Offset {
    let next = store.end_offset();
    let records = store.records(store.min_offset()..next).count();
    append_from(store, records / 3, count)
}

fn confirm(store: &Store, to: Offset) {
    store.set_confirm(to);
    while store.dispatched_offset() < store.confirm_offset() {
        let before = store.dispatched_offset();
        let after = store.wait_for_dispatch(before, LONG);
        assert!(after > before, "the dispatcher has stopped at {before}");
    }
}

/// Every message of every queue up to the confirm offset, once and in order.
fn check(store: &Store, count: i64) {
    for (topic, queue_id) in [("a", 0), ("a", 1), ("b", 0)] {
        let queue = store.queue(topic, queue_id).unwrap();
        assert_eq!(queue.max_offset().unwrap(), count, "{topic}/{queue_id}");
        let entries = queue.read(0, 1000).unwrap();
        assert_eq!(entries.len() as i64, count, "{topic}/{queue_id}");
        for (at, entry) in (0..).zip(entries) {
            let record = entry.record.record();
            assert_eq!((record.queue_offset(), entry.queue_offset), (at, at));
            assert_eq!(record.body(), format!("{topic}/{queue_id} {at}").as_bytes());
        }
    }
}

/// Every file under `consumequeue/`, but for those without a message.
fn image(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut dirs = vec![dir.join("consumequeue")];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).unwrap() {
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

#[test]
fn c25_a_position_outside_the_log_is_taken_back_into_it_once() {
    let dir = tempfile::tempdir().unwrap();
    // A log that begins at 4096: a slave that joined late.
    let master = open(&dir.path().join("master"));
    master.promote(1).unwrap();
    let end = append(&master, 30);
    assert!(end > 3 * 4096 / 2);
    let path = dir.path().join("slave");
    let store = open(&path);
    let mut receiver = store.receive().unwrap();
    receiver.start_at(4096).unwrap();
    let entry = master.epochs().last().unwrap();
    receiver.adopt_epoch(entry).unwrap();
    while receiver.received_end() < end {
        let bytes = master.slice(receiver.received_end(), usize::MAX).unwrap();
        let mut window = receiver.window(bytes.len()).unwrap();
        let n = window.len();
        window.as_mut_slice().copy_from_slice(&bytes[..n]);
        receiver.filled(window, n);
        receiver.publish().unwrap();
    }
    assert_eq!(receiver.published_end(), end);
    let queues = store.shared.queues.as_ref().unwrap();
    for (wrong, right) in [(0, 4096), (500, 4096), (end + 1, end), (u64::MAX, end)] {
        let before = store.queue_counts().clamped;
        let mut dispatch = queues.lock();
        queues.set_at(&mut dispatch, wrong);
        queues
            .run(&mut dispatch, &store.shared.log, 0, 1 << 20)
            .unwrap();
        assert_eq!(queues.dispatched(), right, "{wrong}");
        queues.set_at(&mut dispatch, right);
        queues
            .run(&mut dispatch, &store.shared.log, 0, 1 << 20)
            .unwrap();
        drop(dispatch);
        assert_eq!(store.queue_counts().clamped, before + 1, "{wrong}");
    }
    queues.set_at(&mut queues.lock(), 0);
    confirm(&store, end);
    let queue = store.queue("a", 0).unwrap();
    let (min, max) = (queue.min_offset().unwrap(), queue.max_offset().unwrap());
    assert_eq!(max, 30);
    assert!(min > 0, "{min}");
    let read = queue.read(min, 100).unwrap();
    assert_eq!(read.len() as i64, max - min);
    drop(receiver);
}

#[test]
fn c26_a_dispatcher_that_panics_goes_on_at_the_same_record() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = config(dir.path());
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    config.before_dispatch = Some(Arc::new(move |_| {
        assert!(counted.fetch_add(1, Ordering::SeqCst) != 1, "injected");
    }));
    let store = Store::open(config).unwrap();
    store.promote(1).unwrap();
    let half = append(&store, 5);
    confirm(&store, half);
    let end = append(&store, 5);
    confirm(&store, end);
    check(&store, 10);
    assert_eq!(store.queue_counts().restarts, 1);
    assert!(calls.load(Ordering::SeqCst) >= 3);
    store.close().unwrap();
}

#[test]
fn c26_a_dispatcher_that_goes_on_panicking_ends_the_store() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = config(dir.path());
    config.before_dispatch = Some(Arc::new(|at| assert_eq!(at, 0, "injected")));
    let store = Store::open(config).unwrap();
    store.promote(1).unwrap();
    let end = append(&store, 2);
    confirm(&store, end);
    let more = append(&store, 2);
    store.set_confirm(more);
    let host = ([127, 0, 0, 1], 10911).into();
    let refused = (0..10_000).find_map(|_| {
        std::thread::sleep(Duration::from_millis(1));
        store.append(&Message::new("a", b"x", host, 0)).err()
    });
    assert!(matches!(refused, Some(Error::Failed { .. })), "{refused:?}");
    drop(store);
    let store = open(dir.path());
    confirm(&store, more);
    check(&store, 4);
}

#[test]
fn units_that_are_missing_or_lie_are_made_again_from_the_log() {
    // What is done to the folder of a store that is not open.
    type Harm = fn(&Path);
    let harms: [(&str, Harm); 7] = [
        ("all queues gone", |dir| {
            fs::remove_dir_all(dir.join("consumequeue")).unwrap();
        }),
        ("one queue gone", |dir| {
            fs::remove_dir_all(dir.join("consumequeue/a/1")).unwrap();
        }),
        ("first file gone", |dir| {
            fs::remove_file(dir.join("consumequeue/a/1/00000000000000000000")).unwrap();
        }),
        ("file in the middle gone", |dir| {
            fs::remove_file(dir.join("consumequeue/a/1/00000000000000000200")).unwrap();
        }),
        ("last file gone", |dir| {
            fs::remove_file(dir.join("consumequeue/a/1/00000000000000000400")).unwrap();
        }),
        ("file cut short", |dir| {
            fs::write(dir.join("consumequeue/b/0/00000000000000000200"), [0; 60]).unwrap();
        }),
        ("last units zero", |dir| {
            let path = dir.join("consumequeue/b/0/00000000000000000400");
            let file = fs::File::options().write(true).open(path).unwrap();
            file.write_all_at(&[0; 60], 40).unwrap();
        }),
    ];
    let dir = tempfile::tempdir().unwrap();
    for killed in [false, true] {
        for (number, (name, harm)) in harms.iter().enumerate() {
            let path = dir.path().join(format!("{killed}-{number}"));
            let store = open(&path);
            store.promote(1).unwrap();
            let end = append(&store, 25);
            confirm(&store, end);
            store.sync_queues().unwrap();
            if killed {
                store.abandon();
            } else {
                store.close().unwrap();
            }
            drop(store);
            let before = image(&path);
            harm(&path);
            let store = open(&path);
            assert!(store.opened().queues_verified, "{name}");
            assert_eq!(store.dispatched_offset(), end, "{name}");
            check(&store, 25);
            store.promote(2).unwrap();
            store.close().unwrap();
            drop(store);
            assert_eq!(image(&path), before, "{name}");
            let store = open(&path);
            assert!(!store.opened().queues_verified, "{name}");
            check(&store, 25);
        }
    }
}

#[test]
fn a_message_whose_forerunners_are_missing_has_the_queue_made_again() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    store.promote(1).unwrap();
    let end = append(&store, 15);
    confirm(&store, end);
    let queues = store.shared.queues.as_ref().unwrap();
    {
        // As if the disk had lost them.
        let queue = queues.find("a", 1).unwrap();
        let mut state = queue.state.write();
        state.retract_to(7).unwrap();
        state.follow().unwrap();
    }
    let end = append(&store, 5);
    confirm(&store, end);
    check(&store, 20);
    assert_eq!(store.queue_counts().gaps, 0);
    store.close().unwrap();
}

#[test]
fn many_queues_are_synced_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    store.promote(1).unwrap();
    let host = ([127, 0, 0, 1], 10911).into();
    for queue_id in 0..100 {
        let mut message = Message::new("many", b"x", host, 0);
        message.queue_id = queue_id;
        store.append(&message).unwrap();
    }
    let end = store.end_offset();
    confirm(&store, end);
    store.sync_queues().unwrap();
    store.abandon();
    drop(store);
    let store = open(dir.path());
    assert!(!store.opened().queues_verified);
    assert_eq!(store.dispatched_offset(), end);
    assert_eq!(store.queues().len(), 100);
    for queue in store.queues() {
        assert_eq!(queue.read(0, 9).unwrap().len(), 1, "{queue:?}");
    }
}

#[test]
fn queues_lost_after_a_cut_are_missed() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    store.promote(1).unwrap();
    let half = append(&store, 10);
    let end = append(&store, 10);
    confirm(&store, end);
    store.sync_queues().unwrap();
    store.demote(2).unwrap();
    let list = (*store.epochs()).clone();
    store.truncate(half, list, "test").unwrap();
    store.abandon();
    drop(store);
    fs::remove_dir_all(dir.path().join("consumequeue/b")).unwrap();
    let store = open(dir.path());
    assert!(store.opened().queues_verified);
    check(&store, 10);
}

#[test]
fn a_full_disk_holds_the_dispatcher_up_and_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    store.promote(1).unwrap();
    // A file stands where the first queue's folder has to be.
    fs::create_dir_all(dir.path().join("consumequeue")).unwrap();
    fs::write(dir.path().join("consumequeue/a"), "").unwrap();
    // More than wait in memory.
    let end = append(&store, 150);
    store.set_confirm(end);
    for _ in 0..10_000 {
        if store.queue_counts().restarts > 0 {
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(store.queue_counts().restarts > 0);
    append(&store, 1);
    fs::remove_file(dir.path().join("consumequeue/a")).unwrap();
    confirm(&store, end);
    check(&store, 150);
}

#[test]
fn c05_a_stop_that_cannot_fill_the_queues_is_not_clean() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    store.promote(1).unwrap();
    fs::create_dir_all(dir.path().join("consumequeue")).unwrap();
    fs::write(dir.path().join("consumequeue/a"), "").unwrap();
    let end = append(&store, 3);
    store.set_confirm(end);
    assert!(matches!(store.close(), Err(Error::Io { .. })));
    drop(store);
    fs::remove_file(dir.path().join("consumequeue/a")).unwrap();
    let store = open(dir.path());
    assert!(!store.opened().clean);
    store.promote(2).unwrap();
    confirm(&store, end);
    check(&store, 3);
    // A stop in time has them all, however far behind the dispatcher is.
    let end = append(&store, 3);
    store.set_confirm(end);
    store.close().unwrap();
    drop(store);
    let store = open(dir.path());
    assert!(store.opened().clean);
    assert!(!store.opened().queues_verified);
}

#[test]
fn a_cut_stopped_before_any_step_leaves_no_unit_behind_the_end() {
    let dir = tempfile::tempdir().unwrap();
    for step in 0.. {
        let path = dir.path().join(step.to_string());
        let hook = StopBefore::never();
        let mut stopping = config(&path);
        stopping.stop_before = Some(hook.clone());
        let store = Store::open(stopping).unwrap();
        store.promote(1).unwrap();
        let half = append(&store, 10);
        let end = append(&store, 15);
        confirm(&store, end);
        store.sync_queues().unwrap();
        store.demote(2).unwrap();
        let mut list = (*store.epochs()).clone();
        list.drop_starting_after(half);
        hook.after(step);
        let cut = store.truncate(half, list.clone(), "test");
        let done = match cut {
            Ok(_) => true,
            Err(Error::Stopped { .. }) => false,
            Err(error) => panic!("step {step}: {error}"),
        };
        store.abandon();
        drop(store);
        for round in 0..2 {
            let store = open(&path);
            if round == 1 {
                store.truncate(half, list.clone(), "again").unwrap();
            }
            let queues = store.shared.queues.as_ref().unwrap();
            for queue in queues.all() {
                let state = queue.state.read();
                let last = state.unit(state.end() - 1).unwrap().unwrap();
                assert!(last.end() <= store.end_offset(), "step {step}");
            }
            store.abandon();
        }
        let store = open(&path);
        store.promote(3).unwrap();
        let end = append_from(&store, 10, 2);
        confirm(&store, end);
        check(&store, 12);
        store.close().unwrap();
        drop(store);
        let before = image(&path);
        fs::remove_dir_all(path.join("consumequeue")).unwrap();
        let store = open(&path);
        confirm(&store, end);
        store.close().unwrap();
        assert_eq!(image(&path), before, "step {step}");
        if done {
            assert!(step > 5, "{step} steps");
            break;
        }
    }
}

/// As [`append`], the bodies numbered from `from` on.
fn append_from(store: &Store, from: usize, count: usize) -> Offset {
    for n in from..from + count {
        for (topic, queue_id) in [("a", 0), ("a", 1), ("b", 0)] {
            let body = format!("{topic}/{queue_id} {n}");
            let host = ([127, 0, 0, 1], 10911).into();
            let mut message = Message::new(topic, body.as_bytes(), host, 0);
            message.queue_id = queue_id;
            store.append(&message).unwrap();
        }
    }
    store.end_offset()
}
