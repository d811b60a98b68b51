//! A life of a store, stopped in front of every system call that changes its folder.
//!
//! Two models. A kill keeps what was done, synced or not. A power loss keeps of each file any mixture of what
//! was synced and what was there, sector by sector, and of each name the old or the new one. After both:
//! opening succeeds; the log is what was written, from its first byte to an end no lower than what a
//! sync had vouched for; each byte has the epoch of its writer (P6); nothing of a tail whose cut had
//! succeeded is there (P5); nothing behind the end parses; opening again gives the same. A third way
//! fails one call and lets the process live: nothing that was acknowledged is lost by that either.

use std::path::Path;
use std::time::Duration;

use super::{append, check_invariants, config, copy, epochs, image, in_memory};
use crate::durable::watch::{Fate, Watching};
use crate::epoch_list::EpochList;
use crate::error::Error;
use crate::position::{Epoch, EpochEntry, Offset};
use crate::retention::{DiskUse, RetentionPolicy, RetentionTick};
use crate::state_file::StateFile;
use crate::store::Store;

/// What may be in the log, and who wrote it.
#[derive(Clone, Default)]
struct History {
    bytes: Vec<u8>,
    epochs: EpochList,
}

/// A store, and what is known about it from the answers it gave.
struct Life {
    store: Store,
    now: History,
    /// The tail of a cut that has not returned yet may still be there.
    before_cut: Option<History>,
    /// Everything below it was said to be durable.
    floor: Offset,
    promised: Option<Epoch>,
    /// Retention may have come so far.
    most_min: Offset,
}

/// What is still known when the process is gone.
struct Memory {
    now: History,
    before_cut: Option<History>,
    floor: Offset,
    promised: Option<Epoch>,
    most_min: Offset,
}

impl Life {
    fn begin(dir: &Path) -> Result<Self, Error> {
        let mut config = config(dir);
        config.queue_flush_interval_ms = 3_600_000;
        config.queue_file_size = 80;
        config.ready_ahead_bytes = 3 * super::SEGMENT;
        let store = Store::open(config)?;
        Ok(Self {
            now: History {
                bytes: [vec![0; len(store.min_offset())], image(&store)].concat(),
                epochs: (*store.epochs()).clone(),
            },
            before_cut: None,
            floor: store.end_offset(),
            promised: store.promises().max_epoch,
            most_min: store.min_offset(),
            store,
        })
    }

    fn promote(&mut self, epoch: Epoch) -> Result<(), Error> {
        let entry = self.store.promote(epoch)?;
        self.promised = Some(epoch);
        self.now.epochs.append(entry).unwrap();
        Ok(())
    }

    fn append(&mut self, count: usize, fill: u8) -> Result<(), Error> {
        let body = vec![fill; 900];
        for _ in 0..count {
            self.store.append(&super::message(&body))?;
            self.look();
        }
        Ok(())
    }

    /// Takes what the store shows now for written.
    fn look(&mut self) {
        let at = len(self.store.min_offset());
        self.now.bytes.truncate(at);
        self.now.bytes.extend(image(&self.store));
    }

    fn flush(&mut self) -> Result<(), Error> {
        self.floor = self.store.flush()?;
        Ok(())
    }

    fn confirm(&mut self) {
        let end = self.store.end_offset();
        if end == self.store.min_offset() {
            return;
        }
        self.store.set_confirm(end);
        let limit = Duration::from_secs(60);
        assert_eq!(self.store.wait_for_dispatch(end - 1, limit), end);
    }

    fn sync_queues(&mut self) -> Result<(), Error> {
        self.store.shared.sync_queues()
    }

    fn make_ready(&mut self) -> Result<(), Error> {
        self.store.shared.log.make_ready()
    }

    fn cut(&mut self, to: Offset, list: EpochList) -> Result<(), Error> {
        self.store.fence();
        self.before_cut = Some(self.now.clone());
        self.now.bytes.truncate(len(to));
        self.now.epochs = list.clone();
        self.floor = self.floor.min(to);
        self.store.truncate(to, list, "test")?;
        self.before_cut = None;
        // Nothing is synced where nothing was cut.
        self.floor = self.store.flushed_offset();
        Ok(())
    }

