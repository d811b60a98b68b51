//! Random walks of a store beside a plain list of records: appends, batches, receives cut anywhere,
//! cuts, flushes, promotions, clean stops and kills, in any order. `EPOCHLOG_SEED=n` walks one again.
#![allow(clippy::unwrap_used, reason = "a story ends where it fails")]

mod common;

use std::path::Path;

use common::{HOST, Random, SEGMENT, config, epochs, feed, seeds};
use epochlog_engine::{
    EncodeOptions, EpochEntry, Message, RecordView, Stamp, Store, StoreConfig, encode_into,
    encoded_len, write_filler,
};

const STEPS: usize = 80;

/// What the log should be.
#[derive(Clone, Debug, Default, PartialEq)]
struct Model {
    /// Start, body and queue of each record.
    records: Vec<(u64, Vec<u8>, i32)>,
    end: u64,
    epochs: Vec<(u32, u64)>,
    next_epoch: u32,
}

impl Model {
    /// Where a unit of `len` bytes goes.
    fn place(&self, len: u64) -> u64 {
        let room = SEGMENT - self.end % SEGMENT;
        if len + 8 > room {
            self.end + room
        } else {
            self.end
        }
    }

    /// Places where the log may be cut.
    fn boundaries(&self) -> Vec<u64> {
        let starts = self.records.iter().map(|record| record.0);
        starts.chain([0, self.end]).collect()
    }

    fn cut(&mut self, to: u64) {
        self.records.retain(|record| record.0 < to);
        self.epochs
            .retain(|entry| entry.1 < to || (entry.1 == to && to > 0));
        self.end = to;
    }

    /// Of what came from `from` on, only the bytes below `received` came: whole records count, and a
    /// filler only with its last byte.
    fn lose(&mut self, from: u64, received: u64) {
        let end_of = |it: &(u64, Vec<u8>, i32)| it.0 + record_len(&it.1, it.2) as u64;
        self.records.retain(|record| end_of(record) <= received);
        let last = self.records.last().filter(|record| record.0 >= from);
        let whole = last.map_or(from, end_of);
        let limit = whole - whole % SEGMENT + SEGMENT;
        let filled = received >= limit && !whole.is_multiple_of(SEGMENT);
        self.end = if filled { limit } else { whole };
    }

    fn queue_offset(&self, queue: i32) -> i64 {
        let count = self
            .records
            .iter()
            .filter(|record| record.2 == queue)
            .count();
        i64::try_from(count).unwrap()
    }
}

struct Walk<'a> {
    dir: &'a Path,
    seed: u64,
    random: Random,
    model: Model,
    store: Store,
    master: bool,
    views: Vec<(RecordView, Vec<u8>)>,
    trace: Vec<String>,
}

fn message(body: &[u8], queue: i32) -> Message<'_> {
    Message {
        queue_id: queue,
        ..Message::new("topic", body, HOST, 1)
    }
}

fn record_len(body: &[u8], queue: i32) -> usize {
    encoded_len(&message(body, queue), EncodeOptions::default()).unwrap()
}

/// With every second seed a thread makes segments and pages ahead; what a walk does and finds is the same.
fn set_up(dir: &Path, seed: u64) -> StoreConfig {
    let mut config = config(dir);
    if seed.is_multiple_of(2) {
        config.prefault_ahead_bytes = 2 * SEGMENT;
        config.ready_ahead_bytes = (1 + seed / 2 % 4) * SEGMENT;
    }
    config
}

impl<'a> Walk<'a> {
    fn new(dir: &'a Path, seed: u64) -> Self {
        let store = Store::open(set_up(dir, seed)).unwrap();
        let model = Model {
            next_epoch: 1,
            ..Model::default()
        };
        let random = Random::new(seed);
        let (views, trace) = (Vec::new(), Vec::new());
        Self {
            dir,
            seed,
            random,
            model,
            store,
            master: false,
            views,
            trace,
        }
    }

    fn step(&mut self) {
        match self.random.below(14) {
            0..=3 => self.append(1),
            4 => {
                let count = 2 + self.random.below(3);
                self.append(count);
            }
            5 | 6 => self.receive(),
            7 | 8 => self.cut(),
            9 => self.promote(),
            10 => {
                self.note("flush");
                assert_eq!(self.store.flush().unwrap(), self.model.end);
            }
            11 => self.reopen(true),
            12 => self.reopen(false),
            _ => self.hold_a_view(),
        }
        self.check();
    }

    fn note(&mut self, what: impl Into<String>) {
        self.trace.push(what.into());
    }

    fn body(&mut self) -> Vec<u8> {
        let len = self.random.below(900);
        let fill = b'a' + u8::try_from(self.random.below(26)).unwrap();
        vec![fill; len]
    }

    fn promote(&mut self) {
        let epoch = self.model.next_epoch;
        self.note(format!("promote {epoch}"));
        let entry = self.store.promote(epoch).unwrap();
        assert_eq!(
            entry,
            EpochEntry {
                epoch,
                start: self.model.end
            }
        );
        self.model.epochs.push((epoch, self.model.end));
        self.model.next_epoch += 1;
        self.master = true;
    }

