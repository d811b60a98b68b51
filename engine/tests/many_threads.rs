//! Appenders, readers, a flusher and the preparing thread at once.
#![allow(clippy::unwrap_used, reason = "a story ends where it fails")]

mod common;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use common::{HOST, append, config, epochs, master};
use epochlog_engine::{Message, Store};

const APPENDERS: usize = 4;
const EACH: usize = 2000;

#[test]
fn four_appenders_and_their_readers_see_whole_records_only() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = config(dir.path());
    config.segment_size = 64 * 1024;
    config.prefault_ahead_bytes = 64 * 1024;
    config.flush_interval_ms = 5;
    let store = Store::open(config).unwrap();
    store.promote(1).unwrap();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let readers: Vec<_> = (0..2)
            .map(|_| scope.spawn(|| read(&store, &done)))
            .collect();
        let appenders: Vec<_> = (0..APPENDERS)
            .map(|queue| {
                let store = &store;
                scope.spawn(move || {
                    for index in 0..EACH {
                        let body = format!("{queue}-{index}");
                        let body = body.repeat(1 + index % 20);
                        let message = Message {
                            queue_id: i32::try_from(queue).unwrap(),
                            ..Message::new("topic", body.as_bytes(), HOST, 1)
                        };
                        let appended = store.append(&message).unwrap();
                        assert_eq!(appended.queue_offset, i64::try_from(index).unwrap());
                    }
                })
            })
            .collect();
        for appender in appenders {
            appender.join().unwrap();
        }
        done.store(true, Ordering::SeqCst);
        for reader in readers {
            assert_eq!(reader.join().unwrap(), APPENDERS * EACH);
        }
    });
    let end = store.end_offset();
    assert_eq!(
        store.wait_flushed(end, Duration::from_secs(60)).unwrap(),
        end
    );
    store.close().unwrap();
}

/// Follows the log to its end; answers how many records came by.
fn read(store: &Store, done: &AtomicBool) -> usize {
    let (mut at, mut count) = (0, 0);
    let mut seen = BTreeSet::new();
    loop {
        let finished = done.load(Ordering::SeqCst);
        let end = store.wait_for_end(at, Duration::from_millis(5));
        for view in store.records(at..end) {
            let view = view.unwrap();
            let record = view.record();
            assert!(seen.insert((record.queue_id(), record.queue_offset())));
            let part = format!("{}-{}", record.queue_id(), record.queue_offset());
            assert!(record.body().starts_with(part.as_bytes()));
            count += 1;
            at = record.end();
        }
        if finished && at >= store.end_offset() {
            return count;
        }
    }
}

#[test]
fn readers_and_cuts_at_once_never_show_a_changed_byte() {
    let dir = tempfile::tempdir().unwrap();
    let store = master(dir.path(), 1);
    append(&store, 4, 900);
    store.fence();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Ordering::SeqCst) {
                    // The cut may come between two looks; what is got is whole and stays whole.
                    if let Ok(view) = store.record(900) {
                        let before = view.bytes().to_vec();
                        thread::yield_now();
                        assert!(view.bytes()[..] == before[..], "a view has changed");
                    }
                }
            });
        }
        for epoch in 2..40 {
            store.truncate(900, epochs(&[(1, 0)]), "test").unwrap();
            store.promote(epoch).unwrap();
            append(&store, 3, 900 + usize::try_from(epoch).unwrap());
            store.fence();
        }
        done.store(true, Ordering::SeqCst);
    });
}
