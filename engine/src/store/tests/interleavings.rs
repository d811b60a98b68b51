//! Appends, syncs, cuts and readers of one store, in orders that shuttle's scheduler makes up.
//!
//! The store is the real one, files and mappings included; only its locks, atomics and threads are shuttle's
//! (`src/sync.rs`). A thread that waits for ever is a failure too: no wait times out here.
//!
//! EPOCHLOG_INTERLEAVINGS sets how many orders each story is run in. A failure prints its schedule, and
//! EPOCHLOG_SCHEDULE replays that one.

use std::sync::Arc;
use std::sync::Mutex as PlainMutex;
use std::time::Duration;

use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::thread;

use super::{append, config, epochs, image, in_memory, message};
use crate::error::Error;
use crate::record::{CheckOptions, Parsed, parse};
use crate::segment::Segment;
use crate::store::{Store, StoreConfig};

const LONG: Duration = Duration::from_secs(3600);

/// Orders that change threads at random, and orders that keep to priorities but for a few changes.
fn explore(runs: usize, story: impl Fn() + Send + Sync + 'static) {
    let mut settings = shuttle::Config::new();
    settings.stack_size = 1 << 20;
    settings.failure_persistence = shuttle::FailurePersistence::Print;
    let story = Arc::new(story);
    let again = Arc::clone(&story);
    if let Ok(schedule) = std::env::var("EPOCHLOG_SCHEDULE") {
        shuttle::replay(move || again(), &schedule);
        return;
    }
    let runs = std::env::var("EPOCHLOG_INTERLEAVINGS").map_or(runs, |it| it.parse().unwrap());
    shuttle::Runner::new(RandomScheduler::new(runs), settings.clone()).run(move || again());
    shuttle::Runner::new(PctScheduler::new(3, runs), settings).run(move || story());
}

fn quiet(dir: &std::path::Path) -> StoreConfig {
    let mut config = config(dir);
    config.consume_queues = false;
    config.save_truncated_bytes = None;
    config
}

/// What a disk holds that keeps nothing but what a sync found when it began.
#[derive(Default)]
struct Disk {
    bytes: PlainMutex<Vec<u8>>,
}

impl Disk {
    fn begin_sync(&self, segment: &Segment) {
        let file = std::fs::read(segment.path()).unwrap();
        let base = usize::try_from(segment.base()).unwrap();
        let mut bytes = self.bytes.lock().unwrap();
        let len = bytes.len().max(base + file.len());
        bytes.resize(len, 0);
        bytes[base..base + file.len()].copy_from_slice(&file);
    }

    /// Everything below the flushed mark is there.
    fn holds(&self, store: &Store) {
        let flushed = usize::try_from(store.flushed_offset()).unwrap();
        let image = image(store);
        assert!(flushed <= image.len(), "flushed past the end");
        let bytes = self.bytes.lock().unwrap();
        assert!(bytes.len() >= flushed, "flushed, and never synced");
        assert!(
            bytes[..flushed] == image[..flushed],
            "flushed, and not what was synced"
        );
    }
}

#[test]
fn interleavings_e10_a_sync_and_a_cut_in_any_order_leave_a_mark_that_is_true() {
    explore(150, || {
        let dir = in_memory();
        let disk = Arc::new(Disk::default());
        let mut config = quiet(dir.path());
        let synced = Arc::clone(&disk);
        config.sync_segment = Some(Arc::new(move |segment: &Segment| {
            synced.begin_sync(segment);
            thread::yield_now();
            Ok(())
        }));
        let store = Arc::new(Store::open(config).unwrap());
        store.promote(1).unwrap();
        append(&store, 5, 200, b'1');
        let flusher = thread::spawn({
            let store = Arc::clone(&store);
            move || {
                store.flush().unwrap();
                store.flush().unwrap();
            }
        });
        let waiter = thread::spawn({
            let store = Arc::clone(&store);
            move || match store.wait_flushed(1000, LONG) {
                Ok(flushed) => assert!(flushed >= 1000),
                Err(Error::OutOfRange { end, .. }) => assert!(end < 1000),
                Err(error) => panic!("{error}"),
            }
        });
        store.fence();
        store.truncate(600, epochs(&[(1, 0)]), "test").unwrap();
        // A cut makes what it leaves durable by itself.
        *disk.bytes.lock().unwrap() = image(&store);
        store.promote(2).unwrap();
        append(&store, 4, 200, b'2');
        flusher.join().unwrap();
        disk.holds(&store);
        store.flush().unwrap();
        waiter.join().unwrap();
        disk.holds(&store);
        assert_eq!(store.flushed_offset(), 1400);
        store.abandon();
    });
}

