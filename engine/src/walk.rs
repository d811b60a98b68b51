//! Going through the records of one segment, front to back, until something stops it.
//!
//! Pure: bytes in, places out. It never goes on behind the first thing that is not a record: what lies
//! beyond a hole proves nothing about what lay in it.

use crate::position::Offset;
use crate::record::{CheckOptions, Parsed, Record, RecordError, parse};

/// Why a walk ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// All bytes were walked.
    Done,
    /// Space that was never written.
    Empty,
    /// The bytes end inside a record or filler.
    Short,
    /// Something that is no record.
    Bad(String),
    /// The visitor had seen enough.
    Asked,
}

/// What a visitor meets.
pub(crate) enum Item<'a> {
    Record(Record<'a>),
    /// The filler at this offset takes the rest of the segment.
    Filler(Offset),
}

/// Walks `bytes`, which begin at offset `from` in a segment that ends at `limit`, and shows every
/// whole item to `visit` until that answers false. Returns the end of the last item accepted.
pub(crate) fn walk(
    bytes: &[u8],
    from: Offset,
    limit: Offset,
    check: impl Fn(Offset) -> CheckOptions,
    mut visit: impl FnMut(Item<'_>) -> bool,
) -> (Offset, Stop) {
    let mut at = from;
    let mut rest = bytes;
    while !rest.is_empty() {
        let (item, len) = match parse(rest, at, limit - at, check(at)) {
            Ok(Parsed::Message(record)) => (Item::Record(record), record.total_size()),
            // Segments are shorter than 2^31 bytes and so is a filler.
            Ok(Parsed::Filler { len }) => (Item::Filler(at), len as usize),
            Err(RecordError::Empty { .. }) => return (at, Stop::Empty),
            Err(RecordError::NeedMore { .. }) => return (at, Stop::Short),
            Err(error) => return (at, Stop::Bad(error.to_string())),
        };
        if !visit(item) {
            return (at, Stop::Asked);
        }
        at += len as u64;
        rest = &rest[len..];
    }
    (at, Stop::Done)
}
