//! What is decided, as values: the commands the controllers replicate and the answers they give.
//!
//! A command carries everything its decision needs: the request, and the liveness facts the leader
//! knew when it proposed (who is alive, what each reported). Applying it reads no clock and no
//! heartbeat table, so every controller reaches the same state and the same answer.
//!
//! Coding: one version byte, then postcard. Fields are only ever added by a new version.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

/// The version byte before every encoded command.
const COMMAND_VERSION: u8 = 2;

/// Longest encoded command, in bytes. A longer one is refused before it is proposed and when read.
pub const COMMAND_LIMIT: usize = 1 << 20;

/// Longest cluster or broker name, address or check code, in bytes.
pub const TEXT_LIMIT: usize = 1024;

/// Largest broker id: one below the largest Java `long`, so that the next id can be named.
pub const BROKER_ID_MAX: u64 = i64::MAX as u64 - 1;

/// Answer codes of the controller (RocketMQ: ResponseCode, ControllerResponse).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum Code {
    /// Done.
    Success = 0,
    /// The handler could not do it; the remark says why.
    SystemError = 1,
    /// Too much is queued; nothing was done.
    SystemBusy = 2,
    /// The request code is not one this endpoint serves.
    RequestCodeNotSupported = 3,
    /// The request names something that may not be changed by a request.
    NoPermission = 16,
    /// Alter: the sender's master epoch is not the current one.
    FencedMasterEpoch = 2000,
    /// Alter: the sender's set epoch is not the current one.
    FencedSyncStateSetEpoch = 2001,
    /// Alter: there is no master, or the sender is not it.
    InvalidMaster = 2002,
    /// Alter: an id of the new set is not registered.
    InvalidReplicas = 2003,
    /// Elect without a broker id: nobody can be elected.
    MasterNotAvailable = 2004,
    /// A field that must be there is missing or malformed.
    InvalidRequest = 2005,
    /// Alter: an id of the new set has no live heartbeat.
    BrokerNotAlive = 2006,
    /// This controller is not the leader; the remark is the leader's address where it is known.
    NotLeader = 2007,
    /// Get replica info: the broker set is unknown.
    BrokerMetadataNotExist = 2008,
    /// Clean: still alive, malformed ids, or an unknown set.
    InvalidCleanBrokerMetadata = 2009,
    /// Elect, register: the set or the id is unknown.
    BrokerNeedToBeRegistered = 2010,
    /// Elect: the old master stays; its data come with the answer.
    MasterStillExist = 2011,
    /// Elect with a broker id: nobody can be elected; nothing changed.
    ElectMasterFailed = 2012,
    /// Alter: unknown set, same set as before, or a set without its master.
    AlterSyncStateSetFailed = 2013,
    /// Apply id: taken under another check code, or the first id of a set is not 1.
    BrokerIdInvalid = 2014,
}

impl Code {
    /// The number on the wire.
    #[must_use]
    pub const fn value(self) -> i32 {
        self as i32
    }
}

/// What one live broker reported in its newest heartbeat.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Last epoch in its epoch file; 0 or less where it has none.
    pub epoch: i32,
    /// Newest epoch it promised to keep to; 0 or less where it reports none.
    pub max_epoch: i32,
    /// End of its commit log, in bytes.
    pub max_offset: i64,
    /// Smaller is preferred among equals.
    pub priority: i32,
    /// Its count of opens, where it reports one (a Java broker does not).
    pub incarnation: Option<u64>,
    /// It could not prove at this open that its log is what it was.
    pub unclean: bool,
}

/// Live brokers of one set, by id, as the proposing leader knew them.
pub type Reports = BTreeMap<u64, Report>;

/// One decision to replicate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Command {
    /// Take a broker id for good (RocketMQ request 1013).
    ApplyBrokerId(ApplyBrokerId),
    /// Announce a start: address and incarnation (1003).
    RegisterBroker(RegisterBroker),
    /// A heartbeat came from another address than the registered one.
    UpdateAddress(UpdateAddress),
    /// Decide who is master (1002, or the leader's own scan).
    ElectMaster(ElectMaster),
    /// Change who counts as in sync (1001).
    AlterSyncStateSet(AlterSyncStateSet),
    /// Forget brokers (1011).
    CleanBrokerData(CleanBrokerData),
    /// Members of a set that restarted: vouch for them, or take them out.
    ReviewMembers(ReviewMembers),
    /// The elected master serves its epoch.
    ConfirmMaster(ConfirmMaster),
}