    fn append(&mut self, count: usize) {
        if !self.master {
            self.promote();
        }
        let queue = i32::try_from(self.random.below(3)).unwrap();
        let bodies: Vec<_> = (0..count).map(|_| self.body()).collect();
        let batch: Vec<_> = bodies.iter().map(|body| message(body, queue)).collect();
        let len: usize = batch
            .iter()
            .map(|it| encoded_len(it, EncodeOptions::default()).unwrap())
            .sum();
        self.note(format!("append {count} of {len} bytes"));
        let appended = self.store.append_batch(&batch).unwrap();
        let mut at = self.model.place(len as u64);
        for (body, appended) in bodies.into_iter().zip(appended) {
            assert_eq!(appended.offset, at);
            assert_eq!(appended.queue_offset, self.model.queue_offset(queue));
            at = appended.end;
            self.model.records.push((appended.offset, body, queue));
        }
        self.model.end = at;
    }

    /// A new master's records arrive, the last one perhaps not whole.
    fn receive(&mut self) {
        self.store.fence();
        self.master = false;
        let epoch = self.model.next_epoch;
        self.model.next_epoch += 1;
        self.store.demote(epoch).unwrap();
        let from = self.model.end;
        let entry = EpochEntry { epoch, start: from };
        self.model.epochs.push((epoch, from));
        let mut bytes = self.write_as_another();
        let lost = self.random.below(200).min(bytes.len());
        let step = 1 + self.random.below(2000);
        self.note(format!(
            "receive {} of {} bytes by {step}",
            bytes.len() - lost,
            bytes.len()
        ));
        bytes.truncate(bytes.len() - lost);
        if lost > 0 {
            self.model.lose(from, from + bytes.len() as u64);
        }
        let mut receiver = self.store.receive().unwrap();
        receiver.adopt_epoch(entry).unwrap();
        feed(&mut receiver, &bytes, step);
        if self.random.below(2) == 0 {
            receiver.finish().unwrap();
        }
    }

    /// Adds records to the model as another master would write them; answers the bytes.
    fn write_as_another(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for _ in 0..1 + self.random.below(4) {
            let (body, queue) = (self.body(), i32::try_from(self.random.below(3)).unwrap());
            let message = message(&body, queue);
            let len = record_len(&body, queue);
            let at = self.model.place(len as u64);
            let start = bytes.len();
            if at > self.model.end {
                bytes.resize(start + usize::try_from(at - self.model.end).unwrap(), 0);
                write_filler(&mut bytes[start..]);
            }
            let start = bytes.len();
            bytes.resize(start + len, 0);
            let stamp = Stamp {
                queue_offset: self.model.queue_offset(queue),
                physical_offset: at,
                store_timestamp_ms: 1,
            };
            encode_into(
                &mut bytes[start..],
                &message,
                stamp,
                EncodeOptions::default(),
            )
            .unwrap();
            self.model.records.push((at, body, queue));
            self.model.end = at + len as u64;
        }
        bytes
    }

    fn cut(&mut self) {
        let boundaries = self.model.boundaries();
        let to = boundaries[self.random.below(boundaries.len())];
        self.note(format!("cut at {to}"));
        self.store.fence();
        self.master = false;
        let end = self.model.end;
        self.model.cut(to);
        let done = self
            .store
            .truncate(to, epochs(&self.model.epochs), "walk")
            .unwrap();
        assert_eq!(done.cut_bytes, end - to);
    }

    fn reopen(&mut self, clean: bool) {
        self.note(if clean {
            "close and open"
        } else {
            "kill and open"
        });
        if clean {
            self.store.close().unwrap();
        } else {
            self.store.abandon();
        }
        self.store = Store::open(set_up(self.dir, self.seed)).unwrap();
        assert_eq!(self.store.opened().clean, clean);
        self.master = false;
    }

    fn hold_a_view(&mut self) {
        self.note("hold a view");
        self.views.truncate(3);
        if let Some((at, body, _)) = self.model.records.last() {
            self.views
                .insert(0, (self.store.record(*at).unwrap(), body.clone()));
        }
    }

    fn check(&mut self) {
        assert_eq!(self.store.end_offset(), self.model.end);
        assert_eq!(*self.store.epochs(), epochs(&self.model.epochs));
        let found: Vec<_> = self
            .store
            .records(0..self.model.end)
            .map(|view| {
                let view = view.unwrap();
                let record = view.record();
                (
                    record.physical_offset(),
                    record.body().to_vec(),
                    record.queue_id(),
                )
            })
            .collect();
        assert!(found == self.model.records, "the records differ");
        for (view, body) in &self.views {
            assert!(view.record().body() == body, "a view has changed");
        }
    }
}

/// Walks and answers what was done; on a panic the seed is told.
fn walk(seed: u64, steps: usize) -> Vec<String> {
    struct Tell(u64);
    impl Drop for Tell {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("walk again with EPOCHLOG_SEED={}", self.0);
            }
        }
    }
    let tell = Tell(seed);
    let dir = tempfile::tempdir().unwrap();
    let mut walk = Walk::new(dir.path(), seed);
    for _ in 0..steps {
        walk.step();
    }
    drop(tell);
    walk.trace
}

#[test]
fn a_random_walk_is_what_the_model_says() {
    for seed in seeds(6) {
        eprintln!("seed {seed}");
        walk(seed, STEPS);
    }
}

#[test]
fn a_seed_replays_its_walk() {
    let first = walk(7, 25);
    assert_eq!(walk(7, 25), first);
    assert_ne!(walk(8, 25), first);
}
