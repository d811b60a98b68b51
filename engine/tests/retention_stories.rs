//! Old segments go from the front, and nothing that somebody still needs.
#![allow(clippy::unwrap_used, reason = "a story ends where it fails")]

mod common;

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use epochlog_engine::{
    DiskLevel, DiskUse, EpochEntry, Error, HeldBack, Message, Offset, RetentionPolicy,
    RetentionTick, Store, StoreConfig,
};

use common::{
    SEGMENT, append, config, epochs, feed, image, master, message, open, segment_path, starts,
};

const DAY_MS: i64 = 24 * 3_600_000;

/// Records in each segment here.
const PER_SEGMENT: usize = 4;

fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    i64::try_from(since.as_millis()).unwrap()
}

const HALF: DiskUse = DiskUse {
    used: 50,
    usable: 50,
};

/// A look in `days` from now, at the hour at which expired segments go.
fn after_days(days: i64) -> RetentionTick {
    RetentionTick {
        now_ms: now_ms() + days * DAY_MS,
        due: true,
        disk: HALF,
        slaves_need: None,
    }
}

fn policy() -> RetentionPolicy {
    RetentionPolicy::default()
}

/// Queue files that each hold the messages of one segment.
fn queued(dir: &Path) -> StoreConfig {
    let mut config = config(dir);
    config.queue_file_size = 20 * PER_SEGMENT as u64;
    config.queue_flush_interval_ms = 3_600_000;
    config
}

/// Five segments, the last one half full, all of it confirmed and durable.
fn filled(dir: &Path) -> Store {
    let store = Store::open(queued(dir)).unwrap();
    store.promote(1).unwrap();
    append(&store, 4 * PER_SEGMENT + 2, 1000);
    settle(&store);
    store
}

fn settle(store: &Store) {
    store.flush().unwrap();
    store.set_confirm(store.end_offset());
    let dispatched = store.wait_for_dispatch(store.end_offset() - 1, Duration::from_secs(60));
    assert_eq!(dispatched, store.end_offset());
}

fn to_len(offset: Offset) -> usize {
    usize::try_from(offset).unwrap()
}

/// Bytes on the disk of a directory and all in it.
fn bytes_under(path: &Path) -> u64 {
    let metadata = fs::metadata(path).unwrap();
    let mut bytes = metadata.blocks() * 512;
    if metadata.is_dir() {
        for entry in fs::read_dir(path).unwrap() {
            bytes += bytes_under(&entry.unwrap().path());
        }
    }
    bytes
}

fn segments_on_disk(dir: &Path) -> Vec<u64> {
    let names = fs::read_dir(dir.join("commitlog")).unwrap();
    let name = |entry: std::io::Result<fs::DirEntry>| {
        let name = entry.unwrap().file_name().into_string().unwrap();
        name.parse().unwrap()
    };
    let mut bases: Vec<u64> = names.map(name).collect();
    bases.sort_unstable();
    bases
}

#[test]
fn expired_segments_go_and_the_log_goes_on_as_if_it_had_begun_there() {
    let dir = tempfile::tempdir().unwrap();
    let store = filled(dir.path());
    let all = image(&store);
    let nothing = store.retain(&policy(), &after_days(2)).unwrap();
    assert_eq!((nothing.min_offset, nothing.held_back), (0, None));
    let held = store.slice(1000, 1000).unwrap();
    let kept = held.to_vec();
    let retained = store.retain(&policy(), &after_days(4)).unwrap();
    assert_eq!(retained.min_offset, 4 * SEGMENT);
    assert_eq!(retained.removed_segments.len(), 4);
    assert_eq!(store.min_offset(), 4 * SEGMENT);
    assert_eq!(segments_on_disk(dir.path()), [4 * SEGMENT]);
    assert_eq!(
        &held[..],
        &kept[..],
        "whoever holds a slice keeps its bytes"
    );
    for offset in [0, 1000, 4 * SEGMENT - 1] {
        assert!(matches!(
            store.slice(offset, 10),
            Err(Error::OutOfRange { min, .. }) if min == 4 * SEGMENT
        ));
    }
    let rest = all[to_len(4 * SEGMENT)..].to_vec();
    assert_eq!(image(&store), rest);
    // Nothing more goes: the last segment stays, however old.
    let again = store.retain(&policy(), &after_days(400)).unwrap();
    assert_eq!(again.removed_segments, Vec::<std::path::PathBuf>::new());
    // Appends, a clean stop and a crash know nothing of it.
    let appended = store.append(&message(b"next")).unwrap();
    assert_eq!(appended.queue_offset, 4 * 4 + 2);
    let (before, list) = (image(&store), store.epochs());
    store.close().unwrap();
    let store = Store::open(queued(dir.path())).unwrap();
    assert!(store.opened().clean);
    assert_eq!((image(&store), store.epochs()), (before.clone(), list));
    drop(store);
    assert_eq!(image(&Store::open(queued(dir.path())).unwrap()), before);
}

