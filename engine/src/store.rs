//! One store folder: its lock, its commit log, its epoch file and its state file, and the order in which
//! they become durable.
//!
//! Everything that changes a role, the epochs or where the log ends goes through here, one at a time
//! under the role lock. Locks are taken in the order role, tail, dispatch, then the log's own, the files.

mod close;
mod config;
mod cut;
mod lock;
mod open;
mod queue_view;
mod queues;
mod read;
mod retain;
mod role;

use crate::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use crate::sync::thread::JoinHandle;
use std::sync::Arc;
use std::time::Duration;

use crate::sync::{Mutex, RwLock};

use crate::commit_log::{Appended, CommitLog, Tail};
use crate::epoch_list::EpochList;
use crate::error::Error;
use crate::flush::{Flush, Marked};
use crate::folder::Folder;
use crate::position::{Epoch, Offset};
use crate::queues::Queues;
use crate::record::Message;
use crate::state_file::State;
use crate::steps::{Files, SegmentStep, run_segment_steps};

pub use config::{DEFAULT_QUEUE_FILE_SIZE, MAX_SEGMENT_SIZE, MIN_SEGMENT_SIZE, StoreConfig};
pub use cut::Truncation;
pub(crate) use cut::{DERIVED, QUEUES};
pub(crate) use lock::{Opener, StoreLock};
pub use open::OpenReport;
pub use queue_view::{QueueEntry, QueueView, TimeBoundary};
pub use read::{RecordView, Records, SegmentInfo};
pub use retain::{Pin, Retained};

/// An open store folder.
///
/// Shared as `Arc<Store>`; all calls may be made from any thread. Dropping it without [`Store::close`]
/// leaves the folder as a crash of the process would.
pub struct Store {
    pub(crate) shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// What the store, its threads and its receiver have in common.
pub(crate) struct Shared {
    pub(crate) config: StoreConfig,
    pub(crate) folder: Folder,
    pub(crate) log: CommitLog,
    pub(crate) flush: Flush,
    /// `None` if they are not kept.
    pub(crate) queues: Option<Queues>,
    pub(crate) role: Mutex<Role>,
    pub(crate) disk: Mutex<Disk>,
    pins: Arc<retain::Pins>,
    /// How full the disk was found to be, in percent, if that is too full to take appends; else 0.
    disk_full: AtomicU8,
    epochs: RwLock<Arc<EpochList>>,
    boot_id: [u8; 16],
    report: OpenReport,
    closed: AtomicBool,
    lock: Mutex<Option<StoreLock>>,
}

/// What this node is now.
#[derive(Default)]
pub(crate) struct Role {
    /// Master of this epoch.
    pub(crate) master: Option<Epoch>,
    /// A receiver is out.
    pub(crate) receiver: bool,
    /// The folder was made ready for bytes that Java's index does not know.
    pub(crate) writes_begun: bool,
    /// Retention has looked at what lies under `truncated/` and `aside/`.
    pub(crate) saved_looked_at: bool,
}

/// The small files, and what is known about them.
pub(crate) struct Disk {
    pub(crate) files: Files,
    pub(crate) marked: Marked,
    /// Flushed mark, start of a record below it, and the store time there, of the last good sync.
    pub(crate) proven: Option<(Offset, Offset, i64)>,
    /// The epoch served last may be served again: the log is what it was then.
    pub(crate) restart_allowed: bool,
}

/// What a node has promised; durable before it is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Promises {
    /// The newest epoch this node was told of.
    pub max_epoch: Option<Epoch>,
    /// The newest epoch this node was master of.
    pub served_epoch: Option<Epoch>,
    /// Which open of the store this is: one more than the last one's. The first is numbered by the
    /// clock, so that a folder that begins anew never repeats a number.
    pub incarnation: u64,
    /// Whether `served_epoch` may be served again: the log is provably what it was then.
    pub may_serve_again: bool,
}

impl Store {
    /// Appends one message as master. In memory on return; see [`Store::wait_flushed`] for the disk.
    ///
    /// # Errors
    /// Nothing was written if it fails: [`Error::NotWritable`] unless master, [`Error::Message`] or
    /// [`Error::TooLarge`] for what cannot be a record here, [`Error::NoSpace`] when the next segment
    /// cannot be had, [`Error::DiskFull`] as [`Store::retain`] says, [`Error::Failed`] after a failed
    /// sync.
    pub fn append(&self, message: &Message<'_>) -> Result<Appended, Error> {
        let mut appended = None;
        self.append_each(std::slice::from_ref(message), |it| appended = Some(it))?;
        appended.ok_or(Error::NotWritable {
            why: "the message was not stored",
        })
    }

