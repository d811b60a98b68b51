//! Raft's messages and records in our own coding.
//!
//! Invariants: the protobuf coding of the `raft` crate is never read, neither from a peer nor from
//! disk; membership changes travel as [`MemberChange`] in the context of their entry, and the data
//! of such an entry is left out. Every record begins with a version byte and is decoded whole: what
//! does not end where its bytes end is refused.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use bytes::Bytes;
use raft::eraftpb;
use serde::de::{DeserializeOwned, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The version byte before every record on disk and every frame between controllers.
const VERSION: u8 = 1;

/// Terms and indexes from here on are refused: nothing reaches them but a broken peer.
const NUMBER_LIMIT: u64 = 1 << 62;

/// Why bytes are not a record.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CodecError {
    /// Written by a version this one does not know.
    #[error("version {0} is unknown here: run the same version on all controllers")]
    Version(u8),
    /// Not a record of this kind.
    #[error("malformed: {0}")]
    Malformed(String),
}

/// Bytes that serialize as one run instead of one by one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Blob(pub(crate) Bytes);

impl Serialize for Blob {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for Blob {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Run;
        impl Visitor<'_> for Run {
            type Value = Blob;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("bytes")
            }

            fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Blob, E> {
                Ok(Blob(Bytes::copy_from_slice(bytes)))
            }
        }
        deserializer.deserialize_bytes(Run)
    }
}

pub(crate) fn encode<T: Serialize>(value: &T) -> Result<Vec<u8>, CodecError> {
    postcard::to_extend(value, vec![VERSION]).map_err(|e| CodecError::Malformed(e.to_string()))
}

pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, CodecError> {
    match bytes.split_first() {
        Some((&VERSION, rest)) => match postcard::take_from_bytes(rest) {
            Ok((value, [])) => Ok(value),
            Ok((_, extra)) => Err(CodecError::Malformed(format!(
                "{} bytes extra",
                extra.len()
            ))),
            Err(error) => Err(CodecError::Malformed(error.to_string())),
        },
        Some((&version, _)) => Err(CodecError::Version(version)),
        None => Err(CodecError::Malformed("no bytes".to_owned())),
    }
}

/// One member of a group of controllers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Its name in the settings, such as `n0`.
    pub name: String,
    /// `host:port` it is reached by.
    pub address: String,
}

/// One step of a membership change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MemberStep {
    /// A member with a vote; a learner becomes one.
    AddVoter {
        /// Its id.
        id: u64,
        /// Its name and address.
        member: Member,
    },
    /// A member without a vote.
    AddLearner {
        /// Its id.
        id: u64,
        /// Its name and address.
        member: Member,
    },
    /// No member any more.
    Remove {
        /// Its id.
        id: u64,
    },
}

impl MemberStep {
    /// The member it is about.
    #[must_use]
    pub fn id(&self) -> u64 {
        match self {
            Self::AddVoter { id, .. } | Self::AddLearner { id, .. } | Self::Remove { id } => *id,
        }
    }
}

/// A membership change; without steps it leaves a joint configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MemberChange {
    pub(crate) steps: Vec<MemberStep>,
}

impl MemberChange {
    pub(crate) fn to_raft(&self) -> eraftpb::ConfChangeV2 {
        let mut change = eraftpb::ConfChangeV2::default();
        for step in &self.steps {
            let mut single = eraftpb::ConfChangeSingle::default();
            let (kind, id) = match step {
                MemberStep::AddVoter { id, .. } => (eraftpb::ConfChangeType::AddNode, *id),
                MemberStep::AddLearner { id, .. } => (eraftpb::ConfChangeType::AddLearnerNode, *id),
                MemberStep::Remove { id } => (eraftpb::ConfChangeType::RemoveNode, *id),
            };
            single.set_change_type(kind);
            single.node_id = id;
            change.mut_changes().push(single);
        }
        change
    }
}

#[derive(Serialize, Deserialize)]
pub(crate) struct EntryRecord {
    is_member_change: bool,
    term: u64,
    index: u64,
    data: Blob,
    context: Blob,
}

impl From<&eraftpb::Entry> for EntryRecord {
    fn from(entry: &eraftpb::Entry) -> Self {
        let is_member_change = entry.get_entry_type() != eraftpb::EntryType::EntryNormal;
        let data = if is_member_change {
            Bytes::new()
        } else {
            entry.data.clone()
        };
        Self {
            is_member_change,
            term: entry.term,
            index: entry.index,
            data: Blob(data),
            context: Blob(entry.context.clone()),
        }
    }
}

