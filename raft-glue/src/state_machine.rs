//! The state all controllers agree on, and how a command changes it (pure).
//!
//! Invariants: [`ControllerState::apply`] is total (any command in any state gives a code), changes
//! nothing when it refuses, and depends on nothing but the state and the command. Master epochs and
//! set epochs only grow while a broker set is known. A recorded master is registered, has an
//! address and is a member of the set. Everything is in ordered maps, so equal histories give equal
//! bytes.
//!
//! RocketMQ: ReplicasInfoManager, SyncStateInfo, BrokerReplicaInfo.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::command::{
    AlterSyncStateSet, Answer, ApplyBrokerId, BROKER_ID_MAX, CleanBrokerData, Code, Command,
    ConfirmMaster, ElectMaster, GroupView, RegisterBroker, Reports, ReviewMembers, TEXT_LIMIT,
    UpdateAddress,
};
use crate::elect::{Choice, Incarnation, choose_first};
use crate::group::{BrokerGroup, EPOCH_MAX, Replica};

/// Broker sets one controller keeps.
pub const GROUP_LIMIT: usize = 1 << 16;

/// Brokers one set may have.
pub const REPLICA_LIMIT: usize = 1 << 10;

/// Largest epoch a heartbeat may report. A larger one is not believed, so that one broken broker
/// cannot use up the epochs of its set.
pub const REPORTED_EPOCH_MAX: i32 = 1 << 30;

type Refused = Box<Answer>;

/// The state of the controllers: every broker set by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControllerState {
    groups: BTreeMap<String, BrokerGroup>,
}

impl ControllerState {
    /// A state without broker sets.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Every broker set by name, in order.
    pub fn groups(&self) -> impl Iterator<Item = (&str, &BrokerGroup)> {
        self.groups
            .iter()
            .map(|(name, group)| (name.as_str(), group))
    }

    /// One broker set.
    #[must_use]
    pub fn group(&self, broker: &str) -> Option<&BrokerGroup> {
        self.groups.get(broker)
    }

    /// One broker set as the answers show it.
    #[must_use]
    pub fn view(&self, broker: &str) -> Option<GroupView> {
        self.groups.get(broker).map(|group| group.view(broker))
    }

    /// The id to ask for next: 1 for an unknown set. It is not reserved (request 1012).
    #[must_use]
    pub fn next_broker_id(&self, broker: &str) -> u64 {
        self.groups
            .get(broker)
            .map_or(1, |group| group.next_broker_id)
    }

    /// Master and set of one broker set (request 1004).
    #[must_use]
    pub fn replica_info(&self, broker: &str) -> Answer {
        match self.view(broker) {
            Some(view) => Answer::done(view, false),
            None => Answer::refused(
                Code::BrokerMetadataNotExist,
                format!("broker set {broker} is unknown"),
            ),
        }
    }

    /// Puts one broker set in place, or takes it away (used when state is loaded).
    pub fn put_group(&mut self, broker: String, group: Option<BrokerGroup>) {
        match group {
            Some(group) => self.groups.insert(broker, group),
            None => self.groups.remove(&broker),
        };
    }

    /// The whole state as bytes (postcard).
    ///
    /// # Errors
    /// Never for a state reached by [`Self::apply`]; the coding reports it all the same.
    pub fn snapshot(&self) -> Result<Vec<u8>, postcard::Error> {
        postcard::to_stdvec(self)
    }

    /// Reads what [`Self::snapshot`] wrote.
    ///
    /// # Errors
    /// When the bytes are not a snapshot.
    pub fn restore(bytes: &[u8]) -> Result<Self, postcard::Error> {
        postcard::from_bytes(bytes)
    }

    /// Applies one command. Says what it came to; [`Answer::changed`] tells whether the broker set
    /// named by the command is now another.
    pub fn apply(&mut self, command: &Command) -> Answer {
        match command {
            Command::ApplyBrokerId(c) => self.apply_broker_id(c),
            Command::RegisterBroker(c) => self.register_broker(c),
            Command::UpdateAddress(c) => self.update_address(c),
            Command::ElectMaster(c) => self.elect_master(c),
            Command::AlterSyncStateSet(c) => self.alter_sync_state_set(c),
            Command::CleanBrokerData(c) => self.clean_broker_data(c),
            Command::ReviewMembers(c) => self.review_members(c),
            Command::ConfirmMaster(c) => self.confirm_master(c),
        }
    }

