//! Where the log ends, and who may write to it.

use std::fs;

use epochlog_engine::{Error, MAX_EPOCH, MAX_OFFSET, Store, inspect};

use super::common::{
    SEGMENT, append, body_for, config, epochs, feed, image, master, message, open, segment_path,
    starts,
};

#[test]
fn a07_a_role_change_that_changes_nothing_keeps_the_next_queue_offsets() {
    let dir = tempfile::tempdir().unwrap();
    let store = master(dir.path(), 1);
    // Nothing is confirmed, so nothing is in the queues.
    append(&store, 5, 200);
    for epoch in [2, 2, 3] {
        store.promote(epoch).unwrap();
    }
    assert_eq!(store.dispatched_offset(), 0);
    assert_eq!(store.append(&message(b"x")).unwrap().queue_offset, 5);
    store.fence();
    store.promote(4).unwrap();
    assert_eq!(store.append(&message(b"x")).unwrap().queue_offset, 6);
}

#[test]
fn a17_a_full_log_takes_no_append_before_a_role_is_given_in_this_life() {
    let dir = tempfile::tempdir().unwrap();
    let store = master(dir.path(), 1);
    append(&store, 3, 1000);
    store.close().unwrap();
    let store = open(dir.path());
    let refused = |store: &Store| {
        let answer = store.append(&message(b"x"));
        matches!(answer, Err(Error::NotWritable { .. })) && store.end_offset() == 3000
    };
    assert!(
        refused(&store),
        "the role of the last life counts for nothing"
    );
    store.demote(2).unwrap();
    assert!(refused(&store));
    store.promote(3).unwrap();
    store.append(&message(b"x")).unwrap();
    store.fence();
    assert!(matches!(
        store.append(&message(b"x")),
        Err(Error::NotWritable { .. })
    ));
}

#[test]
fn a29_nothing_waits_outside_the_log_when_the_role_changes() {
    let dir = tempfile::tempdir().unwrap();
    let store = master(dir.path(), 1);
    for n in 1..=3 {
        let appended = store.append(&message(&body_for(1000))).unwrap();
        // What a sender or a reader sees, and what is in the file.
        assert_eq!(store.end_offset(), appended.end);
        let slice = store.slice(appended.offset, usize::MAX).unwrap();
        assert_eq!(slice.end(), appended.end);
        let at = usize::try_from(appended.offset).unwrap();
        let file = fs::read(segment_path(dir.path(), 0)).unwrap();
        assert_eq!(file[at..at + slice.len()], slice[..]);
        store.demote(2 * n).unwrap();
        assert_eq!(store.end_offset(), appended.end);
        store.receive().unwrap().finish().unwrap();
        store.promote(2 * n + 1).unwrap();
    }
}

#[test]
fn e01_a_slave_keeps_its_tail_above_confirm_until_a_handshake_decides() {
    let from = tempfile::tempdir().unwrap();
    let leader = master(from.path(), 1);
    append(&leader, 6, 1000);
    let bytes = image(&leader);
    for clean in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path());
        let mut receiver = store.receive().unwrap();
        receiver.adopt_epochs(&epochs(&[(1, 0)])).unwrap();
        feed(&mut receiver, &bytes, 900);
        receiver.finish().unwrap();
        store.set_confirm(1000);
        if clean {
            store.close().unwrap();
        }
        drop(store);
        let store = open(dir.path());
        assert!(store.confirm_offset() <= 1000);
        assert_eq!(image(&store), bytes, "clean {clean}");
        store.promote(2).unwrap();
        assert_eq!(store.epochs().last().unwrap().start, bytes.len() as u64);
    }
}

#[test]
fn e03_the_newest_epochs_go_even_when_no_byte_does() {
    let dir = tempfile::tempdir().unwrap();
    let store = master(dir.path(), 1);
    append(&store, 2, 1000);
    for epoch in [2, 3] {
        store.promote(epoch).unwrap();
    }
    store.fence();
    let list = epochs(&[(1, 0), (4, 2000)]);
    let cut = store.truncate(2000, list.clone(), "test").unwrap();
    assert_eq!(cut.cut_bytes, 0);
    drop(store);
    assert_eq!(*open(dir.path()).epochs(), list);
}

#[test]
fn e04_an_epoch_without_a_write_is_there_after_a_crash() {
    let dir = tempfile::tempdir().unwrap();
    let store = master(dir.path(), 1);
    append(&store, 2, 1000);
    let entry = store.promote(2).unwrap();
    store.abandon();
    let store = open(dir.path());
    let list = store.epochs();
    assert_eq!(list.find(2), Some(entry));
    // A peer that asks for it gets an end.
    let span = list.covering(2000).unwrap();
    assert_eq!((span.entry, span.end), (entry, None));
    store.demote(3).unwrap();
    assert_eq!(store.epochs().find(2), Some(entry));
}

