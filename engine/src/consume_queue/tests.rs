use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use super::*;

/// Ten units a file.
const FILE: u64 = 200;

fn settings() -> FileSettings {
    FileSettings {
        file_size: FILE,
        cache: Arc::default(),
        hook: None,
    }
}

/// Names and bytes of the queue's files.
fn image(dir: &Path) -> BTreeMap<u64, Vec<u8>> {
    let entries = fs::read_dir(dir).into_iter().flatten();
    let read = |path: std::path::PathBuf| {
        let base = path.file_name().unwrap().to_str().unwrap().parse().unwrap();
        (base, fs::read(&path).unwrap())
    };
    entries.map(|entry| read(entry.unwrap().path())).collect()
}

fn open(dir: &Path, proven: Offset) -> ConsumeQueue {
    let files = image(dir);
    let range = match (files.first_key_value(), files.last_key_value()) {
        (Some((first, _)), Some((last, _))) => *first..last + FILE,
        _ => 0..0,
    };
    let files = QueueFiles::new(settings(), dir.to_path_buf(), 0, range);
    ConsumeQueue::open(files, proven).unwrap()
}

/// The unit of a record of 100 bytes, the `n`-th in the log.
fn unit(n: u64) -> QueueUnit {
    QueueUnit {
        offset: n * 100,
        size: 100,
        tags_code: -(n.cast_signed()),
    }
}

fn put(queue: &mut ConsumeQueue, range: std::ops::Range<i64>) {
    for at in range {
        let put = queue.put(at, unit(at.unsigned_abs())).unwrap();
        assert_eq!(put, Put::Stored, "{at}");
    }
}

/// Holds the queue to have exactly the units of `range`.
fn check(queue: &ConsumeQueue, range: std::ops::Range<i64>) {
    assert_eq!(queue.begin()..queue.end(), range);
    for at in range.clone() {
        let expected = unit(at.unsigned_abs());
        assert_eq!(queue.unit(at).unwrap(), Some(expected), "{at}");
    }
    let len = usize::try_from(range.end - range.start).unwrap();
    let mut bytes = vec![0; len * QUEUE_UNIT_LEN];
    queue.read(range.start, &mut bytes).unwrap();
    let units: Vec<_> = range
        .flat_map(|at| unit(at.unsigned_abs()).encode())
        .collect();
    assert_eq!(bytes, units);
}

#[test]
fn units_are_read_from_the_buffer_and_from_the_files() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("0");
    let mut queue = open(&path, 0);
    assert!(queue.is_empty());
    put(&mut queue, 0..7);
    check(&queue, 0..7);
    queue.write_out().unwrap();
    put(&mut queue, 7..25);
    // In the files up to 7, in the buffer from there on.
    check(&queue, 0..25);
    queue.write_out().unwrap();
    check(&queue, 0..25);
    let files = image(&path);
    assert_eq!(files.keys().copied().collect::<Vec<_>>(), [0, 200, 400]);
    assert!(files.values().all(|bytes| bytes.len() == 200));
    assert!(files[&400][5 * QUEUE_UNIT_LEN..].iter().all(|it| *it == 0));
    check(&open(&path, 2500), 0..25);
    // The buffer is written by itself before it grows without bound.
    put(&mut queue, 25..25 + 3 * MOST_BEHIND as i64);
    assert!(queue.written >= 25 + MOST_BEHIND as i64);
    check(&queue, 0..25 + 3 * MOST_BEHIND as i64);
}

#[test]
fn a_queue_that_begins_inside_a_file_has_pre_fill_before_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("0");
    let mut queue = open(&path, 0);
    put(&mut queue, 13..22);
    queue.write_out().unwrap();
    check(&queue, 13..22);
    let files = image(&path);
    assert_eq!(files.keys().copied().collect::<Vec<_>>(), [200, 400]);
    assert_eq!(files[&200][..60], QUEUE_PRE_FILL.repeat(3));
    assert_eq!(files[&200][60..80], unit(13).encode());
    check(&open(&path, 2200), 13..22);
    // At the start of a file nothing is filled.
    let other = dir.path().join("1");
    let mut queue = open(&other, 0);
    put(&mut queue, 20..21);
    queue.write_out().unwrap();
    assert_eq!(image(&other)[&400][..20], unit(20).encode());
    // Pre-fill alone holds no message, and says where the first one belongs.
    let third = dir.path().join("2");
    fs::create_dir(&third).unwrap();
    let bytes = [QUEUE_PRE_FILL.repeat(3), vec![0; 140]].concat();
    fs::write(third.join("00000000000000000200"), bytes).unwrap();
    let mut queue = open(&third, 9999);
    assert!(queue.is_empty());
    assert_eq!(queue.begin()..queue.end(), 13..13);
    put(&mut queue, 13..15);
    queue.write_out().unwrap();
    check(&open(&third, 9999), 13..15);
}

