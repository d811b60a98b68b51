//! What the stories about the log share: small segments, plain messages, and a look at the folder.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "every test file uses its own part of this"
)]

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;

use epochlog_engine::{
    EncodeOptions, EpochEntry, EpochList, Message, Offset, Store, StoreConfig, encoded_len,
};

pub const SEGMENT: u64 = 4096;

pub const HOST: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 10911);

/// Small segments and nothing in the background that a test does not ask for.
pub fn config(dir: &Path) -> StoreConfig {
    let mut config = StoreConfig::new(dir);
    config.segment_size = SEGMENT;
    config.prefault_ahead_bytes = 0;
    config.flush_interval_ms = 3_600_000;
    config
}

pub fn open(dir: &Path) -> Store {
    Store::open(config(dir)).unwrap()
}

/// Opened and master of `epoch`.
pub fn master(dir: &Path, epoch: u32) -> Store {
    let store = open(dir);
    store.promote(epoch).unwrap();
    store
}

pub fn message(body: &[u8]) -> Message<'_> {
    Message::new("topic", body, HOST, 1_700_000_000_000)
}

/// Bytes of a record beside its body.
pub fn overhead() -> usize {
    encoded_len(&message(b""), EncodeOptions::default()).unwrap()
}

/// A body that makes a record of `len` bytes.
pub fn body_for(len: usize) -> Vec<u8> {
    let body = len
        .checked_sub(overhead())
        .expect("longer than an empty record");
    (0..body)
        .map(|at| b'a' + u8::try_from(at % 26).unwrap())
        .collect()
}

/// Appends `count` records of `len` bytes each; answers their starts and the end.
pub fn append(store: &Store, count: usize, len: usize) -> Vec<Offset> {
    let body = body_for(len);
    let mut offsets = Vec::new();
    for _ in 0..count {
        offsets.push(store.append(&message(&body)).unwrap().offset);
    }
    offsets.push(store.end_offset());
    offsets
}

pub fn epochs(entries: &[(u32, u64)]) -> EpochList {
    let entry = |&(epoch, start): &(u32, u64)| EpochEntry { epoch, start };
    EpochList::from_entries(entries.iter().map(entry).collect()).unwrap()
}

/// Starts of all records.
pub fn starts(store: &Store) -> Vec<Offset> {
    store
        .records(store.min_offset()..store.end_offset())
        .map(|view| view.unwrap().record().physical_offset())
        .collect()
}

/// All bytes of the log from its first to its end.
pub fn image(store: &Store) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut at = store.min_offset();
    while at < store.end_offset() {
        let slice = store.slice(at, usize::MAX).unwrap();
        at = slice.end();
        bytes.extend_from_slice(&slice);
    }
    bytes
}

pub fn segment_path(dir: &Path, base: Offset) -> std::path::PathBuf {
    dir.join("commitlog").join(format!("{base:020}"))
}

/// Hands `bytes` to a receiver in windows of at most `step` bytes, publishing after each.
pub fn feed(receiver: &mut epochlog_engine::Receiver, mut bytes: &[u8], step: usize) {
    while !bytes.is_empty() {
        let mut window = receiver.window(step.min(bytes.len())).unwrap();
        let n = window.len();
        window.as_mut_slice().copy_from_slice(&bytes[..n]);
        receiver.filled(window, n);
        bytes = &bytes[n..];
        receiver.publish().unwrap();
    }
}

/// A small generator of random numbers; the same seed gives the same numbers.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `limit`.
    pub fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() % limit as u64).unwrap()
    }
}

/// The seeds to walk with: the one in EPOCHLOG_SEED, or `count` new ones.
pub fn seeds(count: u64) -> Vec<u64> {
    if let Ok(seed) = std::env::var("EPOCHLOG_SEED") {
        return vec![seed.parse().expect("EPOCHLOG_SEED is a number")];
    }
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap();
    let mut random = Random::new(u64::try_from(now.as_nanos()).unwrap_or(0));
    (0..count).map(|_| random.next()).collect()
}
