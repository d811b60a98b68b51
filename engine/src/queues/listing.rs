//! What lies under `consumequeue/`. Nothing here writes.
//!
//! A queue is a directory `<topic>/<queue id>`; its files are named by their first byte in 20 decimal
//! digits, are equally long and leave no gap.

use std::fs::{self, DirEntry};
use std::io::ErrorKind;
use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::consume_queue::UNIT;
use crate::error::Error;
use crate::folder::segment_base;

/// Queues a store folder can have.
pub(super) const MAX_QUEUES: usize = 1 << 18;

/// Longest name of a directory, in bytes.
const MAX_NAME_LEN: usize = 255;

/// One queue as it was found.
pub(crate) struct FoundQueue {
    pub(crate) topic: String,
    pub(crate) queue_id: i32,
    pub(crate) dir: PathBuf,
    /// First byte and length of each file, lowest first.
    files: Vec<(u64, u64)>,
}

/// The files of a queue that form a row, and those that do not.
pub(super) struct Row {
    pub(super) range: Range<u64>,
    /// Files without a byte: their making was interrupted.
    pub(super) unmade: Vec<u64>,
    /// Of another length, or behind a gap.
    pub(super) irregular: Vec<u64>,
}

/// Every queue under `dir`. What is no queue is named in the log and left alone, as Java does.
pub(crate) fn list(dir: &Path) -> Result<Vec<FoundQueue>, Error> {
    let mut found = Vec::new();
    for topic in entries(dir)? {
        let path = topic.path();
        let name = topic.file_name();
        let (Some(topic), true) = (name.to_str(), path.is_dir()) else {
            tracing::warn!(path = %path.display(), "no topic of consume queues, left alone");
            continue;
        };
        for queue in entries(&path)? {
            let dir = queue.path();
            let name = queue.file_name();
            // Only the one spelling that names the queue's directory.
            let queue_id = name
                .to_str()
                .and_then(|name| name.parse::<i32>().ok().filter(|id| id.to_string() == name));
            let (Some(queue_id), true) = (queue_id, dir.is_dir()) else {
                tracing::warn!(path = %dir.display(), "no consume queue, left alone");
                continue;
            };
            if found.len() == MAX_QUEUES {
                let why = format!("more than {MAX_QUEUES} queues are there");
                return Err(Error::QueueFolder {
                    path: dir.clone(),
                    why,
                });
            }
            found.push(FoundQueue {
                topic: topic.to_owned(),
                queue_id,
                files: files(&dir)?,
                dir,
            });
        }
    }
    Ok(found)
}

fn entries(dir: &Path) -> Result<Vec<DirEntry>, Error> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(Error::io("list", dir))?,
    };
    entries
        .collect::<Result<_, _>>()
        .map_err(Error::io("list", dir))
}

fn files(dir: &Path) -> Result<Vec<(u64, u64)>, Error> {
    let mut files = Vec::new();
    for entry in entries(dir)? {
        let path = entry.path();
        let metadata = fs::metadata(&path).map_err(Error::io("look at", &path))?;
        match entry.file_name().to_str().and_then(segment_base) {
            Some(base) if metadata.is_file() => files.push((base, metadata.len())),
            _ => {
                tracing::warn!(path = %path.display(), "no file of a consume queue, left alone");
            }
        }
    }
    files.sort_unstable();
    Ok(files)
}

/// The length most files have, if it is one that queue files can have.
pub(crate) fn common_len(queues: &[FoundQueue]) -> Option<u64> {
    let mut counts = std::collections::BTreeMap::new();
    let lengths = queues.iter().flat_map(|queue| &queue.files);
    for (_, len) in lengths.filter(|(_, len)| *len > 0 && len.is_multiple_of(UNIT)) {
        *counts.entry(*len).or_insert(0_usize) += 1;
    }
    let most = counts.into_iter().max_by_key(|(len, count)| (*count, *len));
    most.map(|(len, _)| len)
}

impl FoundQueue {
    pub(super) fn row(&self, size: u64) -> Row {
        let mut row = Row {
            range: 0..0,
            unmade: Vec::new(),
            irregular: Vec::new(),
        };
        let mut open = true;
        for (base, len) in &self.files {
            let begins = row.range.is_empty() && base.is_multiple_of(size);
            if *len == 0 {
                row.unmade.push(*base);
            } else if open && *len == size && (begins || *base == row.range.end) {
                row.range.start = if begins { *base } else { row.range.start };
                row.range.end = base.saturating_add(size);
            } else {
                // Nothing behind a gap belongs to the row.
                open = false;
                row.irregular.push(*base);
            }
        }
        row
    }
}

/// Whether a directory can have the topic's name.
pub(super) fn is_name(topic: &str) -> bool {
    !topic.is_empty()
        && topic.len() <= MAX_NAME_LEN
        && topic != "."
        && topic != ".."
        && !topic.contains(['/', '\0'])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(files: &[(u64, u64)]) -> (Range<u64>, Vec<u64>, Vec<u64>) {
        let queue = FoundQueue {
            topic: "t".into(),
            queue_id: 0,
            dir: PathBuf::new(),
            files: files.to_vec(),
        };
        let Row {
            range,
            unmade,
            irregular,
        } = queue.row(200);
        (range, unmade, irregular)
    }

    #[test]
    fn files_form_a_row_up_to_the_first_that_does_not_fit() {
        for (files, range, unmade, irregular) in [
            (&[][..], 0..0, &[][..], &[][..]),
            (&[(0, 200)], 0..200, &[], &[]),
            (&[(400, 200), (600, 200)], 400..800, &[], &[]),
            (&[(400, 200), (600, 0)], 400..600, &[600], &[]),
            (&[(0, 200), (400, 200)], 0..200, &[], &[400]),
            (
                &[(0, 200), (200, 180), (400, 200)],
                0..200,
                &[],
                &[200, 400],
            ),
            (&[(20, 200), (220, 200)], 0..0, &[], &[20, 220]),
            (&[(0, 100), (200, 200)], 0..0, &[], &[0, 200]),
        ] {
            let expected = (range, unmade.to_vec(), irregular.to_vec());
            assert_eq!(row(files), expected, "{files:?}");
        }
    }

    #[test]
    fn only_names_of_directories_are_topics() {
        for topic in ["TopicTest", "%RETRY%group", "a.b", "..."] {
            assert!(is_name(topic), "{topic}");
        }
        let long = "x".repeat(256);
        for topic in ["", ".", "..", "a/b", "../x", "/", "a\0", &long] {
            assert!(!is_name(topic), "{topic:?}");
        }
    }

    #[test]
    fn a_listing_takes_queues_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        assert!(list(&dir.path().join("missing")).unwrap().is_empty());
        for queue in ["t/0", "t/-1", "t/07", "t/x", "u/3"] {
            fs::create_dir_all(dir.path().join(queue)).unwrap();
        }
        fs::write(dir.path().join("file"), "").unwrap();
        fs::write(dir.path().join("t/0/00000000000000000000"), [0; 40]).unwrap();
        fs::write(dir.path().join("t/0/notes"), "").unwrap();
        let mut found = list(dir.path()).unwrap();
        found.sort_by_key(|queue| (queue.topic.clone(), queue.queue_id));
        let names: Vec<_> = found
            .iter()
            .map(|queue| (queue.topic.as_str(), queue.queue_id, queue.files.len()))
            .collect();
        assert_eq!(names, [("t", -1, 0), ("t", 0, 1), ("u", 3, 0)]);
        assert_eq!(common_len(&found), Some(40));
    }
}
