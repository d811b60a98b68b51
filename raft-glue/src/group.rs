//! One broker set as the controllers keep it: who is registered, who is master, who is in sync.
//!
//! Invariants: a recorded master is registered, has an address and is in the SyncStateSet; a new
//! master begins with a set of one and both epochs one higher; both epochs fit a Java `int`.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::command::{GroupView, MasterView, Report, Reports};
use crate::elect::{Ballot, Choice, Incarnation};

/// Largest master or set epoch: it is a Java `int` on the wire.
pub const EPOCH_MAX: u32 = i32::MAX as u32;

/// A registered broker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replica {
    /// Address it is reached by; empty until one is known.
    pub address: String,
    /// The code its id was taken under.
    pub check_code: String,
    /// How often it registered without naming its incarnation.
    pub registrations: u64,
}

/// One broker set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BrokerGroup {
    /// Cluster the set belongs to.
    pub cluster: String,
    /// The id to offer next; above every id ever taken.
    pub next_broker_id: u64,
    /// Registered brokers by id.
    pub replicas: BTreeMap<u64, Replica>,
    /// The master, if there is one.
    pub master: Option<u64>,
    /// Grows with every election; 0 = there never was a master.
    pub master_epoch: u32,
    /// Who is in sync, with the life in which each was admitted.
    pub sync_state_set: BTreeMap<u64, Incarnation>,
    /// Grows with every change of the set.
    pub sync_state_set_epoch: u32,
    /// The set of the last master that served its epoch, while the recorded one does not serve yet:
    /// until then nothing more was acknowledged, so each of these has all that ever was.
    pub former_set: BTreeMap<u64, Incarnation>,
}

impl BrokerGroup {
    /// Runs the election policy on this set with the reports given.
    #[must_use]
    pub fn choose(&self, alive: &Reports, designated: Option<u64>, allow_unclean: bool) -> Choice {
        let registered = self.nameable();
        Ballot {
            in_sync: &self.electorate(),
            registered: &registered,
            alive,
            old_master: self.master,
            designated,
            allow_unclean,
        }
        .choose()
    }

    /// Whose members may be elected: the set, and while its master does not serve yet also the set
    /// before it.
    #[must_use]
    pub fn electorate(&self) -> BTreeMap<u64, Incarnation> {
        let mut all = self.former_set.clone();
        all.extend(self.sync_state_set.iter().map(|(&id, &life)| (id, life)));
        all
    }

    /// Does `id`, with this report, still hold what it held when it was admitted to the set?
    #[must_use]
    pub fn is_sound(&self, id: u64, report: &Report) -> bool {
        match (
            self.sync_state_set.get(&id),
            self.incarnation(id, report.incarnation),
        ) {
            (Some(&admitted), Some(now)) => now.keeps(admitted, report.unclean),
            _ => false,
        }
    }

    /// As [`Self::is_sound`], for the life `before`.
    pub(crate) fn keeps_in(&self, before: Option<Incarnation>, id: u64, report: &Report) -> bool {
        let now = self.incarnation(id, report.incarnation);
        matches!((before, now), (Some(then), Some(now)) if now.keeps(then, report.unclean))
    }

    pub(crate) fn incarnation(&self, id: u64, opened: Option<u64>) -> Option<Incarnation> {
        let replica = self.replicas.get(&id)?;
        Some(Incarnation::of(opened, replica.registrations))
    }

    /// Registered brokers that have an address, with the count of their registrations.
    pub(crate) fn nameable(&self) -> BTreeMap<u64, u64> {
        self.replicas
            .iter()
            .filter(|(_, replica)| !replica.address.is_empty())
            .map(|(&id, replica)| (id, replica.registrations))
            .collect()
    }

    pub(crate) fn view(&self, broker: &str) -> GroupView {
        let master = self.master.and_then(|id| {
            let address = self.replicas.get(&id)?.address.clone();
            Some(MasterView { id, address })
        });
        GroupView {
            cluster: self.cluster.clone(),
            broker: broker.to_owned(),
            master,
            master_epoch: self.master_epoch,
            sync_state_set: self.set_ids(),
            sync_state_set_epoch: self.sync_state_set_epoch,
            members: self
                .replicas
                .iter()
                .map(|(&id, r)| (id, r.address.clone()))
                .collect(),
        }
    }

    pub(crate) fn set_ids(&self) -> BTreeSet<u64> {
        self.sync_state_set.keys().copied().collect()
    }

    /// The only place that names a master: a new epoch and a set of one. The set before is kept until
    /// that master serves: if it died before it was elected, one of the others can take its place.
    pub(crate) fn elect(&mut self, id: u64, report: &Report, epoch: u32) {
        let incarnation = self
            .incarnation(id, report.incarnation)
            .unwrap_or(Incarnation::Registered(0));
        if self.former_set.is_empty() {
            self.former_set = std::mem::take(&mut self.sync_state_set);
        }
        self.master = Some(id);
        self.master_epoch = epoch;
        self.sync_state_set = BTreeMap::from([(id, incarnation)]);
        self.next_set_epoch();
    }

    /// The next epoch of the set; it stays at the largest a Java `int` holds.
    pub(crate) fn next_set_epoch(&mut self) {
        self.sync_state_set_epoch = self.sync_state_set_epoch.saturating_add(1).min(EPOCH_MAX);
    }
}
