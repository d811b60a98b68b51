//! Truncation: bytes before their epoch entries, marks down first and up last.

use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::checkpoint::Checkpoint;
use crate::commit_log::{Retraction, Tail};
use crate::epoch_list::EpochList;
use crate::error::Error;
use crate::flush::Marked;
use crate::folder::CONSUME_QUEUES;
use crate::position::Offset;
use crate::state_file::State;
use crate::steps::{CutPlan, SavePlan, SegmentStep, Step, cut_steps, run_steps};

use super::{Disk, INDEX, Role, Shared, Store};

/// What of Java's is derived from the log, speaks of bytes that a cut takes away, and is not kept here.
pub(crate) const DERIVED: [&str; 2] = [BATCH_QUEUES, INDEX];

/// Not kept either if queues are not.
pub(crate) const QUEUES: [&str; 2] = [CONSUME_QUEUES, "consumequeue_ext"];

const BATCH_QUEUES: &str = "batchconsumequeue";

/// What a truncation did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Truncation {
    /// Bytes that are gone from the log.
    pub cut_bytes: u64,
    /// Segment files that are gone from it, prepared ones not counted.
    pub removed_segments: usize,
    /// Where the bytes were copied to, if they were.
    pub saved_to: Option<PathBuf>,
    /// The cut went below the confirm offset: consumers may have seen what is gone.
    pub below_confirm: bool,
}

/// A cut that was accepted, and where things stood before it.
struct Cut<'a> {
    to: Offset,
    /// Start and store time of the last record that stays.
    last: Option<(Offset, i64)>,
    /// Its start; the log's first offset if there is none.
    last_record: Offset,
    flushed: Offset,
    confirm: Offset,
    reason: &'a str,
}

impl Cut<'_> {
    fn is_below_confirm(&self) -> bool {
        self.to < self.confirm
    }
}

impl Store {
    /// Cuts the log at `to`, a record boundary, and makes `epochs` the epoch list; as slave only, with
    /// no receiver open. Views that exist keep their bytes. With `to` at the end only the list changes.
    ///
    /// On return the cut is durable: no byte of the old tail will be read again, whatever happens. The
    /// reason goes beside the saved bytes.
    ///
    /// # Errors
    /// Before anything was done: [`Error::IsMaster`], [`Error::ReceiverActive`],
    /// [`Error::WindowOutstanding`], [`Error::OutOfRange`], [`Error::NotARecordBoundary`],
    /// [`Error::EpochEntry`] if the list does not fit a log that ends at `to`. In the middle of it any
    /// failure is final: the store must be opened again, and the same cut asked for again.
    pub fn truncate(
        &self,
        to: Offset,
        epochs: EpochList,
        reason: &str,
    ) -> Result<Truncation, Error> {
        let shared = &*self.shared;
        let mut role = shared.role.lock();
        shared.check_usable()?;
        shared.check_cut(&role, to, &epochs)?;
        shared.begin_writes(&mut role)?;
        let mut tail = shared.log.lock_tail();
        shared.settle(&mut tail)?;
        let done = if to == shared.log.end() {
            shared.replace_epochs(epochs)?;
            Truncation {
                cut_bytes: 0,
                removed_segments: 0,
                saved_to: None,
                below_confirm: false,
            }
        } else {
            shared.cut(&mut tail, to, epochs, reason)?
        };
        Ok(done)
    }
}

impl Shared {
    fn check_cut(&self, role: &Role, to: Offset, epochs: &EpochList) -> Result<(), Error> {
        if role.master.is_some() {
            return Err(Error::IsMaster {
                why: "only a slave cuts its log",
            });
        }
        if role.receiver {
            return Err(Error::ReceiverActive);
        }
        let (min, end) = (self.log.min(), self.log.end());
        if to < min || to > end {
            return Err(Error::OutOfRange {
                offset: to,
                min,
                end,
            });
        }
        if !self.log.is_record_boundary(to)? {
            return Err(Error::NotARecordBoundary { offset: to });
        }
        if let Some(last) = epochs.last().filter(|last| last.start > to) {
            let why = format!("the log is to end at {to}");
            return Err(Error::EpochEntry {
                epoch: last.epoch,
                start: last.start,
                why,
            });
        }
        if to > min && epochs.covering(min).is_none() {
            let first = epochs.entries().first().copied();
            return Err(Error::EpochEntry {
                epoch: first.map_or(0, |first| first.epoch),
                start: first.map_or(0, |first| first.start),
                why: format!("no entry covers the log's first byte at {min}"),
            });
        }
        Ok(())
    }

