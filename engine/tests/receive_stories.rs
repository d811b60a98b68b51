//! The slave's side: frames cut anywhere, epochs before their bytes, nothing unpublished survives.
#![allow(clippy::unwrap_used, reason = "a story ends where it fails")]

mod common;

use std::fs;
use std::path::Path;

use common::{SEGMENT, append, config, epochs, feed, image, master, open, segment_path, starts};
use epochlog_engine::{EpochEntry, Error, Store};

fn first_epoch() -> EpochEntry {
    EpochEntry { epoch: 1, start: 0 }
}

/// What a master with records of many sizes over three segments holds.
fn stream(dir: &Path) -> Vec<u8> {
    let store = master(dir, 1);
    for len in [300, 1000, 120, 2000, 500, 3000, 999, 1500, 200] {
        append(&store, 1, len);
    }
    image(&store)
}

#[test]
fn a_stream_cut_anywhere_gives_the_masters_files() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = stream(&dir.path().join("master"));
    for step in [1, 7, 100, 1000, 5000] {
        let path = dir.path().join(format!("{step}"));
        let store = open(&path);
        let mut receiver = store.receive().unwrap();
        receiver.adopt_epoch(first_epoch()).unwrap();
        feed(&mut receiver, &bytes, step);
        assert_eq!(receiver.published_end(), bytes.len() as u64);
        receiver.finish().unwrap();
        assert!(image(&store) == bytes, "step {step}");
        store.close().unwrap();
        for base in [0, SEGMENT, 2 * SEGMENT] {
            let ours = fs::read(segment_path(&path, base)).unwrap();
            let theirs = fs::read(segment_path(&dir.path().join("master"), base)).unwrap();
            assert!(ours == theirs, "step {step}, segment {base}");
        }
    }
}

#[test]
fn a_connection_lost_at_every_byte_leaves_whole_records_and_zeros() {
    let dir = tempfile::tempdir().unwrap();
    let store = master(&dir.path().join("master"), 1);
    append(&store, 2, 150);
    let bytes = image(&store);
    let path = dir.path().join("slave");
    let mut config = config(&path);
    config.segment_size = 512;
    let slave = Store::open(config.clone()).unwrap();
    for start in [0, 150] {
        for cut in 0..=150 {
            let mut receiver = slave.receive().unwrap();
            receiver.adopt_epoch(first_epoch()).unwrap();
            feed(&mut receiver, &bytes[start..start + cut], usize::MAX);
            assert_eq!(receiver.received_end(), (start + cut) as u64);
            drop(receiver);
            let whole = start + cut / 150 * 150;
            assert_eq!(slave.end_offset(), whole as u64, "cut at {cut}");
            let file = fs::read(segment_path(&path, 0)).unwrap_or_else(|_| vec![0; 512]);
            assert!(file[..whole] == bytes[..whole], "cut at {cut}");
            assert!(file[whole..].iter().all(|byte| *byte == 0), "cut at {cut}");
        }
    }
}

#[test]
fn k5_whole_records_that_were_never_published_are_gone_before_a_new_epoch() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = stream(&dir.path().join("master"));
    for promote in [true, false] {
        let path = dir.path().join(format!("{promote}"));
        let store = open(&path);
        let mut receiver = store.receive().unwrap();
        receiver.adopt_epoch(first_epoch()).unwrap();
        feed(&mut receiver, &bytes[..300], 300);
        // Two whole records land in place; the connection is lost before they are published.
        let mut window = receiver.window(1120).unwrap();
        window.as_mut_slice().copy_from_slice(&bytes[300..1420]);
        receiver.filled(window, 1120);
        receiver.finish().unwrap();
        if promote {
            assert_eq!(
                store.promote(2).unwrap(),
                EpochEntry {
                    epoch: 2,
                    start: 300
                }
            );
        } else {
            let mut receiver = store.receive().unwrap();
            receiver
                .adopt_epoch(EpochEntry {
                    epoch: 2,
                    start: 300,
                })
                .unwrap();
        }
        store.abandon();
        let store = open(&path);
        assert_eq!(starts(&store), [0]);
        assert_eq!(*store.epochs(), epochs(&[(1, 0), (2, 300)]));
    }
}

