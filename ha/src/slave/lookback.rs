//! How far below the consistent point the overlap check begins.
//!
//! Epochs alone do not protect from a master that reused an epoch or belongs to another group: its
//! list may look the same. So the last record before the point is compared before the point is
//! acked, and when it differs, more and more of the log.

use epochlog_engine::Offset;

/// One step of going back. The steps follow each other from reconnect to reconnect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lookback {
    /// To the start of the last whole record before the point.
    #[default]
    LastRecord,
    /// So many bytes before the point.
    Bytes(u64),
    /// To the last record before the common epoch, so that a difference from the epoch's first byte
    /// on is seen to begin there.
    EpochStart,
}

const NEAR: u64 = 1 << 20;
const FAR: u64 = 64 << 20;

impl Lookback {
    /// The next step back; none after the last.
    pub fn further(self) -> Option<Self> {
        match self {
            Self::LastRecord => Some(Self::Bytes(NEAR)),
            Self::Bytes(bytes) if bytes < FAR => Some(Self::Bytes(FAR)),
            Self::Bytes(_) => Some(Self::EpochStart),
            Self::EpochStart => None,
        }
    }

    /// Where the comparison begins: not below `floor` (the last record before the common epoch, or
    /// the log's first offset if there is none). `last_record` is asked for the start of the last record
    /// before the point. None skips the check: there is nothing to compare, or the last record
    /// starts at 0, which a report cannot say.
    pub fn begin(
        self,
        point: Offset,
        floor: Offset,
        last_record: impl FnOnce() -> Option<Offset>,
    ) -> Option<Offset> {
        if point <= floor {
            return None;
        }
        match self {
            Self::LastRecord => last_record().filter(|start| *start > 0 && *start < point),
            Self::Bytes(bytes) => Some(point.saturating_sub(bytes).max(floor)),
            Self::EpochStart => Some(floor),
        }
    }
}
