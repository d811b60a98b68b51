//! Which changes of members are let through. Pure.
//!
//! Invariants: a change that the group could not survive is refused; what a change asks for that is so
//! already needs no step.

use std::collections::{BTreeMap, BTreeSet};

use crate::admin::{
    BEHIND_LIMIT, ControllerRole, ControllerStatus, MEMBER_STEP_LIMIT, MemberRequest,
};
use crate::command::Code;
use crate::config::{check_name, member_id, parse_peer};
use crate::decider::Refusal;
use crate::ledger::{LedgerMetadata, MemberProgress};
use crate::raft_codec::{Member, MemberStep};

pub(super) type Progress = BTreeMap<u64, MemberProgress>;

/// The steps that lead from the membership as it is to the one asked for; what is so already needs
/// none.
pub(super) fn plan(
    asked: &[MemberRequest],
    at: &LedgerMetadata,
    progress: &Progress,
) -> Result<Vec<MemberStep>, Refusal> {
    if asked.is_empty() || asked.len() > MEMBER_STEP_LIMIT {
        let count = asked.len();
        return Err(refused(format!(
            "{count} steps: 1 to {MEMBER_STEP_LIMIT} make a change"
        )));
    }
    if at.is_joint {
        return Err(busy());
    }
    let mut voters: BTreeSet<u64> = at.members.keys().copied().collect();
    voters.retain(|id| !at.learners.contains(id));
    let before = voters.clone();
    let mut steps = Vec::new();
    for request in asked {
        match request {
            MemberRequest::AddLearner { name, address } => {
                steps.extend(add(name, address, at)?);
            }
            MemberRequest::Promote { id } => {
                steps.extend(promote(*id, at, progress)?);
                voters.insert(*id);
            }
            MemberRequest::Remove { id } => {
                known(*id, at)?;
                voters.remove(id);
                steps.push(MemberStep::Remove { id: *id });
            }
        }
    }
    if voters.is_empty() {
        return Err(refused(
            "the last member with a vote cannot be removed: add another one first",
        ));
    }
    if before.contains(&at.id) && !voters.contains(&at.id) {
        return Err(refused(format!(
            "{} leads: hand the leadership to another member first (epochlog controller transfer)",
            shown(at.id, at)
        )));
    }
    if voters != before {
        majority(&voters, at, progress)?;
    }
    Ok(steps)
}

/// A group in which most members are dead decides nothing, not even the way back.
fn majority(
    voters: &BTreeSet<u64>,
    at: &LedgerMetadata,
    progress: &Progress,
) -> Result<(), Refusal> {
    let answers = |id: &&u64| **id == at.id || progress.get(id).is_some_and(|it| it.is_active);
    let live = voters.iter().filter(answers).count();
    if live > voters.len() / 2 {
        return Ok(());
    }
    let silent: Vec<String> = voters
        .iter()
        .filter(|id| !answers(id))
        .map(|id| shown(*id, at))
        .collect();
    Err(refused(format!(
        "of the {} members that would have a vote only {live} answer, which is no majority: the \
         group would stand still. Remove or replace those that are silent first: {}",
        voters.len(),
        silent.join(", ")
    )))
}

fn add(name: &str, address: &str, at: &LedgerMetadata) -> Result<Option<MemberStep>, Refusal> {
    let member = check_name(name)
        .and_then(|()| parse_peer(&format!("{name}-{address}")))
        .map_err(|why| refused(format!("{name} at {address}: {why}")))?;
    let id = member_id(name);
    if let Some(known) = at.members.get(&id) {
        if *known == member {
            return Ok(None);
        }
        return Err(refused(format!(
            "{} is a member already: a new controller needs a name that was never used",
            shown(id, at)
        )));
    }
    if let Some((other, _)) = at.members.iter().find(|(_, it)| it.address == address) {
        return Err(refused(format!(
            "{address} is the address of {} already",
            shown(*other, at)
        )));
    }
    Ok(Some(MemberStep::AddLearner { id, member }))
}

fn promote(
    id: u64,
    at: &LedgerMetadata,
    progress: &Progress,
) -> Result<Option<MemberStep>, Refusal> {
    let member = known(id, at)?;
    if !at.learners.contains(&id) {
        return Ok(None);
    }
    let state = progress.get(&id);
    let behind = state.map_or(at.last, |it| at.last.saturating_sub(it.matched));
    if !state.is_some_and(|it| it.is_active && it.matched > 0) {
        return Err(refused(format!(
            "{} does not answer, or has nothing yet: it gets a vote when it runs and has caught up",
            shown(id, at)
        )));
    }
    if behind >= BEHIND_LIMIT {
        return Err(refused(format!(
            "{} is {behind} entries behind and gets a vote when it is fewer than {BEHIND_LIMIT}",
            shown(id, at)
        )));
    }
    Ok(Some(MemberStep::AddVoter {
        id,
        member: member.clone(),
    }))
}

pub(super) fn known(id: u64, at: &LedgerMetadata) -> Result<&Member, Refusal> {
    at.members.get(&id).ok_or_else(|| {
        let all: Vec<String> = at.members.keys().map(|id| shown(*id, at)).collect();
        refused(format!("{id} is no member: there are {}", all.join(", ")))
    })
}

/// `n1 (id 2 at host:port)`.
fn shown(id: u64, at: &LedgerMetadata) -> String {
    at.members.get(&id).map_or_else(
        || format!("id {id}"),
        |it| format!("{} (id {id} at {})", it.name, it.address),
    )
}

/// Whether the controller that stands as `found` may be added as `member`, with this id, to `group`, which
/// the controller `leader` (id and name) leads.
pub(super) fn fits(
    found: &ControllerStatus,
    id: u64,
    member: &Member,
    group: &str,
    leader: (u64, &str),
) -> Result<(), Refusal> {
    let Member { name, address } = member;
    if found.group != group {
        return Err(refused(format!(
            "{address} is a controller of group {}, not of {group}: correct controllerDLegerGroup",
            found.group
        )));
    }
    if found.id != id {
        return Err(refused(format!(
            "{address} is {}, not {name}: correct the name or controllerDLegerSelfId",
            found.name
        )));
    }
    if found.role != ControllerRole::Joining {
        return Err(refused(format!(
            "{name} at {address} has a group already: start it with controllerJoin=true and an \
             empty controllerStorePath"
        )));
    }
    let (leader_id, leader_name) = leader;
    if !found.members.iter().any(|it| it.id == leader_id) {
        return Err(refused(format!(
            "{name} does not know {leader_name}, which leads: name the present members and itself in its \
             controllerDLegerPeers, and start it with an empty controllerStorePath"
        )));
    }
    Ok(())
}

pub(super) fn busy() -> Refusal {
    let why = "another change of members is under way: ask again when it is in force";
    Refusal::new(Code::SystemBusy, why)
}

pub(super) fn refused(why: impl Into<String>) -> Refusal {
    Refusal::new(Code::InvalidRequest, why)
}
