//! Shared pieces of the benches: stores with a known data set, and the wire without a log behind
//! it.

pub mod cores;
pub mod handover;
pub mod ratio;
pub mod raw;
pub mod run;
pub mod stores;
pub mod wire;