    /// Makes `list` the epoch list, durably; the log stays. If it says of the epoch served last something
    /// else than before, that one is not to be served again: its start would move.
    pub(crate) fn replace_epochs(&self, list: EpochList) -> Result<(), Error> {
        let before = self.epochs();
        if *before == list {
            return Ok(());
        }
        let mut disk = self.disk.lock();
        let mut steps = Vec::new();
        let served = disk.files.state().served_epoch;
        let entry = |list: &EpochList| served.and_then(|epoch| list.find(epoch));
        if entry(&before).is_some() && entry(&before) != entry(&list) {
            steps.push(Step::State(disk.given_up()));
            disk.restart_allowed = false;
        }
        steps.push(Step::Epochs(list.clone()));
        self.run(&mut disk, &steps)?;
        self.set_epochs(list);
        Ok(())
    }

    fn cut(
        &self,
        tail: &mut Tail,
        to: Offset,
        epochs: EpochList,
        reason: &str,
    ) -> Result<Truncation, Error> {
        let min = self.log.min();
        let last_record = self.log.record_start_before(to)?;
        let last_store_ms = match last_record {
            Some(at) => self.log.record(at)?.record().store_timestamp_ms(),
            None => 0,
        };
        let asked = Cut {
            to,
            last: last_record.map(|at| (at, last_store_ms)),
            last_record: last_record.unwrap_or(min),
            flushed: self.flush.flushed(),
            confirm: self.flush.progress().confirm,
            reason,
        };
        // The dispatcher rests until the queues have followed.
        let queues_cut = self.retract_queues(to, asked.last)?;
        let retraction = self.log.retract(tail, to)?;
        self.log.set_last_record(asked.last_record, last_store_ms);
        let mut disk = self.disk.lock();
        self.flush.lower(to, disk.files.state().generation + 1);
        let plan = self.plan_cut(&mut disk, &asked, &retraction, epochs.clone())?;
        let done = Truncation {
            cut_bytes: retraction.old_end - to,
            removed_segments: retraction.removed_segments,
            saved_to: plan.save.as_ref().map(|save| save.into.clone()),
            below_confirm: asked.is_below_confirm(),
        };
        let mut raised = plan.lowered;
        raised.flushed = to;
        self.run(&mut disk, &cut_steps(plan))?;
        if let Some(cut) = queues_cut {
            let followed = cut.follow();
            followed.map_err(|error| self.fail_with(&mut disk, error))?;
        }
        self.run(&mut disk, &[Step::State(raised)])?;
        disk.proven = None;
        disk.restart_allowed = false;
        disk.marked = Marked::now(to, asked.confirm.min(to));
        let resumed = self.log.resume(tail, retraction);
        resumed.map_err(|error| self.fail_with(&mut disk, error))?;
        self.set_epochs(epochs);
        self.flush.raise(to);
        self.wake_for_flushed();
        Ok(done)
    }

    fn plan_cut(
        &self,
        disk: &mut Disk,
        asked: &Cut<'_>,
        retraction: &Retraction,
        epochs: EpochList,
    ) -> Result<CutPlan, Error> {
        let to = asked.to;
        let cut_bytes = retraction.old_end - to;
        if asked.is_below_confirm() {
            let confirm = asked.confirm;
            tracing::error!(
                to,
                confirm,
                cut_bytes,
                "the cut goes below the confirm offset"
            );
        }
        let confirm = asked.confirm.min(to);
        let remove = retraction.remove.iter();
        Ok(CutPlan {
            to,
            aside: self.derived_aside(),
            save: self.save_plan(asked, retraction),
            remove: remove.map(|base| self.folder.segment(*base)).collect(),
            cut: retraction.cut,
            replace: retraction.replace,
            sync: self.unsynced(asked.flushed, to, retraction.cut),
            lowered: self.lowered(disk, to, asked.last_record),
            epochs,
            checkpoint: self.checkpoint_after_cut(disk, confirm, asked.last)?,
        })
    }

