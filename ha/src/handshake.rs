//! What a slave does with its log when a master has told its epochs and its end: cut, keep, refuse.
//!
//! Invariants:
//! - The decision depends on epochs and ends alone, never on a confirm offset.
//! - A point is never past the end of either log, and never past the first byte that differs as
//!   long as both lists tell the truth: an equal epoch with an equal start has one writer.
//! - Entries that start past their own log's end are dropped on both sides before anything is
//!   compared: they label bytes that are gone.
//! - Every refusal says what the operator can do next.
//!
//! Pure. RocketMQ: `AutoSwitchHAClient.doTruncate`, `EpochFileCache.findConsistentPoint`.

use std::fmt;

use epochlog_engine::{Epoch, EpochEntry, EpochList, Offset};

use crate::frame::LogId;

/// The slave's side.
#[derive(Clone, Copy, Debug)]
pub struct SlaveSide<'a> {
    /// Its epoch list.
    pub epochs: &'a EpochList,
    /// The first offset of its log.
    pub min: Offset,
    /// The published end of its log; equal to `min` when it holds nothing.
    pub end: Offset,
    /// The epoch in which the controller made it this master's slave, if it knows.
    pub role_epoch: Option<Epoch>,
}

/// The master's side, as the handshake told it.
#[derive(Clone, Copy, Debug)]
pub struct MasterSide<'a> {
    /// Its epoch list.
    pub epochs: &'a EpochList,
    /// The end of its log.
    pub end: Offset,
    /// The epoch it serves, if it is known from elsewhere than its list. A list may rightly end in
    /// an older epoch than the slave's, so the list alone never proves a master old.
    pub role_epoch: Option<Epoch>,
}

/// Where two logs agree, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConsistentPoint {
    /// The logs are equal below this offset.
    pub point: Offset,
    /// The newest entry both lists hold with the same start.
    pub entry: EpochEntry,
    /// Where that epoch ends in the slave's log.
    pub slave_end: Offset,
    /// Where it ends in the master's log.
    pub master_end: Offset,
}

/// What a decision rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The slave's log holds nothing, so nothing of it can differ.
    EmptyLog,
    /// The newest common epoch and its two ends.
    CommonEpoch(ConsistentPoint),
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::EmptyLog => f.write_str("the slave's log is empty"),
            Self::CommonEpoch(ConsistentPoint {
                entry,
                slave_end,
                master_end,
                ..
            }) => write!(
                f,
                "epoch {} starting at {} is the newest both have; it ends at {slave_end} on the \
                 slave and at {master_end} on the master",
                entry.epoch, entry.start
            ),
        }
    }
}

/// The slave may join: after cutting its log to `point`, if there is more of it, its list becomes
/// `epochs`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Where both logs agree; the slave goes on from here.
    pub point: Offset,
    /// Bytes to cut off the slave's log; 0 keeps it whole.
    pub cut_bytes: u64,
    /// The slave's list afterwards, to be made durable after the cut even when no byte goes: its
    /// own entries from below the master's first, then the master's up to `point`.
    pub epochs: EpochList,
    /// What the decision rests on.
    pub why: Why,
}

/// The slave cannot join this master as it is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The log has bytes and no epoch says whose.
    #[error(
        "the log holds bytes from {min} to {end} but its epoch list is empty; restore the epoch \
         file with `epochlog repair epoch STORE_DIR`, or discard this replica's log with \
         `epochlog repair resync STORE_DIR`"
    )]
    EpochFileMissing {
        /// First offset of the log.
        min: Offset,
        /// Its end.
        end: Offset,
    },
    /// The lists share no entry.
    #[error(
        "no epoch is common to this replica ({own}) and the master ({master}); check that the \
         master belongs to this group, then discard this replica's log with \
         `epochlog repair resync STORE_DIR`"
    )]
    NoCommonEpoch {
        /// The slave's list, shortened.
        own: String,
        /// The master's list, shortened.
        master: String,
    },
    /// The logs agree only below what the slave still holds.
    #[error(
        "the logs agree up to {point}, below this replica's first offset {min}; discard its log \
         with `epochlog repair resync STORE_DIR`"
    )]
    BelowFirstSegment {
        /// Where they agree.
        point: Offset,
        /// First offset of the slave's log.
        min: Offset,
    },
    /// The point lies inside a record of the slave, so the bytes below it differ already.
    #[error(
        "the point {point} is neither the end nor a record start of this replica's log: its bytes \
         differ from the master's although the epochs agree; compare with \
         `epochlog verify STORE_DIR`, then discard this replica's log with \
         `epochlog repair resync STORE_DIR`"
    )]
    OffRecordBoundary {
        /// The point.
        point: Offset,
    },
    /// The master serves an older epoch than the one this node was told.
    #[error(
        "the master serves epoch {master}, this replica was told of epoch {own}; wait for the \
         controller to name the present master, or ask it with `epochlog inspect`"
    )]
    MasterOlder {
        /// The slave's role epoch.
        own: Epoch,
        /// The master's.
        master: Epoch,
    },
    /// The master's log is another broker set's.
    #[error(
        "the master's log is {master}, this replica's {own}: they belong to different broker sets \
         (brokerClusterName, brokerName); point this replica at a master of its own"
    )]
    OtherLog {
        /// This replica's.
        own: LogId,
        /// The master's.
        master: LogId,
    },
    /// The logs are cut into segments of different sizes.
    #[error(
        "the master's segments are {master} bytes long, this replica's {own}: set \
         mappedFileSizeCommitLog to the master's, then discard this replica's log with \
         `epochlog repair resync STORE_DIR`"
    )]
    SegmentSize {
        /// This replica's.
        own: u64,
        /// The master's.
        master: u64,
    },
    /// The lists contradict each other below the point.
    #[error(
        "the master's epoch list ({master}) does not continue this replica's ({own}) at {point}; \
         check that the master belongs to this group, then discard this replica's log with \
         `epochlog repair resync STORE_DIR`"
    )]
    ListsContradict {
        /// Where they were to be joined.
        point: Offset,
        /// The slave's list, shortened.
        own: String,
        /// The master's list, shortened.
        master: String,
    },
}

