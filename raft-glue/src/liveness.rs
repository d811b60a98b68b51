//! Who is alive, by heartbeats and connections, and which broker sets need an election (pure: time
//! is an argument, in milliseconds of any clock that only goes forward).
//!
//! Invariants: each heartbeat overwrites all that was known of its sender; only the connection the
//! newest heartbeat came by counts, and when it closes its broker is dead at once; a broker never
//! heard of by this controller counts as dead only after the grace time of a new leader. The
//! verdict on a set looks at the present state, never at the change that led to it, so an election
//! that failed is wanted again at the next tick.
//!
//! A closed connection proves nothing about the process behind it: an election away from a master
//! waits until no lease can be out (`liveness/leases.rs`).

mod leases;

use std::collections::BTreeMap;

use crate::command::{Report, Reports, TEXT_LIMIT};
use crate::elect::Choice;
use crate::group::BrokerGroup;
use crate::lease::{DEFAULT_LEASE_WAIT_MS, LeaseNews};
use leases::{Electing, Leases};
pub use leases::{LeaseAsk, NoLease};

/// A heartbeat that names no timeout is good for this long (RocketMQ:
/// DEFAULT_BROKER_CHANNEL_EXPIRED_TIME).
pub const DEFAULT_TIMEOUT_MS: u64 = 10_000;

/// Longest timeout a heartbeat may ask for.
pub const TIMEOUT_LIMIT_MS: u64 = 10 * 60 * 1000;

/// A dead broker's last heartbeat is forgotten after this long.
const FORGET_AFTER_MS: u64 = 10 * 60 * 1000;

/// Brokers whose heartbeats are kept.
pub const BEAT_LIMIT: usize = 1 << 17;

/// One sign of life (RocketMQ request 904).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heartbeat {
    /// Cluster the set belongs to.
    pub cluster: String,
    /// Name of the broker set.
    pub broker: String,
    /// Id of the sender.
    pub id: u64,
    /// Address it is reached by.
    pub address: String,
    /// What it says of its log.
    pub report: Report,
    /// Its confirm offset, in bytes.
    pub confirm_offset: i64,
    /// How long it is alive by this, in ms; 0 = [`DEFAULT_TIMEOUT_MS`].
    pub timeout_ms: u64,
    /// The connection it came by.
    pub connection: u64,
    /// What it says of the sender's lease.
    pub lease: LeaseNews,
    /// The sender is about to stop: it is dead from now on.
    pub leaving: bool,
}

/// Why a heartbeat was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HeartbeatError {
    /// A name or an address is empty or longer than [`TEXT_LIMIT`].
    #[error("a name or an address is empty or longer than {TEXT_LIMIT} bytes")]
    Text,
    /// [`BEAT_LIMIT`] brokers are known already.
    #[error("{BEAT_LIMIT} brokers send heartbeats: no room for more")]
    Full,
}

/// The newest heartbeat of a broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Beat {
    /// Address it is reached by.
    pub address: String,
    /// What it says of its log.
    pub report: Report,
    /// Its confirm offset, in bytes.
    pub confirm_offset: i64,
    timeout_ms: u64,
    last_ms: u64,
    /// `None` once it closed.
    connection: Option<u64>,
    leaving: bool,
    /// Over all heartbeats of the broker.
    leases: Leases,
    ask: Option<LeaseAsk>,
}

/// The newest heartbeat of a broker, and what it is worth now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heard<'a> {
    /// The heartbeat.
    pub beat: &'a Beat,
    /// How long ago it came, in ms.
    pub age_ms: u64,
    /// It is within its timeout and the connection is open.
    pub is_alive: bool,
}

/// What is known of a broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen<'a> {
    /// Its newest heartbeat is within its timeout and the connection is open.
    Alive(&'a Beat),
    /// It was alive here once.
    Dead,
    /// This controller never heard of it.
    Never,
}

/// What a broker set needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Its master is alive and holds what it held, or it never had one and a broker must ask.
    Healthy,
    /// Its master was not heard of since this controller leads; the grace time runs.
    Wait,
    /// It has no live master, whose lease may run until then, in ms.
    Leased(u64),
    /// It has no live master and somebody can be elected.
    Elect,
    /// It has no live master and nobody can be elected.
    Stuck,
}

type Brokers = BTreeMap<u64, Beat>;

/// The heartbeat table of one controller.
#[derive(Debug)]
pub struct Liveness {
    /// Cluster, broker set, id.
    beats: BTreeMap<String, BTreeMap<String, Brokers>>,
    count: usize,
    grace_ms: u64,
    /// A tick later than this after the one before means that this process stood still.
    pause_ms: u64,
    /// Since when this one leads, and in which term.
    leader_since_ms: Option<(u64, u64)>,
    lease_wait_ms: u64,
    /// By broker set.
    electing: BTreeMap<String, Electing>,
    last_tick_ms: Option<u64>,
    /// Heartbeats count as no older than this: while this process stood still it heard nothing.
    awake_since_ms: u64,
}

