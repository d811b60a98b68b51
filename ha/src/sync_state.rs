//! The master's view of its SyncStateSet: who may be counted on, who must be waited for, and how
//! far everybody has confirmed.
//!
//! Invariants:
//! - While a change is asked for, or its outcome is unknown, acks and the confirm offset count the
//!   union of the committed set and every set the controller may have committed meanwhile.
//! - The master itself is always in the set.
//! - Proposals are serialised: one in flight, each made from everything known at that moment, so
//!   two removals never overwrite each other.
//! - A set and its epoch are one value: a set of an equal or lower epoch changes nothing.
//! - What a connection says counts only while it is its replica's newest one.
//! - The confirm offset never falls, and a member that has not acked on a live connection holds it
//!   where it is.
//!
//! Pure: time is an argument in milliseconds of any monotonic clock.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::take;

use epochlog_engine::{MAX_OFFSET, Offset};

use crate::acks::{AckPolicy, Durability};
use crate::transport::ConnId;

/// The replicas that hold every acknowledged write, as the controller decided, and the number of
/// that decision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SyncStateSet {
    /// Broker ids, the master's own among them.
    pub members: BTreeSet<u64>,
    /// Counts the controller's decisions within one group.
    pub epoch: u32,
}

impl SyncStateSet {
    /// A set of these members.
    pub fn new(members: impl IntoIterator<Item = u64>, epoch: u32) -> Self {
        Self {
            members: members.into_iter().collect(),
            epoch,
        }
    }
}

/// When members leave the set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyncStateLimits {
    /// A member that has not been level with the master for so long leaves; also one that never
    /// connected. RocketMQ: `haMaxTimeSlaveNotCatchup`.
    pub not_catch_up_ms: u64,
    /// A member without a connection leaves after so long: the time it has to come back.
    pub disconnected_ms: u64,
}

/// What a replica's handshake meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Joining {
    /// It had no connection.
    First,
    /// It has come back while an older connection still stood: that one is to be closed.
    Replaces(ConnId),
    /// It bears the master's own id: two brokers are configured alike. To be closed.
    OwnId,
}

/// What became of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AckCounted {
    /// Taken.
    Yes,
    /// The connection is not (or no longer) the replica's.
    Stale,
    /// The replica begins with bytes of this epoch that this master never sent it: what it holds
    /// there is a tail it had cut and that came back. It is not counted until it reconnects.
    NeverSent,
}

/// One replica as this master knows it, connected or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replica {
    /// Its newest connection that finished the handshake.
    pub connection: Option<ConnId>,
    /// Never a member (`asyncLearner`).
    pub learner: bool,
    /// The newest counted report of that connection.
    pub ack: Option<Offset>,
    /// How far the replica is on disk, if it says so and syncs at once; else its ack counts as that.
    pub flushed: Option<Offset>,
    /// When it was last known to be level with the master.
    pub caught_up_ms: Option<u64>,
    /// The life of its process at the other end of that connection.
    life: Option<u64>,
    /// When it last reported on that connection.
    reported_ms: Option<u64>,
    /// Bytes up to here went out to it in this epoch.
    sent: Offset,
    /// Since when it has had no connection, or has been a member without ever connecting.
    silent_since_ms: u64,
    was_connected: bool,
    suspect: bool,
}

impl Replica {
    fn new(now_ms: u64) -> Self {
        Self {
            connection: None,
            learner: false,
            ack: None,
            flushed: None,
            caught_up_ms: None,
            life: None,
            reported_ms: None,
            sent: 0,
            silent_since_ms: now_ms,
            was_connected: false,
            suspect: false,
        }
    }

    fn acked_in(&self, durability: Durability) -> Option<Offset> {
        let ack = self.ack?;
        match durability {
            Durability::Memory => Some(ack),
            Durability::Flushed => Some(self.flushed.map_or(ack, |flushed| flushed.min(ack))),
        }
    }
}

/// The SyncStateSet of one term as master. A new term begins with a new value.
#[derive(Clone, Debug)]
pub struct SyncState {
    self_id: u64,
    epoch_start: Offset,
    limits: SyncStateLimits,
    sent_is_known: bool,
    committed: SyncStateSet,
    in_flight: Option<BTreeSet<u64>>,
    doubtful: BTreeSet<u64>,
    /// The last proposal had a newcomer in it and was rejected.
    newcomer_refused: bool,
    /// committed ∪ in flight ∪ doubtful ∪ {self}, kept ready for the path of every ack.
    union: BTreeSet<u64>,
    replicas: BTreeMap<u64, Replica>,
    confirm: Offset,
    /// The present life of each replica, as the controller tells; none: it tells nothing.
    lives: Option<BTreeMap<u64, u64>>,
}

