//! Making the log durable, and what is durable known: the flushed mark, its waiters, the state file.
//!
//! Order of one sync: the generation and the published end are read, the segments between the flushed
//! mark and that end are synced lowest first, and only if the generation is still the same does the
//! mark move. A cut raises the generation, so a sync that began before it cannot raise the mark past
//! it. A failed sync is final: the mark stays, waiters fail, nothing is written any more until the
//! store is opened again, because the kernel may by then call the lost pages clean.
//!
//! Locks: sync, then the store's files, then progress.

use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::sync::{Condvar, Moves, Mutex, MutexGuard};

use crate::error::Error;
use crate::growth::deadline;
use crate::position::Offset;
use crate::store::{Disk, Shared};

/// The state file's flushed mark follows the one in memory at least this often while it moves.
const MARK_INTERVAL: Duration = Duration::from_secs(1);

/// And at least after this many bytes; the background sync begins by then too.
const MARK_BYTES: u64 = 64 << 20;

/// Where flushing stands.
pub(crate) struct Flush {
    /// Held while segments are synced: whoever waits for it finds a sync that began after its write.
    sync: Mutex<()>,
    progress: Mutex<Progress>,
    /// The mark has moved, or will not any more.
    moved: Moves,
    /// Repeats the mark for readers.
    flushed: AtomicU64,
    failed: AtomicBool,
    wanted: Mutex<bool>,
    wake: Condvar,
    /// The background sync is woken when the end passes this.
    wake_at: AtomicU64,
    stopping: AtomicBool,
}

pub(crate) struct Progress {
    pub(crate) flushed: Offset,
    pub(crate) generation: u64,
    pub(crate) confirm: Offset,
    failed: Option<String>,
}

/// What was last written about the marks.
pub(crate) struct Marked {
    at: Instant,
    flushed: Offset,
    confirm: Offset,
}

impl Marked {
    pub(crate) fn now(flushed: Offset, confirm: Offset) -> Self {
        Self {
            at: Instant::now(),
            flushed,
            confirm,
        }
    }
}

impl Flush {
    pub(crate) fn new(flushed: Offset, confirm: Offset, generation: u64) -> Self {
        let progress = Progress {
            flushed,
            generation,
            confirm,
            failed: None,
        };
        Self {
            sync: Mutex::new(()),
            progress: Mutex::new(progress),
            moved: Moves::new(),
            flushed: AtomicU64::new(flushed),
            failed: AtomicBool::new(false),
            wanted: Mutex::new(false),
            wake: Condvar::new(),
            wake_at: AtomicU64::new(flushed + MARK_BYTES),
            stopping: AtomicBool::new(false),
        }
    }

    pub(crate) fn flushed(&self) -> Offset {
        self.flushed.load(Ordering::SeqCst)
    }

    pub(crate) fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock()
    }

    /// Fails once an earlier failure has ended all writing.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.failed.load(Ordering::SeqCst) {
            return Err(self.progress.lock().failure());
        }
        Ok(())
    }

    /// The mark goes where a cut has put the end, and syncs under way count for nothing.
    pub(crate) fn lower(&self, to: Offset, generation: u64) {
        let mut progress = self.progress.lock();
        progress.generation = generation;
        progress.flushed = progress.flushed.min(to);
        progress.confirm = progress.confirm.min(to);
        self.flushed.store(progress.flushed, Ordering::SeqCst);
        self.wake_at
            .store(progress.flushed + MARK_BYTES, Ordering::SeqCst);
    }

    /// Everything below `to` was synced by a cut.
    pub(crate) fn raise(&self, to: Offset) {
        let mut progress = self.progress.lock();
        progress.flushed = to;
        self.flushed.store(to, Ordering::SeqCst);
        self.moved.announce();
    }

    /// The log was moved to begin, empty, at `to`.
    pub(crate) fn reset(&self, to: Offset, generation: u64) {
        self.lower(to, generation);
        self.progress.lock().confirm = to;
        self.raise(to);
    }

    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        self.request();
        self.moved.announce();
    }

    fn request(&self) {
        *self.wanted.lock() = true;
        self.wake.notify_one();
    }

    fn wait_request(&self, at_most: Duration) -> bool {
        let mut wanted = self.wanted.lock();
        if !*wanted {
            self.wake.wait_for(&mut wanted, at_most);
        }
        *wanted = false;
        !self.stopping.load(Ordering::SeqCst)
    }
}

impl Progress {
    fn failure(&self) -> Error {
        Error::Failed {
            why: self.failed.clone().unwrap_or_else(|| "unknown".to_owned()),
        }
    }
}

impl Shared {
    /// Syncs until everything below `target` is durable; answers the flushed mark. Stops early when a
    /// cut takes the log's end below it.
    pub(crate) fn sync_to(&self, target: Offset) -> Result<Offset, Error> {
        loop {
            let flushed = self.flush.flushed();
            if flushed >= target.min(self.log.end()) {
                self.flush.check()?;
                return Ok(flushed);
            }
            self.sync_once(target)?;
        }
    }

