//! One member of a raft group, stepped by its owner: messages, ticks and proposals in; messages,
//! answers and durable records out. It owns no socket, thread or clock.
//!
//! Order within one turn: a leader's messages may leave first, unless this very turn changes term or
//! vote; then entries, hard state, snapshot and the effects applied so far become durable in one
//! transaction; then the other messages leave; then what is committed is applied and answered.
//! Effects of committed entries are written with a later transaction, always together with their
//! index, so a crash in between applies them again. After a failed write nothing leaves any more:
//! the owner must drop the node.

mod members;
mod standing;
mod transfer;
mod waiting;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use parking_lot::RwLock;
use raft::eraftpb::{Entry, EntryType, HardState, Message, MessageType};
use raft::{RawNode, ReadOnlyOption, Ready, SnapshotStatus, StateRole};
use tracing::{debug, error, info};

use crate::error::{AppendError, Error, ReadError};
use crate::ledger::{AppendReply, StateMachine};
use crate::raft_codec::{Member, PeerMessage, SnapshotBody, decode, encode_message};
use crate::store::{AppliedBatch, Batch, LogView, Store};
pub(crate) use transfer::{BEHIND_LIMIT, TransferReply};
use transfer::{Preferred, Transfer};
use waiting::{ReadReply, Reply, Waiting};

/// First byte of the data of every appended entry; an entry without data is raft's own.
pub(crate) const PAYLOAD_TAG: u8 = 1;

/// Longest entries and committed entries handled in one turn, in bytes.
const MESSAGE_BYTES: u64 = 1 << 20;
const COMMITTED_BYTES: u64 = 4 << 20;

/// Append messages under way to one follower.
const IN_FLIGHT: usize = 128;

/// How often a leader that finds itself between two memberships tries to leave the older one.
const LEAVE_JOINT_TICKS: u64 = 20;

/// Turns one call of [`Node::turn`] takes at most.
const TURN_LIMIT: usize = 64;

/// Settings of a node, in ticks and counts.
#[derive(Clone, Debug)]
pub(crate) struct NodeSettings {
    pub(crate) group: String,
    pub(crate) id: u64,
    pub(crate) heartbeat_ticks: usize,
    pub(crate) election_ticks: (usize, usize),
    /// Appends and reads without an outcome for this long are told so.
    pub(crate) timeout_ticks: u64,
    /// Effects are on disk at the latest this long after they were applied.
    pub(crate) flush_ticks: u64,
    /// Applied entries kept for followers that lag.
    pub(crate) keep_entries: u64,
    pub(crate) max_pending: usize,
    /// How often a leader that is not preferred looks for one that is.
    pub(crate) prefer_ticks: u64,
    pub(crate) preferred: BTreeSet<u64>,
}

/// A frame for a peer.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) to: u64,
    pub(crate) frame: Bytes,
    /// Its fate must be told by [`Node::report_snapshot`].
    pub(crate) is_snapshot: bool,
}

/// What is applied or known and not yet on disk.
#[derive(Default)]
struct Unwritten {
    applied: Option<AppliedBatch>,
    hard_state: Option<HardState>,
    peer_stores: bool,
    since: Option<u64>,
}

/// See the module.
pub(crate) struct Node<M: StateMachine> {
    settings: NodeSettings,
    raw: RawNode<LogView>,
    store: Arc<Store>,
    machine: Arc<RwLock<M>>,
    members: BTreeMap<u64, Member>,
    members_changed: bool,
    /// A change of members is under way: majorities of both memberships count.
    is_joint: bool,
    peer_stores: BTreeMap<u64, u64>,
    /// Peers that were complained of already.
    strangers: BTreeSet<u64>,
    ticks: u64,
    applied: u64,
    /// The same, for readers on other threads; raised before anybody is answered.
    applied_shared: Arc<AtomicU64>,
    applied_term: u64,
    /// Term and vote on disk.
    durable_vote: (u64, u64),
    unwritten: Unwritten,
    waiting: Waiting<M::Answer>,
    /// What it was when the role last changed.
    role: StateRole,
    transfer: Option<Transfer>,
    preferred: Preferred,
}

