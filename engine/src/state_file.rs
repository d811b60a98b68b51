//! What this node has promised and what it can prove: a file of our own beside Java's.
//!
//! Two slots, each with a sequence number and a CRC-32C, are written in turn and synced each time, so
//! a torn write costs the slot being written and never the one before it. Invariants: `max_epoch` and
//! `served_epoch` never fall; `scan_from <= flushed`; a state is on disk before what it allows begins,
//! which is why [`StateFile::store`] returns only after the sync. docs/format.md draws the layout.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::durable::{self, FileError, SystemDisk, calls};
use crate::position::{Epoch, MAX_EPOCH, MAX_OFFSET, Offset};
use crate::repair::store_of;

mod slot;

pub use slot::{STATE_SLOT_LEN, STATE_SLOT_STRIDE, STATE_VERSION};

/// The file's name in a store folder.
pub const STATE_FILE_NAME: &str = "epochlog.state";

/// Bytes of the file: two slots that share no disk sector.
pub const STATE_FILE_LEN: usize = 2 * STATE_SLOT_STRIDE;

/// The largest sequence, incarnation and generation: they travel as signed numbers, and one more never
/// overflows.
const MAX_COUNT: u64 = i64::MAX.unsigned_abs();

/// What a node has promised, and how far its log is proven.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Set by a clean stop: what the log must look like to be trusted without a scan. `None` while the
    /// store is open and after a crash.
    pub clean: Option<CleanStop>,
    /// The kernel run that wrote the state; bytes stored through a mapping outlive their process
    /// within it. All zero if unknown, which equals no other.
    pub boot_id: [u8; 16],
    /// How often the store was opened for writing.
    pub incarnation: u64,
    /// The newest epoch this node was told of; it takes part in no older one.
    pub max_epoch: Option<Epoch>,
    /// The newest epoch this node was master of.
    pub served_epoch: Option<Epoch>,
    /// Bytes below this offset were synced.
    pub flushed: Offset,
    /// A record start at or below `flushed`: where a scan may begin.
    pub scan_from: Offset,
    /// Raised by every cut, so that a sync that began before it is not believed.
    pub generation: u64,
    /// A sync failed: bytes above `flushed` are not on disk, whatever reading them says.
    pub sync_failed: bool,
    /// How far the consume queues are proven; `None` if they must be held against the log.
    pub queues: Option<QueuesMark>,
}

/// How far the consume queues are on disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueuesMark {
    /// Every message below this offset that belongs in a queue is in one, and synced.
    pub through: Offset,
    /// Sum, modulo 2^32, over the queues that hold messages then: CRC-32C of topic, a zero byte, queue id
    /// as i32, queue offset of the first message and behind the last one as i64.
    pub ends_crc: u32,
    /// No record below was passed over that has a queue offset; else only a walk over the log knows the
    /// next queue offsets.
    pub complete: bool,
}

impl QueuesMark {
    /// What is still proven after a cut at `to`, which leaves the queues with these ends.
    pub(crate) fn lowered_to(self, to: Offset, ends_crc: u32) -> Self {
        if self.through <= to {
            return self;
        }
        Self {
            through: to,
            ends_crc,
            ..self
        }
    }
}

/// What a log looked like when it was closed, complete and synced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CleanStop {
    /// End of the log.
    pub end: Offset,
    /// CRC-32C of the segments' base offsets, lowest first, as big-endian 64-bit numbers.
    pub bases_crc: u32,
    /// Bytes of the last record or filler; 0 if the log is empty.
    pub last_record_len: u32,
    /// CRC-32C of the last record's bytes; 0 if the log is empty.
    pub last_record_crc: u32,
    /// `EpochList::fingerprint` of the epoch file's list.
    pub epoch_file_crc: u32,
    /// `Checkpoint::fingerprint` of Java's checkpoint.
    pub checkpoint_crc: u32,
}