/// See [`Command::ApplyBrokerId`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApplyBrokerId {
    /// Cluster the set belongs to.
    pub cluster: String,
    /// Name of the broker set.
    pub broker: String,
    /// The id asked for.
    pub id: u64,
    /// `address;random`: the same code asks for the same id again.
    pub check_code: String,
}

/// See [`Command::RegisterBroker`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegisterBroker {
    /// Cluster the set belongs to.
    pub cluster: String,
    /// Name of the broker set.
    pub broker: String,
    /// The registered id.
    pub id: u64,
    /// Address clients and replicas reach it by.
    pub address: String,
    /// Its count of opens, where it sends one.
    pub incarnation: Option<u64>,
    /// It could not prove at this open that its log is what it was.
    pub unclean: bool,
    /// Who is alive.
    pub alive: BTreeSet<u64>,
}

/// See [`Command::UpdateAddress`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpdateAddress {
    /// Name of the broker set.
    pub broker: String,
    /// The registered id.
    pub id: u64,
    /// Its present address.
    pub address: String,
}

/// See [`Command::ElectMaster`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ElectMaster {
    /// Name of the broker set.
    pub broker: String,
    /// Who asks; absent when the controller or an operator without a wish does.
    pub broker_id: Option<u64>,
    /// Elect `broker_id` or nobody.
    pub designate: bool,
    /// May a replica outside the set be elected when nobody in it can.
    pub allow_unclean: bool,
    /// Decide only while this is the master epoch (the leader's own scan).
    pub expected_master_epoch: Option<u32>,
    /// Who is alive and what they reported.
    pub alive: Reports,
}

/// See [`Command::AlterSyncStateSet`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AlterSyncStateSet {
    /// Name of the broker set.
    pub broker: String,
    /// The sender, which must be the master.
    pub master_id: u64,
    /// The master epoch the sender serves.
    pub master_epoch: u32,
    /// The set epoch the sender changes from.
    pub sync_state_set_epoch: u32,
    /// The set it asks for.
    pub new_set: BTreeSet<u64>,
    /// The lives in which the sender saw the members caught up; absent: it does not say (a Java
    /// master).
    pub seen_in: Option<BTreeMap<u64, u64>>,
    /// Who is alive and what they reported.
    pub alive: Reports,
}

/// See [`Command::CleanBrokerData`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CleanBrokerData {
    /// Name of the broker set.
    pub broker: String,
    /// Ids to forget; absent = the whole set.
    pub ids: Option<BTreeSet<u64>>,
    /// Forget the whole set, alive or not.
    pub clean_living: bool,
    /// Who is alive.
    pub alive: BTreeSet<u64>,
}

/// See [`Command::ReviewMembers`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReviewMembers {
    /// Name of the broker set.
    pub broker: String,
    /// Decide only while this is the master epoch.
    pub master_epoch: u32,
    /// Decide only while this is the set epoch.
    pub sync_state_set_epoch: u32,
    /// What the members that restarted reported.
    pub alive: Reports,
}

/// See [`Command::ConfirmMaster`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfirmMaster {
    /// Name of the broker set.
    pub broker: String,
    /// The master.
    pub id: u64,
    /// The epoch it serves.
    pub master_epoch: u32,
    /// Its count of opens, where it sends one.
    pub incarnation: Option<u64>,
    /// It could not prove at this open that its log is what it was.
    pub unclean: bool,
}

impl Command {
    /// Name of the broker set it is about.
    #[must_use]
    pub fn broker(&self) -> &str {
        match self {
            Self::ApplyBrokerId(c) => &c.broker,
            Self::RegisterBroker(c) => &c.broker,
            Self::UpdateAddress(c) => &c.broker,
            Self::ElectMaster(c) => &c.broker,
            Self::AlterSyncStateSet(c) => &c.broker,
            Self::CleanBrokerData(c) => &c.broker,
            Self::ReviewMembers(c) => &c.broker,
            Self::ConfirmMaster(c) => &c.broker,
        }
    }

    /// Bytes for the log.
    ///
    /// # Errors
    /// When the command is longer than [`COMMAND_LIMIT`].
    pub fn encode(&self) -> Result<Vec<u8>, CommandError> {
        let bytes = postcard::to_extend(self, vec![COMMAND_VERSION])
            .map_err(|error| CommandError::Malformed(error.to_string()))?;
        if bytes.len() > COMMAND_LIMIT {
            return Err(CommandError::TooLong { len: bytes.len() });
        }
        Ok(bytes)
    }

