//! Appending the same messages to epochlog, to raft-engine and to commitlog, nothing of it synced.
//!
//! Data set: messages with 1 KiB bodies, 64 MiB of them into a new folder for each figure, one by one and
//! in batches of the sizes below; for each store the batch it likes best counts. Bytes are the bodies'.
//! raft-engine gets raft's entries, made beforehand, does not compress, and once finds its files filled
//! ahead as it can be told to; commitlog gets a buffer that is used again. epochlog is measured once with
//! its pages faulted in ahead, and once while its own thread makes them, beside the append. All take turns;
//! the median of the turns counts.

use std::time::Instant;

use commitlog::message::MessageBuf;
use commitlog::{CommitLog, LogOptions};
use epochlog_benches::run::{asked, folder, median, print_bar};
use epochlog_benches::stores::{Scratch, body, message};
use epochlog_engine::{Store, StoreConfig};
use raft::eraftpb::Entry;
use raft_engine::{Config, Engine, LogBatch, MessageExt, ReadableSize};

const BODY: usize = 1 << 10;
const BATCHES: [usize; 3] = [1, 32, 256];
/// Holds a run's records, with what epochlog puts around a body.
const SEGMENT: u64 = 96 << 20;
/// The bar: so many times the rate of the faster peer.
const BAR: f64 = 3.0;

/// Takes the count of messages and of those in a batch, answers seconds.
type Run = fn(usize, usize) -> f64;

const OURS: [(&str, Run); 2] = [
    ("epochlog, pages ready", epochlog_ready),
    ("epochlog, pages on the way", epochlog_new),
];

const PEERS: [(&str, Run); 3] = [
    ("raft-engine", raft_engine_new),
    ("raft-engine, files filled ahead", raft_engine_filled),
    ("commitlog", commitlog),
];

fn epochlog(store: &Store, count: usize, batch: usize) -> f64 {
    let body = body(BODY);
    let messages = vec![message(&body); batch];
    let first = store.end_offset();
    let began = Instant::now();
    for _ in 0..count / batch {
        match messages.as_slice() {
            [one] => drop(store.append(one).expect("room for it")),
            all => drop(store.append_batch(all).expect("room for it")),
        }
    }
    let took = began.elapsed().as_secs_f64();
    assert!(store.end_offset() - first >= (count * BODY) as u64);
    took
}

fn epochlog_ready(count: usize, batch: usize) -> f64 {
    let scratch = Scratch::filled(SEGMENT, 1, 1).expect("a store in TMPDIR");
    scratch.wait_for_pages();
    epochlog(&scratch.store, count, batch)
}

fn epochlog_new(count: usize, batch: usize) -> f64 {
    let (dir, _) = folder();
    let mut config = StoreConfig::new(dir.path());
    config.segment_size = SEGMENT;
    config.max_dirty_bytes = u64::MAX;
    config.flush_interval_ms = 60_000;
    let store = Store::open(config).expect("an empty folder opens");
    store.promote(1).expect("epoch 1 is new");
    epochlog(&store, count, batch)
}

/// Raft's entries as raft-engine takes them.
struct Entries;

impl MessageExt for Entries {
    type Entry = Entry;

    fn index(entry: &Entry) -> u64 {
        entry.index
    }
}

fn raft_engine(config: Config, count: usize, batch: usize) -> f64 {
    let engine = Engine::open(config).expect("an empty folder opens");
    let mut entry = Entry::default();
    entry.set_data(body(BODY).into());
    let mut entries = vec![entry; batch];
    let mut log_batch = LogBatch::with_capacity(batch);
    let mut index = 0;
    let began = Instant::now();
    for _ in 0..count / batch {
        for entry in &mut entries {
            index += 1;
            entry.index = index;
        }
        log_batch
            .add_entries::<Entries>(1, &entries)
            .expect("a batch of legal size");
        engine.write(&mut log_batch, false).expect("room for it");
    }
    let took = began.elapsed().as_secs_f64();
    assert_eq!(engine.last_index(1), Some(index));
    took
}

fn raft_engine_config(dir: &tempfile::TempDir) -> Config {
    Config {
        dir: dir.path().display().to_string(),
        batch_compression_threshold: ReadableSize(0),
        bytes_per_sync: None,
        ..Config::default()
    }
}

fn raft_engine_new(count: usize, batch: usize) -> f64 {
    let (dir, _) = folder();
    raft_engine(raft_engine_config(&dir), count, batch)
}

fn raft_engine_filled(count: usize, batch: usize) -> f64 {
    let (dir, _) = folder();
    let mut config = raft_engine_config(&dir);
    config.enable_log_recycle = true;
    config.prefill_for_recycle = true;
    config.prefill_limit = Some(ReadableSize::mb(256));
    raft_engine(config, count, batch)
}

fn commitlog(count: usize, batch: usize) -> f64 {
    let (dir, _) = folder();
    let mut options = LogOptions::new(dir.path());
    // One segment and one index hold everything.
    options.index_max_items(2 * count);
    let mut log = CommitLog::new(options).expect("an empty folder opens");
    let body = body(BODY);
    let mut buffer = MessageBuf::default();
    let began = Instant::now();
    for _ in 0..count / batch {
        buffer.clear();
        for _ in 0..batch {
            buffer.push(&body).expect("a message of legal size");
        }
        log.append(&mut buffer).expect("room for it");
    }
    let took = began.elapsed().as_secs_f64();
    assert_eq!(log.next_offset(), (count / batch * batch) as u64);
    took
}

fn main() {
    let Some(length) = asked("peers") else {
        return;
    };
    let count = length.pick(64 << 10, 512);
    let turns = length.pick(5, 1);
    let subjects: Vec<(&str, Run)> = OURS.into_iter().chain(PEERS).collect();
    let mut rates = vec![[const { Vec::new() }; BATCHES.len()]; subjects.len()];
    for _ in 0..turns {
        for (place, batch) in BATCHES.into_iter().enumerate() {
            for ((_, run), rates) in subjects.iter().zip(&mut rates) {
                rates[place].push((count * BODY) as f64 / run(count, batch) / 1e6);
            }
        }
    }
    let (_, kind) = folder();
    println!("peers: 1 KiB bodies, no sync, {kind}, MB/s of bodies, median of {turns} turns");
    println!("{:<34}{:>12}{:>12}{:>12}", "batches of", 1, 32, 256);
    let mut best = Vec::new();
    let mut single = Vec::new();
    for ((name, _), rates) in subjects.iter().zip(rates) {
        let medians = rates.map(median);
        let [one, some, many] = medians;
        println!("{name:<34}{one:>12.0}{some:>12.0}{many:>12.0}");
        single.push(one);
        best.push(medians.into_iter().fold(0.0, f64::max));
    }
    let fastest = |rates: &[f64]| rates.iter().copied().fold(0.0, f64::max);
    for (what, rates) in [("one by one", single), ("the best batch of each", best)] {
        let (ours, peers) = rates.split_at(OURS.len());
        let peer = fastest(peers);
        let [ready, on_the_way] = [ours[0] / peer, ours[1] / peer];
        println!("{what}: {ready:.2} and {on_the_way:.2} times the faster peer");
        print_bar(
            length,
            &format!("{what}, >= 3 x the faster peer"),
            ready >= BAR,
        );
    }
}
