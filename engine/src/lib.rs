//! The storage engine of epochlog: a memory-mapped commit log in Apache RocketMQ's byte format,
//! with an epoch file that says which master wrote which bytes.
//!
//! The crate knows no socket, no runtime and no peer: bytes and offsets go in, views come out.

mod position;

pub use position::{Epoch, EpochEntry, MAX_EPOCH, MAX_OFFSET, Offset};
