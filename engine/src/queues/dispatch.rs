//! From records in the log to units in queues.
//!
//! One step holds the dispatch lock for a few megabytes of log at most. Known queues cost no allocation.
//! A record that can stand in no queue is passed over and counted, never a reason to stop: everything
//! behind it must stay visible.

use crate::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use crate::commit_log::CommitLog;
use crate::consume_queue::{MAX_QUEUE_OFFSET, Put, QueueUnit};
use crate::error::Error;
use crate::position::Offset;
use crate::record::{CheckOptions, Record};
use crate::walk::{Item, Stop, walk};

use super::listing::{MAX_QUEUES, is_name};
use super::tags::tags_code;
use super::{Dispatch, Queue, Queues};

/// Bytes of log that are dispatched in one step.
const STEP: u64 = 8 << 20;

/// How often something happened since the store was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueCounts {
    /// Messages put into their queues.
    pub stored: u64,
    /// Prepared and rolled back transaction messages: they belong in no queue.
    pub transactions: u64,
    /// Inner batches, passed over: their queues (RocketMQ: BatchConsumeQueue) are not kept.
    pub inner_batches: u64,
    /// Records passed over whose topic can be no directory's name.
    pub bad_topics: u64,
    /// Records passed over whose queue offset is none.
    pub bad_offsets: u64,
    /// Records passed over because there are as many queues as there can be.
    pub too_many_queues: u64,
    /// Records whose queue offset another record has already.
    pub known: u64,
    /// Queues that had to begin anew because messages before a record are missing in the log.
    pub gaps: u64,
    /// Units that did not say what the log says, and were written again.
    pub repaired: u64,
    /// Times the position was outside the log and was taken back into it.
    pub clamped: u64,
    /// Times the dispatcher failed and was started again.
    pub restarts: u64,
}

macro_rules! counts {
    ($($name:ident),+) => {
        /// The counters behind [`QueueCounts`].
        #[derive(Default)]
        pub(super) struct Counts {
            $(pub(super) $name: AtomicU64,)+
        }

        impl Counts {
            pub(super) fn read(&self) -> QueueCounts {
                QueueCounts {
                    $($name: self.$name.load(Ordering::Relaxed),)+
                }
            }
        }
    };
}

counts!(
    stored,
    transactions,
    inner_batches,
    bad_topics,
    bad_offsets,
    too_many_queues,
    known,
    gaps,
    repaired,
    clamped,
    restarts
);

/// What a record is to the queues.
pub(super) enum Place {
    At(i64, QueueUnit),
    /// It belongs in none.
    None,
    /// It has a queue offset, but no queue here.
    PassedOver,
}

impl Queues {
    /// Dispatches a few megabytes at most, up to the confirm offset; true if there may be more.
    ///
    /// `confirm` is asked under the dispatch lock, so that a cut, which lowers it before it takes that
    /// lock, is never overtaken.
    pub(crate) fn step(
        &self,
        log: &CommitLog,
        confirm: impl Fn() -> Offset,
    ) -> Result<bool, Error> {
        let before = self.dispatched();
        let mut dispatch = self.dispatch.lock();
        let goal = confirm().min(log.end());
        let done = self.run(&mut dispatch, log, goal, STEP);
        let after = dispatch.at;
        drop(dispatch);
        if after > before {
            self.growth.announce();
        }
        done?;
        Ok(after > before && after < goal)
    }

    /// Dispatches what ends at or before `goal`, `most` bytes or a little more.
    pub(super) fn run(
        &self,
        dispatch: &mut Dispatch,
        log: &CommitLog,
        goal: Offset,
        most: u64,
    ) -> Result<(), Error> {
        self.clamp(dispatch, log);
        let enough = dispatch.at.saturating_add(most);
        while dispatch.at < goal.min(enough) {
            let from = dispatch.at;
            let mut failed = None;
            let (reached, stop) = walk_log(log, from..goal, |item| {
                let at = match item {
                    Item::Record(record) => record.physical_offset(),
                    Item::Filler(at) => at,
                };
                if at >= enough {
                    return false;
                }
                if let Item::Record(record) = item
                    && let Err(error) = self.enter(dispatch, log, &record)
                {
                    failed = Some(error);
                    return false;
                }
                true
            })?;
            self.set_at(dispatch, reached);
            if let Some(error) = failed {
                return Err(error);
            }
            match stop {
                Stop::Done => {}
                // A record that ends behind the goal waits.
                Stop::Asked | Stop::Short => break,
                Stop::Empty => return Err(damaged(log, reached, "unwritten space".to_owned())),
                Stop::Bad(why) => return Err(damaged(log, reached, why)),
            }
        }
        Ok(())
    }

