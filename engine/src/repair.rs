//! Mending a store folder that opening refuses: what would be done is planned first, in words and
//! as durable steps, and done only when it is asked for.
//!
//! Planning writes nothing. A plan runs as a cut does: marks go down, segments go newest first,
//! bytes go before the epoch entries that label them. A crash between two steps leaves a folder
//! that opens as the old one or as the new one, or is refused as before; the same repair planned
//! again finishes the work. Nothing is thrown away unless that is asked for: what leaves the log is
//! moved to `truncated/`.

mod epoch;
mod resync;
mod tail;

use std::ffi::OsStr;
use std::fmt::Display;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::durable::with_suffix;
use crate::epoch_list::EpochList;
use crate::error::Error;
use crate::folder::Folder;
use crate::inspect::{Inspection, Problem, ProblemKind};
use crate::position::EpochEntry;
use crate::state_file::State;
use crate::steps::{Files, SegmentStep, Step, run_steps};
use crate::store::{Opener, StoreLock};

/// What becomes of bytes that leave the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removed {
    /// They are moved or copied to a directory under `truncated/`, with the reason.
    Kept,
    /// They are deleted.
    Discarded,
}

/// Whether a plan may be run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Intent {
    /// It is only looked at: no byte of the folder changes.
    Look,
    /// It is going to be run: the folder is locked from the look at it to the last step.
    Run,
}

/// A repair that was planned and not run. The folder is locked as long as it lives.
pub struct Repair {
    work: Work,
    lock: Option<StoreLock>,
    intent: Intent,
}

/// What a planner hands over.
struct Work {
    folder: Folder,
    /// What was found, and what whoever runs it must know.
    findings: Vec<String>,
    steps: Vec<Step>,
    /// Length of the segments; 1 if no step asks for it.
    segment_size: u64,
}

impl Repair {
    /// Plans to make a damaged or missing epoch file whole: from its backup if that is known to be
    /// the newest list, else from `entries`. The old file is kept beside it, as `.damaged-` and the
    /// time.
    ///
    /// # Errors
    /// [`Error::Repair`] if there is nothing to repair, if the backup cannot be trusted and no
    /// entries are given, or if entries do not fit the log; [`Error::Locked`] or
    /// [`Error::OpenInThisProcess`] if somebody has the store; [`Error::Io`].
    pub fn epoch(
        dir: impl AsRef<Path>,
        entries: Option<Vec<EpochEntry>>,
        intent: Intent,
    ) -> Result<Self, Error> {
        Self::plan(dir.as_ref(), intent, |folder| epoch::plan(folder, entries))
    }

    /// Plans to cut the log at its first bad record, wherever the durable mark is.
    ///
    /// What was durable behind the cut is lost to this replica, which therefore never serves again
    /// the epoch it served last.
    ///
    /// # Errors
    /// [`Error::Repair`] if nothing is damaged, nothing would be left, or there is no room for what
    /// is to be kept; [`Error::EpochFile`] or [`Error::Epochs`] if the epoch file must be repaired
    /// first; [`Error::StateFile`] if only a resync helps; [`Error::Locked`] or
    /// [`Error::OpenInThisProcess`] if somebody has the store; [`Error::Io`].
    pub fn tail(dir: impl AsRef<Path>, removed: Removed, intent: Intent) -> Result<Self, Error> {
        Self::plan(dir.as_ref(), intent, |folder| tail::plan(folder, removed))
    }

    /// Plans to give up the whole log and its epochs, so that the replica comes back as a new one.
    /// Who it is and what it has promised stays.
    ///
    /// # Errors
    /// [`Error::Repair`] if there is no log, or segments cannot be moved to `truncated/`;
    /// [`Error::Locked`] or [`Error::OpenInThisProcess`] if somebody has the store; [`Error::Io`].
    pub fn resync(dir: impl AsRef<Path>, removed: Removed, intent: Intent) -> Result<Self, Error> {
        Self::plan(dir.as_ref(), intent, |folder| resync::plan(folder, removed))
    }

