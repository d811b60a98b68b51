//! Receiving as slave: bytes land in the mapped tail, whole records are published.
//!
//! The received end runs ahead of the published end while a record is incomplete. Bytes are written only
//! through a [`ReceiveWindow`], of which there is one at a time; a window that is still out may be
//! written to by the kernel, so nothing touches the tail before it is back. An epoch's entry is durable
//! before its first byte, and what was received and never published is durably erased before anything
//! else is done with the log.

use std::sync::Arc;

use crate::commit_log::Pen;
use crate::epoch_list::EpochList;
use crate::error::Error;
use crate::position::{EpochEntry, Offset};
use crate::queues::Queues;
use crate::region::Writer;
use crate::steps::{SegmentStep, Step, roll_steps};
use crate::store::{Shared, Store};

/// The slave's end of the replication stream; one per store at a time.
///
/// Dropping it without [`Receiver::finish`] erases what was not published too, but can only log a
/// failure.
pub struct Receiver {
    shared: Arc<Shared>,
    received: Offset,
    finished: bool,
}

/// A part of the mapped tail to receive into. It lies in one segment, at the received end.
///
/// Give it back with [`Receiver::filled`] once nobody, the kernel included, writes to it any more. If it
/// is dropped instead, all of it counts as written and as never received.
pub struct ReceiveWindow {
    shared: Arc<Shared>,
    writer: Option<Writer>,
    start: Offset,
    /// From the published end to `start`, in bytes.
    skip: usize,
    len: usize,
}

impl Store {
    /// Opens the slave's side: bytes that an earlier receiver left unpublished are durably erased first.
    ///
    /// # Errors
    /// [`Error::IsMaster`] while master, [`Error::ReceiverActive`] if there is one already,
    /// [`Error::WindowOutstanding`] while a window of an earlier one is still out.
    pub fn receive(&self) -> Result<Receiver, Error> {
        let shared = &self.shared;
        let mut role = shared.role.lock();
        shared.check_usable()?;
        if role.master.is_some() {
            return Err(Error::IsMaster {
                why: "a master takes no bytes of another master",
            });
        }
        if role.receiver {
            return Err(Error::ReceiverActive);
        }
        shared.begin_writes(&mut role)?;
        shared.settle(&mut shared.log.lock_tail())?;
        role.receiver = true;
        let received = shared.log.end();
        Ok(Receiver {
            shared: Arc::clone(shared),
            received,
            finished: false,
        })
    }
}

impl Receiver {
    /// Behind the last byte received; where the next one belongs.
    #[must_use]
    pub fn received_end(&self) -> Offset {
        self.received
    }

    /// Behind the last whole, checked record; what may be acknowledged.
    #[must_use]
    pub fn published_end(&self) -> Offset {
        self.shared.log.end()
    }