#[test]
fn a_kill_while_receiving_may_keep_whole_records_under_their_epoch() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = stream(&dir.path().join("master"));
    let path = dir.path().join("slave");
    let store = open(&path);
    let mut receiver = store.receive().unwrap();
    receiver.adopt_epoch(first_epoch()).unwrap();
    let mut window = receiver.window(1350).unwrap();
    window.as_mut_slice().copy_from_slice(&bytes[..1350]);
    receiver.filled(window, 1350);
    store.abandon();
    drop(receiver);
    drop(store);
    let store = open(&path);
    assert_eq!(starts(&store), [0, 300]);
    assert_eq!(store.end_offset(), 1300);
    let torn = store.opened().torn.clone().unwrap();
    assert_eq!(torn.offset, 1300);
    assert!(
        (40..=50).contains(&torn.cut_bytes),
        "zeros at its end may be its own: {torn:?}"
    );
    let file = fs::read(segment_path(&path, 0)).unwrap();
    assert!(file[1300..].iter().all(|byte| *byte == 0));
}

#[test]
fn an_epoch_goes_where_the_received_end_is_and_nowhere_else() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = stream(&dir.path().join("master"));
    let store = open(&dir.path().join("slave"));
    let mut receiver = store.receive().unwrap();
    assert!(
        matches!(receiver.window(10), Err(Error::Receive { .. })),
        "no epoch yet"
    );
    receiver.adopt_epoch(first_epoch()).unwrap();
    receiver.adopt_epoch(first_epoch()).unwrap();
    feed(&mut receiver, &bytes[..300], 300);
    let entry = |epoch, start| EpochEntry { epoch, start };
    for wrong in [entry(2, 299), entry(2, 301), entry(1, 300), entry(0, 300)] {
        let refused = receiver.adopt_epoch(wrong);
        assert!(
            matches!(refused, Err(Error::EpochEntry { .. })),
            "{wrong:?}"
        );
    }
    feed(&mut receiver, &bytes[300..400], 100);
    assert!(matches!(
        receiver.adopt_epoch(entry(2, 400)),
        Err(Error::Receive { .. })
    ));
    feed(&mut receiver, &bytes[400..1300], 900);
    receiver.adopt_epoch(entry(2, 1300)).unwrap();
    assert!(
        receiver
            .adopt_epochs(&epochs(&[(1, 0), (3, 1301)]))
            .is_err()
    );
    assert!(receiver.adopt_epochs(&epochs(&[(1, 1)])).is_err());
    receiver
        .adopt_epochs(&epochs(&[(1, 0), (3, 1300)]))
        .unwrap();
    receiver.finish().unwrap();
    assert_eq!(*store.epochs(), epochs(&[(1, 0), (3, 1300)]));
}

#[test]
fn a_bad_record_is_refused_with_its_place_and_those_before_it_stay() {
    let dir = tempfile::tempdir().unwrap();
    let mut bytes = stream(&dir.path().join("master"));
    bytes[700] ^= 1;
    let store = open(&dir.path().join("slave"));
    let mut receiver = store.receive().unwrap();
    receiver.adopt_epoch(first_epoch()).unwrap();
    let mut window = receiver.window(2000).unwrap();
    window.as_mut_slice().copy_from_slice(&bytes[..2000]);
    receiver.filled(window, 2000);
    assert!(matches!(
        receiver.publish(),
        Err(Error::Corrupt { offset: 300, .. })
    ));
    assert_eq!(receiver.published_end(), 300);
    receiver.finish().unwrap();
    assert_eq!(store.end_offset(), 300);
}

#[test]
fn m4_a_master_with_longer_segments_is_named_as_that() {
    let dir = tempfile::tempdir().unwrap();
    let mut other = config(&dir.path().join("master"));
    other.segment_size = 2 * SEGMENT;
    let store = Store::open(other).unwrap();
    store.promote(1).unwrap();
    append(&store, 7, 1000);
    let bytes = image(&store);
    let slave = open(&dir.path().join("slave"));
    let mut receiver = slave.receive().unwrap();
    receiver.adopt_epoch(first_epoch()).unwrap();
    let mut window = receiver.window(usize::MAX).unwrap();
    let len = window.len();
    assert_eq!(len as u64, SEGMENT);
    window.as_mut_slice().copy_from_slice(&bytes[..len]);
    receiver.filled(window, len);
    // The record that crosses our segment's end cannot be one.
    assert!(matches!(
        receiver.publish(),
        Err(Error::Corrupt { offset: 4000, .. })
    ));
}

