//! What a broker does about its controllers' decisions (RocketMQ: ReplicasManager): gets an id,
//! registers, asks for elections, follows the newest decision. Pure: steps out, outcomes in, time is
//! an argument.
//!
//! Invariants:
//! - A decision older than the newest one known, or than what the store has promised, changes nothing.
//! - The broker is fenced until a role of the newest decision is taken in this process life, and again
//!   as soon as a newer decision names no master.
//! - An id is never given up once it is granted; a claim is dropped only when the controller says that
//!   the id belongs to somebody else.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use epochlog_raft_glue::remoting::response_code as code;

use crate::identity::{Claim, Stored};

/// First pause after a failure; doubles up to [`LONGEST_PAUSE_MS`].
const FIRST_PAUSE_MS: u64 = 50;
const LONGEST_PAUSE_MS: u64 = 2000;

/// What the controllers decided, as one value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// Master epoch; 0: no election yet.
    pub epoch: u32,
    /// Controller id and `host:port` of the master; `None` after an election without winner.
    pub master: Option<(u64, String)>,
    /// Members of the SyncStateSet.
    pub members: BTreeSet<u64>,
    /// Epoch of the set.
    pub set_epoch: u32,
}

/// A role to take, or taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Role {
    /// Master of `epoch`.
    Master {
        /// Master epoch.
        epoch: u32,
    },
    /// Slave of the master of `epoch`.
    Slave {
        /// Master epoch.
        epoch: u32,
        /// The master's controller id.
        master_id: u64,
    },
}

/// What to do next. Its outcome goes to [`Replicas::done`] before the next one is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// 1012.
    AskNextId,
    /// Write the temporary identity file.
    SaveClaim(Claim),
    /// 1013.
    Apply(Claim),
    /// Write the identity file, then remove the temporary one.
    SaveIdentity(u64),
    /// Remove the temporary identity file.
    DropClaim,
    /// 1003, then one heartbeat.
    Register(u64),
    /// 1002.
    Elect(u64),
    /// 1004.
    Poll,
    /// Refuse writes: the newest decision names no master.
    Fence,
    /// Ask the master at this address for its HA address (906).
    AskHaAddress(String),
    /// Become master of the epoch with this set.
    BecomeMaster {
        /// Master epoch.
        epoch: u32,
        /// Members of the SyncStateSet.
        members: BTreeSet<u64>,
        /// Epoch of the set.
        set_epoch: u32,
    },
    /// Follow this master.
    BecomeSlave {
        /// Master epoch.
        epoch: u32,
        /// The master's controller id.
        master_id: u64,
        /// Where the master ships from.
        ha_address: SocketAddr,
    },
    /// As master: take a newer set.
    AdoptSet {
        /// Members of the SyncStateSet.
        members: BTreeSet<u64>,
        /// Epoch of the set.
        set_epoch: u32,
    },
    /// Nothing until then, in ms of the caller's clock, or until there is news.
    Wait(u64),
}

/// Why a step did not succeed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// The controller answered with this code.
    Code(i32),
    /// No usable answer, or the disk refused.
    Unavailable,
    /// The log cannot be proven to be what it was when it served this epoch: it needs a newer one.
    NeedsNewerEpoch,
}

/// How a step ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Of steps that give nothing back.
    Done,
    /// Of [`Step::AskNextId`].
    NextId(u64),
    /// Of [`Step::Register`]; `None`: registered, and no master is alive. Of [`Step::Elect`] and
    /// [`Step::Poll`].
    Decided(Option<Decision>),
    /// Of [`Step::AskHaAddress`].
    HaAddress(SocketAddr),
    /// Of any step.
    Failed(Failure),
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Stage {
    NoId,
    /// To be saved before it is sent.
    NewClaim(Claim),
    Claimed(Claim),
    /// The claim went to somebody else.
    Lost,
    Granted(u64),
    /// An id whose set the controller does not know any more: to be applied for again.
    Reclaim(Claim),
    Identified(u64),
    Registered(u64),
}

