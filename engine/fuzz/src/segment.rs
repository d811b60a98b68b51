//! A store folder whose segments hold whatever the data says: scanned, opened, opened again.
//!
//! The first bytes of the data choose what lies beside the segments. The rest is either the bytes of the
//! log themselves, or a script that writes good records with damage between them, so that changes of the
//! data reach places that need a matching checksum.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use epochlog_engine::{
    CheckOptions, Checkpoint, CheckpointFile, EPOCH_FILE_NAME, EncodeOptions, EpochEntry,
    EpochFile, EpochList, Error, FILLER_MIN_LEN, Message, Offset, Parsed, STATE_FILE_NAME, Stamp,
    State, StateFile, Store, StoreConfig, encode_into, encoded_len, inspect, parse_record,
    write_filler,
};

use super::{header, scratch};

/// Bytes of log a run looks at.
const MAX_LOG: usize = 32 * 1024;

const STORE_TIME_MS: i64 = 1_700_000_000_000;

/// What lies in the folder.
struct Scene {
    segment_size: usize,
    base: Offset,
    log: Vec<u8>,
    /// Of the last file; the others are whole.
    last_len: usize,
    state: Option<State>,
    abort: bool,
    checkpoint: bool,
    epochs: Option<EpochList>,
    queues: bool,
}

pub fn segment(data: &[u8]) {
    let Some((&[how, beside, mark, extra], rest)) = header::<4>(data) else {
        return;
    };
    let scene = Scene::new(how, beside, mark, extra, rest);
    let dir = scratch();
    scene.write(dir.path());
    let before = snapshot(dir.path());
    let scan = inspect::scan(dir.path()).expect("what can be read is told, not refused");
    assert!(scan.end_offset >= scan.min_offset);
    assert_eq!(snapshot(dir.path()), before, "a scan writes nothing");
    let config = scene.config(dir.path());
    let end = scene.expected_end();
    match Store::open(config.clone()) {
        Err(Error::Io { path, source, .. }) => panic!("{}: {source}", path.display()),
        Err(error) => {
            let mut after = snapshot(dir.path());
            after.retain(|path, _| path.file_name().is_some_and(|name| name != "lock"));
            assert_eq!(after, before, "refused, but something was changed: {error}");
            if let Some((end, flushed)) = end {
                let damage = end < flushed || scene.checkpoint;
                let unlabelled = end > scene.base && !scene.labels_its_first_byte();
                let excused = damage || unlabelled || scene.epochs.is_none() || scene.queues;
                assert!(excused, "refused for no reason: {error}");
            }
        }
        Ok(store) => {
            if let Some((end, flushed)) = end {
                assert!(end >= flushed, "damage below {flushed} was overlooked");
                assert_eq!(store.end_offset(), end);
            }
            opened(&scene, &config, store);
        }
    }
}

impl Scene {
    fn new(how: u8, beside: u8, mark: u8, extra: u8, rest: &[u8]) -> Self {
        let segment_size = if how & 1 == 0 { 512 } else { 4096 };
        let base = if how & 2 == 0 {
            0
        } else {
            3 * segment_size as u64
        };
        let log = if how & 4 == 0 {
            rest[..rest.len().min(MAX_LOG)].to_vec()
        } else {
            script(rest, base, segment_size)
        };
        let files = log.len().div_ceil(segment_size).max(1);
        let odd = how & 8 != 0 && how & 16 != 0;
        let last_len = if odd {
            usize::from(extra)
        } else {
            segment_size
        };
        let limit = base + (files * segment_size) as u64;
        let state = (beside & 1 != 0).then(|| State {
            flushed: base + u64::from(mark) * (limit - base) / 256,
            scan_from: base,
            max_epoch: Some(1),
            incarnation: 1,
            generation: 1,
            ..State::default()
        });
        let entry = |epoch, start| EpochEntry { epoch, start };
        let second = base + u64::from(extra) * (limit - base) / 255;
        let entries = match beside >> 6 {
            0 => vec![entry(1, base)],
            1 => vec![entry(1, base), entry(2, second)],
            2 => vec![entry(2, second)],
            _ => Vec::new(),
        };
        Self {
            segment_size,
            base,
            log,
            last_len,
            state,
            abort: beside & 2 != 0,
            checkpoint: beside & 4 != 0,
            epochs: (beside & 0x18 != 0x18).then(|| EpochList::from_entries(entries).unwrap()),
            queues: beside & 0x20 != 0,
        }
    }

