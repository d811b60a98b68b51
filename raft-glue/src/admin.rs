//! What operators ask controllers, as values: how they stand, who is a member, who leads. These are
//! requests of our own beside RocketMQ's; their bodies are JSON in camelCase.

use serde::{Deserialize, Serialize};

/// Steps of one change of members.
pub const MEMBER_STEP_LIMIT: usize = 31;

/// Broker sets in one [`ControllerStatus`].
pub const SET_STATUS_LIMIT: usize = 1_000;

/// Brokers of all sets in one [`ControllerStatus`].
pub const BROKER_STATUS_LIMIT: usize = 10_000;

/// A member that lacks this many entries of the log cannot take over or get a vote.
pub const BEHIND_LIMIT: u64 = crate::node::BEHIND_LIMIT;

/// What a controller is in its group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum ControllerRole {
    /// It decides.
    Leader,
    /// It follows the leader and may vote.
    #[default]
    Follower,
    /// It seeks votes.
    Candidate,
    /// It follows and does not vote.
    Learner,
    /// It is no member yet and waits to be added.
    Joining,
}

impl std::fmt::Display for ControllerRole {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Leader => "leader",
            Self::Follower => "follower",
            Self::Candidate => "candidate",
            Self::Learner => "learner",
            Self::Joining => "waits to be added",
        })
    }
}

/// Where one controller stands, by itself (30101). What a follower says of broker sets may be behind,
/// and it knows only the heartbeats that it heard itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ControllerStatus {
    /// Name of the group.
    pub group: String,
    /// Id of this controller.
    pub id: u64,
    /// Its name (controllerDLegerSelfId).
    pub name: String,
    /// What it is.
    pub role: ControllerRole,
    /// It leads and knows all that was ever decided.
    pub is_ready: bool,
    /// Id of the leader, where it is known.
    pub leader: Option<u64>,
    /// `host:port` of the leader, where it is known.
    pub leader_address: Option<String>,
    /// The term it is in.
    pub term: u64,
    /// Index of the oldest entry kept.
    pub first: u64,
    /// Entries up to here are committed.
    pub committed: u64,
    /// Entries up to here are applied here.
    pub applied: u64,
    /// Index of the newest entry here.
    pub last: u64,
    /// A change of members is under way: majorities of the old and the new ones count.
    pub is_joint: bool,
    /// Names of the members that should lead where they can, by this one's settings.
    pub preferred_leaders: Vec<String>,
    /// All members, by id.
    pub members: Vec<MemberStatus>,
    /// The broker sets, by name; at most [`SET_STATUS_LIMIT`] with [`BROKER_STATUS_LIMIT`] brokers and
    /// 1 MiB of names and addresses.
    pub sets: Vec<SetStatus>,
    /// Broker sets beyond that.
    pub sets_left_out: usize,
}

/// A member of the group of controllers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MemberStatus {
    /// Its id.
    pub id: u64,
    /// Its name (controllerDLegerSelfId).
    pub name: String,
    /// Its `host:port`.
    pub address: String,
    /// It has a vote; a learner has none.
    pub is_voter: bool,
    /// What its leader knows of it; absent when another member than the leader answers.
    pub progress: Option<MemberLag>,
}

/// How far a leader knows a member to be; of itself as well.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MemberLag {
    /// It has every entry up to here on disk.
    pub matched: u64,
    /// Entries of the leader's that it lacks.
    pub behind: u64,
    /// It was heard of within the last election timeout.
    pub is_active: bool,
    /// It is being sent a snapshot.
    pub needs_snapshot: bool,
}

/// A broker set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SetStatus {
    /// Cluster the set belongs to.
    pub cluster: String,
    /// Name of the set.
    pub broker: String,
    /// Id of the master, if there is one.
    pub master: Option<u64>,
    /// Its epoch; 0: there never was one.
    pub master_epoch: u32,
    /// The master of this epoch took up its role.
    pub is_confirmed: bool,
    /// Ids in sync.
    pub sync_state_set: Vec<u64>,
    /// Grows with every change of the set.
    pub sync_state_set_epoch: u32,
    /// For how long the master may still have authority, in ms, if it is granted no more; 0: it has
    /// none. Absent on a controller that does not lead, and where there is no master.
    pub lease_ms: Option<u64>,
    /// All registered brokers, by id.
    pub brokers: Vec<BrokerStatus>,
}

/// A registered broker.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BrokerStatus {
    /// Its id.
    pub id: u64,
    /// Its `host:port`.
    pub address: String,
    /// Its newest heartbeat is within its time and the connection is open.
    pub is_alive: bool,
    /// Age of its newest heartbeat, in ms; absent where none was heard.
    pub heartbeat_age_ms: Option<u64>,
    /// Last epoch of its log, by that heartbeat.
    pub epoch: Option<i32>,
    /// End of its log in bytes, by that heartbeat.
    pub max_offset: Option<i64>,
    /// Its confirm offset in bytes, by that heartbeat.
    pub confirm_offset: Option<i64>,
}

/// A change of the members of a group of controllers (30102): all steps come into force together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MembersRequest {
    /// At most [`MEMBER_STEP_LIMIT`].
    pub steps: Vec<MemberRequest>,
}

/// One step of a change of members.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "camelCase", deny_unknown_fields)]
pub enum MemberRequest {
    /// A controller that waits to be added becomes a member without a vote.
    AddLearner {
        /// Its name (controllerDLegerSelfId).
        name: String,
        /// Its `host:port`.
        address: String,
    },
    /// A member without a vote that has caught up gets one.
    Promote {
        /// Its id.
        id: u64,
    },
    /// A member leaves; it keeps its file and disturbs nobody.
    Remove {
        /// Its id.
        id: u64,
    },
}

/// Hands the leadership over (30103).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TransferRequest {
    /// Id of the member that is to lead.
    pub to: u64,
}