impl<M: StateMachine> Node<M> {
    /// Takes up where the store left off; `machine` is loaded from it.
    pub(crate) fn new(
        settings: NodeSettings,
        store: Arc<Store>,
        machine: Arc<RwLock<M>>,
        applied_shared: Arc<AtomicU64>,
    ) -> Result<Self, Error> {
        let rows = store.rows()?;
        machine.write().load(rows).map_err(Error::Stopped)?;
        let applied = store.applied();
        let config = raft::Config {
            id: settings.id,
            election_tick: settings.election_ticks.0,
            min_election_tick: settings.election_ticks.0,
            max_election_tick: settings.election_ticks.1,
            heartbeat_tick: settings.heartbeat_ticks,
            applied,
            max_size_per_msg: MESSAGE_BYTES,
            max_inflight_msgs: IN_FLIGHT,
            check_quorum: true,
            pre_vote: true,
            read_only_option: ReadOnlyOption::Safe,
            max_uncommitted_size: raft::NO_LIMIT,
            max_committed_size_per_ready: COMMITTED_BYTES,
            ..raft::Config::default()
        };
        let view = LogView(Arc::clone(&store));
        let applied_term = store.term_at(applied)?;
        let raw = RawNode::new(&config, view, &crate::log_bridge::logger())
            .map_err(|error| Error::Raft(error.to_string()))?;
        let hard_state = raw.raft.hard_state();
        let mut node = Self {
            peer_stores: store.first_peer_stores(),
            members: store.members(),
            members_changed: true,
            is_joint: !raw
                .raft
                .prs()
                .conf()
                .to_conf_state()
                .voters_outgoing
                .is_empty(),
            waiting: Waiting::new(Arc::clone(store.counters())),
            role: StateRole::Follower,
            transfer: None,
            preferred: Preferred::default(),
            settings,
            raw,
            store,
            machine,
            strangers: BTreeSet::new(),
            ticks: 0,
            applied,
            applied_shared,
            applied_term,
            durable_vote: (hard_state.term, hard_state.vote),
            unwritten: Unwritten::default(),
        };
        node.preferred.ids.clone_from(&node.settings.preferred);
        let voters = node.raw.raft.prs().conf().voters().ids();
        if voters.contains(node.settings.id) && voters.iter().count() == 1 {
            // Nobody else can be leader: no need to wait for a timeout.
            node.raw
                .campaign()
                .map_err(|error| Error::Raft(error.to_string()))?;
        }
        Ok(node)
    }

    /// One step of the clock.
    pub(crate) fn tick(&mut self) {
        self.ticks += 1;
        self.raw.tick();
        self.waiting.expire(self.ticks);
        self.leave_joint();
        self.watch_transfer();
        self.prefer();
    }

    /// A message from a peer. What a sound peer does not send is dropped.
    pub(crate) fn step(&mut self, from_peer: PeerMessage) {
        let PeerMessage {
            group,
            store,
            message,
        } = from_peer;
        let from = message.from;
        if let Some(why) = self.refusal(&group, store, &message) {
            self.store.counters().frames_refused.one();
            if self.strangers.insert(from) {
                error!(from, "a message of controller {from} is refused: {why}");
            }
            return;
        }
        self.strangers.remove(&from);
        if self.is_late_rejection(&message) {
            return;
        }
        if self.peer_stores.insert(from, store).is_none() {
            self.unwritten.peer_stores = true;
        }
        if let Err(why) = self.raw.step(message) {
            debug!(from, %why, "a message came to nothing");
        }
    }

    /// Appends a payload if this member leads; the answer comes when it is applied.
    pub(crate) fn append(&mut self, payload: &[u8], reply: AppendReply<M::Answer>) {
        self.append_in(None, payload, reply);
    }

