//! Apache RocketMQ on the other side: it reads what we wrote, follows us, and leads us. Needs a JVM and
//! Maven, so every test here is ignored unless asked for: `.ci/interop` builds the Java side
//! (`fixtures/rocketmq-peer`) and runs them.

mod java;
mod queues;
mod replication;
mod stores;

/// Bytes of each segment on both sides.
const SEGMENT_SIZE: u64 = 64 * 1024;

/// Bytes of each consume queue file on both sides.
const QUEUE_FILE_SIZE: u64 = 20_000;
