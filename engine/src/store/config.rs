//! How a store is opened.

use std::path::PathBuf;
use std::sync::Arc;

use crate::error::Error;
use crate::position::Offset;
use crate::record::EncodeOptions;
use crate::recovery::Progress;
use crate::segment::Segment;
use crate::steps::Hook;

use super::queues::check_file_size;

/// The shortest segment, in bytes: room for a small record and a filler.
pub const MIN_SEGMENT_SIZE: u64 = 512;

/// The longest segment, in bytes: a filler's length is a signed 32-bit number.
pub const MAX_SEGMENT_SIZE: u64 = i32::MAX as u64;

/// Java's length of a consume queue file, in bytes: 300,000 messages.
pub const DEFAULT_QUEUE_FILE_SIZE: u64 = 6_000_000;

/// Stands in for the sync of a segment.
pub(crate) type SyncSegment = Arc<dyn Fn(&Segment) -> Result<(), Error> + Send + Sync>;

/// How a store is opened. Make one with [`StoreConfig::new`] and set the fields that differ.
#[derive(Clone)]
#[non_exhaustive]
pub struct StoreConfig {
    /// The store folder (RocketMQ: storePathRootDir); made if it is missing.
    pub dir: PathBuf,
    /// Bytes of each segment, from [`MIN_SEGMENT_SIZE`] to [`MAX_SEGMENT_SIZE`] (RocketMQ:
    /// mappedFileSizeCommitLog). Default 1 GiB.
    pub segment_size: u64,
    /// If segments of another length are there, take their length instead of refusing. Default no.
    pub adopt_segment_size: bool,
    /// How records are encoded.
    pub encode: EncodeOptions,
    /// Time between background syncs, in ms (RocketMQ: flushIntervalCommitLog). Default 500.
    pub flush_interval_ms: u64,
    /// Appends wait for a sync while more bytes than this are not synced. Default 256 MiB.
    pub max_dirty_bytes: u64,
    /// Pages are faulted in this many bytes ahead of the writer; 0 turns that off, and the making of
    /// segments ahead too. Default 64 MiB.
    pub prefault_ahead_bytes: u64,
    /// Empty segments are kept ready behind the one that is written to until they hold this many bytes: at
    /// least one, at most two. An append that rolls waits for no disk while one is ready. They take their
    /// room on the disk at once. Default 128 MiB.
    pub ready_ahead_bytes: u64,
    /// Bytes that a truncation cuts are first copied to `truncated/` if they are no more than this;
    /// `None` turns that off. Bytes below the confirm offset are kept however many. Default 1 GiB.
    pub save_truncated_bytes: Option<u64>,
    /// Keep a consume queue for each (topic, queue id): what messages are read by, and what says the next
    /// queue offsets. Without them a promotion walks the whole log, and a cut takes those Java left out of
    /// its sight. Default yes.
    pub consume_queues: bool,
    /// Bytes of each consume queue file, a multiple of 20 up to 1 GiB (RocketMQ:
    /// mappedFileSizeConsumeQueue). Queues with files of another length are made again. Default 6000000.
    pub queue_file_size: u64,
    /// Messages come into their consume queues only once they are durable here as well as confirmed: for
    /// brokers that acknowledge from disk (RocketMQ: flushDiskType SYNC_FLUSH). Else a crash of the
    /// machine may take back what a consumer has read. Default no.
    pub queues_hold_flushed_only: bool,
    /// Time between background syncs of the consume queues, in ms; what a crash of the machine takes back
    /// is made again from the log. Default 5000.
    pub queue_flush_interval_ms: u64,
    /// Told (bytes read, bytes at most) while an open scans records or makes consume queues again.
    pub progress: Option<Progress>,
    /// Told the dispatch position before each step of the dispatcher.
    pub(crate) before_dispatch: Option<Arc<dyn Fn(Offset) + Send + Sync>>,
    pub(crate) stop_before: Option<Hook>,
    pub(crate) sync_segment: Option<SyncSegment>,
}

impl StoreConfig {
    /// The defaults for a store in `dir`.
    #[must_use]
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self {
            dir: dir.into(),
            segment_size: 1 << 30,
            adopt_segment_size: false,
            encode: EncodeOptions::default(),
            flush_interval_ms: 500,
            max_dirty_bytes: 256 << 20,
            prefault_ahead_bytes: 64 << 20,
            ready_ahead_bytes: 128 << 20,
            save_truncated_bytes: Some(1 << 30),
            consume_queues: true,
            queue_file_size: DEFAULT_QUEUE_FILE_SIZE,
            queues_hold_flushed_only: false,
            queue_flush_interval_ms: 5000,
            progress: None,
            before_dispatch: None,
            stop_before: None,
            sync_segment: None,
        }
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        check_file_size(self.queue_file_size)?;
        if (MIN_SEGMENT_SIZE..=MAX_SEGMENT_SIZE).contains(&self.segment_size) {
            return Ok(());
        }
        let why = format!(
            "{} is not between {MIN_SEGMENT_SIZE} and {MAX_SEGMENT_SIZE} bytes",
            self.segment_size
        );
        Err(Error::Setting {
            name: "segment_size",
            why,
        })
    }
}

impl std::fmt::Debug for StoreConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StoreConfig")
            .field("dir", &self.dir)
            .field("segment_size", &self.segment_size)
            .field("adopt_segment_size", &self.adopt_segment_size)
            .field("encode", &self.encode)
            .field("flush_interval_ms", &self.flush_interval_ms)
            .field("max_dirty_bytes", &self.max_dirty_bytes)
            .field("prefault_ahead_bytes", &self.prefault_ahead_bytes)
            .field("ready_ahead_bytes", &self.ready_ahead_bytes)
            .field("save_truncated_bytes", &self.save_truncated_bytes)
            .field("consume_queues", &self.consume_queues)
            .field("queue_file_size", &self.queue_file_size)
            .field("queues_hold_flushed_only", &self.queues_hold_flushed_only)
            .field("queue_flush_interval_ms", &self.queue_flush_interval_ms)
            .finish_non_exhaustive()
    }
}
