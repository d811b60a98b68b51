//! A machine that went down: pages above the flushed mark may be missing, and nothing is proven.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::{SEGMENT, append, check_invariants, config, epochs, image, message, open};
use crate::checkpoint::{Checkpoint, CheckpointFile};
use crate::epoch_file::EpochFile;
use crate::error::Error;
use crate::position::EpochEntry;
use crate::record::Message;
use crate::state_file::{State, StateFile};
use crate::store::Store;

/// Changes the stored state of a folder that nobody has open.
fn change_state(dir: &Path, change: impl FnOnce(&mut State)) {
    let path = dir.join("epochlog.state");
    let mut state = StateFile::read(&path).unwrap().unwrap();
    change(&mut state);
    StateFile::open(path, state).unwrap();
}

fn another_boot(dir: &Path) {
    change_state(dir, |state| state.boot_id = [9; 16]);
}

fn segment(dir: &Path, base: u64) -> PathBuf {
    dir.join("commitlog").join(format!("{base:020}"))
}

fn zero(dir: &Path, base: u64, range: std::ops::Range<u64>) {
    let file = fs::OpenOptions::new()
        .write(true)
        .open(segment(dir, base))
        .unwrap();
    let len = usize::try_from(range.end - range.start).unwrap();
    file.write_all_at(&vec![0; len], range.start).unwrap();
}

/// Seven records of 1000 bytes, the first `flushed` bytes durable.
fn crashed(dir: &Path, flushed_records: usize) {
    let store = open(dir);
    store.promote(1).unwrap();
    append(&store, flushed_records, 1000, b'f');
    let flushed = store.flush().unwrap();
    let last = store.record_start_before(flushed).unwrap().unwrap_or(0);
    append(&store, 7 - flushed_records, 1000, b'u');
    store.abandon();
    drop(store);
    // The mark follows the sync within a second; here it has.
    change_state(dir, |state| {
        state.flushed = flushed;
        state.scan_from = last;
    });
    another_boot(dir);
}

#[test]
fn c13_a_shorter_restarted_master_does_not_serve_its_epoch_again() {
    let dir = tempfile::tempdir().unwrap();
    crashed(dir.path(), 2);
    zero(dir.path(), 0, 3000..4000);
    let store = open(dir.path());
    assert_eq!(store.end_offset(), 3000);
    assert!(matches!(
        store.promote(1),
        Err(Error::NeedsNewerEpoch { epoch: 1 })
    ));
    assert!(!store.promises().may_serve_again);
    // A kill after that does not make it forget.
    store.abandon();
    drop(store);
    let store = open(dir.path());
    assert!(matches!(
        store.promote(1),
        Err(Error::NeedsNewerEpoch { epoch: 1 })
    ));
    assert_eq!(store.promote(2).unwrap().start, 3000);
    append(&store, 1, 150, b'n');
    check_invariants(dir.path(), &store);
}

#[test]
fn e20_a_hole_above_the_mark_ends_the_log_and_what_lies_behind_it_goes() {
    let dir = tempfile::tempdir().unwrap();
    crashed(dir.path(), 2);
    // The filler and the last record of the first segment never reached the disk; the second did.
    zero(dir.path(), 0, 3000..SEGMENT);
    let store = open(dir.path());
    assert_eq!(store.end_offset(), 3000);
    assert_eq!(
        store.opened().removed,
        [segment(&fs::canonicalize(dir.path()).unwrap(), SEGMENT)]
    );
    check_invariants(dir.path(), &store);
}

#[test]
fn damage_below_the_mark_refuses_and_changes_nothing() {
    for (flushed, bad) in [(3, 2500), (7, SEGMENT + 2500)] {
        let dir = tempfile::tempdir().unwrap();
        crashed(dir.path(), flushed);
        // Scanned from the start: a mark of a second ago would begin behind the damage.
        change_state(dir.path(), |state| state.scan_from = 0);
        let base = bad - bad % SEGMENT;
        let file = fs::OpenOptions::new()
            .write(true)
            .open(segment(dir.path(), base))
            .unwrap();
        file.write_all_at(b"###", bad - base).unwrap();
        let before = fs::read(dir.path().join("epochlog.state")).unwrap();
        match Store::open(config(dir.path())) {
            Err(Error::Damaged { file, offset, .. }) => {
                assert_eq!(offset, bad / 1000 * 1000 + if base > 0 { 96 } else { 0 });
                assert!(file.ends_with(format!("{base:020}")));
            }
            other => panic!("{:?}", other.err()),
        }
        assert_eq!(fs::read(dir.path().join("epochlog.state")).unwrap(), before);
    }
}