/// The state of one broker. See the module.
#[derive(Debug)]
pub struct Replicas {
    address: String,
    poll_period_ms: u64,
    stage: Stage,
    decided: Option<Decision>,
    /// Nothing below is followed.
    floor_epoch: u32,
    taken: Option<Role>,
    taken_set_epoch: u32,
    /// Writes are refused; true from the start.
    fenced: bool,
    ha_address: Option<(u32, SocketAddr)>,
    /// An epoch this node is named for but must not serve.
    unservable: Option<u32>,
    /// The role asked for could not be taken; there may be a newer decision nobody told us of.
    role_failed: bool,
    /// Fencing itself failed: it is tried again after a pause.
    fence_failed: bool,
    poll_at_ms: u64,
    retry_at_ms: u64,
    pause_ms: u64,
}

impl Replicas {
    /// A broker that just started: fenced, with what its identity files say and the newest epoch its
    /// store was told of.
    #[must_use]
    pub fn new(stored: Stored, address: &str, max_epoch: u32, poll_period_ms: u64) -> Self {
        let stage = match stored {
            Stored::Nothing => Stage::NoId,
            Stored::Claim(claim) => Stage::Claimed(claim),
            Stored::Identity(id) => Stage::Identified(id),
        };
        Self {
            address: address.to_owned(),
            poll_period_ms,
            stage,
            decided: None,
            floor_epoch: max_epoch,
            taken: None,
            taken_set_epoch: 0,
            fenced: true,
            ha_address: None,
            unservable: None,
            role_failed: false,
            fence_failed: false,
            poll_at_ms: 0,
            retry_at_ms: 0,
            pause_ms: FIRST_PAUSE_MS,
        }
    }

    /// The controller id, once it is granted.
    #[must_use]
    pub fn id(&self) -> Option<u64> {
        match &self.stage {
            Stage::Granted(id) | Stage::Identified(id) | Stage::Registered(id) => Some(*id),
            Stage::Reclaim(claim) => Some(claim.id),
            Stage::NoId | Stage::NewClaim(_) | Stage::Claimed(_) | Stage::Lost => None,
        }
    }

    /// The role in force; `None` while fenced.
    #[must_use]
    pub fn role(&self) -> Option<&Role> {
        self.taken.as_ref().filter(|_| !self.fenced)
    }

    /// The newest decision.
    #[must_use]
    pub fn decided(&self) -> Option<&Decision> {
        self.decided.as_ref()
    }

    /// Takes a decision from wherever it comes. True when it is news.
    pub fn news(&mut self, decision: Decision) -> bool {
        if decision.epoch < self.floor_epoch || decision.epoch == 0 {
            return false;
        }
        match &mut self.decided {
            Some(known) if known.epoch == decision.epoch => {
                // Within an epoch the master stays; its address and the set may change.
                let id = |master: &Option<(u64, String)>| master.as_ref().map(|(id, _)| *id);
                if id(&known.master) != id(&decision.master) {
                    return false;
                }
                let moved = known.master != decision.master;
                if moved {
                    known.master = decision.master;
                    self.ha_address = None;
                    if matches!(self.taken, Some(Role::Slave { .. })) {
                        self.taken = None;
                    }
                }
                let newer = known.set_epoch < decision.set_epoch;
                if newer {
                    known.members = decision.members;
                    known.set_epoch = decision.set_epoch;
                }
                moved || newer
            }
            _ => {
                self.floor_epoch = decision.epoch;
                self.decided = Some(decision);
                self.role_failed = false;
                self.forget_failures();
                true
            }
        }
    }

    /// Asks again who is master at the next opportunity.
    pub fn poll_soon(&mut self) {
        self.poll_at_ms = 0;
    }

    /// Whether a newer decision makes the outcome of `step` worthless, so that it may be given up.
    /// Never true of a step that changes something durable.
    #[must_use]
    pub fn is_outdated(&self, step: &Step) -> bool {
        match step {
            Step::AskHaAddress(address) => {
                let master = self
                    .decided
                    .as_ref()
                    .and_then(|decided| decided.master.as_ref());
                master.is_none_or(|(_, now)| now != address)
            }
            Step::Elect(_) | Step::Poll => self.role_step().is_some() && !self.role_failed,
            Step::Wait(_) => true,
            _ => false,
        }
    }

