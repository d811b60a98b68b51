//! Every consume queue of a store, and the dispatcher that fills them from the log.
//!
//! The dispatcher goes through the log in order, up to the confirm offset: a record is in its queue only
//! when its end is at or below that, so nothing a consumer reads here can be taken back by the group. A
//! queue's units are derived: what is lost or damaged is made again from the log.
//!
//! Invariants: everything below the dispatch position that belongs in a queue is in one, nothing above it
//! is; a cut changes log, position and queues in one critical section; a mark says only what is on
//! disk. Locks are taken in the order dispatch, topics, queue; the log's own locks are taken inside
//! none but dispatch.

mod dispatch;
mod listing;
mod tags;
mod verify;

use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::sync::{Condvar, Mutex, MutexGuard, RwLock};

use crate::consume_queue::{ConsumeQueue, FileCache, FileSettings, QueueFiles, Unsynced};
use crate::error::Error;
use crate::growth::{Growth, Listener};
use crate::position::Offset;
use crate::queue_offsets::QueueOffsets;
use crate::state_file::QueuesMark;
use crate::steps::Hook;

use dispatch::Counts;
pub use dispatch::QueueCounts;
pub(crate) use listing::{FoundQueue, common_len, list};
pub(crate) use verify::message_of;

/// What all queues of a store have in common.
pub(crate) struct QueueSettings {
    /// `consumequeue/` of the store folder.
    pub(crate) dir: PathBuf,
    /// Bytes of each queue file, a multiple of a unit.
    pub(crate) file_size: u64,
    pub(crate) hook: Option<Hook>,
}

/// Stands for no mark.
const NO_MARK: Offset = Offset::MAX;

/// One queue and its name.
pub(crate) struct Queue {
    pub(crate) topic: Box<str>,
    pub(crate) queue_id: i32,
    /// Its number among all queues, from 0.
    number: u32,
    pub(crate) state: RwLock<ConsumeQueue>,
    /// It stands in the list of queues with something to sync.
    listed: AtomicBool,
}

/// All queues of a store.
pub(crate) struct Queues {
    dir: PathBuf,
    files: FileSettings,
    /// Few queues per topic: sorted by queue id.
    topics: RwLock<HashMap<Box<str>, Vec<Arc<Queue>>>>,
    dispatch: Mutex<Dispatch>,
    /// Repeats the dispatch position for readers.
    dispatched: AtomicU64,
    /// Raised by every cut: what was synced before it is no longer marked.
    generation: AtomicU64,
    /// Up to where the mark on disk proves the queues; [`NO_MARK`] if it does not.
    marked: AtomicU64,
    /// Files below it were looked for and removed.
    removed_below: AtomicU64,
    counts: Counts,
    growth: Growth,
    /// One sync at a time.
    pub(crate) syncing: Mutex<()>,
    bell: Bell,
    pub(crate) sync_bell: Bell,
}

/// What the dispatch lock guards.
pub(crate) struct Dispatch {
    /// Everything below is dispatched.
    at: Offset,
    /// Start and store time of the last record that is dispatched and before which nothing was passed
    /// over that Java would have put into a queue; `None` if that is not known.
    last: Option<(Offset, i64)>,
    /// No record was passed over that has a queue offset.
    complete: bool,
    unsynced: Vec<Arc<Queue>>,
    /// Directories that got a new name in them.
    new_names: BTreeSet<PathBuf>,
    number: u32,
}

/// What a sync takes along: once the files are synced, the mark is true.
pub(crate) struct Unmarked {
    pub(crate) unsynced: Unsynced,
    queues: Vec<Arc<Queue>>,
    pub(crate) mark: QueuesMark,
    pub(crate) last: Option<(Offset, i64)>,
    pub(crate) generation: u64,
}