#[test]
fn missing_segments_below_the_mark_refuse() {
    let dir = tempfile::tempdir().unwrap();
    crashed(dir.path(), 7);
    let aside = dir.path().join("aside");
    fs::rename(segment(dir.path(), SEGMENT), &aside).unwrap();
    assert!(matches!(
        Store::open(config(dir.path())),
        Err(Error::Damaged {
            offset: SEGMENT,
            ..
        })
    ));
    fs::rename(segment(dir.path(), 0), segment(dir.path(), SEGMENT)).unwrap();
    assert!(matches!(
        Store::open(config(dir.path())),
        Err(Error::Damaged { .. })
    ));
    fs::remove_file(segment(dir.path(), SEGMENT)).unwrap();
    assert!(matches!(
        Store::open(config(dir.path())),
        Err(Error::Damaged { offset: 0, .. })
    ));
}

#[test]
fn zero_bytes_in_text_above_the_mark_are_a_lost_page() {
    let lost = |dir: &Path| {
        let store = open(dir);
        store.promote(1).unwrap();
        append(&store, 1, 1000, b'1');
        let properties = b"a\x01\0\0\0\x02";
        store
            .append(&Message {
                properties,
                ..message(b"body")
            })
            .unwrap();
        store.abandon();
    };
    let dir = tempfile::tempdir().unwrap();
    lost(dir.path());
    let store = open(dir.path());
    assert!(
        store.end_offset() > 1000,
        "the same boot: pages cannot be missing"
    );
    drop(store);
    let dir = tempfile::tempdir().unwrap();
    lost(dir.path());
    another_boot(dir.path());
    assert_eq!(open(dir.path()).end_offset(), 1000);
}

#[test]
fn a11_a12_confirm_is_on_a_record_inside_what_survived() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    store.promote(1).unwrap();
    append(&store, 5, 100, b'1');
    store.set_confirm(500);
    assert_eq!(store.confirm_offset(), 500);
    store.close().unwrap();
    drop(store);
    let store = open(dir.path());
    assert_eq!(store.confirm_offset(), 500);
    store.abandon();
    drop(store);
    for (stored, torn_at, confirm, end) in [
        (350, None, 300, 500),
        (500, Some(350), 300, 300),
        (9000, None, 500, 500),
    ] {
        let copied = tempfile::tempdir().unwrap();
        super::copy(dir.path(), copied.path());
        let mut file = CheckpointFile::open(copied.path().join("checkpoint")).unwrap();
        let checkpoint = Checkpoint {
            confirm_offset: stored,
            ..file.current()
        };
        file.store(checkpoint).unwrap();
        change_state(copied.path(), |state| {
            state.flushed = 0;
            state.scan_from = 0;
            // A mark of the queues would say that more was confirmed.
            state.queues = None;
        });
        if let Some(at) = torn_at {
            zero(copied.path(), 0, at..500);
        }
        let store = open(copied.path());
        assert_eq!(
            (store.confirm_offset(), store.end_offset()),
            (confirm, end),
            "{stored}"
        );
    }
}

#[test]
fn files_that_cannot_be_trusted_are_named_and_nothing_is_changed() {
    let dir = tempfile::tempdir().unwrap();
    crashed(dir.path(), 7);
    let epoch_file = dir.path().join("epochFileCheckpoint");
    let list = fs::read(&epoch_file).unwrap();
    fs::remove_file(&epoch_file).unwrap();
    assert!(matches!(
        Store::open(config(dir.path())),
        Err(Error::Epochs { .. })
    ));
    fs::write(&epoch_file, "1\n17\n1-0\n").unwrap();
    assert!(matches!(
        Store::open(config(dir.path())),
        Err(Error::EpochFile(_))
    ));
    EpochFile::new(&epoch_file)
        .replace(&epochs(&[(1, 500)]))
        .unwrap();
    assert!(matches!(
        Store::open(config(dir.path())),
        Err(Error::Epochs { .. })
    ));
    fs::write(&epoch_file, list).unwrap();
    let mut other = config(dir.path());
    other.segment_size = 2 * SEGMENT;
    assert!(matches!(
        Store::open(other.clone()),
        Err(Error::SegmentSize {
            len: SEGMENT,
            segment_size: 8192,
            ..
        })
    ));
    other.adopt_segment_size = true;
    let store = Store::open(other).unwrap();
    assert_eq!(store.segment_size(), SEGMENT);
    drop(store);
    let state = dir.path().join("epochlog.state");
    fs::write(&state, "garbage").unwrap();
    assert!(matches!(
        Store::open(config(dir.path())),
        Err(Error::StateFile(_))
    ));
    let mut other = config(dir.path());
    other.segment_size = 100;
    assert!(matches!(
        Store::open(other),
        Err(Error::Setting {
            name: "segment_size",
            ..
        })
    ));
}