impl From<EntryRecord> for eraftpb::Entry {
    fn from(record: EntryRecord) -> Self {
        let mut entry = Self::default();
        if record.is_member_change {
            entry.set_entry_type(eraftpb::EntryType::EntryConfChangeV2);
        }
        entry.term = record.term;
        entry.index = record.index;
        entry.data = record.data.0;
        entry.context = record.context.0;
        entry
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HardStateRecord {
    pub(crate) term: u64,
    pub(crate) vote: u64,
    pub(crate) commit: u64,
}

impl From<&eraftpb::HardState> for HardStateRecord {
    fn from(state: &eraftpb::HardState) -> Self {
        Self {
            term: state.term,
            vote: state.vote,
            commit: state.commit,
        }
    }
}

impl From<HardStateRecord> for eraftpb::HardState {
    fn from(record: HardStateRecord) -> Self {
        Self {
            term: record.term,
            vote: record.vote,
            commit: record.commit,
            ..Self::default()
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ConfStateRecord {
    pub(crate) voters: BTreeSet<u64>,
    pub(crate) learners: BTreeSet<u64>,
    pub(crate) voters_outgoing: BTreeSet<u64>,
    pub(crate) learners_next: BTreeSet<u64>,
    pub(crate) auto_leave: bool,
}

impl ConfStateRecord {
    /// What `raft` asserts of a configuration when it takes one over.
    fn check(&self) -> Result<(), CodecError> {
        let ids = [
            &self.voters,
            &self.learners,
            &self.voters_outgoing,
            &self.learners_next,
        ];
        let is_sound = !self.voters.is_empty()
            && ids.iter().all(|set| !set.contains(&0))
            && self.voters.is_disjoint(&self.learners)
            && self.voters_outgoing.is_disjoint(&self.learners)
            && self.learners_next.is_subset(&self.voters_outgoing)
            && self.learners_next.is_disjoint(&self.voters)
            && (!self.voters_outgoing.is_empty() || !self.auto_leave);
        if is_sound {
            Ok(())
        } else {
            Err(CodecError::Malformed(format!(
                "not a configuration: {self:?}"
            )))
        }
    }
}

impl From<&eraftpb::ConfState> for ConfStateRecord {
    fn from(state: &eraftpb::ConfState) -> Self {
        Self {
            voters: state.voters.iter().copied().collect(),
            learners: state.learners.iter().copied().collect(),
            voters_outgoing: state.voters_outgoing.iter().copied().collect(),
            learners_next: state.learners_next.iter().copied().collect(),
            auto_leave: state.auto_leave,
        }
    }
}

impl From<&ConfStateRecord> for eraftpb::ConfState {
    fn from(record: &ConfStateRecord) -> Self {
        Self {
            voters: record.voters.iter().copied().collect(),
            learners: record.learners.iter().copied().collect(),
            voters_outgoing: record.voters_outgoing.iter().copied().collect(),
            learners_next: record.learners_next.iter().copied().collect(),
            auto_leave: record.auto_leave,
            ..Self::default()
        }
    }
}

#[derive(Serialize, Deserialize)]
struct SnapshotRecord {
    index: u64,
    term: u64,
    conf_state: ConfStateRecord,
    data: Blob,
}

/// What the data of a snapshot are: who the members are, and the rows of the state machine.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SnapshotBody {
    pub(crate) members: BTreeMap<u64, Member>,
    pub(crate) rows: Vec<(Blob, Blob)>,
}

/// The kinds of message controllers send each other. Proposals and read requests are not among
/// them: those are made where the leader is.
#[derive(Clone, Copy, Serialize, Deserialize)]
enum Kind {
    Append,
    AppendResponse,
    Vote,
    VoteResponse,
    PreVote,
    PreVoteResponse,
    Snapshot,
    Heartbeat,
    HeartbeatResponse,
    TimeoutNow,
}

const KINDS: [(Kind, eraftpb::MessageType); 10] = {
    use eraftpb::MessageType as T;
    [
        (Kind::Append, T::MsgAppend),
        (Kind::AppendResponse, T::MsgAppendResponse),
        (Kind::Vote, T::MsgRequestVote),
        (Kind::VoteResponse, T::MsgRequestVoteResponse),
        (Kind::PreVote, T::MsgRequestPreVote),
        (Kind::PreVoteResponse, T::MsgRequestPreVoteResponse),
        (Kind::Snapshot, T::MsgSnapshot),
        (Kind::Heartbeat, T::MsgHeartbeat),
        (Kind::HeartbeatResponse, T::MsgHeartbeatResponse),
        (Kind::TimeoutNow, T::MsgTimeoutNow),
    ]
};

#[derive(Serialize, Deserialize)]
struct MessageRecord {
    kind: Kind,
    to: u64,
    from: u64,
    term: u64,
    log_term: u64,
    index: u64,
    entries: Vec<EntryRecord>,
    commit: u64,
    commit_term: u64,
    snapshot: Option<SnapshotRecord>,
    request_snapshot: u64,
    reject: bool,
    reject_hint: u64,
    context: Blob,
    priority: i64,
}

/// A message between controllers with the identity of its sender.
#[derive(Serialize, Deserialize)]
struct PeerRecord {
    group: String,
    /// The store of the sender: another one under the same id means that it lost what it knew.
    store: u64,
    message: MessageRecord,
}

/// A message that came from a peer, decoded and checked for what can be checked without state.
pub(crate) struct PeerMessage {
    pub(crate) group: String,
    pub(crate) store: u64,
    pub(crate) message: eraftpb::Message,
}

/// `None`: a kind that is not sent to peers.
pub(crate) fn encode_message(
    group: &str,
    store: u64,
    message: &eraftpb::Message,
) -> Result<Option<Vec<u8>>, CodecError> {
    let wanted = message.get_msg_type();
    let Some((kind, _)) = KINDS.iter().find(|(_, kind)| *kind == wanted) else {
        return Ok(None);
    };
    let snapshot = message.has_snapshot().then(|| {
        let snapshot = message.get_snapshot();
        let metadata = snapshot.get_metadata();
        SnapshotRecord {
            index: metadata.index,
            term: metadata.term,
            conf_state: metadata.get_conf_state().into(),
            data: Blob(snapshot.data.clone()),
        }
    });
    let record = MessageRecord {
        kind: *kind,
        to: message.to,
        from: message.from,
        term: message.term,
        log_term: message.log_term,
        index: message.index,
        entries: message.entries.iter().map(EntryRecord::from).collect(),
        commit: message.commit,
        commit_term: message.commit_term,
        snapshot,
        request_snapshot: message.request_snapshot,
        reject: message.reject,
        reject_hint: message.reject_hint,
        context: Blob(message.context.clone()),
        priority: message.priority,
    };
    encode(&PeerRecord {
        group: group.to_owned(),
        store,
        message: record,
    })
    .map(Some)
}

pub(crate) fn decode_message(bytes: &[u8]) -> Result<PeerMessage, CodecError> {
    let PeerRecord {
        group,
        store,
        message: record,
    } = decode(bytes)?;
    check_message(&record)?;
    let mut message = eraftpb::Message::default();
    if let Some((_, kind)) = KINDS.get(record.kind as usize) {
        message.set_msg_type(*kind);
    }
    message.to = record.to;
    message.from = record.from;
    message.term = record.term;
    message.log_term = record.log_term;
    message.index = record.index;
    let entries: Vec<eraftpb::Entry> = record.entries.into_iter().map(Into::into).collect();
    message.set_entries(entries.into());
    message.commit = record.commit;
    message.commit_term = record.commit_term;
    if let Some(record) = record.snapshot {
        let mut snapshot = eraftpb::Snapshot {
            data: record.data.0,
            ..eraftpb::Snapshot::default()
        };
        let metadata = snapshot.mut_metadata();
        metadata.index = record.index;
        metadata.term = record.term;
        metadata.set_conf_state((&record.conf_state).into());
        message.set_snapshot(snapshot);
    }
    message.request_snapshot = record.request_snapshot;
    message.reject = record.reject;
    message.reject_hint = record.reject_hint;
    message.context = record.context.0;
    message.priority = record.priority;
    Ok(PeerMessage {
        group,
        store,
        message,
    })
}

/// Refuses what would break an assertion inside `raft`.
fn check_message(record: &MessageRecord) -> Result<(), CodecError> {
    let bad = |why: &str| Err(CodecError::Malformed(why.to_owned()));
    if record.from == 0 || record.to == 0 {
        return bad("a peer id is 0");
    }
    let numbers = [
        record.term,
        record.log_term,
        record.index,
        record.commit,
        record.commit_term,
        record.reject_hint,
        record.request_snapshot,
    ];
    if record.term == 0 || numbers.iter().any(|number| *number >= NUMBER_LIMIT) {
        return bad("a term or an index is out of range");
    }
    let (mut index, mut term) = (record.index, record.log_term);
    for entry in &record.entries {
        if index + 1 != entry.index {
            return bad("entries are not consecutive");
        }
        if entry.term < term || entry.term > record.term || entry.term == 0 {
            return bad("terms of entries are not in order");
        }
        if entry.is_member_change && !entry.context.0.is_empty() {
            decode::<MemberChange>(&entry.context.0)?;
        }
        (index, term) = (entry.index, entry.term);
    }
    match (record.kind, &record.snapshot) {
        (Kind::Snapshot, Some(snapshot)) => {
            if snapshot.index == 0 || snapshot.term == 0 || snapshot.term > record.term {
                return bad("a snapshot without place");
            }
            decode::<SnapshotBody>(&snapshot.data.0)?;
            snapshot.conf_state.check()
        }
        (Kind::Snapshot, None) => bad("a snapshot message without snapshot"),
        (_, Some(_)) => bad("a snapshot in another message"),
        (_, None) => Ok(()),
    }
}

#[cfg(test)]
#[path = "raft_codec_tests.rs"]
mod tests;
