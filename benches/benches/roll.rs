//! How long the append takes that rolls to the next segment.
//!
//! Data set: messages of one topic with 1 KiB bodies into segments of 16 MiB, the store's defaults
//! otherwise, except that no append is held back for the disk and that no consume queues are kept. First at
//! full rate over new segments: that rate is the one at which segments can be made, faulted in, filled and
//! synced; without the last, memory would take for some seconds more than the disk does. Then at half of it,
//! in bursts of what a millisecond is due. Beside it, as the raw limit, the same pacing with two
//! looks at the clock in place of the append: what the machine takes from a thread that does nothing.
//!
//! A second thread removes old segments, as a broker's retention does, so that the log takes 512 MiB at most
//! however long the run is.
//!
//! `EPOCHLOG_ROLLS` sets the number of rolls of the paced part, 128 if it is not set; at full rate there are
//! no more than 128. `EPOCHLOG_SEGMENT_MIB` sets another length of the segments.

use std::env;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use epochlog_benches::run::{Length, asked, folder, print_bar};
use epochlog_benches::stores::{body, message};
use epochlog_engine::{
    EncodeOptions, RetentionPolicy, RetentionTick, Store, StoreConfig, encoded_len,
};
use hdrhistogram::Histogram;

const SEGMENT_MIB: u64 = 16;
const ROLLS: u64 = 128;
/// The log is kept at this length.
const LOG: u64 = 512 << 20;
const RETENTION_INTERVAL: Duration = Duration::from_millis(100);
const BURST: Duration = Duration::from_millis(1);
/// The bar: an append that rolls takes no longer at p99.9.
const BAR: Duration = Duration::from_millis(1);

/// Times of appends, in ns.
struct Times {
    at_rolls: Histogram<u64>,
    others: Histogram<u64>,
    /// Bytes per second.
    rate: f64,
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("legal bounds")
}

/// Appends until the log has rolled `rolls` times, at `rate` bytes per second if one is given.
fn append(store: &Store, size: u64, rolls: u64, rate: Option<f64>) -> Times {
    let body = body(1 << 10);
    let message = message(&body);
    let mut times = Times {
        at_rolls: histogram(),
        others: histogram(),
        rate: 0.0,
    };
    let first = store.append(&message).expect("room for it").end;
    let mut segment = first / size;
    let last_segment = segment + rolls;
    let mut end = first;
    let began = Instant::now();
    while segment < last_segment {
        if let Some(rate) = rate {
            let due = began.elapsed().as_secs_f64() * rate;
            if (end - first) as f64 > due {
                thread::sleep(BURST);
                continue;
            }
        }
        let before = Instant::now();
        let appended = store.append(&message).expect("room for it");
        let took = nanoseconds(before.elapsed());
        end = appended.end;
        let rolled = appended.offset / size > segment;
        segment = appended.offset / size;
        let into = if rolled {
            &mut times.at_rolls
        } else {
            &mut times.others
        };
        into.saturating_record(took);
    }
    times.rate = (end - first) as f64 / began.elapsed().as_secs_f64();
    times
}

/// The pacing of [`append`] with nothing done between two looks at the clock.
fn clock_only(bytes: u64, rate: f64, record_len: u64) -> Histogram<u64> {
    let mut times = histogram();
    let mut end = 0;
    let began = Instant::now();
    while end < bytes {
        if end as f64 > began.elapsed().as_secs_f64() * rate {
            thread::sleep(BURST);
            continue;
        }
        let before = Instant::now();
        times.saturating_record(nanoseconds(before.elapsed()));
        end += record_len;
    }
    times
}

fn print(what: &str, times: &Histogram<u64>) {
    let micros = |nanos: u64| nanos as f64 / 1e3;
    println!(
        "{what:<28} n {:>8}  p50 {:>9.2} us  p99 {:>9.2} us  p99.9 {:>9.2} us  max {:>9.2} us",
        times.len(),
        micros(times.value_at_quantile(0.5)),
        micros(times.value_at_quantile(0.99)),
        micros(times.value_at_quantile(0.999)),
        micros(times.max()),
    );
}

/// The number in an environment variable.
fn number(name: &str, default: u64) -> u64 {
    let set = env::var(name).ok();
    let asked = set.map(|it| it.parse().expect("a number above 0"));
    asked.unwrap_or(default)
}

/// Ends retention, also when the run fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Removes what is beyond [`LOG`] until told to stop.
fn retain(store: &Store, stopping: &AtomicBool) {
    let policy = RetentionPolicy {
        max_log_bytes: Some(LOG),
        ..RetentionPolicy::default()
    };
    while !stopping.load(Ordering::Relaxed) {
        store.set_confirm(store.flushed_offset());
        let tick = RetentionTick {
            now_ms: 0,
            due: false,
            disk: store.disk_use().expect("the disk says how full it is"),
            slaves_need: None,
        };
        store
            .retain(&policy, &tick)
            .expect("old segments can be removed");
        thread::sleep(RETENTION_INTERVAL);
    }
}

fn main() {
    let Some(length) = asked("roll") else {
        return;
    };
    let rolls = length.pick(number("EPOCHLOG_ROLLS", ROLLS), 3);
    let mib = number("EPOCHLOG_SEGMENT_MIB", SEGMENT_MIB);
    let (dir, kind) = folder();
    let mut config = StoreConfig::new(dir.path());
    config.segment_size = mib << 20;
    config.max_dirty_bytes = u64::MAX;
    config.consume_queues = false;
    let store = Store::open(config).expect("an empty folder opens");
    store.promote(1).expect("epoch 1 is new");

    println!("roll: 1 KiB bodies, {mib} MiB segments, {rolls} rolls, {kind}");
    let stopping = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| retain(&store, &stopping));
        let _stop = Stop(&stopping);
        measure(&store, mib << 20, rolls, length);
    });
    store.close().expect("the store closes");
}

fn measure(store: &Store, size: u64, rolls: u64, length: Length) {
    let began = Instant::now();
    let from = store.end_offset();
    let full = append(store, size, rolls.min(ROLLS), None);
    store.flush().expect("the disk takes it");
    let rate = (store.end_offset() - from) as f64 / began.elapsed().as_secs_f64();
    println!(
        "at full rate: {:.0} MB/s, {:.0} MB/s until all is on the disk",
        full.rate / 1e6,
        rate / 1e6
    );
    print("  append that rolls (stall)", &full.at_rolls);
    print("  any other append", &full.others);

    let rate = rate / 2.0;
    let half = append(store, size, rolls, Some(rate));
    println!("paced at half of it: {:.0} MB/s", half.rate / 1e6);
    print("  append that rolls", &half.at_rolls);
    print("  any other append", &half.others);
    let body = body(1 << 10);
    let record_len = encoded_len(&message(&body), EncodeOptions::default()).expect("legal");
    let bytes = rolls.min(ROLLS) * size;
    print(
        "  two looks at the clock",
        &clock_only(bytes, rate, record_len as u64),
    );
    let worst = half.at_rolls.value_at_quantile(0.999);
    let met = worst < nanoseconds(BAR);
    print_bar(length, "an append that rolls < 1 ms at p99.9", met);
    assert_eq!(half.at_rolls.len(), rolls, "each roll was seen");
}