    /// Reads what [`Command::encode`] wrote; refuses other versions and trailing bytes.
    ///
    /// # Errors
    /// When the bytes are not exactly one command of a known version.
    pub fn decode(bytes: &[u8]) -> Result<Self, CommandError> {
        if bytes.len() > COMMAND_LIMIT {
            return Err(CommandError::TooLong { len: bytes.len() });
        }
        match bytes.split_first() {
            Some((&COMMAND_VERSION, rest)) => match postcard::take_from_bytes(rest) {
                Ok((command, [])) => Ok(command),
                Ok((_, extra)) => Err(CommandError::Malformed(format!(
                    "{} bytes too many",
                    extra.len()
                ))),
                Err(error) => Err(CommandError::Malformed(error.to_string())),
            },
            Some((&version, _)) => Err(CommandError::Version { version }),
            None => Err(CommandError::Malformed("empty".to_owned())),
        }
    }
}

/// Why bytes are not a command.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CommandError {
    /// Longer than [`COMMAND_LIMIT`].
    #[error("a command of {len} bytes is over the limit of {COMMAND_LIMIT}")]
    TooLong {
        /// Its length in bytes.
        len: usize,
    },
    /// Written by a version this one does not know.
    #[error("command version {version} is unknown here: run the same version on all controllers")]
    Version {
        /// The version byte found.
        version: u8,
    },
    /// Not a command.
    #[error("not a command: {0}")]
    Malformed(String),
}

/// The answer to a command, or to a read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The code on the wire.
    pub code: Code,
    /// For people; empty when there is nothing to say.
    pub remark: String,
    /// The broker set after the command, where it is known.
    pub group: Option<GroupView>,
    /// The command changed the state.
    pub changed: bool,
}

impl Answer {
    pub(crate) fn refused(code: Code, remark: impl Into<String>) -> Self {
        Self {
            code,
            remark: remark.into(),
            group: None,
            changed: false,
        }
    }

    pub(crate) fn done(group: GroupView, changed: bool) -> Self {
        Self {
            code: Code::Success,
            remark: String::new(),
            group: Some(group),
            changed,
        }
    }
}

/// One broker set as the answers show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupView {
    /// Cluster the set belongs to.
    pub cluster: String,
    /// Name of the broker set.
    pub broker: String,
    /// The master, if there is one (for a register: only if it is alive).
    pub master: Option<MasterView>,
    /// Grows with every election; 0 = there never was a master.
    pub master_epoch: u32,
    /// Who is in sync.
    pub sync_state_set: BTreeSet<u64>,
    /// Grows with every change of the set.
    pub sync_state_set_epoch: u32,
    /// All registered brokers of the set with their addresses.
    pub members: BTreeMap<u64, String>,
}

/// The master of a broker set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MasterView {
    /// Its broker id.
    pub id: u64,
    /// Its address; never empty.
    pub address: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Command {
        Command::UpdateAddress(UpdateAddress {
            broker: "b".to_owned(),
            id: 7,
            address: "h:1".to_owned(),
        })
    }

    #[test]
    fn a_command_reads_back_as_written() {
        let bytes = sample().encode().unwrap();
        assert_eq!(bytes[0], COMMAND_VERSION);
        assert_eq!(Command::decode(&bytes).unwrap(), sample());
    }

    #[test]
    fn other_versions_trailing_bytes_and_prefixes_are_refused() {
        let mut bytes = sample().encode().unwrap();
        for len in 0..bytes.len() {
            assert!(
                Command::decode(&bytes[..len]).is_err(),
                "prefix of {len} bytes"
            );
        }
        bytes.push(0);
        assert!(matches!(
            Command::decode(&bytes),
            Err(CommandError::Malformed(_))
        ));
        bytes.pop();
        bytes[0] = 9;
        assert_eq!(
            Command::decode(&bytes),
            Err(CommandError::Version { version: 9 })
        );
    }

    #[test]
    fn too_long_a_command_is_refused_both_ways() {
        let long = Command::UpdateAddress(UpdateAddress {
            broker: "b".repeat(COMMAND_LIMIT),
            id: 1,
            address: String::new(),
        });
        assert!(matches!(long.encode(), Err(CommandError::TooLong { .. })));
        let bytes = vec![COMMAND_VERSION; COMMAND_LIMIT + 1];
        assert!(matches!(
            Command::decode(&bytes),
            Err(CommandError::TooLong { .. })
        ));
    }
}