/// A replica that reported so recently is in the life the controller knows of: a machine that lost
/// its memory is not back with a new one, and known to the controller, within a second.
const LIFE_FRESH_MS: u64 = 1000;

impl SyncState {
    /// The set at the start of a term whose epoch begins at `epoch_start`, with the confirm offset
    /// as the log knows it. `served_before` says that an earlier process of this node has already
    /// shipped bytes of this epoch, so that what was sent to whom is not known any more.
    pub fn new(
        self_id: u64,
        committed: SyncStateSet,
        epoch_start: Offset,
        confirm: Offset,
        served_before: bool,
        limits: SyncStateLimits,
        now_ms: u64,
    ) -> Self {
        let mut state = Self {
            self_id,
            epoch_start,
            limits,
            sent_is_known: !served_before,
            committed,
            in_flight: None,
            doubtful: BTreeSet::new(),
            newcomer_refused: false,
            union: BTreeSet::new(),
            replicas: BTreeMap::new(),
            confirm,
            lives: None,
        };
        state.set_changed(now_ms);
        state
    }

    /// The set at the start of the next term of the same master, whose connections stay: what they
    /// acked and were sent goes on counting.
    #[must_use]
    pub fn next_term(&self, committed: SyncStateSet, epoch_start: Offset, now_ms: u64) -> Self {
        let mut next = Self {
            epoch_start,
            committed,
            in_flight: None,
            doubtful: BTreeSet::new(),
            newcomer_refused: false,
            ..self.clone()
        };
        next.set_changed(now_ms);
        next
    }

    /// The set the controller has committed.
    pub fn committed(&self) -> &SyncStateSet {
        &self.committed
    }

    /// Everyone who is, or may be, in the set: who must have a write before it is acknowledged.
    pub fn members(&self) -> &BTreeSet<u64> {
        &self.union
    }

    /// Every replica that is a member or ever connected in this term.
    pub fn replicas(&self) -> &BTreeMap<u64, Replica> {
        &self.replicas
    }

    /// A connection has finished its handshake in this term.
    pub fn joined(&mut self, id: u64, connection: ConnId, learner: bool, now_ms: u64) -> Joining {
        if id == self.self_id {
            return Joining::OwnId;
        }
        let replica = self
            .replicas
            .entry(id)
            .or_insert_with(|| Replica::new(now_ms));
        let older = replica.connection.replace(connection);
        replica.learner = learner;
        replica.ack = None;
        replica.flushed = None;
        replica.life = None;
        replica.reported_ms = None;
        replica.was_connected = true;
        replica.suspect = false;
        match older {
            Some(older) if older != connection => Joining::Replaces(older),
            _ => Joining::First,
        }
    }

    /// Bytes up to `end` were handed to the connection.
    pub fn sent(&mut self, id: u64, connection: ConnId, end: Offset) {
        if let Some(replica) = self.current(id, connection) {
            replica.sent = replica.sent.max(end);
        }
    }

    /// A report came. The first of a connection says where it begins; see [`AckCounted`].
    pub fn acked(&mut self, id: u64, connection: ConnId, offset: Offset) -> AckCounted {
        let (known, epoch_start) = (self.sent_is_known, self.epoch_start);
        let Some(replica) = self.current(id, connection) else {
            return AckCounted::Stale;
        };
        let first = replica.ack.is_none();
        if first && known && offset > epoch_start && offset > replica.sent {
            replica.suspect = true;
        }
        if replica.suspect {
            return AckCounted::NeverSent;
        }
        replica.ack = Some(replica.ack.map_or(offset, |ack| ack.max(offset)));
        AckCounted::Yes
    }

    /// A replica that syncs at once told how far it is on disk.
    pub fn flushed(&mut self, id: u64, connection: ConnId, offset: Offset) {
        if let Some(replica) = self.current(id, connection) {
            replica.flushed = Some(replica.flushed.map_or(offset, |before| before.max(offset)));
        }
    }

    /// The replica reported on this connection: it lives in the life known now.
    pub fn reported(&mut self, id: u64, connection: ConnId, now_ms: u64) {
        let life = self
            .lives
            .as_ref()
            .and_then(|lives| lives.get(&id).copied());
        if let Some(replica) = self.current(id, connection) {
            replica.reported_ms = Some(now_ms);
            replica.life = life.or(replica.life);
        }
    }

