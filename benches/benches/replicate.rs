//! Replication over loopback, from one mapping into the other, beside the raw limit.
//!
//! `replicate/N KiB`: a slave that has the first message of a log of 1 KiB messages takes the rest in
//! frames of N KiB; the time from its first growth until its published end is the master's, scaled
//! to the whole log: frames, receive in place, CRCs, publish, reports. Beside it the same slices
//! with heads of the same length over two raw rings, unchecked, without frames or reports. Both
//! destinations are segments made ready ahead. The sender has one core, all receivers the other. Stores without consume queues: the log alone.
//!
//! After the criterion group, rounds of all of them in turn, with the ratio to the better raw limit.
//!
//! Loopback always copies: figures are ratios of one run, not promises for a network card.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion, Throughput, criterion_group, criterion_main};
use epochlog_benches::cores::on_core;
use epochlog_benches::ratio::{Subject, medians};
use epochlog_benches::raw::{self, Mode};
use epochlog_benches::stores::Scratch;
use epochlog_ha::{HaConfig, HaService, SyncStateSet, TransportKind};

/// Below the 64 MiB at which a store begins to sync in the background.
const LOG: u64 = 62 << 20;
const SEGMENT: u64 = 64 << 20;
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_micros(100);
const MASTER: u64 = 1;
const ROUNDS: usize = 25;

/// Whether the benches are only tried.
fn is_trial() -> bool {
    std::env::args().any(|argument| argument == "--test")
}

fn log_len() -> u64 {
    if is_trial() { 8 << 20 } else { LOG }
}

fn serve(id: u64, scratch: &Scratch, kind: TransportKind, batch: usize) -> HaService {
    let mut config = HaConfig::on_loopback(id);
    config.transport = kind;
    config.slave_transport = kind;
    config.transfer_batch_size = u32::try_from(batch).expect("a legal batch");
    config.extended_batch_size = config.transfer_batch_size;
    HaService::start(scratch.store.clone(), config).expect("this host allows the transport")
}

/// The time in which `count` slaves take the log, from the first growth of any to the last end of
/// all.
fn replicate(log: &Scratch, kind: TransportKind, batch: usize, count: u64) -> Duration {
    let master = on_core(0, || serve(MASTER, log, kind, batch));
    let set = SyncStateSet::new([MASTER], 1);
    master.become_master(1, set).expect("the master of epoch 1");
    let stores: Vec<_> = (0..count)
        .map(|_| Scratch::log_only(SEGMENT).expect("a store in TMPDIR"))
        .collect();
    for store in &stores {
        store.begin_as(&log.store).expect("a first message");
    }
    let start = stores[0].store.end_offset();
    let slaves: Vec<_> = (MASTER + 1..)
        .zip(&stores)
        .map(|(id, store)| on_core(1, || serve(id, store, kind, batch)))
        .collect();
    for slave in &slaves {
        let followed = slave.become_slave(1, MASTER, master.listen_addr());
        followed.expect("a slave");
    }
    let end = log.store.end_offset();
    let asked = Instant::now();
    let mut began = None;
    loop {
        let ends = stores.iter().map(|it| it.store.end_offset());
        let (least, sum) = ends.fold((end, 0), |(least, sum), it| (least.min(it), sum + it));
        if began.is_none() && sum > count * start {
            began = Some((Instant::now(), sum));
        }
        if least == end {
            break;
        }
        assert!(asked.elapsed() < PATIENCE, "{least} of {end}");
        std::thread::sleep(LOOK);
    }
    let (began, seen) = began.unwrap_or((asked, count * start));
    let share = (count * end) as f64 / (count * end - seen).max(1) as f64;
    let elapsed = began.elapsed().mul_f64(share);
    drop(slaves);
    master.shutdown();
    elapsed
}

fn raw_limit(log: &Scratch, batch: usize, mode: Mode) -> Duration {
    let scratch = Scratch::log_only(SEGMENT).expect("a store in TMPDIR");
    scratch.begin_as(&log.store).expect("a first message");
    let from = log.store.slice(0, usize::MAX).expect("the whole log");
    let mut receiver = scratch.store.receive().expect("a slave");
    let mut into = receiver.window(usize::MAX).expect("an empty segment");
    let from = &from[..from.len() - usize::try_from(scratch.store.end_offset()).unwrap_or(0)];
    raw::ship(from, into.as_mut_slice(), batch, mode).expect("this host allows a ring")
}

fn run(group: &mut BenchmarkGroup<'_, WallTime>, (name, once): &mut Subject<'_>) {
    let once = RefCell::new(once);
    group.bench_function(*name, |bencher| {
        bencher.iter_custom(|iterations| (0..iterations).map(|_| once.borrow_mut()()).sum());
    });
}

fn bench(criterion: &mut Criterion) {
    let log = Scratch::log_only(SEGMENT).expect("a store in TMPDIR");
    log.fill(log_len(), 1 << 10).expect("room in TMPDIR");
    let log = &log;
    let mut rows = Vec::new();
    for batch in [32 << 10, 256 << 10, 1 << 20] {
        let mut group = criterion.benchmark_group(format!("replicate/{}KiB", batch >> 10));
        group.throughput(Throughput::Bytes(log.store.end_offset()));
        group
            .sample_size(10)
            .warm_up_time(Duration::from_millis(100))
            .measurement_time(Duration::from_secs(3));
        use TransportKind::{Std, Uring};
        let mut subjects: Vec<Subject<'_>> = vec![
            (
                "raw_send",
                Box::new(|| raw_limit(log, batch, Mode::Copying)),
            ),
            (
                "raw_send_zc",
                Box::new(|| raw_limit(log, batch, Mode::ZeroCopy)),
            ),
            ("uring", Box::new(|| replicate(log, Uring, batch, 1))),
            ("std", Box::new(|| replicate(log, Std, batch, 1))),
            (
                "uring_two_slaves",
                Box::new(|| replicate(log, Uring, batch, 2) / 2),
            ),
        ];
        for subject in &mut subjects {
            run(&mut group, subject);
        }
        group.finish();
        if !is_trial() {
            rows.push((batch, medians(ROUNDS, &mut subjects)));
        }
    }
    if !is_trial() {
        report(log.store.end_offset(), &rows);
    }
}

/// Rounds of all in turn: GB/s, and the share of the better raw limit.
fn report(len: u64, rows: &[(usize, Vec<Duration>)]) {
    println!("medians of {ROUNDS} rounds in turn, GB/s and the share of the better raw limit");
    println!("(bars: ring 0.70 at 32 KiB, 0.85 at 1 MiB; two slaves 0.85 of one):");
    println!(
        "{:>9} {:>9} {:>11} {:>13} {:>13} {:>16} {:>11}",
        "frames of", "raw SEND", "raw SEND_ZC", "ring", "sockets", "two slaves, sum", "two to one"
    );
    let rate = |time: &Duration| len as f64 / time.as_secs_f64() / 1e9;
    for (batch, times) in rows {
        let [send, send_zc, ring, sockets, two] = &times[..] else {
            panic!("five subjects")
        };
        let limit = rate(send).max(rate(send_zc));
        let shared = |time| format!("{:.2}, {:.2}", rate(time), rate(time) / limit);
        println!(
            "{:>5} KiB {:>9.2} {:>11.2} {:>13} {:>13} {:>16} {:>11.2}",
            batch >> 10,
            rate(send),
            rate(send_zc),
            shared(ring),
            shared(sockets),
            shared(two),
            rate(two) / rate(ring)
        );
    }
}

criterion_group!(benches, bench);
criterion_main!(benches);
