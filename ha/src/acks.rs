//! Who waits for which offset, under which policy, until when; and RocketMQ's names for the ends.
//!
//! Invariants:
//! - A waiter ends exactly once: acknowledged, or unknown with the reason. A write that is in the
//!   log never ends as failed.
//! - Waiters of one policy end in the order of their offsets, in bulk; no thread waits for one.
//! - Each waiter has its own deadline, which no other write's fate moves.
//!
//! Pure: the caller tests role, authority and the size of the set before it releases anything.

use std::collections::VecDeque;

use epochlog_engine::Offset;

/// Whose copies a write waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum AckPolicy {
    /// Only the master's own.
    Local,
    /// So many copies in all, the master's counted; each member of the SyncStateSet counts once.
    Replicas(u32),
    /// Every member of the SyncStateSet, and of any set the controller may just have committed.
    #[default]
    AllInSync,
}

/// What a copy must have survived to count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Durability {
    /// It is in memory (the page cache): survives the process, not the machine.
    #[default]
    Memory,
    /// The master's copy is on disk. A replica's counts as it reports it: an epochlog slave in
    /// durable mode also reports what is on its disk, every other one what is in its memory.
    Flushed,
}

/// Why the fate of a written message is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum UnknownReason {
    /// The replicas asked for had not acknowledged at the deadline.
    ReplicasTimeout,
    /// The disk had not at the deadline; the replicas had.
    FlushTimeout,
    /// The node stopped being master of the epoch the write belongs to.
    RoleChanged,
    /// The log failed to sync: what is above its flushed mark may be lost here.
    LogFailed,
    /// The service was shut down.
    ShutDown,
}

/// How a waiter ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// As many copies as asked for hold the write.
    Acked,
    /// The write is in the log; whether it survives is not known.
    Unknown(UnknownReason),
}

/// A write that waits.
#[derive(Debug)]
pub struct Waiter<T> {
    /// End of the record: what has to be acked.
    pub end: Offset,
    /// Whose copies.
    pub policy: AckPolicy,
    /// In which durability.
    pub durability: Durability,
    /// When to give up, in ms of the caller's clock.
    pub deadline_ms: u64,
    /// What to complete.
    pub token: T,
}

#[derive(Debug)]
struct Lane<T> {
    policy: AckPolicy,
    durability: Durability,
    /// Ascending ends.
    waiting: VecDeque<(Offset, u64, T)>,
    /// The deadlines ascend too, as they do where all writes may take equally long: those that are
    /// over then stand in front, and nobody behind them is looked at.
    in_turn: bool,
}

impl<T> Lane<T> {
    fn push(&mut self, end: Offset, deadline_ms: u64, token: T) {
        let waiter = (end, deadline_ms, token);
        match self.waiting.back() {
            None => {
                self.in_turn = true;
                self.waiting.push_back(waiter);
            }
            Some((last, last_deadline_ms, _)) if *last <= end => {
                self.in_turn &= *last_deadline_ms <= deadline_ms;
                self.waiting.push_back(waiter);
            }
            Some(_) => {
                self.in_turn = false;
                let place = self.waiting.partition_point(|(other, ..)| *other <= end);
                self.waiting.insert(place, waiter);
            }
        }
    }

    /// Takes out all whose deadline has come; returns the earliest of the others.
    fn expire(&mut self, now_ms: u64, mut done: impl FnMut(Offset, T)) -> u64 {
        if self.in_turn {
            while let Some((end, deadline_ms, token)) = self.waiting.pop_front() {
                if deadline_ms > now_ms {
                    self.waiting.push_front((end, deadline_ms, token));
                    return deadline_ms;
                }
                done(end, token);
            }
            return u64::MAX;
        }
        let (mut earliest_ms, mut last_ms) = (u64::MAX, 0);
        self.in_turn = true;
        for _ in 0..self.waiting.len() {
            match self.waiting.pop_front() {
                Some((end, deadline_ms, token)) if deadline_ms <= now_ms => done(end, token),
                Some(waiter) => {
                    let deadline_ms = waiter.1;
                    earliest_ms = earliest_ms.min(deadline_ms);
                    self.in_turn &= last_ms <= deadline_ms;
                    last_ms = deadline_ms;
                    self.waiting.push_back(waiter);
                }
                None => break,
            }
        }
        earliest_ms
    }
}

/// All waiting writes of one term.
#[derive(Debug)]
pub struct Waiters<T> {
    /// One per policy and durability in use: a handful, found by a walk.
    lanes: Vec<Lane<T>>,
    /// No waiter's deadline is earlier.
    earliest_ms: u64,
}

impl<T> Default for Waiters<T> {
    fn default() -> Self {
        Self {
            lanes: Vec::new(),
            earliest_ms: u64::MAX,
        }
    }
}

impl<T> Waiters<T> {
    /// Nobody waits.
    pub fn new() -> Self {
        Self::default()
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.lanes.iter().map(|lane| lane.waiting.len()).sum()
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.lanes.iter().all(|lane| lane.waiting.is_empty())
    }

