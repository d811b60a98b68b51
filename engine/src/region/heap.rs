//! A region on plain heap bytes, so that its logic runs under tools that cannot follow a mapping.
#![expect(
    unsafe_code,
    reason = "a region's memory is promised to stay where it is"
)]

use std::cell::UnsafeCell;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use super::{Backing, Reaches, Region};

/// Told before bytes are read or written: whether somebody else may be writing them.
pub(crate) trait Watch: Send {
    fn reads(&self, _range: Range<usize>) {}
    fn writes(&self, _range: Range<usize>) {}
}

/// Nobody looks.
impl Watch for () {}

pub(crate) struct Heap<W: Watch = ()> {
    bytes: Box<[UnsafeCell<u8>]>,
    watch: W,
}

// SAFETY: the region hands out disjoint parts to its views and its writer, and a watch is there to find
// out if it does not.
unsafe impl<W: Watch> Sync for Heap<W> {}

// SAFETY: a boxed slice neither moves nor shrinks, and only the region asks for its pointer.
unsafe impl<W: Watch> Backing for Heap<W> {
    fn as_mut_ptr(&self) -> *mut u8 {
        UnsafeCell::raw_get(self.bytes.as_ptr())
    }

    fn len(&self) -> usize {
        self.bytes.len()
    }

    fn populate(&self, _range: Range<usize>) -> io::Result<()> {
        Ok(())
    }

    fn reads(&self, range: Range<usize>) {
        self.watch.reads(range);
    }

    fn writes(&self, range: Range<usize>) {
        self.watch.writes(range);
    }
}

/// `len` zero bytes, none of them published.
pub(crate) fn region(len: usize) -> Arc<Region<Heap>> {
    watched(len, ())
}

pub(crate) fn watched<W: Watch>(len: usize, watch: W) -> Arc<Region<Heap<W>>> {
    let bytes = (0..len).map(|_| UnsafeCell::new(0)).collect();
    Region::new(Heap { bytes, watch }, 0, Reaches::of_nothing_else())
}
