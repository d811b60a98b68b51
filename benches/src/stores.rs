//! Stores in temporary folders, and the messages put into them.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use epochlog_engine::{Error, Message, Store, StoreConfig};
use tempfile::TempDir;

const HOST: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 10911);

/// A store that is gone, folder and all, when this is dropped.
pub struct Scratch {
    /// The store.
    pub store: Arc<Store>,
    _dir: TempDir,
}

impl Scratch {
    /// An empty store. Its pages are faulted in a two segments ahead of the writer, and it syncs
    /// in the background only, so that a bench sees the page cache and no disk.
    ///
    /// # Errors
    /// Whatever opening the store says; the folder is in `TMPDIR`.
    pub fn new(segment_size: u64) -> Result<Self, Error> {
        let dir = tempfile::tempdir().map_err(|error| Error::Setting {
            name: "TMPDIR",
            why: error.to_string(),
        })?;
        let mut config = StoreConfig::new(dir.path());
        config.segment_size = segment_size;
        // The next segment too: no page is made while a bench fills the first one.
        config.prefault_ahead_bytes = 2 * segment_size;
        config.max_dirty_bytes = u64::MAX;
        config.flush_interval_ms = 60_000;
        config.save_truncated_bytes = None;
        Ok(Self {
            store: Arc::new(Store::open(config)?),
            _dir: dir,
        })
    }

    /// Waits until the pages of the newest segment and of the prepared one are mapped, or a few seconds if that cannot be
    /// seen: the bench would measure the making of pages otherwise. There is no segment before the
    /// first byte.
    pub fn wait_for_pages(&self) {
        let deadline = Instant::now() + Duration::from_secs(5);
        let segments = self.store.segments();
        let Some(segment) = segments.last() else {
            return;
        };
        let next = format!("{:020}", segment.base + segment.size);
        let paths = [segment.path.clone(), segment.path.with_file_name(next)];
        let missing = || {
            paths.iter().any(|path| {
                let mapped = mapped_bytes(&path.display().to_string());
                mapped.is_none_or(|mapped| mapped < segment.size)
            })
        };
        while missing() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// A master of epoch 1 whose log has at least `len` bytes of messages with bodies of `body_len`.
    ///
    /// # Errors
    /// Whatever the store says.
    pub fn filled(segment_size: u64, len: u64, body_len: usize) -> Result<Self, Error> {
        let scratch = Self::new(segment_size)?;
        scratch.store.promote(1)?;
        let body = body(body_len);
        while scratch.store.end_offset() < len {
            scratch.store.append(&message(&body))?;
        }
        Ok(scratch)
    }
}

/// Bytes of a mapped file that are in this process's page tables.
fn mapped_bytes(path: &str) -> Option<u64> {
    let maps = std::fs::read_to_string("/proc/self/smaps").ok()?;
    let mut lines = maps.lines().skip_while(|line| !line.ends_with(path));
    let resident = lines.find_map(|line| line.strip_prefix("Rss:"))?;
    let kib: u64 = resident.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

/// A body that does not compress to nothing and costs no time to make.
#[must_use]
pub fn body(len: usize) -> Vec<u8> {
    (0..=250u8).cycle().take(len).collect()
}

/// A message of one topic with this body and two short properties.
#[must_use]
pub fn message(body: &[u8]) -> Message<'_> {
    Message {
        topic: "bench",
        queue_id: 0,
        flag: 0,
        sys_flag: 0,
        born_timestamp_ms: 1_700_000_000_000,
        born_host: HOST,
        store_host: HOST,
        reconsume_times: 0,
        prepared_transaction_offset: 0,
        body,
        properties: b"KEYS\x01order-1\x02TAGS\x01a\x02",
    }
}
