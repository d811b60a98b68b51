//! A small strongly consistent log: append, get, metadata, on a raft group in one thread.
//!
//! Invariants: success is only ever reported from apply; [`Ledger::get`] shows committed entries
//! only; every append and read begun gets exactly one outcome, also when the leader changes, the
//! store fails or the ledger stops; a failed write or a broken assertion ends the thread for good,
//! and [`LedgerMetadata::failure`] says why.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::task::{Context, Poll};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use tokio::sync::{oneshot, watch};

use crate::error::{AppendError, Error, ReadError};
use crate::node::{Node, NodeSettings, Outgoing, PAYLOAD_TAG};
use crate::raft_codec::{CodecError, Member, PeerMessage, decode_message};
use crate::store::{Identity, RowChanges, Store};

/// Longest payload of one append, in bytes.
pub const PAYLOAD_LIMIT: usize = 4 << 20;

/// Messages, appends and reads that wait for the thread.
const QUEUE_LEN: usize = 8192;

/// Events taken before the node turns.
const GATHER_COUNT: usize = 1024;

/// What a ledger replicates: a deterministic state that is nothing but rows.
///
/// The rows are the durable form: what one call of [`Self::apply`] changes is on disk together with
/// the index of its entry, and a snapshot is all rows.
pub trait StateMachine: Send + Sync + 'static {
    /// What an append is answered with.
    type Answer: Send + 'static;

    /// Applies one committed entry. Must be total and depend on nothing but the state and the
    /// entry; every change of a row is noted in `rows`.
    fn apply(&mut self, index: u64, payload: &[u8], rows: &mut RowChanges) -> Self::Answer;

    /// Becomes what these rows say; all former state is gone.
    ///
    /// # Errors
    /// When the rows are not of this machine; the ledger stops with this text.
    fn load(&mut self, rows: Vec<(Vec<u8>, Vec<u8>)>) -> Result<(), String>;
}

/// How frames reach other members. Called on the ledger's thread: must not block.
pub trait Transport: Send + 'static {
    /// The members and their addresses, at the start and after each change.
    fn members(&mut self, members: &BTreeMap<u64, Member>);

    /// Queues a frame; false when it was dropped. Frames may be lost, doubled and reordered.
    /// `receipt` comes with snapshots and tells the ledger what became of them.
    fn send(&mut self, to: u64, frame: Bytes, receipt: Option<SnapshotReceipt>) -> bool;
}

/// Tells the ledger what became of a snapshot it sent; dropped = it was not delivered.
#[derive(Debug)]
pub struct SnapshotReceipt {
    to: u64,
    delivered: bool,
    reports: Arc<Mutex<Vec<(u64, bool)>>>,
}

impl SnapshotReceipt {
    /// The peer has it.
    pub fn delivered(mut self) {
        self.delivered = true;
    }
}

impl Drop for SnapshotReceipt {
    fn drop(&mut self) {
        self.reports.lock().push((self.to, self.delivered));
    }
}

/// Clocks of a ledger, in ms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LedgerTimings {
    /// Length of one tick.
    pub tick_ms: u64,
    /// A leader is heard of this often.
    pub heartbeat_ms: u64,
    /// A follower that hears of no leader for a random time in `[min, max)` seeks votes.
    pub election_min_ms: u64,
    /// See [`Self::election_min_ms`].
    pub election_max_ms: u64,
    /// Appends and reads without an outcome for this long are told so.
    pub append_timeout_ms: u64,
    /// Effects of entries are on disk at the latest this long after they were applied; until then
    /// a restart applies the entries again.
    pub flush_ms: u64,
}

impl Default for LedgerTimings {
    fn default() -> Self {
        Self {
            tick_ms: 50,
            heartbeat_ms: 50,
            election_min_ms: 300,
            election_max_ms: 600,
            append_timeout_ms: 3_000,
            flush_ms: 1_000,
        }
    }
}

