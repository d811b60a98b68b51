//! Appending as master: records are encoded straight into the mapping, then published.
//!
//! One call is one critical section and one publication: readers see all its records or none. Nothing
//! is allocated for a message of a queue that had one before.

use std::sync::Arc;

use rustix::time::{ClockId, clock_gettime};

use crate::error::Error;
use crate::position::{MAX_OFFSET, Offset};
use crate::queue_offsets::QueueOffsets;
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

/// Where the records of one append go, front to back.
struct Place<'a, S> {
    /// What is left of the bytes for them.
    slot: &'a mut [u8],
    queues: &'a mut QueueOffsets,
    /// Offset of the slot's first byte.
    at: Offset,
    /// Start of the last record.
    last: Offset,
    store_timestamp_ms: i64,
    stored: S,
}

impl<S: FnMut(Appended)> Place<'_, S> {
    #[inline]
    fn put(&mut self, record: &Planned<'_>) {
        let message = record.message();
        let slot = std::mem::take(&mut self.slot);
        let (out, rest) = slot.split_at_mut(record.len());
        self.slot = rest;
        let mut queue_offset = 0;
        if sys_flag::takes_queue_offset(message.sys_flag) {
            let next = self.queues.next(message.topic, message.queue_id);
            queue_offset = *next;
            *next += 1;
        }
        let stamp = Stamp {
            queue_offset,
            physical_offset: self.at,
            store_timestamp_ms: self.store_timestamp_ms,
        };
        record.write(out, stamp);
        self.last = self.at;
        self.at += record.len() as u64;
        (self.stored)(Appended {
            offset: self.last,
            end: self.at,
            queue_offset,
            store_timestamp_ms: self.store_timestamp_ms,
        });
    }
}

impl CommitLog {
    /// Appends all of `messages` as one unit into one segment and tells `stored` where each went.
    pub(crate) fn append(
        &self,
        messages: &[Message<'_>],
        stored: impl FnMut(Appended),
    ) -> Result<(), Error> {
        let options = self.settings.encode;
        if let [message] = messages {
            // Everything but the copy is done before the lock.
            let record = Planned::new(message, options).map_err(Error::Message)?;
            return self.append_planned(record.len(), stored, |place| place.put(&record));
        }
        let mut total = 0;
        for message in messages {
            total += encoded_len(message, options).map_err(Error::Message)?;
        }
        if total == 0 {
            return Ok(());
        }
        self.append_planned(total, stored, |place| {
            for message in messages {
                place.put(&Planned::new(message, options).expect("measured above"));
            }
        })
    }

    /// Appends what `write` puts, `total` bytes, together.
    #[inline]
    fn append_planned<S: FnMut(Appended)>(
        &self,
        total: usize,
        stored: S,
        write: impl FnOnce(&mut Place<'_, S>),
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
        writer.fetch_ahead(total, total);
        let at = self.end();
        let mut place = Place {
            slot: &mut writer.tail_mut()[..total],
            queues,
            at,
            last: at,
            // Whoever was first at the clock may be last at the lock.
            store_timestamp_ms: now_ms.max(self.last_store_ms()),
            stored,
        };
        write(&mut place);
        let Place {
            slot,
            at,
            last,
            store_timestamp_ms,
            ..
        } = place;
        assert!(slot.is_empty(), "what is published was written");
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

/// Now, in ms since 1970, by the kernel's last tick: at most 10 ms ago (`CONFIG_HZ` of 100 to 1000). The
/// exact clock costs as much as the CRC of a message of 1 KiB.
fn now_ms() -> i64 {
    let now = clock_gettime(ClockId::RealtimeCoarse);
    now.tv_sec * 1000 + now.tv_nsec / 1_000_000
}