impl Queues {
    /// No queues, dispatched up to `at`.
    pub(crate) fn new(settings: QueueSettings, at: Offset) -> Self {
        let QueueSettings {
            dir,
            file_size,
            hook,
        } = settings;
        let files = FileSettings {
            file_size,
            cache: Arc::new(FileCache::default()),
            hook,
        };
        let dispatch = Dispatch {
            at,
            last: None,
            complete: true,
            unsynced: Vec::new(),
            new_names: BTreeSet::new(),
            number: 0,
        };
        Self {
            dir,
            files,
            topics: RwLock::default(),
            dispatch: Mutex::new(dispatch),
            dispatched: AtomicU64::new(at),
            generation: AtomicU64::new(0),
            marked: AtomicU64::new(NO_MARK),
            removed_below: AtomicU64::new(0),
            counts: Counts::default(),
            growth: Growth::default(),
            syncing: Mutex::new(()),
            bell: Bell::default(),
            sync_bell: Bell::default(),
        }
    }

    /// The queues that were found, each with the units of records that end at or before `at`; the
    /// rest of them is durably erased. False if files were missing or of another length: those and
    /// what stands behind them were removed.
    pub(crate) fn load(
        settings: QueueSettings,
        found: Vec<FoundQueue>,
        at: Offset,
    ) -> Result<(Self, bool), Error> {
        let size = settings.file_size;
        let queues = Self::new(settings, at);
        let mut whole = true;
        for queue in found {
            let row = queue.row(size);
            let mut remove = row.irregular;
            if !remove.is_empty() {
                whole = false;
                let path = queue.dir.display();
                tracing::error!(%path, "files of the consume queue are missing or cut short");
            }
            remove.extend(row.unmade);
            let mut dispatch = queues.dispatch.lock();
            let number = dispatch.next_number();
            drop(dispatch);
            let mut files = QueueFiles::new(queues.files.clone(), queue.dir, number, row.range);
            files.remove_stray(&remove)?;
            let state = ConsumeQueue::open(files, at)?;
            queues.insert(&queue.topic, queue.queue_id, number, state);
        }
        Ok((queues, whole))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Dispatch> {
        self.dispatch.lock()
    }

    /// Everything below is dispatched.
    pub(crate) fn dispatched(&self) -> Offset {
        self.dispatched.load(Ordering::SeqCst)
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::SeqCst)
    }

    pub(crate) fn find(&self, topic: &str, queue_id: i32) -> Option<Arc<Queue>> {
        let topics = self.topics.read();
        let queues = topics.get(topic)?;
        let place = queues.binary_search_by_key(&queue_id, |queue| queue.queue_id);
        Some(Arc::clone(&queues[place.ok()?]))
    }

    /// Every queue, in no order.
    pub(crate) fn all(&self) -> Vec<Arc<Queue>> {
        let topics = self.topics.read();
        topics.values().flatten().map(Arc::clone).collect()
    }

    fn insert(&self, topic: &str, queue_id: i32, number: u32, state: ConsumeQueue) -> Arc<Queue> {
        let queue = Arc::new(Queue {
            topic: topic.into(),
            queue_id,
            number,
            state: RwLock::new(state),
            listed: AtomicBool::new(false),
        });
        let mut topics = self.topics.write();
        let queues = topics.entry(topic.into()).or_default();
        let place = queues.partition_point(|other| other.queue_id < queue_id);
        queues.insert(place, Arc::clone(&queue));
        queue
    }

    /// Makes a queue that was not there; its directory is made with its first file.
    fn make(
        &self,
        dispatch: &mut Dispatch,
        topic: &str,
        queue_id: i32,
    ) -> Result<Arc<Queue>, Error> {
        let number = dispatch.next_number();
        let topic_dir = self.dir.join(topic);
        let dir = topic_dir.join(queue_id.to_string());
        let files = QueueFiles::new(self.files.clone(), dir, number, 0..0);
        let state = ConsumeQueue::open(files, 0)?;
        let root = self.dir.parent().map(Path::to_path_buf);
        dispatch.new_names.extend(root);
        dispatch.new_names.insert(self.dir.clone());
        dispatch.new_names.insert(topic_dir);
        Ok(self.insert(topic, queue_id, number, state))
    }