impl LedgerTimings {
    /// Checks that a healthy leader is never taken for dead.
    ///
    /// # Errors
    /// The relation that does not hold.
    pub fn check(&self) -> Result<(), Error> {
        let bad = |why: String| {
            Err(Error::Setting {
                key: "controller timings",
                why,
            })
        };
        if self.tick_ms < 5 || self.tick_ms > 1_000 {
            return bad(format!("a tick of {} ms is not in 5..=1000", self.tick_ms));
        }
        if self.heartbeat_ms < self.tick_ms {
            return bad(format!(
                "heartbeats each {} ms are more often than ticks each {} ms",
                self.heartbeat_ms, self.tick_ms
            ));
        }
        if self.election_min_ms < 3 * self.heartbeat_ms {
            return bad(format!(
                "an election after {} ms leaves no room for three heartbeats of {} ms",
                self.election_min_ms, self.heartbeat_ms
            ));
        }
        if self.election_max_ms < self.election_min_ms + 3 * self.tick_ms {
            return bad(format!(
                "elections between {} and {} ms would collide: leave three ticks between",
                self.election_min_ms, self.election_max_ms
            ));
        }
        if self.append_timeout_ms < self.election_max_ms {
            return bad(format!(
                "an append timeout of {} ms is shorter than an election",
                self.append_timeout_ms
            ));
        }
        Ok(())
    }

    fn ticks(&self, ms: u64) -> u64 {
        ms.div_ceil(self.tick_ms).max(1)
    }
}

/// Settings of a ledger.
#[derive(Clone, Debug)]
pub struct LedgerConfig {
    /// Name of the group; members of another group are refused.
    pub group: String,
    /// Id of this member, not 0.
    pub id: u64,
    /// The store file; made if it is not there.
    pub path: PathBuf,
    /// The members of a new group, this one among them. A member that is not among them begins
    /// empty and waits to be added. Once the store exists, it is what counts.
    pub first_members: BTreeMap<u64, Member>,
    /// Clocks.
    pub timings: LedgerTimings,
    /// Applied entries kept for followers that lag; a follower further behind gets a snapshot.
    pub keep_entries: u64,
    /// Appends under way at a time.
    pub max_pending: usize,
}

impl LedgerConfig {
    /// A member with default clocks and limits.
    #[must_use]
    pub fn new(
        group: impl Into<String>,
        id: u64,
        path: impl Into<PathBuf>,
        first_members: BTreeMap<u64, Member>,
    ) -> Self {
        Self {
            group: group.into(),
            id,
            path: path.into(),
            first_members,
            timings: LedgerTimings::default(),
            keep_entries: 10_000,
            max_pending: 4096,
        }
    }

    fn node_settings(&self) -> NodeSettings {
        let timings = &self.timings;
        let ticks = |ms| usize::try_from(timings.ticks(ms)).unwrap_or(usize::MAX);
        NodeSettings {
            group: self.group.clone(),
            id: self.id,
            heartbeat_ticks: ticks(timings.heartbeat_ms),
            election_ticks: (
                ticks(timings.election_min_ms),
                ticks(timings.election_max_ms),
            ),
            timeout_ticks: timings.ticks(timings.append_timeout_ms),
            flush_ticks: timings.ticks(timings.flush_ms),
            keep_entries: self.keep_entries,
            max_pending: self.max_pending,
        }
    }
}

/// What a member is in its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It decides.
    Leader,
    /// It follows the leader and may vote.
    Follower,
    /// It seeks votes.
    Candidate,
    /// It follows and does not vote.
    Learner,
}

/// Where a ledger stands (DLedger: metadata).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerMetadata {
    /// Id of this member.
    pub id: u64,
    /// What it is.
    pub role: Role,
    /// It leads and knows all that was ever committed.
    pub is_ready: bool,
    /// Who leads, where it is known.
    pub leader: Option<u64>,
    /// The term it is in.
    pub term: u64,
    /// Index of the oldest entry kept.
    pub first: u64,
    /// Entries up to here are committed.
    pub committed: u64,
    /// Entries up to here are applied here.
    pub applied: u64,
    /// Index of the newest entry here.
    pub last: u64,
    /// All members.
    pub members: BTreeMap<u64, Member>,
    /// Members without a vote.
    pub learners: BTreeSet<u64>,
    /// Why the ledger stopped by itself.
    pub failure: Option<String>,
}