    /// What to do now.
    #[must_use]
    pub fn next(&self, now_ms: u64) -> Step {
        if let Some(step) = self.role_step() {
            // Fencing waits for nothing.
            let poll = self.role_failed && self.is_poll_due(now_ms);
            if (step == Step::Fence && !self.fence_failed) || (now_ms >= self.retry_at_ms && !poll)
            {
                return step;
            }
        }
        if now_ms < self.retry_at_ms {
            return Step::Wait(self.retry_at_ms);
        }
        match &self.stage {
            Stage::NoId => Step::AskNextId,
            Stage::NewClaim(claim) => Step::SaveClaim(claim.clone()),
            Stage::Claimed(claim) | Stage::Reclaim(claim) => Step::Apply(claim.clone()),
            Stage::Lost => Step::DropClaim,
            Stage::Granted(id) => Step::SaveIdentity(*id),
            Stage::Identified(id) => Step::Register(*id),
            Stage::Registered(id) if self.needs_election() => Step::Elect(*id),
            Stage::Registered(_) if self.is_poll_due(now_ms) => Step::Poll,
            Stage::Registered(_) => Step::Wait(self.poll_at_ms),
        }
    }

    fn is_poll_due(&self, now_ms: u64) -> bool {
        matches!(self.stage, Stage::Registered(_)) && now_ms >= self.poll_at_ms
    }

    fn needs_election(&self) -> bool {
        match &self.decided {
            None => true,
            Some(decided) => decided.master.is_none() || self.unservable == Some(decided.epoch),
        }
    }

    /// What the newest decision asks for and is not done yet.
    fn role_step(&self) -> Option<Step> {
        let decided = self.decided.as_ref()?;
        let Some((master_id, address)) = &decided.master else {
            return (!self.fenced).then_some(Step::Fence);
        };
        let epoch = decided.epoch;
        if self.unservable == Some(epoch) {
            return (!self.fenced).then_some(Step::Fence);
        }
        if self.id() == Some(*master_id) {
            let members = decided.members.clone();
            let set_epoch = decided.set_epoch;
            if self.fenced || self.taken != Some(Role::Master { epoch }) {
                return Some(Step::BecomeMaster {
                    epoch,
                    members,
                    set_epoch,
                });
            }
            let newer = set_epoch > self.taken_set_epoch;
            return newer.then_some(Step::AdoptSet { members, set_epoch });
        }
        // Without an id nobody can follow: the master could not tell who acknowledges.
        self.id()?;
        let master_id = *master_id;
        if !self.fenced && self.taken == Some(Role::Slave { epoch, master_id }) {
            return None;
        }
        // A former master stops at once, before it knows where to follow.
        if !self.fenced && matches!(self.taken, Some(Role::Master { .. })) {
            return Some(Step::Fence);
        }
        Some(match self.ha_address {
            Some((of, ha_address)) if of == epoch => Step::BecomeSlave {
                epoch,
                master_id,
                ha_address,
            },
            _ => Step::AskHaAddress(address.clone()),
        })
    }

