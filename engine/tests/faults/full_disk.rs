//! A disk without room, and a limit on the size of files.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use epochlog_engine::{Error, Store, signals};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::child::{self, Walls, config};
use crate::common::{append, body_for, image, message, starts};

const LONG: Duration = Duration::from_secs(60);
const RECORD: usize = 16 * 1024;

/// Appends until there is no room; answers the end, and what was said.
fn fill(store: &Store) -> (u64, Error) {
    let body = body_for(RECORD);
    for _ in 0..10_000 {
        if let Err(error) = store.append(&message(&body)) {
            return (store.end_offset(), error);
        }
    }
    panic!("the disk never filled");
}

fn is_no_space(error: &Error, dir: &Path) {
    match error {
        Error::NoSpace { path, segment_size } => {
            assert!(path.starts_with(dir), "{error}");
            assert_eq!(*segment_size, 1 << 20);
        }
        error => panic!("{error}"),
    }
}

/// Whole segments, each with all its blocks, and nothing half made.
fn no_half_made_segment(dir: &Path, store: &Store) {
    for segment in store.segments() {
        let metadata = fs::metadata(&segment.path).unwrap();
        assert_eq!(metadata.len(), 1 << 20);
        assert!(
            metadata.blocks() * 512 >= 1 << 20,
            "{}",
            segment.path.display()
        );
    }
    for name in child::segments(dir) {
        assert_eq!(
            fs::metadata(dir.join("commitlog").join(&name))
                .unwrap()
                .len(),
            1 << 20
        );
    }
}

fn dispatched(store: &Store, end: u64) {
    let began = Instant::now();
    while store.dispatched_offset() < end {
        assert!(
            began.elapsed() < LONG,
            "dispatched to {}",
            store.dispatched_offset()
        );
        let _ = store.wait_for_dispatch(store.dispatched_offset(), Duration::from_millis(200));
    }
}

fn tell_of_a_full_disk(dir: &Path) {
    let dir = &fs::canonicalize(dir).unwrap();
    let store = Store::open(config(dir)).unwrap();
    store.promote(1).unwrap();
    let (end, error) = fill(&store);
    is_no_space(&error, dir);
    assert!(end > 6 << 20, "{end}");
    // The refusal is quick, said again, and changes nothing.
    for _ in 0..3 {
        is_no_space(&store.append(&message(&body_for(RECORD))).unwrap_err(), dir);
    }
    assert_eq!(store.end_offset(), end);
    no_half_made_segment(dir, &store);
    // What is there is read and made durable.
    let before = image(&store);
    assert_eq!(store.flush().unwrap(), end);
    // Nor is there room for a queue: messages wait, and come into it once there is.
    fs::write(dir.join("ballast"), vec![1; 16 << 20]).unwrap_err();
    store.set_confirm(end);
    std::thread::sleep(Duration::from_millis(300));
    assert!(store.dispatched_offset() < end);
    assert_eq!(image(&store), before);
    fs::remove_file(dir.join("ballast")).unwrap();
    dispatched(&store, end);
    // Neither a role nor a small file needs the room that a segment does.
    store.promote(2).unwrap();
    is_no_space(&store.append(&message(&body_for(RECORD))).unwrap_err(), dir);
    child::shell("mount -o remount,size=24m \"$1\"", dir);
    let (more, _) = fill(&store);
    assert!(more > end + (8 << 20), "{more}");
    store.flush().unwrap();
    let whole = image(&store);
    assert!(whole.starts_with(&before));
    let records = starts(&store).len();
    no_half_made_segment(dir, &store);
    store.close().unwrap();
    drop(store);
    let store = Store::open(config(dir)).unwrap();
    assert_eq!(image(&store), whole);
    assert_eq!(starts(&store).len(), records);
    assert_eq!(store.opened().unexpected, [] as [std::path::PathBuf; 0]);
}

#[test]
fn h01_h03_h12_c16_a_full_disk_refuses_the_roll_and_goes_on_once_there_is_room() {
    let name =
        "full_disk::h01_h03_h12_c16_a_full_disk_refuses_the_roll_and_goes_on_once_there_is_room";
    if let Some((dir, _)) = child::role() {
        return tell_of_a_full_disk(&dir);
    }
    let dir = tempfile::tempdir().unwrap();
    child::succeed(name, "", dir.path(), Walls::Memory { mib: 8 });
}