    /// Takes a position outside the log back into it.
    pub(super) fn clamp(&self, dispatch: &mut Dispatch, log: &CommitLog) {
        let at = dispatch.at.clamp(log.min(), log.end());
        if at != dispatch.at {
            let position = dispatch.at;
            tracing::warn!(position, at, "the dispatch position was outside the log");
            self.counts.clamped.fetch_add(1, Ordering::Relaxed);
            self.set_at(dispatch, at);
        }
    }

    fn enter(
        &self,
        dispatch: &mut Dispatch,
        log: &CommitLog,
        record: &Record<'_>,
    ) -> Result<(), Error> {
        match self.place(record) {
            Place::At(at, unit) => match self.queue_of(dispatch, record)? {
                Some(queue) => self.store(dispatch, log, &queue, at, unit)?,
                None => dispatch.complete = false,
            },
            Place::None => {}
            Place::PassedOver => dispatch.complete = false,
        }
        if dispatch.complete {
            dispatch.last = Some((record.physical_offset(), record.store_timestamp_ms()));
        }
        Ok(())
    }

    /// Where a record belongs; counts it if that is nowhere.
    pub(super) fn place(&self, record: &Record<'_>) -> Place {
        let count = |counter: &AtomicU64| counter.fetch_add(1, Ordering::Relaxed);
        if !record.takes_queue_offset() {
            count(&self.counts.transactions);
            return Place::None;
        }
        if record.is_inner_batch() {
            count(&self.counts.inner_batches);
            return Place::PassedOver;
        }
        if !is_name(record.topic()) {
            count(&self.counts.bad_topics);
            return Place::PassedOver;
        }
        let at = record.queue_offset();
        if !(0..=MAX_QUEUE_OFFSET).contains(&at) {
            count(&self.counts.bad_offsets);
            return Place::PassedOver;
        }
        let unit = QueueUnit {
            offset: record.physical_offset(),
            // Records are shorter than segments, and those than 2^31 bytes.
            size: u32::try_from(record.total_size()).unwrap_or(0),
            tags_code: tags_code(record),
        };
        Place::At(at, unit)
    }

    /// The record's queue, made if it is new; `None` if there can be no more.
    pub(super) fn queue_of(
        &self,
        dispatch: &mut Dispatch,
        record: &Record<'_>,
    ) -> Result<Option<Arc<Queue>>, Error> {
        let (topic, queue_id) = (record.topic(), record.queue_id());
        if let Some(queue) = self.find(topic, queue_id) {
            return Ok(Some(queue));
        }
        if dispatch.number as usize >= MAX_QUEUES {
            self.counts.too_many_queues.fetch_add(1, Ordering::Relaxed);
            return Ok(None);
        }
        self.make(dispatch, topic, queue_id).map(Some)
    }

    fn store(
        &self,
        dispatch: &mut Dispatch,
        log: &CommitLog,
        queue: &Arc<Queue>,
        at: i64,
        unit: QueueUnit,
    ) -> Result<(), Error> {
        dispatch.list(queue);
        let put = queue.state.write().put(at, unit)?;
        let put = match put {
            Put::Gap { expected } => {
                let error = queue.gap(expected, at);
                tracing::error!(%error, "the queue is made again from the log");
                self.mend(log, queue, unit.offset)?;
                let mut state = queue.state.write();
                match state.put(at, unit)? {
                    Put::Gap { .. } => {
                        self.counts.gaps.fetch_add(1, Ordering::Relaxed);
                        tracing::error!(
                            %error,
                            "the log does not have them either; the queue begins anew here"
                        );
                        state.clear()?;
                        state.put(at, unit)?
                    }
                    put => put,
                }
            }
            put => put,
        };
        let counter = match put {
            Put::Known => &self.counts.known,
            _ => &self.counts.stored,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// The dispatcher is started again after a failure.
    pub(crate) fn count_restart(&self) {
        self.counts.restarts.fetch_add(1, Ordering::Relaxed);
    }
}

impl Queue {
    pub(super) fn gap(&self, expected: i64, found: i64) -> Error {
        Error::QueueGap {
            topic: self.topic.to_string(),
            queue_id: self.queue_id,
            expected,
            found,
        }
    }
}

/// Walks what lies of one segment in `range`, which begins in the log; see [`walk`].
pub(super) fn walk_log(
    log: &CommitLog,
    range: std::ops::Range<Offset>,
    visit: impl FnMut(Item<'_>) -> bool,
) -> Result<(Offset, Stop), Error> {
    let from = range.start;
    let most = usize::try_from(range.end - from).unwrap_or(usize::MAX);
    let slice = log.slice(from, most)?;
    let size = log.settings().segment_size;
    let limit = from - from % size + size;
    let structure = |_| CheckOptions::STRUCTURE;
    Ok(walk(&slice, from, limit, structure, visit))
}

pub(super) fn damaged(log: &CommitLog, offset: Offset, why: String) -> Error {
    let settings = log.settings();
    Error::Damaged {
        file: settings
            .folder
            .segment(offset - offset % settings.segment_size),
        offset,
        why,
    }
}
