//! The fixture folders as tests see them: where they are, what RocketMQ read in them, what is expected.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use sha2::{Digest, Sha256};

/// `fixtures/` of the repository.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures")
}

/// The folders directly under `fixtures/<under>` whose name starts with `prefix`, sorted. Never empty.
pub(crate) fn folders(under: &str, prefix: &str) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = fs::read_dir(root().join(under))
        .expect("the folder of fixtures can be listed")
        .map(|entry| entry.expect("its entries can be read").path())
        .filter(|path| path.is_dir() && name(path).starts_with(prefix))
        .collect();
    found.sort();
    assert!(!found.is_empty(), "no fixture {prefix}* under {under}");
    found
}

/// The last part of a path, for messages.
pub(crate) fn name(path: &Path) -> String {
    path.file_name()
        .expect("a fixture has a name")
        .to_string_lossy()
        .into_owned()
}

/// What RocketMQ read in a folder.
pub(crate) struct Manifest {
    /// The log as a whole.
    pub(crate) head: Head,
    /// Every message in log order.
    pub(crate) messages: Vec<Line>,
}

/// First line of a manifest.
#[derive(Deserialize)]
pub(crate) struct Head {
    pub(crate) messages: usize,
    pub(crate) min_offset: u64,
    pub(crate) end_offset: u64,
    pub(crate) epochs: Vec<(u32, u64)>,
}

/// One message of a manifest.
#[derive(Deserialize)]
pub(crate) struct Line {
    pub(crate) offset: u64,
    pub(crate) size: usize,
    pub(crate) topic: String,
    pub(crate) queue: i32,
    pub(crate) queue_offset: i64,
    pub(crate) flag: i32,
    pub(crate) sys_flag: i32,
    pub(crate) born_ms: i64,
    pub(crate) store_ms: i64,
    pub(crate) born_host: String,
    pub(crate) store_host: String,
    pub(crate) reconsume: i32,
    pub(crate) tags: Option<String>,
    pub(crate) keys: Option<String>,
    pub(crate) properties: usize,
    pub(crate) properties_sha256: String,
    pub(crate) body_len: usize,
    pub(crate) body_sha256: String,
}

impl Manifest {
    /// The manifest in `folder`.
    pub(crate) fn read(folder: &Path) -> Self {
        let text = fs::read_to_string(folder.join("manifest.jsonl"))
            .expect("a Java fixture has a manifest");
        let mut lines = text.lines();
        let head: Head = serde_json::from_str(lines.next().expect("a head line")).expect("a head");
        let messages: Vec<Line> = lines
            .map(|line| serde_json::from_str(line).expect("a message line"))
            .collect();
        assert_eq!(head.messages, messages.len(), "{}", name(folder));
        Self { head, messages }
    }
}

/// Lower-case hex of the SHA-256 of `bytes`.
pub(crate) fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// A copy of `folder` that a test may write to.
pub(crate) fn copy(folder: &Path) -> tempfile::TempDir {
    let copy = tempfile::tempdir().expect("a temporary folder");
    copy_into(folder, copy.path());
    copy
}

fn copy_into(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).expect("a fixture can be listed") {
        let path = entry.expect("its entries can be read").path();
        let target = to.join(name(&path));
        if path.is_dir() {
            fs::create_dir(&target).expect("a new folder");
            copy_into(&path, &target);
        } else {
            fs::copy(&path, &target).expect("a fixture can be copied");
        }
    }
}

/// Paths below `left` that `right` lacks or holds with other content, and those only `right` has. A lock
/// file does not count.
pub(crate) fn difference(left: &Path, right: &Path) -> Vec<PathBuf> {
    let mut differing = Vec::new();
    let (ours, theirs) = (files(left, left), files(right, right));
    for path in ours
        .iter()
        .chain(theirs.iter().filter(|path| !ours.contains(path)))
    {
        let content = |root: &Path| fs::read(root.join(path)).ok();
        if path != Path::new("lock") && content(left) != content(right) {
            differing.push(path.clone());
        }
    }
    differing
}

fn files(root: &Path, dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).expect("a folder can be listed") {
        let path = entry.expect("its entries can be read").path();
        if path.is_dir() {
            found.extend(files(root, &path));
        } else {
            found.push(
                path.strip_prefix(root)
                    .expect("below the root")
                    .to_path_buf(),
            );
        }
    }
    found
}
