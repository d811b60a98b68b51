//! How a store is opened.

use std::path::PathBuf;
use std::sync::Arc;

use crate::error::Error;
use crate::record::EncodeOptions;
use crate::recovery::Progress;
use crate::segment::Segment;
use crate::steps::Hook;

/// The shortest segment, in bytes: room for a small record and a filler.
pub const MIN_SEGMENT_SIZE: u64 = 512;

/// The longest segment, in bytes: a filler's length is a signed 32-bit number.
pub const MAX_SEGMENT_SIZE: u64 = i32::MAX as u64;

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
    /// The next segment is prepared, and pages are faulted in, this many bytes ahead of the writer;
    /// 0 turns both off. Default 64 MiB.
    pub prefault_ahead_bytes: u64,
    /// Bytes that a truncation cuts are first copied to `truncated/` if they are no more than this;
    /// `None` turns that off. Bytes below the confirm offset are kept however many. Default 1 GiB.
    pub save_truncated_bytes: Option<u64>,
    /// Told (bytes read, bytes at most) while an open scans records.
    pub progress: Option<Progress>,
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
            save_truncated_bytes: Some(1 << 30),
            progress: None,
            stop_before: None,
            sync_segment: None,
        }
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
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
            .field("save_truncated_bytes", &self.save_truncated_bytes)
            .finish_non_exhaustive()
    }
}