impl Liveness {
    /// An empty table. `grace_ms`: how long a new leader waits for brokers it never heard of.
    /// `pause_ms`: a gap between two ticks that is taken as a pause of this very process.
    #[must_use]
    pub fn new(grace_ms: u64, pause_ms: u64) -> Self {
        Self {
            beats: BTreeMap::new(),
            count: 0,
            grace_ms,
            pause_ms,
            leader_since_ms: None,
            lease_wait_ms: DEFAULT_LEASE_WAIT_MS,
            electing: BTreeMap::new(),
            last_tick_ms: None,
            awake_since_ms: 0,
        }
    }

    /// Takes a heartbeat. All that was known of its sender is overwritten.
    ///
    /// # Errors
    /// A malformed name or address, or a full table.
    pub fn heartbeat(&mut self, now_ms: u64, beat: Heartbeat) -> Result<(), HeartbeatError> {
        for text in [&beat.cluster, &beat.broker, &beat.address] {
            if text.is_empty() || text.len() > TEXT_LIMIT {
                return Err(HeartbeatError::Text);
            }
        }
        let is_new = self.beat(&beat.cluster, &beat.broker, beat.id).is_none();
        if is_new && self.count >= BEAT_LIMIT {
            return Err(HeartbeatError::Full);
        }
        self.count += usize::from(is_new);
        let timeout_ms = match beat.timeout_ms {
            0 => DEFAULT_TIMEOUT_MS,
            asked => asked.min(TIMEOUT_LIMIT_MS),
        };
        let marked = self.is_marked(&beat.broker);
        let known = self.beat(&beat.cluster, &beat.broker, beat.id);
        let mut leases = known.map_or_else(Leases::default, |known| known.leases);
        leases.news(beat.lease, beat.report.incarnation, now_ms, marked);
        let brokers = self
            .beats
            .entry(beat.cluster)
            .or_default()
            .entry(beat.broker)
            .or_default();
        brokers.insert(
            beat.id,
            Beat {
                address: beat.address,
                report: beat.report,
                confirm_offset: beat.confirm_offset,
                timeout_ms,
                last_ms: now_ms,
                connection: Some(beat.connection),
                leaving: beat.leaving,
                leases,
                ask: Beat::ask_of(beat.lease, marked),
            },
        );
        Ok(())
    }

    /// A connection closed. True when a broker's newest heartbeat came by it: look at the verdicts.
    pub fn closed(&mut self, connection: u64) -> bool {
        let mut any = false;
        for beat in self
            .beats
            .values_mut()
            .flat_map(BTreeMap::values_mut)
            .flat_map(Brokers::values_mut)
        {
            if beat.connection == Some(connection) {
                beat.connection = None;
                any = true;
            }
        }
        any
    }

    /// This controller leads in this term, or does not lead. In another term than before it counts
    /// as having begun just now: somebody else may have led in between.
    pub fn set_leader(&mut self, now_ms: u64, term: Option<u64>) {
        if term == self.leads_in() {
            return;
        }
        self.leader_since_ms = term.map(|term| (now_ms, term));
        if term.is_some() {
            self.settle_all();
        }
    }

    /// The term this controller leads in, as far as it was told.
    #[must_use]
    pub fn leads_in(&self) -> Option<u64> {
        self.leader_since_ms.map(|(_, term)| term)
    }

    /// To be called at a steady pace: notices pauses of this process and forgets the long dead.
    pub fn tick(&mut self, now_ms: u64) {
        if let Some(last) = self.last_tick_ms
            && now_ms.saturating_sub(last) > self.pause_ms
        {
            self.awake_since_ms = now_ms;
        }
        self.last_tick_ms = Some(now_ms);
        let mut count = 0;
        for sets in self.beats.values_mut() {
            for brokers in sets.values_mut() {
                brokers.retain(|_, beat| now_ms.saturating_sub(beat.last_ms) <= FORGET_AFTER_MS);
                count += brokers.len();
            }
            sets.retain(|_, brokers| !brokers.is_empty());
        }
        self.beats.retain(|_, sets| !sets.is_empty());
        self.count = count;
    }