#[test]
fn consume_queues_lose_what_is_gone_and_keep_their_numbers() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path()).close().unwrap();
    let store = Store::open(queued(dir.path())).unwrap();
    let queue_dir = dir.path().join("consumequeue/topic/0");
    let files = || fs::read_dir(&queue_dir).unwrap().count();
    assert_eq!(files(), 5);
    store.retain(&policy(), &after_days(4)).unwrap();
    let view = store.queue("topic", 0).unwrap();
    assert_eq!(
        (view.min_offset().unwrap(), view.max_offset().unwrap()),
        (16, 18)
    );
    let entries = view.read(16, 10).unwrap();
    assert_eq!(entries.len(), 2);
    // The files go with the next sync of the queues, which retention asks for.
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    while files() > 1 {
        assert!(std::time::Instant::now() < deadline, "{} files", files());
        std::thread::sleep(Duration::from_millis(5));
    }
    drop(store);
    let store = Store::open(queued(dir.path())).unwrap();
    store.promote(2).unwrap();
    assert_eq!(store.append(&message(b"x")).unwrap().queue_offset, 18);
}

#[test]
fn c08_a_young_segment_keeps_all_older_ones_behind_it() {
    let dir = tempfile::tempdir().unwrap();
    let store = filled(dir.path());
    let file = File::options()
        .write(true)
        .open(segment_path(dir.path(), SEGMENT))
        .unwrap();
    file.set_modified(SystemTime::now() + Duration::from_secs(3 * 24 * 3600))
        .unwrap();
    let retained = store.retain(&policy(), &after_days(4)).unwrap();
    assert_eq!(retained.min_offset, SEGMENT);
    assert_eq!(segments_on_disk(dir.path())[0], SEGMENT);
    assert_eq!(starts(&store).len(), 3 * PER_SEGMENT + 2);
}

#[test]
fn a_file_whose_time_says_nothing_is_as_old_as_its_records() {
    let dir = tempfile::tempdir().unwrap();
    let store = filled(dir.path());
    for base in 0..4 {
        let path = segment_path(dir.path(), base * SEGMENT);
        let file = File::options().write(true).open(path).unwrap();
        file.set_modified(UNIX_EPOCH).unwrap();
    }
    assert_eq!(
        store.retain(&policy(), &after_days(2)).unwrap().min_offset,
        0
    );
}

#[test]
fn nothing_goes_that_is_not_confirmed_and_durable() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(queued(dir.path())).unwrap();
    store.promote(1).unwrap();
    append(&store, 4 * PER_SEGMENT + 2, 1000);
    let held = |store: &Store| {
        let retained = store.retain(&policy(), &after_days(4)).unwrap();
        (retained.min_offset, retained.held_back)
    };
    assert_eq!(held(&store), (0, Some(HeldBack::Unsafe(0))));
    store.flush().unwrap();
    assert_eq!(held(&store), (0, Some(HeldBack::Unsafe(0))));
    let confirm = 2 * SEGMENT + 1000;
    store.set_confirm(confirm);
    let dispatched = store.wait_for_dispatch(confirm - 1, Duration::from_secs(60));
    assert_eq!(dispatched, confirm);
    assert_eq!(held(&store), (2 * SEGMENT, Some(HeldBack::Unsafe(confirm))));
}

