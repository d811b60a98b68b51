//! Reading messages by queue: by queue offset and by time.

use std::sync::Arc;
use std::time::Duration;

use crate::consume_queue::{QUEUE_UNIT_LEN, QueueUnit};
use crate::error::Error;
use crate::position::Offset;
use crate::queues::{Queue, QueueCounts, message_of};

use super::{RecordView, Shared, Store};

/// Messages one read answers, at most.
const MOST: usize = 1 << 15;

/// One queue of messages: (topic, queue id).
///
/// It shows what is at or below the confirm offset, at the moment of each call, and nothing else. Cheap
/// to clone; it stays usable, and sees new messages, as long as the store does.
#[derive(Clone)]
pub struct QueueView {
    shared: Arc<Shared>,
    queue: Arc<Queue>,
}

/// One message of a queue.
#[derive(Clone, Debug)]
pub struct QueueEntry {
    /// Its queue offset.
    pub queue_offset: i64,
    /// Where it lies in the log, and its tags code.
    pub unit: QueueUnit,
    /// Its record.
    pub record: RecordView,
}

/// Which message a time stands for when several were stored at it, or none was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TimeBoundary {
    /// The first message stored at the time or after it.
    #[default]
    Lower,
    /// The last message stored at the time or before it.
    Upper,
}

impl Store {
    /// The queue of a topic; `None` if no message of it was confirmed yet, or queues are not kept
    /// ([`StoreConfig::consume_queues`](super::StoreConfig::consume_queues)).
    #[must_use]
    pub fn queue(&self, topic: &str, queue_id: i32) -> Option<QueueView> {
        let queue = self.shared.queues.as_ref()?.find(topic, queue_id)?;
        let shared = Arc::clone(&self.shared);
        Some(QueueView { shared, queue })
    }

    /// Every queue, in no order.
    #[must_use]
    pub fn queues(&self) -> Vec<QueueView> {
        let queues = self.shared.queues.iter().flat_map(|queues| queues.all());
        let view = |queue| QueueView {
            shared: Arc::clone(&self.shared),
            queue,
        };
        queues.map(view).collect()
    }

    /// Every message that ends at or below it is in its queue; the log's first offset if queues are not
    /// kept. It follows the confirm offset.
    #[must_use]
    pub fn dispatched_offset(&self) -> Offset {
        let queues = self.shared.queues.as_ref();
        queues.map_or(self.shared.log.min(), |queues| queues.dispatched())
    }

    /// Waits until [`Self::dispatched_offset`] is above `past`, `timeout` at most, and answers it.
    #[must_use]
    pub fn wait_for_dispatch(&self, past: Offset, timeout: Duration) -> Offset {
        let queues = self.shared.queues.as_ref();
        queues.map_or(self.shared.log.min(), |queues| {
            queues.wait_for_dispatch(past, timeout)
        })
    }

    /// Calls `listener` whenever messages have come into queues, outside all locks; it must be short.
    pub fn on_dispatch(&self, listener: Arc<dyn Fn() + Send + Sync>) {
        if let Some(queues) = &self.shared.queues {
            queues.listen(listener);
        }
    }

    /// What the dispatcher met since the store was opened.
    #[must_use]
    pub fn queue_counts(&self) -> QueueCounts {
        let queues = self.shared.queues.as_ref();
        queues.map_or_else(QueueCounts::default, |queues| queues.counts())
    }

    /// Makes durable what is in the queues, and says so in the marks that the next open trusts. It also
    /// happens in the background ([`StoreConfig::queue_flush_interval_ms`](super::StoreConfig)).
    ///
    /// # Errors
    /// [`Error::Io`] if a file cannot be written; nothing is lost and it may be tried again.
    /// [`Error::Failed`] after a failed sync.
    pub fn sync_queues(&self) -> Result<(), Error> {
        self.shared.check_usable()?;
        self.shared.sync_queues()
    }
}

impl QueueView {
    /// The queue's topic.
    #[must_use]
    pub fn topic(&self) -> &str {
        &self.queue.topic
    }

    /// The queue's id.
    #[must_use]
    pub fn queue_id(&self) -> i32 {
        self.queue.queue_id
    }

    /// Queue offset of the first message whose record is still in the log; [`Self::max_offset`] if there
    /// is none.
    ///
    /// # Errors
    /// [`Error::Io`] if the queue's files cannot be read.
    pub fn min_offset(&self) -> Result<i64, Error> {
        let min = self.queue.state.read().first_from(self.shared.log.min())?;
        Ok(min.min(self.max_offset()?))
    }

    /// Queue offset behind the last message that may be read.
    ///
    /// # Errors
    /// [`Error::Io`] if the queue's files cannot be read.
    pub fn max_offset(&self) -> Result<i64, Error> {
        let confirm = self.shared.dispatch_goal();
        self.queue.state.read().covered_below(confirm)
    }