    fn apply_broker_id(&mut self, c: &ApplyBrokerId) -> Answer {
        let refused = |why: String| Answer::refused(Code::BrokerIdInvalid, why);
        if let Some(why) = bad_text(&[&c.cluster, &c.broker, &c.check_code]) {
            return refused(why);
        }
        if c.id == 0 || c.id > BROKER_ID_MAX {
            return refused(format!("broker id {} is not in 1..={BROKER_ID_MAX}", c.id));
        }
        let address = c.check_code.split(';').next().unwrap_or_default();
        let replica = Replica {
            address: address.to_owned(),
            check_code: c.check_code.clone(),
            registrations: 0,
        };
        let Some(group) = self.groups.get_mut(&c.broker) else {
            if c.id != 1 {
                return refused(format!(
                    "the first id of set {} is 1, not {}",
                    c.broker, c.id
                ));
            }
            if self.groups.len() >= GROUP_LIMIT {
                return refused(format!(
                    "{GROUP_LIMIT} broker sets are known: no room for more"
                ));
            }
            let group = BrokerGroup {
                cluster: c.cluster.clone(),
                next_broker_id: 2,
                replicas: BTreeMap::from([(1, replica)]),
                master: None,
                master_epoch: 0,
                sync_state_set: BTreeMap::new(),
                sync_state_set_epoch: 0,
                former_set: BTreeMap::new(),
            };
            let view = group.view(&c.broker);
            self.groups.insert(c.broker.clone(), group);
            return Answer::done(view, true);
        };
        if group.cluster != c.cluster {
            return refused(other_cluster(&c.broker, &group.cluster, &c.cluster));
        }
        match group.replicas.get(&c.id) {
            Some(known) if known.check_code == c.check_code => {
                return Answer::done(group.view(&c.broker), false);
            }
            Some(_) => return refused(format!("broker id {} is taken in set {}", c.id, c.broker)),
            None if group.replicas.len() >= REPLICA_LIMIT => {
                return refused(format!("set {} has {REPLICA_LIMIT} brokers", c.broker));
            }
            None => {}
        }
        group.replicas.insert(c.id, replica);
        group.next_broker_id = group.next_broker_id.max(c.id + 1);
        Answer::done(group.view(&c.broker), true)
    }

    fn register_broker(&mut self, c: &RegisterBroker) -> Answer {
        if let Some(why) = bad_text(&[&c.address]) {
            return Answer::refused(Code::InvalidRequest, why);
        }
        let group = match self.registered_group(&c.broker, c.id) {
            Ok(group) => group,
            Err(refusal) => return *refusal,
        };
        if group.cluster != c.cluster {
            let why = other_cluster(&c.broker, &group.cluster, &c.cluster);
            return Answer::refused(Code::BrokerNeedToBeRegistered, why);
        }
        let mut changed = false;
        if let Some(replica) = group.replicas.get_mut(&c.id) {
            if replica.address != c.address {
                replica.address.clone_from(&c.address);
                changed = true;
            }
            if c.incarnation.is_none() {
                replica.registrations = replica.registrations.saturating_add(1);
                changed = true;
            }
        }
        let mut view = group.view(&c.broker);
        let is_alive = match &view.master {
            // A master that cannot vouch for its log is not told to go on in the old epoch.
            Some(master) if master.id == c.id => {
                let now = group.incarnation(c.id, c.incarnation);
                let admitted = group.sync_state_set.get(&c.id);
                matches!((now, admitted), (Some(now), Some(&then)) if now.keeps(then, c.unclean))
            }
            Some(master) => c.alive.contains(&master.id),
            None => false,
        };
        if !is_alive {
            view.master = None;
        }
        Answer::done(view, changed)
    }

    fn update_address(&mut self, c: &UpdateAddress) -> Answer {
        if let Some(why) = bad_text(&[&c.address]) {
            return Answer::refused(Code::InvalidRequest, why);
        }
        let group = match self.registered_group(&c.broker, c.id) {
            Ok(group) => group,
            Err(refusal) => return *refusal,
        };
        let mut changed = false;
        if let Some(replica) = group.replicas.get_mut(&c.id) {
            changed = replica.address != c.address;
            replica.address.clone_from(&c.address);
        }
        Answer::done(group.view(&c.broker), changed)
    }