#[test]
fn what_is_there_already_is_ignored_and_nothing_comes_to_a_wrong_place() {
    let dir = tempfile::tempdir().unwrap();
    let mut queue = open(&dir.path().join("0"), 0);
    put(&mut queue, 5..9);
    for at in 0..9 {
        let again = queue.put(at, unit(at.unsigned_abs())).unwrap();
        assert_eq!(again, Put::Known, "{at}");
    }
    let expected = 9;
    assert_eq!(queue.put(10, unit(10)).unwrap(), Put::Gap { expected });
    assert_eq!(
        queue.put(MAX_QUEUE_OFFSET, unit(10)).unwrap(),
        Put::Gap { expected }
    );
    // An older record with the next queue offset: a newer one is in the queue already.
    assert_eq!(queue.put(9, unit(3)).unwrap(), Put::Known);
    check(&queue, 5..9);
    put(&mut queue, 9..10);
}

#[test]
fn c12_a_unit_survives_a_cut_only_if_its_record_ends_before_it() {
    for written in [false, true] {
        for (to, end) in [
            (150, 1),
            (199, 1),
            (200, 2),
            (201, 2),
            (299, 2),
            (1001, 10),
            (2500, 25),
            (9999, 25),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("0");
            let mut queue = open(&path, 0);
            put(&mut queue, 0..25);
            if written {
                queue.write_out().unwrap();
            }
            assert_eq!(queue.covered_below(to).unwrap(), end, "{to}");
            assert_eq!(queue.retract(to).unwrap(), end < 25, "{to}");
            check(&queue, 0..end);
            queue.follow().unwrap();
            check(&queue, 0..end);
            queue.write_out().unwrap();
            // Nothing of what was cut is left to be found.
            let bytes = image(&path).into_values().collect::<Vec<_>>().concat();
            let kept = usize::try_from(end).unwrap() * QUEUE_UNIT_LEN;
            assert!(bytes[kept..].iter().all(|byte| *byte == 0), "{to}");
            assert!(bytes.len() - kept <= 200, "{to}");
            put(&mut queue, end..end + 3);
            queue.write_out().unwrap();
            check(&open(&path, 9999), 0..end + 3);
        }
    }
}

#[test]
fn a16_a_queue_that_lost_all_its_messages_keeps_its_number_and_can_begin_anew_anywhere() {
    // In the middle of a file, and where one begins.
    for (begin, written) in [(13, false), (13, true), (10, false), (10, true), (0, true)] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("0");
        let mut queue = open(&path, 0);
        put(&mut queue, begin..begin + 9);
        if written {
            queue.write_out().unwrap();
        }
        assert!(queue.retract(0).unwrap());
        assert!(queue.is_empty());
        queue.follow().unwrap();
        assert_eq!(queue.begin()..queue.end(), begin..begin);
        assert_eq!(image(&path).len(), usize::from(begin > 0));
        let mut queue = open(&path, 9999);
        assert_eq!(queue.begin()..queue.end(), begin..begin);
        if begin > 0 {
            put(&mut queue, begin..begin + 1);
            queue.write_out().unwrap();
            check(&open(&path, 9999), begin..begin + 1);
            assert!(queue.retract(0).unwrap());
        }
        put(&mut queue, 0..2);
        queue.write_out().unwrap();
        check(&queue, 0..2);
        check(&open(&path, 9999), 0..2);
    }
}

#[test]
fn e36_files_of_zeros_are_no_data() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("0");
    let mut queue = open(&path, 0);
    put(&mut queue, 0..20);
    queue.write_out().unwrap();
    fs::write(path.join("00000000000000000400"), [0; 200]).unwrap();
    let mut queue = open(&path, 9999);
    check(&queue, 0..20);
    assert_eq!(image(&path).len(), 2);
    put(&mut queue, 20..23);
    check(&queue, 0..23);
    let alone = dir.path().join("1");
    fs::create_dir(&alone).unwrap();
    fs::write(alone.join("00000000000000000000"), [0; 200]).unwrap();
    let mut queue = open(&alone, 9999);
    assert!(queue.is_empty());
    put(&mut queue, 0..1);
}

