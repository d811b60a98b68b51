//! What a store folder holds and where its log ends. Pure and read-only: a scan finds, a plan says what
//! to change, and only the executor of steps changes anything.
//!
//! Four answers are kept apart: the end (nothing was written behind it), a torn tail (bad at or above
//! the durable flushed mark: the log ends there), damage (bad below the mark: refused), and a file
//! that could not be read. The scan stops at the first bad record and never goes on behind it.

mod layout;
mod scan;

use std::path::PathBuf;

use crate::checkpoint::CheckpointFile;
use crate::epoch_file::EpochFile;
use crate::epoch_list::EpochList;
use crate::error::Error;
use crate::folder::{Folder, SegmentFile};
use crate::position::Offset;
use crate::state_file::{State, StateFile};
use crate::steps::{SegmentStep, Step};

pub(crate) use layout::Layout;
use scan::Scanned;
pub(crate) use scan::{Progress, bases_crc, look_at, open_scanned, vouched_for};

/// What to examine, and what to hold it against.
pub(crate) struct Examination<'a> {
    pub(crate) folder: &'a Folder,
    pub(crate) segment_size: u64,
    /// Take the length the segments have instead of `segment_size`.
    pub(crate) adopt_segment_size: bool,
    pub(crate) boot_id: [u8; 16],
    pub(crate) progress: Option<Progress>,
}

/// What was found. Nothing has been changed yet.
pub(crate) struct Findings {
    pub(crate) segment_size: u64,
    pub(crate) state: Option<State>,
    /// The list without entries that start behind the end.
    pub(crate) epochs: EpochList,
    pub(crate) epochs_changed: bool,
    /// Segments that hold log, or the empty one that stands for its end.
    pub(crate) segments: Vec<SegmentFile>,
    /// Empty segments behind them, proven to be untouched.
    pub(crate) ready: Vec<SegmentFile>,
    /// Files under `commitlog/` to remove, newest first.
    pub(crate) leftovers: Vec<PathBuf>,
    pub(crate) unexpected: Vec<PathBuf>,
    pub(crate) min: Offset,
    pub(crate) end: Offset,
    pub(crate) last_record: Option<Offset>,
    pub(crate) last_store_ms: i64,
    /// The end was proven by the marks of a clean stop.
    pub(crate) clean: bool,
    /// The pages are those of the run before: no machine stop since, no failed sync.
    pub(crate) same_memory: bool,
    pub(crate) scanned_bytes: u64,
    pub(crate) torn: Option<Torn>,
}

/// A record at the end that is not whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Torn {
    /// Where the log ends now.
    pub offset: Offset,
    /// What is wrong with the bytes there.
    pub why: String,
    /// Bytes from there on that were written and are given up.
    pub cut_bytes: u64,
}

/// Looks at the folder; writes nothing.
pub(crate) fn examine(examination: &Examination<'_>) -> Result<Findings, Error> {
    let folder = examination.folder;
    let state = StateFile::read(&folder.state_file())?;
    let listing = folder.list()?;
    let epoch_file = EpochFile::new(folder.epoch_file());
    let checkpoint = CheckpointFile::read(&folder.checkpoint())?;
    let segment_size = layout::segment_size(&listing, examination)?;
    let flushed = state.as_ref().map(|state| state.flushed);
    let layout = Layout::of(&listing, segment_size, flushed, folder)?;
    let stored_epochs = match epoch_file.load()? {
        Some(epochs) => epochs,
        // A new log has segments before it has an epoch.
        None if are_unwritten(&layout.segments)? => EpochList::new(),
        None => {
            return Err(Error::Epochs {
                path: folder.epoch_file(),
                why: "missing, but the commit log is not empty".to_owned(),
            });
        }
    };
    let same_memory = state.as_ref().is_some_and(|state| {
        state.boot_id == examination.boot_id && state.boot_id != [0; 16] && !state.sync_failed
    });
    let scan = scan::Scan {
        folder,
        layout: &layout,
        segment_size,
        state: state.as_ref(),
        checkpoint,
        epochs: &stored_epochs,
        same_memory,
        progress: examination.progress.clone(),
    };
    let scanned = match scan.prove_clean()? {
        Some(proven) => proven,
        None => scan.run()?,
    };
    let mut epochs = stored_epochs;
    let epochs_changed = epochs.drop_starting_after(scanned.end);
    let min = layout.min();
    if scanned.end > min && epochs.covering(min).is_none() {
        return Err(Error::Epochs {
            path: folder.epoch_file(),
            why: format!("no epoch covers the log's first byte at offset {min}"),
        });
    }
    let unexpected = listing.unexpected;
    Ok(Findings {
        segment_size,
        state,
        epochs,
        epochs_changed,
        unexpected,
        min,
        same_memory,
        ..split(layout, scanned)
    })
}

