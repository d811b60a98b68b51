//! Appending, rolling and reading, opening again after a clean stop and after a kill.
#![allow(clippy::unwrap_used, reason = "a story ends where it fails")]

mod common;

use std::fs;
use std::time::Duration;

use common::{
    SEGMENT, append, body_for, config, epochs, image, master, message, open, segment_path, starts,
};
use epochlog_engine::{Error, Store};

#[test]
fn records_roll_to_the_next_segment_and_are_read_across_it() {
    let dir = tempfile::tempdir().unwrap();
    let store = master(dir.path(), 1);
    let offsets = append(&store, 9, 1000);
    assert_eq!(offsets[..5], [0, 1000, 2000, 3000, SEGMENT]);
    assert_eq!(starts(&store), offsets[..9]);
    assert_eq!(store.segments().len(), 3);
    let queue_offsets: Vec<_> = store
        .records(0..store.end_offset())
        .map(|view| view.unwrap().record().queue_offset())
        .collect();
    assert_eq!(queue_offsets, (0..9).collect::<Vec<_>>());
    // The filler says how far it is to the end of the segment; zeros follow.
    let filler = store.slice(4000, usize::MAX).unwrap();
    assert_eq!(filler.len(), 96);
    assert_eq!(filler[..8], [0, 0, 0, 96, 0xCB, 0xD4, 0x31, 0x94]);
    assert!(filler[8..].iter().all(|byte| *byte == 0));
    store.close().unwrap();
}

#[test]
fn a_record_that_leaves_exactly_eight_bytes_fits_and_one_byte_more_does_not() {
    let segment = usize::try_from(SEGMENT).unwrap();
    for (last, same_segment) in [(segment - 1000 - 8, true), (segment - 1000 - 7, false)] {
        let dir = tempfile::tempdir().unwrap();
        let store = master(dir.path(), 1);
        append(&store, 1, 1000);
        let appended = store.append(&message(&body_for(last))).unwrap();
        assert_eq!(appended.offset == 1000, same_segment, "{last}");
        let next = store.append(&message(b"next")).unwrap();
        if same_segment {
            assert_eq!(
                next.offset, SEGMENT,
                "the filler of 8 bytes ends the segment"
            );
        }
        drop(store);
        let store = open(dir.path());
        assert_eq!(starts(&store).len(), 3, "{last}");
    }
}

#[test]
fn a_batch_is_one_unit() {
    let dir = tempfile::tempdir().unwrap();
    let store = master(dir.path(), 1);
    append(&store, 3, 1000);
    let body = body_for(500);
    let batch = [message(&body), message(&body), message(&body)];
    let appended = store.append_batch(&batch).unwrap();
    let offsets: Vec<_> = appended.iter().map(|it| it.offset).collect();
    assert_eq!(offsets, [SEGMENT, SEGMENT + 500, SEGMENT + 1000]);
    assert_eq!(appended[2].queue_offset, 5);
    let too_much = vec![message(&body); 9];
    assert!(matches!(
        store.append_batch(&too_much),
        Err(Error::TooLarge { len: 4500, .. })
    ));
    assert_eq!(store.end_offset(), SEGMENT + 1500);
    assert!(store.append_batch(&[]).unwrap().is_empty());
}

#[test]
fn a_clean_stop_is_reopened_without_a_scan() {
    let dir = tempfile::tempdir().unwrap();
    for (count, len) in [(0, 0), (1, 1000), (4, 1000), (5, 1000)] {
        let path = dir.path().join(format!("{count}"));
        let store = master(&path, 1);
        if count > 0 {
            append(&store, count, len);
        }
        let (before, end) = (image(&store), store.end_offset());
        store.close().unwrap();
        store.close().unwrap();
        let store = open(&path);
        assert!(store.opened().clean, "{count} records");
        assert_eq!(store.opened().scanned_bytes, 0);
        assert_eq!((image(&store), store.end_offset()), (before, end));
        assert_eq!(store.flushed_offset(), end);
        // The epoch that was served before the clean stop may be served on, from its old start.
        assert_eq!(store.promote(1).unwrap().start, 0);
        let appended = store.append(&message(b"more")).unwrap();
        assert_eq!(appended.queue_offset, i64::try_from(count).unwrap());
    }
}

