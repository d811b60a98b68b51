//! Reads one stopped replica's folder: bounds, digest, epochs, attempts, and what it had cut.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use epochlog_engine::inspect::{self, Inspection};
use sha2::{Digest, Sha256};

use super::traffic::ATTEMPT;
use super::verdict::OnDisk;

/// The replica in `store`, and the bytes its truncations removed. What cannot be read is a problem
/// of the replica, so that the verdict shows it.
pub(super) fn read(store: &Path) -> (OnDisk, u64) {
    let mut replica = OnDisk::default();
    match broker_id(store) {
        Some(id) => replica.id = id,
        None => replica
            .problems
            .push("no brokerIdentity file that names its id".to_owned()),
    }
    match inspect::scan(store) {
        Ok(found) => fill(&mut replica, &found),
        Err(error) => replica.problems.push(error.to_string()),
    }
    (replica, bytes_cut(&store.join("truncated")))
}

/// The last field of `cluster#name#id`.
fn broker_id(store: &Path) -> Option<u64> {
    let text = fs::read_to_string(store.join("brokerIdentity")).ok()?;
    text.trim().rsplit('#').next()?.parse().ok()
}

fn fill(replica: &mut OnDisk, found: &Inspection) {
    replica.min = found.min_offset;
    replica.end = found.end_offset;
    replica
        .problems
        .extend(found.problems.iter().map(ToString::to_string));
    let entries = found
        .epochs
        .as_ref()
        .map(|list| list.entries())
        .unwrap_or_default();
    replica.epochs = entries
        .iter()
        .map(|entry| (entry.epoch, entry.start))
        .collect();
    match digest(found) {
        Ok(hex) => replica.sha256 = hex,
        Err(error) => replica.problems.push(error.to_string()),
    }
    let mut attempts: HashMap<String, u32> = HashMap::new();
    for record in found.records() {
        match record {
            Ok(view) => {
                if let Some(attempt) = view.record().property(ATTEMPT) {
                    *attempts.entry(attempt.into_owned()).or_default() += 1;
                }
            }
            Err(error) => replica.problems.push(error.to_string()),
        }
    }
    replica.attempts = attempts;
}

/// Over the bytes of [min, end) as they stand in the files, fillers included.
fn digest(found: &Inspection) -> std::io::Result<String> {
    let mut sha = Sha256::new();
    for segment in &found.segments {
        let bytes = fs::read(&segment.path)?;
        let len = usize::try_from(segment.len)
            .unwrap_or(usize::MAX)
            .min(bytes.len());
        sha.update(&bytes[..len]);
    }
    Ok(sha
        .finalize()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect())
}

/// What truncations kept aside: the tail of the cut's segment, and whole segments behind it up to
/// their last byte that is not zero.
fn bytes_cut(truncated: &Path) -> u64 {
    let Ok(cuts) = fs::read_dir(truncated) else {
        return 0;
    };
    let files = cuts
        .flatten()
        .filter_map(|cut| fs::read_dir(cut.path()).ok())
        .flatten()
        .flatten();
    let mut bytes = 0;
    for file in files {
        let name = file.file_name().to_string_lossy().into_owned();
        if name.contains(".from-") {
            bytes += file.metadata().map_or(0, |metadata| metadata.len());
        } else if name.bytes().all(|letter| letter.is_ascii_digit()) {
            let content = fs::read(file.path()).unwrap_or_default();
            let used = content
                .iter()
                .rposition(|byte| *byte != 0)
                .map_or(0, |last| last + 1);
            bytes += used as u64;
        }
    }
    bytes
}
