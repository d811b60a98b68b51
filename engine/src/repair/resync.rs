//! A replica that cannot go on with its log: it comes back without one.

use crate::checkpoint::Checkpoint;
use crate::epoch_file::EpochFile;
use crate::epoch_list::EpochList;
use crate::error::Error;
use crate::folder::Folder;
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
    let bytes: u64 = listing.segments.iter().map(|it| it.len).sum();
    let mut findings = vec![format!(
        "{} segments of {bytes} bytes and the epochs {} are given up; stop here if no other \
        replica has \
         this log",
        listing.segments.len(),
        text(&known)
    )];
    let state = State {
        flushed: 0,
        scan_from: 0,
        // None of the bytes a sync failed on stays.
        sync_failed: false,
        ..lost_bytes(state, &known)
    };
    if let Some(why) = &damaged {
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
    let mut steps = Vec::new();
    let mut save = None;
    if removed == Removed::Kept {
        check_room(&folder, 0)?;
        if let Some(name) = file.path().file_name().filter(|_| file.path().exists()) {
            let (from, to) = (file.path().to_path_buf(), into.join(name));
            steps.push(Step::Segment(SegmentStep::Keep { from, to }));
        }
        save = Some(SavePlan {
            into,
            reason: format!("repair resync: {}", findings.join("\n")),
            tail_end: 0,
        });
    }
    let newest_first = listing.segments.iter().rev();
    let derived = aside(&folder, &DERIVED);
    let queues = aside(&folder, &QUEUES);
    let cut = cut_steps(CutPlan {
        to: 0,
        aside: derived.into_iter().chain(queues).collect(),
        save,
        remove: newest_first.map(|it| it.path.clone()).collect(),
        cut: None,
        replace: false,
        sync: Vec::new(),
        lowered: state,
        epochs: EpochList::new(),
        checkpoint: Checkpoint::default(),
    });
    if damaged.is_some() {
        // A damaged state file keeps every opener out, so it is the last thing to be made whole.
        steps.extend(cut.into_iter().filter(|it| !matches!(it, Step::State(_))));
        steps.extend(keep_beside(&folder.state_file(), now_ms));
        steps.push(Step::NewState(state));
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

/// The list that names the newer epoch.
fn newest(main: Option<EpochList>, backup: Option<EpochList>) -> EpochList {
    let epoch = |list: &EpochList| list.last().map(|last| last.epoch);
    let lists = [backup, main].into_iter().flatten();
    lists.max_by_key(epoch).unwrap_or_default()
}
