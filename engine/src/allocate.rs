//! Files with every block allocated, and ranges that durably read as zero.
//!
//! A store into a mapped page without a block is a SIGBUS on a full disk, so a segment has its blocks
//! before it is mapped; a full disk is an error here (RocketMQ makes sparse files).

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

use crate::durable::calls;
use crate::error::Error;

static ZEROS: [u8; 64 * 1024] = [0; 64 * 1024];

/// Makes a new file of `len` zero bytes, all blocks allocated, and syncs it. A leftover of that name is
/// replaced. The name itself is durable only after a sync of the directory.
pub(crate) fn create(path: &Path, len: u64) -> Result<File, Error> {
    let mut files = create_all(&[path], len)?;
    Ok(files.pop().expect("one was asked for"))
}

/// As [`create`] for several files. All of them get their blocks before the first is synced: that sync brings
/// the journal to the disk for all. After an error none of them is left.
pub(crate) fn create_all(paths: &[impl AsRef<Path>], len: u64) -> Result<Vec<File>, Error> {
    let mut files = Vec::with_capacity(paths.len());
    let begun = paths.iter().try_for_each(|path| {
        files.push(begin(path.as_ref(), len)?);
        Ok(())
    });
    let synced = begun.and_then(|()| {
        let mut made = files.iter().zip(paths);
        made.try_for_each(|(file, path)| {
            let path = path.as_ref();
            let synced = calls::sync_all(file, path);
            synced.map_err(|error| refused("allocate", path, len, error))
        })
    });
    match synced {
        Ok(()) => Ok(files),
        Err(error) => {
            for path in &paths[..files.len()] {
                // Best effort: the next attempt replaces a leftover anyway.
                let _ = calls::remove_file(path.as_ref());
            }
            Err(error)
        }
    }
}

/// Makes a new file with all its blocks; nothing is durable yet.
fn begin(path: &Path, len: u64) -> Result<File, Error> {
    match calls::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(Error::io("remove", path)(error));
        }
        _ => {}
    }
    let file = calls::changing(path)
        .and_then(|()| {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create_new(true).open(path)
        })
        .map_err(|error| refused("create", path, len, error))?;
    if let Err(error) = calls::changing(path).and_then(|()| allocate(&file, len)) {
        drop(file);
        let _ = calls::remove_file(path);
        return Err(refused("allocate", path, len, error));
    }
    Ok(file)
}

/// Makes `[from, to)` of the file at `path` read as zero, blocks kept, and syncs it.
pub(crate) fn erase(file: &File, path: &Path, from: u64, to: u64) -> io::Result<()> {
    if from < to {
        calls::changing(path)?;
        match fallocate(file, FallocateFlags::ZERO_RANGE, from, to - from) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => write_zeros(file, from, to)?,
            answer => answer?,
        }
    }
    calls::sync_data(file, path)
}

/// Makes `[from, to)` of the file at `path` read as zero, blocks given back, and syncs it. For files that are written
/// with writes: one that finds no block is an error.
pub(crate) fn punch(file: &File, path: &Path, from: u64, to: u64) -> io::Result<()> {
    if from < to {
        calls::changing(path)?;
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match fallocate(file, hole, from, to - from) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => write_zeros(file, from, to)?,
            answer => answer?,
        }
    }
    calls::sync_data(file, path)
}

/// Syncs a directory, so that the names made or removed in it stay so.
pub(crate) fn sync_directory(path: &Path) -> Result<(), Error> {
    calls::sync_directory(path).map_err(Error::io("sync", path))
}

fn allocate(file: &File, len: u64) -> io::Result<()> {
    match fallocate(file, FallocateFlags::empty(), 0, len) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => write_zeros(file, 0, len),
        answer => Ok(answer?),
    }
}

fn write_zeros(file: &File, from: u64, to: u64) -> io::Result<()> {
    let mut at = from;
    while at < to {
        let len = usize::try_from(to - at).map_or(ZEROS.len(), |left| left.min(ZEROS.len()));
        file.write_all_at(&ZEROS[..len], at)?;
        at += len as u64;
    }
    Ok(())
}

fn refused(action: &'static str, path: &Path, len: u64, error: io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
            Error::NoSpace {
                path: path.to_path_buf(),
                segment_size: len,
            }
        }
        _ => Error::io(action, path)(error),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn a_new_file_has_all_its_blocks() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("segment");
        fs::write(&path, "leftover").unwrap();
        let file = create(&path, 1 << 20).unwrap();
        let metadata = file.metadata().unwrap();
        assert_eq!(metadata.len(), 1 << 20);
        assert!(metadata.blocks() * 512 >= 1 << 20);
        assert!(fs::read(&path).unwrap().iter().all(|byte| *byte == 0));
    }

    #[test]
    fn h01_a_full_disk_is_an_error_that_leaves_no_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("segment");
        // More than any disk here has.
        let asked = 1 << 60;
        assert!(matches!(
            create(&path, asked),
            Err(Error::NoSpace { segment_size, .. }) if segment_size == asked
        ));
        assert!(!path.exists());
    }

    #[test]
    fn of_several_files_none_is_left_when_one_of_them_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let mut paths: Vec<_> = (0..3).map(|it| dir.path().join(it.to_string())).collect();
        create_all(&paths, 1 << 16).unwrap();
        for path in &paths {
            assert!(fs::read(path).unwrap() == vec![0; 1 << 16]);
        }
        // A directory stands where the fourth is to be.
        paths.push(dir.path().join("3"));
        fs::create_dir(&paths[3]).unwrap();
        assert!(create_all(&paths, 1 << 16).is_err());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn both_ways_of_erasing_leave_zeros_and_the_bytes_before() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("segment");
        for by_hand in [false, true] {
            fs::write(&path, vec![7; 200_000]).unwrap();
            let file = OpenOptions::new().write(true).open(&path).unwrap();
            if by_hand {
                write_zeros(&file, 100, 200_000).unwrap();
            } else {
                erase(&file, &path, 100, 200_000).unwrap();
            }
            let bytes = fs::read(&path).unwrap();
            assert_eq!(bytes.len(), 200_000);
            assert!(bytes[..100].iter().all(|byte| *byte == 7));
            assert!(bytes[100..].iter().all(|byte| *byte == 0));
        }
    }
}