fn are_unwritten(segments: &[SegmentFile]) -> Result<bool, Error> {
    for segment in segments {
        if !segment.begins_unwritten()? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Which segments stay and which go, once the end is known.
fn split(layout: Layout, scanned: Scanned) -> Findings {
    let Layout {
        segments,
        leftovers,
        ..
    } = layout;
    let Scanned { end, clean, .. } = scanned;
    // The first segment stays even when it holds nothing: it says where an empty log begins.
    let kept = segments
        .iter()
        .skip(1)
        .take_while(|segment| segment.base < end || (clean && segment.base == end));
    let kept = (1 + kept.count()).min(segments.len());
    let (segments, behind) = segments.split_at(kept);
    // Later pages of theirs may hold data after a crash.
    let (ready, gone) = behind.split_at(if clean { behind.len() } else { 0 });
    let gone = gone.iter().map(|segment| segment.path.clone());
    let mut all_leftovers: Vec<_> = gone.collect();
    all_leftovers.extend(leftovers);
    all_leftovers.reverse();
    Findings {
        segment_size: 0,
        state: None,
        epochs: EpochList::new(),
        epochs_changed: false,
        segments: segments.to_vec(),
        ready: ready.to_vec(),
        leftovers: all_leftovers,
        unexpected: Vec::new(),
        min: 0,
        end,
        last_record: scanned.last_record,
        last_store_ms: scanned.last_store_ms,
        clean,
        same_memory: false,
        scanned_bytes: scanned.scanned_bytes,
        torn: scanned.torn,
    }
}

/// The changes an open makes: `dirty` is durable before anything else, and what the scan read is
/// durable before `flushed` says so. `held_past_end`: views of an earlier open in this process reach
/// past the end, so the file there is replaced, not edited.
pub(crate) fn open_steps(
    findings: &Findings,
    process: u32,
    held_past_end: bool,
    dirty: State,
    flushed: State,
) -> Vec<Step> {
    let mut steps = Vec::new();
    let failed = findings
        .state
        .as_ref()
        .is_some_and(|state| state.sync_failed);
    let durable_to = dirty.flushed;
    steps.push(Step::State(dirty));
    let mut segment_steps = vec![
        SegmentStep::CreateAbort { process },
        SegmentStep::Directories,
    ];
    let size = findings.segment_size;
    if !findings.clean {
        let leftovers = findings.leftovers.iter();
        segment_steps.extend(leftovers.map(|path| SegmentStep::Remove {
            path: path.clone(),
            into: None,
        }));
        let end = findings.end;
        for segment in &findings.segments {
            let (base, limit) = (segment.base, segment.base + size);
            let holds_end = (base..limit).contains(&end);
            // After a failed sync the page cache may claim to be clean: only a copy is sure.
            if failed && limit > durable_to && base < end || holds_end && held_past_end {
                segment_steps.push(SegmentStep::Rewrite {
                    base,
                    end: end.min(limit),
                });
            } else if holds_end {
                segment_steps.push(SegmentStep::Erase { at: end });
            }
        }
    }
    steps.extend(segment_steps.into_iter().map(Step::Segment));
    if findings.epochs_changed {
        steps.push(Step::Epochs(findings.epochs.clone()));
    }
    if !findings.clean {
        for segment in &findings.segments {
            let base = segment.base;
            if base + size > durable_to && base < findings.end {
                steps.push(Step::Segment(SegmentStep::Sync { base }));
            }
        }
        steps.push(Step::State(flushed));
    }
    steps
}
