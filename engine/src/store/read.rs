//! Reading: slices, records, and iteration over them. No lock is shared with appends.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::commit_log::CommitLog;
use crate::error::Error;
use crate::position::Offset;
use crate::record::{CheckOptions, FILLER_MIN_LEN, Parsed, Record, parse};
use crate::segment::LogSlice;

use super::Store;

/// A record that keeps its bytes alive, whatever happens to the log.
#[derive(Clone, Debug)]
pub struct RecordView {
    bytes: LogSlice,
}

/// One segment file and how much of it is log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentInfo {
    /// First offset, and the file's name.
    pub base: Offset,
    /// Bytes of it that are published.
    pub len: u64,
    /// The file's length in bytes.
    pub size: u64,
    /// The file.
    pub path: PathBuf,
}

/// The records of a range of offsets, in order; fillers are passed over.
///
/// It ends behind the last record that ends in the range, or after the first error.
pub struct Records<'a> {
    log: &'a CommitLog,
    range: Range<Offset>,
    /// The rest of the segment being read, up to what was published when it was taken.
    slice: Option<(LogSlice, Offset)>,
    failed: bool,
}

impl Store {
    /// The log's first offset; equal to [`Store::end_offset`] if it is empty.
    #[must_use]
    pub fn min_offset(&self) -> Offset {
        self.shared.log.min()
    }

    /// The published end: whole, checked records lie below it. In memory, perhaps not on disk.
    #[must_use]
    pub fn end_offset(&self) -> Offset {
        self.shared.log.end()
    }

    /// Everything below it is durable.
    #[must_use]
    pub fn flushed_offset(&self) -> Offset {
        self.shared.flush.flushed()
    }

    /// Everything below it may be shown to consumers.
    #[must_use]
    pub fn confirm_offset(&self) -> Offset {
        self.shared.flush.progress().confirm
    }

    /// Waits until the published end is above `past`, `timeout` at most, and answers the end.
    #[must_use]
    pub fn wait_for_end(&self, past: Offset, timeout: Duration) -> Offset {
        self.shared.log.wait_for_end(past, timeout)
    }

    /// Calls `listener` after every growth of the published end, on the thread that published and
    /// outside all locks; it must be short.
    pub fn on_growth(&self, listener: Arc<dyn Fn() + Send + Sync>) {
        self.shared.log.listen(listener);
    }

    /// At most `max_len` bytes from `from`, without a copy: never past the published end, never across
    /// the end of a segment, empty only at the end.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] if `from` is not in `[min, end]`, [`Error::Closed`] once the store is.
    pub fn slice(&self, from: Offset, max_len: usize) -> Result<LogSlice, Error> {
        self.shared.check_open()?;
        self.shared.log.slice(from, max_len)
    }

    /// The record that starts at `at`. Its structure is checked; its CRCs were when it came in.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] if `at` is not below the end, [`Error::NotARecordBoundary`] if a filler
    /// stands there, [`Error::Corrupt`] if no record does, [`Error::Closed`] once the store is.
    pub fn record(&self, at: Offset) -> Result<RecordView, Error> {
        self.shared.check_open()?;
        self.shared.log.record(at)
    }