    /// One sync of everything that is published when it begins, unless another has covered `target`
    /// while this one waited for its turn.
    fn sync_once(&self, target: Offset) -> Result<(), Error> {
        let _sync = self.flush.sync.lock();
        self.check_usable()?;
        let (generation, flushed) = {
            let progress = self.flush.progress.lock();
            (progress.generation, progress.flushed)
        };
        if flushed >= target {
            return Ok(());
        }
        // The record first: it then starts below the end, which is read after it.
        let last_record = self.log.last_record();
        let last_store_ms = self.log.last_store_ms();
        let end = self.log.end();
        for segment in self.log.segments() {
            if segment.limit() > flushed && segment.base() < end {
                let synced = match &self.config.sync_segment {
                    Some(sync) => sync(&segment),
                    None => segment.sync(),
                };
                synced.map_err(|error| self.fail(error))?;
            }
        }
        let mut disk = self.disk.lock();
        let mut progress = self.flush.progress.lock();
        if progress.failed.is_some() {
            return Err(progress.failure());
        }
        if progress.generation != generation {
            return Ok(());
        }
        progress.flushed = end;
        self.flush.flushed.store(end, Ordering::SeqCst);
        drop(progress);
        self.flush.moved.announce();
        self.wake_for_flushed();
        disk.proven = Some((end, last_record, last_store_ms));
        let due =
            disk.marked.at.elapsed() >= MARK_INTERVAL || end >= disk.marked.flushed + MARK_BYTES;
        if due {
            self.write_marks(&mut disk)?;
        }
        Ok(())
    }

    /// Writes what is proven flushed to the state file, then confirm to Java's checkpoint.
    pub(crate) fn write_marks(&self, disk: &mut Disk) -> Result<(), Error> {
        let confirm = self.flush.progress.lock().confirm;
        let mut state = disk.files.state();
        let mut checkpoint = disk.files.checkpoint()?;
        if let Some((flushed, last_record, last_store_ms)) = disk.proven {
            state.flushed = flushed;
            state.scan_from = last_record.min(flushed);
            checkpoint.physic_msg_timestamp_ms = last_store_ms;
        }
        let confirm = confirm.min(state.flushed);
        checkpoint.confirm_offset = confirm.cast_signed();
        let written = disk
            .files
            .write_state(&state)
            .and_then(|()| disk.files.write_checkpoint(checkpoint));
        disk.marked = Marked::now(state.flushed, confirm);
        written.map_err(|error| self.fail_with(disk, error))
    }

    /// Waits until everything below `offset` is durable, for `timeout` at most.
    pub(crate) fn wait_flushed(&self, offset: Offset, timeout: Duration) -> Result<Offset, Error> {
        let deadline = deadline(timeout);
        let mut timed_out = false;
        loop {
            // Whatever moves from here on, a cut or a stop too, ends the wait below.
            let moves = self.flush.moved.count();
            let flushed = self.flush.flushed();
            if flushed >= offset {
                return Ok(flushed);
            }
            self.flush.check()?;
            if self.flush.stopping.load(Ordering::SeqCst) {
                return Err(Error::Closed);
            }
            let end = self.log.end();
            if offset > end {
                return Err(Error::OutOfRange {
                    offset,
                    min: self.log.min(),
                    end,
                });
            }
            if timed_out {
                return Err(Error::FlushTimeout { offset, flushed });
            }
            self.flush.request();
            timed_out = self.flush.moved.wait(moves, deadline);
        }
    }

    /// Lets a writer wait while too much is not yet durable, and wakes the background sync in time.
    pub(crate) fn hold_back(&self) -> Result<(), Error> {
        let end = self.log.end();
        if end >= self.flush.wake_at.load(Ordering::Relaxed) {
            self.flush
                .wake_at
                .store(end + MARK_BYTES, Ordering::Relaxed);
            self.flush.request();
        }
        let most = self.config.max_dirty_bytes;
        if end.saturating_sub(self.flush.flushed()) > most {
            self.sync_to(end - most)?;
        }
        Ok(())
    }

    /// Ends all writing: the failure is final until the store is opened again.
    pub(crate) fn fail(&self, error: Error) -> Error {
        self.fail_with(&mut self.disk.lock(), error)
    }

    /// As [`Self::fail`], by whoever holds the files.
    pub(crate) fn fail_with(&self, disk: &mut Disk, error: Error) -> Error {
        let mut progress = self.flush.progress.lock();
        if progress.failed.is_none() {
            progress.failed = Some(error.to_string());
            self.flush.failed.store(true, Ordering::SeqCst);
            tracing::error!(%error, "the store takes no writes any more");
            // A test that stopped the store stands for a crash: the dead write nothing.
            if !matches!(error, Error::Stopped { .. }) {
                let mut state = disk.files.state();
                state.clean = None;
                state.sync_failed = true;
                if let Err(error) = disk.files.write_state(&state) {
                    tracing::error!(%error, "the failure itself could not be written down");
                }
            }
        }
        self.flush.moved.announce();
        error
    }
}

/// Runs until [`Flush::stop`].
pub(crate) fn flush_loop(shared: &Shared) {
    let interval = Duration::from_millis(shared.config.flush_interval_ms.max(1));
    while shared.flush.wait_request(interval) {
        // A failure has been logged and told to whoever waits; there is nobody to tell here.
        let flushed = shared.sync_to(shared.log.end());
        if flushed.is_ok() {
            let mut disk = shared.disk.lock();
            let confirm = shared.flush.progress.lock().confirm;
            let behind = disk
                .proven
                .is_some_and(|(flushed, ..)| flushed > disk.marked.flushed)
                || confirm.min(shared.flush.flushed()) != disk.marked.confirm;
            if behind && disk.marked.at.elapsed() >= MARK_INTERVAL && shared.check_usable().is_ok()
            {
                let _ = shared.write_marks(&mut disk);
            }
        }
    }
}
