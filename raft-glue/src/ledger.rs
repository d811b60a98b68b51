//! A small strongly consistent log: append, get, metadata, on a raft group in one thread.
//!
//! Invariants: success is only ever reported from apply; [`Ledger::get`] shows committed entries
//! only; every append and read begun gets exactly one outcome, also when the leader changes, the
//! store fails or the ledger stops; a failed write or a broken assertion ends the thread for good,
//! and [`LedgerMetadata::failure`] says why.

mod counters;
mod pending;
mod run;
mod settings;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use tokio::sync::{oneshot, watch};

use crate::error::{AppendError, Error, ReadError, TransferError};
use crate::node::{Node, PAYLOAD_TAG};
use crate::raft_codec::{CodecError, Member, MemberChange, MemberStep, decode_message};
use crate::store::{Identity, RowChanges, Rows, Store};
use counters::Room;
use run::{Event, Run};

pub(crate) use counters::Counters;
pub use counters::LedgerCounters;
pub(crate) use pending::AppendReply;
pub use pending::{Appended, PendingAppend, PendingBatch};
pub use run::SnapshotReceipt;
pub use settings::{LedgerConfig, LedgerTimings};

/// Longest payload of one append, in bytes.
pub const PAYLOAD_LIMIT: usize = 4 << 20;

/// Messages, appends and reads that wait for the thread.
const QUEUE_LEN: usize = 8192;

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
    fn load(&mut self, rows: Rows) -> Result<(), String>;
}

/// How frames reach other members. Called on the ledger's thread: must not block.
pub trait Transport: Send + 'static {
    /// The members and their addresses, at the start and after each change.
    fn members(&mut self, members: &BTreeMap<u64, Member>);

    /// Queues a frame; false when it was dropped. Frames may be lost, doubled and reordered.
    /// `receipt` comes with snapshots and tells the ledger what became of them.
    fn send(&mut self, to: u64, frame: Bytes, receipt: Option<SnapshotReceipt>) -> bool;
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
    /// A change of members is under way: majorities of the old and the new ones count.
    pub is_joint: bool,
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
            && self.is_joint == other.is_joint
            && self.failure == other.failure
    }
}

/// How far a leader knows another member to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberProgress {
    /// It has every entry up to here on disk.
    pub matched: u64,
    /// It was heard of within the last election timeout.
    pub is_active: bool,
    /// It is being sent a snapshot.
    pub needs_snapshot: bool,
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

