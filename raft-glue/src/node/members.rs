//! Changes of the membership: what is refused before it is proposed, and what an applied change does.

use std::collections::{BTreeMap, BTreeSet};

use raft::StateRole;
use raft::eraftpb::Entry;
use tracing::warn;

use super::waiting::{MemberReply, Reply};
use super::{LEAVE_JOINT_TICKS, Node};
use crate::error::{AppendError, Error};
use crate::ledger::StateMachine;
use crate::raft_codec::{ConfStateRecord, Member, MemberChange, MemberStep, decode, encode};

/// Most members of a group, learners included.
pub(crate) const MEMBER_LIMIT: usize = 31;

/// Why these steps cannot be taken by a group with these voters and members, led by `leader`; `None`
/// when they can (pure).
pub(super) fn refusal(
    steps: &[MemberStep],
    voters: &BTreeSet<u64>,
    members: &BTreeMap<u64, Member>,
    leader: u64,
) -> Option<String> {
    let (mut voters, mut members) = (voters.clone(), members.clone());
    let mut seen = BTreeSet::new();
    if steps.is_empty() {
        return Some("no steps are given".to_owned());
    }
    for step in steps {
        let id = step.id();
        if id == 0 || !seen.insert(id) {
            return Some(format!("member {id} is named twice, or 0"));
        }
        let member = match step {
            MemberStep::AddVoter { member, .. } | MemberStep::AddLearner { member, .. } => member,
            MemberStep::Remove { .. } if id == leader => {
                let why = "it leads: hand the leadership to another member first";
                return Some(format!("member {id} cannot be removed now: {why}"));
            }
            MemberStep::Remove { .. } => {
                voters.remove(&id);
                if members.remove(&id).is_none() {
                    return Some(format!("{id} is no member"));
                }
                continue;
            }
        };
        if matches!(step, MemberStep::AddVoter { .. }) {
            voters.insert(id);
        } else if id == leader {
            return Some(format!("member {id} leads and cannot become a learner"));
        } else {
            voters.remove(&id);
        }
        members.insert(id, member.clone());
    }
    let addresses: BTreeSet<&str> = members.values().map(|m| m.address.as_str()).collect();
    if addresses.len() != members.len() {
        return Some("two members would have the same address".to_owned());
    }
    if voters.is_empty() || members.len() > MEMBER_LIMIT {
        return Some(format!(
            "{} voters of {} members: there must be a voter and at most {MEMBER_LIMIT} members",
            voters.len(),
            members.len()
        ));
    }
    None
}

impl<M: StateMachine> Node<M> {
    /// Changes the membership if this member leads; the answer comes when the change is in force.
    pub(crate) fn change_members(&mut self, change: &MemberChange, reply: MemberReply) {
        let reply = Reply::<M::Answer>::Members(reply);
        let raft = &self.raw.raft;
        if raft.state == StateRole::Leader {
            if self.is_joint || raft.has_pending_conf() {
                return reply.fail(AppendError::MembersBusy);
            }
            let voters = raft.prs().conf().voters().ids().iter().collect();
            let me = self.settings.id;
            if let Some(why) = refusal(&change.steps, &voters, &self.members, me) {
                return reply.fail(AppendError::MembersRefused { why });
            }
        }
        match encode(change) {
            Ok(context) => {
                let change = change.to_raft();
                self.propose(reply, |raw| raw.propose_conf_change(context, change));
            }
            Err(error) => reply.fail(AppendError::MembersRefused {
                why: error.to_string(),
            }),
        }
    }

    /// The leader leaves a joint membership by itself, but not if it was elected at a bad moment.
    pub(super) fn leave_joint(&mut self) {
        if self.is_joint && self.is_ready() && self.ticks.is_multiple_of(LEAVE_JOINT_TICKS) {
            // When it is on its way out already, this proposal comes to nothing.
            let _ = self
                .raw
                .propose_conf_change(Vec::new(), MemberChange::default().to_raft());
        }
    }

    /// A change that an earlier leader proposed may remove this one, which then leads nobody: the
    /// library would break an assertion at its next commit.
    fn step_down_if_removed(&mut self) {
        let raft = &mut self.raw.raft;
        if raft.state == StateRole::Leader && raft.prs().get(self.settings.id).is_none() {
            // Frames may be lost; a follower must have none of a leader's left to send.
            raft.msgs.clear();
            raft.become_follower(raft.term, raft::INVALID_ID);
        }
    }

    /// Why the change came to nothing, if it did: on every member alike.
    pub(super) fn apply_members(&mut self, entry: &Entry) -> Result<Option<String>, Error> {
        let change: MemberChange = if entry.context.is_empty() {
            MemberChange::default()
        } else {
            decode(&entry.context).map_err(|source| Error::Codec {
                what: "a member change".to_owned(),
                source,
            })?
        };
        let state = match self.raw.apply_conf_change(&change.to_raft()) {
            Ok(state) => state,
            Err(why) => {
                warn!(index = entry.index, %why, "a member change came to nothing");
                return Ok(Some(why.to_string()));
            }
        };
        for step in change.steps {
            match step {
                MemberStep::AddVoter { id, member } | MemberStep::AddLearner { id, member } => {
                    self.members.insert(id, member);
                }
                MemberStep::Remove { id } => {
                    self.members.remove(&id);
                    if self.peer_stores.remove(&id).is_some() {
                        self.unwritten.peer_stores = true;
                    }
                }
            }
        }
        self.is_joint = !state.voters_outgoing.is_empty();
        self.step_down_if_removed();
        let batch = self.unwritten.applied.get_or_insert_default();
        batch.conf_state = Some(ConfStateRecord::from(&state));
        batch.members = Some(self.members.clone());
        self.members_changed = true;
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(id: u64) -> Member {
        Member {
            name: format!("n{id}"),
            address: format!("h:{id}"),
        }
    }

    fn voter(id: u64) -> MemberStep {
        MemberStep::AddVoter {
            id,
            member: member(id),
        }
    }

    fn learner(id: u64) -> MemberStep {
        MemberStep::AddLearner {
            id,
            member: member(id),
        }
    }

    fn remove(id: u64) -> MemberStep {
        MemberStep::Remove { id }
    }

    #[test]
    fn steps_that_would_harm_the_group_are_refused_with_the_reason() {
        let voters = BTreeSet::from([1, 2, 3]);
        let members: BTreeMap<u64, Member> = (1..=4).map(|id| (id, member(id))).collect();
        let check = |steps: &[MemberStep]| refusal(steps, &voters, &members, 1);
        for good in [
            vec![voter(4), remove(2)],
            vec![learner(5)],
            vec![learner(2)],
            vec![remove(2), remove(3)],
            vec![remove(4)],
        ] {
            assert_eq!(check(&good), None, "{good:?}");
        }
        let taken = MemberStep::AddLearner {
            id: 9,
            member: member(2),
        };
        for (bad, why) in [
            (vec![], "no steps"),
            (vec![voter(4), remove(4)], "twice"),
            (vec![voter(0)], "or 0"),
            (vec![remove(1)], "it leads"),
            (vec![learner(1)], "leads"),
            (vec![remove(9)], "9 is no member"),
            (vec![taken], "same address"),
            ((5..40).map(learner).collect(), "at most 31"),
        ] {
            let refused = check(&bad).unwrap_or_else(|| panic!("{bad:?} is let through"));
            assert!(refused.contains(why), "{refused}");
        }
    }
}