    /// The controller's word on which life each replica is in. A replica in another life than it
    /// was seen in on its connection keeps the old one until it reports again.
    pub fn set_lives(&mut self, lives: BTreeMap<u64, u64>, now_ms: u64) {
        for (id, replica) in &mut self.replicas {
            let fresh = |at: u64| now_ms.saturating_sub(at) <= LIFE_FRESH_MS;
            if replica.connection.is_some()
                && replica.reported_ms.is_some_and(fresh)
                && let Some(&life) = lives.get(id)
            {
                replica.life = Some(life);
            }
        }
        self.lives = Some(lives);
    }

    /// The life in which a replica was seen on its present connection.
    pub fn life(&self, id: u64) -> Option<u64> {
        self.replicas.get(&id).and_then(|replica| replica.life)
    }

    /// Whether a replica may join but for its life, which is not known yet.
    pub fn wants_lives(&self, now_ms: u64) -> bool {
        self.lives.is_some()
            && self.replicas.iter().any(|(id, replica)| {
                replica.life.is_none()
                    && !self.committed.members.contains(id)
                    && self.is_caught_up(*id, now_ms)
            })
    }

    /// The replica was level with the master at `at_ms`.
    pub fn caught_up(&mut self, id: u64, connection: ConnId, at_ms: u64) {
        if let Some(replica) = self.current(id, connection) {
            replica.caught_up_ms = Some(replica.caught_up_ms.map_or(at_ms, |t| t.max(at_ms)));
        }
    }

    /// A connection has ended. Only the replica's newest one makes it silent.
    pub fn left(&mut self, id: u64, connection: ConnId, now_ms: u64) {
        if let Some(replica) = self.current(id, connection) {
            replica.connection = None;
            replica.ack = None;
            replica.flushed = None;
            replica.silent_since_ms = now_ms;
        }
    }

    fn current(&mut self, id: u64, connection: ConnId) -> Option<&mut Replica> {
        self.replicas
            .get_mut(&id)
            .filter(|replica| replica.connection == Some(connection))
    }

    /// Takes over what the controller committed. Returns whether it was newer; a set of an equal or
    /// lower epoch changes nothing.
    pub fn commit(&mut self, set: SyncStateSet, now_ms: u64) -> bool {
        if set.epoch <= self.committed.epoch {
            return false;
        }
        self.committed = set;
        self.in_flight = None;
        self.doubtful.clear();
        self.set_changed(now_ms);
        true
    }

    /// The set to ask the controller for, if another one than the committed is right. Its epoch is
    /// that of the set it is made from, as RocketMQ's alter request carries it. Until the outcome
    /// is told by [`SyncState::commit`], [`SyncState::proposal_rejected`],
    /// [`SyncState::proposal_met`] or [`SyncState::proposal_unknown`] there is no second proposal, and both sets count.
    pub fn next_proposal(&mut self, now_ms: u64) -> Option<SyncStateSet> {
        if self.in_flight.is_some() {
            return None;
        }
        let mut wanted = self.wanted(now_ms);
        if take(&mut self.newcomer_refused) {
            // One whom the controller does not take must not keep a lost member in.
            let staying: BTreeSet<u64> = &wanted & &self.committed.members;
            if staying != self.committed.members {
                wanted = staying;
            }
        }
        // After an unknown outcome the same set is asked for again: the answer settles it.
        if wanted == self.committed.members && self.doubtful.is_empty() {
            return None;
        }
        self.in_flight = Some(wanted.clone());
        self.set_changed(now_ms);
        Some(SyncStateSet {
            members: wanted,
            epoch: self.committed.epoch,
        })
    }

    /// The controller's leader said no, and that its set is still the one the proposal was made
    /// from: nothing asked for before was committed.
    pub fn proposal_rejected(&mut self, now_ms: u64) {
        let asked = self.in_flight.take();
        self.newcomer_refused = asked.is_some_and(|it| !it.is_subset(&self.committed.members));
        self.doubtful.clear();
        self.set_changed(now_ms);
    }

    /// The controller's leader said that its set has just these members, of whatever epoch: they
    /// count until that set is known.
    pub fn proposal_met(&mut self, now_ms: u64) {
        if let Some(members) = self.in_flight.take() {
            self.doubtful = members;
        }
        if self.doubtful == self.committed.members {
            self.doubtful.clear();
        }
        self.set_changed(now_ms);
    }

    /// No answer came, or one that does not say what the set is: the controller may have committed the proposal. It goes on counting until a
    /// newer set is committed or a later proposal is rejected, but no longer blocks the next one.
    pub fn proposal_unknown(&mut self, now_ms: u64) {
        if let Some(members) = self.in_flight.take() {
            self.doubtful.extend(members);
        }
        self.set_changed(now_ms);
    }

