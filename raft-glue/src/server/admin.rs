//! What operators ask: how this controller stands (30101), another membership (30102), another
//! leader (30103).
//!
//! Invariants: a change that the group could not survive is refused before it is proposed; what a
//! change asks for that is so already is done, so that a request may be sent again.

mod plan;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;

use super::{Outcome, malformed};
use crate::admin::{
    BROKER_STATUS_LIMIT, BrokerStatus, ControllerRole, ControllerStatus, MemberLag, MemberStatus,
    MembersRequest, SET_STATUS_LIMIT, SetStatus, TransferRequest,
};
use crate::command::Code;
use crate::decider::{Decider, Refusal};
use crate::error::{AppendError, TransferError};
use crate::group::BrokerGroup;
use crate::ledger::{LedgerMetadata, Role};
use crate::liveness::Liveness;
use crate::raft_codec::{Member, MemberStep};
use crate::remoting::{RemotingCommand, from_json, request_code};
use plan::{Progress, busy, fits, known, plan, refused};

/// How long a member, or a controller that is to be one, may take to answer.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

pub(super) async fn status(decider: &Arc<Decider>, request: &RemotingCommand) -> Outcome {
    let progress = decider.ledger.progress().await;
    let status = status_now(decider, progress.as_ref());
    // Plain values under text keys always serialize.
    let body = serde_json::to_vec(&status).unwrap_or_default();
    Ok(request.answer(Code::Success.value()).with_body(body))
}

fn status_now(decider: &Decider, progress: Option<&Progress>) -> ControllerStatus {
    let at = decider.metadata();
    let role = match at.role {
        _ if !at.members.contains_key(&at.id) => ControllerRole::Joining,
        Role::Leader => ControllerRole::Leader,
        Role::Follower => ControllerRole::Follower,
        Role::Candidate => ControllerRole::Candidate,
        Role::Learner => ControllerRole::Learner,
    };
    let (sets, sets_left_out) = sets(decider, at.is_ready);
    ControllerStatus {
        group: decider.config.group.clone(),
        id: at.id,
        name: decider.config.self_id.clone(),
        role,
        is_ready: at.is_ready,
        leader: at.leader,
        leader_address: decider.leader_address(),
        term: at.term,
        first: at.first,
        committed: at.committed,
        applied: at.applied,
        last: at.last,
        is_joint: at.is_joint,
        preferred_leaders: decider.config.preferred_leaders.iter().cloned().collect(),
        members: members(decider, &at, progress),
        sets,
        sets_left_out,
    }
}

fn members(
    decider: &Decider,
    at: &LedgerMetadata,
    progress: Option<&Progress>,
) -> Vec<MemberStatus> {
    let lag = |id: &u64| {
        let progress = progress?;
        if *id == at.id {
            return Some(MemberLag {
                matched: at.last,
                behind: 0,
                is_active: true,
                needs_snapshot: false,
            });
        }
        progress.get(id).map(|it| MemberLag {
            matched: it.matched,
            behind: at.last.saturating_sub(it.matched),
            is_active: it.is_active,
            needs_snapshot: it.needs_snapshot,
        })
    };
    let show = |(id, member): (&u64, &Member)| MemberStatus {
        id: *id,
        name: member.name.clone(),
        address: address_of(decider, *id, member),
        is_voter: !at.learners.contains(id),
        progress: lag(id),
    };
    at.members.iter().map(show).collect()
}

fn sets(decider: &Decider, leads: bool) -> (Vec<SetStatus>, usize) {
    decider.state(|state| {
        decider.liveness(|liveness, now| {
            let mut room = Room::default();
            let mut shown: Vec<SetStatus> = Vec::new();
            let mut left_out = 0;
            for (broker, group) in state.groups() {
                if room.take(broker, group) {
                    shown.push(set(liveness, now, broker, group, leads));
                } else {
                    left_out += 1;
                }
            }
            (shown, left_out)
        })
    })
}

/// What is left of an answer that fits a frame, however its texts are escaped.
struct Room {
    sets: usize,
    brokers: usize,
    text_len: usize,
}

impl Default for Room {
    fn default() -> Self {
        Self {
            sets: SET_STATUS_LIMIT,
            brokers: BROKER_STATUS_LIMIT,
            text_len: 1 << 20,
        }
    }
}

impl Room {
    /// Takes room for a set, if there is enough.
    fn take(&mut self, broker: &str, group: &BrokerGroup) -> bool {
        let addresses: usize = group.replicas.values().map(|it| it.address.len()).sum();
        let text_len = addresses + broker.len() + group.cluster.len();
        let left = (
            self.sets.checked_sub(1),
            self.brokers.checked_sub(group.replicas.len()),
            self.text_len.checked_sub(text_len),
        );
        let (Some(sets), Some(brokers), Some(text_len)) = left else {
            return false;
        };
        *self = Self {
            sets,
            brokers,
            text_len,
        };
        true
    }
}