#[test]
fn a_kill_loses_nothing_and_the_same_epoch_may_be_served_on() {
    let dir = tempfile::tempdir().unwrap();
    let store = master(dir.path(), 3);
    append(&store, 6, 1000);
    let before = image(&store);
    drop(store);
    for round in 0..2 {
        let store = open(dir.path());
        assert!(!store.opened().clean);
        assert_eq!(image(&store), before, "round {round}");
        assert_eq!(store.opened().torn, None);
        assert_eq!(store.flushed_offset(), store.end_offset());
        assert!(store.promises().may_serve_again);
        store.abandon();
    }
    let store = open(dir.path());
    assert_eq!(store.promote(3).unwrap().start, 0);
    assert_eq!(*store.epochs(), epochs(&[(3, 0)]));
}

#[test]
fn e09_an_empty_segment_behind_a_roll_is_an_end_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let store = master(dir.path(), 1);
    append(&store, 5, 1000);
    store.fence();
    store
        .truncate(SEGMENT, epochs(&[(1, 0)]), "back to the roll")
        .unwrap();
    for clean in [true, false] {
        if clean {
            store.close().unwrap();
        } else {
            store.abandon();
        }
        let store = open(dir.path());
        assert_eq!(store.end_offset(), SEGMENT, "clean: {clean}");
        store.close().unwrap();
    }
    let store = master(dir.path(), 2);
    assert_eq!(append(&store, 1, 1000)[0], SEGMENT);
}

#[test]
fn a_second_opener_is_refused_and_the_folder_is_free_after_close() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let again = dir.path().join("../").join(dir.path().file_name().unwrap());
    assert!(matches!(
        Store::open(config(&again)),
        Err(Error::OpenInThisProcess { .. })
    ));
    assert_eq!(fs::read(dir.path().join("lock")).unwrap(), b"lock");
    store.close().unwrap();
    open(&again).close().unwrap();
    // K20: the mark that Java deletes at a clean stop stays.
    let process = fs::read_to_string(dir.path().join("abort")).unwrap();
    assert_eq!(process, std::process::id().to_string());
}

#[test]
fn what_is_no_master_takes_no_appends() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    assert!(matches!(
        store.append(&message(b"x")),
        Err(Error::NotWritable { .. })
    ));
    store.promote(4).unwrap();
    store.append(&message(b"x")).unwrap();
    store.demote(5).unwrap();
    assert!(matches!(
        store.append(&message(b"x")),
        Err(Error::NotWritable { .. })
    ));
    assert!(matches!(
        store.demote(4),
        Err(Error::StaleEpoch {
            asked: 4,
            max_epoch: 5
        })
    ));
    assert!(matches!(store.promote(4), Err(Error::StaleEpoch { .. })));
    assert!(matches!(store.promote(5), Err(Error::StaleEpoch { .. })));
    store.promote(6).unwrap();
    store.close().unwrap();
    assert!(matches!(store.append(&message(b"x")), Err(Error::Closed)));
    let store = open(dir.path());
    assert!(matches!(store.promote(5), Err(Error::StaleEpoch { .. })));
    assert_eq!(store.promises().max_epoch, Some(6));
}

#[test]
fn a_message_larger_than_a_segment_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let store = master(dir.path(), 1);
    let segment = usize::try_from(SEGMENT).unwrap();
    let body = body_for(segment - 7);
    assert!(matches!(
        store.append(&message(&body)),
        Err(Error::TooLarge { .. })
    ));
    assert_eq!(store.append(&message(&body[1..])).unwrap().end, SEGMENT - 8);
}