#[test]
fn a_pinned_reader_and_a_slave_keep_their_segments_until_the_disk_is_full() {
    let dir = tempfile::tempdir().unwrap();
    let store = filled(dir.path());
    let min = |tick: &RetentionTick| store.retain(&policy(), tick).unwrap().min_offset;
    let mut pin = store.pin(SEGMENT + 1000).unwrap();
    let other = store.pin(SEGMENT + 1000).unwrap();
    assert_eq!(min(&after_days(4)), SEGMENT);
    let retained = store.retain(&policy(), &after_days(4)).unwrap();
    assert_eq!(retained.held_back, Some(HeldBack::Needed(SEGMENT + 1000)));
    pin.advance(3 * SEGMENT);
    pin.advance(0);
    assert_eq!(pin.offset(), 3 * SEGMENT);
    assert_eq!(min(&after_days(4)), SEGMENT, "the other one is there");
    drop(other);
    let mut slave = after_days(4);
    slave.slaves_need = Some(2 * SEGMENT);
    assert_eq!(min(&slave), 2 * SEGMENT);
    assert_eq!(min(&after_days(4)), 3 * SEGMENT);
    slave.slaves_need = Some(3 * SEGMENT);
    slave.disk = DiskUse {
        used: 91,
        usable: 9,
    };
    assert_eq!(min(&slave), 4 * SEGMENT);
    drop(pin);
    for offset in [4 * SEGMENT - 1, store.end_offset() + 1] {
        assert!(matches!(store.pin(offset), Err(Error::OutOfRange { .. })));
    }
    drop(store.pin(store.end_offset()).unwrap());
    drop(store.pin(4 * SEGMENT).unwrap());
}

#[test]
fn h12_a_full_disk_refuses_writes_before_it_breaks_one_and_takes_them_again() {
    let dir = tempfile::tempdir().unwrap();
    let store = filled(dir.path());
    let end = store.end_offset();
    let mut tick = after_days(0);
    tick.due = false;
    // 96 KiB of 100 KiB: four segments of 4 KiB go, more would have to.
    tick.disk = DiskUse {
        used: 96 << 10,
        usable: 4 << 10,
    };
    let retained = store.retain(&policy(), &tick).unwrap();
    assert_eq!(retained.level, DiskLevel::Full);
    assert_eq!(retained.min_offset, 3 * SEGMENT, "as many as it takes");
    match store.append(&message(b"x")) {
        Err(Error::DiskFull { path, used_percent }) => {
            assert_eq!(used_percent, 96);
            assert_eq!(path, fs::canonicalize(dir.path()).unwrap());
        }
        other => panic!("{other:?}"),
    }
    assert!(matches!(
        store.append_batch(&[message(b"x")]),
        Err(Error::DiskFull { .. })
    ));
    assert_eq!(store.end_offset(), end, "nothing was written");
    store.slice(end - 1000, 1000).unwrap();
    tick.disk = HALF;
    store.retain(&policy(), &tick).unwrap();
    store.append(&message(b"x")).unwrap();
    let disk = store.disk_use().unwrap();
    assert!(disk.used > 0 && disk.usable > 0 && disk.percent() <= 100);
}

#[test]
fn epochs_go_with_their_bytes_except_one_that_ends_where_the_log_begins() {
    let from = tempfile::tempdir().unwrap();
    let bytes = image(&filled(from.path()));
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(queued(dir.path())).unwrap();
    let starts = [(1, 0), (2, 1000), (3, 3000), (4, 8192), (5, 12_288)];
    let mut receiver = store.receive().unwrap();
    for (place, (epoch, start)) in starts.into_iter().enumerate() {
        receiver.adopt_epoch(EpochEntry { epoch, start }).unwrap();
        let end = starts
            .get(place + 1)
            .map_or(bytes.len(), |next| to_len(next.1));
        feed(&mut receiver, &bytes[to_len(start)..end], 700);
    }
    receiver.finish().unwrap();
    settle(&store);
    assert_eq!(*store.epochs(), epochs(&starts));
    let mut tick = after_days(4);
    tick.slaves_need = Some(SEGMENT);
    store.retain(&policy(), &tick).unwrap();
    assert_eq!(store.min_offset(), SEGMENT);
    assert_eq!(*store.epochs(), epochs(&starts[2..]));
    tick.slaves_need = Some(2 * SEGMENT);
    store.retain(&policy(), &tick).unwrap();
    // Epoch 3 ends at 8192: a slave whose log ends there can still be told that it agrees.
    assert_eq!(*store.epochs(), epochs(&starts[2..]));
    tick.slaves_need = Some(3 * SEGMENT);
    store.retain(&policy(), &tick).unwrap();
    assert_eq!(*store.epochs(), epochs(&starts[3..]));
    store.retain(&policy(), &after_days(4)).unwrap();
    assert_eq!(*store.epochs(), epochs(&starts[4..]));
    drop(store);
    let store = Store::open(queued(dir.path())).unwrap();
    assert_eq!(*store.epochs(), epochs(&starts[4..]));
}