/// Why a state file cannot be used, or a state cannot be stored.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StateFileError {
    /// The system refused an operation. After a failed store the file holds the state before it or
    /// the new one.
    #[error(transparent)]
    File(#[from] FileError),
    /// Neither slot can be read. Nothing was changed.
    #[error(
        "{}: damaged: neither of its two slots is whole ({first}; {second}). What this node has \
         promised is lost, so it must rejoin as a new replica: `epochlog repair resync {}`",
        path.display(), store_of(path).display()
    )]
    Damaged {
        /// The state file.
        path: PathBuf,
        /// What is wrong with the first slot.
        first: &'static str,
        /// What is wrong with the second slot.
        second: &'static str,
    },
    /// A newer release wrote the file. Nothing was changed.
    #[error(
        "{}: written in version {version} of the format, this program knows {STATE_VERSION}; use the \
         newer program", path.display()
    )]
    Newer {
        /// The state file.
        path: PathBuf,
        /// The version found.
        version: u32,
    },
    /// The state would take back a promise or contradicts itself. Nothing was written.
    #[error("{}: refused to store a state: {why}", path.display())]
    Contradiction {
        /// The state file.
        path: PathBuf,
        /// Which rule it breaks.
        why: &'static str,
    },
}

/// The state file of a store folder, open for writing.
#[derive(Debug)]
pub struct StateFile {
    path: PathBuf,
    file: File,
    current: State,
    sequence: u64,
    /// Index of the slot that holds `current`; the next state goes to the other one.
    slot: usize,
}

impl StateFile {
    /// Reads the newest state at `path`; writes nothing. `None` if there is no file: a folder of
    /// Java's, or a new one.
    ///
    /// # Errors
    /// [`StateFileError`] if the file cannot be read, is damaged, or is of a newer version.
    pub fn read(path: &Path) -> Result<Option<State>, StateFileError> {
        Ok(newest(path)?.map(|found| found.state))
    }

    /// Opens the file at `path` and makes `state` its newest state, which is durable on return. A
    /// missing file is made whole, under its name only when it is complete.
    ///
    /// # Errors
    /// [`StateFileError`], as for [`Self::read`] and [`Self::store`].
    pub fn open(path: impl Into<PathBuf>, state: State) -> Result<Self, StateFileError> {
        let path = path.into();
        if let Some(found) = newest(&path)? {
            let file = open_for_writing(&path)?;
            let slot::Found {
                state: current,
                sequence,
                slot,
            } = found;
            let mut opened = Self {
                path,
                file,
                current,
                sequence,
                slot,
            };
            opened.store(state)?;
            return Ok(opened);
        }
        Self::renew(path, state)
    }

    /// Puts a whole new file in the place of one that is missing or cannot be read, with `state` as
    /// its only state, which is durable on return. What an older file promised is gone.
    pub(crate) fn renew(path: impl Into<PathBuf>, state: State) -> Result<Self, StateFileError> {
        let path = path.into();
        check(&path, &State::default(), &state)?;
        let mut bytes = vec![0; STATE_FILE_LEN];
        bytes[..STATE_SLOT_LEN].copy_from_slice(&slot::encode(&state, 1));
        durable::replace(&SystemDisk, &path, &bytes)?;
        let file = open_for_writing(&path)?;
        Ok(Self {
            path,
            file,
            current: state,
            sequence: 1,
            slot: 0,
        })
    }

    /// The newest state that is known to be durable.
    #[must_use]
    pub fn current(&self) -> &State {
        &self.current
    }

