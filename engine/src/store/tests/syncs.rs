//! Syncs that fail, and syncs that are overtaken.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use super::{SEGMENT, append, check_invariants, config, epochs, image, message, open};
use crate::error::Error;
use crate::segment::Segment;
use crate::steps::StopBefore;
use crate::store::Store;

const LONG: Duration = Duration::from_secs(60);

/// A store whose `fail`-th sync of a segment fails; later ones would succeed.
fn failing(dir: &Path, fail: usize) -> Store {
    let calls = AtomicUsize::new(0);
    let mut config = config(dir);
    config.sync_segment = Some(Arc::new(move |segment: &Segment| {
        if calls.fetch_add(1, Ordering::SeqCst) + 1 == fail {
            return Err(Error::io("sync", segment.path())(io::Error::other(
                "injected",
            )));
        }
        segment.sync()
    }));
    Store::open(config).unwrap()
}

#[test]
fn c01_h05_h08_a_failed_sync_is_final_until_the_bytes_are_written_anew() {
    let dir = tempfile::tempdir().unwrap();
    let store = failing(dir.path(), 2);
    store.promote(1).unwrap();
    append(&store, 1, 1000, b'1');
    assert_eq!(store.flush().unwrap(), 1000);
    append(&store, 2, 1000, b'1');
    assert!(matches!(store.flush(), Err(Error::Io { .. })));
    assert_eq!(store.flushed_offset(), 1000);
    assert!(matches!(store.flush(), Err(Error::Failed { .. })));
    assert!(matches!(
        store.wait_flushed(3000, LONG),
        Err(Error::Failed { .. })
    ));
    assert!(matches!(
        store.append(&message(b"x")),
        Err(Error::Failed { .. })
    ));
    assert!(matches!(store.promote(2), Err(Error::Failed { .. })));
    let before = image(&store);
    assert!(matches!(store.close(), Err(Error::Failed { .. })));
    drop(store);
    let path = dir.path().join("commitlog/00000000000000000000");
    let inode = std::fs::metadata(&path).unwrap().ino();
    let store = open(dir.path());
    assert!(!store.opened().clean);
    assert_ne!(
        std::fs::metadata(&path).unwrap().ino(),
        inode,
        "the bytes are in a fresh file"
    );
    assert_eq!(image(&store), before);
    assert_eq!(store.flushed_offset(), 3000);
    assert!(matches!(
        store.promote(1),
        Err(Error::NeedsNewerEpoch { epoch: 1 })
    ));
    check_invariants(dir.path(), &store);
    drop(store);
    // Neither another kill nor a clean stop gives the proof back.
    open(dir.path()).close().unwrap();
    let store = open(dir.path());
    assert!(store.opened().clean);
    assert!(matches!(
        store.promote(1),
        Err(Error::NeedsNewerEpoch { epoch: 1 })
    ));
    store.promote(2).unwrap();
    store.abandon();
    drop(store);
    open(dir.path()).promote(2).unwrap();
}

/// A store whose syncs announce themselves and wait to be let go.
fn paused(dir: &Path) -> (Arc<Store>, Receiver<()>, Sender<()>) {
    let (begun, sees) = channel();
    let (go, may_go) = channel();
    let may_go = Mutex::new(may_go);
    let mut config = config(dir);
    config.sync_segment = Some(Arc::new(move |segment: &Segment| {
        begun.send(()).unwrap();
        may_go.lock().unwrap().recv().unwrap();
        segment.sync()
    }));
    (Arc::new(Store::open(config).unwrap()), sees, go)
}

