//! Calls that the kernel refuses from some moment on, whatever file they are about: a filter of system
//! calls stands for the disk.

use std::path::Path;
use std::time::Duration;

use epochlog_engine::{Error, Store};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, apply_filter_all_threads};

use crate::child::{self, Walls, acknowledge, config, nothing_acknowledged_is_lost};
use crate::common::{append, image, message};

const RECORD: usize = 16 * 1024;

/// From now on every thread gets `errno` for these calls.
fn refuse(calls: &[i64], errno: i32) {
    let rules = calls.iter().map(|call| (*call, Vec::new())).collect();
    let errno = SeccompAction::Errno(errno.unsigned_abs());
    let arch = std::env::consts::ARCH.try_into().unwrap();
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, errno, arch).unwrap();
    let filter: BpfProgram = filter.try_into().unwrap();
    apply_filter_all_threads(&filter).unwrap();
}

/// A store with something acknowledged, and more that is not; then nothing is synced any more.
fn tell(outer: &Path, part: &str) {
    let dir = &outer.join("store");
    let store = Store::open(config(dir)).unwrap();
    store.promote(1).unwrap();
    append(&store, 10, RECORD);
    let end = store.flush().unwrap();
    store.set_confirm(end);
    acknowledge(&outer.join("ledger"), &store, end);
    let path = outer.display().to_string();
    match part {
        "sync" => {
            refuse(&[libc::SYS_fsync, libc::SYS_fdatasync], libc::EIO);
            append(&store, 10, RECORD);
            let waited = store.wait_flushed(store.end_offset(), Duration::from_secs(60));
            assert!(matches!(waited, Err(Error::Failed { .. })), "{waited:?}");
            let error = waited.unwrap_err().to_string();
            assert!(
                error.contains(&path) && error.contains("commitlog"),
                "{error}"
            );
            ended(&store, end);
        }
        // Delayed allocation: the disk turns out to be full at the sync.
        "sync-full" => {
            refuse(&[libc::SYS_fsync, libc::SYS_fdatasync], libc::ENOSPC);
            append(&store, 10, RECORD);
            let error = store.flush().unwrap_err().to_string();
            assert!(
                error.contains(&path) && error.contains("No space left"),
                "{error}"
            );
            ended(&store, end);
        }
        "state" => {
            refuse(&[libc::SYS_pwrite64], libc::EIO);
            let error = store.demote(2).unwrap_err().to_string();
            assert!(
                error.contains(&path) && error.contains("epochlog.state"),
                "{error}"
            );
            ended(&store, end);
        }
        "rename" => {
            refuse(
                &[libc::SYS_rename, libc::SYS_renameat, libc::SYS_renameat2],
                libc::EROFS,
            );
            let error = store.promote(2).unwrap_err().to_string();
            assert!(
                error.contains(&path) && error.contains("epochFileCheckpoint"),
                "{error}"
            );
            ended(&store, end);
        }
        // A file system that cannot reserve: zeros are written, and nothing else changes.
        "fallocate" => {
            refuse(&[libc::SYS_fallocate], libc::EOPNOTSUPP);
            append(&store, 200, RECORD);
            let end = store.flush().unwrap();
            acknowledge(&outer.join("ledger"), &store, end);
            store.fence();
            let epochs = crate::common::epochs(&[(1, 0)]);
            store.truncate(1 << 20, epochs, "test").unwrap();
            let kept = image(&store);
            assert_eq!(kept.len(), 1 << 20);
            acknowledge(&outer.join("ledger"), &store, 1 << 20);
            store.close().unwrap();
        }
        part => panic!("no such part: {part}"),
    }
}

/// Nothing is written any more, everything can be read, and no call hangs.
fn ended(store: &Store, flushed: u64) {
    let before = image(store);
    assert!(matches!(store.flush(), Err(Error::Failed { .. })));
    assert!(matches!(
        store.append(&message(b"x")),
        Err(Error::Failed { .. })
    ));
    assert!(matches!(store.promote(9), Err(Error::Failed { .. })));
    assert_eq!(store.flushed_offset(), flushed);
    assert_eq!(image(store), before);
    assert!(store.close().is_err());
}

fn story(part: &str) {
    let name = format!(
        "refused_calls::{}",
        NAMES.iter().find(|it| it.0 == part).unwrap().1
    );
    let dir = tempfile::tempdir().unwrap();
    let outer = std::fs::canonicalize(dir.path()).unwrap();
    assert!(child::succeed(&name, part, &outer, Walls::None));
    let store = nothing_acknowledged_is_lost(&outer.join("ledger"), &outer.join("store"));
    if part != "fallocate" {
        // The master of epoch 1 cannot prove its log after a failure.
        assert!(!store.opened().clean);
    }
    store.promote(10).unwrap();
    append(&store, 1, RECORD);
    store.close().unwrap();
}

const NAMES: [(&str, &str); 5] = [
    (
        "sync",
        "c01_h05_h06_a_sync_that_fails_is_final_and_names_the_file",
    ),
    ("sync-full", "c01_a_disk_that_is_full_at_the_sync_is_final"),
    ("state", "h12_a_state_file_that_cannot_be_written_is_final"),
    (
        "rename",
        "c18_an_epoch_file_that_cannot_be_replaced_is_final",
    ),
    (
        "fallocate",
        "h01_a_file_system_that_reserves_nothing_gets_zeros",
    ),
];

fn tell_or(part: &str) {
    match child::role() {
        Some((dir, told)) => tell(&dir, &told),
        None => story(part),
    }
}

#[test]
fn c01_h05_h06_a_sync_that_fails_is_final_and_names_the_file() {
    tell_or("sync");
}

#[test]
fn c01_a_disk_that_is_full_at_the_sync_is_final() {
    tell_or("sync-full");
}

#[test]
fn h12_a_state_file_that_cannot_be_written_is_final() {
    tell_or("state");
}

#[test]
fn c18_an_epoch_file_that_cannot_be_replaced_is_final() {
    tell_or("rename");
}

#[test]
fn h01_a_file_system_that_reserves_nothing_gets_zeros() {
    tell_or("fallocate");
}