    fn config(&self, dir: &Path) -> StoreConfig {
        let mut config = StoreConfig::new(dir);
        config.segment_size = self.segment_size as u64;
        config.prefault_ahead_bytes = 0;
        config.flush_interval_ms = 3_600_000;
        config.consume_queues = self.queues;
        config.queue_file_size = 2000;
        config
    }

    fn write(&self, dir: &Path) {
        let log = dir.join("commitlog");
        fs::create_dir(&log).unwrap();
        let mut chunks: Vec<_> = self
            .log
            .chunks(self.segment_size)
            .map(<[u8]>::to_vec)
            .collect();
        chunks.resize(chunks.len().max(1), Vec::new());
        let last = chunks.len() - 1;
        for (index, mut bytes) in chunks.into_iter().enumerate() {
            let len = if index == last {
                self.last_len
            } else {
                self.segment_size
            };
            bytes.resize(len, 0);
            let base = self.base + (index * self.segment_size) as u64;
            fs::write(log.join(format!("{base:020}")), bytes).unwrap();
        }
        if let Some(epochs) = &self.epochs {
            EpochFile::new(dir.join(EPOCH_FILE_NAME))
                .replace(epochs)
                .unwrap();
        }
        if let Some(state) = self.state {
            StateFile::open(dir.join(STATE_FILE_NAME), state).unwrap();
        }
        if self.abort {
            fs::write(dir.join("abort"), "1").unwrap();
        }
        if self.checkpoint {
            let mut file = CheckpointFile::open(dir.join("checkpoint")).unwrap();
            let checkpoint = Checkpoint {
                physic_msg_timestamp_ms: STORE_TIME_MS + 60_000,
                logics_msg_timestamp_ms: STORE_TIME_MS,
                confirm_offset: (self.base + self.log.len() as u64 / 2).cast_signed(),
                ..Checkpoint::default()
            };
            file.store(checkpoint).unwrap();
        }
    }

    fn labels_its_first_byte(&self) -> bool {
        let list = self.epochs.as_ref();
        list.is_some_and(|list| list.covering(self.base).is_some())
    }

    /// Where the log must end, found without the engine's scan, and the mark below which nothing may be
    /// lost; `None` where files of odd lengths make it another question.
    fn expected_end(&self) -> Option<(Offset, Offset)> {
        if self.last_len != self.segment_size {
            return None;
        }
        let flushed = self.state.map_or(self.base, |state| state.flushed);
        let lost_power = self.state.is_some() || self.abort;
        let mut log = self.log.clone();
        log.resize(
            log.len().div_ceil(self.segment_size).max(1) * self.segment_size,
            0,
        );
        let mut at = 0;
        while at < log.len() {
            let room = self.segment_size - at % self.segment_size;
            let offset = self.base + at as u64;
            let check = if lost_power && offset >= flushed {
                CheckOptions::AFTER_POWER_LOSS
            } else {
                CheckOptions::CHECKSUMS
            };
            at += match parse_record(&log[at..at + room], offset, room as u64, check) {
                Ok(Parsed::Message(record)) => record.total_size(),
                Ok(Parsed::Filler { len }) => len as usize,
                Err(_) => break,
            };
        }
        Some((self.base + at as u64, flushed))
    }
}

/// Writes good records as `data` says, and the damage it asks for.
fn script(mut data: &[u8], base: Offset, segment_size: usize) -> Vec<u8> {
    let mut log: Vec<u8> = Vec::new();
    let mut queue_offset = 0;
    while let Some((&[op, number], rest)) = header::<2>(data) {
        data = rest;
        let room = segment_size - log.len() % segment_size;
        if log.len() + room > MAX_LOG {
            break;
        }
        match op % 8 {
            0..=3 => {
                let queue_offset = if op & 0x10 == 0 {
                    queue_offset
                } else {
                    i64::from(number)
                };
                put_record(&mut log, base, room, queue_offset, op, number);
            }
            4 => put_filler(&mut log, room),
            5 => {
                let (raw, rest) = data.split_at(usize::from(number).min(data.len()));
                data = rest;
                log.extend_from_slice(&raw[..raw.len().min(room)]);
            }
            6 => log.resize(log.len() + usize::from(number).min(room), 0),
            _ => {
                if let Some(at) = log.len().checked_sub(1 + usize::from(number)) {
                    log[at] ^= 1 << (op >> 5);
                }
            }
        }
        queue_offset += i64::from(op % 8 < 4);
    }
    log
}