    fn retain(&mut self) -> Result<(), Error> {
        self.most_min = Offset::MAX;
        let tick = RetentionTick {
            now_ms: i64::MAX,
            due: true,
            disk: DiskUse::default(),
            slaves_need: None,
        };
        let retained = self.store.retain(&RetentionPolicy::default(), &tick)?;
        self.most_min = retained.min_offset;
        Ok(())
    }

    fn receive(&mut self, bytes: &[u8], entry: EpochEntry) -> Result<(), Error> {
        self.store.demote(entry.epoch)?;
        self.promised = Some(entry.epoch);
        let mut receiver = self.store.receive()?;
        receiver.adopt_epoch(entry)?;
        self.now.epochs.append(entry).unwrap();
        for piece in bytes.chunks(700) {
            let mut rest = piece;
            while !rest.is_empty() {
                let mut window = receiver.window(rest.len())?;
                let n = window.len();
                window.as_mut_slice().copy_from_slice(&rest[..n]);
                receiver.filled(window, n);
                // Whole records that were not published yet may be found too.
                self.now.bytes.extend_from_slice(&rest[..n]);
                rest = &rest[n..];
                receiver.publish()?;
            }
        }
        receiver.finish()?;
        self.now.bytes.truncate(len(self.store.end_offset()));
        Ok(())
    }

    fn close(&mut self) -> Result<(), Error> {
        self.store.close()?;
        self.floor = self.now.bytes.len() as Offset;
        Ok(())
    }

    /// The process is gone.
    fn end(self) -> Memory {
        self.store.abandon();
        let Self {
            now,
            before_cut,
            floor,
            promised,
            most_min,
            ..
        } = self;
        Memory {
            now,
            before_cut,
            floor,
            promised,
            most_min,
        }
    }
}

fn len(offset: Offset) -> usize {
    usize::try_from(offset).unwrap()
}

impl Memory {
    /// Opens what is left in `dir` and holds it against what is known.
    fn check(&self, dir: &Path, what: &str) {
        let mut config = config(dir);
        config.queue_file_size = 80;
        let store = match Store::open(config) {
            Ok(store) => store,
            Err(error) => panic!("{what}: {error}"),
        };
        let (min, end) = (store.min_offset(), store.end_offset());
        assert!(min <= self.most_min, "{what}: begins at {min}");
        assert!(end >= self.floor, "{what}: {end} < {}", self.floor);
        let found = image(&store);
        let is = |history: &History| history.bytes.get(len(min)..len(end)) == Some(&found[..]);
        let history = [Some(&self.now), self.before_cut.as_ref()];
        let history = history.into_iter().flatten().find(|it| is(it));
        let history = history.unwrap_or_else(|| panic!("{what}: other bytes in [{min}, {end})"));
        let list = store.epochs();
        let epoch = |list: &EpochList, at| list.covering(at).map(|it| it.entry.epoch);
        for view in store.records(min..end) {
            let at = view.unwrap().record().physical_offset();
            let (found, wrote) = (epoch(&list, at), epoch(&history.epochs, at));
            assert_eq!(found, wrote, "{what}: at {at}");
        }
        assert!(list.last().is_none_or(|last| last.start <= end), "{what}");
        assert!(store.promises().max_epoch >= self.promised, "{what}");
        check_invariants(dir, &store);
        // It goes on under a newer epoch.
        drop(store);
        let store = super::open(dir);
        store.promote(99).unwrap();
        append(&store, 1, 1000, b'z');
        store.close().unwrap();
    }
}

/// The same seed gives the same picks.
struct Picks(u64);

impl Picks {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005);
        self.0 = self.0.wrapping_add(1_442_695_040_888_963_407);
        let z = (self.0 >> 33) ^ self.0;
        z.wrapping_mul(0xFF51_AFD7_ED55_8CCD) >> 32
    }
}

/// `EPOCHLOG_SEED`, or one from the clock.
fn seed() -> u64 {
    if let Ok(seed) = std::env::var("EPOCHLOG_SEED") {
        return seed.parse().expect("EPOCHLOG_SEED is a number");
    }
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    u64::from(since.unwrap().subsec_nanos())
}

