//! The epoch file of a store folder: Java's `epochFileCheckpoint` and its backup.
//!
//! Invariants: the main file is replaced as a whole, so it is never torn by us. The backup is written
//! after it and with the same content: an older list would lose the newest entry when it is put back,
//! and bytes without their entry count as an older epoch's. A damaged main file is never replaced by
//! its backup here; that is the operator's decision. An empty list is written like any other.

use std::path::{Path, PathBuf};

use crate::durable::{self, Disk, FileError, SystemDisk};
use crate::epoch_list::{EpochList, EpochTextError};
use crate::repair::store_of;

/// The file's name in a store folder (RocketMQ: storePathEpochFile).
pub const EPOCH_FILE_NAME: &str = "epochFileCheckpoint";

/// The largest epoch file that is read, in bytes: more than two million entries.
pub const MAX_EPOCH_FILE_LEN: u64 = 64 * 1024 * 1024;

const BACKUP_SUFFIX: &str = ".bak";

/// Where a log's epoch list is kept.
#[derive(Clone, Debug)]
pub struct EpochFile {
    path: PathBuf,
}

/// Why an epoch file cannot be used. Nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EpochFileError {
    /// The system refused an operation.
    #[error(transparent)]
    File(#[from] FileError),
    /// The main file is there and cannot be trusted.
    #[error(
        "{}: damaged epoch file: {why}. Its backup {}: {backup_state}. Compare the two with another \
         replica, then run `epochlog repair epoch {}`",
        path.display(), backup.display(), store_of(path).display()
    )]
    Damaged {
        /// The main file.
        path: PathBuf,
        /// What is wrong with it.
        why: EpochTextError,
        /// The backup, which was not used.
        backup: PathBuf,
        /// What the backup holds, for whoever decides.
        backup_state: String,
    },
}

impl EpochFile {
    /// The epoch file at `path`; nothing is read or written yet.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// The main file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The backup, which holds the same list.
    #[must_use]
    pub fn backup_path(&self) -> PathBuf {
        durable::with_suffix(&self.path, BACKUP_SUFFIX)
    }

    /// Reads the list; writes nothing. `None` if there is no main file, whatever the backup holds:
    /// right for a new store, not for a log with bytes in it.
    ///
    /// # Errors
    /// [`EpochFileError`] if the main file cannot be read or is damaged.
    pub fn load(&self) -> Result<Option<EpochList>, EpochFileError> {
        let Some(bytes) = durable::read_limited(&self.path, MAX_EPOCH_FILE_LEN)? else {
            return Ok(None);
        };
        EpochList::decode(&bytes)
            .map(Some)
            .map_err(|why| EpochFileError::Damaged {
                path: self.path.clone(),
                why,
                backup: self.backup_path(),
                backup_state: self.describe_backup(),
            })
    }

    /// Makes `list` the content of the file and then of its backup. On return both are durable.
    ///
    /// # Errors
    /// [`EpochFileError`]; the main file then holds the old list or the new one, whole.
    pub fn replace(&self, list: &EpochList) -> Result<(), EpochFileError> {
        self.replace_on(&SystemDisk, list)
    }

    fn replace_on(&self, disk: &impl Disk, list: &EpochList) -> Result<(), EpochFileError> {
        let text = list.encode();
        durable::replace(disk, &self.path, text.as_bytes())?;
        durable::replace(disk, &self.backup_path(), text.as_bytes())?;
        Ok(())
    }

    fn describe_backup(&self) -> String {
        match durable::read_limited(&self.backup_path(), MAX_EPOCH_FILE_LEN) {
            Err(error) => error.to_string(),
            Ok(None) => "missing".to_owned(),
            Ok(Some(bytes)) => match EpochList::decode(&bytes) {
                Err(why) => format!("damaged too: {why}"),
                Ok(list) => match list.last() {
                    None => "readable, an empty list".to_owned(),
                    Some(last) => format!(
                        "readable, {} entries, the last one epoch {} starting at {}",
                        list.len(),
                        last.epoch,
                        last.start
                    ),
                },
            },
        }
    }
}

#[cfg(test)]
mod tests;