    /// Takes the outcome of the last step.
    pub fn done(&mut self, step: &Step, outcome: Outcome, now_ms: u64, now_since_1970_ms: u64) {
        if let Outcome::Failed(failure) = outcome {
            self.failed(step, failure, now_ms, now_since_1970_ms);
            return;
        }
        // An address that was found says nothing about the role that could not be taken with it.
        if !matches!(step, Step::AskHaAddress(_)) || !self.role_failed {
            self.forget_failures();
        }
        match (step, outcome) {
            (Step::AskNextId, Outcome::NextId(id)) => {
                self.stage = Stage::NewClaim(self.claim(id, now_since_1970_ms));
            }
            (Step::SaveClaim(claim), _) => self.stage = Stage::Claimed(claim.clone()),
            (Step::Apply(claim), _) => self.stage = Stage::Granted(claim.id),
            (Step::SaveIdentity(id), _) => self.stage = Stage::Identified(*id),
            (Step::DropClaim, _) => self.stage = Stage::NoId,
            (Step::Register(id), Outcome::Decided(decision)) => {
                self.stage = Stage::Registered(*id);
                self.poll_at_ms = now_ms + self.poll_period_ms;
                if let Some(decision) = decision {
                    self.news(decision);
                }
            }
            (Step::Elect(_) | Step::Poll, Outcome::Decided(decision)) => {
                self.poll_at_ms = now_ms + self.poll_period_ms;
                self.take(decision, now_ms);
            }
            (Step::Fence, _) => {
                self.fenced = true;
                self.fence_failed = false;
            }
            (Step::AskHaAddress(_), Outcome::HaAddress(address)) => {
                let epoch = self.decided.as_ref().map(|decided| decided.epoch);
                self.ha_address = epoch.map(|epoch| (epoch, address));
            }
            (
                Step::BecomeMaster {
                    epoch, set_epoch, ..
                },
                _,
            ) => {
                self.taken = Some(Role::Master { epoch: *epoch });
                self.taken_set_epoch = *set_epoch;
                self.fenced = false;
            }
            (
                Step::BecomeSlave {
                    epoch, master_id, ..
                },
                _,
            ) => {
                self.taken = Some(Role::Slave {
                    epoch: *epoch,
                    master_id: *master_id,
                });
                self.fenced = false;
            }
            (Step::AdoptSet { set_epoch, .. }, _) => self.taken_set_epoch = *set_epoch,
            _ => {}
        }
    }

    /// Takes an answer; one that does not help towards a master counts as a failed attempt.
    fn take(&mut self, decision: Option<Decision>, now_ms: u64) {
        let is_news = decision.is_some_and(|decision| self.news(decision));
        if !is_news && self.needs_election() {
            self.pause(now_ms);
        }
    }

    fn failed(&mut self, step: &Step, failure: Failure, now_ms: u64, now_since_1970_ms: u64) {
        match (step, failure) {
            // An id that was granted once stays ours: the controller lost its data and takes the
            // set again once the broker with id 1 is back.
            (Step::Apply(claim), Failure::Code(code::CONTROLLER_BROKER_ID_INVALID))
                if self.stage == Stage::Claimed(claim.clone()) =>
            {
                self.stage = Stage::Lost;
            }
            (Step::Register(id), Failure::Code(code::CONTROLLER_BROKER_NEED_TO_BE_REGISTERED))
            | (Step::Elect(id), Failure::Code(code::CONTROLLER_BROKER_NEED_TO_BE_REGISTERED)) => {
                self.stage = Stage::Reclaim(self.claim(*id, now_since_1970_ms));
            }
            (Step::Poll, Failure::Code(code::CONTROLLER_BROKER_METADATA_NOT_EXIST)) => {
                if let Stage::Registered(id) = self.stage {
                    self.stage = Stage::Reclaim(self.claim(id, now_since_1970_ms));
                }
            }
            (Step::BecomeMaster { epoch, .. }, Failure::NeedsNewerEpoch) => {
                self.unservable = Some(*epoch);
            }
            (Step::Poll, _) => self.poll_at_ms = now_ms + self.poll_period_ms,
            (Step::BecomeSlave { .. }, _) => self.ha_address = None,
            _ => {}
        }
        self.fence_failed |= *step == Step::Fence;
        self.role_failed = match step {
            Step::AskHaAddress(_) | Step::BecomeSlave { .. } | Step::BecomeMaster { .. } => true,
            _ => self.role_failed,
        };
        self.pause(now_ms);
    }

    fn claim(&self, id: u64, now_since_1970_ms: u64) -> Claim {
        Claim {
            id,
            check_code: format!("{};{now_since_1970_ms}", self.address),
        }
    }

    fn pause(&mut self, now_ms: u64) {
        self.retry_at_ms = now_ms + self.pause_ms;
        self.pause_ms = (self.pause_ms * 2).min(LONGEST_PAUSE_MS);
    }

    fn forget_failures(&mut self) {
        self.retry_at_ms = 0;
        self.pause_ms = FIRST_PAUSE_MS;
    }
}

#[cfg(test)]
mod tests;