/// How many power losses are tried at each call.
fn losses() -> u64 {
    let set = std::env::var("EPOCHLOG_SEEDS").ok();
    set.map_or(2, |set| set.parse().expect("EPOCHLOG_SEEDS is a number"))
}

fn lose_power(watching: &Watching, picks: &mut Picks) -> tempfile::TempDir {
    let dir = in_memory();
    // Sometimes hardly anything reached the disk, sometimes nearly all.
    let share = picks.next() % 5;
    watching.lose_power(dir.path(), &mut || picks.next() % 4 < share);
    let path = dir.path().join(crate::STATE_FILE_NAME);
    if let Some(mut state) = StateFile::read(&path).unwrap() {
        state.boot_id = [9; 16];
        StateFile::open(path, state).unwrap();
    }
    dir
}

/// Runs `act` on copies of what `prepare` made, once for each call it makes and each way to end there.
fn every_call(
    name: &str,
    prepare: impl Fn(&Path),
    act: impl Fn(&mut Life) -> Result<(), Error>,
) -> usize {
    let seed = seed();
    eprintln!("{name}: EPOCHLOG_SEED={seed}");
    let mut picks = Picks(seed);
    let template = in_memory();
    prepare(template.path());
    let mut count = 0;
    loop {
        let mut reached = false;
        for fate in [Fate::Die(count), Fate::Fail(count)] {
            let dir = in_memory();
            copy(template.path(), dir.path());
            let watching = Watching::begin(dir.path(), Fate::Through);
            let mut life = Life::begin(dir.path()).unwrap();
            watching.set(fate);
            let done = act(&mut life);
            reached |= watching.calls() > count;
            let what = format!("{name}: {fate:?}, seed {seed}, {:?}", done.err());
            let lost: Vec<_> = match fate {
                Fate::Die(_) => (0..losses())
                    .map(|_| lose_power(&watching, &mut picks))
                    .collect(),
                _ => Vec::new(),
            };
            let memory = life.end();
            drop(watching);
            memory.check(dir.path(), &what);
            for lost in lost {
                memory.check(lost.path(), &format!("{what}, power lost"));
            }
        }
        if !reached {
            return count;
        }
        count += 1;
        assert!(count < 1000, "{name} has no end");
    }
}

/// Nothing at all.
fn nothing(_: &Path) {}

/// Ten records under [1:0, 2:5096], in three segments, the last five not known to be durable.
fn two_epochs(dir: &Path) {
    let store = super::open(dir);
    store.promote(1).unwrap();
    append(&store, 5, 1000, b'1');
    store.promote(2).unwrap();
    append(&store, 5, 1000, b'2');
    store.abandon();
}

/// H09: no mark reaches the disk before what it vouches for.
#[test]
fn appends_flushes_rolls_and_a_clean_stop() {
    let calls = every_call("append", nothing, |life| {
        life.promote(1)?;
        life.append(2, b'a')?;
        life.flush()?;
        life.append(3, b'b')?;
        life.flush()?;
        life.confirm();
        life.append(4, b'c')?;
        life.sync_queues()?;
        life.close()
    });
    assert!(calls > 40, "{calls}");
}

#[test]
fn segments_made_ahead_rolled_into_and_left_by_a_clean_stop() {
    let calls = every_call("ready", nothing, |life| {
        life.promote(1)?;
        life.make_ready()?;
        life.append(6, b'a')?;
        life.flush()?;
        life.make_ready()?;
        life.append(4, b'b')?;
        life.close()
    });
    assert!(calls > 40, "{calls}");
}

/// A closed store with two segments ready behind its log.
fn two_left(dir: &Path) {
    let store = super::open(dir);
    store.promote(1).unwrap();
    append(&store, 5, 1000, b'1');
    store.shared.log.make_ready().unwrap();
    store.close().unwrap();
}

#[test]
fn p5_a_cut_with_segments_ready_behind_it() {
    for to in [5096, 2000, 0] {
        let list = || match to {
            0 => epochs(&[]),
            _ => epochs(&[(1, 0)]),
        };
        let calls = every_call("ready cut", two_left, |life| {
            // Two were taken over; one more is made, and the rest by the second call.
            life.promote(2)?;
            life.append(4, b'2')?;
            life.make_ready()?;
            life.cut(to, list())?;
            life.promote(5)?;
            life.append(2, b'5')?;
            life.make_ready()?;
            life.append(8, b'6')
        });
        assert!(calls > 60, "{calls}");
    }
}

