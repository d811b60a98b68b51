//! The storage engine of epochlog: a memory-mapped commit log in Apache RocketMQ's byte format,
//! with an epoch file that says which master wrote which bytes.
//!
//! The crate knows no socket, no runtime and no peer: bytes and offsets go in, views come out.
//! [`Store`] is where to begin.

mod allocate;
mod boot;
mod checkpoint;
mod commit_log;
mod consume_queue;
mod durable;
mod epoch_file;
mod epoch_list;
mod error;
mod flush;
mod folder;
mod growth;
pub mod inspect;
mod position;
mod properties;
mod queue_offsets;
mod queues;
mod receive;
mod record;
mod recovery;
mod region;
#[cfg(test)]
#[path = "region/tests.rs"]
mod region_tests;
pub mod repair;
mod retention;
mod segment;
mod state_file;
mod steps;
mod store;
mod sync;
mod walk;

pub use checkpoint::{
    CHECKPOINT_FIELDS_LEN, CHECKPOINT_FILE_LEN, CHECKPOINT_FILE_NAME, Checkpoint, CheckpointFile,
};
pub use commit_log::Appended;
pub use consume_queue::{QUEUE_PRE_FILL, QUEUE_UNIT_LEN, QueueUnit};
pub use durable::FileError;
pub use epoch_file::{EPOCH_FILE_NAME, EpochFile, EpochFileError, MAX_EPOCH_FILE_LEN};
pub use epoch_list::{EpochList, EpochListError, EpochSpan, EpochTextError};
pub use error::Error;
pub use position::{Epoch, EpochEntry, MAX_EPOCH, MAX_OFFSET, Offset};
pub use properties::{Properties, PropertiesBuilder, PropertyError, java_string_hash};
pub use queues::QueueCounts;
pub use receive::{ReceiveWindow, Receiver};
pub use record::{
    BadRecord, BatchError, BatchItem, CheckOptions, EncodeOptions, FILLER_MAGIC, FILLER_MIN_LEN,
    MAX_BATCH_MESSAGES, MAX_PROPERTIES_LEN, MAX_RECORD_LEN, MAX_TOPIC_LEN, MAX_V1_TOPIC_LEN,
    MIN_RECORD_LEN, Message, MessageBatch, MessageError, PROPERTY_CRC_LEN, Parsed, PropertyCrc,
    RECORD_MAGIC_V1, RECORD_MAGIC_V2, Record, RecordError, Stamp, Version, encode_into,
    encoded_len, message_id, parse as parse_record, sys_flag, write_filler,
};
pub use recovery::Torn;
pub use region::signals;
pub use retention::{DiskLevel, DiskUse, HeldBack, RetentionPolicy, RetentionTick};
pub use segment::LogSlice;
pub use state_file::{
    CleanStop, QueuesMark, STATE_FILE_LEN, STATE_FILE_NAME, STATE_SLOT_LEN, STATE_SLOT_STRIDE,
    STATE_VERSION, State, StateFile, StateFileError,
};
pub use store::{
    DEFAULT_QUEUE_FILE_SIZE, MAX_SEGMENT_SIZE, MIN_SEGMENT_SIZE, OpenReport, Pin, Promises,
    QueueEntry, QueueView, RecordView, Records, Retained, SegmentInfo, Store, StoreConfig,
    TimeBoundary, Truncation,
};
