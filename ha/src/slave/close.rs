//! Why a slave ends its connection, and whether trying again helps.

use epochlog_engine::{EpochEntry, Offset};

use crate::frame::FrameError;
use crate::handshake::Refusal;

/// Why a slave ends its connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SlaveClose {
    /// Bytes that are no frame.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The handshake's decision.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// A frame whose bytes are not what the master sent; nothing of it was published.
    #[error("the frame for offset {offset:?}: {error}")]
    Corrupt {
        /// Where its body belongs.
        offset: Option<Offset>,
        /// What differs.
        error: FrameError,
    },
    /// A frame for another place than the end of this log.
    #[error("a frame for offset {got:?} where {expected} was due")]
    OffsetMismatch {
        /// The frame's.
        got: Option<Offset>,
        /// The received end.
        expected: Offset,
    },
    /// A body that does not fit into this log's segment.
    #[error(
        "a body of {len} bytes at {offset} crosses this log's segment of {segment_size} bytes: the \
         master's mappedFileSizeCommitLog differs; make both equal and discard this replica's log \
         with `epochlog repair resync STORE_DIR`"
    )]
    SegmentSize {
        /// Where the body belongs.
        offset: Offset,
        /// Its length.
        len: u32,
        /// This log's segment size.
        segment_size: u64,
    },
    /// A body of an older epoch than the log's last.
    #[error(
        "a body of epoch {got} after epoch {last}: the master is not the one that wrote this log"
    )]
    EpochFell {
        /// The frame's.
        got: u32,
        /// The log's last.
        last: u32,
    },
    /// An epoch that cannot begin where the master says; a new handshake settles it.
    #[error(
        "epoch {} starts at {}, but this log has received up to {received_end}",
        entry.epoch,
        entry.start
    )]
    EpochStart {
        /// The master's entry.
        entry: EpochEntry,
        /// Where this log stands.
        received_end: Offset,
    },
    /// An epoch ends inside a record.
    #[error(
        "epoch {} begins at {}, inside a record that starts at {published_end}",
        entry.epoch,
        entry.start
    )]
    PartialRecord {
        /// The entry.
        entry: EpochEntry,
        /// The end of the last whole record.
        published_end: Offset,
    },
    /// Bytes below the consistent point differ from the master's.
    #[error("this log differs from the master's below {point}, first in the record at {record:?}")]
    Differs {
        /// The point the epochs gave.
        point: Offset,
        /// The start of the first record that differs, if it was found.
        record: Option<Offset>,
    },
    /// They differ already before the common epoch, or from the log's first record on.
    #[error(
        "this log differs from the master's already in the record at {from}, before or at the start \
         of everything that the epochs call common; check that the master belongs to this group, \
         then discard this replica's log with `epochlog repair resync STORE_DIR`"
    )]
    DiffersThroughout {
        /// Where the comparison began.
        from: Offset,
    },
    /// The master has more, and sends nothing: this log begins where it no longer has bytes.
    #[error(
        "the master's log reaches {master_end}, this one {end}, and nothing comes but heartbeats: \
         the master no longer has the bytes that follow; discard this replica's log with \
         `epochlog repair resync STORE_DIR`"
    )]
    NotServed {
        /// The master's end.
        master_end: Offset,
        /// This log's end.
        end: Offset,
    },
    /// A new replica was sent bytes that do not begin a segment.
    #[error(
        "the first body is for offset {offset}, which is no segment start of {segment_size} bytes"
    )]
    StartsInsideSegment {
        /// The frame's offset.
        offset: Offset,
        /// This log's segment size.
        segment_size: u64,
    },
    /// The log cannot take what the master sends.
    #[error("this log refuses: {why}")]
    LogRefuses {
        /// The engine's error.
        why: String,
        /// It will go on refusing until it is opened again.
        terminal: bool,
    },
    /// Nothing was heard for too long.
    #[error("nothing heard from the master for {silent_ms} ms")]
    Silent {
        /// For how long.
        silent_ms: u64,
    },
}

impl SlaveClose {
    /// Whether trying again soon is pointless: an operator has to act first.
    pub fn needs_operator(&self) -> bool {
        // The controller told this replica of the new epoch first; the master will hear of it.
        if matches!(self, Self::Refused(Refusal::MasterOlder { .. })) {
            return false;
        }
        matches!(
            self,
            Self::Refused(_)
                | Self::SegmentSize { .. }
                | Self::StartsInsideSegment { .. }
                | Self::NotServed { .. }
                | Self::DiffersThroughout { .. }
                | Self::LogRefuses { terminal: true, .. }
        )
    }

    /// Whether a log that holds nothing could follow the master that this one cannot.
    pub fn resync_helps(&self) -> bool {
        match self {
            Self::Refused(refusal) => matches!(
                refusal,
                Refusal::EpochFileMissing { .. }
                    | Refusal::NoCommonEpoch { .. }
                    | Refusal::BelowFirstSegment { .. }
                    | Refusal::OffRecordBoundary { .. }
                    | Refusal::ListsContradict { .. }
            ),
            Self::DiffersThroughout { .. } | Self::NotServed { .. } => true,
            _ => false,
        }
    }

    /// A short fixed word for metrics.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Frame(FrameError::Checksum { .. }) | Self::Corrupt { .. } => "checksum",
            Self::Frame(_) => "illegal-frame",
            Self::Refused(refusal) => refusal.reason(),
            Self::OffsetMismatch { .. } => "offset-mismatch",
            Self::SegmentSize { .. } => "segment-size",
            Self::EpochFell { .. } => "epoch-fell",
            Self::EpochStart { .. } => "epoch-start",
            Self::PartialRecord { .. } => "partial-record",
            Self::Differs { .. } => "differs",
            Self::DiffersThroughout { .. } => "differs-throughout",
            Self::NotServed { .. } => "not-served",
            Self::StartsInsideSegment { .. } => "starts-inside-segment",
            Self::LogRefuses { .. } => "log-refuses",
            Self::Silent { .. } => "silent",
        }
    }
}