    /// Writes `state` over the older slot. On return it is durable and the one before it is still
    /// there.
    ///
    /// # Errors
    /// [`StateFileError::Contradiction`] if the state lowers `max_epoch` or `served_epoch`, or breaks
    /// another rule of the format; [`StateFileError::File`] if the system refuses. The next store
    /// then writes the same slot again, so the last good one stays.
    pub fn store(&mut self, state: State) -> Result<(), StateFileError> {
        check(&self.path, &self.current, &state)?;
        let (slot, sequence) = (1 - self.slot, self.sequence + 1);
        if sequence > MAX_COUNT {
            return Err(StateFileError::Contradiction {
                path: self.path.clone(),
                why: "the sequence is at its largest",
            });
        }
        let at = (slot * STATE_SLOT_STRIDE) as u64;
        let bytes = slot::encode(&state, sequence);
        calls::changing(&self.path)
            .and_then(|()| self.file.write_all_at(&bytes, at))
            .map_err(FileError::new("write", &self.path))?;
        calls::sync_data(&self.file, &self.path).map_err(FileError::new("sync", &self.path))?;
        self.current = state;
        self.sequence = sequence;
        self.slot = slot;
        Ok(())
    }
}

fn open_for_writing(path: &Path) -> Result<File, FileError> {
    File::options()
        .read(true)
        .write(true)
        .open(path)
        .map_err(FileError::new("open", path))
}

/// The newest whole slot of the file at `path`.
fn newest(path: &Path) -> Result<Option<slot::Found>, StateFileError> {
    let Some(bytes) = durable::read_limited(path, STATE_FILE_LEN as u64)? else {
        return Ok(None);
    };
    let at = |index: usize| {
        let start = index * STATE_SLOT_STRIDE;
        let slot = bytes
            .get(start..start + STATE_SLOT_LEN)
            .ok_or(slot::Unusable::Short)?;
        let (state, sequence) = slot::decode(slot)?;
        consistent(&state).map_err(slot::Unusable::Contradiction)?;
        if sequence > MAX_COUNT {
            let why = "the sequence is beyond any that is written";
            return Err(slot::Unusable::Contradiction(why));
        }
        Ok(slot::Found {
            state,
            sequence,
            slot: index,
        })
    };
    match (at(0), at(1)) {
        // A newer version's slot may be the older or the newer of the two: it refuses either way.
        (Err(slot::Unusable::Newer(version)), _) | (_, Err(slot::Unusable::Newer(version))) => {
            Err(StateFileError::Newer {
                path: path.to_path_buf(),
                version,
            })
        }
        (Ok(first), Ok(second)) => Ok(Some(if second.sequence > first.sequence {
            second
        } else {
            first
        })),
        (Ok(found), Err(_)) | (Err(_), Ok(found)) => Ok(Some(found)),
        (Err(first), Err(second)) => Err(StateFileError::Damaged {
            path: path.to_path_buf(),
            first: first.why(),
            second: second.why(),
        }),
    }
}

/// Holds a state against the rules and against the state it follows.
fn check(path: &Path, before: &State, state: &State) -> Result<(), StateFileError> {
    let lowered = if state.max_epoch < before.max_epoch {
        Err("max_epoch would fall")
    } else if state.served_epoch < before.served_epoch {
        Err("served_epoch would fall")
    } else if state.incarnation < before.incarnation {
        Err("incarnation would fall")
    } else {
        Ok(())
    };
    lowered
        .and_then(|()| consistent(state))
        .map_err(|why| StateFileError::Contradiction {
            path: path.to_path_buf(),
            why,
        })
}

/// The rules a state obeys by itself.
fn consistent(state: &State) -> Result<(), &'static str> {
    let epochs = [state.max_epoch, state.served_epoch];
    if epochs.into_iter().flatten().any(|epoch| epoch > MAX_EPOCH) {
        return Err("an epoch is beyond what Java can hold");
    }
    if state.served_epoch > state.max_epoch {
        return Err("served_epoch is above max_epoch");
    }
    if state.scan_from > state.flushed {
        return Err("scan_from is above flushed");
    }
    if state.incarnation.max(state.generation) > MAX_COUNT {
        return Err("a counter is beyond any that is written");
    }
    if state.flushed > MAX_OFFSET {
        return Err("flushed is beyond what Java can hold");
    }
    match state.clean {
        Some(clean) if clean.end != state.flushed => Err("a clean log is not flushed to its end"),
        Some(_) if state.sync_failed => Err("a log is not clean after a failed sync"),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
