//! A log that is damaged: cut at the first bad record.

use std::fs::File;
use std::path::PathBuf;

use crate::checkpoint::{Checkpoint, CheckpointFile};
use crate::epoch_list::EpochList;
use crate::error::Error;
use crate::folder::{Folder, SegmentFile};
use crate::inspect::{self, Inspection, ProblemKind};
use crate::position::Offset;
use crate::recovery::{Layout, open_scanned};
use crate::region::is_held_past;
use crate::segment::to_len;
use crate::state_file::{State, StateFile};
use crate::steps::{CutPlan, SavePlan, SegmentStep, Step, cut_steps};
use crate::store::{DERIVED, MAX_SEGMENT_SIZE, MIN_SEGMENT_SIZE};

use super::{Removed, Work, check_room, epoch, lines, lost_bytes, now_ms, refuse};

const KINDS: [ProblemKind; 4] = [
    ProblemKind::Damage,
    ProblemKind::Torn,
    ProblemKind::BehindTheEnd,
    ProblemKind::NotInTheLog,
];

pub(super) fn plan(folder: Folder, removed: Removed) -> Result<Work, Error> {
    let state = StateFile::read(&folder.state_file())?;
    let found = inspect::scan(folder.root())?;
    let mut findings = lines(&found, &KINDS);
    if findings.is_empty() {
        let why = "no record is damaged and nothing lies behind the end";
        return Err(refuse(&folder.commit_log(), why));
    }
    let (listing, to) = (folder.list()?, found.end_offset);
    let size = listing.common_len().unwrap_or_default();
    let layout = Layout::of(&listing, size, Some(0), &folder)?;
    let usable = (MIN_SEGMENT_SIZE..=MAX_SEGMENT_SIZE).contains(&size);
    if layout.segments.is_empty() || !usable {
        let store = folder.root().display();
        let why =
            format!("no segment is left to cut; `epochlog repair resync {store}` starts anew");
        return Err(refuse(&folder.commit_log(), why));
    }
    let epochs = epoch::usable(&folder, &found)?;
    let cut = Cut::of(&layout, to)?;
    findings.extend(cut.findings(&found, state));
    if removed == Removed::Kept {
        check_room(&folder, cut.written_to.saturating_sub(to))?;
    }
    let mut raised = None;
    let lowered = lowered(state, &epochs, &layout, to);
    // After a failed sync only a copy is sure; the next open makes it and raises the mark.
    if !lowered.sync_failed {
        raised = Some(Step::State(State {
            flushed: to,
            scan_from: layout.min(),
            ..lowered
        }));
    }
    let mut steps = cut_steps(cut.plan(&folder, &layout, lowered, epochs, removed, &findings)?);
    steps.extend(raised);
    Ok(Work {
        folder,
        findings,
        steps,
        segment_size: size,
    })
}

/// The marks, vouching for nothing from the cut on. The next open scans from the first byte.
fn lowered(before: Option<State>, epochs: &EpochList, layout: &Layout, to: Offset) -> State {
    let state = lost_bytes(before, epochs);
    let flushed = state.flushed.min(to);
    State {
        flushed,
        scan_from: layout.min().min(flushed),
        ..state
    }
}

/// Which files a cut touches.
struct Cut {
    to: Offset,
    /// The segment it lies in, if that one stays.
    within: Option<SegmentFile>,
    /// End of what was written of that segment.
    written_to: Offset,
    /// Files that go, newest first.
    remove: Vec<PathBuf>,
    /// Bytes of the records that go with whole files, at most.
    removed_bytes: u64,
    kept: Vec<SegmentFile>,
}