    /// What is known of one broker.
    #[must_use]
    pub fn seen(&self, now_ms: u64, cluster: &str, broker: &str, id: u64) -> Seen<'_> {
        match self.beat(cluster, broker, id) {
            Some(beat) if self.is_alive(now_ms, beat) => Seen::Alive(beat),
            Some(_) => Seen::Dead,
            None => Seen::Never,
        }
    }

    /// The newest heartbeat of one broker, alive or not; none where this controller never heard of it.
    #[must_use]
    pub fn heard(&self, now_ms: u64, cluster: &str, broker: &str, id: u64) -> Option<Heard<'_>> {
        let beat = self.beat(cluster, broker, id)?;
        Some(Heard {
            beat,
            age_ms: now_ms.saturating_sub(beat.last_ms),
            is_alive: self.is_alive(now_ms, beat),
        })
    }

    /// The reports of the live brokers of a set.
    #[must_use]
    pub fn reports(&self, now_ms: u64, cluster: &str, broker: &str) -> Reports {
        self.alive(now_ms, cluster, broker)
            .map(|(id, beat)| (id, beat.report.clone()))
            .collect()
    }

    /// The live brokers of a set.
    pub fn alive(
        &self,
        now_ms: u64,
        cluster: &str,
        broker: &str,
    ) -> impl Iterator<Item = (u64, &Beat)> {
        self.brokers(cluster, broker)
            .into_iter()
            .flatten()
            .filter(move |(_, beat)| self.is_alive(now_ms, beat))
            .map(|(&id, beat)| (id, beat))
    }

    /// What a set needs now.
    #[must_use]
    pub fn verdict(
        &self,
        now_ms: u64,
        broker: &str,
        group: &BrokerGroup,
        allow_unclean: bool,
    ) -> Verdict {
        if group.master_epoch == 0 {
            return Verdict::Healthy;
        }
        if let Some(master) = group.master {
            match self.seen(now_ms, &group.cluster, broker, master) {
                Seen::Alive(beat) if group.is_sound(master, &beat.report) => {
                    return Verdict::Healthy;
                }
                Seen::Never if !self.grace_is_over(now_ms) => return Verdict::Wait,
                _ => {}
            }
            let over_ms = self.lease_over_ms(broker, group);
            if now_ms < over_ms {
                return Verdict::Leased(over_ms);
            }
        }
        let reports = self.reports(now_ms, &group.cluster, broker);
        match group.choose(&reports, None, allow_unclean) {
            Choice::Elect(_) => Verdict::Elect,
            Choice::Keep(_) | Choice::Nobody => Verdict::Stuck,
        }
    }

    /// Live members of the set that restarted since they were admitted: to be vouched for or taken
    /// out. A master that lost its soundness is not among them: it is elected away from.
    #[must_use]
    pub fn restarted(&self, now_ms: u64, broker: &str, group: &BrokerGroup) -> Reports {
        self.alive(now_ms, &group.cluster, broker)
            .filter(|(id, beat)| {
                let now = group.incarnation(*id, beat.report.incarnation);
                let admitted = group.sync_state_set.get(id).copied();
                let before = group.former_set.get(id).copied();
                let is_new = |then: Option<_>| then.is_some() && now != then;
                (is_new(admitted) || (is_new(before) && group.keeps_in(before, *id, &beat.report)))
                    && (group.master != Some(*id) || group.is_sound(*id, &beat.report))
            })
            .map(|(id, beat)| (id, beat.report.clone()))
            .collect()
    }

    /// The master of a set, when its heartbeat shows that it serves its epoch and the state does not
    /// know it yet.
    #[must_use]
    pub fn unconfirmed(
        &self,
        now_ms: u64,
        broker: &str,
        group: &BrokerGroup,
    ) -> Option<(u64, Report)> {
        let id = group.master.filter(|_| !group.former_set.is_empty())?;
        let (_, beat) = self
            .alive(now_ms, &group.cluster, broker)
            .find(|(other, _)| *other == id)?;
        let serves = match beat.ask {
            Some(ask) => ask.epoch == group.master_epoch,
            None => i64::from(beat.report.epoch) >= i64::from(group.master_epoch),
        };
        (serves && group.is_sound(id, &beat.report)).then(|| (id, beat.report.clone()))
    }

    /// Live registered brokers that heartbeat from another address than the registered one.
    #[must_use]
    pub fn moved(&self, now_ms: u64, broker: &str, group: &BrokerGroup) -> Vec<(u64, String)> {
        self.alive(now_ms, &group.cluster, broker)
            .filter(|(id, beat)| {
                group
                    .replicas
                    .get(id)
                    .is_some_and(|replica| replica.address != beat.address)
            })
            .map(|(id, beat)| (id, beat.address.clone()))
            .collect()
    }

    fn brokers(&self, cluster: &str, broker: &str) -> Option<&Brokers> {
        self.beats.get(cluster)?.get(broker)
    }

    fn beat(&self, cluster: &str, broker: &str, id: u64) -> Option<&Beat> {
        self.brokers(cluster, broker)?.get(&id)
    }

    fn is_alive(&self, now_ms: u64, beat: &Beat) -> bool {
        let last = beat.last_ms.max(self.awake_since_ms);
        beat.connection.is_some() && !beat.leaving && now_ms.saturating_sub(last) <= beat.timeout_ms
    }

    /// Has this controller led for long enough to have heard of every live broker?
    #[must_use]
    pub fn grace_is_over(&self, now_ms: u64) -> bool {
        self.leader_since_ms.is_some_and(|(since, _)| {
            now_ms.saturating_sub(since.max(self.awake_since_ms)) >= self.grace_ms
        })
    }
}

#[cfg(test)]
#[path = "liveness_tests.rs"]
mod tests;