    /// The same, where a term is given only while this member leads in that term.
    pub(crate) fn append_in(
        &mut self,
        term: Option<u64>,
        payload: &[u8],
        reply: AppendReply<M::Answer>,
    ) {
        if term.is_some_and(|term| term != self.raw.raft.term) {
            let leader = self.leader();
            return self.refuse(Reply::Append(reply), AppendError::NotLeader { leader });
        }
        let data = tagged(payload);
        self.propose(Reply::Append(reply), |raw| raw.propose(Vec::new(), data));
    }

    /// Appends payloads one after another, or refuses all of them.
    pub(crate) fn append_batch(&mut self, batch: Vec<(Bytes, AppendReply<M::Answer>)>) {
        let refusal = if self.raw.raft.state != StateRole::Leader {
            let leader = self.leader();
            Some(AppendError::NotLeader { leader })
        } else if self.raw.raft.lead_transferee.is_some() {
            Some(AppendError::NotLeader { leader: None })
        } else if self.waiting.append_count() + batch.len() > self.settings.max_pending {
            Some(AppendError::Full)
        } else {
            None
        };
        if let Some(why) = refusal {
            // All are counted, and their room is free, before the first is told: its caller waits no longer.
            let count = batch.len() as u64;
            self.store.counters().appends_refused.add(count);
            for (_, reply) in batch.into_iter().rev() {
                reply.end(Err(why.clone()));
            }
            return;
        }
        for (payload, reply) in batch {
            self.append(&payload, reply);
        }
    }

    fn refuse(&self, reply: Reply<M::Answer>, why: AppendError) {
        self.store.counters().appends_refused.one();
        reply.fail(why);
    }

    fn propose(
        &mut self,
        reply: Reply<M::Answer>,
        propose: impl FnOnce(&mut RawNode<LogView>) -> raft::Result<()>,
    ) {
        if self.raw.raft.state != StateRole::Leader {
            let leader = self.leader();
            return self.refuse(reply, AppendError::NotLeader { leader });
        }
        if self.waiting.append_count() >= self.settings.max_pending {
            return self.refuse(reply, AppendError::Full);
        }
        let before = self.raw.raft.raft_log.last_index();
        match propose(&mut self.raw) {
            Ok(()) if self.raw.raft.raft_log.last_index() == before + 1 => {
                let deadline = self.ticks + self.settings.timeout_ticks;
                self.waiting
                    .add_append(before + 1, self.raw.raft.term, deadline, reply);
            }
            // Dropped: a leadership transfer is under way.
            Ok(()) | Err(_) => self.refuse(reply, AppendError::NotLeader { leader: None }),
        }
    }

    /// Answers once every entry committed before this call is applied here and a majority has
    /// confirmed that this member still leads.
    pub(crate) fn read_barrier(&mut self, reply: ReadReply) {
        let refusal = if !self.is_ready() {
            Some(ReadError::NotLeader {
                leader: self.leader(),
            })
        } else if self.waiting.read_count() >= self.settings.max_pending {
            Some(ReadError::Full)
        } else {
            None
        };
        match refusal {
            Some(why) => {
                self.store.counters().reads_failed.one();
                drop(reply.send(Err(why)));
            }
            None => self.waiting.add_read(reply),
        }
    }

    pub(crate) fn report_unreachable(&mut self, id: u64) {
        self.raw.report_unreachable(id);
    }

    pub(crate) fn report_snapshot(&mut self, id: u64, is_sent: bool) {
        let status = if is_sent {
            SnapshotStatus::Finish
        } else {
            SnapshotStatus::Failure
        };
        self.raw.report_snapshot(id, status);
    }

    /// Does all that is to be done now. Frames to send are given to `send` in order.
    ///
    /// # Errors
    /// A store that cannot be written, or a log that cannot be applied: drop the node.
    pub(crate) fn turn(&mut self, send: &mut dyn FnMut(Outgoing)) -> Result<(), Error> {
        self.start_reads();
        for _ in 0..TURN_LIMIT {
            if !self.raw.has_ready() {
                break;
            }
            self.handle_ready(send)?;
        }
        self.watch_transfer();
        if self
            .unwritten
            .since
            .is_some_and(|at| self.ticks - at >= self.settings.flush_ticks)
        {
            self.flush()?;
        }
        Ok(())
    }