impl Cut {
    fn of(layout: &Layout, to: Offset) -> Result<Self, Error> {
        // The first segment stays even when it holds nothing: it says where an empty log begins.
        let later = layout.segments.iter().skip(1);
        let kept = 1 + later.take_while(|it| it.base < to).count();
        let (kept, gone) = layout.segments.split_at(kept);
        let within = kept.last().filter(|last| to < last.base + last.len);
        let mut written_to = to;
        if let Some(file) = within {
            let bytes = open_scanned(file)?;
            let last = bytes.iter().rposition(|byte| *byte != 0);
            written_to = to.max(file.base + last.map_or(0, |last| last as u64 + 1));
        }
        let remove = gone.iter().map(|file| file.path.clone());
        let mut remove: Vec<_> = remove.chain(layout.leftovers.iter().cloned()).collect();
        remove.reverse();
        let mut removed_bytes = 0;
        for path in &remove {
            let metadata = std::fs::metadata(path).map_err(Error::io("look at", path))?;
            removed_bytes += metadata.len();
        }
        Ok(Self {
            to,
            within: within.cloned(),
            written_to,
            remove,
            removed_bytes,
            kept: kept.to_vec(),
        })
    }

    fn findings(&self, found: &Inspection, state: Option<State>) -> Vec<String> {
        let to = self.to;
        let mut lines = vec![format!(
            "the log is cut at offset {to}: {} messages stay; {} written bytes of that segment \
            and {} \
             files of {} bytes go, with how many messages is not known",
            found.messages,
            self.written_to - to,
            self.remove.len(),
            self.removed_bytes,
        )];
        if let Some(state) = state.filter(|state| state.flushed > to) {
            lines.push(format!(
                "{} bytes of it were durable: messages that were acknowledged may be among them. \
                Let this \
                 replica come back only as a slave of one that has them, and not while it is in \
                 the \
                 SyncStateSet: elected, it would lose them for all",
                state.flushed - to
            ));
        }
        lines
    }

    fn plan(
        self,
        folder: &Folder,
        layout: &Layout,
        lowered: State,
        epochs: EpochList,
        removed: Removed,
        findings: &[String],
    ) -> Result<CutPlan, Error> {
        let (to, size) = (self.to, layout.segment_size);
        let save = (removed == Removed::Kept).then(|| SavePlan {
            into: folder.truncated().join(format!("{}-{to}", now_ms())),
            reason: format!("repair: {}", findings.join("\n")),
            tail_end: self.written_to,
        });
        let durable_to = lowered.flushed;
        let within = self.within.as_ref();
        let unsynced = self.kept.iter().filter(|it| it.base + size > durable_to);
        let unsynced = unsynced.map(|it| it.base);
        let sync = unsynced.filter(|base| Some(*base) != within.map(|it| it.base));
        let mut replace = false;
        if let Some(file) = within {
            let path = &file.path;
            let opened = File::open(path).map_err(Error::io("open", path))?;
            let held = is_held_past(&opened, to_len(to - file.base));
            replace = held.map_err(Error::io("look at", path))?;
        }
        let mut epochs = epochs;
        epochs.drop_starting_after(to);
        Ok(CutPlan {
            to,
            aside: aside(folder, &DERIVED),
            save,
            cut: within.map(|it| it.base),
            replace,
            sync: sync.collect(),
            remove: self.remove,
            lowered,
            epochs,
            checkpoint: checkpoint(folder, to)?,
        })
    }
}

/// Moves out of sight what of `names` is there.
pub(super) fn aside(folder: &Folder, names: &[&'static str]) -> Vec<SegmentStep> {
    let there = names
        .iter()
        .filter(|name| folder.root().join(name).exists());
    let into = folder.aside();
    there
        .map(|name| SegmentStep::MoveAside {
            name,
            into: into.clone(),
        })
        .collect()
}

/// Java's marks after the cut: it looks again at every record.
fn checkpoint(folder: &Folder, to: Offset) -> Result<Checkpoint, Error> {
    let before = CheckpointFile::read(&folder.checkpoint())?.unwrap_or_default();
    Ok(Checkpoint {
        master_flushed_offset: before.master_flushed_offset.min(to.cast_signed()),
        confirm_offset: before.confirm_offset.min(to.cast_signed()),
        ..Checkpoint::default()
    })
}
