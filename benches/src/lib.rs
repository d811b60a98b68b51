//! Shared pieces of the benches: stores with a known data set, and the wire without a log behind
//! it.

pub mod stores;
pub mod wire;