#[test]
fn a_slave_gives_up_old_segments_while_it_receives() {
    let from = tempfile::tempdir().unwrap();
    let bytes = image(&filled(from.path()));
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(queued(dir.path())).unwrap();
    let mut receiver = store.receive().unwrap();
    receiver.adopt_epochs(&epochs(&[(1, 0)])).unwrap();
    let half = 10_500;
    feed(&mut receiver, &bytes[..half], 700);
    settle(&store);
    let retained = store.retain(&policy(), &after_days(4)).unwrap();
    assert_eq!(retained.min_offset, 2 * SEGMENT);
    feed(&mut receiver, &bytes[half..], 700);
    receiver.finish().unwrap();
    assert_eq!(image(&store), bytes[to_len(2 * SEGMENT)..]);
    settle(&store);
    // A cut behind the first offset works as before, and one below it is refused.
    let list = store.epochs();
    assert!(matches!(
        store.truncate(SEGMENT, (*list).clone(), "test"),
        Err(Error::OutOfRange { .. })
    ));
    store
        .truncate(3 * SEGMENT, (*list).clone(), "test")
        .unwrap();
    assert_eq!(store.end_offset(), 3 * SEGMENT);
}

#[test]
fn copies_of_cut_bytes_go_by_age_by_size_and_when_the_disk_fills() {
    let dir = tempfile::tempdir().unwrap();
    let store = filled(dir.path());
    store.fence();
    let list = store.epochs();
    let mut saved = Vec::new();
    for to in [4 * SEGMENT, 3 * SEGMENT, 2 * SEGMENT] {
        let cut = store.truncate(to, (*list).clone(), "test").unwrap();
        saved.push(cut.saved_to.unwrap());
        // The file system's clock goes in steps.
        std::thread::sleep(Duration::from_millis(20));
    }
    fs::create_dir_all(dir.path().join("aside")).unwrap();
    let aside = dir.path().join("aside/index");
    fs::create_dir(&aside).unwrap();
    fs::write(aside.join("file"), vec![1; 5000]).unwrap();
    let mut policy = policy();
    policy.reserved_ms = None;
    let mut tick = after_days(1);
    tick.due = false;
    let removed = |store: &Store, policy: &RetentionPolicy, tick: &RetentionTick| {
        store.retain(policy, tick).unwrap().removed_saved
    };
    assert!(removed(&store, &policy, &tick).is_empty());
    let all: u64 = saved
        .iter()
        .chain([&aside])
        .map(|path| bytes_under(path))
        .sum();
    policy.saved_max_bytes = Some(all);
    assert!(
        removed(&store, &policy, &tick).is_empty(),
        "looked at again when due"
    );
    tick.due = true;
    assert!(removed(&store, &policy, &tick).is_empty(), "under the size");
    policy.saved_max_bytes = Some(all - 1);
    assert_eq!(removed(&store, &policy, &tick), [saved.remove(0)]);
    policy.saved_max_bytes = Some(0);
    assert_eq!(removed(&store, &policy, &tick), saved);
    assert!(aside.exists(), "the newest stays");
    tick.now_ms += 7 * DAY_MS;
    assert_eq!(
        removed(&store, &policy, &tick),
        std::slice::from_ref(&aside)
    );
    assert!(!aside.exists());
    fs::write(dir.path().join("truncated/note"), "by hand").unwrap();
    tick.disk = DiskUse {
        used: 86,
        usable: 14,
    };
    (tick.due, tick.now_ms) = (false, now_ms());
    let note = fs::canonicalize(dir.path()).unwrap().join("truncated/note");
    assert_eq!(removed(&store, &policy, &tick), [note]);
}

