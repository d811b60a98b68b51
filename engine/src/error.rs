//! Everything the engine can answer with instead of doing what was asked.
//!
//! An error names the file and the offset it is about, and what to do next where there is a choice.
//! No error hides a write: after any of them the published end says what is in the log.

use std::io;
use std::path::{Path, PathBuf};

use crate::durable::FileError;
use crate::epoch_file::EpochFileError;
use crate::position::{Epoch, Offset};
use crate::repair::store_of;
use crate::state_file::StateFileError;

/// What went wrong in the engine.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused a file operation.
    #[error("{}: cannot {action}: {source}", path.display())]
    Io {
        /// What was tried, as a verb phrase: "sync", "rename over the segment".
        action: &'static str,
        /// The file or folder it was tried on.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },

    /// The file system has no room for a whole segment. Nothing was written; the log stays
    /// readable, and appends work again once there is space.
    #[error("{}: no space for a segment of {segment_size} bytes; free space and append again",
        path.display())]
    NoSpace {
        /// The segment that could not be made.
        path: PathBuf,
        /// Bytes it needs.
        segment_size: u64,
    },

    /// The disk is fuller than retention allows, and it has nothing more to remove. Nothing was written;
    /// the log stays readable, and appends work again once there is space.
    #[error("{}: {used_percent} percent of the disk are in use, more than appends are taken with \
        (diskSpaceWarningLevelRatio); nothing was written. Free space, and append again", path.display())]
    DiskFull {
        /// The store's folder.
        path: PathBuf,
        /// How much of the disk was in use when retention looked, in percent.
        used_percent: u8,
    },

    /// Another process has the store open.
    #[error("{}: locked by another process; stop that broker first", path.display())]
    Locked {
        /// The lock file.
        path: PathBuf,
    },

    /// This process has the store open already.
    #[error("{}: this process has the store open already", path.display())]
    OpenInThisProcess {
        /// The store's folder.
        path: PathBuf,
    },

    /// A setting cannot be used.
    #[error("setting {name}: {why}")]
    Setting {
        /// The field of `StoreConfig`.
        name: &'static str,
        /// Why it is refused.
        why: String,
    },

    /// Segments in the folder have another length than the configured one.
    #[error("{}: the file holds {len} bytes, but segments are configured as {segment_size} bytes \
        (mappedFileSizeCommitLog); configure the size the files have", path.display())]
    SegmentSize {
        /// A segment with another length.
        path: PathBuf,
        /// Its length in bytes.
        len: u64,
        /// The configured length in bytes.
        segment_size: u64,
    },

    /// Bytes that were durable once are damaged or gone. Nothing was changed.
    #[error("{} at offset {offset}: {why}; nothing was changed. `epochlog verify {}` shows \
        the extent, `epochlog repair tail {}` cuts the log there", file.display(), store_of(file).display(),
        store_of(file).display())]
    Damaged {
        /// The segment, or the place where it should be.
        file: PathBuf,
        /// The first offset that cannot be trusted.
        offset: Offset,
        /// What is wrong there.
        why: String,
    },

    /// Bytes that arrived or are read do not form a record.
    #[error("{} at offset {offset}: {why}", file.display())]
    Corrupt {
        /// The segment.
        file: PathBuf,
        /// Where the record would start.
        offset: Offset,
        /// What is wrong with it.
        why: String,
    },

    /// The epoch file cannot be read or is damaged. Nothing was changed.
    #[error(transparent)]
    EpochFile(#[from] EpochFileError),

    /// The epoch file does not belong to this log. Nothing was changed.
    #[error("{}: {why}; nothing was changed. `epochlog repair epoch {}` makes it whole",
        path.display(), store_of(path).display())]
    Epochs {
        /// The epoch file.
        path: PathBuf,
        /// What does not fit.
        why: String,
    },

    /// A repair was refused. Nothing was changed.
    #[error("{}: {why}; nothing was changed", path.display())]
    Repair {
        /// The file or folder that stands against it.
        path: PathBuf,
        /// Why it is refused.
        why: String,
    },

    /// The state file cannot be trusted. Nothing was changed.
    #[error(transparent)]
    StateFile(#[from] StateFileError),

    /// The message cannot be stored as a record.
    #[error("message refused: {0}")]
    Message(#[source] crate::record::MessageError),

    /// The records asked for do not fit into one segment with the 8 bytes its filler needs.
    #[error("{len} bytes of records do not fit into a segment of {segment_size} bytes")]
    TooLarge {
        /// Bytes of the record, or of all records of the batch.
        len: u64,
        /// The segment's length in bytes.
        segment_size: u64,
    },

    /// The store takes no appends now: it is no master.
    #[error("not writable: {why}")]
    NotWritable {
        /// Why not.
        why: &'static str,
    },

    /// The epoch is older than one this node already promised to follow.
    #[error("epoch {asked} refused: this node has followed epoch {max_epoch}")]
    StaleEpoch {
        /// The epoch asked for.
        asked: Epoch,
        /// The newest epoch this node has seen.
        max_epoch: Epoch,
    },

    /// This node served the epoch before and cannot prove that its log is what it was then.
    #[error("epoch {epoch} was served before an unclean stop; a master needs a newer epoch now")]
    NeedsNewerEpoch {
        /// The epoch that must not be served again.
        epoch: Epoch,
    },

    /// The epoch entry does not belong where it was to be put.
    #[error("epoch {epoch} starting at {start} refused: {why}")]
    EpochEntry {
        /// The entry's epoch.
        epoch: Epoch,
        /// The entry's start.
        start: Offset,
        /// Why it is refused.
        why: String,
    },

    /// The offset lies outside the log.
    #[error("offset {offset} is outside the log [{min}, {end})")]
    OutOfRange {
        /// The offset asked for.
        offset: Offset,
        /// First offset of the log.
        min: Offset,
        /// Published end of the log.
        end: Offset,
    },

    /// The offset lies inside a record.
    #[error("offset {offset} is neither the start nor the end of a record")]
    NotARecordBoundary {
        /// The offset asked for.
        offset: Offset,
    },

    /// The operation is for a slave, and this store is master.
    #[error("refused while master: {why}")]
    IsMaster {
        /// What would be broken.
        why: &'static str,
    },

    /// A receiver exists; finish it first.
    #[error("a receiver is still open on this store")]
    ReceiverActive,

    /// A receive window is still out; the kernel may be writing into it.
    #[error("a receive window is still out; wait for its completion and give it back")]
    WindowOutstanding,

    /// The receiver cannot do this now.
    #[error("receive refused at offset {offset}: {why}")]
    Receive {
        /// The received end.
        offset: Offset,
        /// Why it is refused.
        why: &'static str,
    },

    /// Something under `consumequeue/` cannot be used. Nothing was changed.
    #[error("{}: {why}; move consumequeue/ away while the store is closed, it is made again from the \
        log", path.display())]
    QueueFolder {
        /// The file or folder.
        path: PathBuf,
        /// Why it cannot be used.
        why: String,
    },

    /// Messages of a queue are missing between its end and the next one.
    #[error(
        "queue {topic}/{queue_id}: the message with queue offset {found} comes where {expected} \
        was expected"
    )]
    QueueGap {
        /// The queue's topic.
        topic: String,
        /// The queue's id.
        queue_id: i32,
        /// Queue offset behind the queue's last message.
        expected: i64,
        /// Queue offset of the message that came.
        found: i64,
    },

    /// The queue offset lies outside the queue.
    #[error("queue {topic}/{queue_id}: queue offset {offset} is outside [{min}, {max}]")]
    QueueRange {
        /// The queue's topic.
        topic: String,
        /// The queue's id.
        queue_id: i32,
        /// The queue offset asked for.
        offset: i64,
        /// Queue offset of the first message.
        min: i64,
        /// Queue offset behind the last message.
        max: i64,
    },

    /// A unit of a consume queue does not speak of the message it stands for.
    #[error("{} at queue offset {offset}: {why}; move consumequeue/ away while the store is closed, it \
        is made again from the log", file.display())]
    QueueDamaged {
        /// The queue's file.
        file: PathBuf,
        /// The unit's queue offset.
        offset: i64,
        /// What is wrong with it.
        why: String,
    },

    /// An earlier failure ended all writing until the store is opened again.
    #[error("the store failed earlier and takes no writes until reopened: {why}")]
    Failed {
        /// The failure.
        why: String,
    },

    /// The store was closed.
    #[error("the store is closed")]
    Closed,

    /// The wait ended before the offset was flushed; the bytes are in the log.
    #[error("offset {offset} was not flushed within the time given; flushed up to {flushed}")]
    FlushTimeout {
        /// The offset waited for.
        offset: Offset,
        /// The flushed end when the wait ended.
        flushed: Offset,
    },

    /// A test stopped the store in front of a durable step.
    #[doc(hidden)]
    #[error("stopped before step {step}")]
    Stopped {
        /// Number of the step that did not run.
        step: usize,
    },
}

impl Error {
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io {
            action,
            path: path.to_path_buf(),
            source,
        }
    }
}

impl From<FileError> for Error {
    fn from(error: FileError) -> Self {
        let FileError {
            action,
            path,
            source,
        } = error;
        Self::Io {
            action,
            path,
            source,
        }
    }
}