impl LedgerMetadata {
    /// Same but for counters.
    fn is_like(&self, other: &Self) -> bool {
        self.role == other.role
            && self.is_ready == other.is_ready
            && self.leader == other.leader
            && self.term == other.term
            && self.members == other.members
            && self.learners == other.learners
            && self.failure == other.failure
    }
}

/// The outcome of an append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended<A> {
    /// Its place in the log.
    pub index: u64,
    /// What the state machine answered.
    pub answer: A,
}

/// An append under way: a future of its outcome. Dropping it does not take the append back.
#[derive(Debug)]
pub struct PendingAppend<A>(oneshot::Receiver<Result<Appended<A>, AppendError>>);

impl<A> Future for PendingAppend<A> {
    type Output = Result<Appended<A>, AppendError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0)
            .poll(context)
            .map(|outcome| outcome.unwrap_or(Err(AppendError::Stopped)))
    }
}

impl<A> PendingAppend<A> {
    /// Waits on a thread that runs no futures.
    ///
    /// # Errors
    /// See [`AppendError`].
    pub fn wait(self) -> Result<Appended<A>, AppendError> {
        self.0.blocking_recv().unwrap_or(Err(AppendError::Stopped))
    }
}

/// A committed entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerEntry {
    /// Its place in the log.
    pub index: u64,
    /// The term it was appended in.
    pub term: u64,
    /// What was appended; `None` for entries the group makes for itself.
    pub payload: Option<Bytes>,
}

/// Why an entry cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GetError {
    /// It is not (yet) committed and applied here.
    #[error("entry {index} is not committed here: {applied} is the newest that is")]
    NotCommitted {
        /// The index asked for.
        index: u64,
        /// The newest index applied here.
        applied: u64,
    },
    /// It was dropped after its effects were on disk.
    #[error("entry {index} is no longer kept: {first} is the oldest that is")]
    Compacted {
        /// The index asked for.
        index: u64,
        /// The oldest index kept.
        first: u64,
    },
    /// The store cannot be read.
    #[error(transparent)]
    Store(#[from] Error),
}

enum Event<A> {
    Peer(PeerMessage),
    Append(Bytes, oneshot::Sender<Result<Appended<A>, AppendError>>),
    Read(oneshot::Sender<Result<(), ReadError>>),
    Transfer(u64),
    Wake,
}

struct Shared<M: StateMachine> {
    events: SyncSender<Event<M::Answer>>,
    metadata: watch::Receiver<LedgerMetadata>,
    machine: Arc<RwLock<M>>,
    store: Arc<Store>,
    applied: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// A member of a ledger. Cheap to clone; when the last clone goes, the member stops.
pub struct Ledger<M: StateMachine>(Arc<Shared<M>>);

impl<M: StateMachine> Clone for Ledger<M> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<M: StateMachine> std::fmt::Debug for Ledger<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ledger")
            .field("metadata", &self.metadata())
            .finish_non_exhaustive()
    }
}

impl<M: StateMachine> Ledger<M> {
    /// Opens the store, loads the machine from it and starts the thread.
    ///
    /// # Errors
    /// Clocks at odds with each other, or a store that cannot be opened.
    pub fn start(
        config: LedgerConfig,
        machine: M,
        transport: impl Transport,
    ) -> Result<Self, Error> {
        config.timings.check()?;
        if config.id == 0 {
            return Err(Error::Setting {
                key: "id",
                why: "0 is no member id".to_owned(),
            });
        }
        let identity = Identity {
            group: config.group.clone(),
            id: config.id,
            first_members: config.first_members.clone(),
        };
        let store = Arc::new(Store::open(&config.path, &identity)?);
        let machine = Arc::new(RwLock::new(machine));
        let applied = Arc::new(AtomicU64::new(store.applied()));
        let node = Node::new(
            config.node_settings(),
            Arc::clone(&store),
            Arc::clone(&machine),
            Arc::clone(&applied),
        )?;
        let (events, queue) = sync_channel(QUEUE_LEN);
        let (status, metadata) = watch::channel(node.metadata());
        let stop = Arc::new(AtomicBool::new(false));
        let run = Run {
            node,
            queue,
            transport,
            status,
            reports: Arc::default(),
            stop: Arc::clone(&stop),
            tick: Duration::from_millis(config.timings.tick_ms),
        };
        let thread = std::thread::Builder::new()
            .name(format!("ledger-{}", config.id))
            .spawn(move || run.guarded())
            .map_err(|source| Error::Io {
                what: "start the ledger's thread".to_owned(),
                source,
            })?;
        let thread = Mutex::new(Some(thread));
        Ok(Self(Arc::new(Shared {
            events,
            metadata,
            machine,
            store,
            applied,
            stop,
            thread,
        })))
    }