/// What [`Ledger::get`] gives, from a store of which entries up to `applied` are applied.
pub(crate) fn committed_entry(
    store: &Store,
    applied: u64,
    index: u64,
) -> Result<LedgerEntry, GetError> {
    if index > applied {
        return Err(GetError::NotCommitted { index, applied });
    }
    let entry = store.entry(index)?;
    let entry = entry.ok_or_else(|| {
        let first = store.range().0 + 1;
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

type AppendPair<A> = (AppendReply<A>, PendingAppend<A>);

struct Shared<M: StateMachine> {
    events: SyncSender<Event<M::Answer>>,
    metadata: watch::Receiver<LedgerMetadata>,
    machine: Arc<RwLock<M>>,
    store: Arc<Store>,
    applied: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    max_pending_bytes: u64,
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
        config.check()?;
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
            max_pending_bytes: config.max_pending_bytes,
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
        self.start_append_in(None, payload)
    }

    /// As [`Self::start_append`], and where a term is given only while this member leads in that very
    /// term: it has led without a break since whatever the append follows from.
    ///
    /// # Errors
    /// As [`Self::start_append`]. Leading in another term is [`AppendError::NotLeader`].
    pub fn start_append_in(
        &self,
        term: Option<u64>,
        payload: impl Into<Bytes>,
    ) -> Result<PendingAppend<M::Answer>, AppendError> {
        let payload = payload.into();
        let (reply, pending) = self.reply(payload.len())?;
        self.queue(
            Event::Append(payload, term, reply),
            AppendError::Full,
            AppendError::Stopped,
        )?;
        Ok(pending)
    }

    /// Appends several payloads on the leader, one after another with nothing between; ends when
    /// all are committed and applied here.
    ///
    /// # Errors
    /// See [`Self::start_batch`] and [`AppendError`].
    pub async fn append_batch<P: Into<Bytes>>(
        &self,
        payloads: impl IntoIterator<Item = P>,
    ) -> Result<Vec<Appended<M::Answer>>, AppendError>
    where
        M::Answer: Unpin,
    {
        self.start_batch(payloads)?.await
    }

    /// Begins appends that get consecutive indexes. Either all of them are begun, or none is: then
    /// the outcome is [`AppendError::NotLeader`] or [`AppendError::Full`]. A leader that is lost may
    /// have got only the first ones committed.
    ///
    /// # Errors
    /// A payload is too long, or too much waits already. Nothing was appended.
    pub fn start_batch<P: Into<Bytes>>(
        &self,
        payloads: impl IntoIterator<Item = P>,
    ) -> Result<PendingBatch<M::Answer>, AppendError> {
        let (mut batch, mut pending) = (Vec::new(), Vec::new());
        for payload in payloads {
            let payload = payload.into();
            let (reply, outcome) = self.reply(payload.len())?;
            batch.push((payload, reply));
            pending.push(outcome);
        }
        self.queue(Event::Batch(batch), AppendError::Full, AppendError::Stopped)?;
        Ok(PendingBatch::new(pending))
    }

    /// Takes room for one payload.
    fn reply(&self, len: usize) -> Result<AppendPair<M::Answer>, AppendError> {
        if len > PAYLOAD_LIMIT {
            return Err(AppendError::TooLong {
                len,
                limit: PAYLOAD_LIMIT,
            });
        }
        let counters = self.0.store.counters();
        let Some(room) = Room::take(counters, len, self.0.max_pending_bytes) else {
            counters.appends_refused.one();
            return Err(AppendError::Full);
        };
        Ok(AppendReply::new(Some(room)))
    }

    /// One committed entry, on any member.
    ///
    /// # Errors
    /// See [`GetError`].
    pub fn get(&self, index: u64) -> Result<LedgerEntry, GetError> {
        let applied = self.0.applied.load(Ordering::Acquire);
        committed_entry(&self.0.store, applied, index)
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

    /// What this member did since it was started.
    #[must_use]
    pub fn counters(&self) -> LedgerCounters {
        self.0.store.counters().now()
    }

    /// How far the leader knows the other members to be; `None` on a member that does not lead.
    pub async fn progress(&self) -> Option<BTreeMap<u64, MemberProgress>> {
        let (reply, outcome) = oneshot::channel();
        self.queue(Event::Progress(reply), (), ()).ok()?;
        outcome.await.ok()?
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

    /// Changes the membership on the leader, by joint consensus where more than one step asks for
    /// it; ends when the change is in force here. A new voter should have been a learner until its
    /// log was close to the leader's.
    ///
    /// # Errors
    /// See [`AppendError`]: [`AppendError::MembersBusy`] while another change is under way,
    /// [`AppendError::MembersRefused`] for steps the group cannot take.
    pub async fn change_members(&self, steps: Vec<MemberStep>) -> Result<u64, AppendError> {
        let (reply, outcome) = oneshot::channel();
        let change = MemberChange { steps };
        self.queue(
            Event::Members(change, reply),
            AppendError::Full,
            AppendError::Stopped,
        )?;
        outcome.await.unwrap_or(Err(AppendError::Stopped))
    }

    /// Hands the leadership to `to`, a voter; ends when it leads. Appends are refused meanwhile.
    ///
    /// # Errors
    /// This member does not lead, `to` cannot take over, or did not in time: then the leadership is
    /// where it was, or with a third member.
    pub async fn transfer_leader(&self, to: u64) -> Result<(), TransferError> {
        let (reply, outcome) = oneshot::channel();
        self.queue(
            Event::Transfer(to, reply),
            TransferError::Stopped,
            TransferError::Stopped,
        )?;
        outcome.await.unwrap_or(Err(TransferError::Stopped))
    }

    /// Names the members that should lead where they can; replaces those of
    /// [`LedgerConfig::preferred`]. A leader that is not among them hands over to one that is, as soon
    /// as that is alive and close behind.
    ///
    /// # Errors
    /// The ledger stopped, or too much waits for its thread.
    pub fn prefer_leaders(&self, ids: BTreeSet<u64>) -> Result<(), TransferError> {
        self.queue(
            Event::Prefer(ids),
            TransferError::Stopped,
            TransferError::Stopped,
        )
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
