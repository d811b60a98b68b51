//! What the system refuses, and what is left after it: full disks, file systems that turn read-only, syncs
//! that fail, and files that somebody else shortens.
//!
//! Each story breaks something for good, so it is told by a child process: the test binary itself, with
//! one test and a folder. The parent then looks at what the folder holds. Where a story needs a mount, the
//! child has a mount namespace of its own; on a machine that grants none it is left out, and says so.
#![allow(clippy::unwrap_used, reason = "a story ends where it fails")]

#[path = "../common/mod.rs"]
mod common;

mod child;
mod full_disk;
mod lost_file;
mod read_only;
mod refused_calls;
