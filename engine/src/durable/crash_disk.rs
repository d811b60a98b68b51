//! A disk in memory that can lose what was not synced, and lose power before any operation.
//!
//! It keeps what a program sees apart from what would survive. Three ways to lose power are tried:
//! unsynced bytes are gone, unsynced bytes are zeros of the right length, names reach the disk before
//! anybody synced the directory.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use super::{Disk, FileError};

/// What survives of a write or a rename nobody synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loss {
    /// Nothing.
    Gone,
    /// The length, with zeros for bytes.
    Zeros,
    /// Names at once, bytes not.
    NamesFirst,
}

pub(crate) const LOSSES: [Loss; 3] = [Loss::Gone, Loss::Zeros, Loss::NamesFirst];

/// A file: what a reader sees now and what was synced.
#[derive(Default)]
struct Inode {
    seen: Vec<u8>,
    synced: Option<Vec<u8>>,
}

type Names = BTreeMap<PathBuf, Rc<RefCell<Inode>>>;

/// See the head of this file.
#[derive(Default)]
pub(crate) struct CrashDisk {
    seen: RefCell<Names>,
    synced: RefCell<Names>,
    left: RefCell<usize>,
}

impl CrashDisk {
    /// A disk that fails every operation after the next `operations`.
    pub(crate) fn failing_after(operations: usize) -> Self {
        Self {
            left: RefCell::new(operations),
            ..Self::default()
        }
    }

    /// The same disk with power for `operations` more.
    pub(crate) fn allow(&self, operations: usize) {
        *self.left.borrow_mut() = operations;
    }

    /// What is under `path` after the power comes back.
    pub(crate) fn after_power_loss(&self, path: &Path, loss: Loss) -> Option<Vec<u8>> {
        let names = if loss == Loss::NamesFirst {
            &self.seen
        } else {
            &self.synced
        };
        let names = names.borrow();
        let inode = names.get(path)?.borrow();
        Some(match (&inode.synced, loss) {
            (Some(bytes), _) => bytes.clone(),
            (None, Loss::Zeros) => vec![0; inode.seen.len()],
            (None, _) => Vec::new(),
        })
    }

    /// What is under `path` after the process was killed.
    pub(crate) fn after_kill(&self, path: &Path) -> Option<Vec<u8>> {
        Some(self.seen.borrow().get(path)?.borrow().seen.clone())
    }

    fn operate(&self, path: &Path) -> Result<(), FileError> {
        let mut left = self.left.borrow_mut();
        if *left == 0 {
            return Err(FileError::new("reach", path)(io::Error::other("no power")));
        }
        *left -= 1;
        Ok(())
    }
}

impl Disk for CrashDisk {
    fn write(&self, path: &Path, bytes: &[u8]) -> Result<(), FileError> {
        self.operate(path)?;
        // Truncating an existing file loses its synced bytes as well.
        let inode = Inode {
            seen: bytes.to_vec(),
            synced: None,
        };
        let inode = Rc::new(RefCell::new(inode));
        self.seen.borrow_mut().insert(path.to_path_buf(), inode);
        Ok(())
    }

    fn sync(&self, path: &Path) -> Result<(), FileError> {
        self.operate(path)?;
        let names = self.seen.borrow();
        let mut inode = names[path].borrow_mut();
        inode.synced = Some(inode.seen.clone());
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<(), FileError> {
        self.operate(from)?;
        let mut names = self.seen.borrow_mut();
        let inode = names
            .remove(from)
            .expect("only what was written is renamed");
        names.insert(to.to_path_buf(), inode);
        Ok(())
    }

    fn sync_dir(&self, path: &Path) -> Result<(), FileError> {
        self.operate(path)?;
        self.synced.replace(self.seen.borrow().clone());
        Ok(())
    }
}