    fn elect_master(&mut self, c: &ElectMaster) -> Answer {
        let Some(group) = self.groups.get_mut(&c.broker) else {
            return need_registration(&c.broker, None);
        };
        if let Some(id) = c.broker_id
            && !group.replicas.contains_key(&id)
        {
            // RocketMQ knows no id that may not stand for election, so an operator hears that the
            // election failed. A broker of ours registers when it hears that it must.
            return match c.designate {
                true => Answer::refused(Code::ElectMasterFailed, not_registered(&c.broker, id)),
                false => need_registration(&c.broker, Some(id)),
            };
        }
        if c.expected_master_epoch
            .is_some_and(|epoch| epoch != group.master_epoch)
        {
            let why = format!(
                "the master epoch of {} is already {}",
                c.broker, group.master_epoch
            );
            return Answer {
                group: Some(group.view(&c.broker)),
                ..Answer::refused(Code::MasterStillExist, why)
            };
        }
        let choice = if group.master_epoch == 0 {
            choose_first(&group.nameable(), &c.alive, c.broker_id, c.designate)
        } else {
            let designated = c.broker_id.filter(|_| c.designate);
            group.choose(&c.alive, designated, c.allow_unclean)
        };
        let nobody = format!("no broker of set {} can be elected", c.broker);
        match choice {
            Choice::Keep(_) => Answer {
                code: Code::MasterStillExist,
                remark: format!("the master of set {} is alive", c.broker),
                group: Some(group.view(&c.broker)),
                changed: false,
            },
            Choice::Elect(id) => {
                let (Some(epoch), Some(report)) =
                    (next_epoch(group.master_epoch, &c.alive), c.alive.get(&id))
                else {
                    let why = format!("set {} has used up its master epochs", c.broker);
                    return Answer::refused(Code::ElectMasterFailed, why);
                };
                group.elect(id, report, epoch);
                Answer::done(group.view(&c.broker), true)
            }
            Choice::Nobody if c.broker_id.is_some() => {
                Answer::refused(Code::ElectMasterFailed, nobody)
            }
            Choice::Nobody => {
                let next = next_epoch(group.master_epoch, &Reports::new());
                let changed = match (group.master, next) {
                    (Some(_), Some(epoch)) => {
                        group.master = None;
                        group.master_epoch = epoch;
                        true
                    }
                    _ => false,
                };
                Answer {
                    changed,
                    ..Answer::refused(Code::MasterNotAvailable, nobody)
                }
            }
        }
    }

    /// The order of the checks is RocketMQ's, so that the codes are.
    fn alter_sync_state_set(&mut self, c: &AlterSyncStateSet) -> Answer {
        let Some(group) = self.groups.get_mut(&c.broker) else {
            let why = format!("broker set {} is unknown", c.broker);
            return Answer::refused(Code::AlterSyncStateSetFailed, why);
        };
        if c.new_set == group.set_ids() {
            let is_repeat = group.master == Some(c.master_id)
                && group.master_epoch == c.master_epoch
                && c.sync_state_set_epoch.checked_add(1) == Some(group.sync_state_set_epoch);
            if is_repeat {
                return Answer::done(group.view(&c.broker), false);
            }
            let why = format!("set {} already has these members", c.broker);
            return Answer::refused(Code::AlterSyncStateSetFailed, why);
        }
        if group.master != Some(c.master_id) {
            let why = format!(
                "broker {} is not the master of set {}",
                c.master_id, c.broker
            );
            return Answer::refused(Code::InvalidMaster, why);
        }
        if group.master_epoch != c.master_epoch {
            let why = format!(
                "master epoch is {}, not {}",
                group.master_epoch, c.master_epoch
            );
            return Answer::refused(Code::FencedMasterEpoch, why);
        }
        if group.sync_state_set_epoch != c.sync_state_set_epoch {
            let (is, asked) = (group.sync_state_set_epoch, c.sync_state_set_epoch);
            let why = format!("the epoch of the SyncStateSet is {is}, not {asked}");
            return Answer::refused(Code::FencedSyncStateSetEpoch, why);
        }
        let admitted = match admit(group, c) {
            Ok(admitted) => admitted,
            Err(refusal) => return *refusal,
        };
        if !c.new_set.contains(&c.master_id) {
            let why = format!("the new set lacks the master {}", c.master_id);
            return Answer::refused(Code::AlterSyncStateSetFailed, why);
        }
        let Some(epoch) = group
            .sync_state_set_epoch
            .checked_add(1)
            .filter(|e| *e <= EPOCH_MAX)
        else {
            let why = format!("set {} has used up its SyncStateSet epochs", c.broker);
            return Answer::refused(Code::AlterSyncStateSetFailed, why);
        };
        group.sync_state_set = admitted;
        group.sync_state_set_epoch = epoch;
        // Whoever alters the set serves.
        group.former_set.clear();
        Answer::done(group.view(&c.broker), true)
    }