#[test]
fn e08_positions_that_cannot_be_are_errors_and_change_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let store = master(dir.path(), 1);
    append(&store, 6, 1000);
    let (before, end) = (image(&store), store.end_offset());
    store.fence();
    let list = store.epochs();
    let odd = [1, 999, SEGMENT - 1, end - 1, end + 1, MAX_OFFSET, u64::MAX];
    for at in odd {
        assert!(store.record(at).is_err(), "{at}");
        assert!(store.truncate(at, (*list).clone(), "test").is_err(), "{at}");
        assert_eq!(store.slice(at, 10).is_ok(), at < end, "{at}");
        let _ = store.record_start_before(at);
        let _ = store.is_record_boundary(at);
        assert_eq!(store.records(at..u64::MAX).filter(Result::is_ok).count(), 0);
        let mut receiver = store.receive().unwrap();
        assert!(receiver.start_at(at).is_err());
        receiver.finish().unwrap();
        assert_eq!(store.pin(at).is_ok(), at <= end, "{at}");
    }
    assert_eq!(image(&store), before);
    assert_eq!(inspect::scan(dir.path()).unwrap().problems, []);
}

#[test]
fn e12_an_open_shows_nothing_that_it_has_not_recovered_and_made_durable() {
    let dir = tempfile::tempdir().unwrap();
    let store = master(dir.path(), 1);
    append(&store, 6, 1000);
    store.set_confirm(store.end_offset());
    store.abandon();
    let store = open(dir.path());
    assert_eq!(store.flushed_offset(), store.end_offset());
    assert!(store.confirm_offset() <= store.end_offset());
    assert_eq!(store.master_epoch(), None);
    assert_eq!(starts(&store).len(), 6);
    // What it answers about queues holds for the whole log.
    store.promote(1).unwrap();
    assert_eq!(store.append(&message(b"x")).unwrap().queue_offset, 6);
}

#[test]
fn e21_a_reader_from_before_a_cut_sees_the_old_bytes_or_none_and_never_a_mixture() {
    let dir = tempfile::tempdir().unwrap();
    let store = master(dir.path(), 1);
    append(&store, 8, 1000);
    let mut reader = store.records(0..store.end_offset());
    let first = reader.next().unwrap().unwrap();
    let old = image(&store);
    store.fence();
    store.truncate(1000, epochs(&[(1, 0)]), "test").unwrap();
    store.promote(2).unwrap();
    append(&store, 7, 700);
    let new = image(&store);
    assert_eq!(first.bytes()[..], old[..1000]);
    for view in reader {
        let Ok(view) = view else { break };
        let at = usize::try_from(view.bytes().start()).unwrap();
        let range = at..at + view.bytes().len();
        let is = |log: &[u8]| log.get(range.clone()) == Some(&view.bytes()[..]);
        assert!(is(&old) || is(&new), "at {at}");
    }
    assert_eq!(starts(&store).len(), 8);
}

#[test]
fn h11_the_file_and_the_mapping_agree_after_every_way_of_writing() {
    let dir = tempfile::tempdir().unwrap();
    for with_view in [false, true] {
        let dir = dir.path().join(with_view.to_string());
        let store = Store::open(config(&dir)).unwrap();
        let agree = |store: &Store, what: &str| {
            for segment in store.segments() {
                let file = fs::read(&segment.path).unwrap();
                let len = usize::try_from(segment.len).unwrap();
                let seen = store.slice(segment.base, usize::MAX).unwrap();
                assert_eq!(seen[..], file[..len], "{what}");
                assert!(file[len..].iter().all(|byte| *byte == 0), "{what}");
            }
        };
        store.promote(1).unwrap();
        append(&store, 6, 1000);
        agree(&store, "appended through the mapping");
        let view = with_view.then(|| store.slice(0, usize::MAX).unwrap());
        store.fence();
        // Erased through the file, or copied to a new one.
        store.truncate(1000, epochs(&[(1, 0)]), "test").unwrap();
        agree(&store, "cut");
        store.promote(2).unwrap();
        append(&store, 1, 500);
        agree(&store, "appended after a cut");
        drop(view);
        store.fence();
        let mut receiver = store.receive().unwrap();
        let mut window = receiver.window(300).unwrap();
        window.as_mut_slice().fill(7);
        receiver.filled(window, 300);
        receiver.finish().unwrap();
        agree(&store, "received and never published");
    }
}

#[test]
fn e07_epoch_zero_and_the_largest_are_epochs_like_any_other() {
    let dir = tempfile::tempdir().unwrap();
    let store = master(dir.path(), 0);
    append(&store, 1, 1000);
    assert_eq!(store.master_epoch(), Some(0));
    store.promote(MAX_EPOCH).unwrap();
    append(&store, 1, 1000);
    assert!(store.promote(MAX_EPOCH + 1).is_err());
    drop(store);
    let store = open(dir.path());
    let list = store.epochs();
    assert_eq!(*list, epochs(&[(0, 0), (MAX_EPOCH, 1000)]));
    assert_eq!(list.covering(999).unwrap().entry.epoch, 0);
    assert_eq!(store.promises().max_epoch, Some(MAX_EPOCH));
    store.truncate(1000, epochs(&[(0, 0)]), "test").unwrap();
    drop(store);
    let store = open(dir.path());
    assert_eq!(*store.epochs(), epochs(&[(0, 0)]));
    assert_eq!(store.end_offset(), 1000);
}