#[test]
fn elections_without_writes_and_lists_that_change_without_a_cut() {
    let calls = every_call("epochs", two_epochs, |life| {
        life.promote(3)?;
        life.promote(4)?;
        life.append(1, b'4')?;
        life.flush()?;
        life.promote(6)?;
        let end = life.store.end_offset();
        life.cut(end, epochs(&[(1, 0), (2, 5096), (4, 10_192), (7, end)]))?;
        life.promote(8)?;
        life.append(1, b'8')
    });
    assert!(calls > 40, "{calls}");
}

#[test]
fn p5_a_cut_and_what_is_written_after_it() {
    for to in [2000, 4096, 6096, 0] {
        let list = || match to {
            0 => epochs(&[]),
            6096 => epochs(&[(1, 0), (2, 5096)]),
            _ => epochs(&[(1, 0)]),
        };
        let calls = every_call("cut", two_epochs, |life| {
            life.confirm();
            life.sync_queues()?;
            life.cut(to, list())?;
            life.promote(5)?;
            life.append(2, b'5')
        });
        assert!(calls > 30, "{calls}");
    }
}

#[test]
fn retention_and_what_is_written_after_it() {
    let calls = every_call("retention", two_epochs, |life| {
        life.promote(3)?;
        life.append(1, b'3')?;
        life.flush()?;
        life.confirm();
        life.retain()?;
        life.append(1, b'4')?;
        life.sync_queues()?;
        life.close()
    });
    assert!(calls > 40, "{calls}");
}

#[test]
fn bytes_received_under_a_new_epoch() {
    let source = in_memory();
    two_epochs(source.path());
    let store = super::open(source.path());
    store.promote(3).unwrap();
    let end = store.end_offset();
    append(&store, 3, 1000, b'3');
    let bytes = image(&store)[len(end)..].to_vec();
    drop(store);
    let to = source.path().to_path_buf();
    let before = in_memory();
    copy(&to, before.path());
    let cut = super::open(before.path());
    cut.truncate(end, epochs(&[(1, 0), (2, 5096)]), "test")
        .unwrap();
    cut.abandon();
    let calls = every_call(
        "receive",
        |dir| copy(before.path(), dir),
        |life| {
            life.receive(
                &bytes,
                EpochEntry {
                    epoch: 3,
                    start: end,
                },
            )?;
            life.flush()?;
            life.close()
        },
    );
    assert!(calls > 20, "{calls}");
}

/// An open is stopped too: whatever it had done, the next one ends where it would have.
#[test]
fn opens_stopped_anywhere_and_repeated() {
    let seed = seed();
    eprintln!("open: EPOCHLOG_SEED={seed}");
    let mut picks = Picks(seed);
    let template = in_memory();
    two_epochs(template.path());
    // A torn record, and whole ones behind it.
    let torn = template.path().join("commitlog/00000000000000004096");
    let mut bytes = std::fs::read(&torn).unwrap();
    bytes[2200..2300].fill(0);
    std::fs::write(&torn, bytes).unwrap();
    let (end, list) = (4096 + 2000, epochs(&[(1, 0), (2, 5096)]));
    let ends_there = |dir: &Path, what: &str| {
        let store = super::open(dir);
        assert_eq!(store.end_offset(), end, "{what}");
        assert_eq!(*store.epochs(), list, "{what}");
        check_invariants(dir, &store);
    };
    for count in 0..200 {
        let dir = in_memory();
        copy(template.path(), dir.path());
        let watching = Watching::begin(dir.path(), Fate::Die(count));
        let opened = Store::open(config(dir.path()));
        let done = watching.calls() <= count;
        let lost = lose_power(&watching, &mut picks);
        drop(opened);
        drop(watching);
        let what = format!("stopped at call {count}, seed {seed}");
        ends_there(dir.path(), &what);
        ends_there(lost.path(), &format!("{what}, power lost"));
        if done {
            assert!(count > 10, "{count}");
            return;
        }
    }
    panic!("an open has no end");
}