    /// Appends on the leader; ends when the entry is committed by a majority and applied here.
    ///
    /// # Errors
    /// See [`AppendError`]: it tells what was surely not appended from what may have been.
    pub async fn append(
        &self,
        payload: impl Into<Bytes>,
    ) -> Result<Appended<M::Answer>, AppendError> {
        self.start_append(payload)?.await
    }

    /// Begins an append; many may be under way. They are applied in the order begun.
    ///
    /// # Errors
    /// Too long, or too many wait already. Nothing was appended.
    pub fn start_append(
        &self,
        payload: impl Into<Bytes>,
    ) -> Result<PendingAppend<M::Answer>, AppendError> {
        let payload = payload.into();
        if payload.len() > PAYLOAD_LIMIT {
            return Err(AppendError::TooLong {
                len: payload.len(),
                limit: PAYLOAD_LIMIT,
            });
        }
        let (reply, outcome) = oneshot::channel();
        self.queue(
            Event::Append(payload, reply),
            AppendError::Full,
            AppendError::Stopped,
        )?;
        Ok(PendingAppend(outcome))
    }

    /// One committed entry, on any member.
    ///
    /// # Errors
    /// See [`GetError`].
    pub fn get(&self, index: u64) -> Result<LedgerEntry, GetError> {
        let applied = self.0.applied.load(Ordering::Acquire);
        if index > applied {
            return Err(GetError::NotCommitted { index, applied });
        }
        let entry = self.0.store.entry(index)?;
        let entry = entry.ok_or_else(|| {
            let first = self.0.store.range().0 + 1;
            GetError::Compacted { index, first }
        })?;
        let payload = match entry.data.first() {
            Some(&PAYLOAD_TAG) => Some(entry.data.slice(1..)),
            _ => None,
        };
        Ok(LedgerEntry {
            index,
            term: entry.term,
            payload,
        })
    }

    /// Ends when a majority has confirmed that this member leads, and all that was committed before
    /// the call is applied here: what [`Self::read`] shows then is no older than the call.
    ///
    /// # Errors
    /// Not the leader, or no majority answered in time.
    pub async fn read_barrier(&self) -> Result<(), ReadError> {
        let (reply, outcome) = oneshot::channel();
        self.queue(Event::Read(reply), ReadError::Full, ReadError::Stopped)?;
        outcome.await.unwrap_or(Err(ReadError::Stopped))
    }

    /// Looks at the state machine as it is now.
    pub fn read<R>(&self, look: impl FnOnce(&M) -> R) -> R {
        look(&self.0.machine.read())
    }

    /// Where this member stands.
    #[must_use]
    pub fn metadata(&self) -> LedgerMetadata {
        self.0.metadata.borrow().clone()
    }

