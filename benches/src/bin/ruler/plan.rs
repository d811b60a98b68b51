//! What is measured, and how each side is started.

use std::path::PathBuf;

/// RocketMQ's haTransferBatchSize, which it ships with.
pub(crate) const DEFAULT_FRAMES: u32 = 32 * 1024;
/// Writes that wait for their acks at a time, in the figure of many.
pub(crate) const IN_FLIGHT: usize = 1000;

/// The same for both sides.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    /// Messages of each figure of appending and replicating; a multiple of 1024.
    pub(crate) messages: usize,
    /// Messages of a batch.
    pub(crate) batch: usize,
    /// Messages of each warm-up.
    pub(crate) warm_messages: usize,
    /// Acknowledged writes one by one.
    pub(crate) puts_one: usize,
    /// Acknowledged writes with many in flight.
    pub(crate) puts_many: usize,
    /// Bytes of a segment.
    pub(crate) segment_size: u64,
}

impl Plan {
    /// Messages in the log of one replica at most, over all figures and warm-ups.
    pub(crate) fn most_messages(&self) -> usize {
        let puts = 2 * (self.puts_one + self.puts_many);
        4 * self.messages + 4 * self.warm_messages + puts
    }
}

/// One side: how its replicas are started, and what is its own.
#[derive(Clone, Debug)]
pub(crate) struct Side {
    /// As it stands in the lines and the table.
    pub(crate) name: &'static str,
    /// Called as `PROGRAM bench --dir D --id N --segment-size BYTES` and these.
    pub(crate) program: PathBuf,
    pub(crate) more_args: Vec<String>,
    pub(crate) env: Vec<(&'static str, String)>,
    /// Time over which a warm-up is spread, in ms.
    pub(crate) warm_ms: u64,
    /// The frames it replicates fastest with, in bytes.
    pub(crate) best_frames: u32,
}
