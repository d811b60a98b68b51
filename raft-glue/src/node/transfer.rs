//! Handing the leadership over: on request, and by itself to the members that are preferred
//! (DLedger: leadership transfer, preferredLeaderIds).
//!
//! Invariants: one transfer at a time; a member that lags by [`BEHIND_LIMIT`] entries or more, or
//! that was not heard of lately, is not handed anything; each request gets one outcome.

use std::collections::{BTreeMap, BTreeSet};

use raft::StateRole;
use tokio::sync::oneshot;
use tracing::info;

use super::Node;
use crate::error::TransferError;
use crate::ledger::StateMachine;

/// A member that lacks this many entries cannot take over (DLedger: maxLeadershipTransferWaitIndex).
pub(crate) const BEHIND_LIMIT: u64 = 1000;

/// Checks a preferred member is left alone for after its first failure; doubles up to the last.
const REST_CHECKS: (u64, u64) = (4, 64);

pub(crate) type TransferReply = oneshot::Sender<Result<(), TransferError>>;

/// A transfer under way.
pub(super) struct Transfer {
    to: u64,
    deadline: u64,
    reply: Option<TransferReply>,
}

/// A preferred member as the leader sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    pub(super) id: u64,
    pub(super) behind: u64,
    pub(super) is_active: bool,
}

/// Who is preferred, and who is left alone after a failure (pure).
#[derive(Default)]
pub(super) struct Preferred {
    pub(super) ids: BTreeSet<u64>,
    /// By id: the check from which on it is tried again, and how long the rest was.
    resting: BTreeMap<u64, (u64, u64)>,
    checks: u64,
}

impl Preferred {
    /// The one to hand over to at this check: the least behind, then the smallest id.
    pub(super) fn choose(&mut self, candidates: &[Candidate]) -> Option<u64> {
        self.checks += 1;
        let now = self.checks;
        candidates
            .iter()
            .filter(|c| self.ids.contains(&c.id) && c.is_active && c.behind < BEHIND_LIMIT)
            .filter(|c| {
                self.resting
                    .get(&c.id)
                    .is_none_or(|(until, _)| *until <= now)
            })
            .min_by_key(|c| (c.behind, c.id))
            .map(|c| c.id)
    }

    /// It did not take over.
    pub(super) fn failed(&mut self, id: u64) {
        let (first, last) = REST_CHECKS;
        let rest = self
            .resting
            .get(&id)
            .map_or(first, |(_, rest)| (rest * 2).min(last));
        self.resting.insert(id, (self.checks + rest, rest));
    }
}

impl<M: StateMachine> Node<M> {
    /// Hands the leadership to a voter, if this member leads; the answer comes when it took over,
    /// or when it is clear that it will not.
    pub(crate) fn transfer_leader(&mut self, to: u64, reply: TransferReply) {
        match self.begin_transfer(to) {
            Ok(true) => {
                if let Some(transfer) = &mut self.transfer {
                    transfer.reply = Some(reply);
                }
            }
            Ok(false) => drop(reply.send(Ok(()))),
            Err(why) => drop(reply.send(Err(why))),
        }
    }

    /// False: it leads already.
    fn begin_transfer(&mut self, to: u64) -> Result<bool, TransferError> {
        if self.raw.raft.state != StateRole::Leader {
            let leader = self.leader();
            return Err(TransferError::NotLeader { leader });
        }
        if to == self.settings.id {
            return Ok(false);
        }
        if self.transfer.is_some() {
            return Err(TransferError::UnderWay);
        }
        let candidate = self
            .candidates()
            .into_iter()
            .find(|candidate| candidate.id == to)
            .ok_or(TransferError::NotAVoter { id: to })?;
        if candidate.behind >= BEHIND_LIMIT {
            return Err(TransferError::Behind {
                id: to,
                entries: candidate.behind,
                limit: BEHIND_LIMIT,
            });
        }
        self.raw.transfer_leader(to);
        self.transfer = Some(Transfer {
            to,
            deadline: self.ticks + self.settings.timeout_ticks,
            reply: None,
        });
        self.store.counters().transfers.one();
        info!(to, "handing the leadership over");
        Ok(true)
    }