    fn clean_broker_data(&mut self, c: &CleanBrokerData) -> Answer {
        let refused = |why: String| Answer::refused(Code::InvalidCleanBrokerMetadata, why);
        let Some(group) = self.groups.get_mut(&c.broker) else {
            return refused(format!("broker set {} is unknown", c.broker));
        };
        let ids = match &c.ids {
            Some(ids) if !c.clean_living => ids,
            None if !c.clean_living && group.master.is_some() => {
                return refused(format!(
                    "set {} has a master: name the ids to clean",
                    c.broker
                ));
            }
            _ => {
                self.groups.remove(&c.broker);
                return Answer {
                    changed: true,
                    ..Answer::refused(Code::Success, "")
                };
            }
        };
        if let Some(id) = ids.iter().find(|id| c.alive.contains(id)) {
            return refused(format!("broker {id} of set {} is alive", c.broker));
        }
        let mut changed = false;
        let mut set_changed = false;
        for id in ids {
            changed |= group.replicas.remove(id).is_some();
            set_changed |= group.sync_state_set.remove(id).is_some();
            changed |= group.former_set.remove(id).is_some();
            if group.master == Some(*id) {
                group.master = None;
            }
        }
        if set_changed {
            group.next_set_epoch();
        }
        if group.replicas.is_empty() {
            self.groups.remove(&c.broker);
        }
        Answer {
            changed,
            ..Answer::refused(Code::Success, "")
        }
    }

    /// A member that restarted cleanly is vouched for in its new life; one that did not leaves the
    /// set, and the master admits it again when it has caught up. The master is never taken out
    /// here: it is elected away from.
    fn review_members(&mut self, c: &ReviewMembers) -> Answer {
        let Some(group) = self.groups.get_mut(&c.broker) else {
            return need_registration(&c.broker, None);
        };
        if group.master_epoch != c.master_epoch
            || group.sync_state_set_epoch != c.sync_state_set_epoch
        {
            return Answer::done(group.view(&c.broker), false);
        }
        let (mut changed, mut left) = (false, false);
        for (&id, report) in &c.alive {
            if let (Some(&before), Some(now)) = (
                group.former_set.get(&id),
                group.incarnation(id, report.incarnation),
            ) && now != before
                && now.keeps(before, report.unclean)
            {
                group.former_set.insert(id, now);
                changed = true;
            }
            let (Some(&admitted), Some(now)) = (
                group.sync_state_set.get(&id),
                group.incarnation(id, report.incarnation),
            ) else {
                continue;
            };
            if now == admitted {
                continue;
            }
            if now.keeps(admitted, report.unclean) {
                group.sync_state_set.insert(id, now);
                changed = true;
            } else if group.master != Some(id) {
                group.sync_state_set.remove(&id);
                (changed, left) = (true, true);
            }
        }
        if left {
            group.next_set_epoch();
        }
        Answer::done(group.view(&c.broker), changed)
    }

    /// The recorded master serves: from now on it may acknowledge, so only its set counts. It is
    /// vouched for in its present life, if that can be.
    fn confirm_master(&mut self, c: &ConfirmMaster) -> Answer {
        let Some(group) = self.groups.get_mut(&c.broker) else {
            return need_registration(&c.broker, None);
        };
        if group.master != Some(c.id) || group.master_epoch != c.master_epoch {
            let (id, epoch) = (c.id, c.master_epoch);
            let why = format!("broker {id} is not master of {} in epoch {epoch}", c.broker);
            return Answer::refused(Code::InvalidMaster, why);
        }
        let (Some(now), Some(&admitted)) = (
            group.incarnation(c.id, c.incarnation),
            group.sync_state_set.get(&c.id),
        ) else {
            return Answer::done(group.view(&c.broker), false);
        };
        if !now.keeps(admitted, c.unclean) {
            let why = format!("broker {} of {} may have lost what it had", c.id, c.broker);
            return Answer::refused(Code::InvalidMaster, why);
        }
        let changed = now != admitted || !group.former_set.is_empty();
        group.sync_state_set.insert(c.id, now);
        group.former_set.clear();
        Answer::done(group.view(&c.broker), changed)
    }

