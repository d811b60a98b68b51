//! Replication over loopback beside the wire alone.
//!
//! `catch_up`: a new slave takes a log of 64 MiB of 1 KiB messages, from `become_slave` until its
//! published end is the master's: handshake, frames, receive in place, CRCs, publish. Beside it
//! the same slices over the same transport into the same kind of mapping, unchecked and without a
//! protocol. `ack`: one message of 1 KiB at a time, acknowledged by the slave's memory, beside a
//! round trip of as many bytes over blocking sockets.
//!
//! Loopback always copies: figures are ratios of one run, not promises for a network card.

use std::time::{Duration, Instant};

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion, Throughput, criterion_group, criterion_main};
use epochlog_benches::stores::{Scratch, body, message};
use epochlog_benches::wire::{Echo, HEAD_LEN, ship_log};
use epochlog_engine::{EncodeOptions, encoded_len};
use epochlog_ha::{
    AckPolicy, AckRequest, HaConfig, HaService, Outcome, SyncStateSet, TransportConfig,
    TransportKind,
};

const LOG: u64 = 64 << 20;
const SEGMENT: u64 = 80 << 20;
const PATIENCE: Duration = Duration::from_secs(60);
const MASTER: u64 = 1;
const SLAVE: u64 = 2;

fn serve(
    id: u64,
    scratch: &Scratch,
    kinds: (TransportKind, TransportKind),
    batch: u32,
) -> HaService {
    let mut config = HaConfig::on_loopback(id);
    (config.transport, config.slave_transport) = kinds;
    config.transfer_batch_size = batch;
    HaService::start(scratch.store.clone(), config).expect("this host allows the transport")
}

fn follow(slave: &HaService, master: &HaService) {
    slave
        .become_slave(1, MASTER, master.listen_addr())
        .expect("a slave");
}

fn catch_up(log: &Scratch, master: &HaService, kinds: (TransportKind, TransportKind)) -> Duration {
    let scratch = Scratch::new(SEGMENT).expect("a store in TMPDIR");
    let slave = serve(SLAVE, &scratch, kinds, 32 << 10);
    let end = log.store.end_offset();
    let began = Instant::now();
    follow(&slave, master);
    let mut at = 0;
    while at < end {
        assert!(
            began.elapsed() < PATIENCE,
            "the slave stands at {at} of {end}"
        );
        at = scratch.store.wait_for_end(at, Duration::from_secs(1));
    }
    let elapsed = began.elapsed();
    slave.shutdown();
    elapsed
}

fn wire_alone(
    log: &Scratch,
    kind: TransportKind,
    config: &TransportConfig,
    batch: usize,
) -> Duration {
    let scratch = Scratch::new(SEGMENT).expect("a store in TMPDIR");
    let shipped = ship_log(kind, config, &log.store, &scratch.store, batch);
    shipped.expect("loopback works").elapsed
}

fn bench_catch_up(criterion: &mut Criterion) {
    use TransportKind::{Std, TokioUring, Uring};
    let copying = TransportConfig {
        zero_copy_min_bytes: usize::MAX,
        ..TransportConfig::default()
    };
    let zero_copy = TransportConfig {
        zero_copy_give_up_after: 0,
        ..TransportConfig::default()
    };
    for batch in [32 << 10, 256 << 10] {
        let log = Scratch::filled(SEGMENT, LOG, 1 << 10).expect("a store in TMPDIR");
        let mut group = criterion.benchmark_group(format!("catch_up/{}KiB", batch >> 10));
        group.throughput(Throughput::Bytes(log.store.end_offset()));
        group
            .sample_size(10)
            .warm_up_time(Duration::from_millis(500))
            .measurement_time(Duration::from_secs(3));
        let mut wire = |name: &str, kind, config: &TransportConfig| {
            run(&mut group, name, || wire_alone(&log, kind, config, batch));
        };
        wire("wire_send_zc", Uring, &zero_copy);
        wire("wire_send", Uring, &copying);
        wire("wire_std", Std, &copying);
        let kinds = [
            ("uring_to_tokio_uring", (Uring, TokioUring)),
            ("uring_to_uring", (Uring, Uring)),
            ("std_to_std", (Std, Std)),
        ];
        for (name, kinds) in kinds {
            let size = u32::try_from(batch).expect("a legal batch");
            let master = serve(MASTER, &log, kinds, size);
            let set = SyncStateSet::new([MASTER], 1);
            master.become_master(1, set).expect("the master of epoch 1");
            run(&mut group, name, || catch_up(&log, &master, kinds));
            master.shutdown();
        }
        group.finish();
    }
}

fn run(group: &mut BenchmarkGroup<'_, WallTime>, name: &str, once: impl Fn() -> Duration) {
    group.bench_function(name, |bencher| {
        bencher.iter_custom(|iterations| (0..iterations).map(|_| once()).sum());
    });
}

fn bench_ack(criterion: &mut Criterion) {
    let body = body(1 << 10);
    let record_len = encoded_len(&message(&body), EncodeOptions::default());
    let frame_len = HEAD_LEN + record_len.expect("a legal message");
    let mut group = criterion.benchmark_group("ack/1KiB");
    group
        .sample_size(20)
        .measurement_time(Duration::from_secs(3));
    group.bench_function("round_trip", |bencher| {
        let mut echo = Echo::new(frame_len, 12).expect("loopback sockets work");
        bencher.iter(|| echo.round_trip().expect("the peer answers"));
    });
    use TransportKind::{Std, TokioUring, Uring};
    let kinds = [
        ("uring_to_tokio_uring", (Uring, TokioUring)),
        ("uring_to_uring", (Uring, Uring)),
        ("std_to_std", (Std, Std)),
    ];
    for (name, kinds) in kinds {
        group.bench_function(name, |bencher| {
            let stores = [Scratch::new(SEGMENT), Scratch::new(SEGMENT)];
            let [log, copy] = stores.map(|store| store.expect("a store in TMPDIR"));
            let master = serve(MASTER, &log, kinds, 32 << 10);
            let slave = serve(SLAVE, &copy, kinds, 32 << 10);
            let set = SyncStateSet::new([MASTER, SLAVE], 1);
            master.become_master(1, set).expect("the master of epoch 1");
            follow(&slave, &master);
            let message = message(&body);
            let ack = || AckRequest::new(AckPolicy::AllInSync, PATIENCE);
            bencher.iter(|| match master.append_and_wait(&message, ack()) {
                Outcome::Acked(_) => (),
                other => panic!("{other:?}"),
            });
            slave.shutdown();
            master.shutdown();
        });
    }
    group.finish();
}

criterion_group!(benches, bench_catch_up, bench_ack);
criterion_main!(benches);
