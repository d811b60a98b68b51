//! Apache RocketMQ on the other side: it reads what we wrote, follows us, and leads us. Needs a JVM and
//! Maven, so every test here is ignored unless asked for: `.ci/interop` builds the Java side
//! (`fixtures/rocketmq-peer`) and runs them.

mod admin;
mod captures;
mod generation;
mod java;
mod nameserver;
mod processes;
mod queues;
mod replica;
mod replication;
mod stores;
mod twins;
mod whole;

/// `short`, or `long` if the long form of the matrix is asked for (EPOCHLOG_INTEROP_LONG=1).
fn scaled(short: usize, long: usize) -> usize {
    let asked = std::env::var("EPOCHLOG_INTEROP_LONG").is_ok_and(|value| value == "1");
    if asked { long } else { short }
}

/// Bytes of each segment on both sides.
const SEGMENT_SIZE: u64 = 64 * 1024;

/// Bytes of each consume queue file on both sides.
const QUEUE_FILE_SIZE: u64 = 20_000;
