//! What changes a store folder, as values: pure lists of steps, and one executor that runs them.
//!
//! The order of a list is the durable order: every step is durable before the next begins, so the
//! places between two steps are all the places a crash can fall into, and a test can try each. In a
//! cut bytes go before the epoch entries that label them; in growth entries come before their bytes;
//! marks go down first and come up last.

mod files;
mod segments;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::checkpoint::Checkpoint;
use crate::epoch_list::EpochList;
use crate::error::Error;
use crate::folder::Folder;
use crate::position::Offset;
use crate::state_file::State;

pub(crate) use files::Files;

/// One durable change of a segment file or of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SegmentStep {
    /// Build the segments that start here outside `commitlog/`: full length, blocks, zeros.
    Prepare { bases: Vec<Offset> },
    /// Give built segments their names in `commitlog/`. Stopped in the middle, any of the names may be there;
    /// after an error none is.
    Admit { bases: Vec<Offset> },
    /// Copy a small file; the directory it goes to is made under one that is there or `truncated/`.
    Keep { from: PathBuf, to: PathBuf },
    /// Write down why bytes are cut, where they are going to be kept.
    SaveReason { into: PathBuf, reason: String },
    /// Copy `[from, to)`, the rest of one segment, into a directory.
    SaveTail {
        from: Offset,
        to: Offset,
        into: PathBuf,
    },
    /// Take a file out of `commitlog/`: into the directory if one is named, else for good.
    Remove {
        path: PathBuf,
        into: Option<PathBuf>,
    },
    /// Take something under `truncated/` or `aside/` off the disk for good, with all that is in it.
    RemoveSaved { path: PathBuf },
    /// Make everything from here to the end of its segment read as zero.
    Erase { at: Offset },
    /// Put a copy of the segment in its place that has `[base, end)` and zeros behind.
    Rewrite { base: Offset, end: Offset },
    /// Make a segment's bytes durable.
    Sync { base: Offset },
    /// Make the directories of the log and remove what an earlier run left half-built.
    Directories,
    /// Say, as Java does, that the store was not closed.
    CreateAbort { process: u32 },
    /// Move a directory that Java derived from the log out of its sight.
    MoveAside { name: &'static str, into: PathBuf },
}

/// One durable change of a store folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// To the files of the log.
    Segment(SegmentStep),
    /// Write the state file.
    State(State),
    /// Put a whole new state file in the place of one that cannot be read.
    NewState(State),
    /// Replace the epoch file.
    Epochs(EpochList),
    /// Write Java's checkpoint.
    Checkpoint(Checkpoint),
}

/// Stops the store in front of a step, as a crash would: that step and all after it do not run.
#[derive(Debug)]
pub(crate) struct StopBefore {
    step: AtomicUsize,
    seen: AtomicUsize,
}

pub(crate) type Hook = Arc<StopBefore>;

impl StopBefore {
    /// Lets every step run until it is told otherwise.
    #[cfg(test)]
    pub(crate) fn never() -> Hook {
        Arc::new(Self {
            step: AtomicUsize::new(usize::MAX),
            seen: AtomicUsize::new(0),
        })
    }

    /// Lets `step` more steps run and no more.
    #[cfg(test)]
    pub(crate) fn after(&self, step: usize) {
        self.seen.store(0, Ordering::SeqCst);
        self.step.store(step, Ordering::SeqCst);
    }

    /// How many steps there were.
    #[cfg(test)]
    pub(crate) fn seen(&self) -> usize {
        self.seen.load(Ordering::SeqCst)
    }

    fn check(&self) -> Result<(), Error> {
        let step = self.seen.fetch_add(1, Ordering::SeqCst);
        if step >= self.step.load(Ordering::SeqCst) {
            return Err(Error::Stopped { step });
        }
        Ok(())
    }
}

/// The way segments come into the log: several at a time cost hardly more than one.
pub(crate) fn roll_steps(bases: Vec<Offset>) -> [SegmentStep; 2] {
    [
        SegmentStep::Prepare {
            bases: bases.clone(),
        },
        SegmentStep::Admit { bases },
    ]
}

/// The way the oldest segment leaves the log.
pub(crate) fn unlink_steps(folder: &Folder, base: Offset) -> [SegmentStep; 1] {
    [SegmentStep::Remove {
        path: folder.segment(base),
        into: None,
    }]
}

