//! What can go wrong in a ledger and a controller.

use std::path::PathBuf;

use crate::raft_codec::CodecError;

/// Why a ledger or a controller does not start, or stopped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The store file cannot be opened, read or written. After a failed write nothing is sent or
    /// answered any more: start the controller again when the disk is well.
    #[error("{path}: {source}")]
    Store {
        /// The store file.
        path: PathBuf,
        /// What the store says.
        source: Box<redb::Error>,
    },
    /// The store file holds something it must not.
    #[error("{path}: {why}")]
    Damaged {
        /// The store file.
        path: PathBuf,
        /// What is wrong and what to do.
        why: String,
    },
    /// The store file belongs to another controller.
    #[error("{path} belongs to {found}, not to {wanted}: check controllerStorePath")]
    WrongStore {
        /// The store file.
        path: PathBuf,
        /// Whose it is.
        found: String,
        /// Who opened it.
        wanted: String,
    },
    /// A record cannot be written or read.
    #[error("{what}: {source}")]
    Codec {
        /// Which record.
        what: String,
        /// What is wrong with it.
        source: CodecError,
    },
    /// A setting is missing, malformed or at odds with another.
    #[error("{key}: {why}")]
    Setting {
        /// The key of the setting.
        key: &'static str,
        /// What is wrong with its value.
        why: String,
    },
    /// The consensus library refused.
    #[error("raft: {0}")]
    Raft(String),
    /// Input or output failed.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// What the system says.
        source: std::io::Error,
    },
    /// The ledger's thread ended by a broken assertion.
    #[error("the ledger stopped: {0}")]
    Stopped(String),
}

/// Why an append has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AppendError {
    /// This member does not lead; nothing was appended.
    #[error("not the leader")]
    NotLeader {
        /// Who leads, where it is known.
        leader: Option<u64>,
    },
    /// Too much waits already; nothing was appended.
    #[error("too many appends wait already")]
    Full,
    /// The payload is over the limit; nothing was appended.
    #[error("a payload of {len} bytes is over the limit of {limit}")]
    TooLong {
        /// Its length in bytes.
        len: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// This member stopped leading after the append began: it may or may not be committed.
    #[error("leadership was lost: the append may or may not be committed")]
    LostLeadership,
    /// Not committed in time: it may still be.
    #[error("not committed in time: it may still be")]
    Timeout,
    /// Another entry was committed in its place: it is not in the log.
    #[error("another leader's entry took its place")]
    Replaced,
    /// A change of members is under way already; nothing was changed.
    #[error("another change of members is under way")]
    MembersBusy,
    /// The change of members cannot be made; nothing was changed.
    #[error("the members cannot be changed so: {why}")]
    MembersRefused {
        /// What is wrong with it.
        why: String,
    },
    /// The ledger stopped: an append under way may or may not be committed.
    #[error("the ledger stopped")]
    Stopped,
}

impl AppendError {
    /// Nothing was or will be appended; otherwise it may have been, or may still be.
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        match self {
            Self::NotLeader { .. }
            | Self::Full
            | Self::TooLong { .. }
            | Self::Replaced
            | Self::MembersBusy
            | Self::MembersRefused { .. } => true,
            Self::LostLeadership | Self::Timeout | Self::Stopped => false,
        }
    }
}

/// Why the leadership was not handed over.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TransferError {
    /// This member does not lead.
    #[error("not the leader")]
    NotLeader {
        /// Who leads, where it is known.
        leader: Option<u64>,
    },
    /// It is no member, or one without a vote.
    #[error("{id} is no member with a vote")]
    NotAVoter {
        /// The member named.
        id: u64,
    },
    /// It would hold the group up until it caught up.
    #[error("member {id} is {entries} entries behind: fewer than {limit} are needed")]
    Behind {
        /// The member named.
        id: u64,
        /// Entries it lacks.
        entries: u64,
        /// One more than it may lack.
        limit: u64,
    },
    /// Another transfer is under way.
    #[error("another transfer is under way")]
    UnderWay,
    /// It did not take over in time.
    #[error("member {id} did not take over")]
    NotTaken {
        /// The member named.
        id: u64,
    },
    /// The ledger stopped, or too much waits for its thread.
    #[error("the ledger stopped or is too busy")]
    Stopped,
}

/// Why a read barrier was not reached.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// This member does not lead, or has not yet applied an entry of its own term.
    #[error("not the leader")]
    NotLeader {
        /// Who leads, where it is known.
        leader: Option<u64>,
    },
    /// Too many reads wait already.
    #[error("too many reads wait already")]
    Full,
    /// No majority confirmed the leadership in time.
    #[error("no majority answered in time")]
    Timeout,
    /// The ledger stopped.
    #[error("the ledger stopped")]
    Stopped,
}
