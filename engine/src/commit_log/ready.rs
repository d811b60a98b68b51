//! The segments behind the one that is written to: made, durable, mapped, and never written.
//!
//! Pure but for the files that the segments hold open. They follow each other without a gap, and the first
//! one begins where the log will need it.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::position::Offset;
use crate::segment::Segment;

/// Never more than this many are kept ready or left behind, however small they are. Java leaves as many: its
/// recovery after a clean stop looks for the last record in the last three files only, and after a kill it
/// goes wrong over more: it finds the end of the log and gives the consume queues up.
pub(crate) const MOST_READY: usize = 2;

/// How many segments of `segment_size` bytes are kept ready: so many that they hold `ahead` bytes, at least
/// one, at most [`MOST_READY`].
pub(crate) fn ready_count(ahead: u64, segment_size: u64) -> usize {
    let wanted = usize::try_from(ahead.div_ceil(segment_size));
    wanted.map_or(MOST_READY, |wanted| wanted.clamp(1, MOST_READY))
}

/// Segments nobody took yet, oldest first.
pub(super) struct Ready {
    /// Where the first one begins, or is to begin.
    next: Offset,
    segments: VecDeque<Arc<Segment>>,
    /// The disk had no room for all that were missing.
    pub(super) one_by_one: bool,
}

impl Ready {
    pub(super) fn new(next: Offset, segments: impl IntoIterator<Item = Arc<Segment>>) -> Self {
        let mut ready = Self {
            next,
            segments: VecDeque::new(),
            one_by_one: false,
        };
        for segment in segments {
            ready.push(segment);
        }
        ready
    }

    pub(super) fn len(&self) -> usize {
        self.segments.len()
    }

    /// Where the next one to be made begins.
    pub(super) fn end(&self) -> Offset {
        self.segments.back().map_or(self.next, |last| last.limit())
    }

    /// Bases, newest first.
    pub(super) fn bases(&self) -> Vec<Offset> {
        let newest_first = self.segments.iter().rev();
        newest_first.map(|segment| segment.base()).collect()
    }

    pub(super) fn push(&mut self, segment: Arc<Segment>) {
        assert_eq!(segment.base(), self.end(), "segments leave no gap");
        self.segments.push_back(segment);
    }

    /// The one that begins at `base`, which goes into the log now.
    pub(super) fn take(&mut self, base: Offset) -> Option<Arc<Segment>> {
        let first = self.segments.front()?;
        if first.base() != base {
            return None;
        }
        self.next = first.limit();
        self.segments.pop_front()
    }

    /// Gives the newest one up, if more than `most` are there.
    pub(super) fn pop_beyond(&mut self, most: usize) -> Option<Offset> {
        if self.segments.len() <= most {
            return None;
        }
        self.segments.pop_back().map(|last| last.base())
    }

    /// None is ready, and the next one to be made begins at `next`. Answers the bases of those that were,
    /// newest first; their files are the caller's business.
    pub(super) fn restart(&mut self, next: Offset) -> Vec<Offset> {
        let bases = self.bases();
        self.segments.clear();
        self.next = next;
        bases
    }

    /// The one that holds the byte at `offset`.
    pub(super) fn segment_of(&self, offset: Offset) -> Option<Arc<Segment>> {
        let mut all = self.segments.iter();
        let found = all.find(|it| (it.base()..it.limit()).contains(&offset));
        found.map(Arc::clone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_are_kept_ready_as_hold_the_bytes_asked_for() {
        const MIB: u64 = 1 << 20;
        for (ahead, size, count) in [
            (128 * MIB, 1024 * MIB, 1),
            (128 * MIB, 100 * MIB, 2),
            (128 * MIB, 64 * MIB, 2),
            (128 * MIB, 16 * MIB, 2),
            (128 * MIB, 4096, 2),
            (2048 * MIB, 1024 * MIB, 2),
            (1, 4096, 1),
            (0, 4096, 1),
            (u64::MAX, 4096, 2),
        ] {
            assert_eq!(ready_count(ahead, size), count, "{ahead} of {size}");
        }
    }
}