/// What a cut needs to know. The state and the lists are the ones to be durable afterwards.
pub(crate) struct CutPlan {
    pub(crate) to: Offset,
    /// Directories of Java's that speak of the bytes to be cut.
    pub(crate) aside: Vec<SegmentStep>,
    pub(crate) save: Option<SavePlan>,
    /// Segments from the cut on, newest first.
    pub(crate) remove: Vec<PathBuf>,
    /// Base of the segment the cut lies in, if it is kept.
    pub(crate) cut: Option<Offset>,
    /// Somebody holds bytes past the cut: put a new file in place.
    pub(crate) replace: bool,
    /// Segments below the cut that may hold bytes above the flushed mark.
    pub(crate) sync: Vec<Offset>,
    /// Marks lowered.
    pub(crate) lowered: State,
    pub(crate) epochs: EpochList,
    pub(crate) checkpoint: Checkpoint,
}

/// Where bytes about to be cut are kept.
pub(crate) struct SavePlan {
    pub(crate) into: PathBuf,
    pub(crate) reason: String,
    /// End of what was published of the segment the cut lies in.
    pub(crate) tail_end: Offset,
}

/// The cut, in the order that leaves a prefix of this node's own history at every place. The consume queues
/// follow, and then the marks go up to where they may stand.
pub(crate) fn cut_steps(plan: CutPlan) -> Vec<Step> {
    let mut steps = plan.aside;
    let into = plan.save.as_ref().map(|save| save.into.clone());
    if let Some(SavePlan {
        into,
        reason,
        tail_end,
    }) = plan.save
    {
        steps.push(SegmentStep::SaveReason {
            into: into.clone(),
            reason,
        });
        if plan.cut.is_some() {
            steps.push(SegmentStep::SaveTail {
                from: plan.to,
                to: tail_end,
                into,
            });
        }
    }
    steps.extend(plan.remove.into_iter().map(|path| SegmentStep::Remove {
        path,
        into: into.clone(),
    }));
    match plan.cut {
        Some(base) if plan.replace => steps.push(SegmentStep::Rewrite { base, end: plan.to }),
        Some(_) => steps.push(SegmentStep::Erase { at: plan.to }),
        None => {}
    }
    steps.extend(plan.sync.into_iter().map(|base| SegmentStep::Sync { base }));
    // Java trusts its own marks alone: they go down before the queues they speak of end at the cut.
    let mut all = vec![Step::Checkpoint(plan.checkpoint), Step::State(plan.lowered)];
    all.extend(steps.into_iter().map(Step::Segment));
    all.push(Step::Epochs(plan.epochs));
    all
}

/// Promotion: the promise before the entry, the entry before any byte under it.
pub(crate) fn promote_steps(promised: State, epochs: Option<EpochList>) -> Vec<Step> {
    let mut steps = vec![Step::State(promised)];
    steps.extend(epochs.map(Step::Epochs));
    steps
}

/// Runs `steps` in order; stops at the first that fails.
pub(crate) fn run_steps(
    steps: &[Step],
    folder: &Folder,
    segment_size: u64,
    files: &mut Files,
    hook: &Option<Hook>,
) -> Result<(), Error> {
    for step in steps {
        tracing::debug!(?step, "step");
        check(hook)?;
        match step {
            Step::Segment(step) => segments::run(step, folder, segment_size)?,
            Step::State(state) => files.write_state(state)?,
            Step::NewState(state) => files.renew_state(state)?,
            Step::Epochs(list) => files.replace_epochs(list)?,
            Step::Checkpoint(checkpoint) => files.write_checkpoint(*checkpoint)?,
        }
    }
    Ok(())
}

/// Runs steps that touch segment files only.
pub(crate) fn run_segment_steps(
    steps: &[SegmentStep],
    folder: &Folder,
    segment_size: u64,
    hook: &Option<Hook>,
) -> Result<(), Error> {
    for step in steps {
        tracing::debug!(?step, "step");
        check(hook)?;
        segments::run(step, folder, segment_size)?;
    }
    Ok(())
}

/// Fails where a test has stopped the store.
pub(crate) fn check(hook: &Option<Hook>) -> Result<(), Error> {
    hook.as_ref().map_or(Ok(()), |hook| hook.check())
}