    /// Lets an empty log begin at `offset`, a multiple of the segment size, with an empty epoch list.
    /// Durable on return.
    ///
    /// # Errors
    /// [`Error::Receive`] if the log is not empty or the offset is no multiple; nothing has changed.
    pub fn start_at(&mut self, offset: Offset) -> Result<(), Error> {
        let shared = &*self.shared;
        shared.check_usable()?;
        let refused = |why| Err(Error::Receive { offset, why });
        let log = &shared.log;
        if log.min() != log.end() || self.received != log.end() {
            return refused("only an empty log can begin elsewhere");
        }
        if offset == log.end() {
            return Ok(());
        }
        if !offset.is_multiple_of(log.settings().segment_size) {
            return refused("a log begins at a multiple of the segment size");
        }
        let mut tail = log.lock_tail();
        shared.settle(&mut tail)?;
        let mut dispatch = shared.queues.as_ref().map(Queues::lock);
        // Else a segment for the old place might be made once the others are gone.
        let layout = log.lock_layout();
        let mut disk = shared.disk.lock();
        let mut checkpoint = disk.files.checkpoint()?;
        checkpoint.confirm_offset = 0;
        (
            checkpoint.logics_physical_offset,
            checkpoint.logics_msg_timestamp_ms,
        ) = (0, 0);
        let mut state = disk.given_up();
        state.flushed = 0;
        state.scan_from = 0;
        state.queues = None;
        state.generation += 1;
        let generation = state.generation;
        let mut steps = vec![
            Step::Checkpoint(checkpoint),
            Step::State(state),
            Step::Epochs(EpochList::new()),
        ];
        let files = log
            .empty_bases()
            .into_iter()
            .map(|base| SegmentStep::Remove {
                path: shared.folder.segment(base),
                into: None,
            });
        steps.extend(files.map(Step::Segment));
        shared.run(&mut disk, &steps)?;
        if let (Some(queues), Some(dispatch)) = (&shared.queues, &mut dispatch) {
            let cleared = queues.restart(dispatch, offset);
            cleared.map_err(|error| shared.fail_with(&mut disk, error))?;
        }
        let mut steps = roll_steps(vec![offset]).map(Step::Segment).to_vec();
        state.flushed = offset;
        state.scan_from = offset;
        steps.push(Step::State(state));
        shared.run(&mut disk, &steps)?;
        let restarted = log.restart_at(&mut tail, &layout, offset);
        restarted.map_err(|error| shared.fail_with(&mut disk, error))?;
        disk.proven = None;
        disk.restart_allowed = false;
        shared.flush.reset(offset, generation);
        shared.set_epochs(EpochList::new());
        self.received = offset;
        Ok(())
    }

    /// Puts a new epoch behind the others; the bytes received from now on are its own. The entry is
    /// durable on return. An entry that is the newest already changes nothing.
    ///
    /// # Errors
    /// [`Error::EpochEntry`] unless it starts at the received end (or, if the log and its list are
    /// empty, at or before it) with no incomplete record pending, and is newer than the last.
    pub fn adopt_epoch(&mut self, entry: EpochEntry) -> Result<(), Error> {
        let list = self.shared.epochs();
        if list.last() == Some(entry) {
            return Ok(());
        }
        let EpochEntry { epoch, start } = entry;
        let refused = |why: String| Error::EpochEntry { epoch, start, why };
        let first = list.is_empty() && self.shared.log.min() == self.shared.log.end();
        let fits = if first {
            start <= self.received
        } else {
            start == self.received
        };
        if !fits {
            return Err(refused(format!("the received end is {}", self.received)));
        }
        let mut list = (*list).clone();
        list.append(entry)
            .map_err(|error| refused(error.to_string()))?;
        self.replace_epochs(list)
    }

    /// Makes `list` the epoch list, as a slave does that has agreed with its master up to the received
    /// end. Durable on return.
    ///
    /// # Errors
    /// [`Error::EpochEntry`] if an entry starts behind the received end or the log's first byte has
    /// none, [`Error::Receive`] while an incomplete record is pending.
    pub fn adopt_epochs(&mut self, list: &EpochList) -> Result<(), Error> {
        if let Some(last) = list.last().filter(|last| last.start > self.received) {
            let why = format!("the received end is {}", self.received);
            return Err(Error::EpochEntry {
                epoch: last.epoch,
                start: last.start,
                why,
            });
        }
        let (min, end) = (self.shared.log.min(), self.shared.log.end());
        if min < end && list.covering(min).is_none() {
            let why = format!("no entry covers the log's first byte at {min}");
            return Err(Error::EpochEntry {
                epoch: 0,
                start: min,
                why,
            });
        }
        self.replace_epochs(list.clone())
    }