    fn plan(
        dir: &Path,
        intent: Intent,
        plan: impl FnOnce(Folder) -> Result<Work, Error>,
    ) -> Result<Self, Error> {
        let root = std::fs::canonicalize(dir).map_err(Error::io("find", dir))?;
        let folder = Folder::new(&root);
        // Every program that has had a store open left a lock file; a look makes none.
        let lock = match intent {
            Intent::Look if !folder.lock().exists() => None,
            _ => Some(StoreLock::take(&folder, Opener::Repair)?),
        };
        Ok(Self {
            work: plan(folder)?,
            lock,
            intent,
        })
    }

    /// What was found, one line each.
    #[must_use]
    pub fn findings(&self) -> &[String] {
        &self.work.findings
    }

    /// What is going to be done, one line for each durable step, in order.
    #[must_use]
    pub fn steps(&self) -> Vec<String> {
        self.work.steps.iter().map(describe).collect()
    }

    /// Runs the plan. All of it is durable on return, and the folder is free for an opener.
    ///
    /// # Errors
    /// The failure of a step; the steps before it are done, and planning again finishes the rest.
    /// [`Error::Repair`] if the plan was made to be looked at.
    pub fn run(self) -> Result<(), Error> {
        let all = self.work.steps.len();
        self.run_first(all)
    }

    /// Runs the first `count` steps and no more, as a crash would. For tests of recovery.
    #[doc(hidden)]
    pub fn run_first(self, count: usize) -> Result<(), Error> {
        let Self { work, lock, intent } = self;
        if intent == Intent::Look {
            return Err(refuse(work.folder.root(), "planned to be looked at only"));
        }
        let steps = &work.steps[..count.min(work.steps.len())];
        let mut files = Files::new(&work.folder);
        run_steps(steps, &work.folder, work.segment_size, &mut files, &None)?;
        drop(lock);
        Ok(())
    }
}

fn describe(step: &Step) -> String {
    match step {
        Step::State(state) | Step::NewState(state) => {
            format!("state file: the log is durable up to {}", state.flushed)
        }
        Step::Epochs(list) => format!("epoch file and its .bak: {}", text(list)),
        Step::Checkpoint(checkpoint) => {
            format!(
                "checkpoint: confirm offset {}, queues and index are made again",
                checkpoint.confirm_offset
            )
        }
        Step::Segment(step) => describe_segment(step),
    }
}

fn describe_segment(step: &SegmentStep) -> String {
    match step {
        SegmentStep::Keep { from, to } => {
            format!("copy {} to {}", from.display(), to.display())
        }
        SegmentStep::SaveReason { into, .. } => {
            format!("write the reason to {}", into.join("reason.txt").display())
        }
        SegmentStep::SaveTail { from, to, into } => {
            format!("copy the bytes of [{from}, {to}) to {}", into.display())
        }
        SegmentStep::Remove { path, into: None } => format!("delete {}", path.display()),
        SegmentStep::Remove {
            path,
            into: Some(into),
        } => format!("move {} to {}", path.display(), into.display()),
        SegmentStep::RemoveSaved { path } => format!("delete {}", path.display()),
        SegmentStep::Erase { at } => format!("erase from offset {at} to the end of its segment"),
        SegmentStep::Rewrite { base, end } => {
            format!("put a copy of segment {base} in its place that ends at {end}")
        }
        SegmentStep::Sync { base } => format!("sync segment {base}"),
        SegmentStep::MoveAside { name, into } => {
            format!("move {name}/, derived from the log, to {}", into.display())
        }
        SegmentStep::Prepare { bases } | SegmentStep::Admit { bases } => {
            format!("make the segments {bases:?}")
        }
        SegmentStep::Directories | SegmentStep::CreateAbort { .. } => {
            "make the folder ready".to_owned()
        }
    }
}

/// A list as it is written on the command line.
fn text(list: &EpochList) -> String {
    let entries = list.entries().iter();
    let entries: Vec<_> = entries
        .map(|entry| format!("{}:{}", entry.epoch, entry.start))
        .collect();
    if entries.is_empty() {
        "the empty list".to_owned()
    } else {
        entries.join(",")
    }
}