#[test]
fn a_roll_that_fails_at_any_call_can_be_tried_again() {
    let template = in_memory();
    let store = super::open(template.path());
    store.promote(1).unwrap();
    append(&store, 4, 1000, b'1');
    drop(store);
    for count in 0..50 {
        let dir = in_memory();
        copy(template.path(), dir.path());
        let watching = Watching::begin(dir.path(), Fate::Through);
        let store = super::open(dir.path());
        store.promote(1).unwrap();
        watching.set(Fate::Fail(count));
        let body = [b'x'; 500];
        let refused = store.append(&super::message(&body)).is_err();
        assert_eq!(refused, watching.calls() > count);
        drop(watching);
        if refused {
            assert_eq!(store.end_offset(), 4000, "call {count}");
            store.append(&super::message(&body)).unwrap();
        }
        check_invariants(dir.path(), &store);
        if !refused {
            assert!(count >= 6, "{count} calls");
            return;
        }
    }
    panic!("a roll has no end");
}

/// What was recovered from memory is on the disk before anybody is shown it.
#[test]
fn e05_what_a_recovery_showed_survives_the_next_power_loss() {
    let dir = in_memory();
    let watching = Watching::begin(dir.path(), Fate::Through);
    let store = super::open(dir.path());
    store.promote(1).unwrap();
    append(&store, 7, 1000, b'1');
    store.abandon();
    drop(store);
    let store = super::open(dir.path());
    let shown = image(&store);
    assert_eq!(starts(&store), 7);
    let lost = in_memory();
    watching.lose_power(lost.path(), &mut || false);
    store.abandon();
    drop(watching);
    let store = super::open(lost.path());
    assert!(image(&store) == shown);
    check_invariants(lost.path(), &store);
}

fn starts(store: &Store) -> usize {
    store.records(0..store.end_offset()).count()
}

/// One more thing that may happen to a store.
fn random_act(life: &mut Life, picks: &mut Picks, next_epoch: &mut Epoch) -> Result<(), Error> {
    match picks.next() % 12 {
        10 | 11 => life.make_ready(),
        0..=3 if life.store.master_epoch().is_some() => {
            let count = 1 + usize::try_from(picks.next() % 3).unwrap();
            life.append(count, b'a' + u8::try_from(picks.next() % 26).unwrap())
        }
        4 | 5 => life.flush(),
        6 => {
            life.confirm();
            life.sync_queues()
        }
        7 => {
            let (min, end) = (life.store.min_offset(), life.store.end_offset());
            let records = life.store.records(min..end);
            let starts: Vec<_> = records
                .map(|view| view.unwrap().record().physical_offset())
                .collect();
            let at = usize::try_from(picks.next()).unwrap() % (starts.len() + 1);
            let to = starts.get(at).copied().unwrap_or(end);
            let mut list = (*life.store.epochs()).clone();
            list.drop_starting_after(to);
            life.cut(to, list)
        }
        8 => {
            life.confirm();
            life.retain()
        }
        _ => {
            *next_epoch += 1;
            life.promote(*next_epoch)
        }
    }
}

#[test]
fn a_random_life_ended_anywhere() {
    let first = seed();
    for seed in first..first + 8 * losses() {
        let mut picks = Picks(seed);
        let dir = in_memory();
        let watching = Watching::begin(dir.path(), Fate::Through);
        let mut life = Life::begin(dir.path()).unwrap();
        let mut epoch = 1;
        life.promote(epoch).unwrap();
        life.append(1, b'0').unwrap();
        let calls = usize::try_from(picks.next() % 300).unwrap();
        watching.set(Fate::Die(calls));
        let ended = (0..80).find_map(|_| random_act(&mut life, &mut picks, &mut epoch).err());
        let lost = lose_power(&watching, &mut picks);
        let memory = life.end();
        drop(watching);
        let what = format!("EPOCHLOG_SEED={seed}, died at {calls}: {ended:?}");
        memory.check(dir.path(), &what);
        memory.check(lost.path(), &format!("{what}, power lost"));
    }
}
