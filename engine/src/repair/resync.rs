//! A replica that cannot go on with its log: it comes back without one.

use crate::checkpoint::Checkpoint;
use crate::epoch_file::EpochFile;
use crate::epoch_list::EpochList;
use crate::error::Error;
use crate::folder::{Folder, Listing};
use crate::state_file::{State, StateFile, StateFileError};
use crate::steps::{CutPlan, SavePlan, SegmentStep, Step, cut_steps};
use crate::store::{DERIVED, QUEUES};

use super::tail::aside;
use super::{Removed, Work, check_room, keep_beside, lost_bytes, now_ms, refuse, text};

pub(super) fn plan(folder: Folder, removed: Removed) -> Result<Work, Error> {
    let listing = folder.list()?;
    let file = EpochFile::new(folder.epoch_file());
    let epochs = file.load();
    let (state, damaged) = match StateFile::read(&folder.state_file()) {
        Ok(state) => (state, None),
        Err(why @ StateFileError::Damaged { .. }) => (None, Some(why)),
        Err(why) => return Err(why.into()),
    };
    let no_epochs = matches!(&epochs, Ok(None)) || matches!(&epochs, Ok(Some(it)) if it.is_empty());
    let nothing_durable = state.is_none_or(|state| state.flushed == 0);
    if listing.segments.is_empty() && no_epochs && damaged.is_none() && nothing_durable {
        return Err(refuse(
            folder.root(),
            "there is no log and no epoch to give up",
        ));
    }
    let backup = EpochFile::new(file.backup_path()).load();
    let known = newest(epochs.ok().flatten(), backup.ok().flatten());
    let now_ms = now_ms();
    let into = folder.truncated().join(format!("{now_ms}-resync"));
    let state = State {
        flushed: 0,
        scan_from: 0,
        // None of the bytes a sync failed on stays.
        sync_failed: false,
        ..lost_bytes(state, &known)
    };
    let findings = findings(&listing, &known, &state, damaged.as_ref());
    let mut steps = Vec::new();
    let mut save = None;
    if removed == Removed::Kept {
        check_room(&folder, 0)?;
        let name = file.path().file_name().filter(|_| file.path().exists());
        steps.extend(name.map(|name| {
            let (from, to) = (file.path().to_path_buf(), into.join(name));
            Step::Segment(SegmentStep::Keep { from, to })
        }));
        let reason = format!("repair resync: {}", findings.join("\n"));
        save = Some(SavePlan {
            into,
            reason,
            tail_end: 0,
        });
    }
    let cut = give_up(&folder, &listing, state, save);
    if damaged.is_some() {
        // A damaged state file keeps every opener out, so it is made whole when all bytes are gone; but
        // before the epoch file, the last to say what was promised, loses that.
        let (epochs, bytes): (Vec<_>, Vec<_>) = cut
            .into_iter()
            .filter(|it| !matches!(it, Step::State(_)))
            .partition(|it| matches!(it, Step::Epochs(_)));
        steps.extend(bytes);
        steps.extend(keep_beside(&folder.state_file(), now_ms));
        steps.push(Step::NewState(state));
        steps.extend(epochs);
    } else {
        steps.extend(cut);
    }
    Ok(Work {
        folder,
        findings,
        steps,
        segment_size: 1,
    })
}

fn findings(
    listing: &Listing,
    known: &EpochList,
    state: &State,
    damaged: Option<&StateFileError>,
) -> Vec<String> {
    let bytes: u64 = listing.segments.iter().map(|it| it.len).sum();
    let mut findings = vec![format!(
        "{} segments of {bytes} bytes and the epochs {} are given up; stop here if no other \
        replica has \
         this log",
        listing.segments.len(),
        text(known)
    )];
    if let Some(why) = damaged {
        let told = state.max_epoch.unwrap_or_default();
        findings.push(format!(
            "{why}. Epoch {told}, the newest of the epoch file, is taken for the newest promised"
        ));
    }
    findings.push(
        "the replica must have left the SyncStateSet before it starts again: an empty member must \
        not be \
         elected"
            .to_owned(),
    );
    findings
}

/// Everything goes, newest first; the epoch list follows the bytes.
fn give_up(
    folder: &Folder,
    listing: &Listing,
    lowered: State,
    save: Option<SavePlan>,
) -> Vec<Step> {
    let mut derived = aside(folder, &DERIVED);
    derived.extend(aside(folder, &QUEUES));
    let newest_first = listing.segments.iter().rev();
    cut_steps(CutPlan {
        to: 0,
        aside: derived,
        save,
        remove: newest_first.map(|it| it.path.clone()).collect(),
        cut: None,
        replace: false,
        sync: Vec::new(),
        lowered,
        epochs: EpochList::new(),
        checkpoint: Checkpoint::default(),
    })
}

/// The list that names the newer epoch.
fn newest(main: Option<EpochList>, backup: Option<EpochList>) -> EpochList {
    let epoch = |list: &EpochList| list.last().map(|last| last.epoch);
    let lists = [backup, main].into_iter().flatten();
    lists.max_by_key(epoch).unwrap_or_default()
}