#[test]
fn e38_e39_a_slice_outside_the_log_is_an_error_not_another_segment() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    assert!(
        matches!(store.slice(0, 10), Err(Error::OutOfRange { .. }))
            || store.slice(0, 10).unwrap().is_empty()
    );
    let mut receiver = store.receive().unwrap();
    receiver.start_at(2 * SEGMENT).unwrap();
    receiver.finish().unwrap();
    assert!(matches!(
        store.slice(0, 10),
        Err(Error::OutOfRange {
            min: 8192,
            end: 8192,
            ..
        })
    ));
    store.promote(1).unwrap();
    append(&store, 1, 1000);
    assert!(store.slice(0, 10).is_err());
    assert!(store.slice(2 * SEGMENT + 1001, 10).is_err());
    assert!(store.slice(2 * SEGMENT + 1000, 10).unwrap().is_empty());
    assert_eq!(store.slice(2 * SEGMENT + 990, 100).unwrap().len(), 10);
    assert!(matches!(
        store.record(2 * SEGMENT + 1),
        Err(Error::Corrupt { .. })
    ));
}

#[test]
fn waiters_and_listeners_see_growth() {
    let dir = tempfile::tempdir().unwrap();
    let store = std::sync::Arc::new(master(dir.path(), 1));
    assert_eq!(store.wait_for_end(0, Duration::from_millis(1)), 0);
    let (sender, seen) = std::sync::mpsc::channel();
    store.on_growth(std::sync::Arc::new(move || sender.send(()).unwrap()));
    let waiter = std::thread::spawn({
        let store = std::sync::Arc::clone(&store);
        move || store.wait_for_end(0, Duration::from_secs(60))
    });
    append(&store, 1, 1000);
    assert_eq!(waiter.join().unwrap(), 1000);
    assert_eq!(seen.iter().take(1).count(), 1);
    assert_eq!(
        store.wait_flushed(1000, Duration::from_secs(60)).unwrap(),
        1000
    );
    assert!(store.wait_flushed(1001, Duration::from_secs(60)).is_err());
}

#[test]
fn c16_an_empty_file_behind_the_last_segment_is_removed_and_elsewhere_refused() {
    let dir = tempfile::tempdir().unwrap();
    let store = master(dir.path(), 1);
    append(&store, 5, 1000);
    store.close().unwrap();
    fs::write(segment_path(dir.path(), 2 * SEGMENT), []).unwrap();
    let store = open(dir.path());
    assert_eq!(store.end_offset(), SEGMENT + 1000);
    assert!(!segment_path(dir.path(), 2 * SEGMENT).exists());
    store.close().unwrap();
    fs::write(segment_path(dir.path(), SEGMENT), []).unwrap();
    match Store::open(config(dir.path())) {
        Err(Error::Damaged { file, offset, .. }) => {
            assert_eq!(offset, SEGMENT);
            assert!(file.ends_with("00000000000000004096"), "{}", file.display());
        }
        other => panic!("{:?}", other.err()),
    }
}

#[test]
fn e16_a_folder_that_lost_its_files_does_not_pass_for_the_one_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let mut lives = Vec::new();
    for _ in 0..2 {
        for _ in 0..2 {
            let store = open(dir.path());
            lives.push(store.promises().incarnation);
            store.close().unwrap();
        }
        // Everything is deleted, as before a replica is set up anew under its old id.
        for entry in fs::read_dir(dir.path()).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                fs::remove_dir_all(path).unwrap();
            } else {
                fs::remove_file(path).unwrap();
            }
        }
    }
    assert_eq!((lives[1], lives[3]), (lives[0] + 1, lives[2] + 1));
    // Nor for the one after it, which a clean stop would vouch for.
    assert!(lives[2] > lives[1] + 1, "{lives:?}");
}

#[test]
fn a_closed_store_shows_nothing_that_the_next_opener_may_change() {
    for clean in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let store = master(dir.path(), 1);
        append(&store, 3, 1000);
        let held = store.slice(1000, 1000).unwrap();
        if clean {
            store.close().unwrap();
        } else {
            store.abandon();
        }
        assert!(matches!(store.slice(0, 1000), Err(Error::Closed)));
        assert!(matches!(store.record(0), Err(Error::Closed)));
        assert!(matches!(store.records(0..3000).next(), Some(Err(_))));
        assert_eq!(*held, image(&open(dir.path()))[1000..2000]);
    }
}
