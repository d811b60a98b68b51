//! A damaged or missing epoch file: which list may take its place.

use std::path::Path;

use crate::epoch_file::EpochFile;
use crate::epoch_list::EpochList;
use crate::error::Error;
use crate::folder::Folder;
use crate::inspect::{self, Inspection, ProblemKind};
use crate::position::{EpochEntry, Offset};
use crate::steps::Step;

use super::{Work, keep_beside, lines, now_ms, refuse, text};

const KINDS: [ProblemKind; 3] = [
    ProblemKind::EpochFileMissing,
    ProblemKind::EpochFileDamaged,
    ProblemKind::NoEpoch,
];

pub(super) fn plan(folder: Folder, entries: Option<Vec<EpochEntry>>) -> Result<Work, Error> {
    let found = inspect::scan(folder.root())?;
    let path = folder.epoch_file();
    let mut findings = lines(&found, &KINDS);
    if findings.is_empty() {
        return Err(refuse(&path, "the epoch file is whole and covers the log"));
    }
    findings.push(known(&found));
    let backup = EpochFile::new(EpochFile::new(&path).backup_path());
    let list = match entries {
        Some(entries) => {
            let list = EpochList::from_entries(entries).map_err(|why| refuse(&path, why))?;
            fits(&list, &found).map_err(|why| refuse(&path, why))?;
            list
        }
        None => {
            from_backup(&backup, &found).map_err(|why| refuse(&path, not_taken(&findings, &why)))?
        }
    };
    if let Some(state) = found.state.filter(|state| {
        let last = list.last().map(|last| last.epoch);
        state.max_epoch > last
    }) {
        findings.push(format!(
            "this node was told of epoch {}, which the list does not have: right only if no byte \
            of \
             it is here; compare with another replica's file",
            state.max_epoch.unwrap_or_default()
        ));
    }
    let now_ms = now_ms();
    let kept = [
        keep_beside(&path, now_ms),
        keep_beside(backup.path(), now_ms),
    ];
    let mut steps: Vec<_> = kept.into_iter().flatten().collect();
    steps.push(Step::Epochs(list));
    Ok(Work {
        folder,
        findings,
        steps,
        segment_size: 1,
    })
}

fn known(found: &Inspection) -> String {
    let (min, end) = (found.min_offset, found.end_offset);
    format!("the log has {} messages in [{min}, {end})", found.messages)
}

/// Where an entry may start at most. Behind damage there may be more log than a walk finds.
fn limit(found: &Inspection) -> Offset {
    let flushed = found.state.map_or(0, |state| state.flushed);
    found.end_offset.max(flushed)
}

fn fits(list: &EpochList, found: &Inspection) -> Result<(), String> {
    let limit = limit(found);
    if let Some(last) = list.last().filter(|last| last.start > limit) {
        return Err(format!(
            "epoch {} would start at {}, but the log ends at {limit}",
            last.epoch, last.start
        ));
    }
    let min = found.min_offset;
    if min < limit && list.covering(min).is_none() {
        let list = text(list);
        return Err(format!(
            "no entry of {list} covers the log's first byte at {min}"
        ));
    }
    Ok(())
}

/// The backup's list, if it is the newest. Java's backup is the list before the last change, and
/// ours may be in the moment between two writes: an older list would give the newest epoch's bytes
/// to an older epoch, and hide a divergence.
fn from_backup(backup: &EpochFile, found: &Inspection) -> Result<EpochList, String> {
    let path = backup.path();
    let list = match backup.load() {
        Ok(Some(list)) => list,
        Ok(None) => return Err(format!("{} is missing too", path.display())),
        Err(_) => return Err(format!("{} is damaged too", path.display())),
    };
    let has = |why: &str| Err(format!("{} has {}, {why}", path.display(), text(&list)));
    if let Err(why) = fits(&list, found) {
        return has(&format!("but {why}"));
    }
    let Some(state) = found.state else {
        return has("but Java wrote this folder, and its backup is one change older than the file");
    };
    match state.clean {
        Some(clean) if clean.epoch_file_crc == list.fingerprint() => Ok(list),
        Some(_) => has("but the last clean stop had another list"),
        None if state.served_epoch > list.last().map(|last| last.epoch) => {
            has("but this node was master of a newer epoch")
        }
        None => Ok(list),
    }
}

fn not_taken(findings: &[String], why: &str) -> String {
    let found = findings.join("; ");
    format!(
        "{found}; {why}. Take the list from another replica's epoch file, as far as this log \
        goes, and \
         give it: --entries EPOCH:START,EPOCH:START"
    )
}

/// The epoch list, for a repair that rests on it.
pub(super) fn usable(folder: &Folder, found: &Inspection) -> Result<EpochList, Error> {
    let path: &Path = &folder.epoch_file();
    let list = EpochFile::new(path).load()?;
    let min = found.min_offset;
    match list {
        Some(list) if min == limit(found) || list.covering(min).is_some() => Ok(list),
        _ => Err(Error::Epochs {
            path: path.to_path_buf(),
            why: "missing, or no epoch covers the log's first byte".to_owned(),
        }),
    }
}