#[test]
fn a_window_that_is_out_is_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = stream(&dir.path().join("master"));
    let store = open(&dir.path().join("slave"));
    let mut receiver = store.receive().unwrap();
    receiver.adopt_epoch(first_epoch()).unwrap();
    assert!(matches!(store.receive(), Err(Error::ReceiverActive)));
    let mut window = receiver.window(100).unwrap();
    window.as_mut_slice().copy_from_slice(&bytes[..100]);
    assert!(matches!(
        receiver.window(100),
        Err(Error::WindowOutstanding)
    ));
    assert!(matches!(receiver.finish(), Err(Error::WindowOutstanding)));
    assert!(matches!(store.promote(2), Err(Error::WindowOutstanding)));
    assert!(matches!(store.close(), Err(Error::WindowOutstanding)));
    assert!(matches!(store.receive(), Err(Error::WindowOutstanding)));
    let handle = std::thread::spawn(move || drop(window));
    handle.join().unwrap();
    store.promote(2).unwrap();
    assert_eq!(store.end_offset(), 0);
    let file = fs::read(segment_path(&dir.path().join("slave"), 0)).unwrap();
    assert!(file.iter().all(|byte| *byte == 0));
}

#[test]
fn a_new_replica_begins_where_its_master_begins() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("slave");
    let store = open(&path);
    let mut receiver = store.receive().unwrap();
    assert!(matches!(
        receiver.start_at(SEGMENT + 1),
        Err(Error::Receive { .. })
    ));
    receiver.start_at(3 * SEGMENT).unwrap();
    assert_eq!(receiver.received_end(), 3 * SEGMENT);
    receiver
        .adopt_epochs(&epochs(&[(4, 100), (5, 3 * SEGMENT)]))
        .unwrap();
    // Its master holds one record there, made by writing it as a master would.
    let master_path = dir.path().join("master");
    let other = open(&master_path);
    let mut made = other.receive().unwrap();
    made.start_at(3 * SEGMENT).unwrap();
    made.finish().unwrap();
    other.promote(5).unwrap();
    append(&other, 2, 1000);
    feed(&mut receiver, &image(&other), 64);
    assert!(matches!(
        receiver.start_at(5 * SEGMENT),
        Err(Error::Receive { .. })
    ));
    receiver.finish().unwrap();
    store.abandon();
    let store = open(&path);
    assert_eq!(
        (store.min_offset(), store.end_offset()),
        (3 * SEGMENT, 3 * SEGMENT + 2000)
    );
    assert_eq!(*store.epochs(), epochs(&[(4, 100), (5, 3 * SEGMENT)]));
    // Everything can be given up and begun again elsewhere.
    store.truncate(3 * SEGMENT, epochs(&[]), "resync").unwrap();
    let mut receiver = store.receive().unwrap();
    receiver.start_at(7 * SEGMENT).unwrap();
    receiver.finish().unwrap();
    store.close().unwrap();
    let store = open(&path);
    assert_eq!(
        (store.min_offset(), store.end_offset()),
        (7 * SEGMENT, 7 * SEGMENT)
    );
}

#[test]
fn queue_offsets_follow_what_was_received() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = stream(&dir.path().join("master"));
    let store = open(&dir.path().join("slave"));
    let mut receiver = store.receive().unwrap();
    receiver.adopt_epoch(first_epoch()).unwrap();
    feed(&mut receiver, &bytes, 4096);
    receiver.finish().unwrap();
    store.promote(2).unwrap();
    assert_eq!(
        store
            .append(&common::message(b"next"))
            .unwrap()
            .queue_offset,
        9
    );
}

#[test]
fn a_folder_is_not_free_while_a_window_into_it_is_out() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let mut receiver = store.receive().unwrap();
    receiver.adopt_epoch(first_epoch()).unwrap();
    let window = receiver.window(100).unwrap();
    drop(receiver);
    drop(store);
    assert!(matches!(
        Store::open(config(dir.path())),
        Err(Error::OpenInThisProcess { .. })
    ));
    drop(window);
    open(dir.path());
}

#[test]
fn a_new_replica_that_begins_elsewhere_keeps_no_segment_prepared_for_the_old_place() {
    const LARGE: u64 = 4 << 20;
    for _ in 0..20 {
        let dir = tempfile::tempdir().unwrap();
        let mut config = config(dir.path());
        config.segment_size = LARGE;
        config.prefault_ahead_bytes = LARGE;
        let store = Store::open(config.clone()).unwrap();
        let mut receiver = store.receive().unwrap();
        receiver.start_at(5 * LARGE).unwrap();
        receiver.finish().unwrap();
        store.close().unwrap();
        drop(store);
        let store = Store::open(config).unwrap();
        assert_eq!(store.min_offset(), 5 * LARGE);
    }
}
