//! Appending to the commit log, one producer, beside the work that cannot be left out: the CRC of
//! the body and one copy into the same kind of mapping.
//!
//! Data set: messages of one topic with bodies of 1 KiB or 64 KiB, 32 MiB per iteration into a new
//! store whose segment, and the one behind it, were faulted in ahead. Nothing waits for the disk.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use epochlog_benches::stores::{Scratch, body, message};
use epochlog_engine::{EncodeOptions, EpochEntry, Message, encoded_len};

const BYTES: u64 = 32 << 20;
/// One segment holds all of an iteration: rolling is not measured here.
const SEGMENT: u64 = 40 << 20;
const THREADS: usize = 4;
/// Records timed together.
const PIECE: u64 = 512;

/// Runs `one` `count` times and answers what that takes at the median speed of its pieces, each far
/// shorter than a time slice: what else the machine does in between is not counted.
fn in_pieces(count: u64, mut one: impl FnMut(u64)) -> Duration {
    let mut pieces = Vec::new();
    let mut at = 0;
    while at < count {
        let to = count.min(at + PIECE);
        let began = Instant::now();
        (at..to).for_each(&mut one);
        pieces.push(began.elapsed().as_secs_f64() / (to - at) as f64);
        at = to;
    }
    pieces.sort_by(f64::total_cmp);
    Duration::from_secs_f64(pieces[pieces.len() / 2] * count as f64)
}

/// A master with one message and all pages of its segment in place.
fn ready() -> Scratch {
    let scratch = Scratch::filled(SEGMENT, 1, 1).expect("a store in TMPDIR");
    scratch.wait_for_pages();
    scratch
}

fn append(body: &[u8], count: u64) -> Duration {
    let scratch = ready();
    let message = message(body);
    let elapsed = in_pieces(count, |_| {
        scratch.store.append(&message).expect("room for it");
    });
    assert!(scratch.store.end_offset() >= count * body.len() as u64);
    elapsed
}

/// `THREADS` producers share `count` messages, each with a queue of its own.
fn append_threads(body: &[u8], count: u64) -> Duration {
    let scratch = ready();
    let start = Barrier::new(THREADS + 1);
    let store = &scratch.store;
    thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|queue| {
                let message = Message {
                    queue_id: i32::try_from(queue).unwrap_or(0),
                    ..message(body)
                };
                let start = &start;
                scope.spawn(move || {
                    start.wait();
                    for _ in 0..count / THREADS as u64 {
                        store.append(&message).expect("room for it");
                    }
                })
            })
            .collect();
        let began = Instant::now();
        start.wait();
        for thread in threads {
            thread.join().expect("no append fails");
        }
        began.elapsed()
    })
}

fn append_batches(body: &[u8], count: u64) -> Duration {
    let scratch = ready();
    let batch = [message(body); 32];
    let began = Instant::now();
    let mut left = count;
    while left > 0 {
        let part = &batch[..batch.len().min(usize::try_from(left).unwrap_or(usize::MAX))];
        scratch.store.append_batch(part).expect("room for it");
        left -= part.len() as u64;
    }
    began.elapsed()
}

/// CRC and copy into the mapped tail of a store that is a slave: the same file, the same pages.
fn crc_and_copy(body: &[u8], record_len: usize, count: u64) -> Duration {
    let scratch = Scratch::new(SEGMENT).expect("a store in TMPDIR");
    let mut receiver = scratch.store.receive().expect("a slave");
    let entry = EpochEntry { epoch: 1, start: 0 };
    receiver.adopt_epoch(entry).expect("the first epoch");
    let len = record_len * usize::try_from(count).expect("it fits into memory");
    let first = receiver.window(1).expect("an empty segment");
    receiver.filled(first, 0);
    scratch.wait_for_pages();
    let mut window = receiver.window(len).expect("an empty segment");
    let room = window.as_mut_slice();
    let mut records = room.chunks_exact_mut(record_len);
    let mut crcs = 0u32;
    let elapsed = in_pieces(count, |_| {
        let record = records.next().expect("a slot for each");
        crcs ^= crc32fast::hash(std::hint::black_box(body));
        record[..body.len()].copy_from_slice(body);
        record[body.len()..].fill(1);
    });
    std::hint::black_box(crcs);
    elapsed
}

fn bench(criterion: &mut Criterion) {
    for len in [1 << 10, 64 << 10] {
        let body = body(len);
        let record_len =
            encoded_len(&message(&body), EncodeOptions::default()).expect("a legal message");
        let count = BYTES / record_len as u64;
        let mut group = criterion.benchmark_group(format!("append/{}KiB", len >> 10));
        group.throughput(Throughput::Bytes(count * record_len as u64));
        group
            .sample_size(10)
            .warm_up_time(Duration::from_millis(500))
            .measurement_time(Duration::from_secs(3));
        let runs: [(&str, &dyn Fn() -> Duration); 4] = [
            ("crc_and_copy", &|| crc_and_copy(&body, record_len, count)),
            ("append", &|| append(&body, count)),
            ("append_4_threads", &|| append_threads(&body, count)),
            ("append_batches_of_32", &|| append_batches(&body, count)),
        ];
        for (name, run) in runs {
            group.bench_function(name, |bencher| {
                bencher.iter_custom(|iterations| (0..iterations).map(|_| run()).sum());
            });
        }
        group.finish();
    }
}

criterion_group!(benches, bench);
criterion_main!(benches);
