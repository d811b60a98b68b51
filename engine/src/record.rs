//! RocketMQ's message record: what a message is before it is stored, how it lies in the commit log,
//! and a borrowed view that is checked before it exists.
//!
//! Everything here is pure: bytes in, values out, no clock, no file, no allocation per message. The
//! layout is drawn in docs/format.md. Invariants: a [`Record`] exists only if every length inside it
//! was checked against the bytes at hand and the parts add up to its total size; a record never
//! crosses the end of its segment and leaves at least [`FILLER_MIN_LEN`] bytes behind it.

mod batch;
mod encode;
mod error;
mod layout;
pub mod sys_flag;
mod view;

pub use batch::{BatchError, BatchItem, MAX_BATCH_MESSAGES, MessageBatch};
pub(crate) use encode::Prepared;
pub use encode::{
    EncodeOptions, Message, Stamp, encode_into, encoded_len, message_id, write_filler,
};
pub use error::{BadRecord, MessageError, RecordError};
pub use layout::{
    FILLER_MAGIC, FILLER_MIN_LEN, MAX_PROPERTIES_LEN, MAX_RECORD_LEN, MAX_TOPIC_LEN,
    MAX_V1_TOPIC_LEN, MIN_RECORD_LEN, PROPERTY_CRC_LEN, RECORD_MAGIC_V1, RECORD_MAGIC_V2,
};
pub use view::{CheckOptions, Parsed, PropertyCrc, Record, Version, parse};