    /// Is there something left for another [`Self::turn`] at once?
    pub(crate) fn has_more(&self) -> bool {
        self.raw.has_ready()
    }

    /// Writes what is applied and not yet on disk, and drops entries nobody needs any more.
    pub(crate) fn flush(&mut self) -> Result<(), Error> {
        let (first, _) = self.store.range();
        let mut batch = Batch::default();
        let on_disk = self.store.applied();
        if on_disk.saturating_sub(first) > 2 * self.settings.keep_entries {
            let to = on_disk - self.settings.keep_entries;
            batch.truncate_to = Some((to, self.store.term_at(to)?));
        }
        self.write(batch)
    }

    /// The members, if they changed since the last call.
    pub(crate) fn changed_members(&mut self) -> Option<BTreeMap<u64, Member>> {
        std::mem::take(&mut self.members_changed).then(|| self.members.clone())
    }

    fn start_reads(&mut self) {
        let deadline = self.ticks + self.settings.timeout_ticks;
        if let Some(number) = self.waiting.ask(deadline) {
            self.raw.read_index(number.to_be_bytes().to_vec());
        }
    }

    fn handle_ready(&mut self, send: &mut dyn FnMut(Outgoing)) -> Result<(), Error> {
        let mut ready = self.raw.ready();
        let vote = ready
            .hs()
            .map_or(self.durable_vote, |state| (state.term, state.vote));
        if vote == self.durable_vote {
            self.send_all(ready.take_messages(), send)?;
        }
        self.persist(&mut ready)?;
        self.durable_vote = vote;
        self.send_all(ready.take_messages(), send)?;
        self.send_all(ready.take_persisted_messages(), send)?;
        if ready.ss().is_some() {
            self.role_changed();
        }
        for state in ready.take_read_states() {
            if let Ok(number) = <[u8; 8]>::try_from(state.request_ctx.as_slice()) {
                self.waiting
                    .confirm(u64::from_be_bytes(number), state.index, self.applied);
            }
        }
        self.apply(ready.take_committed_entries())?;
        let mut light = self.raw.advance_append(ready);
        if light.commit_index().is_some() {
            self.unwritten.hard_state = Some(self.raw.raft.hard_state());
        }
        self.send_all(light.take_messages(), send)?;
        self.apply(light.take_committed_entries())?;
        self.raw.advance_apply_to(self.applied);
        Ok(())
    }

    fn persist(&mut self, ready: &mut Ready) -> Result<(), Error> {
        let mut batch = Batch {
            entries: ready.take_entries(),
            ..Batch::default()
        };
        if let Some(state) = ready.hs() {
            self.unwritten.hard_state = Some(state.clone());
        }
        if ready.snapshot().is_empty() {
            if ready.must_sync() {
                self.write(batch)?;
            }
            return Ok(());
        }
        let snapshot = ready.snapshot().clone();
        let body: SnapshotBody = decode(&snapshot.data).map_err(|source| Error::Codec {
            what: "a snapshot".to_owned(),
            source,
        })?;
        let metadata = snapshot.get_metadata();
        let (index, term) = (metadata.index, metadata.term);
        let rows = body
            .rows
            .iter()
            .map(|(k, v)| (k.0.to_vec(), v.0.to_vec()))
            .collect();
        let members = body.members.clone();
        batch.snapshot = Some((snapshot, body));
        // The snapshot holds the effects of all that was applied so far.
        self.unwritten.applied = None;
        self.write(batch)?;
        self.machine.write().load(rows).map_err(Error::Stopped)?;
        self.is_joint = !self
            .raw
            .raft
            .prs()
            .conf()
            .to_conf_state()
            .voters_outgoing
            .is_empty();
        self.set_applied(index, term);
        self.waiting.settled(index);
        self.members = members;
        self.members_changed = true;
        self.store.counters().snapshots_taken.one();
        info!(index, "took over the state of a snapshot");
        Ok(())
    }

