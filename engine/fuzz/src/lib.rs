//! What the fuzz targets do with arbitrary bytes, and what must hold whatever the bytes are.
//!
//! Each body panics if something that must hold does not. The targets of libFuzzer call them, and so
//! does a test of the engine, over the seeds and over random changes of them. Only the public interface
//! of the engine is used.
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    unreachable_pub,
    missing_docs,
    reason = "a panic is how a body says what does not hold"
)]

mod record;
mod segment;
mod small_files;

use std::path::Path;

pub use record::record;
pub use segment::segment;
pub use small_files::{checkpoint, epoch_file, state_file};

/// A folder in memory if there is one.
fn scratch() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() {
        tempfile::tempdir_in(memory)
    } else {
        tempfile::tempdir()
    }
    .unwrap()
}

/// Splits `data` behind its first `N` bytes, which say how the rest is used.
fn header<const N: usize>(data: &[u8]) -> Option<(&[u8; N], &[u8])> {
    data.split_first_chunk()
}
