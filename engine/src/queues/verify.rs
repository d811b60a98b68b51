//! Holding queues against the log, unit by unit: when nothing proves them, or messages are missing.
//!
//! Units that say what the log says stay as they are, byte for byte. Where one does not, the queue is
//! cut there and goes on from the log. What a queue has of records below the log's first byte cannot be
//! checked and stays: it says where the queue goes on.

use crate::sync::atomic::Ordering;
use std::collections::HashMap;
use std::sync::Arc;

use crate::commit_log::CommitLog;
use crate::consume_queue::{ConsumeQueue, Put, QUEUE_UNIT_LEN, QueueUnit};
use crate::error::Error;
use crate::position::Offset;
use crate::record::Record;
use crate::recovery::Progress;
use crate::store::RecordView;
use crate::walk::{Item, Stop};

use super::dispatch::{Place, damaged, walk_log};
use super::tags::SCHEDULE_TOPIC;
use super::{Dispatch, Queue, Queues};

/// Units read at a time.
const WINDOW: usize = 256;

/// How far each queue was checked.
#[derive(Default)]
struct Checked {
    queues: HashMap<u32, Check>,
}

/// How far one queue was checked, and units that were read ahead.
#[derive(Default)]
struct Check {
    /// Behind the last queue offset whose unit says what the log says.
    next: i64,
    from: i64,
    window: Vec<u8>,
}

impl Queues {
    /// Holds every queue against the records of `[min, goal)` and makes what is missing. Afterwards the
    /// queues hold what they would if they had been filled from the log.
    pub(crate) fn verify(
        &self,
        log: &CommitLog,
        goal: Offset,
        progress: Option<&Progress>,
    ) -> Result<(), Error> {
        let mut dispatch = self.dispatch.lock();
        let min = log.min();
        self.set_at(&mut dispatch, min);
        (dispatch.last, dispatch.complete) = (None, true);
        let mut checked = Checked::default();
        while dispatch.at < goal {
            let mut failed = None;
            let (reached, stop) = walk_log(log, dispatch.at..goal, |item| {
                if let Item::Record(record) = item
                    && let Err(error) = self.check(&mut dispatch, log, &record, &mut checked)
                {
                    failed = Some(error);
                }
                failed.is_none()
            })?;
            if let Some(error) = failed {
                return Err(error);
            }
            self.set_at(&mut dispatch, reached);
            match stop {
                Stop::Done => {}
                Stop::Asked | Stop::Short => break,
                Stop::Empty => return Err(damaged(log, reached, "unwritten space".to_owned())),
                Stop::Bad(why) => return Err(damaged(log, reached, why)),
            }
            if let Some(progress) = progress {
                progress(reached - min, goal - min);
            }
        }
        for queue in self.all() {
            let mut state = queue.state.write();
            let next = checked.queues.get(&queue.number).map(|check| check.next);
            // Whatever stands behind the last message of the log is of no message.
            let changed = match next {
                Some(next) if next < state.end() => {
                    state.retract_to(next)?;
                    true
                }
                Some(_) => false,
                None => state.retract(dispatch.at)?,
            };
            if changed {
                self.counts.repaired.fetch_add(1, Ordering::Relaxed);
                state.follow()?;
            }
            // Nobody knows what of it was ever synced.
            state.distrust();
            drop(state);
            dispatch.list(&queue);
        }
        Ok(())
    }

