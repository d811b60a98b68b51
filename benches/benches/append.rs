//! Appending to the commit log, one producer, beside the work that cannot be left out: the CRC of
//! the body and one copy into the same kind of mapping.
//!
//! Data set: messages of one topic with bodies of 1 KiB or 64 KiB, 32 MiB per iteration into a new
//! store whose segment, and the one behind it, were faulted in ahead. Nothing waits for the disk.
//!
//! What is held against the raw limit runs on the bench's own thread and is timed in short pieces, of which
//! the median counts. One producer and four are held against each other in the same way for both: threads
//! that are there before the time begins, the same messages in all, the whole time until the last is done.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use epochlog_benches::ratio::{Subject, medians};
use epochlog_benches::run::{Length, print_bar};
use epochlog_benches::stores::{Scratch, body, message};
use epochlog_engine::{EncodeOptions, EpochEntry, Message, encoded_len};

const BYTES: u64 = 32 << 20;
/// For threads, which need some time until all of them run.
const BYTES_OF_THREADS: u64 = 56 << 20;
const SEGMENT_OF_THREADS: u64 = 60 << 20;
/// One segment holds all of an iteration: rolling is not measured here.
const SEGMENT: u64 = 40 << 20;
const THREADS: u64 = 4;
const BATCH: u64 = 32;
/// Records timed together.
const PIECE: u64 = 512;
/// Rounds of all in turn, for the ratios.
const ROUNDS: usize = 25;
/// The bars for messages of 1 KiB: of the raw limit, and of one thread's rate.
const BARS: [f64; 2] = [0.7, 0.8];

/// Runs `one` `count` times and answers what that takes at the median speed of its pieces, each far
/// shorter than a time slice: what else the machine does in between is not counted.
fn in_pieces(count: u64, piece: u64, mut one: impl FnMut(u64)) -> Duration {
    let mut pieces = Vec::new();
    let mut at = 0;
    while at < count {
        let to = count.min(at + piece);
        let began = Instant::now();
        (at..to).for_each(&mut one);
        pieces.push(began.elapsed().as_secs_f64() / (to - at) as f64);
        at = to;
    }
    pieces.sort_by(f64::total_cmp);
    Duration::from_secs_f64(pieces[pieces.len() / 2] * count as f64)
}

/// A master with one message and all pages of its segment in place.
fn ready(segment: u64) -> Scratch {
    let scratch = Scratch::filled(segment, 1, 1).expect("a store in TMPDIR");
    scratch.wait_for_pages();
    scratch
}

fn append(body: &[u8], count: u64) -> Duration {
    let scratch = ready(SEGMENT);
    let message = message(body);
    let elapsed = in_pieces(count, PIECE, |_| {
        scratch.store.append(&message).expect("room for it");
    });
    assert!(scratch.store.end_offset() >= count * body.len() as u64);
    elapsed
}

/// `producers` threads share `count` messages, each with a queue of its own.
fn append_threads(body: &[u8], count: u64, producers: u64) -> Duration {
    let scratch = ready(SEGMENT_OF_THREADS);
    let store = &scratch.store;
    let before = store.end_offset();
    let ready = Barrier::new(usize::try_from(producers).unwrap_or(0));
    let times: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = (0..producers)
            .map(|queue| {
                let message = Message {
                    queue_id: i32::try_from(queue).unwrap_or(0),
                    ..message(body)
                };
                let ready = &ready;
                // The first ones take what does not divide.
                let share = count / producers + u64::from(queue < count % producers);
                scope.spawn(move || {
                    ready.wait();
                    let began = Instant::now();
                    for _ in 0..share {
                        store.append(&message).expect("room for it");
                    }
                    (began, Instant::now())
                })
            })
            .collect();
        let join = |it: thread::ScopedJoinHandle<'_, _>| it.join().expect("no append fails");
        threads.into_iter().map(join).collect()
    });
    assert!(store.end_offset() - before >= count * body.len() as u64);
    let first = times.iter().map(|(began, _)| *began).min();
    let last = times.iter().map(|(_, ended)| *ended).max();
    last.zip(first)
        .map_or(Duration::ZERO, |(last, first)| last - first)
}

fn append_batches(body: &[u8], count: u64) -> Duration {
    let scratch = ready(SEGMENT);
    let batch = vec![message(body); usize::try_from(BATCH).unwrap_or(0)];
    let batches = count / BATCH;
    let elapsed = in_pieces(batches, (PIECE / BATCH).min(batches / 2), |_| {
        scratch.store.append_batch(&batch).expect("room for it");
    });
    elapsed.mul_f64(count as f64 / (batches * BATCH) as f64)
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
    let elapsed = in_pieces(count, PIECE, |_| {
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
        let more = BYTES_OF_THREADS / record_len as u64;
        let scale = count as f64 / more as f64;
        let mut group = criterion.benchmark_group(format!("append/{}KiB", len >> 10));
        group.throughput(Throughput::Bytes(count * record_len as u64));
        group
            .sample_size(10)
            .warm_up_time(Duration::from_millis(500))
            .measurement_time(Duration::from_secs(3));
        let body = &body;
        let mut subjects: Vec<Subject<'_>> = vec![
            (
                "crc_and_copy",
                Box::new(move || crc_and_copy(body, record_len, count)),
            ),
            ("append", Box::new(move || append(body, count))),
            (
                "append_batches_of_32",
                Box::new(move || append_batches(body, count)),
            ),
            (
                "append_1_thread",
                Box::new(move || append_threads(body, more, 1).mul_f64(scale)),
            ),
            (
                "append_4_threads",
                Box::new(move || append_threads(body, more, THREADS).mul_f64(scale)),
            ),
        ];
        for (name, once) in &mut subjects {
            group.bench_function(*name, |bencher| {
                bencher.iter_custom(|iterations| (0..iterations).map(|_| once()).sum());
            });
        }
        group.finish();
        if !std::env::args().any(|it| it == "--test") {
            report(len, count * record_len as u64, &mut subjects);
        }
    }
}

/// Rounds of all in turn: bytes per second, the shares of the raw limit, and four threads beside one.
fn report(body_len: usize, len: u64, subjects: &mut [Subject<'_>]) {
    let times = medians(ROUNDS, subjects);
    println!(
        "bodies of {} KiB, medians of {ROUNDS} rounds in turn:",
        body_len >> 10
    );
    let gib = (1u64 << 30) as f64;
    for ((name, _), time) in subjects.iter().zip(&times) {
        let rate = len as f64 / time.as_secs_f64() / gib;
        println!("  {name:<22} {rate:5.2} GiB/s");
    }
    let [raw, append, batches, one, four] = times[..] else {
        return;
    };
    let share = |of: Duration, time: Duration| of.as_secs_f64() / time.as_secs_f64();
    let ratios = [share(raw, append), share(one, four)];
    println!("  append / raw limit             {:.2}", ratios[0]);
    println!(
        "  batches of 32 / raw limit      {:.2}",
        share(raw, batches)
    );
    println!("  4 threads / 1 thread           {:.2}", ratios[1]);
    if body_len == 1 << 10 {
        for (what, (ratio, bar)) in ["of the raw limit", "of one thread, with four"]
            .into_iter()
            .zip(ratios.into_iter().zip(BARS))
        {
            print_bar(
                Length::Full,
                &format!("1 KiB, >= {bar} {what}"),
                ratio >= bar,
            );
        }
    }
}

criterion_group!(benches, bench);
criterion_main!(benches);
