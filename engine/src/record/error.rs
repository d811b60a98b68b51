//! What can be wrong with a message before it is stored, and with bytes that should be a record.

use crate::position::Offset;

use super::layout::{MAX_PROPERTIES_LEN, MAX_RECORD_LEN, MAX_TOPIC_LEN};

/// Why a message has no encoding. Nothing was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MessageError {
    /// The topic is empty or longer than the format can say.
    #[error("the topic has {len} bytes; a record holds 1 to {MAX_TOPIC_LEN}")]
    TopicLen {
        /// Bytes of UTF-8.
        len: usize,
    },
    /// The properties, with what a property CRC adds, are longer than the format can say.
    #[error(
        "the properties have {len} bytes, property CRC included; a record holds {MAX_PROPERTIES_LEN}"
    )]
    PropertiesLen {
        /// Bytes, property CRC and its separator included.
        len: usize,
    },
    /// The whole record is larger than its size field can say.
    #[error("the body has {body_len} bytes; a record holds {MAX_RECORD_LEN} in all")]
    RecordLen {
        /// Bytes of the body alone.
        body_len: usize,
    },
}

/// What `parse` found instead of a record or a filler.
///
/// The three cases call for different things: more bytes, the end of the log, a cut or a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// The bytes end inside a record or a filler that may well be whole.
    #[error("offset {at}: {len} bytes are needed and not here yet")]
    NeedMore {
        /// Where the record begins.
        at: Offset,
        /// How many bytes from there the next attempt needs at least.
        len: usize,
    },
    /// Size and magic are zero: nothing was written here.
    #[error("offset {at}: nothing is written here")]
    Empty {
        /// Where the unwritten space begins.
        at: Offset,
    },
    /// The bytes are neither a record nor a filler, or not the one that belongs here.
    #[error("offset {at}: {why}")]
    Bad {
        /// Where the record should begin.
        at: Offset,
        /// The first thing found wrong.
        why: BadRecord,
    },
}

/// The first thing found wrong with bytes that should be a record or a filler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadRecord {
    /// Less than a filler's room is left in the segment, so no record and no filler can stand here.
    #[error("only {room} bytes are left in the segment")]
    NoRoom {
        /// Bytes to the end of the segment.
        room: u64,
    },
    /// The magic is none of the three this format has.
    #[error("magic {magic:#010x} is neither a record's nor a filler's")]
    Magic {
        /// The four bytes found, as a number.
        magic: u32,
    },
    /// The filler does not end where the segment ends.
    #[error("a filler of {size} bytes where {room} are left in the segment")]
    FillerSize {
        /// The size field.
        size: i32,
        /// Bytes to the end of the segment.
        room: u64,
    },
    /// The size is too small for the fixed fields or leaves no room for a filler behind the record.
    #[error("a record of {size} bytes where {room} are left in the segment")]
    Size {
        /// The size field.
        size: i32,
        /// Bytes to the end of the segment.
        room: u64,
    },
    /// The record says it lies somewhere else.
    #[error("the record says it lies at offset {found}")]
    PhysicalOffset {
        /// The PHYSICALOFFSET field.
        found: i64,
    },
    /// A length is negative or reaches past the end of the record.
    #[error("the {field} length {len} does not fit the record's {size} bytes")]
    Length {
        /// Which part: body, topic or properties.
        field: &'static str,
        /// The length field.
        len: i32,
        /// The size field.
        size: i32,
    },
    /// The parts do not add up to the size.
    #[error("the parts add up to {sum} bytes, the size field says {size}")]
    Sum {
        /// What the parts add up to.
        sum: usize,
        /// The size field.
        size: i32,
    },
    /// The topic is not UTF-8.
    #[error("the topic is not UTF-8")]
    TopicText,
    /// The body does not match its CRC.
    #[error("body CRC is {computed:#010x}, the record says {stored:#010x}")]
    BodyCrc {
        /// From the body's bytes.
        computed: i32,
        /// The BODYCRC field.
        stored: i32,
    },
    /// The record does not match the CRC in its properties.
    #[error("the property CRC does not match the record, which gives {computed}")]
    PropertyCrc {
        /// From the record's bytes before the property CRC.
        computed: i32,
    },
    /// A property CRC was asked for and there is none.
    #[error("the record carries no property CRC")]
    NoPropertyCrc,
    /// The properties end in what was a property CRC before one bit of it changed.
    #[error("a bit of the property CRC itself has changed")]
    PropertyCrcChanged,
    /// A zero byte where text belongs: what a page that never reached the disk looks like.
    #[error("a zero byte in the {field}")]
    NulByte {
        /// Which part: topic or properties.
        field: &'static str,
    },
}