/// Where not even a small file can be written anew, no epoch begins; the store lives, and is no master.
fn tell_of_no_room_at_all(dir: &Path) {
    let dir = &fs::canonicalize(dir).unwrap();
    // No segment is made ahead: it would take room, or give room back.
    let config = |dir: &Path| {
        let mut config = config(dir);
        config.prefault_ahead_bytes = 0;
        config
    };
    let store = Store::open(config(dir)).unwrap();
    store.promote(1).unwrap();
    append(&store, 10, RECORD);
    let end = store.flush().unwrap();
    let before = image(&store);
    fs::write(dir.join("ballast"), vec![1; 16 << 20]).unwrap_err();
    for _ in 0..2 {
        let error = store.promote(2).unwrap_err().to_string();
        assert!(error.contains("epochFileCheckpoint"), "{error}");
        assert!(error.contains("No space left"), "{error}");
        // Epoch 2 is promised: nothing more comes under epoch 1, and nothing under 2 either.
        let refused = store.append(&message(b"x"));
        assert!(
            matches!(refused, Err(Error::NotWritable { .. })),
            "{refused:?}"
        );
        assert_eq!(store.master_epoch(), None);
        assert_eq!(store.epochs().last().map(|last| last.epoch), Some(1));
    }
    assert!(matches!(store.promote(1), Err(Error::StaleEpoch { .. })));
    assert_eq!(
        (store.flush().unwrap(), image(&store)),
        (end, before.clone())
    );
    // A kill here leaves a log without the epoch.
    store.abandon();
    drop(store);
    fs::remove_file(dir.join("ballast")).unwrap();
    let store = Store::open(config(dir)).unwrap();
    assert_eq!((store.end_offset(), image(&store)), (end, before.clone()));
    assert_eq!(store.promises().max_epoch, Some(2));
    assert_eq!(store.epochs().last().map(|last| last.epoch), Some(1));
    // Once there is room the same store goes on, under the epoch that was refused.
    fs::write(dir.join("ballast"), vec![1; 16 << 20]).unwrap_err();
    store.promote(3).unwrap_err();
    fs::remove_file(dir.join("ballast")).unwrap();
    let entry = store.promote(3).unwrap();
    assert_eq!((entry.epoch, entry.start), (3, end));
    append(&store, 1, RECORD);
    store.close().unwrap();
    drop(store);
    let store = Store::open(config(dir)).unwrap();
    assert!(store.opened().clean);
    assert!(image(&store).starts_with(&before));
}

#[test]
fn h12_c17_without_room_for_the_epoch_file_a_promotion_is_refused_and_the_store_lives() {
    let name = "full_disk::h12_c17_without_room_for_the_epoch_file_a_promotion_is_refused_and_the_store_lives";
    if let Some((dir, _)) = child::role() {
        return tell_of_no_room_at_all(&dir);
    }
    let dir = tempfile::tempdir().unwrap();
    child::succeed(name, "", dir.path(), Walls::Memory { mib: 8 });
}

/// A limit on the size of files stands for a quota.
fn tell_of_a_limit(dir: &Path) {
    signals::install().unwrap();
    let dir = &fs::canonicalize(dir).unwrap();
    let mut config = config(dir);
    config.prefault_ahead_bytes = 0;
    let store = Store::open(config.clone()).unwrap();
    store.promote(1).unwrap();
    append(&store, 3, RECORD);
    let before = getrlimit(Resource::Fsize);
    let limit = |current| {
        let limit = Rlimit { current, ..before };
        setrlimit(Resource::Fsize, limit).unwrap();
    };
    limit(Some(512 << 10));
    let (end, error) = fill(&store);
    is_no_space(&error, dir);
    assert!(end < 1 << 20);
    assert_eq!(store.flush().unwrap(), end);
    no_half_made_segment(dir, &store);
    limit(before.current);
    append(&store, 100, RECORD);
    let whole = image(&store);
    store.close().unwrap();
    drop(store);
    assert_eq!(image(&Store::open(config).unwrap()), whole);
}

#[test]
fn h01_h12_a_limit_on_file_sizes_refuses_the_roll_and_not_the_process() {
    let name = "full_disk::h01_h12_a_limit_on_file_sizes_refuses_the_roll_and_not_the_process";
    if let Some((dir, _)) = child::role() {
        return tell_of_a_limit(&dir);
    }
    let dir = tempfile::tempdir().unwrap();
    assert!(child::succeed(name, "", dir.path(), Walls::None));
}
