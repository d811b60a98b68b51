//! Who becomes master (pure).
//!
//! Invariants: nobody without a live report is chosen; without `allow_unclean` nobody outside the
//! SyncStateSet is chosen; a member whose log may have lost acknowledged bytes since it was admitted
//! is chosen only when every member of the set is there to be compared with.
//!
//! Order among the choosable: last epoch, then end of log, both larger first and compared as
//! 64-bit numbers; then priority, then id, both smaller first.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::command::{Report, Reports};

/// One life of a broker's log, from open to close.
///
/// Brokers of this project report their count of opens. A Java broker reports none: each of its
/// registrations (1003, sent at every start) counts as the begin of a life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Incarnation {
    /// Counted by the broker in its state file.
    Opened(u64),
    /// Counted here.
    Registered(u64),
}

impl Incarnation {
    /// The present life of a broker that reported `opened`, with `registrations` counted here.
    #[must_use]
    pub fn of(opened: Option<u64>, registrations: u64) -> Self {
        opened.map_or(Self::Registered(registrations), Self::Opened)
    }

    /// The number of the life, whoever counts it.
    #[must_use]
    pub fn count(self) -> u64 {
        match self {
            Self::Opened(count) | Self::Registered(count) => count,
        }
    }

    /// Does the broker, now in the life `self`, still hold what it held when it was admitted?
    ///
    /// Yes in the same life. A clean open vouches for exactly one step back, because the life
    /// before that one may have begun unclean.
    #[must_use]
    pub fn keeps(self, admitted: Self, unclean: bool) -> bool {
        match (self, admitted) {
            (Self::Opened(now), Self::Opened(then)) => {
                now == then || (!unclean && then.checked_add(1) == Some(now))
            }
            (now, then) => now == then,
        }
    }
}

/// What an election chooses from.
#[derive(Clone, Copy, Debug)]
pub struct Ballot<'a> {
    /// Members of the SyncStateSet with the life in which each was admitted.
    pub in_sync: &'a BTreeMap<u64, Incarnation>,
    /// All registered brokers that may be named (they have an address), with the count of their
    /// registrations.
    pub registered: &'a BTreeMap<u64, u64>,
    /// Live brokers and their reports.
    pub alive: &'a Reports,
    /// The recorded master.
    pub old_master: Option<u64>,
    /// Elect this one or nobody.
    pub designated: Option<u64>,
    /// May a replica outside the set be elected when nobody in it can.
    pub allow_unclean: bool,
}

/// The outcome of a [`Ballot`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// The old master is alive and holds what it held: nothing changes.
    Keep(u64),
    /// This one, in a new epoch (it may be the old master in a new life).
    Elect(u64),
    /// Nobody.
    Nobody,
}

impl Ballot<'_> {
    /// Runs the election (RocketMQ: DefaultElectPolicy, with the lives of members added).
    #[must_use]
    pub fn choose(&self) -> Choice {
        let sound = self.choosable(|id| self.in_sync.contains_key(&id) && self.is_sound(id));
        if !sound.is_empty() {
            if let Some(choice) = self.choose_from(&sound, true) {
                return choice;
            }
        } else if !self.in_sync.is_empty() {
            let present = self.choosable(|id| self.in_sync.contains_key(&id));
            // Nobody can vouch for its bytes: only the longest of all members is safe to take.
            if present.len() == self.in_sync.len()
                && let Some(choice) = self.choose_from(&present, false)
            {
                return choice;
            }
        }
        if self.allow_unclean {
            let all = self.choosable(|_| true);
            if let Some(choice) = self.choose_from(&all, false) {
                return choice;
            }
        }
        Choice::Nobody
    }

    /// Is `id` alive and in the life in which it was admitted (or one step from it, cleanly)?
    #[must_use]
    pub fn is_sound(&self, id: u64) -> bool {
        let (Some(report), Some(&admitted)) = (self.alive.get(&id), self.in_sync.get(&id)) else {
            return false;
        };
        let registrations = self.registered.get(&id).copied().unwrap_or(0);
        Incarnation::of(report.incarnation, registrations).keeps(admitted, report.unclean)
    }

    fn choosable(&self, wanted: impl Fn(u64) -> bool) -> BTreeMap<u64, &Report> {
        self.alive
            .iter()
            .filter(|(id, _)| self.registered.contains_key(id) && wanted(**id))
            .map(|(&id, report)| (id, report))
            .collect()
    }

    /// `None`: nobody from these, try the next group.
    fn choose_from(&self, from: &BTreeMap<u64, &Report>, may_keep: bool) -> Option<Choice> {
        if from.is_empty() {
            return None;
        }
        if may_keep
            && let Some(old) = self.old_master
            && from.contains_key(&old)
            && self.designated.is_none_or(|wish| wish == old)
        {
            return Some(Choice::Keep(old));
        }
        match self.designated {
            Some(wish) => from.contains_key(&wish).then_some(Choice::Elect(wish)),
            None => best(from).map(Choice::Elect),
        }
    }
}

/// The first election of a set, when there is no SyncStateSet to choose from.
///
/// The asker becomes master, as in RocketMQ, unless a live broker holds more: that happens when
/// controllers lost their data and the brokers did not. Unlike RocketMQ the asker must be
/// registered and alive.
#[must_use]
pub fn choose_first(
    registered: &BTreeMap<u64, u64>,
    alive: &Reports,
    asker: Option<u64>,
    designate: bool,
) -> Choice {
    let from: BTreeMap<u64, &Report> = alive
        .iter()
        .filter(|(id, _)| registered.contains_key(id))
        .map(|(&id, r)| (id, r))
        .collect();
    let holds = |id: u64| from.get(&id).map(|r| (r.epoch.max(0), r.max_offset));
    match (asker, best(&from)) {
        (Some(id), Some(_)) if designate && from.contains_key(&id) => Choice::Elect(id),
        (Some(_), _) if designate => Choice::Nobody,
        (Some(id), Some(most)) if holds(id).is_some() && holds(id) >= holds(most) => {
            Choice::Elect(id)
        }
        (_, Some(most)) => Choice::Elect(most),
        (_, None) => Choice::Nobody,
    }
}

fn best(from: &BTreeMap<u64, &Report>) -> Option<u64> {
    from.iter()
        .max_by_key(|(id, r)| (r.epoch, r.max_offset, Reverse(r.priority), Reverse(**id)))
        .map(|(&id, _)| id)
}

#[cfg(test)]
#[path = "elect_tests.rs"]
mod tests;
