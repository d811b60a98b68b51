//! Waiting for the disk, one thread and 64: each appends a message and waits until it is durable.
//!
//! Data set: messages of one topic with 1 KiB bodies. The raw limit: 1 KiB written to a file whose blocks
//! are allocated, and fdatasync, over and over, on the same disk. The three take turns, and the median of
//! the turns counts. `TMPDIR` must be on a disk: a tmpfs has no syncs to share.

use std::fs::File;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use epochlog_benches::run::{asked, disk_folder, median, print_bar};
use epochlog_benches::stores::{body, message};
use epochlog_engine::{Message, Store, StoreConfig};

const WAITERS: usize = 64;
const SEGMENT: u64 = 64 << 20;
/// The bar: so many times the rate of one thread.
const BAR: f64 = 10.0;
const PATIENCE: Duration = Duration::from_secs(60);

/// Durable messages per second of `threads` that append and wait, for `time`.
fn durable_appends(store: &Arc<Store>, threads: usize, time: Duration) -> f64 {
    let body = body(1 << 10);
    let count = AtomicU64::new(0);
    let began = Instant::now();
    thread::scope(|scope| {
        for queue in 0..threads {
            let message = Message {
                queue_id: i32::try_from(queue).unwrap_or(0),
                ..message(&body)
            };
            let count = &count;
            scope.spawn(move || {
                while began.elapsed() < time {
                    let end = store.append(&message).expect("room for it").end;
                    let flushed = store.wait_flushed(end, PATIENCE).expect("the disk syncs");
                    assert!(flushed >= end, "what was waited for is durable");
                    count.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    count.into_inner() as f64 / began.elapsed().as_secs_f64()
}

/// Syncs per second of a file that gets 1 KiB before each.
fn raw_syncs(file: &mut File, time: Duration) -> f64 {
    let body = body(1 << 10);
    let mut count = 0;
    let began = Instant::now();
    while began.elapsed() < time {
        file.write_all(&body).expect("room for it");
        file.sync_data().expect("the disk syncs");
        count += 1;
    }
    f64::from(count) / began.elapsed().as_secs_f64()
}

fn main() {
    let Some(length) = asked("group_commit") else {
        return;
    };
    let (dir, kind) = disk_folder(length);
    let mut config = StoreConfig::new(dir.path().join("store"));
    config.segment_size = SEGMENT;
    let store = Arc::new(Store::open(config).expect("an empty folder opens"));
    store.promote(1).expect("epoch 1 is new");
    let raw_path = dir.path().join("raw");
    // Written once, so that a sync has no blocks to note down.
    std::fs::write(&raw_path, vec![1; 64 << 20]).expect("room for 64 MiB");
    let mut raw_file = File::options()
        .write(true)
        .open(&raw_path)
        .expect("it was made");
    raw_file.sync_all().expect("the disk syncs");
    // The first messages make the segments and wake the threads.
    durable_appends(&store, WAITERS, Duration::from_millis(length.pick(500, 20)));

    let turns = length.pick(7, 1);
    let time = Duration::from_millis(length.pick(700, 50));
    let (mut raw, mut one, mut many) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..turns {
        raw.push(raw_syncs(&mut raw_file, time));
        one.push(durable_appends(&store, 1, time));
        many.push(durable_appends(&store, WAITERS, time));
    }
    let (raw, one, many) = (median(raw), median(one), median(many));
    println!("group_commit: 1 KiB bodies, {kind}, median of {turns} turns of {time:?}");
    println!("raw: write 1 KiB + fdatasync {raw:>10.0} /s");
    println!(
        "1 thread, append + wait      {one:>10.0} /s  {:.2} of raw",
        one / raw
    );
    println!(
        "{WAITERS} threads, append + wait    {many:>10.0} /s  {:.2} of raw",
        many / raw
    );
    let ratio = many / one;
    println!("{WAITERS} threads / 1 thread        {ratio:>10.1}");
    print_bar(length, "64 waiters >= 10 x one waiter", ratio >= BAR);
    Arc::into_inner(store)
        .expect("nobody else has it")
        .close()
        .expect("the store closes");
}