fn refuse(path: &Path, why: impl Display) -> Error {
    Error::Repair {
        path: path.to_path_buf(),
        why: why.to_string(),
    }
}

/// Milliseconds since 1970, for names that are not taken yet.
fn now_ms() -> u128 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or_default().as_millis()
}

/// A copy of a small file beside it, if it is there.
fn keep_beside(path: &Path, now_ms: u128) -> Option<Step> {
    let to = with_suffix(path, &format!(".damaged-{now_ms}"));
    path.exists().then(|| {
        let from = path.to_path_buf();
        Step::Segment(SegmentStep::Keep { from, to })
    })
}

/// Refuses when `bytes` copied, and files moved, would not find their place under `truncated/`: a
/// step would go on without keeping them.
fn check_room(folder: &Folder, bytes: u64) -> Result<(), Error> {
    let root = folder.root();
    let stat = rustix::fs::statvfs(root);
    let stat = stat.map_err(|error| Error::io("look at", root)(error.into()))?;
    let free = stat.f_bavail.saturating_mul(stat.f_frsize);
    if bytes >= free {
        let why = format!(
            "{bytes} bytes are to be kept under truncated/ and {free} are free there; make room, \
            or give \
             them up with --discard"
        );
        return Err(refuse(root, why));
    }
    let device = |path: PathBuf| std::fs::metadata(path).ok().map(|it| it.dev());
    let (from, to) = (device(folder.commit_log()), device(folder.truncated()));
    if to.is_some() && from != to {
        let why = "on another file system than commitlog/, so segments cannot be moved there; \
        move it \
                   away, or give the bytes up with --discard";
        return Err(refuse(&folder.truncated(), why));
    }
    Ok(())
}

/// The state of a replica that lost bytes: it cannot prove that it still has what it had when it
/// served an epoch, so it never serves that one again. Queues are held against the log at the next
/// open.
fn lost_bytes(before: Option<State>, epochs: &EpochList) -> State {
    // A folder of Java's: it may have served the newest epoch that it names.
    let newest = epochs.last().map(|last| last.epoch);
    let before = before.unwrap_or(State {
        max_epoch: newest,
        served_epoch: newest,
        ..State::default()
    });
    State {
        clean: None,
        boot_id: [0; 16],
        generation: before.generation + 1,
        queues: None,
        ..before
    }
}

impl ProblemKind {
    /// What makes it right in the store folder `dir`: a command, or what else to do.
    #[must_use]
    pub fn remedy(self, dir: &Path) -> String {
        let dir = dir.display();
        match self {
            Self::Torn | Self::BehindTheEnd => format!(
                "opening the store cuts it off; `epochlog repair tail {dir}` does so now and \
                keeps the bytes"
            ),
            Self::Damage | Self::NotInTheLog => {
                format!("`epochlog repair tail {dir}` cuts the log there")
            }
            Self::EpochFileMissing | Self::EpochFileDamaged | Self::NoEpoch => {
                format!("`epochlog repair epoch {dir}`")
            }
            Self::EpochPastTheEnd => "opening the store drops it".to_owned(),
            Self::StateFileDamaged => format!("`epochlog repair resync {dir}`"),
            Self::Unexpected => "move it out of commitlog/".to_owned(),
        }
    }
}

/// The folder a file of a store belongs to, for messages.
pub(crate) fn store_of(file: &Path) -> PathBuf {
    let log = file
        .ancestors()
        .find(|it| it.file_name() == Some(OsStr::new("commitlog")));
    let store = log.unwrap_or(file).parent().unwrap_or(file);
    store.to_path_buf()
}

fn lines(found: &Inspection, kinds: &[ProblemKind]) -> Vec<String> {
    let relevant = found.problems.iter().filter(|it| kinds.contains(&it.kind));
    relevant.map(Problem::to_string).collect()
}