    /// One transaction with everything that waits for one.
    fn write(&mut self, mut batch: Batch) -> Result<(), Error> {
        let unwritten = std::mem::take(&mut self.unwritten);
        batch.applied = unwritten.applied;
        batch.hard_state = unwritten.hard_state;
        batch.peer_stores = unwritten.peer_stores.then(|| self.peer_stores.clone());
        self.store.write(&batch)
    }

    fn send_all(
        &mut self,
        messages: Vec<Message>,
        send: &mut dyn FnMut(Outgoing),
    ) -> Result<(), Error> {
        let store = self.store.store_id();
        for message in messages {
            let frame =
                encode_message(&self.settings.group, store, &message).map_err(|source| {
                    Error::Codec {
                        what: "a message".to_owned(),
                        source,
                    }
                })?;
            let is_snapshot = message.get_msg_type() == MessageType::MsgSnapshot;
            if let Some(frame) = frame {
                self.store
                    .counters()
                    .snapshots_sent
                    .add(u64::from(is_snapshot));
                send(Outgoing {
                    to: message.to,
                    frame: frame.into(),
                    is_snapshot,
                });
            }
        }
        Ok(())
    }

    fn role_changed(&mut self) {
        let raft = &self.raw.raft;
        info!(role = ?raft.state, term = raft.term, leader = raft.leader_id, "role changed");
        let counters = self.store.counters();
        let (before, now) = (self.role, raft.state);
        self.role = now;
        match (before, now) {
            (StateRole::Leader, StateRole::Leader)
            | (StateRole::Candidate, StateRole::Candidate) => {}
            (_, StateRole::Candidate) => counters.elections_begun.one(),
            (before, StateRole::Leader) => {
                // A single voter wins at once.
                let was_seen = before == StateRole::Candidate;
                counters.elections_begun.add(u64::from(!was_seen));
                counters.elections_won.one();
            }
            (StateRole::Leader, _) => counters.step_downs.one(),
            _ => {}
        }
        if now == StateRole::Leader {
            return;
        }
        let leader = self.leader();
        self.waiting.stepped_down(leader);
    }

    fn apply(&mut self, entries: Vec<Entry>) -> Result<(), Error> {
        for entry in entries {
            let (index, term) = (entry.index, entry.term);
            let batch = self.unwritten.applied.get_or_insert_default();
            batch.index = index;
            self.unwritten.since.get_or_insert(self.ticks);
            let answer = match entry.get_entry_type() {
                EntryType::EntryNormal => match entry.data.split_first() {
                    None => None,
                    Some((&PAYLOAD_TAG, payload)) => {
                        Some(self.machine.write().apply(index, payload, &mut batch.rows))
                    }
                    Some((tag, _)) => {
                        return Err(Error::Stopped(format!(
                            "entry {index} is of kind {tag}, which this version does not know: \
                             run the same version on all controllers"
                        )));
                    }
                },
                EntryType::EntryConfChange | EntryType::EntryConfChangeV2 => {
                    if let Some(why) = self.apply_members(&entry)? {
                        self.waiting.refused(index, why);
                    }
                    None
                }
            };
            self.set_applied(index, term);
            self.waiting.applied(index, term, answer, self.is_joint);
        }
        Ok(())
    }

    fn set_applied(&mut self, index: u64, term: u64) {
        (self.applied, self.applied_term) = (index, term);
        self.applied_shared.store(index, Ordering::Release);
    }
}

/// Payload of an entry as it stands in the log.
fn tagged(payload: &[u8]) -> Vec<u8> {
    let mut data = Vec::with_capacity(payload.len() + 1);
    data.push(PAYLOAD_TAG);
    data.extend_from_slice(payload);
    data
}

#[cfg(test)]
#[path = "node_disk.rs"]
mod disk;

#[cfg(test)]
#[path = "node_field_tests.rs"]
mod field_tests;

#[cfg(test)]
#[path = "node_history.rs"]
mod history;

#[cfg(test)]
#[path = "node_seeds.rs"]
mod seeds;

#[cfg(test)]
#[path = "node_sim.rs"]
mod sim;

#[cfg(test)]
#[path = "node_tests.rs"]
mod tests;