    /// Appends all of `messages` as one unit: consecutive records in one segment, published together
    /// (RocketMQ: MessageExtBatch). In memory on return.
    ///
    /// # Errors
    /// As for [`Store::append`]; none of them was written then.
    pub fn append_batch(&self, messages: &[Message<'_>]) -> Result<Vec<Appended>, Error> {
        let mut appended = Vec::with_capacity(messages.len());
        self.append_each(messages, |it| appended.push(it))?;
        Ok(appended)
    }

    fn append_each(
        &self,
        messages: &[Message<'_>],
        stored: impl FnMut(Appended),
    ) -> Result<(), Error> {
        self.shared.check_usable()?;
        self.shared.check_room()?;
        self.shared.hold_back()?;
        self.shared.log.append(messages, stored)
    }

    /// Makes everything published when it is called durable, and answers the flushed mark.
    ///
    /// # Errors
    /// [`Error::Failed`] if a sync failed, now or earlier: the store must be opened again.
    pub fn flush(&self) -> Result<Offset, Error> {
        self.shared.check_usable()?;
        self.shared.sync_to(self.shared.log.end())
    }

    /// Waits until every byte below `offset` is durable, `timeout` at most, and answers the flushed
    /// mark. Many waiters share one sync.
    ///
    /// # Errors
    /// [`Error::FlushTimeout`] when the time is over, [`Error::Failed`] if a sync failed,
    /// [`Error::OutOfRange`] if a truncation took the offset away.
    pub fn wait_flushed(&self, offset: Offset, timeout: Duration) -> Result<Offset, Error> {
        self.shared.check_usable()?;
        self.shared.wait_flushed(offset, timeout)
    }

    /// What was found and changed when the store was opened.
    #[must_use]
    pub fn opened(&self) -> &OpenReport {
        &self.shared.report
    }

    /// What this node has promised.
    #[must_use]
    pub fn promises(&self) -> Promises {
        let disk = self.shared.disk.lock();
        let state = disk.files.state();
        Promises {
            max_epoch: state.max_epoch,
            served_epoch: state.served_epoch,
            incarnation: state.incarnation,
            may_serve_again: disk.restart_allowed,
        }
    }

    /// Which master wrote which bytes, as the epoch file says.
    #[must_use]
    pub fn epochs(&self) -> Arc<EpochList> {
        self.shared.epochs()
    }

    /// Moves the confirm offset up to `offset`, at most to the published end; never down. It reaches the
    /// disk within about a second, never ahead of the bytes below it.
    pub fn set_confirm(&self, offset: Offset) {
        let mut progress = self.shared.flush.progress();
        progress.confirm = progress.confirm.max(offset.min(self.shared.log.end()));
        drop(progress);
        if let Some(queues) = &self.shared.queues {
            queues.wake();
        }
    }
}

impl Disk {
    /// The state for a log that will not be what it was when the newest epoch was served: that epoch is
    /// not to be served again, after whatever stop.
    pub(crate) fn given_up(&self) -> State {
        let mut state = self.files.state();
        if state.served_epoch.is_some() && state.served_epoch == state.max_epoch {
            state.boot_id = [0; 16];
        }
        state
    }
}

impl Shared {
    pub(crate) fn epochs(&self) -> Arc<EpochList> {
        Arc::clone(&self.epochs.read())
    }

    pub(crate) fn set_epochs(&self, list: EpochList) {
        *self.epochs.write() = Arc::new(list);
    }

    /// Fails when the store was closed or has failed.
    pub(crate) fn check_usable(&self) -> Result<(), Error> {
        self.check_open()?;
        self.flush.check()
    }

    /// Fails when the store was closed.
    pub(crate) fn check_open(&self) -> Result<(), Error> {
        if self.closed.load(Ordering::SeqCst) {
            return Err(Error::Closed);
        }
        Ok(())
    }

    /// Erases bytes that were received and never published: no epoch entry, no handshake and no
    /// promotion may find them.
    pub(crate) fn settle(&self, tail: &mut Tail) -> Result<(), Error> {
        if tail.pen_is_out() {
            return Err(Error::WindowOutstanding);
        }
        let end = self.log.end();
        if tail.dirty_to > end {
            let steps = [SegmentStep::Erase { at: end }];
            self.run_segment_steps(&steps)
                .map_err(|error| self.fail(error))?;
            tail.dirty_to = end;
        }
        Ok(())
    }

    /// Before the first byte that Java's key index would not know: the index goes out of its sight, and
    /// Java makes a new one from the log.
    pub(crate) fn begin_writes(&self, role: &mut Role) -> Result<(), Error> {
        if role.writes_begun {
            return Ok(());
        }
        let mut disk = self.disk.lock();
        if self.folder.root().join(INDEX).exists() {
            let step = SegmentStep::MoveAside {
                name: INDEX,
                into: self.folder.aside(),
            };
            let moved = disk.files.checkpoint().and_then(|mut checkpoint| {
                checkpoint.index_msg_timestamp_ms = 0;
                disk.files.write_checkpoint(checkpoint)?;
                self.run_segment_steps(&[step])
            });
            moved.map_err(|error| self.fail_with(&mut disk, error))?;
        }
        role.writes_begun = true;
        Ok(())
    }

    pub(crate) fn run_segment_steps(&self, steps: &[SegmentStep]) -> Result<(), Error> {
        let settings = self.log.settings();
        run_segment_steps(steps, &self.folder, settings.segment_size, &settings.hook)
    }
}

/// Java's key index.
const INDEX: &str = "index";

#[cfg(test)]
mod tests;
