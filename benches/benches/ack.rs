//! Writes of 1 KiB acknowledged by the whole SyncStateSet of two, in memory, beside the raw limit: a
//! round trip of as many bytes with the same hand-overs between threads, by the same means. The caller and
//! the master have one core, the slave the other.
//!
//! `ack/1KiB`: one write in flight. After the criterion group, rounds of both in turn, in one table: p50 and
//! p99, and how many writes a second go through with a thousand in flight.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use epochlog_benches::cores::on_core;
use epochlog_benches::handover::HandOver;
use epochlog_benches::ratio::percentile;
use epochlog_benches::raw::HEAD_LEN;
use epochlog_benches::stores::{Scratch, body, message};
use epochlog_engine::{EncodeOptions, Message, encoded_len};
use epochlog_ha::{
    AckPolicy, AckRequest, HaConfig, HaService, Outcome, SyncStateSet, TransportKind,
};

const SEGMENT: u64 = 192 << 20;
const PATIENCE: Duration = Duration::from_secs(60);
const REPORT_LEN: usize = 24;
const MASTER: u64 = 1;
const SLAVE: u64 = 2;
/// Writes of one round with one in flight.
const ROUND: usize = 1000;
const ROUNDS: usize = 10;
/// Writes of one round with many in flight.
const MANY: u64 = 10_000;
const IN_FLIGHT: u64 = 1000;

/// A master and its slave; both in the SyncStateSet.
struct Pair {
    master: HaService,
    slave: HaService,
    _stores: [Scratch; 2],
}

impl Pair {
    fn new(kind: TransportKind) -> Self {
        let stores = [Scratch::log_only(SEGMENT), Scratch::log_only(SEGMENT)];
        let stores = stores.map(|store| store.expect("a store in TMPDIR"));
        for store in &stores {
            store.touch().expect("room in TMPDIR");
        }
        let serve = |id, scratch: &Scratch| {
            let mut config = HaConfig::on_loopback(id);
            config.transport = kind;
            config.slave_transport = kind;
            HaService::start(scratch.store.clone(), config).expect("this host allows the transport")
        };
        let master = on_core(0, || serve(MASTER, &stores[0]));
        let slave = on_core(1, || serve(SLAVE, &stores[1]));
        let set = SyncStateSet::new([MASTER, SLAVE], 1);
        master.become_master(1, set).expect("the master of epoch 1");
        let followed = slave.become_slave(1, MASTER, master.listen_addr());
        followed.expect("a slave");
        Self {
            master,
            slave,
            _stores: stores,
        }
    }

    fn write(&self, message: &Message<'_>) {
        match self.master.append_and_wait(message, all_in_sync()) {
            Outcome::Acked(_) => (),
            other => panic!("{other:?}"),
        }
    }

    /// The time of `count` writes with [`IN_FLIGHT`] of them waiting.
    fn write_many(&self, message: &Message<'_>, count: u64) -> Duration {
        let acked = Arc::new(AtomicU64::new(0));
        let caller = std::thread::current();
        let began = Instant::now();
        for sent in 0..count {
            while sent >= acked.load(Ordering::Acquire) + IN_FLIGHT {
                std::thread::park_timeout(Duration::from_millis(1));
            }
            let (done, caller) = (Arc::clone(&acked), caller.clone());
            self.master.append(message, all_in_sync(), move |outcome| {
                assert!(matches!(outcome, Outcome::Acked(_)), "{outcome:?}");
                let count = done.fetch_add(1, Ordering::AcqRel) + 1;
                if count.is_multiple_of(IN_FLIGHT / 4) {
                    caller.unpark();
                }
            });
        }
        while acked.load(Ordering::Acquire) < count {
            std::thread::park_timeout(Duration::from_millis(1));
        }
        began.elapsed()
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        self.slave.shutdown();
        self.master.shutdown();
    }
}

fn all_in_sync() -> AckRequest {
    AckRequest::new(AckPolicy::AllInSync, PATIENCE)
}