    fn check(
        &self,
        dispatch: &mut Dispatch,
        log: &CommitLog,
        record: &Record<'_>,
        checked: &mut Checked,
    ) -> Result<(), Error> {
        match self.place(record) {
            Place::At(at, unit) => match self.queue_of(dispatch, record)? {
                Some(queue) => {
                    let check = checked.queues.entry(queue.number).or_default();
                    self.check_unit(log, &queue, check, at, unit)?;
                }
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

    /// Holds one unit against the queue and stores it if it is not there.
    fn check_unit(
        &self,
        log: &CommitLog,
        queue: &Arc<Queue>,
        check: &mut Check,
        at: i64,
        unit: QueueUnit,
    ) -> Result<(), Error> {
        let mut state = queue.state.write();
        if at < check.next {
            self.counts.known.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        }
        if (state.begin()..state.end()).contains(&at) {
            let found = check.read(&state, at)?;
            let same = found.is_some_and(|found| same(queue, &found, &unit));
            if same || found.is_some_and(|found| newer(log, queue, at, &found, unit.offset)) {
                check.next = at + 1;
                return Ok(());
            }
            self.counts.repaired.fetch_add(1, Ordering::Relaxed);
            state.retract_to(at)?;
            state.follow()?;
            check.window.clear();
        } else if at < state.begin() && !state.is_empty() {
            // Messages the log has are missing at the front.
            self.counts.repaired.fetch_add(1, Ordering::Relaxed);
            state.clear()?;
            check.window.clear();
        }
        match state.put(at, unit)? {
            Put::Stored => {
                self.counts.stored.fetch_add(1, Ordering::Relaxed);
                check.next = at + 1;
            }
            Put::Known => {
                self.counts.known.fetch_add(1, Ordering::Relaxed);
            }
            Put::Gap { expected } => {
                let error = queue.gap(expected, at);
                tracing::error!(%error, "the log does not have them; the queue begins anew here");
                self.counts.gaps.fetch_add(1, Ordering::Relaxed);
                state.clear()?;
                state.put(at, unit)?;
                check.window.clear();
                check.next = at + 1;
            }
        }
        Ok(())
    }

    /// Makes one queue again from the records of `[min, goal)`.
    pub(super) fn mend(
        &self,
        log: &CommitLog,
        queue: &Arc<Queue>,
        goal: Offset,
    ) -> Result<(), Error> {
        let mut check = Check::default();
        let mut at = log.min();
        while at < goal {
            let mut failed = None;
            let (reached, stop) = walk_log(log, at..goal, |item| {
                if let Item::Record(record) = item
                    && record.queue_id() == queue.queue_id
                    && record.topic() == &*queue.topic
                    && let Place::At(at, unit) = self.place(&record)
                    && let Err(error) = self.check_unit(log, queue, &mut check, at, unit)
                {
                    failed = Some(error);
                }
                failed.is_none()
            })?;
            if let Some(error) = failed {
                return Err(error);
            }
            if stop != Stop::Done {
                break;
            }
            at = reached;
        }
        Ok(())
    }
}

impl Check {
    /// The unit at `at`, which lies in the queue; reads a few ahead.
    fn read(&mut self, state: &ConsumeQueue, at: i64) -> Result<Option<QueueUnit>, Error> {
        let units = self.window.len() / QUEUE_UNIT_LEN;
        let place = usize::try_from(at - self.from)
            .ok()
            .filter(|it| *it < units);
        let place = match place {
            Some(place) => place,
            None => {
                let left = usize::try_from(state.end() - at).unwrap_or(WINDOW);
                self.window.resize(left.min(WINDOW) * QUEUE_UNIT_LEN, 0);
                self.from = at;
                state.read(at, &mut self.window)?;
                0
            }
        };
        let bytes = &self.window[place * QUEUE_UNIT_LEN..];
        Ok(bytes.first_chunk().and_then(QueueUnit::decode))
    }
}

/// Whether a stored unit says what the log says. Java may have put the address of an extension unit, or
/// a time of delivery by delays of its own, where the tags code stands.
fn same(queue: &Queue, found: &QueueUnit, unit: &QueueUnit) -> bool {
    let own_code = found.tags_code < i64::from(i32::MIN) || &*queue.topic == SCHEDULE_TOPIC;
    (found.offset, found.size) == (unit.offset, unit.size)
        && (own_code || found.tags_code == unit.tags_code)
}

/// Whether a stored unit speaks of a later record with this queue offset: a topic that was deleted and
/// made again counts from 0 anew, and the queue is the new one's.
fn newer(log: &CommitLog, queue: &Queue, at: i64, found: &QueueUnit, than: Offset) -> bool {
    found.offset > than && message_of(log, queue, at, found).is_some()
}

/// The record a unit speaks of, if it is the message with queue offset `at` of this queue.
pub(crate) fn message_of(
    log: &CommitLog,
    queue: &Queue,
    at: i64,
    unit: &QueueUnit,
) -> Option<RecordView> {
    let view = log.record(unit.offset).ok()?;
    let record = view.record();
    let same = record.total_size() as u64 == u64::from(unit.size)
        && record.queue_offset() == at
        && record.queue_id() == queue.queue_id
        && record.topic() == &*queue.topic;
    same.then_some(view)
}