    /// Where the next message of each queue goes, as far as messages are dispatched, and the offset up to
    /// which they are; `None` if records were passed over, so that only the log knows.
    pub(crate) fn next_offsets(&self) -> Option<(QueueOffsets, Offset)> {
        let dispatch = self.dispatch.lock();
        if !dispatch.complete {
            return None;
        }
        let mut offsets = QueueOffsets::default();
        for queue in self.all() {
            *offsets.next(&queue.topic, queue.queue_id) = queue.state.read().end();
        }
        Some((offsets, dispatch.at))
    }

    /// A sum over the names and both ends of the queues that have messages, in no order.
    pub(crate) fn ends(&self) -> u32 {
        let topics = self.topics.read();
        let mut sum = 0_u32;
        for queue in topics.values().flatten() {
            let state = queue.state.read();
            if !state.is_empty() {
                let mut crc = crc32c::crc32c(queue.topic.as_bytes());
                crc = crc32c::crc32c_append(crc, &[0]);
                crc = crc32c::crc32c_append(crc, &queue.queue_id.to_be_bytes());
                crc = crc32c::crc32c_append(crc, &state.begin().to_be_bytes());
                crc = crc32c::crc32c_append(crc, &state.end().to_be_bytes());
                sum = sum.wrapping_add(crc);
            }
        }
        sum
    }

    /// Whether the queues are those the mark was made of.
    pub(crate) fn agree_with(&self, mark: &QueuesMark) -> bool {
        mark.ends_crc == self.ends()
    }

    /// Writes every unit into its file and answers what must be synced for the mark beside it.
    pub(crate) fn write_out(&self) -> Result<Unmarked, Error> {
        let mut dispatch = self.dispatch.lock();
        for queue in &dispatch.unsynced {
            queue.state.write().write_out()?;
        }
        let mut unsynced = Unsynced::default();
        let queues = std::mem::take(&mut dispatch.unsynced);
        for queue in &queues {
            queue.listed.store(false, Ordering::SeqCst);
            queue.state.write().take_unsynced(&mut unsynced);
        }
        unsynced
            .dirs
            .extend(std::mem::take(&mut dispatch.new_names));
        let mark = QueuesMark {
            through: dispatch.at,
            ends_crc: self.ends(),
            complete: dispatch.complete,
        };
        Ok(Unmarked {
            unsynced,
            queues,
            mark,
            last: dispatch.last,
            generation: self.generation(),
        })
    }

    /// What [`Self::write_out`] answered was not synced after all.
    pub(crate) fn give_back(&self, unmarked: Unmarked) {
        let mut dispatch = self.dispatch.lock();
        for queue in unmarked.queues {
            queue.state.write().distrust();
            dispatch.list(&queue);
        }
        dispatch.new_names.extend(unmarked.unsynced.dirs);
    }

    /// Removes files whose records all lie below `min`; not durable, and found again by the next call.
    pub(crate) fn remove_below(&self, min: Offset) -> Result<(), Error> {
        if self.removed_below.load(Ordering::SeqCst) >= min {
            return Ok(());
        }
        let mut dispatch = self.dispatch.lock();
        for queue in self.all() {
            if queue.state.write().remove_below(min)? {
                dispatch.list(&queue);
            }
        }
        self.removed_below.store(min, Ordering::SeqCst);
        Ok(())
    }

    /// Takes every message back whose record ends behind `to`, in memory: readers see it at once. The
    /// position goes back too. On an error nothing has changed that dispatching again does not mend.
    pub(crate) fn retract(
        &self,
        dispatch: &mut Dispatch,
        to: Offset,
        last: Option<(Offset, i64)>,
    ) -> Result<Vec<Arc<Queue>>, Error> {
        self.unmark();
        let mut follow = Vec::new();
        if dispatch.at > to {
            self.set_at(dispatch, to);
            dispatch.last = dispatch.last.and(last);
        }
        for queue in self.all() {
            if queue.state.write().retract(to)? {
                follow.push(queue);
            }
        }
        Ok(follow)
    }

    /// Makes the files of queues that were taken back end where the queues do, durably.
    pub(crate) fn follow(&self, queues: &[Arc<Queue>]) -> Result<(), Error> {
        for queue in queues {
            queue.state.write().follow()?;
        }
        Ok(())
    }