    /// Tells of changes of role, leader, term and membership.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<LedgerMetadata> {
        self.0.metadata.clone()
    }

    /// Takes a frame of another member. A frame that finds the queue full is lost, which raft
    /// stands.
    ///
    /// # Errors
    /// Bytes that are not a frame.
    pub fn receive(&self, frame: &[u8]) -> Result<(), CodecError> {
        let message = decode_message(frame)?;
        let _ = self.0.events.try_send(Event::Peer(message));
        Ok(())
    }

    /// Hands the leadership to `to`, a voter, if this member leads. Appends are refused meanwhile;
    /// whether it came about is seen in [`Self::watch`].
    pub fn transfer_leader(&self, to: u64) {
        let _ = self.0.events.try_send(Event::Transfer(to));
    }

    /// Stops the thread and waits for it: effects are on disk, what was under way is told
    /// [`AppendError::Stopped`]. Blocks for as long as a write to disk takes.
    pub fn shutdown(&self) {
        self.0.stop.store(true, Ordering::Release);
        let _ = self.0.events.try_send(Event::Wake);
        let thread = self.0.thread.lock().take();
        if let Some(thread) = thread {
            // It ends without panic: panics inside are caught.
            let _ = thread.join();
        }
    }

    fn queue<E>(&self, event: Event<M::Answer>, full: E, stopped: E) -> Result<(), E> {
        use std::sync::mpsc::TrySendError;
        self.0.events.try_send(event).map_err(|error| match error {
            TrySendError::Full(_) => full,
            TrySendError::Disconnected(_) => stopped,
        })
    }
}

struct Run<M: StateMachine, T> {
    node: Node<M>,
    queue: Receiver<Event<M::Answer>>,
    transport: T,
    status: watch::Sender<LedgerMetadata>,
    reports: Arc<Mutex<Vec<(u64, bool)>>>,
    stop: Arc<AtomicBool>,
    tick: Duration,
}

impl<M: StateMachine, T: Transport> Run<M, T> {
    fn guarded(mut self) {
        let ended = catch_unwind(AssertUnwindSafe(|| self.run()));
        let failure = match ended {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error.to_string()),
            Err(panic) => Some(panic_text(panic.as_ref())),
        };
        if let Some(why) = failure {
            tracing::error!(%why, "the ledger stopped");
            self.status.send_modify(|metadata| {
                metadata.role = Role::Follower;
                metadata.is_ready = false;
                metadata.leader = None;
                metadata.failure = Some(why);
            });
        }
    }

    fn run(&mut self) -> Result<(), Error> {
        let mut next_tick = Instant::now() + self.tick;
        loop {
            let wait = if self.node.has_more() {
                Duration::ZERO
            } else {
                next_tick.saturating_duration_since(Instant::now())
            };
            match self.queue.recv_timeout(wait) {
                Ok(event) => self.handle(event),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            for _ in 0..GATHER_COUNT {
                let Ok(event) = self.queue.try_recv() else {
                    break;
                };
                self.handle(event);
            }
            if self.stop.load(Ordering::Acquire) {
                break;
            }
            let now = Instant::now();
            if now >= next_tick {
                self.node.tick();
                // After a pause of this process no ticks are made up for: nobody was heard.
                next_tick = (next_tick + self.tick).max(now);
            }
            self.turn()?;
        }
        self.turn()?;
        self.node.flush()
    }

    fn handle(&mut self, event: Event<M::Answer>) {
        match event {
            Event::Peer(message) => self.node.step(message),
            Event::Append(payload, reply) => self.node.append(&payload, reply),
            Event::Read(reply) => self.node.read_barrier(reply),
            Event::Transfer(to) => self.node.transfer_leader(to),
            Event::Wake => {}
        }
    }

    fn turn(&mut self) -> Result<(), Error> {
        let reports = std::mem::take(&mut *self.reports.lock());
        for (id, is_sent) in reports {
            self.node.report_snapshot(id, is_sent);
        }
        if let Some(members) = self.node.changed_members() {
            self.transport.members(&members);
        }
        let mut unreachable = Vec::new();
        let Self {
            node,
            transport,
            reports,
            ..
        } = self;
        node.turn(&mut |out: Outgoing| {
            let receipt = out.is_snapshot.then(|| SnapshotReceipt {
                to: out.to,
                delivered: false,
                reports: Arc::clone(reports),
            });
            if !transport.send(out.to, out.frame, receipt) {
                unreachable.push(out.to);
            }
        })?;
        for id in unreachable {
            node.report_unreachable(id);
        }
        let metadata = node.metadata();
        self.status.send_if_modified(|known| {
            let is_news = !known.is_like(&metadata);
            *known = metadata;
            is_news
        });
        Ok(())
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    panic
        .downcast_ref::<String>()
        .cloned()
        .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
        .unwrap_or_else(|| "a panic without text".to_owned())
}
