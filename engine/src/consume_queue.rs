//! One consume queue: for each message of a (topic, queue id), in order, where it lies in the commit log.
//!
//! The message with queue offset `n` has the unit at byte `20 n` of the queue's files, for ever. A queue
//! that does not begin at the start of a file has pre-fill in front of its first message there. Invariants:
//! queue offsets of a queue have no gap, the records of its units lie one behind the other in the log,
//! and in the files nothing is written behind the last unit.
//!
//! New units wait in a small buffer and go to the files a hundred at a time; readers see them in either
//! place. What a kill loses is dispatched again from the log.

mod files;
mod unit;

use crate::error::Error;
use crate::position::Offset;

pub(crate) use files::{FileCache, FileSettings, QueueFiles, Unsynced};
pub use unit::{QUEUE_PRE_FILL, QUEUE_UNIT_LEN, QueueUnit};

/// Units that wait for being written, at most.
const MOST_BEHIND: usize = 100;

/// Bytes of a unit, as a position.
pub(crate) const UNIT: u64 = QUEUE_UNIT_LEN as u64;

/// The largest queue offset that is taken from a record: positions stay far below 2^63.
pub(crate) const MAX_QUEUE_OFFSET: i64 = i64::MAX / 64;

/// What became of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Put {
    Stored,
    /// A message with this queue offset, or one further on in the log, is there already.
    Known,
    /// Messages before it are missing; nothing was stored.
    Gap {
        expected: i64,
    },
}

/// One queue. Whoever shares it puts a lock around it.
pub(crate) struct ConsumeQueue {
    files: QueueFiles,
    /// Queue offset of the first message.
    begin: i64,
    /// Queue offset behind the units in the files.
    written: i64,
    /// The units from `written` on.
    behind: Vec<u8>,
    /// Behind the record of the last unit; 0 if there is none.
    covered: Offset,
    /// The files hold units behind `written` that do not count any more.
    stale: bool,
}

impl ConsumeQueue {
    /// A queue with these files, of which only the units count whose records end at or before `proven`.
    /// Whatever stands behind them, units of later records or what a power loss left, is durably erased;
    /// nothing is written if there is nothing.
    pub(crate) fn open(files: QueueFiles, proven: Offset) -> Result<Self, Error> {
        let (first, limit) = (index(files.first()), index(files.limit()));
        let mut queue = Self {
            files,
            begin: first,
            written: limit,
            behind: Vec::new(),
            covered: 0,
            stale: true,
        };
        if first == limit {
            queue.reset();
            return Ok(queue);
        }
        // Whole files that lie behind the point are passed over by their first unit alone.
        let mut last = queue.files.limit() - queue.files.size();
        while last > queue.files.first() && !queue.counts(index(last), proven)? {
            last -= queue.files.size();
        }
        // In the last unit that has a byte in the file, or before it.
        let behind = queue.files.written_end(last)?.next_multiple_of(UNIT);
        let end = queue.partition(index(last), index(behind), |bytes| counts(bytes, proven))?;
        let pre_fill = |bytes: &[u8; QUEUE_UNIT_LEN]| *bytes == QUEUE_PRE_FILL;
        queue.begin = queue.partition(first, end, pre_fill)?;
        queue.written = end;
        if queue.begin < end {
            queue.covered = queue.unit(end - 1)?.map_or(0, |unit| unit.end());
        }
        queue.follow()?;
        Ok(queue)
    }

    fn reset(&mut self) {
        (self.begin, self.written, self.covered) = (0, 0, 0);
        self.behind.clear();
        self.stale = false;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.begin == self.end()
    }

    /// Queue offset of the first message; the end if there is none.
    pub(crate) fn begin(&self) -> i64 {
        self.begin
    }

    /// Queue offset behind the last message.
    pub(crate) fn end(&self) -> i64 {
        // The buffer holds few units.
        self.written + (self.behind.len() / QUEUE_UNIT_LEN) as i64
    }

    pub(crate) fn files(&self) -> &QueueFiles {
        &self.files
    }

    /// Puts a unit at the end. An empty queue begins wherever its first message says.
    pub(crate) fn put(&mut self, at: i64, unit: QueueUnit) -> Result<Put, Error> {
        // After a cut that went no further than this queue.
        self.follow()?;
        if self.is_empty() && (at != self.begin || self.files.is_empty()) {
            self.begin_at(at)?;
        }
        let expected = self.end();
        if at < expected || unit.offset < self.covered {
            return Ok(Put::Known);
        }
        if at > expected {
            return Ok(Put::Gap { expected });
        }
        if self.behind.len() >= MOST_BEHIND * QUEUE_UNIT_LEN {
            self.write_out()?;
        }
        self.behind.extend_from_slice(&unit.encode());
        self.covered = unit.end();
        Ok(Put::Stored)
    }

    fn begin_at(&mut self, at: i64) -> Result<(), Error> {
        self.files.clear()?;
        self.files.begin_at(position(at), &QUEUE_PRE_FILL)?;
        (self.begin, self.written) = (at, at);
        Ok(())
    }

    /// Forgets all messages and where they began: the next one may have any queue offset. Durable.
    pub(crate) fn clear(&mut self) -> Result<(), Error> {
        self.files.clear()?;
        self.reset();
        Ok(())
    }

    /// Writes the waiting units into the files; nothing is durable.
    pub(crate) fn write_out(&mut self) -> Result<(), Error> {
        if !self.behind.is_empty() {
            let end = self.end();
            self.files.write(position(self.written), &self.behind)?;
            self.written = end;
            self.behind.clear();
        }
        Ok(())
    }

    /// What must be synced for the written units to be durable.
    pub(crate) fn take_unsynced(&mut self, into: &mut Unsynced) {
        self.files.take_unsynced(into);
    }

