//! The epoch file on a disk that loses power, and on a real one that somebody damaged.

use std::fs;

use crate::durable::crash_disk::{CrashDisk, LOSSES};
use crate::position::EpochEntry;

use super::*;

fn list(entries: &[(u32, u64)]) -> EpochList {
    let entries = entries
        .iter()
        .map(|&(epoch, start)| EpochEntry { epoch, start });
    EpochList::from_entries(entries.collect()).unwrap()
}

/// Operations of one replacement of the epoch file: four for the main file, four for its backup.
const OPERATIONS: usize = 8;

#[test]
fn e06_an_entry_is_on_disk_once_replace_returned_and_never_half_of_it() {
    let (old, new) = (list(&[(1, 0)]), list(&[(1, 0), (2, 1024)]));
    let file = EpochFile::new("store/epochFileCheckpoint");
    for operations in 0..=OPERATIONS {
        let disk = CrashDisk::failing_after(OPERATIONS);
        file.replace_on(&disk, &old).unwrap();
        disk.allow(operations);
        let returned = file.replace_on(&disk, &new).is_ok();
        assert_eq!(returned, operations == OPERATIONS);
        for loss in LOSSES {
            let main = disk
                .after_power_loss(file.path(), loss)
                .expect("the main file is there");
            let main = EpochList::decode(&main).expect("the main file is whole");
            assert!(main == old || main == new);
            if returned {
                assert_eq!(main, new);
            }
            // Main comes first, so a backup never knows more than it, and never less than `old`.
            let backup = disk.after_power_loss(&file.backup_path(), loss).unwrap();
            let backup = EpochList::decode(&backup).expect("the backup is whole");
            assert!(
                backup == main || backup == old,
                "after {operations}, {loss:?}"
            );
        }
        let main = disk.after_kill(file.path()).unwrap();
        assert_eq!(EpochList::decode(&main).unwrap() == new, operations >= 3);
    }
}

#[test]
fn e06_the_first_file_appears_whole_or_not_at_all() {
    let new = list(&[(1, 0)]);
    let file = EpochFile::new("store/epochFileCheckpoint");
    for operations in 0..=OPERATIONS {
        let disk = CrashDisk::failing_after(operations);
        let returned = file.replace_on(&disk, &new).is_ok();
        for loss in LOSSES {
            let main = disk.after_power_loss(file.path(), loss);
            assert!(main.is_some() || !returned);
            if let Some(main) = main {
                assert_eq!(
                    EpochList::decode(&main).unwrap(),
                    new,
                    "{operations}, {loss:?}"
                );
            }
        }
    }
}

#[test]
fn main_and_backup_hold_the_same_text_and_no_leftover_is_in_the_way() {
    let dir = tempfile::tempdir().unwrap();
    let file = EpochFile::new(dir.path().join(EPOCH_FILE_NAME));
    assert_eq!(file.load().unwrap(), None);
    fs::write(
        dir.path().join("epochFileCheckpoint.tmp"),
        "left by a crash, and longer than what follows",
    )
    .unwrap();
    for entries in [&[(1, 0)][..], &[(1, 0), (2, 1024)], &[]] {
        let list = list(entries);
        file.replace(&list).unwrap();
        assert_eq!(file.load().unwrap(), Some(list.clone()));
        assert_eq!(fs::read_to_string(file.path()).unwrap(), list.encode());
        assert_eq!(
            fs::read(file.path()).unwrap(),
            fs::read(file.backup_path()).unwrap()
        );
    }
    // An empty list is written: otherwise the entries it no longer has would come back.
    assert_eq!(fs::read_to_string(file.path()).unwrap(), "0\n0\n");
    let mut names: Vec<_> = fs::read_dir(dir.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    names.sort();
    assert_eq!(names, ["epochFileCheckpoint", "epochFileCheckpoint.bak"]);
}

#[test]
fn c17_a_damaged_file_is_an_error_that_names_both_and_changes_neither() {
    let dir = tempfile::tempdir().unwrap();
    let file = EpochFile::new(dir.path().join(EPOCH_FILE_NAME));
    file.replace(&list(&[(1, 0), (2, 1024)])).unwrap();
    let good = fs::read(file.path()).unwrap();
    let longer = [&good[..], b"3-2048\n"].concat();
    for damaged in [
        &b""[..],
        &good[..good.len() - 3],
        &longer,
        &[0; 25],
        b"2\nx\n",
    ] {
        fs::write(file.path(), damaged).unwrap();
        let error = file.load().unwrap_err().to_string();
        assert!(error.contains("epochFileCheckpoint: damaged"), "{error}");
        assert!(
            error.contains("epochFileCheckpoint.bak: readable, 2 entries"),
            "{error}"
        );
        assert!(error.contains("epoch 2 starting at 1024"), "{error}");
        assert_eq!(fs::read(file.path()).unwrap(), damaged);
        assert_eq!(fs::read(file.backup_path()).unwrap(), good);
    }
    fs::write(file.backup_path(), "1\n").unwrap();
    let error = file.load().unwrap_err().to_string();
    assert!(error.contains("damaged too: line 2"), "{error}");
    fs::remove_file(file.backup_path()).unwrap();
    assert!(file.load().unwrap_err().to_string().contains("missing"));
    fs::remove_file(file.path()).unwrap();
    assert_eq!(file.load().unwrap(), None, "missing is not damaged");
}

#[test]
fn a_file_beyond_the_limit_is_refused_unread() {
    let dir = tempfile::tempdir().unwrap();
    let file = EpochFile::new(dir.path().join(EPOCH_FILE_NAME));
    let sparse = fs::File::create(file.path()).unwrap();
    sparse.set_len(MAX_EPOCH_FILE_LEN + 1).unwrap();
    let error = file.load().unwrap_err();
    assert!(matches!(error, EpochFileError::File(_)), "{error}");
    assert!(
        error.to_string().contains("more than 67108864 bytes"),
        "{error}"
    );
}

#[test]
fn a_folder_that_cannot_be_written_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = EpochFile::new(dir.path().join("missing").join(EPOCH_FILE_NAME));
    let error = file.replace(&EpochList::new()).unwrap_err().to_string();
    assert!(
        error.contains("missing/epochFileCheckpoint.tmp: cannot create"),
        "{error}"
    );
}
