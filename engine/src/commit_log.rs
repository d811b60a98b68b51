//! The segments in order, and the one place where the log's end stands.
//!
//! Readers find a segment by its base and see what is published, without the append lock. Whoever
//! changes the end holds [`Tail`]. The end is the region's published end of the last segment that has
//! one; `end` repeats it for readers and is stored after the bytes are published and lowered before
//! they go. `commitlog/` gets and loses files only under `layout`.
//!
//! Locks are taken in the order tail, layout, ready.

mod append;
mod offsets;
mod prepare;
mod ready;
mod receive;
mod retract;

use crate::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crate::sync::{Condvar, Mutex, MutexGuard, RwLock};

use crate::error::Error;
use crate::folder::Folder;
use crate::growth::{Growth, Listener};
use crate::position::Offset;
use crate::queue_offsets::QueueOffsets;
use crate::record::EncodeOptions;
use crate::region::Writer;
use crate::segment::{LogSlice, Segment};
use crate::steps::Hook;

use ready::Ready;

pub use append::Appended;
pub(crate) use prepare::prepare_loop;
pub(crate) use ready::{MOST_READY, ready_count};
pub(crate) use retract::Retraction;

/// What a commit log is opened with; found or configured, never changed later.
pub(crate) struct LogSettings {
    pub(crate) folder: Folder,
    pub(crate) segment_size: u64,
    pub(crate) encode: EncodeOptions,
    /// How far ahead of the writer pages are faulted in, in bytes; 0 turns preparing off.
    pub(crate) prefault_ahead: u64,
    /// How many empty segments are kept ready behind the one that is written to.
    pub(crate) ready: usize,
    pub(crate) hook: Option<Hook>,
}

/// What recovery says about the log.
pub(crate) struct LogStart {
    pub(crate) segments: Vec<Arc<Segment>>,
    /// Empty segments right behind the last one of `segments`, proven to be zero.
    pub(crate) ready: Vec<Arc<Segment>>,
    pub(crate) min: Offset,
    pub(crate) end: Offset,
    /// Start of the last record; the log's first offset if it has none.
    pub(crate) last_record: Offset,
    pub(crate) last_store_ms: i64,
}

/// The files of records and their end.
pub(crate) struct CommitLog {
    settings: LogSettings,
    /// Segments that hold log, or are the one appended to; by base, without gaps.
    segments: RwLock<Vec<Arc<Segment>>>,
    min: AtomicU64,
    end: AtomicU64,
    /// The address of the byte behind the last record; a hint of what to fetch, and nothing else.
    next_store: AtomicUsize,
    /// Start of the last record; stored before the end that covers it.
    last_record: AtomicU64,
    /// Store time of the last record, in ms since 1970; never falls while records are appended.
    last_store_ms: AtomicI64,
    layout: Mutex<()>,
    /// Segments below the first offset whose files are still there; oldest first.
    doomed: Mutex<VecDeque<Offset>>,
    /// The segment after the last one of `segments`, and those after it.
    ready: Mutex<Ready>,
    prepare_wanted: Mutex<bool>,
    prepare_signal: Condvar,
    /// Where faulting pages in should go on: an offset the writer has passed wakes the thread.
    prefault_from: AtomicU64,
    stopping: AtomicBool,
    tail: Mutex<Tail>,
    growth: Growth,
}

/// Who holds the right to write past the end.
pub(crate) enum Pen {
    /// Nobody needs it: the log has no segment, or its last one is full.
    None,
    /// It lies here.
    Here(Writer),
    /// A receive window has it.
    Out,
}

/// What the append lock guards.
pub(crate) struct Tail {
    pub(crate) pen: Pen,
    /// Why appends are refused; nothing while they are not.
    pub(crate) refused: Option<&'static str>,
    /// Highest offset that may hold bytes nobody published.
    pub(crate) dirty_to: Offset,
    /// Complete up to the end, or unknown.
    pub(crate) queues: Option<QueueOffsets>,
}

impl Tail {
    pub(crate) fn pen_is_out(&self) -> bool {
        matches!(self.pen, Pen::Out)
    }
}

impl CommitLog {
    pub(crate) fn new(settings: LogSettings, start: LogStart) -> Result<Self, Error> {
        let LogStart {
            segments,
            ready,
            min,
            end,
            last_record,
            last_store_ms,
        } = start;
        let pen = match segments.last() {
            Some(last) if last.limit() > end => {
                assert_eq!(
                    last.end(),
                    end,
                    "the last segment is published up to the end"
                );
                Pen::Here(last.writer().ok_or(Error::WindowOutstanding)?)
            }
            _ => Pen::None,
        };
        let next_base = segments.last().map_or(end, |last| last.limit());
        let tail = Tail {
            pen,
            refused: Some("no role was given yet"),
            dirty_to: end,
            queues: None,
        };
        Ok(Self {
            settings,
            segments: RwLock::new(segments),
            min: AtomicU64::new(min),
            end: AtomicU64::new(end),
            next_store: AtomicUsize::new(0),
            last_record: AtomicU64::new(last_record),
            last_store_ms: AtomicI64::new(last_store_ms),
            layout: Mutex::new(()),
            doomed: Mutex::default(),
            ready: Mutex::new(Ready::new(next_base, ready)),
            prepare_wanted: Mutex::new(true),
            prepare_signal: Condvar::new(),
            prefault_from: AtomicU64::new(end),
            stopping: AtomicBool::new(false),
            tail: Mutex::new(tail),
            growth: Growth::default(),
        })
    }