#[test]
fn e10_a_sync_that_a_cut_overtook_does_not_raise_the_mark() {
    let dir = tempfile::tempdir().unwrap();
    let (store, begun, go) = paused(dir.path());
    store.promote(1).unwrap();
    append(&store, 5, 200, b'1');
    let flusher = thread::spawn({
        let store = Arc::clone(&store);
        move || store.flush()
    });
    begun.recv_timeout(LONG).unwrap();
    store.fence();
    store.truncate(600, epochs(&[(1, 0)]), "test").unwrap();
    store.promote(2).unwrap();
    // More than before the cut: a comparison of sizes would be fooled.
    append(&store, 6, 200, b'2');
    assert_eq!(store.flushed_offset(), 600);
    go.send(()).unwrap();
    // The overtaken sync counted for nothing: a newer one begins, and until it ends nothing moves.
    begun.recv_timeout(LONG).unwrap();
    assert_eq!(store.flushed_offset(), 600);
    go.send(()).unwrap();
    assert_eq!(flusher.join().unwrap().unwrap(), 1800);
}

/// C14: a request waits for its own bytes.
#[test]
fn h07_a_waiter_gets_a_sync_that_began_after_its_write() {
    let dir = tempfile::tempdir().unwrap();
    let (store, begun, go) = paused(dir.path());
    store.promote(1).unwrap();
    append(&store, 1, 200, b'a');
    let first = thread::spawn({
        let store = Arc::clone(&store);
        move || store.flush()
    });
    begun.recv_timeout(LONG).unwrap();
    append(&store, 1, 200, b'b');
    let short = Duration::from_millis(20);
    assert!(matches!(
        store.wait_flushed(400, short),
        Err(Error::FlushTimeout { .. })
    ));
    go.send(()).unwrap();
    begun.recv_timeout(LONG).unwrap();
    assert_eq!(store.flushed_offset(), 200);
    go.send(()).unwrap();
    assert_eq!(store.wait_flushed(400, LONG).unwrap(), 400);
    assert!(first.join().unwrap().unwrap() >= 200);
}

#[test]
fn c09_flushing_begins_at_the_first_segment_wherever_that_is() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let mut receiver = store.receive().unwrap();
    receiver.start_at(3 * SEGMENT).unwrap();
    receiver.finish().unwrap();
    store.promote(1).unwrap();
    append(&store, 1, 200, b'a');
    assert_eq!(store.flush().unwrap(), 3 * SEGMENT + 200);
}

#[test]
fn many_waiters_share_a_sync() {
    let dir = tempfile::tempdir().unwrap();
    let calls = Arc::new(AtomicUsize::new(0));
    let mut config = config(dir.path());
    let counted = Arc::clone(&calls);
    config.sync_segment = Some(Arc::new(move |segment: &Segment| {
        counted.fetch_add(1, Ordering::SeqCst);
        thread::sleep(Duration::from_millis(5));
        segment.sync()
    }));
    let store = Store::open(config).unwrap();
    store.promote(1).unwrap();
    thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                for _ in 0..4 {
                    let end = store.append(&message(b"x")).unwrap().end;
                    assert!(store.wait_flushed(end, LONG).unwrap() >= end);
                }
            });
        }
    });
    let calls = calls.load(Ordering::SeqCst);
    assert!(calls < 50, "{calls} syncs for 64 waits");
}

#[test]
fn appends_wait_while_too_much_is_not_durable() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = config(dir.path());
    config.max_dirty_bytes = 2000;
    let store = Store::open(config).unwrap();
    store.promote(1).unwrap();
    for _ in 0..10 {
        append(&store, 1, 1000, b'a');
        assert!(store.end_offset() - store.flushed_offset() <= 3000);
    }
    assert!(store.flushed_offset() > 0);
}

#[test]
fn an_open_that_cannot_have_its_threads_gives_the_folder_back() {
    let dir = tempfile::tempdir().unwrap();
    open(dir.path()).close().unwrap();
    let hook = StopBefore::never();
    let mut config = config(dir.path());
    config.stop_before = Some(hook.clone());
    let store = Store::open(config.clone()).unwrap();
    let seen = hook.seen();
    drop(store);
    // The last one of its threads.
    hook.after(seen - 1);
    assert!(matches!(
        Store::open(config.clone()),
        Err(Error::Stopped { .. })
    ));
    hook.after(usize::MAX);
    Store::open(config).unwrap();
}