/// C19: no file is unmapped under whoever holds bytes of it.
#[test]
fn c07_whoever_reads_while_the_head_goes_gets_the_right_bytes_or_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    store.promote(1).unwrap();
    append(&store, 30 * PER_SEGMENT, 1000);
    settle(&store);
    let all = image(&store);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for seed in 0..2 {
            let (store, all, done) = (&store, &all, &done);
            scope.spawn(move || {
                let mut random = common::Random::new(seed);
                while !done.load(Ordering::SeqCst) {
                    let at = random.below(all.len());
                    match store.slice(at as Offset, 500) {
                        Ok(slice) => assert_eq!(slice[..], all[at..at + slice.len()]),
                        Err(Error::OutOfRange { min, .. }) => assert!((at as u64) < min),
                        Err(error) => panic!("{error}"),
                    }
                }
            });
        }
        let policy = RetentionPolicy {
            batch_max: 1,
            ..policy()
        };
        while store.min_offset() < 29 * SEGMENT {
            let before = store.min_offset();
            let retained = store.retain(&policy, &after_days(4)).unwrap();
            assert_eq!(retained.min_offset, before + SEGMENT);
        }
        done.store(true, Ordering::SeqCst);
    });
}

#[test]
fn a_store_that_is_closed_or_empty_has_nothing_to_give_up() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let retained = store.retain(&policy(), &after_days(4)).unwrap();
    assert_eq!((retained.min_offset, retained.held_back), (0, None));
    store.close().unwrap();
    assert!(matches!(
        store.retain(&policy(), &after_days(4)),
        Err(Error::Closed)
    ));
    assert!(matches!(store.pin(0), Err(Error::Closed)));
    drop(master(tempfile::tempdir().unwrap().path(), 1));
}

#[test]
fn a_queue_that_lost_all_its_messages_goes_on_with_its_number() {
    let rare = || Message::new("rare", b"x", common::HOST, 0);
    let from = tempfile::tempdir().unwrap();
    let master = Store::open(queued(from.path())).unwrap();
    master.promote(1).unwrap();
    assert_eq!(master.append(&rare()).unwrap().queue_offset, 0);
    append(&master, 4 * PER_SEGMENT, 1000);
    let last = master.append(&rare()).unwrap();
    assert_eq!(last.queue_offset, 1);
    let base = 4 * SEGMENT;
    let bytes = image(&master)[to_len(base)..].to_vec();
    // One message of the other queue is left, or none at all.
    for to in [last.offset, base] {
        for clean in [false, true] {
            let dir = tempfile::tempdir().unwrap();
            let store = Store::open(queued(dir.path())).unwrap();
            let mut receiver = store.receive().unwrap();
            receiver.start_at(base).unwrap();
            receiver.adopt_epochs(&epochs(&[(1, 0)])).unwrap();
            feed(&mut receiver, &bytes, 700);
            receiver.finish().unwrap();
            settle(&store);
            store.truncate(to, epochs(&[(1, 0)]), "test").unwrap();
            if clean {
                store.close().unwrap();
            }
            drop(store);
            let store = Store::open(queued(dir.path())).unwrap();
            assert_eq!(store.opened().clean, clean);
            store.promote(2).unwrap();
            let next = |message: &Message<'_>| store.append(message).unwrap().queue_offset;
            assert_eq!(next(&rare()), 1, "cut to {to}");
            assert_eq!(next(&rare()), 2);
            if to > base {
                assert_eq!(next(&message(b"x")), 16);
            }
            settle(&store);
            let queue = store.queue("rare", 0).unwrap();
            assert_eq!(queue.min_offset().unwrap(), 1);
            assert_eq!(queue.read(1, 10).unwrap().len(), 2);
        }
    }
}
