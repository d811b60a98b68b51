//! A file system that turns read-only, before an open and under an open store.

use std::fs;
use std::path::Path;

use epochlog_engine::signals::{self, BUS_ERROR_EXIT_CODE};
use epochlog_engine::{Error, Store, inspect};

use crate::child::{self, Walls, acknowledge, config, nothing_acknowledged_is_lost};
use crate::common::{append, body_for, image, message};

const RECORD: usize = 16 * 1024;

fn tell_of_a_remount(dir: &Path) {
    let dir = &fs::canonicalize(dir).unwrap().join("store");
    let mut config = config(dir);
    config.prefault_ahead_bytes = 0;
    let store = Store::open(config.clone()).unwrap();
    store.promote(1).unwrap();
    append(&store, 10, RECORD);
    store.flush().unwrap();
    let before = image(&store);
    // What the store has open stays as it is; every name in its folder is read-only.
    let read_only = "mount --bind \"$1\" \"$1\" && mount -o remount,bind,ro \"$1\"";
    child::shell(read_only, dir);
    let body = body_for(RECORD);
    let error = loop {
        if let Err(error) = store.append(&message(&body)) {
            break error;
        }
    };
    match &error {
        Error::Io { path, source, .. } => {
            assert!(path.starts_with(dir), "{error}");
            assert_eq!(source.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
        }
        error => panic!("{error}"),
    }
    let end = store.end_offset();
    assert!(image(&store).starts_with(&before));
    assert_eq!(store.flush().unwrap(), end);
    // The roll was refused before anything was changed, so it is made once it can be.
    child::shell("umount \"$1\"", dir);
    append(&store, 100, RECORD);
    store.close().unwrap();
    let whole = image(&Store::open(config.clone()).unwrap());
    assert!(whole.len() > usize::try_from(end).unwrap());
    // Closed, the folder can be looked at but not opened.
    child::shell(read_only, dir);
    let error = Store::open(config).err().unwrap().to_string();
    assert!(error.contains(&dir.display().to_string()), "{error}");
    assert!(error.contains("Read-only file system"), "{error}");
    let found = inspect::scan(dir).unwrap();
    assert_eq!(found.end_offset, whole.len() as u64);
}

#[test]
fn c18_a33_a_read_only_folder_refuses_the_roll_and_the_open_by_name() {
    let name = "read_only::c18_a33_a_read_only_folder_refuses_the_roll_and_the_open_by_name";
    if let Some((dir, _)) = child::role() {
        return tell_of_a_remount(&dir);
    }
    let dir = tempfile::tempdir().unwrap();
    child::succeed(name, "", dir.path(), Walls::Memory { mib: 32 });
}

/// ext4 finds an error in itself and turns read-only, as it does when its disk fails.
fn tell_of_an_error_in_ext4(outer: &Path) {
    signals::install().unwrap();
    let dir = &outer.join("disk/store");
    let store = Store::open(config(dir)).unwrap();
    store.promote(1).unwrap();
    append(&store, 10, RECORD);
    let end = store.flush().unwrap();
    acknowledge(&outer.join("ledger"), &store, end);
    let before = image(&store);
    let script = "name=$(basename \"$(findmnt -n -o SOURCE \"$1/disk\")\") && \
                  echo 1 > /sys/fs/ext4/$name/trigger_fs_error";
    child::shell(script, outer);
    // Pages of the segment may be refused from here on: that ends the process with the file's name, which
    // the parent accepts too. If they are not, the next sync is refused, and that is the end of writing.
    append(&store, 10, RECORD);
    let error = store.flush().unwrap_err();
    let path = dir.display().to_string();
    assert!(error.to_string().contains(&path), "{error}");
    assert!(matches!(store.flush(), Err(Error::Failed { .. })));
    assert!(matches!(
        store.append(&message(b"x")),
        Err(Error::Failed { .. })
    ));
    assert!(matches!(store.promote(2), Err(Error::Failed { .. })));
    assert_eq!(store.flushed_offset(), end);
    assert!(image(&store).starts_with(&before));
    assert!(store.close().is_err());
}

fn tell_of_the_time_after(outer: &Path) {
    let dir = outer.join("disk/store");
    let store = nothing_acknowledged_is_lost(&outer.join("ledger"), &dir);
    store.promote(2).unwrap();
    append(&store, 1, RECORD);
    store.close().unwrap();
}

#[test]
fn c18_c01_an_ext4_that_gives_up_ends_writing_by_name_and_loses_nothing_acknowledged() {
    let name = "read_only::c18_c01_an_ext4_that_gives_up_ends_writing_by_name_and_loses_nothing_acknowledged";
    match child::role() {
        Some((dir, part)) if part == "fails" => return tell_of_an_error_in_ext4(&dir),
        Some((dir, _)) => return tell_of_the_time_after(&dir),
        None => {}
    }
    let dir = tempfile::tempdir().unwrap();
    let walls = Walls::Ext4 { mib: 64 };
    let Some(output) = child::run(name, "fails", dir.path(), walls) else {
        println!("left out: this machine mounts no files");
        return;
    };
    let said = String::from_utf8_lossy(&output.stderr);
    let path = dir.path().join("disk/store/commitlog");
    let by_name = output.status.code() == Some(BUS_ERROR_EXIT_CODE)
        && said.contains(&path.display().to_string());
    assert!(output.status.success() || by_name, "{output:?}");
    assert!(child::succeed(name, "after", dir.path(), walls));
}
