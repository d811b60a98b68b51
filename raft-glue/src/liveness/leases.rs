//! The controller's side of the lease: what was asked for, what may be granted, and when no
//! authority is out any more (pure).
//!
//! Invariants:
//! - A grant needs a controller that still leads (its read barrier was begun after the heartbeat
//!   came), a set whose recorded master is the asker in the asker's epoch and life, and no election
//!   that is proposed and not applied.
//! - Whatever was ever granted, by this controller or one before it, is over at
//!   [`Liveness::lease_over_ms`].

use super::{Beat, Liveness};
use crate::elect::Incarnation;
use crate::group::BrokerGroup;
use crate::lease::{LeaseNews, LeaseRefusal, check_wait, needed_wait_ms};

/// The newest heartbeat of a broker that asked for a lease and may have been granted one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Held {
    epoch: u32,
    at_ms: u64,
    wait_ms: u64,
}

/// Epochs a broker gave back, in one life of its store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Back {
    epoch: u32,
    life: Option<u64>,
}

/// What a broker said of leases, over all of its heartbeats.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Leases {
    /// It is a broker that knows of leases.
    speaks: bool,
    held: Option<Held>,
    back: Option<Back>,
}

/// Elections of one broker set that are proposed and not known to be settled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Electing {
    open: u32,
    /// Ended without an outcome: they may still be applied.
    unsettled: u32,
}

/// The key to a grant: a heartbeat that asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseAsk {
    /// The epoch asked for.
    pub epoch: u32,
    lease_ms: u64,
    ack_ms: u64,
    /// The receipt was noted: an election waits for it.
    noted: bool,
}

/// Why no authority is granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoLease {
    /// This controller does not lead.
    #[error("this controller does not lead")]
    NotLeader,
    /// Another master may be elected this moment.
    #[error("an election is under way")]
    Electing,
    /// The recorded master or its epoch is another one.
    #[error("the recorded master or its epoch is another one")]
    NotMaster,
    /// It is to be confirmed in its present life first.
    #[error("the role is not confirmed yet")]
    NotConfirmed,
    /// The broker's times do not fit the controller's.
    #[error(transparent)]
    Times(#[from] crate::lease::LeaseError),
}

impl NoLease {
    /// What the broker is told it is.
    #[must_use]
    pub fn code(&self) -> LeaseRefusal {
        match self {
            Self::NotLeader => LeaseRefusal::NotLeader,
            Self::Electing => LeaseRefusal::Electing,
            Self::NotMaster => LeaseRefusal::NotMaster,
            Self::NotConfirmed => LeaseRefusal::NotConfirmed,
            Self::Times(_) => LeaseRefusal::Times,
        }
    }
}

impl Leases {
    /// Takes what a heartbeat says. `marked`: an election is under way, so that nothing this
    /// heartbeat asks for will be granted.
    pub(super) fn news(&mut self, news: LeaseNews, life: Option<u64>, now_ms: u64, marked: bool) {
        match news {
            LeaseNews::Silent => {}
            LeaseNews::Asks {
                epoch,
                lease_ms,
                ack_ms,
            } => {
                self.speaks = true;
                if marked {
                    return;
                }
                let held = self.held.get_or_insert(Held {
                    epoch,
                    at_ms: now_ms,
                    wait_ms: 0,
                });
                held.epoch = held.epoch.max(epoch);
                held.at_ms = now_ms;
                held.wait_ms = needed_wait_ms(lease_ms, ack_ms);
            }
            LeaseNews::GivenBack { epoch } => {
                self.speaks = true;
                let newest = self
                    .back
                    .filter(|back| back.life == life && back.epoch > epoch);
                self.back = Some(newest.unwrap_or(Back { epoch, life }));
            }
        }
    }
}

impl Liveness {
    /// Sets how long to wait for a lease to run out, in ms (L_c).
    #[must_use]
    pub fn with_lease_wait(mut self, wait_ms: u64) -> Self {
        self.lease_wait_ms = wait_ms;
        self
    }

