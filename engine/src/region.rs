//! One mapped file: its published end, the views that keep it mapped, and its single writer.
//!
//! Bytes `[0, published)` are immutable while a view may see them; bytes `[published, len)` belong
//! to the one [`Writer`]. A view never reaches past the published end of the moment it was made. The
//! published end moves down only through [`Writer::retract`], which retires the writer for good when
//! a view still reaches past the new end: such a region is read, never written again, and its
//! owner puts a fresh file in its place. How far views reach is kept exactly, and for each file of this
//! process once, however often it is mapped: a view outlives the store it was made by. Making one costs
//! a lock that appends never take, and no allocation; parts of it and clones cost no lock either.
//!
//! This file holds no policy: what is written where is decided by its callers.
#![expect(
    unsafe_code,
    reason = "a slice of a shared mapping can only be made from a raw pointer"
)]

#[path = "region/background.rs"]
pub(crate) mod background;
#[cfg(test)]
#[path = "region/heap.rs"]
pub(crate) mod heap;
#[path = "region/reaches.rs"]
mod reaches;
#[path = "region/signals.rs"]
pub mod signals;

use std::fs::File;
use std::io;
use std::ops::{Deref, Range};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::ptr;
use std::slice;
use std::sync::Arc;

use memmap2::{Advice, MmapMut, MmapOptions, MmapRaw};

use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use reaches::Reaches;
pub(crate) use reaches::is_held_past;

/// Bytes that go between memory and processor together, on the machines this runs on.
const CACHE_LINE: usize = 64;

/// Bytes that [`fetch_ahead`] asks for at most: more would push out what is in use.
const FETCH_AHEAD: usize = 4096;

/// Memory a region can stand on.
///
/// # Safety
/// `as_mut_ptr` and `len` answer the same for the whole life of the value, the `len` bytes there
/// stay allocated that long, and nobody but the region reaches them through a Rust reference.
pub(crate) unsafe trait Backing: Send + Sync {
    fn as_mut_ptr(&self) -> *mut u8;
    fn len(&self) -> usize;

    /// Makes the pages of `range` present and writable, without changing a byte.
    fn populate(&self, range: Range<usize>) -> io::Result<()>;

    /// Told before the bytes of `range` are read through a view or a writer.
    fn reads(&self, range: Range<usize>) {
        let _ = range;
    }

    /// Told before the bytes of `range` may be written.
    fn writes(&self, range: Range<usize>) {
        let _ = range;
    }
}

/// A shared mapping of a file.
pub(crate) struct Mapped {
    /// Goes before the mapping does; nothing for memory that is no file's.
    _listed: Option<signals::Listed>,
    map: MmapRaw,
}

impl Mapped {
    fn new(map: MmapRaw, path: &Path) -> Self {
        Self {
            _listed: Some(signals::Listed::new(map.as_ptr(), map.len(), path)),
            map,
        }
    }
}

// SAFETY: the mapping is made once and unmapped when `MmapRaw` is dropped; only this file asks it
// for its pointer.
unsafe impl Backing for Mapped {
    fn as_mut_ptr(&self) -> *mut u8 {
        self.map.as_mut_ptr()
    }

    fn len(&self) -> usize {
        self.map.len()
    }

    fn populate(&self, range: Range<usize>) -> io::Result<()> {
        self.map
            .advise_range(Advice::PopulateWrite, range.start, range.len())
    }
}

/// One file's bytes with the end up to which they are published.
pub(crate) struct Region<B: Backing = Mapped> {
    backing: B,
    published: AtomicUsize,
    reaches: Arc<Reaches>,
    /// A writer exists, or existed and was retired.
    claimed: AtomicBool,
    retired: AtomicBool,
    /// No further view is made.
    sealed: AtomicBool,
}

impl Region<Mapped> {
    /// Maps the first `len` bytes of `file`, opened at `path`, for reading and writing.
    ///
    /// The file must hold `len` allocated bytes: a store to a page without a block is a SIGBUS.
    pub(crate) fn map(
        file: &File,
        path: &Path,
        len: usize,
        published: usize,
    ) -> io::Result<Arc<Self>> {
        let map = MmapOptions::new().len(len).map_raw(file)?;
        let reaches = Reaches::of(file)?;
        Ok(Self::new(Mapped::new(map, path), published, reaches))
    }

