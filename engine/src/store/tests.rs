//! What needs a look inside: a stop before every durable step, syncs that fail or take their time, and
//! a machine that was restarted.

mod crash_points;
mod every_call;
#[cfg(feature = "interleave")]
mod interleavings;
mod power;
mod ready;
mod retention;
mod syncs;

use std::fs;
use std::path::Path;

use crate::epoch_list::EpochList;
use crate::inspect;
use crate::position::{EpochEntry, Offset};
use crate::record::{EncodeOptions, Message, encoded_len};
use crate::store::{Store, StoreConfig};

const SEGMENT: u64 = 4096;

/// A folder in memory if there is one: a stop keeps what was done, synced or not, and file systems in
/// memory refuse what disks can do, so both ways of erasing are tried.
fn in_memory() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() {
        tempfile::tempdir_in(memory)
    } else {
        tempfile::tempdir()
    }
    .unwrap()
}

fn config(dir: &Path) -> StoreConfig {
    let mut config = StoreConfig::new(dir);
    config.segment_size = SEGMENT;
    config.prefault_ahead_bytes = 0;
    config.flush_interval_ms = 3_600_000;
    config
}

fn open(dir: &Path) -> Store {
    Store::open(config(dir)).unwrap()
}

fn message(body: &[u8]) -> Message<'_> {
    Message::new(
        "topic",
        body,
        ([127, 0, 0, 1], 10911).into(),
        1_700_000_000_000,
    )
}

/// Appends records of `len` bytes, each with a body of `fill`.
fn append(store: &Store, count: usize, len: usize, fill: u8) {
    let overhead = encoded_len(&message(b""), EncodeOptions::default()).unwrap();
    let body = vec![fill; len - overhead];
    for _ in 0..count {
        store.append(&message(&body)).unwrap();
    }
}

fn epochs(entries: &[(u32, u64)]) -> EpochList {
    let entry = |&(epoch, start): &(u32, u64)| EpochEntry { epoch, start };
    EpochList::from_entries(entries.iter().map(entry).collect()).unwrap()
}

fn image(store: &Store) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut at: Offset = store.min_offset();
    while at < store.end_offset() {
        let slice = store.slice(at, usize::MAX).unwrap();
        at = slice.end();
        bytes.extend_from_slice(&slice);
    }
    bytes
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let from = entry.unwrap().path();
        let to = to.join(from.file_name().unwrap());
        if from.is_dir() {
            copy(&from, &to);
        } else {
            fs::copy(&from, &to).unwrap();
        }
    }
}

/// Nothing behind the end parses, every byte has an epoch, and opening again changes nothing.
fn check_invariants(dir: &Path, store: &Store) {
    let found = inspect::scan(dir).unwrap();
    assert_eq!(found.problems, []);
    assert_eq!(found.end_offset, store.end_offset());
    assert_eq!(found.epochs.unwrap_or_default(), *store.epochs());
    for segment in store.segments() {
        let bytes = fs::read(&segment.path).unwrap();
        assert_eq!(bytes.len() as u64, SEGMENT);
        let len = usize::try_from(segment.len).unwrap();
        assert!(
            bytes[len..].iter().all(|byte| *byte == 0),
            "{}",
            segment.path.display()
        );
    }
    let (before, list) = (image(store), store.epochs());
    store.abandon();
    let again = open(dir);
    assert_eq!((image(&again), again.epochs()), (before, list));
    again.abandon();
}