#[test]
fn a_folder_changed_since_its_clean_stop_is_scanned() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    store.promote(1).unwrap();
    append(&store, 3, 1000, b'1');
    let before = image(&store);
    store.close().unwrap();
    drop(store);
    // Somebody else's record behind the end: its bytes are given up, with a word.
    let file = fs::OpenOptions::new()
        .write(true)
        .open(segment(dir.path(), 0))
        .unwrap();
    file.write_all_at(b"someone", 3000).unwrap();
    let store = open(dir.path());
    assert!(!store.opened().clean);
    assert_eq!(store.opened().scanned_bytes, 3000);
    assert_eq!(store.opened().torn.as_ref().unwrap().cut_bytes, 7);
    assert_eq!(image(&store), before);
    check_invariants(dir.path(), &store);
}

#[test]
fn a_confirm_offset_below_zero_confirms_nothing() {
    let dir = tempfile::tempdir().unwrap();
    crashed(dir.path(), 7);
    let mut file = CheckpointFile::open(dir.path().join("checkpoint")).unwrap();
    let checkpoint = Checkpoint {
        confirm_offset: -1,
        ..file.current()
    };
    file.store(checkpoint).unwrap();
    assert_eq!(open(dir.path()).confirm_offset(), 0);
}

#[test]
fn k8_a_log_that_somebody_else_had_in_between_is_not_served_on() {
    // Changed behind a clean stop, and stopped by Java, which takes its mark away.
    for clean in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path());
        store.promote(1).unwrap();
        append(&store, 3, 1000, b'1');
        if clean {
            store.close().unwrap();
            zero(dir.path(), 0, 2000..3000);
            change_state(dir.path(), |state| {
                if let Some(clean) = &mut state.clean {
                    (state.flushed, clean.end) = (2000, 2000);
                }
            });
        } else {
            store.abandon();
            fs::remove_file(dir.path().join("abort")).unwrap();
        }
        drop(store);
        let store = open(dir.path());
        assert!(!store.opened().clean);
        assert!(!store.promises().may_serve_again);
        assert!(matches!(
            store.promote(1),
            Err(Error::NeedsNewerEpoch { .. })
        ));
        store.promote(2).unwrap();
    }
}

#[test]
fn k8_an_epoch_is_not_served_on_once_its_bytes_were_cut() {
    for unclean in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let mut store = open(dir.path());
        store.promote(1).unwrap();
        append(&store, 3, 1000, b'1');
        store.fence();
        store.truncate(2000, epochs(&[(1, 0)]), "test").unwrap();
        if unclean {
            store.abandon();
            drop(store);
            store = open(dir.path());
        }
        assert!(matches!(
            store.promote(1),
            Err(Error::NeedsNewerEpoch { .. })
        ));
        store.promote(2).unwrap();
    }
}

#[test]
fn an_epoch_of_another_master_is_not_this_nodes_to_serve() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    store.promote(1).unwrap();
    append(&store, 3, 1000, b'1');
    store.fence();
    let mut receiver = store.receive().unwrap();
    receiver
        .adopt_epoch(EpochEntry {
            epoch: 5,
            start: 3000,
        })
        .unwrap();
    receiver.finish().unwrap();
    for epoch in [1, 5] {
        assert!(matches!(
            store.promote(epoch),
            Err(Error::StaleEpoch { max_epoch: 5, .. })
        ));
    }
    store.promote(6).unwrap();
}