impl Refusal {
    /// A short fixed word for reports and metrics.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::EpochFileMissing { .. } => "epoch-file-missing",
            Self::NoCommonEpoch { .. } => "no-common-epoch",
            Self::BelowFirstSegment { .. } => "below-first-segment",
            Self::OffRecordBoundary { .. } => "not-a-record-start",
            Self::MasterOlder { .. } => "master-older",
            Self::OtherLog { .. } => "other-log",
            Self::SegmentSize { .. } => "segment-size",
            Self::ListsContradict { .. } => "lists-contradict",
        }
    }
}

/// Decides what a slave does before it follows a master. `is_record_start` is asked at most once,
/// for a point strictly inside the slave's log.
///
/// # Errors
/// [`Refusal`]: nothing may be cut.
pub fn decide(
    slave: SlaveSide<'_>,
    master: MasterSide<'_>,
    is_record_start: impl FnOnce(Offset) -> bool,
) -> Result<Decision, Refusal> {
    if let (Some(own), Some(master)) = (slave.role_epoch, master.role_epoch)
        && master < own
    {
        return Err(Refusal::MasterOlder { own, master });
    }
    let SlaveSide { min, end, .. } = slave;
    if end == min {
        return decide_empty(slave, master);
    }
    if slave.epochs.is_empty() {
        return Err(Refusal::EpochFileMissing { min, end });
    }
    let Some(found) = find_consistent_point(slave.epochs, end, master.epochs, master.end) else {
        return Err(Refusal::NoCommonEpoch {
            own: shortened(slave.epochs),
            master: shortened(master.epochs),
        });
    };
    let point = found.point;
    if point < min {
        return Err(Refusal::BelowFirstSegment { point, min });
    }
    if point < end && point > min && !is_record_start(point) {
        return Err(Refusal::OffRecordBoundary { point });
    }
    let why = Why::CommonEpoch(found);
    adopted(slave.epochs, master, point, end - point, why)
}

/// An empty log's own list claims nothing and counts as empty.
fn decide_empty(slave: SlaveSide<'_>, master: MasterSide<'_>) -> Result<Decision, Refusal> {
    let point = slave.end;
    if point > master.end {
        return Err(Refusal::BelowFirstSegment {
            point: master.end,
            min: slave.min,
        });
    }
    adopted(&EpochList::new(), master, point, 0, Why::EmptyLog)
}

fn adopted(
    own: &EpochList,
    master: MasterSide<'_>,
    point: Offset,
    cut_bytes: u64,
    why: Why,
) -> Result<Decision, Refusal> {
    match own.adopt(master.epochs, point) {
        Ok(epochs) => Ok(Decision {
            point,
            cut_bytes,
            epochs,
            why,
        }),
        Err(_) => Err(Refusal::ListsContradict {
            point,
            own: shortened(own),
            master: shortened(master.epochs),
        }),
    }
}

/// The newest entry of the slave's list that the master holds with the same start, and the smaller
/// of its two ends; none when they share no entry. Entries past their log's end do not count.
pub fn find_consistent_point(
    slave: &EpochList,
    slave_end: Offset,
    master: &EpochList,
    master_end: Offset,
) -> Option<ConsistentPoint> {
    let within = |list: &EpochList, end: Offset| {
        let mut list = list.clone();
        list.drop_starting_after(end);
        list
    };
    let (own, master) = (within(slave, slave_end), within(master, master_end));
    let (entry, slave_end) = own
        .entries()
        .iter()
        .enumerate()
        .rev()
        .find(|(_, entry)| master.find(entry.epoch) == Some(**entry))
        .map(|(i, entry)| (*entry, end_of(own.entries(), i, slave_end)))?;
    let at = master.entries().iter().position(|other| *other == entry)?;
    let master_end = end_of(master.entries(), at, master_end);
    Some(ConsistentPoint {
        point: slave_end.min(master_end),
        entry,
        slave_end,
        master_end,
    })
}

/// Where the entry at `index` ends: at the next one's start, which may be its own.
fn end_of(entries: &[EpochEntry], index: usize, log_end: Offset) -> Offset {
    entries.get(index + 1).map_or(log_end, |next| next.start)
}

/// The list as `1:0, 2:100`, its middle left out when long.
fn shortened(list: &EpochList) -> String {
    const ENDS: usize = 4;
    let entries = list.entries();
    let show = |some: &[EpochEntry]| {
        let words: Vec<_> = some
            .iter()
            .map(|e| format!("{}:{}", e.epoch, e.start))
            .collect();
        words.join(", ")
    };
    match entries.len() {
        0 => "no epochs".to_owned(),
        n if n <= 2 * ENDS => show(entries),
        n => format!(
            "{}, … {} more …, {}",
            show(&entries[..ENDS]),
            n - 2 * ENDS,
            show(&entries[n - ENDS..])
        ),
    }
}

#[cfg(test)]
mod tests;
