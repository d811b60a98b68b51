//! Where a node stands, and which messages it does not take (pure).

use std::collections::BTreeMap;

use raft::eraftpb::{Message, MessageType};
use raft::{ProgressState, StateRole};

use super::Node;
use crate::ledger::{LedgerMetadata, MemberProgress, Role, StateMachine};

impl<M: StateMachine> Node<M> {
    /// Why a message is not taken, if it is not.
    pub(super) fn refusal(&self, group: &str, store: u64, message: &Message) -> Option<String> {
        if group != self.settings.group {
            return Some(format!(
                "it is of group {group}, this one of {}",
                self.settings.group
            ));
        }
        if message.to != self.settings.id {
            return Some(format!("it is for member {}, not for this one", message.to));
        }
        if self
            .peer_stores
            .get(&message.from)
            .is_some_and(|known| *known != store)
        {
            return Some(
                "its store is not the one it had before: a member that lost its store must be \
                 replaced by a new one"
                    .to_owned(),
            );
        }
        let log = &self.raw.raft.raft_log;
        let is_current = message.term >= self.raw.raft.term;
        match message.get_msg_type() {
            MessageType::MsgHeartbeat if is_current && message.commit > log.last_index() => {
                Some(format!(
                    "it believes that this member holds entry {}, but its log ends at {}: the \
                     store of this member was lost or put back to an older one; replace it",
                    message.commit,
                    log.last_index()
                ))
            }
            MessageType::MsgAppendResponse
                if !message.reject && message.index > log.last_index() =>
            {
                Some(format!(
                    "it acknowledges entry {}, which is not there",
                    message.index
                ))
            }
            _ => None,
        }
    }

    /// A rejection of what its sender has acknowledged since. It was late or doubled, and the library
    /// would begin again behind the acknowledgement (tikv/raft-rs#555).
    pub(super) fn is_late_rejection(&self, message: &Message) -> bool {
        let raft = &self.raw.raft;
        raft.state == StateRole::Leader
            && message.get_msg_type() == MessageType::MsgAppendResponse
            && message.reject
            && message.term == raft.term
            && raft
                .prs()
                .get(message.from)
                .is_some_and(|progress| message.index <= progress.matched)
    }

    /// See [`LedgerMetadata`].
    pub(crate) fn metadata(&self) -> LedgerMetadata {
        let raft = &self.raw.raft;
        let role = match raft.state {
            StateRole::Leader => Role::Leader,
            StateRole::Candidate | StateRole::PreCandidate => Role::Candidate,
            StateRole::Follower if self.is_learner() => Role::Learner,
            StateRole::Follower => Role::Follower,
        };
        LedgerMetadata {
            id: self.settings.id,
            role,
            is_ready: self.is_ready(),
            leader: self.leader(),
            term: raft.term,
            first: self.store.range().0 + 1,
            committed: raft.raft_log.committed,
            applied: self.applied,
            last: raft.raft_log.last_index(),
            members: self.members.clone(),
            learners: raft.prs().conf().learners().iter().copied().collect(),
            is_joint: self.is_joint,
            failure: None,
        }
    }

    /// How far the other members are, if this one leads.
    pub(crate) fn progress(&self) -> Option<BTreeMap<u64, MemberProgress>> {
        let raft = &self.raw.raft;
        (raft.state == StateRole::Leader).then(|| {
            raft.prs()
                .iter()
                .filter(|(id, _)| **id != self.settings.id)
                .map(|(id, progress)| {
                    let progress = MemberProgress {
                        matched: progress.matched,
                        is_active: progress.recent_active,
                        needs_snapshot: progress.state == ProgressState::Snapshot,
                    };
                    (*id, progress)
                })
                .collect()
        })
    }

    fn is_learner(&self) -> bool {
        self.raw
            .raft
            .prs()
            .conf()
            .learners()
            .contains(&self.settings.id)
    }

    pub(super) fn leader(&self) -> Option<u64> {
        Some(self.raw.raft.leader_id).filter(|id| *id != raft::INVALID_ID)
    }

    /// Leads, and has applied an entry of its own term: nothing older is unknown to it.
    pub(super) fn is_ready(&self) -> bool {
        self.raw.raft.state == StateRole::Leader && self.applied_term == self.raw.raft.term
    }
}