    /// Looks whether a transfer came to its end. To be called after messages and ticks.
    pub(super) fn watch_transfer(&mut self) {
        let Some(transfer) = &self.transfer else {
            return;
        };
        let to = transfer.to;
        let leads = self.raw.raft.state == StateRole::Leader;
        let outcome = match self.leader() {
            Some(leader) if leader == to => Ok(()),
            // The library gives a transfer up after an election timeout.
            Some(_) if leads && self.raw.raft.lead_transferee.is_none() => Err(()),
            Some(_) if !leads => Err(()),
            _ if self.ticks >= transfer.deadline => Err(()),
            _ => return,
        };
        let reply = self.transfer.take().and_then(|transfer| transfer.reply);
        if outcome.is_err() {
            info!(to, "the leadership was not taken over");
            self.preferred.failed(to);
        }
        if let Some(reply) = reply {
            let outcome = outcome.map_err(|()| TransferError::NotTaken { id: to });
            // Who stopped waiting needs no answer.
            let _ = reply.send(outcome);
        }
    }

    /// Members that should lead where they can; empty = nobody is preferred.
    pub(crate) fn set_preferred(&mut self, ids: BTreeSet<u64>) {
        self.preferred = Preferred {
            ids,
            ..Preferred::default()
        };
    }

    /// Once per check: hands over to a preferred member that is fit to lead.
    pub(super) fn prefer(&mut self) {
        let is_settled = self.is_ready() && !self.is_joint && self.transfer.is_none();
        if !is_settled
            || self.preferred.ids.is_empty()
            || self.preferred.ids.contains(&self.settings.id)
            || !self.ticks.is_multiple_of(self.settings.prefer_ticks)
        {
            return;
        }
        let candidates = self.candidates();
        if let Some(to) = self.preferred.choose(&candidates)
            && self.begin_transfer(to).is_err()
        {
            self.preferred.failed(to);
        }
    }

    /// The other voters.
    fn candidates(&self) -> Vec<Candidate> {
        let (raft, me) = (&self.raw.raft, self.settings.id);
        let voters = raft.prs().conf().voters();
        let last = raft.raft_log.last_index();
        raft.prs()
            .iter()
            .filter(|(id, _)| **id != me && voters.contains(**id))
            .map(|(id, progress)| Candidate {
                id: *id,
                behind: last.saturating_sub(progress.matched),
                is_active: progress.recent_active,
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(id: u64, behind: u64, is_active: bool) -> Candidate {
        Candidate {
            id,
            behind,
            is_active,
        }
    }

    fn preferred(ids: &[u64]) -> Preferred {
        Preferred {
            ids: ids.iter().copied().collect(),
            ..Preferred::default()
        }
    }

    #[test]
    fn d08_the_least_behind_of_the_live_and_preferred_is_chosen() {
        let all = [
            candidate(1, 0, true),
            candidate(2, 7, true),
            candidate(3, 2, true),
            candidate(4, 2, true),
            candidate(5, 0, false),
        ];
        assert_eq!(preferred(&[2, 3, 4, 5]).choose(&all), Some(3));
        assert_eq!(preferred(&[2]).choose(&all), Some(2));
        assert_eq!(preferred(&[5, 9]).choose(&all), None);
        let lagging = [candidate(2, BEHIND_LIMIT, true)];
        assert_eq!(preferred(&[2]).choose(&lagging), None);
    }

    #[test]
    fn d08_who_did_not_take_over_is_left_alone_for_longer_each_time() {
        let all = [candidate(2, 0, true)];
        let mut preferred = preferred(&[2]);
        for rest in [4, 8, 16, 32, 64, 64] {
            assert_eq!(preferred.choose(&all), Some(2));
            preferred.failed(2);
            for check in 1..rest {
                assert_eq!(preferred.choose(&all), None, "check {check} of {rest}");
            }
        }
    }
}