    /// Maps the first `len` bytes of `file`, opened at `path`, for reading, all of them published.
    pub(crate) fn map_read_only(file: &File, path: &Path, len: usize) -> io::Result<Arc<Self>> {
        let map = MmapOptions::new().len(len).map_raw_read_only(file)?;
        let region = Self::new(Mapped::new(map, path), len, Reaches::of(file)?);
        // Nobody may claim a writer over pages that fault on a store.
        region.claimed.store(true, Ordering::SeqCst);
        Ok(region)
    }

    /// A copy of the first `len` bytes of `file` as they are now, all of them published. For files that
    /// this process maps for writing.
    pub(crate) fn copy(file: &File, len: usize) -> io::Result<Arc<Self>> {
        let mut bytes = MmapMut::map_anon(len)?;
        file.read_exact_at(&mut bytes, 0)?;
        let copied = Mapped {
            _listed: None,
            map: MmapRaw::from(bytes),
        };
        let region = Self::new(copied, len, Reaches::of_nothing_else());
        region.claimed.store(true, Ordering::SeqCst);
        Ok(region)
    }
}

impl<B: Backing> Region<B> {
    fn new(backing: B, published: usize, reaches: Arc<Reaches>) -> Arc<Self> {
        assert!(published <= backing.len(), "published end past the region");
        Arc::new(Self {
            backing,
            published: AtomicUsize::new(published),
            reaches,
            claimed: AtomicBool::new(false),
            retired: AtomicBool::new(false),
            sealed: AtomicBool::new(false),
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.backing.len()
    }

    /// The end of what views may see.
    pub(crate) fn published(&self) -> usize {
        self.published.load(Ordering::Acquire)
    }

    /// The one writer, or nothing if it is out, or was retired.
    pub(crate) fn claim(self: &Arc<Self>) -> Option<Writer<B>> {
        if self.claimed.swap(true, Ordering::SeqCst) {
            return None;
        }
        Some(Writer {
            region: Arc::clone(self),
        })
    }

    /// A view of at most `max_len` bytes from `start`, shortened to the published end; `None` when
    /// `start` lies past that end or the region is sealed.
    pub(crate) fn view(self: &Arc<Self>, start: usize, max_len: usize) -> Option<View<B>> {
        // The end is read under the lock, so a retraction either lowers it first or sees the reach.
        let (slot, len) = self.reaches.locked(|free| {
            if self.sealed.load(Ordering::SeqCst) {
                return None;
            }
            let end = start.saturating_add(max_len).min(self.published());
            let len = end.checked_sub(start)?;
            Some((self.reaches.take(free, end), len))
        })?;
        Some(View {
            region: Arc::clone(self),
            slot,
            start,
            len,
        })
    }

    /// Makes no view from now on: another mapping of the file gets a writer, which does not know this
    /// one's published end.
    pub(crate) fn seal(&self) {
        // A view is made before this, and then counts, or not at all.
        self.reaches
            .locked(|_| self.sealed.store(true, Ordering::SeqCst));
    }

    pub(crate) fn populate(&self, range: Range<usize>) -> io::Result<()> {
        self.backing.populate(range)
    }
}

/// Asks the processor for the first `len` of `bytes`, at most [`FETCH_AHEAD`], so that the next stores to
/// them do not wait for memory. Changes nothing.
#[inline]
pub(crate) fn fetch_ahead(bytes: &[u8], len: usize) {
    fetch_at(bytes.as_ptr().addr(), bytes.len().min(len));
}

/// As [`fetch_ahead`], of the `len` bytes at `address`, which may be any.
#[inline]
pub(crate) fn fetch_at(address: usize, len: usize) {
    for line in 0..len.min(FETCH_AHEAD).div_ceil(CACHE_LINE) {
        fetch(ptr::without_provenance(
            address.wrapping_add(line * CACHE_LINE),
        ));
    }
}

/// Any address will do.
#[cfg(target_arch = "x86_64")]
#[inline]
fn fetch(line: *const u8) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: a prefetch is a hint: it reads nothing and faults on no address.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(line.cast()) };
}

#[cfg(not(target_arch = "x86_64"))]
fn fetch(_line: *const u8) {}

/// Published bytes that keep their region mapped.
pub(crate) struct View<B: Backing = Mapped> {
    region: Arc<Region<B>>,
    /// Where its reach is kept; shared with its parts and clones.
    slot: u32,
    start: usize,
    len: usize,
}