    /// Forgets every message, durably, and goes on at `at`.
    pub(crate) fn restart(&self, dispatch: &mut Dispatch, at: Offset) -> Result<(), Error> {
        self.unmark();
        self.set_at(dispatch, at);
        (dispatch.last, dispatch.complete) = (None, true);
        for queue in self.all() {
            queue.state.write().clear()?;
        }
        Ok(())
    }

    fn set_at(&self, dispatch: &mut Dispatch, at: Offset) {
        dispatch.at = at;
        self.dispatched.store(at, Ordering::SeqCst);
    }

    /// A cut has come: nothing that was synced before it is to be marked after it.
    fn unmark(&self) {
        self.generation.fetch_add(1, Ordering::SeqCst);
        self.set_marked(NO_MARK);
    }

    /// The mark on disk proves the queues.
    pub(crate) fn trust(&self, mark: &QueuesMark) {
        self.dispatch.lock().complete = mark.complete;
        self.set_marked(mark.through);
    }

    pub(crate) fn set_marked(&self, through: Offset) {
        self.marked.store(through, Ordering::SeqCst);
    }

    /// Up to where the mark on disk proves the queues; `None` if it does not.
    pub(crate) fn marked(&self) -> Option<Offset> {
        Some(self.marked.load(Ordering::SeqCst)).filter(|marked| *marked != NO_MARK)
    }

    /// Whether the mark on disk says `through`.
    pub(crate) fn is_marked(&self, through: Offset) -> bool {
        self.marked.load(Ordering::SeqCst) == through
    }

    /// Bytes of log that are dispatched and not marked.
    pub(crate) fn unmarked_bytes(&self) -> u64 {
        let marked = self.marked.load(Ordering::SeqCst);
        self.dispatched().saturating_sub(marked)
    }

    pub(crate) fn counts(&self) -> QueueCounts {
        self.counts.read()
    }

    pub(crate) fn listen(&self, listener: Listener) {
        let _dispatch = self.dispatch.lock();
        self.growth.listen(listener);
    }

    pub(crate) fn wait_for_dispatch(&self, past: Offset, timeout: Duration) -> Offset {
        self.growth
            .wait(past, timeout, &self.dispatch, || self.dispatched())
    }

    /// There may be something to dispatch.
    pub(crate) fn wake(&self) {
        self.bell.ring();
    }

    /// Waits for [`Self::wake`], `at_most` that long; false when the thread must end.
    pub(crate) fn wait_wake(&self, at_most: Option<Duration>) -> bool {
        self.bell.wait(at_most)
    }

    pub(crate) fn stop(&self) {
        self.bell.stop();
        self.sync_bell.stop();
    }
}

impl Dispatch {
    fn next_number(&mut self) -> u32 {
        let number = self.number;
        self.number += 1;
        number
    }

    /// The queue has something to sync.
    fn list(&mut self, queue: &Arc<Queue>) {
        if !queue.listed.swap(true, Ordering::SeqCst) {
            self.unsynced.push(Arc::clone(queue));
        }
    }
}

/// Wakes one thread. Ringing twice before it wakes costs one atomic operation.
#[derive(Default)]
pub(crate) struct Bell {
    rung: AtomicBool,
    stopping: AtomicBool,
    gate: Mutex<()>,
    moved: Condvar,
}

impl Bell {
    pub(crate) fn ring(&self) {
        if !self.rung.swap(true, Ordering::SeqCst) {
            // Taken and given back: the thread has either seen the bell or waits by now.
            drop(self.gate.lock());
            self.moved.notify_one();
        }
    }

    fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        self.rung.store(false, Ordering::SeqCst);
        self.ring();
    }

    /// Waits until it rings, `at_most` that long; false when the thread must end.
    pub(crate) fn wait(&self, at_most: Option<Duration>) -> bool {
        let mut gate = self.gate.lock();
        while !self.rung.load(Ordering::SeqCst) {
            match at_most {
                Some(time) if self.moved.wait_for(&mut gate, time).timed_out() => break,
                Some(_) => {}
                None => self.moved.wait(&mut gate),
            }
        }
        self.rung.store(false, Ordering::SeqCst);
        !self.stopping.load(Ordering::SeqCst)
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests;
