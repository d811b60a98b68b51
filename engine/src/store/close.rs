//! Stopping: with the marks that let the next open trust the log, or without, as a crash does.

use crate::sync::atomic::Ordering;

use crate::commit_log::MOST_READY;
use crate::error::Error;
use crate::position::Offset;
use crate::recovery::bases_crc;
use crate::state_file::CleanStop;

use super::{Shared, Store};

impl Store {
    /// Closes the store: everything is synced, then the marks of a clean stop are written. Durable on
    /// return, and the folder is free for another opener. At most two empty segments are left behind the
    /// log, as by Java. Views stay readable, further ones are refused.
    ///
    /// # Errors
    /// [`Error::ReceiverActive`] or [`Error::WindowOutstanding`] while the slave's side is not finished;
    /// the store is still open then. After any other error it is closed without the clean marks, and
    /// the next open scans.
    pub fn close(&self) -> Result<(), Error> {
        let shared = &*self.shared;
        let mut role = shared.role.lock();
        if shared.closed.load(Ordering::SeqCst) {
            return Ok(());
        }
        if role.receiver {
            return Err(Error::ReceiverActive);
        }
        let mut tail = shared.log.lock_tail();
        if tail.pen_is_out() {
            return Err(Error::WindowOutstanding);
        }
        tail.refused = Some("the store is closed");
        role.master = None;
        let settled = shared.settle(&mut tail);
        drop(tail);
        self.stop_threads();
        let marked = settled
            .and_then(|()| shared.sync_to(shared.log.end()))
            .and_then(|end| shared.finish_queues().map(|()| end))
            .and_then(|end| {
                let removed = shared.log.remove_ready_beyond(MOST_READY);
                removed.map(|()| end)
            })
            .and_then(|end| shared.write_clean_stop(end));
        shared.closed.store(true, Ordering::SeqCst);
        shared.log.seal();
        drop(shared.lock.lock().take());
        marked
    }

    /// Leaves the store as a kill of the process would: nothing is written or synced any more, and the
    /// folder is free for another opener. For tests of recovery.
    #[doc(hidden)]
    pub fn abandon(&self) {
        self.shared.closed.store(true, Ordering::SeqCst);
        let mut tail = self.shared.log.lock_tail();
        tail.refused = Some("the store is closed");
        // Whoever has a window may still write into the file: the lock goes with the window then.
        let writable = tail.pen_is_out();
        drop(tail);
        self.stop_threads();
        self.shared.log.seal();
        if !writable {
            drop(self.shared.lock.lock().take());
        }
    }

    fn stop_threads(&self) {
        self.shared.flush.stop();
        self.shared.log.stop_prepare();
        if let Some(queues) = &self.shared.queues {
            queues.stop();
        }
        for thread in self.threads.lock().drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread of the store panicked");
            }
        }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        if !self.shared.closed.load(Ordering::SeqCst) {
            self.abandon();
        }
    }
}

impl Shared {
    fn write_clean_stop(&self, end: Offset) -> Result<(), Error> {
        let mut disk = self.disk.lock();
        self.write_marks(&mut disk)?;
        let last_record = self.log.last_record();
        let (last_record_len, last_record_crc) = match end > self.log.min() {
            true => self.log.last_item(last_record)?,
            false => (0, 0),
        };
        let mut state = disk.files.state();
        state.flushed = end;
        state.scan_from = last_record.min(end);
        state.clean = Some(CleanStop {
            end,
            bases_crc: bases_crc(self.log.bases().into_iter(), end),
            last_record_len,
            last_record_crc,
            epoch_file_crc: self.epochs().fingerprint(),
            checkpoint_crc: disk.files.checkpoint()?.fingerprint(),
        });
        let written = disk.files.write_state(&state);
        written.map_err(|error| self.fail_with(&mut disk, error))
    }
}
