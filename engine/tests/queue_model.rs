//! A random life of a store, held against a list of messages: appends, confirmations, cuts, syncs, stops
//! and kills. After each step every queue shows exactly what the list says, and at the end the files are
//! those that are made anew from the log.
//!
//! Each run prints its seed; `EPOCHLOG_SEED=n cargo test --test queue_model` runs that one.

#![expect(
    clippy::unwrap_used,
    reason = "a test stops where its own input is wrong"
)]

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use common::HOST;
use epochlog_engine::{Message, Offset, QUEUE_UNIT_LEN, Store, StoreConfig};

const LONG: Duration = Duration::from_secs(60);
const TOPICS: [&str; 3] = ["a", "b", "%RETRY%a"];
const SEEDS: u64 = 6;
const STEPS: usize = 100;

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() % limit.max(1) as u64).unwrap()
    }
}

fn config(dir: &Path) -> StoreConfig {
    let mut config = common::config(dir);
    config.queue_file_size = 10 * QUEUE_UNIT_LEN as u64;
    config.queue_flush_interval_ms = 3_600_000;
    config
}

#[derive(Clone, Debug)]
struct Stored {
    topic: &'static str,
    queue_id: i32,
    queue_offset: i64,
    start: Offset,
    end: Offset,
}

struct Life {
    dir: PathBuf,
    store: Store,
    epoch: u32,
    log: Vec<Stored>,
    confirm: Offset,
    random: Random,
}

impl Life {
    fn new(dir: &Path, seed: u64) -> Self {
        let store = Store::open(config(dir)).unwrap();
        store.promote(1).unwrap();
        Self {
            dir: dir.to_path_buf(),
            store,
            epoch: 1,
            log: Vec::new(),
            confirm: 0,
            random: Random(seed),
        }
    }

    fn step(&mut self) {
        match self.random.below(100) {
            0..55 => self.append(),
            55..80 => self.raise(),
            80..86 => self.store.sync_queues().unwrap(),
            86..93 => self.cut(),
            93..97 => self.again(false),
            _ => self.again(true),
        }
    }

    fn append(&mut self) {
        for _ in 0..=self.random.below(12) {
            let topic = TOPICS[self.random.below(TOPICS.len())];
            let queue_id = i32::try_from(self.random.below(3)).unwrap();
            let body = vec![b'x'; self.random.below(200)];
            let mut message = Message::new(topic, &body, HOST, 0);
            message.queue_id = queue_id;
            let appended = self.store.append(&message).unwrap();
            let in_queue = |it: &&Stored| (it.topic, it.queue_id) == (topic, queue_id);
            let last = self.log.iter().rev().find(in_queue);
            let next = last.map_or(0, |last| last.queue_offset + 1);
            assert_eq!(appended.queue_offset, next, "{topic}/{queue_id}");
            self.log.push(Stored {
                topic,
                queue_id,
                queue_offset: next,
                start: appended.offset,
                end: appended.end,
            });
        }
    }

    /// Somewhere between the confirm offset and the end, now and then inside a record.
    fn raise(&mut self) {
        let room = self.store.end_offset() - self.confirm;
        let room = usize::try_from(room).unwrap();
        self.confirm += self.random.below(room + 1) as u64;
        self.store.set_confirm(self.confirm);
    }

    fn cut(&mut self) {
        if self.log.is_empty() {
            return;
        }
        let near = self.random.below(self.log.len().min(40));
        let at = self.log.len() - 1 - near;
        let to = self.log[at].start;
        self.epoch += 1;
        self.store.demote(self.epoch).unwrap();
        let mut list = (*self.store.epochs()).clone();
        list.drop_starting_after(to);
        self.store.truncate(to, list, "model").unwrap();
        self.log.truncate(at);
        self.confirm = self.confirm.min(to);
        self.epoch += 1;
        self.store.promote(self.epoch).unwrap();
    }

    fn again(&mut self, close: bool) {
        if close {
            self.store.close().unwrap();
        } else {
            self.store.abandon();
        }
        self.store = Store::open(config(&self.dir)).unwrap();
        assert!(!self.store.opened().queues_verified);
        let confirm = self.store.confirm_offset();
        assert!(confirm <= self.confirm, "{confirm} > {}", self.confirm);
        self.confirm = confirm;
        self.epoch += 1;
        self.store.promote(self.epoch).unwrap();
    }

    fn check(&self) {
        assert_eq!(self.store.confirm_offset(), self.confirm);
        let mut queues = BTreeMap::<(&str, i32), Vec<&Stored>>::new();
        for stored in self.log.iter().filter(|it| it.end <= self.confirm) {
            let key = (stored.topic, stored.queue_id);
            queues.entry(key).or_default().push(stored);
        }
        let last = queues.values().flatten().map(|it| it.end).max();
        while let Some(last) = last
            && self.store.dispatched_offset() < last
        {
            let before = self.store.dispatched_offset();
            assert!(self.store.wait_for_dispatch(before, LONG) > before);
        }
        for topic in TOPICS {
            for queue_id in 0..3 {
                let expected = queues.remove(&(topic, queue_id)).unwrap_or_default();
                let Some(queue) = self.store.queue(topic, queue_id) else {
                    assert!(expected.is_empty(), "{topic}/{queue_id}");
                    continue;
                };
                let (min, max) = (queue.min_offset().unwrap(), queue.max_offset().unwrap());
                let found: Vec<_> = queue
                    .read(min, usize::MAX)
                    .unwrap()
                    .iter()
                    .map(|it| (it.queue_offset, it.unit.offset, it.unit.end()))
                    .collect();
                let expected: Vec<_> = expected
                    .iter()
                    .map(|it| (it.queue_offset, it.start, it.end))
                    .collect();
                assert_eq!(found, expected, "{topic}/{queue_id}");
                assert_eq!(max - min, i64::try_from(found.len()).unwrap());
            }
        }
        let counts = self.store.queue_counts();
        assert_eq!((counts.known, counts.gaps, counts.clamped), (0, 0, 0));
        assert_eq!((counts.repaired, counts.restarts), (0, 0));
    }

    fn end(self) {
        self.store.close().unwrap();
        let found = files(&self.dir);
        let _ = fs::remove_dir_all(self.dir.join("consumequeue"));
        let store = Store::open(config(&self.dir)).unwrap();
        store.close().unwrap();
        let made = files(&self.dir);
        let names = |files: &BTreeMap<PathBuf, Vec<u8>>| files.keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(&found), names(&made));
        for (name, bytes) in found {
            assert!(
                made[&name] == bytes,
                "{}: not what the log says",
                name.display()
            );
        }
    }
}

fn files(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut dirs = vec![dir.join("consumequeue")];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).into_iter().flatten() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                dirs.push(path);
            } else {
                found.insert(path.clone(), fs::read(&path).unwrap());
            }
        }
    }
    found
}

fn live(seed: u64) {
    println!("EPOCHLOG_SEED={seed}");
    let dir = tempfile::tempdir().unwrap();
    let mut life = Life::new(dir.path(), seed);
    for _ in 0..STEPS {
        life.step();
        life.check();
    }
    life.end();
}

#[test]
fn every_queue_is_what_the_log_says_whatever_happens() {
    match std::env::var("EPOCHLOG_SEED") {
        Ok(seed) => live(seed.parse().unwrap()),
        Err(_) => (1..=SEEDS).for_each(live),
    }
}