    /// The records that lie in `range`, which must start at a record. Fillers are passed over.
    #[must_use]
    pub fn records(&self, range: Range<Offset>) -> Records<'_> {
        Records {
            log: &self.shared.log,
            range,
            slice: None,
            failed: false,
        }
    }

    /// Whether a record, a filler or the end stands at `offset`: whether the log may be cut there.
    ///
    /// # Errors
    /// [`Error::Damaged`] if the records before it cannot be walked.
    pub fn is_record_boundary(&self, offset: Offset) -> Result<bool, Error> {
        self.shared.log.is_record_boundary(offset)
    }

    /// The start of the last whole record that ends at or before `offset`; `None` if there is none.
    ///
    /// # Errors
    /// [`Error::Damaged`] if the records before it cannot be walked.
    pub fn record_start_before(&self, offset: Offset) -> Result<Option<Offset>, Error> {
        self.shared.log.record_start_before(offset)
    }

    /// The segments of the log, oldest first; a prepared one is not among them.
    #[must_use]
    pub fn segments(&self) -> Vec<SegmentInfo> {
        let end = self.end_offset();
        let info = |segment: &Arc<crate::segment::Segment>| SegmentInfo {
            base: segment.base(),
            len: end.min(segment.limit()).saturating_sub(segment.base()),
            size: segment.size(),
            path: segment.path().clone(),
        };
        self.shared.log.segments().iter().map(info).collect()
    }

    /// Bytes of each segment file.
    #[must_use]
    pub fn segment_size(&self) -> u64 {
        self.shared.log.settings().segment_size
    }
}

impl RecordView {
    pub(crate) fn new(bytes: LogSlice) -> Self {
        Self { bytes }
    }

    /// The record's fields.
    #[must_use]
    pub fn record(&self) -> Record<'_> {
        let room = (self.bytes.len() + FILLER_MIN_LEN) as u64;
        match parse(
            &self.bytes,
            self.bytes.start(),
            room,
            CheckOptions::STRUCTURE,
        ) {
            Ok(Parsed::Message(record)) => record,
            _ => unreachable!("a view is made of a record that was parsed, and never changes"),
        }
    }

    /// The record's bytes as they lie in the log.
    #[must_use]
    pub fn bytes(&self) -> &LogSlice {
        &self.bytes
    }
}

impl CommitLog {
    pub(crate) fn record(&self, at: Offset) -> Result<RecordView, Error> {
        let slice = self.slice(at, usize::MAX)?;
        if slice.is_empty() {
            return Err(Error::OutOfRange {
                offset: at,
                min: self.min(),
                end: self.end(),
            });
        }
        let (is_record, len) = self.measure(&slice)?;
        let view = is_record.then(|| slice.into_part(0..len)).flatten();
        view.map(RecordView::new)
            .ok_or(Error::NotARecordBoundary { offset: at })
    }

    /// Whether `slice` begins with a record or a filler, and how long that is.
    fn measure(&self, slice: &LogSlice) -> Result<(bool, usize), Error> {
        let at = slice.start();
        let size = self.settings().segment_size;
        let limit = at - at % size + size;
        match parse(slice, at, limit - at, CheckOptions::STRUCTURE) {
            Ok(Parsed::Message(record)) => Ok((true, record.total_size())),
            Ok(Parsed::Filler { len }) => Ok((false, len as usize)),
            Err(error) => Err(Error::Corrupt {
                file: self.settings().folder.segment(limit - size),
                offset: at,
                why: error.to_string(),
            }),
        }
    }
}

impl Records<'_> {
    fn advance(&mut self) -> Result<Option<RecordView>, Error> {
        while self.range.start < self.range.end {
            let at = self.range.start;
            let rest = match &self.slice {
                Some((slice, base)) => {
                    let from = usize::try_from(at - base).unwrap_or(usize::MAX);
                    slice
                        .narrow(from..slice.len())
                        .filter(|rest| !rest.is_empty())
                }
                None => None,
            };
            let rest = match rest {
                Some(rest) => rest,
                None => {
                    let slice = self.log.slice(at, usize::MAX)?;
                    self.slice = Some((slice.clone(), at));
                    slice
                }
            };
            if rest.is_empty() {
                break;
            }
            let (is_record, len) = self.log.measure(&rest)?;
            let end = at + len as u64;
            if end > self.range.end {
                break;
            }
            self.range.start = end;
            if is_record {
                return Ok(rest.into_part(0..len).map(RecordView::new));
            }
        }
        Ok(None)
    }
}

impl Iterator for Records<'_> {
    type Item = Result<RecordView, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let next = self.advance().transpose();
        self.failed = matches!(next, Some(Err(_)) | None);
        next
    }
}
