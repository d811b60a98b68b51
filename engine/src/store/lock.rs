//! One opener per store folder: among processes by the lock Java takes, within this one by a list.
//!
//! Java locks byte 0 of `lock` (RocketMQ: DefaultMessageStore.start), which on Linux is an fcntl lock. Such
//! a lock belongs to the process and goes when any descriptor of the file is closed, so the list is
//! asked before the file is touched.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};

use parking_lot::Mutex;
use rustix::fs::{FlockOperation, fcntl_lock};
use rustix::io::Errno;

use crate::error::Error;
use crate::folder::Folder;

/// Device and inode of each store folder this process has open, and what for.
static OPEN: Mutex<BTreeMap<(u64, u64), Opener>> = Mutex::new(BTreeMap::new());

/// Who takes a store folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Opener {
    /// A store, which writes to its segments through mappings.
    Store,
    /// A repair, which does not while it looks.
    Repair,
}

/// Held while a store is open.
pub(crate) struct StoreLock {
    folder: (u64, u64),
    /// Closing it gives the lock back.
    file: Option<File>,
}

impl StoreLock {
    /// Whether a store of this process has the folder open.
    pub(crate) fn is_a_store_here(folder: &Folder) -> bool {
        let metadata = fs::metadata(folder.root());
        metadata.is_ok_and(|it| OPEN.lock().get(&(it.dev(), it.ino())) == Some(&Opener::Store))
    }

    /// Takes the store folder, which must exist.
    pub(crate) fn take(folder: &Folder, opener: Opener) -> Result<Self, Error> {
        let root = folder.root();
        let metadata = fs::metadata(root).map_err(Error::io("open the store folder", root))?;
        let id = (metadata.dev(), metadata.ino());
        match OPEN.lock().entry(id) {
            Entry::Occupied(_) => {
                return Err(Error::OpenInThisProcess {
                    path: root.to_path_buf(),
                });
            }
            Entry::Vacant(free) => free.insert(opener),
        };
        let mut lock = Self {
            folder: id,
            file: None,
        };
        let path = folder.lock();
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(Error::io("open", &path))?;
        match fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::AGAIN | Errno::ACCESS) => return Err(Error::Locked { path }),
            answer => answer.map_err(|error| Error::io("lock", &path)(error.into()))?,
        }
        file.write_all_at(b"lock", 0)
            .map_err(Error::io("write", &path))?;
        lock.file = Some(file);
        Ok(lock)
    }
}

impl Drop for StoreLock {
    fn drop(&mut self) {
        // The file first: whoever finds the list free must find the lock free too.
        drop(self.file.take());
        OPEN.lock().remove(&self.folder);
    }
}