    /// Where the messages from queue offset `from` on lie, `max` at most; fewer than there are only at the
    /// end. The log is not read: filter by tags code first.
    ///
    /// # Errors
    /// [`Error::QueueRange`] unless `from` is in [min, max], [`Error::QueueDamaged`] if a unit is none,
    /// [`Error::Io`] if the queue's files cannot be read, [`Error::Closed`] after the store was closed.
    pub fn units(&self, from: i64, max: usize) -> Result<Vec<(i64, QueueUnit)>, Error> {
        self.shared.check_open()?;
        let log_min = self.shared.log.min();
        let confirm = self.shared.dispatch_goal();
        let state = self.queue.state.read();
        let (min, end) = (state.first_from(log_min)?, state.covered_below(confirm)?);
        let min = min.min(end);
        if !(min..=end).contains(&from) {
            return Err(Error::QueueRange {
                topic: self.topic().to_owned(),
                queue_id: self.queue_id(),
                offset: from,
                min,
                max: end,
            });
        }
        let count = usize::try_from(end - from).map_or(MOST, |left| left.min(max).min(MOST));
        let mut bytes = vec![0; count * QUEUE_UNIT_LEN];
        state.read(from, &mut bytes)?;
        drop(state);
        let (units, _) = bytes.as_chunks();
        let decode = |(at, bytes)| match QueueUnit::decode(bytes) {
            Some(unit) => Ok((at, unit)),
            None => Err(self.damaged(at, "no message can lie there")),
        };
        (from..).zip(units).map(decode).collect()
    }

    /// The messages from queue offset `from` on, `max` at most. Empty only at the end of the queue, or
    /// when a cut has just taken the messages away.
    ///
    /// # Errors
    /// As for [`Self::units`]; [`Error::QueueDamaged`] also if another record lies where a unit says.
    pub fn read(&self, from: i64, max: usize) -> Result<Vec<QueueEntry>, Error> {
        let generation = self.generation();
        let units = self.units(from, max)?;
        let mut entries = Vec::with_capacity(units.len());
        for (queue_offset, unit) in units {
            let log = &self.shared.log;
            if let Some(record) = message_of(log, &self.queue, queue_offset, &unit) {
                entries.push(QueueEntry {
                    queue_offset,
                    unit,
                    record,
                });
                continue;
            }
            self.shared.check_open()?;
            // A cut or the end of a record's time may have come in between.
            if self.generation() != generation || unit.offset < log.min() {
                break;
            }
            return Err(self.damaged(queue_offset, "another record, or none, lies where it says"));
        }
        Ok(entries)
    }

    /// The queue offset that stands for a store time in ms since 1970 (RocketMQ:
    /// ConsumeQueue.getOffsetInQueueByTime). With [`TimeBoundary::Lower`] and no such message it is
    /// [`Self::max_offset`], with [`TimeBoundary::Upper`] [`Self::min_offset`].
    ///
    /// # Errors
    /// As for [`Self::units`]; [`Error::Corrupt`] or [`Error::OutOfRange`] if a record cannot be read.
    pub fn offset_by_time(
        &self,
        store_timestamp_ms: i64,
        boundary: TimeBoundary,
    ) -> Result<i64, Error> {
        self.shared.check_open()?;
        let (min, max) = (self.min_offset()?, self.max_offset()?);
        let (mut low, mut high) = (min, max);
        while low < high {
            let middle = low + (high - low) / 2;
            let unit = self.queue.state.read().unit(middle)?;
            let unit = unit.ok_or_else(|| self.damaged(middle, "no message can lie there"))?;
            let stored = self.shared.log.record(unit.offset)?;
            let stored = stored.record().store_timestamp_ms();
            let before = match boundary {
                TimeBoundary::Lower => stored < store_timestamp_ms,
                TimeBoundary::Upper => stored <= store_timestamp_ms,
            };
            if before {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        Ok(match boundary {
            TimeBoundary::Lower => low,
            TimeBoundary::Upper => (low - 1).max(min),
        })
    }

    fn generation(&self) -> u64 {
        let queues = self.shared.queues.as_ref();
        queues.map_or(0, |queues| queues.generation())
    }

    fn damaged(&self, offset: i64, why: &str) -> Error {
        let position = offset.unsigned_abs() * QUEUE_UNIT_LEN as u64;
        Error::QueueDamaged {
            file: self.queue.state.read().files().path_of(position),
            offset,
            why: why.to_owned(),
        }
    }
}

impl std::fmt::Debug for QueueView {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "QueueView[{}/{}]", self.topic(), self.queue_id())
    }
}