    fn wanted(&self, now_ms: u64) -> BTreeSet<u64> {
        let stays = |id: &u64| *id == self.self_id || self.is_level(*id, now_ms);
        let mut wanted: BTreeSet<u64> = self
            .committed
            .members
            .iter()
            .copied()
            .filter(stays)
            .collect();
        wanted.insert(self.self_id);
        wanted.extend(
            self.replicas
                .keys()
                .copied()
                .filter(|id| self.may_join(*id, now_ms)),
        );
        wanted
    }

    /// Whether a member may stay.
    fn is_level(&self, id: u64, now_ms: u64) -> bool {
        let Some(replica) = self.replicas.get(&id) else {
            return false;
        };
        let (since, limit) = match replica.connection {
            None if replica.was_connected => (replica.silent_since_ms, self.limits.disconnected_ms),
            None => (replica.silent_since_ms, self.limits.not_catch_up_ms),
            Some(_) => {
                let since = replica.caught_up_ms.unwrap_or(replica.silent_since_ms);
                (
                    since.max(replica.silent_since_ms),
                    self.limits.not_catch_up_ms,
                )
            }
        };
        !replica.learner && now_ms.saturating_sub(since) <= limit
    }

    /// Whether a replica that is no member may become one. Where lives are told, its must be known:
    /// the controller admits it in no other.
    fn may_join(&self, id: u64, now_ms: u64) -> bool {
        (self.lives.is_none() || self.life(id).is_some()) && self.is_caught_up(id, now_ms)
    }

    fn is_caught_up(&self, id: u64, now_ms: u64) -> bool {
        let Some(replica) = self.replicas.get(&id) else {
            return false;
        };
        let level = |at: u64| now_ms.saturating_sub(at) <= self.limits.not_catch_up_ms;
        !replica.learner
            && replica.caught_up_ms.is_some_and(level)
            && replica
                .ack
                .is_some_and(|ack| ack >= self.confirm && ack >= self.epoch_start)
    }

    /// The offset up to which the replicas `policy` asks for have acked, the master's own copy not
    /// counted; [`MAX_OFFSET`] when none is asked for, 0 when one that is needed has not acked.
    pub fn acked_by(&self, policy: AckPolicy) -> Offset {
        self.acked_in(policy, Durability::Memory)
    }

    /// As [`SyncState::acked_by`], in this durability: for [`Durability::Flushed`] a replica that
    /// syncs at once counts as far as it is on disk, every other one as far as it acked.
    pub fn acked_in(&self, policy: AckPolicy, durability: Durability) -> Offset {
        match policy {
            AckPolicy::Local | AckPolicy::Replicas(0 | 1) => MAX_OFFSET,
            AckPolicy::AllInSync => self.all_in_sync(durability).unwrap_or(0),
            AckPolicy::Replicas(copies) => self.nth_ack(copies - 1, durability),
        }
    }

    /// The lowest ack of all other members; none if one has not acked on a live connection.
    fn all_in_sync(&self, durability: Durability) -> Option<Offset> {
        self.others().try_fold(MAX_OFFSET, |low, replica| {
            Some(low.min(replica?.acked_in(durability)?))
        })
    }

    /// The `n`-th highest ack among the other members, 0 if there are fewer. Each member counts
    /// once; learners never.
    fn nth_ack(&self, n: u32, durability: Durability) -> Offset {
        let acks = || {
            self.others()
                .filter_map(|replica| replica?.acked_in(durability))
        };
        // The set has a handful of members: comparing each with each costs no allocation.
        acks()
            .filter(|ack| acks().filter(|other| other >= ack).count() >= n as usize)
            .max()
            .unwrap_or(0)
    }

    fn others(&self) -> impl Iterator<Item = Option<&Replica>> {
        self.union
            .iter()
            .filter(|id| **id != self.self_id)
            .map(|id| self.replicas.get(id))
    }

    /// Raises the confirm offset as far as all members have acked (those that sync at once: as far as
    /// they are on disk, for consumers see what is confirmed), at most to the master's own
    /// `end`; without `authority` it stays. Returns it.
    pub fn advance_confirm(&mut self, end: Offset, authority: bool) -> Offset {
        if authority && let Some(low) = self.all_in_sync(Durability::Flushed) {
            self.confirm = self.confirm.max(low.min(end));
        }
        self.confirm
    }

    fn set_changed(&mut self, now_ms: u64) {
        self.union.clone_from(&self.committed.members);
        self.union.extend(&self.doubtful);
        self.union.extend(self.in_flight.iter().flatten());
        self.union.insert(self.self_id);
        for id in self.union.iter().filter(|id| **id != self.self_id) {
            self.replicas
                .entry(*id)
                .or_insert_with(|| Replica::new(now_ms));
        }
    }
}

#[cfg(test)]
mod tests;
