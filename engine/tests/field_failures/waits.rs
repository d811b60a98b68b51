//! Whoever waits is told once, and for his own bytes.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use epochlog_engine::{Error, Store};

use super::common::{Random, body_for, config, message, seeds};

#[test]
fn c10_every_waiter_ends_once_with_its_bytes_or_at_its_time() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = config(dir.path());
    config.flush_interval_ms = 1;
    let store = Store::open(config).unwrap();
    store.promote(1).unwrap();
    let seed = seeds(1)[0];
    println!("EPOCHLOG_SEED={seed}");
    let ended = AtomicUsize::new(0);
    thread::scope(|scope| {
        for n in 0..16 {
            let (store, ended) = (&store, &ended);
            scope.spawn(move || {
                let mut random = Random::new(seed.wrapping_add(n));
                for _ in 0..25 {
                    // Many of them lie in a segment of their own.
                    let len = 200 + random.below(3000);
                    let appended = store.append(&message(&body_for(len))).unwrap();
                    let timeout = match random.below(3) {
                        0 => Duration::ZERO,
                        1 => Duration::from_micros(300),
                        _ => Duration::from_secs(60),
                    };
                    let begun = Instant::now();
                    match store.wait_flushed(appended.end, timeout) {
                        Ok(flushed) => assert!(flushed >= appended.end),
                        Err(Error::FlushTimeout { offset, .. }) => {
                            assert_eq!(offset, appended.end);
                            assert!(begun.elapsed() >= timeout);
                        }
                        Err(error) => panic!("{error}"),
                    }
                    ended.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
    });
    assert_eq!(ended.load(Ordering::SeqCst), 16 * 25);
    assert_eq!(store.flush().unwrap(), store.end_offset());
}