#[test]
fn interleavings_readers_see_whole_records_up_to_the_end_while_two_append_and_roll() {
    explore(60, || {
        let dir = in_memory();
        let mut config = quiet(dir.path());
        config.segment_size = 512;
        let store = Arc::new(Store::open(config).unwrap());
        store.promote(1).unwrap();
        let appenders = [b'a', b'b'].map(|fill| {
            let store = Arc::clone(&store);
            thread::spawn(move || {
                for _ in 0..2 {
                    let appended = store.append(&message(&[fill; 60])).unwrap();
                    let view = store.record(appended.offset).unwrap();
                    assert_eq!(view.record().body(), [fill; 60]);
                }
            })
        });
        let reader = thread::spawn({
            let store = Arc::clone(&store);
            move || {
                let end = store.wait_for_end(0, LONG);
                let mut at = 0;
                while at < end {
                    let slice = store.slice(at, usize::MAX).unwrap();
                    assert!(!slice.is_empty(), "below the end there is something");
                    let mut rest = &slice[..];
                    while !rest.is_empty() {
                        let room = 512 - at % 512;
                        let len = match parse(rest, at, room, CheckOptions::CHECKSUMS).unwrap() {
                            Parsed::Message(record) => record.total_size(),
                            Parsed::Filler { len } => len as usize,
                        };
                        rest = &rest[len..];
                        at += len as u64;
                    }
                }
                assert!(store.end_offset() >= end, "the end went back");
            }
        });
        for appender in appenders {
            appender.join().unwrap();
        }
        reader.join().unwrap();
        let mut offsets: Vec<_> = store
            .records(0..store.end_offset())
            .map(|record| record.unwrap().record().queue_offset())
            .collect();
        offsets.sort_unstable();
        assert_eq!(offsets, [0, 1, 2, 3]);
        store.abandon();
    });
}