impl<B: Backing> View<B> {
    /// The same bytes cut to `range`, counted from this view's first byte. It holds on to as much as
    /// this one.
    pub(crate) fn narrow(&self, range: Range<usize>) -> Option<Self> {
        if range.start > range.end || range.end > self.len {
            return None;
        }
        let part = self.clone();
        Some(part.cut_to(range))
    }

    /// As [`Self::narrow`], in place of this view: unless another part or a clone is there, nothing behind
    /// the range is held any longer.
    pub(crate) fn into_part(self, range: Range<usize>) -> Option<Self> {
        if range.start > range.end || range.end > self.len {
            return None;
        }
        let part = self.cut_to(range);
        part.region
            .reaches
            .shorten(part.slot, part.start + part.len);
        Some(part)
    }

    fn cut_to(mut self, range: Range<usize>) -> Self {
        self.start += range.start;
        self.len = range.len();
        self
    }
}

impl<B: Backing> Deref for View<B> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.region.backing.reads(self.start..self.start + self.len);
        // SAFETY: `start <= published <= len` held when the view was made, so the pointer stays
        // inside the backing memory.
        let first = unsafe { self.region.backing.as_mut_ptr().add(self.start) };
        // SAFETY: `[start, start + len)` was published when the view was made, and the writer never
        // touches published bytes; it is retired when the end is drawn back under a live view.
        unsafe { slice::from_raw_parts(first, self.len) }
    }
}

impl<B: Backing> Clone for View<B> {
    fn clone(&self) -> Self {
        self.region.reaches.share(self.slot);
        Self {
            region: Arc::clone(&self.region),
            slot: self.slot,
            start: self.start,
            len: self.len,
        }
    }
}

impl<B: Backing> Drop for View<B> {
    fn drop(&mut self) {
        self.region.reaches.give_back(self.slot);
    }
}

/// The right to write past the published end of one region. There is one per region.
pub(crate) struct Writer<B: Backing = Mapped> {
    region: Arc<Region<B>>,
}

impl<B: Backing> Writer<B> {
    pub(crate) fn published(&self) -> usize {
        // Only this writer moves the end, so its own stores are always seen.
        self.region.published.load(Ordering::Relaxed)
    }

    /// Bytes between the published end and the end of the region.
    pub(crate) fn room(&self) -> usize {
        self.region.len() - self.published()
    }

    /// The bytes past the published end, as they are.
    pub(crate) fn tail(&self) -> &[u8] {
        let published = self.published();
        self.region.backing.reads(published..self.region.len());
        // SAFETY: `published <= len`, so the pointer stays inside the backing memory.
        let first = unsafe { self.region.backing.as_mut_ptr().add(published) };
        // SAFETY: bytes past the published end are reached through this writer only, and it is
        // borrowed for as long as the slice lives.
        unsafe { slice::from_raw_parts(first, self.region.len() - published) }
    }

    /// The bytes past the published end, to be written.
    pub(crate) fn tail_mut(&mut self) -> &mut [u8] {
        let published = self.published();
        self.region.backing.writes(published..self.region.len());
        // SAFETY: `published <= len`, so the pointer stays inside the backing memory.
        let first = unsafe { self.region.backing.as_mut_ptr().add(published) };
        // SAFETY: bytes past the published end are reached through this writer only, it is borrowed
        // exclusively for as long as the slice lives, and no view reaches there.
        unsafe { slice::from_raw_parts_mut(first, self.region.len() - published) }
    }

    /// Publishes the next `len` bytes of the tail.
    pub(crate) fn publish(&mut self, len: usize) {
        assert!(len <= self.room(), "published past the region");
        // Whoever sees the new end sees the bytes below it.
        self.region
            .published
            .store(self.published() + len, Ordering::Release);
    }

    /// Draws the published end back to `end`. Gives the writer back when no view reaches past
    /// `end`; otherwise the region is retired and never written again.
    pub(crate) fn retract(self, end: usize) -> Option<Self> {
        assert!(end <= self.published(), "a retraction only lowers the end");
        self.region
            .reaches
            .locked(|_| self.region.published.store(end, Ordering::Release));
        // A view that is made from here on sees the new end.
        if self.region.reaches.past(end) {
            self.region.retired.store(true, Ordering::SeqCst);
            return None;
        }
        Some(self)
    }
}

impl<B: Backing> Drop for Writer<B> {
    fn drop(&mut self) {
        if !self.region.retired.load(Ordering::SeqCst) {
            self.region.claimed.store(false, Ordering::SeqCst);
        }
    }
}
