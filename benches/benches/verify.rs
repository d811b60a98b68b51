//! Checking a whole store folder, by the code path of `epochlog verify`, beside the CRC alone over the same
//! bytes of the same files.
//!
//! Data set: a closed store in `TMPDIR` with a log of 256 MiB in four segments, messages of one topic with
//! bodies of 1 KiB or 4 KiB, without the property CRC or with it. All of it is in the page cache. The
//! check maps and unmaps the segments each time. One limit reads pages of a new mapping too, but the
//! mapping and the unmapping are outside its time; the other reads pages that were all touched before.

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use epochlog_benches::stores::{body, message};
use epochlog_engine::{Store, StoreConfig, inspect};
use tempfile::TempDir;

const LOG: u64 = 256 << 20;
const SEGMENT: u64 = 64 << 20;
const BATCH: usize = 64;

fn config(dir: &TempDir, property_crc: bool) -> StoreConfig {
    let mut config = StoreConfig::new(dir.path());
    config.segment_size = SEGMENT;
    config.encode.append_property_crc = property_crc;
    config.consume_queues = false;
    config.prefault_ahead_bytes = 0;
    config
}

type Run = fn(&TempDir) -> Duration;

/// A log of at least `LOG` bytes, closed.
fn filled(body_len: usize, property_crc: bool) -> TempDir {
    let dir = tempfile::tempdir().expect("a folder in TMPDIR");
    let store = Store::open(config(&dir, property_crc)).expect("an empty store");
    store.promote(1).expect("the first epoch");
    let body = body(body_len);
    let batch = vec![message(&body); BATCH];
    while store.end_offset() < LOG {
        store.append_batch(&batch).expect("room for it");
    }
    store.close().expect("a clean stop");
    dir
}

/// The CRC over every byte of the log that `store` has mapped.
fn crc_over(store: &Store) -> Duration {
    let began = Instant::now();
    let mut at = store.min_offset();
    while at < store.end_offset() {
        let slice = store.slice(at, usize::MAX).expect("a part of the log");
        black_box(crc32fast::hash(black_box(&slice)));
        at = slice.end();
    }
    began.elapsed()
}

fn crc_fresh(dir: &TempDir) -> Duration {
    let store = Store::open(config(dir, false)).expect("a clean store");
    let elapsed = crc_over(&store);
    store.close().expect("a clean stop");
    elapsed
}

fn crc_warm(dir: &TempDir, iterations: u64) -> Duration {
    let store = Store::open(config(dir, false)).expect("a clean store");
    crc_over(&store);
    let elapsed = (0..iterations).map(|_| crc_over(&store)).sum();
    store.close().expect("a clean stop");
    elapsed
}

fn scan(dir: &TempDir) -> Duration {
    let began = Instant::now();
    let found = inspect::scan_with(dir.path(), |_, _| {}).expect("a readable store");
    let elapsed = began.elapsed();
    assert!(found.problems.is_empty(), "{:?}", found.problems);
    assert!(found.end_offset >= LOG, "all of it was read");
    elapsed
}

fn bench(criterion: &mut Criterion) {
    for (body_len, property_crc) in [
        (1 << 10, false),
        (1 << 10, true),
        (4 << 10, false),
        (4 << 10, true),
    ] {
        let dir = filled(body_len, property_crc);
        let found = inspect::scan(dir.path()).expect("a readable store");
        let with = if property_crc { "with" } else { "without" };
        let name = format!("verify/{}KiB {with} property CRC", body_len >> 10);
        let mut group = criterion.benchmark_group(name);
        group
            .throughput(Throughput::Bytes(found.end_offset - found.min_offset))
            .sample_size(20)
            .warm_up_time(Duration::from_millis(500))
            .measurement_time(Duration::from_secs(3));
        group.bench_function(
            "crc32fast over the mapped segments, mapped before",
            |bencher| {
                bencher.iter_custom(|iterations| crc_warm(&dir, iterations));
            },
        );
        let runs: [(&str, Run); 2] = [
            ("crc32fast over the mapped segments, mapped anew", crc_fresh),
            ("scan", scan),
        ];
        for (name, run) in runs {
            group.bench_function(name, |bencher| {
                bencher.iter_custom(|iterations| (0..iterations).map(|_| run(&dir)).sum());
            });
        }
        group.finish();
    }
}

criterion_group!(benches, bench);
criterion_main!(benches);
