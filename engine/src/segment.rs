//! One file of records: where it starts, its mapping, its sync.
//!
//! A segment's length is fixed; how much of it is log is its region's published end. A path has one
//! segment object at a time: whoever replaces the file replaces the object with it.

use std::fs::{File, OpenOptions};
use std::ops::{Deref, Range};
use std::path::PathBuf;
use std::sync::Arc;

use crate::durable::calls;
use crate::error::Error;
use crate::position::Offset;
use crate::region::{Region, View, Writer};

/// One open file of the commit log.
pub(crate) struct Segment {
    base: Offset,
    file: File,
    path: PathBuf,
    region: Arc<Region>,
}

impl Segment {
    /// Maps the file at `path`, which holds `size` bytes, for reading and writing; the first
    /// `published` bytes are the log's.
    pub(crate) fn open(
        path: PathBuf,
        base: Offset,
        size: u64,
        published: u64,
    ) -> Result<Arc<Self>, Error> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path)
            .map_err(Error::io("open", &path))?;
        let region = Region::map(&file, &path, to_len(size), to_len(published))
            .map_err(Error::io("map", &path))?;
        Ok(Arc::new(Self {
            base,
            file,
            path,
            region,
        }))
    }

    /// Maps the file at `path` for reading, or makes a copy of it if this process writes to it; all of it
    /// counts as published.
    pub(crate) fn open_read_only(
        path: PathBuf,
        base: Offset,
        size: u64,
        written_here: bool,
    ) -> Result<Arc<Self>, Error> {
        let file = File::open(&path).map_err(Error::io("open", &path))?;
        let region = if written_here {
            Region::copy(&file, to_len(size)).map_err(Error::io("read", &path))?
        } else {
            Region::map_read_only(&file, &path, to_len(size)).map_err(Error::io("map", &path))?
        };
        Ok(Arc::new(Self {
            base,
            file,
            path,
            region,
        }))
    }

    pub(crate) fn base(&self) -> Offset {
        self.base
    }

    pub(crate) fn path(&self) -> &PathBuf {
        &self.path
    }

    pub(crate) fn size(&self) -> u64 {
        self.region.len() as u64
    }

    /// Where the segment ends and the next one begins.
    pub(crate) fn limit(&self) -> Offset {
        self.base + self.size()
    }

    /// The end of what is published of it.
    pub(crate) fn end(&self) -> Offset {
        self.base + self.region.published() as u64
    }

    pub(crate) fn writer(&self) -> Option<Writer> {
        self.region.claim()
    }

    /// At most `max_len` published bytes from `from`; `None` if `from` is not in the segment or past
    /// its published end.
    pub(crate) fn slice(&self, from: Offset, max_len: usize) -> Option<LogSlice> {
        let start = usize::try_from(from.checked_sub(self.base)?).ok()?;
        let view = self.region.view(start, max_len)?;
        Some(LogSlice { start: from, view })
    }

    /// Shows nothing any more; slices that exist stay.
    pub(crate) fn seal(&self) {
        self.region.seal();
    }

    /// Makes the pages of `range`, counted from the segment's base, present.
    pub(crate) fn populate(&self, range: Range<usize>) -> std::io::Result<()> {
        self.region.populate(range)
    }

    /// Makes everything stored into the mapping durable (fdatasync).
    pub(crate) fn sync(&self) -> Result<(), Error> {
        calls::sync_data(&self.file, &self.path).map_err(Error::io("sync", &self.path))
    }
}

/// Segment lengths are checked against this when they are configured or found.
pub(crate) fn to_len(bytes: u64) -> usize {
    usize::try_from(bytes).expect("a segment's length fits the address space")
}

/// Bytes of the log, borrowed from the mapped file without a copy.
///
/// The slice keeps its mapping alive and never changes, whatever happens to the log: a truncation
/// puts a new file in place of one whose bytes somebody holds. It lies in one segment and below the
/// end that was published when it was made. Cheap to clone and to send to another thread.
#[derive(Clone)]
pub struct LogSlice {
    start: Offset,
    view: View,
}

impl LogSlice {
    /// The log offset of the first byte.
    #[must_use]
    pub fn start(&self) -> Offset {
        self.start
    }

    /// The log offset behind the last byte.
    #[must_use]
    pub fn end(&self) -> Offset {
        self.start + self.view.len() as u64
    }

    /// The bytes of `range`, counted from the first byte of this slice; `None` if the range is not
    /// inside it.
    #[must_use]
    pub fn narrow(&self, range: Range<usize>) -> Option<Self> {
        let start = self.start + range.start as u64;
        Some(Self {
            start,
            view: self.view.narrow(range)?,
        })
    }

    /// As [`Self::narrow`], and holds on to nothing behind the range unless a clone or a part of this slice
    /// does.
    pub(crate) fn into_part(self, range: Range<usize>) -> Option<Self> {
        let start = self.start + range.start as u64;
        Some(Self {
            start,
            view: self.view.into_part(range)?,
        })
    }
}

impl Deref for LogSlice {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.view
    }
}

impl AsRef<[u8]> for LogSlice {
    fn as_ref(&self) -> &[u8] {
        &self.view
    }
}

impl std::fmt::Debug for LogSlice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "LogSlice[{}, {})", self.start, self.end())
    }
}