    /// When the recorded master of `group` has no authority any more, whatever it was granted and by
    /// whom, unless it is granted more; 0: it has none now. A Java broker never has any.
    #[must_use]
    pub fn lease_over_ms(&self, broker: &str, group: &BrokerGroup) -> u64 {
        let Some(master) = group.master else {
            return 0;
        };
        let leases = match self.beat(&group.cluster, broker, master) {
            Some(beat) => beat.leases,
            // Whoever it is, a leader before this one may have granted it something.
            None => Leases {
                speaks: true,
                ..Leases::default()
            },
        };
        let life = group.sync_state_set.get(&master).copied();
        let gave_back = leases.back.is_some_and(|back| {
            back.epoch >= group.master_epoch
                && back.life.map(Incarnation::Opened) == life
                && life.is_some()
        });
        if gave_back || (!leases.speaks && leases.held.is_none()) {
            return 0;
        }
        // Nobody granted anything before this one led that was asked for after it did.
        let since = self.leader_since_ms.map_or(u64::MAX, |(since, _)| since);
        let held = leases
            .held
            .filter(|held| held.epoch >= group.master_epoch)
            .unwrap_or(Held {
                epoch: 0,
                at_ms: 0,
                wait_ms: 0,
            });
        let from = since.max(held.at_ms);
        from.saturating_add(self.lease_wait_ms.max(held.wait_ms))
    }

    /// What the newest heartbeat of a broker asks for, to be decided by [`Self::may_grant`] after a
    /// read barrier.
    #[must_use]
    pub fn asked(&self, cluster: &str, broker: &str, id: u64) -> Option<LeaseAsk> {
        self.beat(cluster, broker, id).and_then(|beat| beat.ask)
    }

    /// Decides on an ask. Between the receipt of the heartbeat and this a read barrier must have
    /// been begun and passed, and `group` must be the state at or after that barrier.
    ///
    /// # Errors
    /// Why nothing is granted.
    pub fn may_grant(
        &self,
        broker: &str,
        group: &BrokerGroup,
        id: u64,
        ask: &LeaseAsk,
    ) -> Result<(), NoLease> {
        if self.leader_since_ms.is_none() {
            return Err(NoLease::NotLeader);
        }
        if !ask.noted || self.electing.contains_key(broker) {
            return Err(NoLease::Electing);
        }
        if group.master != Some(id) || group.master_epoch != ask.epoch {
            return Err(NoLease::NotMaster);
        }
        let life = self
            .beat(&group.cluster, broker, id)
            .and_then(|beat| group.incarnation(id, beat.report.incarnation));
        if life.is_none()
            || group.sync_state_set.get(&id) != life.as_ref()
            || !group.former_set.is_empty()
        {
            return Err(NoLease::NotConfirmed);
        }
        Ok(check_wait(ask.lease_ms, ask.ack_ms, self.lease_wait_ms)?)
    }

    /// An election of this set is about to be proposed: nothing is granted until
    /// [`Self::end_election`].
    pub fn begin_election(&mut self, broker: &str) {
        self.electing.entry(broker.to_owned()).or_default().open += 1;
    }

    /// The election has an outcome, or it ended without one: then it may still be applied, and
    /// nothing is granted until [`Self::settle`].
    pub fn end_election(&mut self, broker: &str, settled: bool) {
        if let Some(electing) = self.electing.get_mut(broker) {
            electing.open = electing.open.saturating_sub(1);
            electing.unsettled += u32::from(!settled);
        }
        self.forget_ended();
    }

    /// Sets with elections without an outcome, and how many.
    #[must_use]
    pub fn unsettled(&self) -> Vec<(String, u32)> {
        let open = self.electing.iter().filter(|(_, it)| it.unsettled > 0);
        open.map(|(broker, it)| (broker.clone(), it.unsettled))
            .collect()
    }

    /// A command proposed after these `count` elections was applied: so were they, or they never
    /// will be.
    pub fn settle(&mut self, broker: &str, count: u32) {
        if let Some(electing) = self.electing.get_mut(broker) {
            electing.unsettled = electing.unsettled.saturating_sub(count);
        }
        self.forget_ended();
    }

    /// A leader of a new term that has applied an entry of its own knows the fate of all before.
    pub(super) fn settle_all(&mut self) {
        for electing in self.electing.values_mut() {
            electing.unsettled = 0;
        }
        self.forget_ended();
    }

    fn forget_ended(&mut self) {
        self.electing
            .retain(|_, electing| *electing != Electing::default());
    }

    pub(super) fn is_marked(&self, broker: &str) -> bool {
        self.electing
            .get(broker)
            .is_some_and(|electing| electing.open > 0)
    }
}

impl Beat {
    pub(super) fn ask_of(news: LeaseNews, marked: bool) -> Option<LeaseAsk> {
        match news {
            LeaseNews::Asks {
                epoch,
                lease_ms,
                ack_ms,
            } => Some(LeaseAsk {
                epoch,
                lease_ms,
                ack_ms,
                noted: !marked,
            }),
            LeaseNews::Silent | LeaseNews::GivenBack { .. } => None,
        }
    }
}

#[cfg(test)]
#[path = "leases_tests.rs"]
mod tests;
