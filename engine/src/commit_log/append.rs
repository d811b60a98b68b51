//! Appending as master: records are encoded straight into the mapping, then published.
//!
//! One call is one critical section and one publication: readers see all its records or none. Nothing
//! is allocated for a message of a queue that had one before.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::error::Error;
use crate::position::{MAX_OFFSET, Offset};
use crate::record::{FILLER_MIN_LEN, Message, Planned, Stamp, encoded_len, sys_flag, write_filler};
use crate::region::Writer;
use crate::segment::Segment;

use super::{CommitLog, Pen, Tail};

const FILLER_LEN: u64 = FILLER_MIN_LEN as u64;

/// Where a message was put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    /// First byte of its record.
    pub offset: Offset,
    /// Behind the last byte of its record.
    pub end: Offset,
    /// Its index in its queue; 0 for prepared and rolled back transaction messages.
    pub queue_offset: i64,
    /// The store time written into it, in ms since 1970.
    pub store_timestamp_ms: i64,
}

impl CommitLog {
    /// Appends all of `messages` as one unit into one segment and tells `stored` where each went.
    pub(crate) fn append(
        &self,
        messages: &[Message<'_>],
        stored: impl FnMut(Appended),
    ) -> Result<(), Error> {
        let options = self.settings.encode;
        let plan = |message| Planned::new(message, options);
        if let [message] = messages {
            // Everything but the copy is done before the lock.
            let planned = plan(message).map_err(Error::Message)?;
            return self.append_planned(planned.len(), std::iter::once(planned), stored);
        }
        let mut total = 0;
        for message in messages {
            total += encoded_len(message, options).map_err(Error::Message)?;
        }
        if total == 0 {
            return Ok(());
        }
        let planned = messages
            .iter()
            .map(|message| plan(message).expect("measured above"));
        self.append_planned(total, planned, stored)
    }

    /// Appends records of `total` bytes together.
    fn append_planned<'m>(
        &self,
        total: usize,
        records: impl Iterator<Item = Planned<'m>>,
        mut stored: impl FnMut(Appended),
    ) -> Result<(), Error> {
        let now_ms = now_ms();
        let mut guard = self.lock_tail();
        let tail = &mut *guard;
        if let Some(why) = tail.refused {
            return Err(Error::NotWritable { why });
        }
        self.make_room(tail, total as u64)?;
        let (Pen::Here(writer), Some(queues)) = (&mut tail.pen, &mut tail.queues) else {
            return Err(Error::NotWritable {
                why: "the next queue offsets are not known",
            });
        };
        // Whoever was first at the clock may be last at the lock.
        let store_timestamp_ms = now_ms.max(self.last_store_ms());
        let mut at = self.end();
        let mut last = at;
        let mut slot = writer.tail_mut();
        for record in records {
            let message = record.message();
            let (out, rest) = slot.split_at_mut(record.len());
            slot = rest;
            let mut queue_offset = 0;
            if sys_flag::takes_queue_offset(message.sys_flag) {
                let next = queues.next(message.topic, message.queue_id);
                queue_offset = *next;
                *next += 1;
            }
            let stamp = Stamp {
                queue_offset,
                physical_offset: at,
                store_timestamp_ms,
            };
            record.write(out, stamp);
            let end = at + record.len() as u64;
            last = at;
            stored(Appended {
                offset: at,
                end,
                queue_offset,
                store_timestamp_ms,
            });
            at = end;
        }
        writer.publish(total);
        tail.dirty_to = at;
        self.set_last_record(last, store_timestamp_ms);
        self.set_end(at);
        drop(guard);
        self.written_to(at);
        self.announce();
        Ok(())
    }

    /// Makes sure that `len` bytes and a filler fit at the end; rolls to the next segment if they do
    /// not. When the next segment cannot be had, nothing has changed.
    fn make_room(&self, tail: &mut Tail, len: u64) -> Result<(), Error> {
        let segment_size = self.settings.segment_size;
        if len + FILLER_LEN > segment_size {
            return Err(Error::TooLarge { len, segment_size });
        }
        match &mut tail.pen {
            Pen::Here(writer) if len + FILLER_LEN <= writer.room() as u64 => Ok(()),
            Pen::Here(writer) => {
                let base = self.end() + writer.room() as u64;
                let next = self.next_segment(base)?;
                fill(writer);
                tail.dirty_to = base;
                self.open_segment(tail, next)?;
                self.set_end(base);
                Ok(())
            }
            Pen::None => {
                let next = self.next_segment(self.end())?;
                self.open_segment(tail, next)
            }
            Pen::Out => Err(Error::WindowOutstanding),
        }
    }

    /// Makes `segment` the one that is written to.
    pub(super) fn open_segment(&self, tail: &mut Tail, segment: Arc<Segment>) -> Result<(), Error> {
        if segment.limit() > MAX_OFFSET {
            return Err(Error::NotWritable {
                why: "the log has reached the largest offset",
            });
        }
        let writer = segment.writer().ok_or(Error::WindowOutstanding)?;
        self.push_segment(segment);
        tail.pen = Pen::Here(writer);
        Ok(())
    }
}

/// Publishes a filler that takes the rest of the segment.
fn fill(writer: &mut Writer) {
    let room = writer.room();
    write_filler(writer.tail_mut());
    writer.publish(room);
}

fn now_ms() -> i64 {
    let since_1970 = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    i64::try_from(since_1970.as_millis()).unwrap_or(i64::MAX)
}