    /// As if nothing in the files had been synced.
    pub(crate) fn distrust(&mut self) {
        self.files.distrust();
    }

    /// Takes back, in memory, every message whose record ends behind `to`; false if there is none. The
    /// files follow with [`Self::follow`], before anything is stored. On an error nothing has changed.
    pub(crate) fn retract(&mut self, to: Offset) -> Result<bool, Error> {
        if self.covered <= to {
            return Ok(false);
        }
        let end = self.covered_below(to)?;
        self.retract_to(end)?;
        Ok(true)
    }

    /// As [`Self::retract`], for every message from queue offset `end` on.
    pub(crate) fn retract_to(&mut self, end: i64) -> Result<(), Error> {
        let end = end.clamp(self.begin, self.end());
        let covered = match end > self.begin {
            true => self.unit(end - 1)?.map_or(0, |unit| unit.end()),
            false => 0,
        };
        self.stale |= end < self.written || end == self.begin;
        if end < self.written {
            self.written = end;
            self.behind.clear();
        } else {
            let kept = usize::try_from(end - self.written).unwrap_or(0);
            self.behind.truncate(kept * QUEUE_UNIT_LEN);
        }
        self.covered = covered;
        Ok(())
    }

    /// Makes the files end where the queue does, durably. A queue whose messages all went keeps the
    /// queue offset it began with, and a file that says so: consumers have come that far.
    pub(crate) fn follow(&mut self) -> Result<(), Error> {
        if !self.stale {
            return Ok(());
        }
        if !self.is_empty() {
            self.files.cut(position(self.written))?;
        } else if self.begin > 0 {
            self.files.empty(position(self.begin))?;
        } else {
            self.clear()?;
        }
        self.stale = false;
        Ok(())
    }

    /// Removes files all of whose records lie below `min`; the last one stays. True if there were some.
    pub(crate) fn remove_below(&mut self, min: Offset) -> Result<bool, Error> {
        let mut removed = false;
        while self.files.first() + self.files.size() < position(self.written) {
            let next = index(self.files.first() + self.files.size());
            match self.unit(next - 1)? {
                Some(unit) if unit.offset >= min => break,
                _ => self.files.remove_first()?,
            }
            self.begin = self.begin.max(next);
            removed = true;
        }
        Ok(removed)
    }

    /// Queue offset of the first message whose record begins at or behind `min`; the end if none does.
    pub(crate) fn first_from(&self, min: Offset) -> Result<i64, Error> {
        let below = |bytes: &[u8; QUEUE_UNIT_LEN]| {
            QueueUnit::decode(bytes).is_some_and(|unit| unit.offset < min)
        };
        self.partition(self.begin, self.end(), below)
    }

    /// Queue offset behind the last message whose record ends at or before `to`.
    pub(crate) fn covered_below(&self, to: Offset) -> Result<i64, Error> {
        if self.covered <= to {
            return Ok(self.end());
        }
        self.partition(self.begin, self.end(), |bytes| counts(bytes, to))
    }

    fn counts(&self, at: i64, proven: Offset) -> Result<bool, Error> {
        let mut bytes = [0; QUEUE_UNIT_LEN];
        self.read(at, &mut bytes)?;
        Ok(counts(&bytes, proven))
    }

    /// The first queue offset of `[from, to)` whose bytes do not fulfil `holds`, which is true up to some
    /// place and false from there on.
    fn partition(
        &self,
        from: i64,
        to: i64,
        holds: impl Fn(&[u8; QUEUE_UNIT_LEN]) -> bool,
    ) -> Result<i64, Error> {
        let (mut low, mut high) = (from, to);
        let mut bytes = [0; QUEUE_UNIT_LEN];
        while low < high {
            let middle = low + (high - low) / 2;
            self.read(middle, &mut bytes)?;
            if holds(&bytes) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        Ok(low)
    }

    /// The unit at `at`, which lies in the queue; `None` if no message can be made of it.
    pub(crate) fn unit(&self, at: i64) -> Result<Option<QueueUnit>, Error> {
        let mut bytes = [0; QUEUE_UNIT_LEN];
        self.read(at, &mut bytes)?;
        Ok(QueueUnit::decode(&bytes))
    }

    /// Fills `bytes`, whole units, from queue offset `from` on; all of them lie in the queue.
    pub(crate) fn read(&self, from: i64, bytes: &mut [u8]) -> Result<(), Error> {
        let in_files = usize::try_from((self.written - from).max(0)).map_or(bytes.len(), |units| {
            units.saturating_mul(QUEUE_UNIT_LEN).min(bytes.len())
        });
        let (in_files, waiting) = bytes.split_at_mut(in_files);
        if !in_files.is_empty() {
            self.files.read(position(from), in_files)?;
        }
        if !waiting.is_empty() {
            let skip = usize::try_from((from - self.written).max(0)).unwrap_or(0) * QUEUE_UNIT_LEN;
            waiting.copy_from_slice(&self.behind[skip..skip + waiting.len()]);
        }
        Ok(())
    }
}

/// Whether a unit is pre-fill or speaks of a record that ends at or before `proven`.
fn counts(bytes: &[u8; QUEUE_UNIT_LEN], proven: Offset) -> bool {
    match QueueUnit::decode(bytes) {
        Some(unit) => unit.end() <= proven,
        None => *bytes == QUEUE_PRE_FILL,
    }
}

/// The byte at which the unit with queue offset `at` begins.
fn position(at: i64) -> u64 {
    at.unsigned_abs() * UNIT
}

/// The queue offset of the unit that begins at byte `at`.
fn index(at: u64) -> i64 {
    (at / UNIT).cast_signed()
}

#[cfg(test)]
mod tests;