fn set(liveness: &Liveness, now: u64, broker: &str, group: &BrokerGroup, leads: bool) -> SetStatus {
    let over_ms = liveness.lease_over_ms(broker, group);
    let lease_ms = (leads && group.master.is_some() && over_ms != u64::MAX)
        .then(|| over_ms.saturating_sub(now));
    let brokers = group.replicas.iter().map(|(id, replica)| {
        let heard = liveness.heard(now, &group.cluster, broker, *id);
        BrokerStatus {
            id: *id,
            address: replica.address.clone(),
            is_alive: heard.is_some_and(|it| it.is_alive),
            heartbeat_age_ms: heard.map(|it| it.age_ms),
            epoch: heard.map(|it| it.beat.report.epoch),
            max_offset: heard.map(|it| it.beat.report.max_offset),
            confirm_offset: heard.map(|it| it.beat.confirm_offset),
        }
    });
    SetStatus {
        cluster: group.cluster.clone(),
        broker: broker.to_owned(),
        master: group.master,
        master_epoch: group.master_epoch,
        is_confirmed: group.master.is_some() && group.former_set.is_empty(),
        sync_state_set: group.sync_state_set.keys().copied().collect(),
        sync_state_set_epoch: group.sync_state_set_epoch,
        lease_ms,
        brokers: brokers.collect(),
    }
}

pub(super) async fn change_members(decider: &Arc<Decider>, request: &RemotingCommand) -> Outcome {
    let asked: MembersRequest = from_json(&request.body)
        .map_err(|error| malformed(&format!("the body is no change of members: {error}")))?;
    let progress = who_answers(decider).await?;
    let steps = plan(&asked.steps, &decider.metadata(), &progress)?;
    for step in &steps {
        if let MemberStep::AddLearner { id, member } = step {
            probe(decider, *id, member).await?;
        }
    }
    if steps.is_empty() {
        // All of it is in force; a majority says that this one knows.
        decider.barrier().await?;
    } else {
        tracing::info!(?steps, "the members are changed on request");
        let changed = decider.ledger.change_members(steps).await;
        changed.map_err(|error| member_refusal(decider, &error))?;
    }
    Ok(request.answer(Code::Success.value()))
}

/// How far the members are, and which of them answer just now: that one was heard of within an
/// election timeout says nothing of one that died since.
async fn who_answers(decider: &Arc<Decider>) -> Result<Progress, Refusal> {
    let progress = decider.ledger.progress().await;
    let progress = progress.filter(|_| decider.is_leader());
    let mut progress = progress.ok_or_else(|| decider.not_leader())?;
    let at = decider.metadata();
    let mut asked = JoinSet::new();
    for (&id, member) in &at.members {
        if id != at.id {
            let address = address_of(decider, id, member);
            let client = decider.notifier.client.clone();
            let request = RemotingCommand::request(request_code::CONTROLLER_GET_METADATA_INFO);
            asked.spawn(async move {
                let answer = client.request(&address, request, PROBE_TIMEOUT).await;
                (id, answer.is_ok())
            });
        }
    }
    let answers: BTreeMap<u64, bool> = asked.join_all().await.into_iter().collect();
    for (id, it) in &mut progress {
        it.is_active = answers.get(id).copied().unwrap_or(false);
    }
    Ok(progress)
}

/// Where this one reaches a member: its own settings come before what the group remembers.
fn address_of(decider: &Decider, id: u64, member: &Member) -> String {
    let configured = decider.config.peers.members().get(&id);
    configured.unwrap_or(member).address.clone()
}

/// The controller that is to be added must be there, be the one it is taken for, and be new.
async fn probe(decider: &Decider, id: u64, member: &Member) -> Result<(), Refusal> {
    let Member { name, address } = member;
    let request = RemotingCommand::request(request_code::CONTROLLER_STATUS);
    let answer = decider
        .notifier
        .client
        .request(address, request, PROBE_TIMEOUT)
        .await
        .map_err(|error| {
            refused(format!(
                "{name} does not answer ({error}): start it with controllerJoin=true first"
            ))
        })?;
    if answer.code != Code::Success.value() {
        let why = answer.remark.unwrap_or_default();
        return Err(refused(format!(
            "what listens at {address} is no controller of this version: code {}, {why}",
            answer.code
        )));
    }
    let found: ControllerStatus = from_json(&answer.body)
        .map_err(|error| refused(format!("{address} answers unreadably: {error}")))?;
    let (me, config) = (decider.metadata().id, &decider.config);
    fits(&found, id, member, &config.group, (me, &config.self_id))
}

pub(super) async fn transfer(decider: &Arc<Decider>, request: &RemotingCommand) -> Outcome {
    let asked: TransferRequest = from_json(&request.body)
        .map_err(|error| malformed(&format!("the body names no member: {error}")))?;
    let at = decider.metadata();
    if at.role == Role::Leader {
        known(asked.to, &at)?;
    }
    let handed = decider.ledger.transfer_leader(asked.to).await;
    handed.map_err(|error| {
        let code = match error {
            TransferError::NotLeader { .. } => return decider.not_leader(),
            TransferError::UnderWay => Code::SystemBusy,
            TransferError::NotAVoter { .. } | TransferError::Behind { .. } => Code::InvalidRequest,
            TransferError::NotTaken { .. } | TransferError::Stopped => Code::SystemError,
        };
        Refusal::new(code, error.to_string())
    })?;
    Ok(request.answer(Code::Success.value()))
}

fn member_refusal(decider: &Decider, error: &AppendError) -> Refusal {
    match error {
        AppendError::NotLeader { .. } => decider.not_leader(),
        AppendError::MembersBusy => busy(),
        AppendError::Full => Refusal::new(Code::SystemBusy, error.to_string()),
        _ if error.is_refusal() => refused(error.to_string()),
        _ => Refusal::new(
            Code::SystemError,
            format!("{error}; epochlog controller status shows whether the change is in force"),
        ),
    }
}

#[cfg(test)]
#[path = "admin_tests.rs"]
mod tests;