    /// The state whose marks vouch for nothing behind the cut; the queues were taken back.
    fn lowered(&self, disk: &Disk, to: Offset, last_record: Offset) -> State {
        let mut state = disk.given_up();
        state.flushed = state.flushed.min(to);
        state.scan_from = state.scan_from.min(last_record).min(state.flushed);
        state.generation += 1;
        // Queues that are not kept are moved aside.
        let queues = state.queues.zip(self.queues.as_ref());
        state.queues = queues.map(|(mark, queues)| mark.lowered_to(to, queues.ends()));
        state
    }

    fn save_plan(&self, asked: &Cut<'_>, retraction: &Retraction) -> Option<SavePlan> {
        let most = self.config.save_truncated_bytes?;
        let to = asked.to;
        let size = self.log.settings().segment_size;
        let cut_bytes = retraction.old_end - to;
        if cut_bytes > most && !asked.is_below_confirm() {
            tracing::warn!(cut_bytes, most, "too many bytes to be saved before the cut");
            return None;
        }
        let now_ms = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .as_millis();
        Some(SavePlan {
            into: self.folder.truncated().join(format!("{now_ms}-{to}")),
            reason: format!(
                "cut at {to}, the log ended at {}: {}",
                retraction.old_end, asked.reason
            ),
            tail_end: retraction.old_end.min(to - to % size + size),
        })
    }

    fn checkpoint_after_cut(
        &self,
        disk: &mut Disk,
        confirm: Offset,
        last: Option<(Offset, i64)>,
    ) -> Result<Checkpoint, Error> {
        let read = disk.files.checkpoint();
        let mut checkpoint = read.map_err(|error| self.fail_with(disk, error))?;
        let physic = &mut checkpoint.physic_msg_timestamp_ms;
        *physic = last.map_or(0, |(_, store_ms)| store_ms).min(*physic);
        // Java makes queues and index anew from the records behind these places.
        checkpoint.index_msg_timestamp_ms = 0;
        let queues_stay = self.queues.is_some() && !self.folder.root().join(BATCH_QUEUES).exists();
        let last = if queues_stay { last } else { None };
        let (offset, store_ms) = last.unwrap_or_default();
        let logics = &mut checkpoint.logics_msg_timestamp_ms;
        *logics = store_ms.min(*logics);
        let logics = &mut checkpoint.logics_physical_offset;
        *logics = offset.cast_signed().min(*logics);
        checkpoint.confirm_offset = confirm.cast_signed();
        Ok(checkpoint)
    }

    fn derived_aside(&self) -> Vec<SegmentStep> {
        let queues = if self.queues.is_some() {
            &[]
        } else {
            &QUEUES[..]
        };
        let there = DERIVED
            .into_iter()
            .chain(queues.iter().copied())
            .filter(|name| self.folder.root().join(name).exists());
        there
            .map(|name| SegmentStep::MoveAside {
                name,
                into: self.folder.aside(),
            })
            .collect()
    }

    /// Segments with bytes of `[flushed, to)`, the one the cut lies in left out.
    fn unsynced(&self, flushed: Offset, to: Offset, cut: Option<Offset>) -> Vec<Offset> {
        let segments = self.log.segments();
        let open = segments
            .iter()
            .filter(|it| it.limit() > flushed && it.base() < to);
        open.map(|segment| segment.base())
            .filter(|base| Some(*base) != cut)
            .collect()
    }

    /// Runs steps whose failure is final.
    pub(crate) fn run(&self, disk: &mut Disk, steps: &[Step]) -> Result<(), Error> {
        let settings = self.log.settings();
        let size = settings.segment_size;
        run_steps(steps, &self.folder, size, &mut disk.files, &settings.hook)
            .map_err(|error| self.fail_with(disk, error))
    }
}
