//! The names inside a store folder, and what is found under `commitlog/`.
//!
//! Nothing here writes. A segment is a file whose name is its base offset in 20 decimal digits; it
//! is as long as every other segment from the moment it has that name (RocketMQ: MappedFileQueue).

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::checkpoint::CHECKPOINT_FILE_NAME;
use crate::epoch_file::EPOCH_FILE_NAME;
use crate::error::Error;
use crate::position::{MAX_OFFSET, Offset};
use crate::record::FILLER_MIN_LEN;
use crate::segment::to_len;
use crate::state_file::STATE_FILE_NAME;

/// Java's name for the folder of the consume queues.
pub(crate) const CONSUME_QUEUES: &str = "consumequeue";

const SEGMENT_NAME_LEN: usize = 20;

/// One store folder and the paths in it.
#[derive(Clone, Debug)]
pub(crate) struct Folder {
    root: PathBuf,
}

impl Folder {
    pub(crate) fn new(root: &Path) -> Self {
        Self {
            root: root.to_path_buf(),
        }
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn commit_log(&self) -> PathBuf {
        self.root.join("commitlog")
    }

    pub(crate) fn segment(&self, base: Offset) -> PathBuf {
        self.commit_log().join(segment_name(base))
    }

    /// Where a segment is built before it gets its name; never inside `commitlog/`, where Java takes
    /// every file for a segment.
    pub(crate) fn prepare(&self) -> PathBuf {
        self.root.join("prepare")
    }

    pub(crate) fn prepared(&self, base: Offset) -> PathBuf {
        self.prepare().join(segment_name(base))
    }

    pub(crate) fn truncated(&self) -> PathBuf {
        self.root.join("truncated")
    }

    /// Where directories go that Java derived from a log that has changed since.
    pub(crate) fn aside(&self) -> PathBuf {
        self.root.join("aside")
    }

    /// Java's name for where the queues are.
    pub(crate) fn consume_queues(&self) -> PathBuf {
        self.root.join(CONSUME_QUEUES)
    }

    pub(crate) fn lock(&self) -> PathBuf {
        self.root.join("lock")
    }

    pub(crate) fn abort(&self) -> PathBuf {
        self.root.join("abort")
    }

    pub(crate) fn checkpoint(&self) -> PathBuf {
        self.root.join(CHECKPOINT_FILE_NAME)
    }

    pub(crate) fn epoch_file(&self) -> PathBuf {
        self.root.join(EPOCH_FILE_NAME)
    }

    pub(crate) fn state_file(&self) -> PathBuf {
        self.root.join(STATE_FILE_NAME)
    }

    /// Everything under `commitlog/`, sorted. A folder without one is an empty log.
    pub(crate) fn list(&self) -> Result<Listing, Error> {
        let directory = self.commit_log();
        let mut listing = Listing::default();
        let entries = match fs::read_dir(&directory) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(listing),
            entries => entries.map_err(Error::io("list", &directory))?,
        };
        for entry in entries {
            let entry = entry.map_err(Error::io("list", &directory))?;
            let path = entry.path();
            let metadata = fs::metadata(&path).map_err(Error::io("look at", &path))?;
            match entry.file_name().to_str().and_then(segment_base) {
                Some(base) if metadata.is_file() => {
                    listing.segments.push(SegmentFile {
                        base,
                        len: metadata.len(),
                        path,
                    });
                }
                _ => listing.unexpected.push(path),
            }
        }
        listing.segments.sort_by_key(|segment| segment.base);
        listing.unexpected.sort();
        Ok(listing)
    }
}

/// What lies under `commitlog/`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Listing {
    /// Files named as segments, by base offset.
    pub(crate) segments: Vec<SegmentFile>,
    /// Everything else.
    pub(crate) unexpected: Vec<PathBuf>,
}

impl Listing {
    /// The length most segments have; the larger one of two equally common lengths.
    pub(crate) fn common_len(&self) -> Option<u64> {
        let count = |len| {
            self.segments
                .iter()
                .filter(|segment| segment.len == len)
                .count()
        };
        self.segments
            .iter()
            .map(|segment| segment.len)
            .filter(|len| *len > 0)
            .max_by_key(|len| (count(*len), *len))
    }
}

/// A file named as a segment; its length and bytes are not looked at yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SegmentFile {
    pub(crate) base: Offset,
    pub(crate) len: u64,
    pub(crate) path: PathBuf,
}

impl SegmentFile {
    /// Whether neither a record nor a filler was ever written to it, by its first bytes: both begin with
    /// their length.
    pub(crate) fn begins_unwritten(&self) -> Result<bool, Error> {
        // A file that is no segment may be shorter.
        let mut first = vec![0; to_len(self.len).min(FILLER_MIN_LEN)];
        let path = &self.path;
        let file = fs::File::open(path).map_err(Error::io("open", path))?;
        file.read_exact_at(&mut first, 0)
            .map_err(Error::io("read", path))?;
        Ok(first.iter().all(|byte| *byte == 0))
    }
}

/// The file name of the segment that starts at `base`.
pub(crate) fn segment_name(base: Offset) -> String {
    format!("{base:0SEGMENT_NAME_LEN$}")
}

pub(crate) fn segment_base(name: &str) -> Option<Offset> {
    if name.len() != SEGMENT_NAME_LEN || !name.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    name.parse().ok().filter(|base| *base <= MAX_OFFSET)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_is_named_by_its_base_in_twenty_digits() {
        assert_eq!(segment_name(0), "00000000000000000000");
        assert_eq!(segment_name(1_073_741_824), "00000000001073741824");
        assert_eq!(segment_base("00000000001073741824"), Some(1_073_741_824));
        for name in [
            "1073741824",
            "0000000000107374182x",
            "+0000000001073741824",
            "abort",
        ] {
            assert_eq!(segment_base(name), None, "{name}");
        }
        assert_eq!(segment_base("09223372036854775807"), Some(MAX_OFFSET));
        assert_eq!(segment_base("09223372036854775808"), None);
        assert_eq!(segment_base("99999999999999999999"), None);
    }

    #[test]
    fn a_listing_is_sorted_and_names_what_it_did_not_expect() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::new(dir.path());
        assert!(folder.list().unwrap().segments.is_empty());
        fs::create_dir_all(folder.commit_log().join("00000000000000004096")).unwrap();
        fs::write(folder.segment(2048), [0; 1024]).unwrap();
        fs::write(folder.segment(0), [0; 1024]).unwrap();
        fs::write(folder.segment(1024), []).unwrap();
        fs::write(folder.commit_log().join("notes.txt"), "x").unwrap();
        let listing = folder.list().unwrap();
        let bases: Vec<_> = listing
            .segments
            .iter()
            .map(|segment| segment.base)
            .collect();
        assert_eq!(bases, [0, 1024, 2048]);
        assert_eq!(listing.unexpected.len(), 2);
        assert_eq!(listing.common_len(), Some(1024));
    }
}
