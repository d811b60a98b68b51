//! The slave's side of the tail: the pen goes out with a window, comes back with bytes, and whole
//! records are published.

use crate::sync::atomic::Ordering;

use crate::sync::MutexGuard;

use crate::error::Error;
use crate::position::Offset;
use crate::queue_offsets::QueueOffsets;
use crate::record::{CheckOptions, Parsed, RecordError, parse};
use crate::region::Writer;
use crate::segment::{Segment, to_len};

use super::{CommitLog, Pen, Tail};

impl CommitLog {
    /// The pen for writing at `received`, the end of what was received so far; the next segment is
    /// opened when the last one is full.
    pub(crate) fn lend_pen(&self, tail: &mut Tail) -> Result<Writer, Error> {
        if matches!(&tail.pen, Pen::Here(writer) if writer.room() == 0) {
            tail.pen = Pen::None;
        }
        if matches!(tail.pen, Pen::None) {
            let next = self.next_segment(self.end())?;
            self.open_segment(tail, next)?;
        }
        match std::mem::replace(&mut tail.pen, Pen::Out) {
            Pen::Here(writer) => Ok(writer),
            _ => Err(Error::WindowOutstanding),
        }
    }

    /// Publishes whole records of `[end, received)`. Returns the new end; on an error everything
    /// before the bad record is published.
    pub(crate) fn publish_received(
        &self,
        tail: &mut Tail,
        received: Offset,
    ) -> Result<Offset, Error> {
        let end = self.end();
        let writer = match &mut tail.pen {
            Pen::Here(writer) => writer,
            Pen::None => return Ok(end),
            Pen::Out => return Err(Error::WindowOutstanding),
        };
        let room = writer.room();
        let mut done = 0;
        let mut last = None;
        let pending = &writer.tail()[..to_len(received - end)];
        let answer = loop {
            let rest = &pending[done..];
            let at = end + done as u64;
            if rest.is_empty() {
                break Ok(());
            }
            match parse(rest, at, (room - done) as u64, CheckOptions::CHECKSUMS) {
                Ok(Parsed::Message(record)) => {
                    done += record.total_size();
                    last = Some((at, record.store_timestamp_ms()));
                    if let Some(queues) = &mut tail.queues {
                        queues.put(&record);
                    }
                }
                // The filler's bytes behind its first eight are kept as they came.
                Ok(Parsed::Filler { len }) => done += len as usize,
                Err(RecordError::NeedMore { .. }) => break Ok(()),
                Err(error) => break Err((at, error)),
            }
        };
        writer.publish(done);
        if let Some((at, store_ms)) = last {
            self.set_last_record(at, store_ms.max(self.last_store_ms()));
        }
        let end = end + done as u64;
        self.set_end(end);
        self.written_to(end);
        match answer {
            Ok(()) => Ok(end),
            Err((offset, error)) => {
                let path = self
                    .segment_of(offset)
                    .map(|segment| segment.path().clone());
                let file = path.unwrap_or_else(|| self.settings.folder.commit_log());
                Err(Error::Corrupt {
                    file,
                    offset,
                    why: error.to_string(),
                })
            }
        }
    }

    /// Begins the empty log anew at `base`, whose segment is there already. `_layout` is held since before
    /// the old segments were looked for, so that none was made since.
    pub(crate) fn restart_at(
        &self,
        tail: &mut Tail,
        _layout: &MutexGuard<'_, ()>,
        base: Offset,
    ) -> Result<(), Error> {
        assert_eq!(
            self.min(),
            self.end(),
            "only an empty log can begin elsewhere"
        );
        let settings = self.settings();
        let path = settings.folder.segment(base);
        let segment = Segment::open(path, base, settings.segment_size, 0)?;
        self.ready.lock().restart(segment.limit());
        self.doomed.lock().clear();
        tail.pen = Pen::None;
        tail.queues = Some(QueueOffsets::default());
        self.segments.write().clear();
        self.min.store(base, Ordering::SeqCst);
        self.set_end(base);
        self.set_last_record(base, 0);
        tail.dirty_to = base;
        self.open_segment(tail, segment)
    }

    /// Bases of the segment files of an empty log, those kept ready included, newest first.
    pub(crate) fn empty_bases(&self) -> Vec<Offset> {
        let mut bases = self.ready.lock().bases();
        let segments = self.segments();
        bases.extend(segments.iter().rev().map(|segment| segment.base()));
        // Retention could not remove these; behind a gap they would not be taken for a log.
        bases.extend(self.doomed.lock().iter().rev());
        bases
    }
}
