//! Frames over loopback TCP, one connection: each transport beside plain blocking sockets.
//!
//! Data set: heads of 40 bytes and bodies of one size, sent from one heap buffer and received into
//! another, over and over; nothing is checked or stored. Loopback always copies, so the zero-copy
//! figures show that the path works and what it costs, not what it saves on a network card; the
//! share of copied quanta is printed.

use std::sync::Arc;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use epochlog_benches::raw::HEAD_LEN;
use epochlog_benches::wire::{blocking_frames, ship_frames};
use epochlog_ha::{Body, TransportConfig, TransportKind, TransportStats};

const BODIES: [usize; 4] = [1 << 10, 32 << 10, 64 << 10, 256 << 10];
/// Bytes of one iteration, so that setting up a connection does not count.
const BYTES: u64 = 16 << 20;

/// A body that many frames share.
#[derive(Clone)]
struct Shared(Arc<Vec<u8>>);

impl Body for Shared {
    fn bytes(&self) -> &[u8] {
        &self.0
    }
}

fn bench(criterion: &mut Criterion) {
    let copying = TransportConfig {
        zero_copy_min_bytes: usize::MAX,
        ..TransportConfig::default()
    };
    let zero_copy = TransportConfig {
        zero_copy_give_up_after: 0,
        ..TransportConfig::default()
    };
    let kinds = [
        ("uring", TransportKind::Uring, TransportConfig::default()),
        ("uring_zero_copy", TransportKind::Uring, zero_copy),
        ("uring_copying", TransportKind::Uring, copying.clone()),
        ("tokio_uring", TransportKind::TokioUring, copying.clone()),
        ("std", TransportKind::Std, copying),
    ];
    for len in BODIES {
        let body = Shared(Arc::new(vec![7; len]));
        let mut group = criterion.benchmark_group(format!("transport/{}KiB", len >> 10));
        let frames = BYTES.div_ceil((HEAD_LEN + len) as u64);
        group.throughput(Throughput::Bytes(frames * (HEAD_LEN + len) as u64));
        group
            .sample_size(10)
            .warm_up_time(Duration::from_millis(300))
            .measurement_time(Duration::from_secs(2));
        group.bench_function("blocking_sockets", |bencher| {
            bencher.iter_custom(|count| {
                blocking_frames(len, count * frames).expect("loopback sockets work")
            });
        });
        for (name, kind, config) in &kinds {
            let mut last = TransportStats::default();
            group.bench_function(*name, |bencher| {
                bencher.iter_custom(|count| {
                    let shipped = ship_frames(*kind, config, &body, count * frames)
                        .expect("this host allows the transport");
                    last = shipped.stats;
                    shipped.elapsed
                });
            });
            let quanta = last.zero_copy_quanta + last.copied_quanta;
            if quanta > 0 {
                println!(
                    "{name}, {len} bytes: {quanta} quanta zero-copy, {} of them copied by the \
                     kernel, {} sent plain",
                    last.copied_quanta, last.fallback_quanta
                );
            }
        }
        group.finish();
    }
}

criterion_group!(benches, bench);
criterion_main!(benches);