    /// Room for at most `max_len` bytes at the received end, in one segment; the next segment is opened
    /// when the last one is full. Waits for a sync while too many bytes are not durable.
    ///
    /// # Errors
    /// [`Error::WindowOutstanding`] while another window is out, [`Error::NoSpace`] if the next
    /// segment cannot be had, [`Error::Receive`] if a record would reach past its segment or the bytes
    /// have no epoch.
    pub fn window(&mut self, max_len: usize) -> Result<ReceiveWindow, Error> {
        let shared = &self.shared;
        shared.check_usable()?;
        shared.hold_back()?;
        let offset = self.received;
        if shared.epochs().covering(offset).is_none() {
            return Err(Error::Receive {
                offset,
                why: "no epoch was adopted for these bytes",
            });
        }
        let mut tail = shared.log.lock_tail();
        let writer = shared.log.lend_pen(&mut tail)?;
        let skip = usize::try_from(offset - shared.log.end()).unwrap_or(usize::MAX);
        let len = writer.room().saturating_sub(skip).min(max_len);
        if len == 0 && max_len > 0 {
            tail.pen = Pen::Here(writer);
            return Err(Error::Receive {
                offset,
                why: "the segment is full and its last record is not whole; do both nodes have the \
                      same segment size (mappedFileSizeCommitLog)?",
            });
        }
        let shared = Arc::clone(shared);
        Ok(ReceiveWindow {
            shared,
            writer: Some(writer),
            start: offset,
            skip,
            len,
        })
    }

    /// Takes the window back with its first `n` bytes received. Nothing is published yet.
    ///
    /// # Panics
    /// If `n` is more than the window has, or the window is another store's.
    pub fn filled(&mut self, mut window: ReceiveWindow, n: usize) {
        assert!(n <= window.len, "{n} bytes in a window of {}", window.len);
        assert!(
            Arc::ptr_eq(&self.shared, &window.shared),
            "the window of another store"
        );
        assert_eq!(
            window.start, self.received,
            "a window of an earlier receiver"
        );
        self.received += n as u64;
        // What the drop gives back ends here.
        window.len = n;
    }

    /// Publishes every record that is whole: readers see it from now on, and it may be acknowledged.
    /// Each is checked with its CRCs. Answers the published end; nothing of it is durable yet.
    ///
    /// # Errors
    /// [`Error::Corrupt`] at the first record that is bad; those before it are published. The
    /// connection must be closed then.
    pub fn publish(&mut self) -> Result<Offset, Error> {
        let shared = &self.shared;
        shared.check_usable()?;
        let before = shared.log.end();
        let published = {
            let mut tail = shared.log.lock_tail();
            shared.log.publish_received(&mut tail, self.received)
        };
        if shared.log.end() > before {
            shared.log.announce();
        }
        published
    }

    /// Ends receiving: what was not published is durably erased.
    ///
    /// # Errors
    /// [`Error::WindowOutstanding`] if a window is still out: it must come back, and the next receiver,
    /// cut or promotion erases what it left.
    pub fn finish(mut self) -> Result<(), Error> {
        self.end()
    }

    fn end(&mut self) -> Result<(), Error> {
        self.finished = true;
        let shared = &*self.shared;
        let mut role = shared.role.lock();
        role.receiver = false;
        shared.check_usable()?;
        shared.settle(&mut shared.log.lock_tail())
    }

    fn replace_epochs(&mut self, list: EpochList) -> Result<(), Error> {
        let shared = &*self.shared;
        shared.check_usable()?;
        let offset = self.received;
        let mut tail = shared.log.lock_tail();
        if offset != shared.log.end() {
            return Err(Error::Receive {
                offset,
                why: "an incomplete record is pending",
            });
        }
        // Whole records of another epoch must not lie behind the end when the entry is there.
        shared.settle(&mut tail)?;
        shared.replace_epochs(list)
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        if !self.finished
            && let Err(error) = self.end()
        {
            tracing::warn!(%error, "a receiver was dropped and left bytes behind the end");
        }
    }
}

impl ReceiveWindow {
    /// The log offset of its first byte.
    #[must_use]
    pub fn start(&self) -> Offset {
        self.start
    }

    /// Bytes it has room for.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no room.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes to receive into. They stay where they are as long as the window lives.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        match &mut self.writer {
            Some(writer) => &mut writer.tail_mut()[self.skip..self.skip + self.len],
            None => &mut [],
        }
    }
}

impl Drop for ReceiveWindow {
    fn drop(&mut self) {
        if let Some(writer) = self.writer.take() {
            let mut tail = self.shared.log.lock_tail();
            tail.dirty_to = tail.dirty_to.max(self.start + self.len as u64);
            tail.pen = Pen::Here(writer);
        }
    }
}
