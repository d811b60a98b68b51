//! Appending as master: records are encoded straight into the mapping, then published.
//!
//! One call is one critical section and one publication: readers see all its records or none. Lengths and
//! CRCs are worked out before it. Nothing is allocated for a message of a queue that had one before.

use std::cell::Cell;
use std::sync::Arc;

use crate::sync::atomic::Ordering;

use rustix::time::{ClockId, clock_gettime};

use crate::error::Error;
use crate::position::{MAX_OFFSET, Offset};
use crate::queue_offsets::QueueOffsets;
use crate::record::{
    EncodeOptions, FILLER_MIN_LEN, Message, Prepared, Stamp, sys_flag, write_filler,
};
use crate::region::{Writer, fetch_ahead, fetch_at};
use crate::segment::Segment;
use crate::sync::lock_in_runs;

use super::{CommitLog, Pen, Tail};

const FILLER_LEN: u64 = FILLER_MIN_LEN as u64;

/// A thread keeps the memory for what it prepares of a batch, if the batch has no more messages than this.
const KEPT_BATCH: usize = 4096;

/// Bytes of a batch's place that are asked for before it is written: what a core's own cache has room for.
const BATCH_AHEAD: usize = 512 * 1024;

thread_local! {
    static BATCH: Cell<Vec<Prepared>> = const { Cell::new(Vec::new()) };
}

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
    /// What is left of the segment.
    slot: &'a mut [u8],
    options: EncodeOptions,
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
    fn put(&mut self, message: &Message<'_>, record: &Prepared) {
        let slot = std::mem::take(&mut self.slot);
        let (out, rest) = slot.split_at_mut(record.len());
        // The next record is written there, by this call or another, and is likely as long.
        fetch_ahead(rest, record.len());
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
        record.write(out, message, stamp, self.options);
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
            let record = Prepared::new(message, options).map_err(Error::Message)?;
            return self.append_prepared(record.len(), stored, |place| place.put(message, &record));
        }
        let mut records = BATCH.try_with(Cell::take).unwrap_or_default();
        let appended = self.append_batch(messages, &mut records, stored);
        if records.capacity() <= KEPT_BATCH {
            // A thread that is ending keeps nothing.
            let _ = BATCH.try_with(|batch| batch.set(records));
        }
        appended
    }

    fn append_batch(
        &self,
        messages: &[Message<'_>],
        records: &mut Vec<Prepared>,
        stored: impl FnMut(Appended),
    ) -> Result<(), Error> {
        records.clear();
        records.reserve_exact(messages.len());
        let mut total = 0;
        let hint = self.next_store.load(Ordering::Relaxed);
        for message in messages {
            let record = Prepared::new(message, self.settings.encode).map_err(Error::Message)?;
            if total < BATCH_AHEAD {
                // The memory comes while the CRCs are computed.
                fetch_at(hint + total, record.len());
            }
            total += record.len();
            records.push(record);
        }
        if total == 0 {
            return Ok(());
        }
        self.append_prepared(total, stored, |place| {
            for (message, record) in messages.iter().zip(records.iter()) {
                place.put(message, record);
            }
        })
    }

    /// Appends what `write` puts, `total` bytes, together.
    #[inline]
    fn append_prepared<S: FnMut(Appended)>(
        &self,
        total: usize,
        stored: S,
        write: impl FnOnce(&mut Place<'_, S>),
    ) -> Result<(), Error> {
        let now_ms = now_ms();
        let mut guard = lock_in_runs(&self.tail);
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
        let start = self.end();
        let mut place = Place {
            slot: writer.tail_mut(),
            options: self.settings.encode,
            queues,
            at: start,
            last: start,
            // Whoever was first at the clock may be last at the lock.
            store_timestamp_ms: now_ms.max(self.last_store_ms()),
            stored,
        };
        write(&mut place);
        let Place {
            at,
            last,
            store_timestamp_ms,
            ..
        } = place;
        assert_eq!(
            at - start,
            total as u64,
            "what is published was written, and no more"
        );
        writer.publish(total);
        self.next_store
            .store(writer.tail().as_ptr().addr(), Ordering::Relaxed);
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