    /// The deadline before which [`Waiters::expire`] has nothing to do; `u64::MAX` for none.
    pub fn next_deadline_ms(&self) -> u64 {
        self.earliest_ms
    }

    /// Adds one. Cheapest when ends come in ascending order, as appends do.
    pub fn push(&mut self, waiter: Waiter<T>) {
        let Waiter {
            end,
            policy,
            durability,
            deadline_ms,
            token,
        } = waiter;
        self.earliest_ms = self.earliest_ms.min(deadline_ms);
        let of_kind = |lane: &Lane<T>| lane.policy == policy && lane.durability == durability;
        let at = self.lanes.iter().position(of_kind).unwrap_or_else(|| {
            self.lanes.push(Lane {
                policy,
                durability,
                waiting: VecDeque::new(),
                in_turn: true,
            });
            self.lanes.len() - 1
        });
        self.lanes[at].push(end, deadline_ms, token);
    }

    /// Ends every waiter whose copies are complete: those up to `acked_by` of their policy and durability,
    /// and for [`Durability::Flushed`] also up to the master's own `flushed` offset.
    pub fn release(
        &mut self,
        acked_by: impl Fn(AckPolicy, Durability) -> Offset,
        flushed: Offset,
        mut done: impl FnMut(T),
    ) {
        for lane in &mut self.lanes {
            if lane.waiting.is_empty() {
                continue;
            }
            let acked = acked_by(lane.policy, lane.durability);
            let limit = match lane.durability {
                Durability::Memory => acked,
                Durability::Flushed => acked.min(flushed),
            };
            while lane.waiting.front().is_some_and(|(end, ..)| *end <= limit) {
                if let Some((_, _, token)) = lane.waiting.pop_front() {
                    done(token);
                }
            }
        }
    }

    /// Ends every waiter whose deadline has come. When disk and replicas are both missing the
    /// replicas are named, as RocketMQ does.
    pub fn expire(
        &mut self,
        now_ms: u64,
        acked_by: impl Fn(AckPolicy, Durability) -> Offset,
        mut done: impl FnMut(T, UnknownReason),
    ) {
        if now_ms < self.earliest_ms {
            return;
        }
        self.earliest_ms = u64::MAX;
        for lane in &mut self.lanes {
            let acked = acked_by(lane.policy, Durability::Memory);
            let on_disk = lane.durability == Durability::Flushed;
            let next_ms = lane.expire(now_ms, |end, token| {
                let reason = match on_disk && end <= acked {
                    true => UnknownReason::FlushTimeout,
                    false => UnknownReason::ReplicasTimeout,
                };
                done(token, reason);
            });
            self.earliest_ms = self.earliest_ms.min(next_ms);
        }
    }

    /// Ends everybody: the role, the log or the service is no more.
    pub fn end_all(&mut self, mut done: impl FnMut(T)) {
        self.earliest_ms = u64::MAX;
        for lane in &mut self.lanes {
            for (_, _, token) in lane.waiting.drain(..) {
                done(token);
            }
        }
    }
}

/// RocketMQ's `PutMessageStatus`, as far as a broker of ours can meet it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PutStatus {
    /// Stored and replicated as asked.
    Ok,
    /// Stored; not synced in time.
    FlushDiskTimeout,
    /// Stored; not replicated in time.
    FlushSlaveTimeout,
    /// Not stored: the set is smaller than `minInSyncReplicas`.
    InSyncReplicasNotEnough,
    /// Not stored: topic, body or properties break a limit.
    MessageIllegal,
    /// Not stored: this broker is no master, is fenced, or its log does not take writes.
    ServiceNotAvailable,
    /// Not stored: too much is waiting already.
    OsPageCacheBusy,
    /// Not stored: there is no room for the next segment.
    CreateMappedFileFailed,
    /// Not stored, for another reason.
    UnknownError,
}

impl PutStatus {
    /// The remoting response code of a send. RocketMQ: `SendMessageProcessor`.
    pub const fn response_code(self) -> i32 {
        match self {
            Self::Ok => 0,
            Self::FlushDiskTimeout => 10,
            Self::FlushSlaveTimeout => 12,
            Self::InSyncReplicasNotEnough | Self::CreateMappedFileFailed | Self::UnknownError => 1,
            Self::MessageIllegal => 13,
            Self::ServiceNotAvailable => 14,
            Self::OsPageCacheBusy => 2,
        }
    }

    /// Whether the message is in the log, so that the client gets its id and queue offset.
    pub const fn is_stored(self) -> bool {
        matches!(
            self,
            Self::Ok | Self::FlushDiskTimeout | Self::FlushSlaveTimeout
        )
    }
}

impl From<Ended> for PutStatus {
    /// An end by role change or shutdown is, for a client, a replication that did not finish.
    fn from(ended: Ended) -> Self {
        match ended {
            Ended::Acked => Self::Ok,
            Ended::Unknown(UnknownReason::FlushTimeout | UnknownReason::LogFailed) => {
                Self::FlushDiskTimeout
            }
            Ended::Unknown(_) => Self::FlushSlaveTimeout,
        }
    }
}

#[cfg(test)]
mod tests;