#[test]
fn interleavings_segments_made_ahead_are_one_file_each_whoever_comes_first_and_whatever_is_cut() {
    explore(40, || {
        let dir = in_memory();
        let mut config = quiet(dir.path());
        config.segment_size = 512;
        config.prefault_ahead_bytes = 1024;
        config.ready_ahead_bytes = 1024;
        let store = Arc::new(Store::open(config).unwrap());
        store.promote(1).unwrap();
        let appender = thread::spawn({
            let store = Arc::clone(&store);
            move || {
                // One record in each segment. The cut may come before any of them.
                for fill in [b'a', b'b', b'c'] {
                    match store.append(&message(&[fill; 300])) {
                        Ok(_) | Err(Error::NotWritable { .. }) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            }
        });
        append(&store, 1, 400, b'1');
        store.fence();
        let end = store.end_offset();
        let to = end.min(512);
        let list = epochs(&[(1, 0)]);
        match store.truncate(to, list, "test") {
            Ok(_) => {}
            // The log has one segment, and its record ends before that does.
            Err(Error::NotARecordBoundary { .. }) => {}
            Err(error) => panic!("{error}"),
        }
        appender.join().unwrap();
        store.promote(2).unwrap();
        append(&store, 3, 400, b'2');
        let bytes = image(&store);
        store.close().unwrap();
        let bases: Vec<_> = store.segments().iter().map(|it| it.base).collect();
        let meant: Vec<_> = (0..bases.len() as u64).map(|it| it * 512).collect();
        assert_eq!(bases, meant);
        let files = std::fs::read_dir(dir.path().join("commitlog")).unwrap();
        assert!(files.count() <= bases.len() + 2, "left behind the log");
        drop(store);
        let found = crate::inspect::scan(dir.path()).unwrap();
        assert_eq!(found.problems, []);
        assert_eq!(found.end_offset, bytes.len() as u64);
    });
}

#[test]
fn interleavings_a_slice_keeps_its_bytes_whenever_the_log_is_cut_under_it() {
    explore(100, || {
        let dir = in_memory();
        let store = Arc::new(Store::open(quiet(dir.path())).unwrap());
        store.promote(1).unwrap();
        append(&store, 3, 200, b'1');
        let before = Arc::new(image(&store));
        let reader = thread::spawn({
            let (store, before) = (Arc::clone(&store), Arc::clone(&before));
            move || {
                let slice = store.slice(0, usize::MAX).unwrap();
                let seen = slice.to_vec();
                assert!(seen[..200] == before[..200]);
                thread::yield_now();
                assert!(*slice == seen, "a slice changed");
            }
        });
        store.fence();
        let cut = store.truncate(200, epochs(&[(1, 0)]), "test").unwrap();
        assert_eq!(cut.cut_bytes, 400);
        store.promote(2).unwrap();
        append(&store, 2, 200, b'2');
        reader.join().unwrap();
        let now = image(&store);
        assert!(now[..200] == before[..200] && now[200..] != before[200..]);
        // The file says what the mapping says, replaced or not.
        let file = std::fs::read(&store.segments()[0].path).unwrap();
        assert!(file[..600] == now[..] && file[600..].iter().all(|byte| *byte == 0));
        store.abandon();
    });
}

#[test]
fn interleavings_every_waiter_ends_when_its_bytes_are_flushed_or_the_store_stops() {
    explore(80, || {
        let dir = in_memory();
        let store = Arc::new(Store::open(quiet(dir.path())).unwrap());
        store.promote(1).unwrap();
        let waiters = [(), ()].map(|()| {
            let store = Arc::clone(&store);
            thread::spawn(move || {
                let end = match store.append(&message(b"x")) {
                    Ok(appended) => appended.end,
                    Err(Error::NotWritable { .. } | Error::Closed) => return,
                    Err(error) => panic!("{error}"),
                };
                match store.wait_flushed(end, LONG) {
                    Ok(flushed) => assert!(flushed >= end),
                    Err(Error::Closed) => {}
                    Err(error) => panic!("{error}"),
                }
            })
        });
        match store.close() {
            Ok(()) => {}
            Err(error) => panic!("{error}"),
        }
        for waiter in waiters {
            waiter.join().unwrap();
        }
    });
}

#[test]
fn interleavings_a_queue_never_shows_what_is_not_confirmed_and_is_cut_with_the_log() {
    explore(40, || {
        let dir = in_memory();
        let mut config = quiet(dir.path());
        config.consume_queues = true;
        config.queue_file_size = 2000;
        let store = Arc::new(Store::open(config).unwrap());
        store.promote(1).unwrap();
        append(&store, 3, 200, b'1');
        let reader = thread::spawn({
            let store = Arc::clone(&store);
            move || {
                for _ in 0..3 {
                    let shown = store
                        .queue("topic", 0)
                        .map(|queue| queue.units(0, 10).unwrap());
                    let shown = shown.unwrap_or_default();
                    let end = shown.last().map_or(0, |(_, unit)| unit.end());
                    assert!(end <= 400, "{end} was never confirmed");
                    let places: Vec<_> = shown.iter().map(|(_, unit)| unit.offset).collect();
                    assert!([0, 200].starts_with(&places), "{places:?}");
                    thread::yield_now();
                }
            }
        });
        store.set_confirm(200);
        store.set_confirm(400);
        store.fence();
        store.truncate(200, epochs(&[(1, 0)]), "test").unwrap();
        assert!(store.dispatched_offset() <= 200);
        store.promote(2).unwrap();
        append(&store, 1, 200, b'2');
        reader.join().unwrap();
        store.set_confirm(400);
        let mut dispatched = store.dispatched_offset();
        while dispatched < 400 {
            dispatched = store.wait_for_dispatch(dispatched, LONG);
        }
        let queue = store.queue("topic", 0).unwrap();
        let entries = queue.read(0, 10).unwrap();
        let bodies: Vec<_> = entries
            .iter()
            .map(|it| it.record.record().body()[0])
            .collect();
        assert_eq!(bodies, [b'1', b'2']);
        store.abandon();
    });
}