fn put_record(log: &mut Vec<u8>, base: Offset, room: usize, queue: i64, op: u8, number: u8) {
    let body = vec![number; usize::from(number)];
    let mut message = Message::new("topic", &body, ([10, 0, 0, 1], 10911).into(), STORE_TIME_MS);
    message.sys_flag = if op & 0x20 == 0 {
        0
    } else {
        i32::from(number) & 0xC
    };
    message.properties = if op & 0x40 == 0 {
        b"TAGS\x01a\x02"
    } else {
        b"A\x01\0\x02"
    };
    let options = EncodeOptions {
        append_property_crc: op & 1 == 0,
    };
    let len = encoded_len(&message, options).unwrap();
    if len + FILLER_MIN_LEN > room {
        put_filler(log, room);
        return;
    }
    let at = log.len();
    let stamp = Stamp {
        queue_offset: queue,
        physical_offset: base + at as u64,
        store_timestamp_ms: STORE_TIME_MS + at as i64,
    };
    log.resize(at + len, 0);
    encode_into(&mut log[at..], &message, stamp, options).unwrap();
}

fn put_filler(log: &mut Vec<u8>, room: usize) {
    let at = log.len();
    log.resize(at + room, 0);
    if room >= FILLER_MIN_LEN {
        write_filler(&mut log[at..]);
    }
}

/// What must hold in an opened folder, and still after it was opened again, written to, and closed.
fn opened(scene: &Scene, config: &StoreConfig, store: Store) {
    let before = settled(scene, &store);
    store.abandon();
    let again = Store::open(config.clone()).expect("opened before");
    assert_eq!(
        settled(scene, &again),
        before,
        "a second open changed the log"
    );
    let next = again.promises().max_epoch.unwrap_or(0) + 1;
    let promoted = again.promote(next);
    let mut after = before.clone();
    if promoted.is_ok() {
        let body = [b'x'; 100];
        let message = Message::new("topic", &body, ([10, 0, 0, 1], 10911).into(), STORE_TIME_MS);
        again.append(&message).expect("a master with room");
        after = settled(scene, &again);
        assert!(
            after.1.starts_with(&before.1),
            "an append changes nothing that is there"
        );
        assert!(after.1.len() > before.1.len());
    }
    again.abandon();
    let killed = Store::open(config.clone()).expect("opened before");
    assert_eq!(settled(scene, &killed), after, "a kill lost something");
    killed.close().expect("nothing stands against it");
    let clean = Store::open(config.clone()).expect("opened before");
    // A segment without a record, which nobody writes, is scanned: its filler has no store time.
    let tail = clean.end_offset().saturating_sub(1) / config.segment_size * config.segment_size;
    let last = clean
        .record_start_before(clean.end_offset())
        .expect("sound");
    let usual = last.is_none_or(|last| last >= tail);
    assert!(clean.opened().clean || !usual, "a clean stop is proven");
    assert_eq!(settled(scene, &clean), after);
    clean.abandon();
}

/// Epochs and bytes of the log, after a look at everything around them.
fn settled(scene: &Scene, store: &Store) -> (EpochList, Vec<u8>) {
    let (min, end) = (store.min_offset(), store.end_offset());
    let mut image = Vec::new();
    let mut at = min;
    while at < end {
        let slice = store.slice(at, usize::MAX).expect("inside the log");
        assert!(!slice.is_empty());
        at = slice.end();
        image.extend_from_slice(&slice);
    }
    assert_eq!(at, end);
    let mut last = min;
    for record in store.records(min..end) {
        let record = record.expect("every record of an open log is sound");
        assert!(record.record().physical_offset() >= last);
        last = record.record().end();
    }
    let epochs = (*store.epochs()).clone();
    assert!(
        end == min || epochs.covering(min).is_some(),
        "bytes without an epoch"
    );
    assert!(epochs.last().is_none_or(|last| last.start <= end));
    for segment in store.segments() {
        let bytes = fs::read(&segment.path).unwrap();
        assert_eq!(bytes.len(), scene.segment_size);
        let len = usize::try_from(segment.len).unwrap();
        assert!(
            bytes[len..].iter().all(|byte| *byte == 0),
            "something behind the end"
        );
    }
    (epochs, image)
}

fn snapshot(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(snapshot(&path));
        } else {
            let bytes = fs::read(&path).unwrap();
            found.insert(path, bytes);
        }
    }
    found
}