    fn registered_group(&mut self, broker: &str, id: u64) -> Result<&mut BrokerGroup, Refused> {
        match self.groups.get_mut(broker) {
            Some(group) if group.replicas.contains_key(&id) => Ok(group),
            Some(_) => Err(Box::new(need_registration(broker, Some(id)))),
            None => Err(Box::new(need_registration(broker, None))),
        }
    }
}

/// The members of the new set with the lives they are admitted in.
fn admit(
    group: &BrokerGroup,
    c: &AlterSyncStateSet,
) -> Result<BTreeMap<u64, Incarnation>, Refused> {
    let mut admitted = BTreeMap::new();
    for &id in &c.new_set {
        if !group.replicas.contains_key(&id) {
            let why = format!("broker {id} is not registered in set {}", c.broker);
            return Err(Box::new(Answer::refused(Code::InvalidReplicas, why)));
        }
        let Some(report) = c.alive.get(&id) else {
            let why = format!("broker {id} of set {} has no live heartbeat", c.broker);
            return Err(Box::new(Answer::refused(Code::BrokerNotAlive, why)));
        };
        // A member that stays keeps the life it was admitted in: the master may not yet know
        // that it restarted. A newcomer that restarted since the master saw it caught up may
        // have lost what it had then.
        let now = group.incarnation(id, report.incarnation);
        let is_newcomer = !group.sync_state_set.contains_key(&id) && id != c.master_id;
        if is_newcomer
            && let (Some(seen_in), Some(life)) = (&c.seen_in, now.map(Incarnation::count))
            && seen_in.get(&id) != Some(&life)
        {
            let why = format!(
                "broker {id} of set {} is in life {life}, and the master saw it caught up in {:?}",
                c.broker,
                seen_in.get(&id)
            );
            return Err(Box::new(Answer::refused(Code::BrokerNotAlive, why)));
        }
        if let Some(incarnation) = group.sync_state_set.get(&id).copied().or(now) {
            admitted.insert(id, incarnation);
        }
    }
    Ok(admitted)
}

/// Above the present epoch and above every epoch a live broker reports: controllers that lost their
/// data must not hand out an epoch that brokers have already seen.
fn next_epoch(current: u32, alive: &Reports) -> Option<u32> {
    let reported = alive
        .values()
        .map(|report| report.epoch.max(report.max_epoch))
        .filter(|epoch| (1..=REPORTED_EPOCH_MAX).contains(epoch))
        .max()
        .unwrap_or(0);
    let reported = u32::try_from(reported).unwrap_or(0);
    current
        .max(reported)
        .checked_add(1)
        .filter(|epoch| *epoch <= EPOCH_MAX)
}

fn need_registration(broker: &str, id: Option<u64>) -> Answer {
    let why = match id {
        Some(id) => not_registered(broker, id),
        None => format!("broker set {broker} is not registered"),
    };
    Answer::refused(Code::BrokerNeedToBeRegistered, why)
}

fn not_registered(broker: &str, id: u64) -> String {
    format!("broker {id} of set {broker} is not registered")
}

fn other_cluster(broker: &str, known: &str, asked: &str) -> String {
    format!("broker set {broker} belongs to cluster {known}, not to {asked}")
}

fn bad_text(texts: &[&str]) -> Option<String> {
    texts.iter().find_map(|text| {
        if text.is_empty() {
            Some("a name, an address or a check code is empty".to_owned())
        } else if text.len() > TEXT_LIMIT {
            Some(format!(
                "a text of {} bytes is over the limit of {TEXT_LIMIT}",
                text.len()
            ))
        } else {
            None
        }
    })
}

#[cfg(test)]
#[path = "state_machine_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "state_machine_lives_tests.rs"]
mod lives_tests;

#[cfg(test)]
#[path = "state_machine_replay_tests.rs"]
mod replay_tests;

#[cfg(test)]
#[path = "state_machine_table_tests.rs"]
mod table_tests;
