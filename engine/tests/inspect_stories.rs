//! Looking into store folders, Java's and ours, without touching them.
#![allow(clippy::unwrap_used, reason = "a story ends where it fails")]

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use common::{SEGMENT, append, config, epochs, master, segment_path};
use epochlog_engine::Store;
use epochlog_engine::inspect::{self, ProblemKind};

/// Every file of a folder with its bytes.
fn files(dir: &Path) -> BTreeMap<std::path::PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            let bytes = fs::read(&path).unwrap();
            found.insert(path, bytes);
        }
    }
    found
}

#[test]
fn our_own_folder_is_read_and_not_changed() {
    let dir = tempfile::tempdir().unwrap();
    let store = master(dir.path(), 1);
    append(&store, 6, 1000);
    store.promote(2).unwrap();
    append(&store, 1, 1000);
    store.close().unwrap();
    let before = files(dir.path());
    let found = inspect::scan(dir.path()).unwrap();
    assert_eq!(found.problems, []);
    assert_eq!((found.min_offset, found.end_offset), (0, SEGMENT + 3000));
    assert_eq!((found.messages, found.segments.len()), (7, 2));
    assert_eq!(found.segment_size, Some(SEGMENT));
    assert_eq!(found.epochs, Some(epochs(&[(1, 0), (2, SEGMENT + 2000)])));
    let state = found.state.unwrap();
    assert_eq!(
        (state.served_epoch, state.flushed),
        (Some(2), SEGMENT + 3000)
    );
    let offsets: Vec<_> = found
        .records()
        .map(|view| view.unwrap().record().physical_offset())
        .collect();
    assert_eq!(
        offsets,
        [0, 1000, 2000, 3000, SEGMENT, SEGMENT + 1000, SEGMENT + 2000]
    );
    assert_eq!(files(dir.path()), before);
}

#[test]
fn damage_is_told_with_file_and_offset() {
    let dir = tempfile::tempdir().unwrap();
    let store = master(dir.path(), 1);
    append(&store, 6, 1000);
    store.close().unwrap();
    let path = segment_path(dir.path(), 0);
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(b"#", 1500).unwrap();
    fs::write(dir.path().join("commitlog/stray"), "x").unwrap();
    let found = inspect::scan(dir.path()).unwrap();
    assert_eq!(found.end_offset, 1000);
    let told: Vec<_> = found.problems.iter().map(ToString::to_string).collect();
    assert!(told.iter().any(|it| it.contains("stray")), "{told:?}");
    assert!(
        told.iter()
            .any(|it| it.contains("00000000000000000000 at offset 1000")),
        "{told:?}"
    );
    assert!(
        told.iter()
            .any(|it| it.contains("00000000000000004096 at offset 4096")),
        "{told:?}"
    );
    assert_eq!(found.problems[1].kind, ProblemKind::Damage);
    assert_eq!(found.records().count(), 1);
}

#[test]
fn a_folder_that_is_not_there_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    assert!(inspect::scan(dir.path().join("missing")).is_err());
    let found = inspect::scan(dir.path()).unwrap();
    assert_eq!((found.end_offset, found.segment_size), (0, None));
    assert_eq!(found.records().count(), 0);
}

#[test]
fn a_prepared_segment_is_no_problem() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = config(dir.path());
    config.prefault_ahead_bytes = SEGMENT;
    config.ready_ahead_bytes = SEGMENT;
    let store = Store::open(config).unwrap();
    store.promote(1).unwrap();
    append(&store, 1, 1000);
    let prepared = segment_path(dir.path(), SEGMENT);
    for _ in 0..1000 {
        if prepared.exists() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    store.close().unwrap();
    let found = inspect::scan(dir.path()).unwrap();
    assert_eq!(found.problems, []);
    assert_eq!(found.prepared, [prepared]);
    assert_eq!((found.segments.len(), found.messages), (1, 1));
}

#[test]
fn a_folder_that_this_process_writes_to_is_read_without_holding_on_to_it() {
    let dir = tempfile::tempdir().unwrap();
    let store = master(dir.path(), 1);
    append(&store, 3, 1000);
    let found = inspect::scan(dir.path()).unwrap();
    let views: Vec<_> = found.records().map(Result::unwrap).collect();
    let before: Vec<_> = views.iter().map(|view| view.bytes().to_vec()).collect();
    let inode = || {
        let path = segment_path(dir.path(), 0);
        fs::metadata(path).unwrap().ino()
    };
    let file = inode();
    store.fence();
    store.truncate(1000, epochs(&[(1, 0)]), "test").unwrap();
    assert_eq!(inode(), file, "nobody maps what was cut");
    store.promote(2).unwrap();
    append(&store, 2, 1500);
    let now: Vec<_> = views.iter().map(|view| view.bytes().to_vec()).collect();
    assert_eq!(now, before, "what was looked at does not change");
}