fn raw_limit(message: &Message<'_>) -> HandOver {
    let record_len = encoded_len(message, EncodeOptions::default()).expect("a legal message");
    HandOver::new(HEAD_LEN + record_len, REPORT_LEN).expect("this host allows a ring")
}

fn bench(criterion: &mut Criterion) {
    let body = body(1 << 10);
    let message = message(&body);
    let mut group = criterion.benchmark_group("ack/1KiB");
    group
        .sample_size(20)
        .measurement_time(Duration::from_secs(2));
    group.bench_function("raw_hand_overs", |bencher| {
        let raw = raw_limit(&message);
        bencher.iter(|| raw.round_trip().expect("the threads are there"));
    });
    for (name, kind) in [
        ("uring", TransportKind::Uring),
        ("tokio_uring", TransportKind::TokioUring),
        ("std", TransportKind::Std),
    ] {
        group.bench_function(name, |bencher| {
            let pair = Pair::new(kind);
            bencher.iter(|| pair.write(&message));
        });
    }
    group.finish();
    if !std::env::args().any(|argument| argument == "--test") {
        report(&message);
    }
}

/// Times of single round trips, sorted.
fn times(count: usize, into: &mut Vec<Duration>, mut once: impl FnMut()) {
    for _ in 0..count {
        let began = Instant::now();
        once();
        into.push(began.elapsed());
    }
}

fn report(message: &Message<'_>) {
    let raw = raw_limit(message);
    let pairs = [TransportKind::Uring, TransportKind::Std].map(Pair::new);
    let mut all = [Vec::new(), Vec::new(), Vec::new()];
    let mut many = [Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        let [of_raw, of_pairs @ ..] = &mut all;
        times(ROUND, of_raw, || {
            raw.round_trip().expect("the threads are there")
        });
        for (pair, times_of) in pairs.iter().zip(of_pairs) {
            times(ROUND, times_of, || pair.write(message));
        }
        for (pair, rates) in pairs.iter().zip(&mut many) {
            let elapsed = pair.write_many(message, MANY);
            rates.push(MANY as f64 / elapsed.as_secs_f64());
        }
    }
    all.iter_mut().for_each(|times| times.sort());
    many.iter_mut()
        .for_each(|rates| rates.sort_by(f64::total_cmp));
    let [raw_p50, raw_p99] = [0.5, 0.99].map(|share| percentile(&all[0], share));
    println!(
        "{} writes of each in turns of {ROUND}, one in flight, and with",
        all[0].len()
    );
    println!("{IN_FLIGHT} in flight (bars: p50 1.3 and p99 1.5 of raw, 20 times the writes):");
    println!(
        "{:<14} {:>10} {:>7} {:>10} {:>7} {:>15} {:>20} {:>6}",
        "", "p50", "of raw", "p99", "of raw", "one by one, /s", "1,000 in flight, /s", "times"
    );
    for ((name, times), rates) in
        ["raw hand-overs", "ring", "sockets"]
            .iter()
            .zip(&all)
            .zip([&[][..], &many[0], &many[1]])
    {
        let [p50, p99] = [0.5, 0.99].map(|share| percentile(times, share));
        let [to_p50, to_p99] = [(p50, raw_p50), (p99, raw_p99)]
            .map(|(time, raw)| time.as_secs_f64() / raw.as_secs_f64());
        let one = times.len() as f64 / times.iter().sum::<Duration>().as_secs_f64();
        print!("{name:<14} {p50:>10.1?} {to_p50:>7.2} {p99:>10.1?} {to_p99:>7.2} {one:>15.0}");
        match rates.get(rates.len() / 2) {
            Some(rate) => println!(" {rate:>20.0} {:>6.1}", rate / one),
            None => println!(),
        }
    }
}

fn on_the_masters_core(criterion: &mut Criterion) {
    on_core(0, || bench(criterion));
}

criterion_group!(benches, on_the_masters_core);
criterion_main!(benches);