    pub(crate) fn settings(&self) -> &LogSettings {
        &self.settings
    }

    pub(crate) fn min(&self) -> Offset {
        self.min.load(Ordering::SeqCst)
    }

    pub(crate) fn end(&self) -> Offset {
        self.end.load(Ordering::SeqCst)
    }

    /// Start of the last record; the log's first offset if it has none.
    pub(crate) fn last_record(&self) -> Offset {
        self.last_record.load(Ordering::Acquire)
    }

    pub(crate) fn last_store_ms(&self) -> i64 {
        self.last_store_ms.load(Ordering::Acquire)
    }

    /// Needs the append lock.
    pub(crate) fn set_last_record(&self, start: Offset, store_ms: i64) {
        // Ordered by the store of the end that follows.
        self.last_store_ms.store(store_ms, Ordering::Release);
        self.last_record.store(start, Ordering::Release);
    }

    pub(crate) fn lock_tail(&self) -> MutexGuard<'_, Tail> {
        self.tail.lock()
    }

    /// While this is held no segment is made, and none is prepared.
    pub(crate) fn lock_layout(&self) -> MutexGuard<'_, ()> {
        self.layout.lock()
    }

    /// Nothing is shown any more: whoever opens the folder next may change what lies in the files. Views
    /// that exist stay.
    pub(crate) fn seal(&self) {
        for segment in self.segments.read().iter() {
            segment.seal();
        }
    }

    pub(crate) fn segments(&self) -> Vec<Arc<Segment>> {
        self.segments.read().clone()
    }

    /// Where segments begin as an open finds them: of a log that has none yet, the first one is the one that is
    /// ready.
    pub(crate) fn bases(&self) -> Vec<Offset> {
        let segments = self.segments.read();
        let mut bases: Vec<_> = segments.iter().map(|segment| segment.base()).collect();
        if bases.is_empty() {
            bases.extend(self.ready.lock().bases().last());
        }
        bases
    }

    /// The log begins at `min`, the end of a segment that is not the last, from now on. The files before it
    /// are the caller's business; slices that exist stay.
    pub(crate) fn retire_below(&self, min: Offset) {
        let layout = self.layout.lock();
        let mut segments = self.segments.write();
        let count = segments.partition_point(|segment| segment.base() < min);
        assert!(count < segments.len(), "the last segment stays");
        assert_eq!(segments[count].base(), min, "whole segments go");
        self.min.store(min, Ordering::SeqCst);
        let gone: Vec<_> = segments.drain(..count).collect();
        let bases = gone.iter().map(|segment| segment.base());
        self.doomed.lock().extend(bases);
        // To unmap a segment takes ms: an append that rolls is not to wait for it.
        drop(segments);
        drop(layout);
    }

    /// The oldest segment whose file is to be unlinked.
    pub(crate) fn next_doomed(&self) -> Option<Offset> {
        self.doomed.lock().front().copied()
    }

    /// The file of the oldest one is gone.
    pub(crate) fn is_gone(&self, base: Offset) {
        let gone = self.doomed.lock().pop_front();
        assert_eq!(gone, Some(base), "oldest first");
    }

    /// The segment that holds the byte at `offset`, whether published or not.
    pub(crate) fn segment_of(&self, offset: Offset) -> Option<Arc<Segment>> {
        let segments = self.segments.read();
        let place = segments.partition_point(|segment| segment.base() <= offset);
        let segment = segments.get(place.checked_sub(1)?)?;
        (offset < segment.limit()).then(|| Arc::clone(segment))
    }

    /// At most `max_len` bytes from `from`, from one segment; empty at the end.
    pub(crate) fn slice(&self, from: Offset, max_len: usize) -> Result<LogSlice, Error> {
        if let Some(slice) = self.segment_of(from).and_then(|it| it.slice(from, max_len)) {
            return Ok(slice);
        }
        let (min, end) = (self.min(), self.end());
        // At the end there may be no segment yet: the last one is full, or the log has none.
        match self.segments.read().last() {
            Some(last) if from == end && from == last.limit() => {
                last.slice(from, 0).ok_or(Error::OutOfRange {
                    offset: from,
                    min,
                    end,
                })
            }
            _ => Err(Error::OutOfRange {
                offset: from,
                min,
                end,
            }),
        }
    }

    pub(crate) fn wait_for_end(&self, past: Offset, timeout: Duration) -> Offset {
        self.growth.wait(past, timeout, &self.tail, || self.end())
    }

    pub(crate) fn listen(&self, listener: Listener) {
        let _tail = self.lock_tail();
        self.growth.listen(listener);
    }

    /// Wakes readers and listeners; called without the append lock.
    pub(crate) fn announce(&self) {
        self.growth.announce();
    }

    /// Needs the append lock.
    fn set_end(&self, end: Offset) {
        // Whoever sees it sees what was published below it; who waits for it has the lock before.
        self.end.store(end, Ordering::Release);
    }

    /// Puts a segment behind the others, to be written next.
    fn push_segment(&self, segment: Arc<Segment>) {
        let mut segments = self.segments.write();
        if let Some(last) = segments.last() {
            assert_eq!(last.limit(), segment.base(), "segments leave no gap");
        }
        segments.push(segment);
    }
}
