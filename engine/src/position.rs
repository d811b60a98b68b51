//! The words every other file speaks: offsets, epochs and the entry that ties them together.
//!
//! Ranges are half-open everywhere. An `Offset` counts bytes from the beginning of the log's life,
//! not of a file; an `Epoch` is a master's term as decided by the controller.

/// A byte position in the commit log, counted from the start of the log's life.
///
/// Java holds it as a signed 64-bit number, so values stay below 2^63.
pub type Offset = u64;

/// A master's term. Java holds it as a signed 32-bit number, so values stay below 2^31;
/// 0 is legal, and "no epoch" is always an `Option`, never a number.
pub type Epoch = u32;

/// The largest epoch that fits into Java's signed 32 bits.
pub const MAX_EPOCH: Epoch = i32::MAX as Epoch;

/// The largest offset that fits into Java's signed 64 bits.
pub const MAX_OFFSET: Offset = i64::MAX as Offset;

/// Where a master's bytes begin: from `start` on, until the next entry's start, the log was written
/// by the master of `epoch`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EpochEntry {
    /// The term of the master that wrote the bytes.
    pub epoch: Epoch,
    /// The first offset written in that term.
    pub start: Offset,
}