#[test]
fn an_open_takes_what_is_proven_and_erases_what_is_not() {
    let dir = tempfile::tempdir().unwrap();
    for (number, (proven, end)) in [
        (0, 0),
        (99, 0),
        (100, 1),
        (1000, 10),
        (1250, 12),
        (1900, 19),
    ]
    .into_iter()
    .enumerate()
    {
        let path = dir.path().join(number.to_string());
        let mut queue = open(&path, 0);
        put(&mut queue, 0..25);
        queue.write_out().unwrap();
        // A page the disk never got, behind the point.
        let file = path.join("00000000000000000200");
        let mut bytes = fs::read(&file).unwrap();
        if proven < 1900 {
            bytes[40..100].fill(0);
        }
        fs::write(&file, bytes).unwrap();
        for _ in 0..2 {
            let mut queue = open(&path, proven);
            check(&queue, if end == 0 { 0..0 } else { 0..end });
            let bytes = image(&path).into_values().collect::<Vec<_>>().concat();
            let kept = usize::try_from(end).unwrap() * QUEUE_UNIT_LEN;
            assert!(bytes[kept..].iter().all(|byte| *byte == 0), "{proven}");
            let mut unsynced = Unsynced::default();
            queue.take_unsynced(&mut unsynced);
            assert!(unsynced.is_empty(), "what was erased was synced");
        }
    }
}

#[test]
fn e15_what_was_loaded_is_not_written_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("0");
    let mut queue = open(&path, 0);
    put(&mut queue, 3..25);
    queue.write_out().unwrap();
    let mut unsynced = Unsynced::default();
    queue.take_unsynced(&mut unsynced);
    assert_eq!((unsynced.files.len(), unsynced.dirs.len()), (3, 1));
    let before = image(&path);
    let changed = fs::metadata(path.join("00000000000000000000")).unwrap();
    let mut queue = open(&path, 2500);
    queue.write_out().unwrap();
    let mut unsynced = Unsynced::default();
    queue.take_unsynced(&mut unsynced);
    assert!(unsynced.is_empty());
    assert_eq!(image(&path), before);
    let now = fs::metadata(path.join("00000000000000000000")).unwrap();
    assert_eq!(now.modified().unwrap(), changed.modified().unwrap());
}

#[test]
fn files_below_the_log_go_and_the_last_one_stays() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("0");
    let mut queue = open(&path, 0);
    put(&mut queue, 3..25);
    queue.write_out().unwrap();
    for (min, first, files) in [
        (300, 3, 3),
        (850, 9, 3),
        (900, 9, 3),
        (1000, 10, 2),
        (1100, 11, 2),
        (9900, 25, 1),
    ] {
        assert_eq!(queue.first_from(min).unwrap(), first, "{min}");
        queue.remove_below(min).unwrap();
        assert_eq!(queue.first_from(min).unwrap(), first, "{min}");
        assert_eq!(image(&path).len(), files, "{min}");
    }
    put(&mut queue, 25..27);
    queue.write_out().unwrap();
    check(&queue, 20..27);
    check(&open(&path, 2700), 20..27);
}

#[test]
fn few_files_are_open_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let settings = settings();
    let mut queues: Vec<_> = (0..300)
        .map(|number: u32| {
            let path = dir.path().join(number.to_string());
            let files = QueueFiles::new(settings.clone(), path, number, 0..0);
            ConsumeQueue::open(files, 0).unwrap()
        })
        .collect();
    for round in 0..2 {
        for queue in &mut queues {
            put(queue, round..round + 1);
            queue.write_out().unwrap();
        }
    }
    for queue in &queues {
        check(queue, 0..2);
    }
    let mut open = 0;
    let of_this_test = dir.path().to_str().unwrap();
    for entry in fs::read_dir("/proc/self/fd").unwrap() {
        let target = fs::read_link(entry.unwrap().path()).unwrap_or_default();
        open += usize::from(target.to_string_lossy().starts_with(of_this_test));
    }
    assert!((100..=256).contains(&open), "{open}");
}
