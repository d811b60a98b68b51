//! Stores in temporary folders, and the messages put into them.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use epochlog_engine::{EpochEntry, Error, Message, Store, StoreConfig};
use tempfile::TempDir;

/// Bytes of a page, or a part of one.
const PAGE: usize = 4096;
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
        Self::with(segment_size, |_| ())
    }

    /// As [`Scratch::new`], without consume queues and without a thread that makes pages: what is
    /// measured is the log alone.
    ///
    /// # Errors
    /// As [`Scratch::new`].
    pub fn log_only(segment_size: u64) -> Result<Self, Error> {
        Self::with(segment_size, |config| {
            config.consume_queues = false;
            config.prefault_ahead_bytes = 0;
        })
    }

    fn with(segment_size: u64, set: impl FnOnce(&mut StoreConfig)) -> Result<Self, Error> {
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
        set(&mut config);
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
        scratch.fill(len, body_len)?;
        Ok(scratch)
    }

    /// Makes the store master of epoch 1 and appends messages with bodies of `body_len` until the
    /// log has at least `len` bytes.
    ///
    /// # Errors
    /// Whatever the store says.
    pub fn fill(&self, len: u64, body_len: usize) -> Result<(), Error> {
        self.store.promote(1)?;
        let body = body(body_len);
        while self.store.end_offset() < len {
            self.store.append(&message(&body))?;
        }
        Ok(())
    }

    /// Touches every page of the first segment of an empty store that has no role yet, so that no
    /// write to it makes a page.
    ///
    /// # Errors
    /// Whatever the store says.
    pub fn touch(&self) -> Result<(), Error> {
        let mut receiver = self.store.receive()?;
        receiver.adopt_epoch(EpochEntry { epoch: 0, start: 0 })?;
        let mut window = receiver.window(usize::MAX)?;
        for page in window.as_mut_slice().chunks_mut(PAGE) {
            page[0] = std::hint::black_box(0);
        }
        receiver.filled(window, 0);
        receiver.finish()
    }

    /// As a slave, takes the first message of `master`, after [`Scratch::touch`]: what follows is
    /// received into pages that are there.
    ///
    /// # Errors
    /// Whatever the stores say.
    pub fn begin_as(&self, master: &Store) -> Result<(), Error> {
        self.touch()?;
        let record = master.record(0)?;
        let bytes = record.bytes();
        let mut receiver = self.store.receive()?;
        if let Some(entry) = master.epochs().last() {
            receiver.adopt_epoch(entry)?;
        }
        let mut window = receiver.window(bytes.len())?;
        window.as_mut_slice().copy_from_slice(bytes);
        receiver.filled(window, bytes.len());
        receiver.publish()?;
        receiver.finish()
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
