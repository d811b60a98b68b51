//! Taking the end back in memory, and putting the writer back once the files have followed.
//!
//! Between the two nothing is written: the pen is gone. Files are changed by the caller's steps.

use crate::sync::atomic::Ordering;
use std::sync::Arc;

use crate::error::Error;
use crate::position::Offset;
use crate::record::CheckOptions;
use crate::region::Writer;
use crate::segment::{Segment, to_len};
use crate::walk::{Item, walk};

use super::{CommitLog, Pen, Tail};

/// What a retraction leaves to be done on disk.
pub(crate) struct Retraction {
    pub(crate) old_end: Offset,
    /// Segments to remove, newest first; those kept ready too.
    pub(crate) remove: Vec<Offset>,
    /// How many of them held log.
    pub(crate) removed_segments: usize,
    /// The segment that is cut inside, if it is one.
    pub(crate) cut: Option<Offset>,
    /// A view reaches past the cut: the file must be replaced, not edited.
    pub(crate) replace: bool,
    writer: Option<Writer>,
}

impl CommitLog {
    /// Draws the published end back to `to`, a record boundary in `[min, end]`. Readers see it at
    /// once; views that exist keep their bytes.
    pub(crate) fn retract(&self, tail: &mut Tail, to: Offset) -> Result<Retraction, Error> {
        let old_end = self.end();
        assert!(self.min() <= to && to <= old_end, "a cut inside the log");
        if matches!(tail.pen, Pen::Out) {
            return Err(Error::WindowOutstanding);
        }
        self.take_back_queue_offsets(tail, to);
        let _layout = self.layout.lock();
        let mut segments = self.segments.write();
        self.set_end(to);
        // Segments kept ready stay when the cut leaves them where the log goes on.
        let keeps_last =
            segments.last().is_some_and(|last| last.base() < to) || segments.len() == 1;
        let mut remove = Vec::new();
        let mut ready = self.ready.lock();
        if !keeps_last {
            remove = ready.bases();
        }
        let were_ready = remove.len();
        while let [_, .., last] = &segments[..]
            && last.base() >= to
        {
            remove.push(last.base());
            segments.pop();
        }
        tail.pen = match std::mem::replace(&mut tail.pen, Pen::None) {
            Pen::Here(writer) if keeps_last => Pen::Here(writer),
            _ => Pen::None,
        };
        let last = segments.last();
        if !keeps_last {
            ready.restart(last.map_or(to, |last| last.limit()));
        }
        drop(ready);
        let mut cut = None;
        let mut replace = false;
        let mut writer = None;
        if let Some(last) = last.filter(|last| to < last.limit()) {
            let held = match std::mem::replace(&mut tail.pen, Pen::None) {
                Pen::Here(writer) => Some(writer),
                _ => last.writer(),
            };
            let held = held.ok_or(Error::WindowOutstanding)?;
            cut = Some(last.base());
            writer = held.retract(to_len(to - last.base()));
            replace = writer.is_none();
        }
        let removed_segments = remove.len() - were_ready;
        Ok(Retraction {
            old_end,
            remove,
            removed_segments,
            cut,
            replace,
            writer,
        })
    }

    /// The files have followed: writing may go on at the end.
    pub(crate) fn resume(&self, tail: &mut Tail, retraction: Retraction) -> Result<(), Error> {
        let end = self.end();
        tail.dirty_to = end;
        if let Some(base) = retraction.cut {
            let writer = match retraction.writer {
                Some(writer) => writer,
                None => self
                    .reopen_last(base, end)?
                    .writer()
                    .ok_or(Error::WindowOutstanding)?,
            };
            tail.pen = Pen::Here(writer);
        }
        self.prefault_from.store(end, Ordering::Relaxed);
        self.wake_prepare();
        Ok(())
    }

    /// Maps the file that took the place of the last segment.
    fn reopen_last(&self, base: Offset, end: Offset) -> Result<Arc<Segment>, Error> {
        let settings = &self.settings;
        let path = settings.folder.segment(base);
        let segment = Segment::open(path, base, settings.segment_size, end - base)?;
        let mut segments = self.segments.write();
        let last = segments
            .last_mut()
            .expect("the cut segment is the last one");
        assert_eq!(last.base(), base, "the cut segment is the last one");
        *last = Arc::clone(&segment);
        Ok(segment)
    }

    /// Moves the next queue offsets back over the records from `to` on.
    fn take_back_queue_offsets(&self, tail: &mut Tail, to: Offset) {
        let Some(queues) = &mut tail.queues else {
            return;
        };
        let mut at = to;
        while at < self.end() {
            let Some((segment, slice)) = self
                .segment_of(at)
                .and_then(|it| it.slice(at, usize::MAX).map(|slice| (it, slice)))
            else {
                break;
            };
            let structure = |_| CheckOptions::STRUCTURE;
            let (walked, _) = walk(&slice, at, segment.limit(), structure, |item| {
                if let Item::Record(record) = item {
                    queues.cut(&record);
                }
                true
            });
            if walked == at {
                break;
            }
            at = walked;
        }
        if at < self.end() {
            // Not readable to its end: the table is made anew when it is needed.
            tail.queues = None;
        }
    }
}
