//! The controller of RocketMQ's controller mode on a raft log: it decides who is master in which
//! epoch, and never carries messages.

pub mod admin;
pub mod client;
mod command;
mod config;
mod controller;
mod decider;
mod elect;
mod error;
mod group;
pub mod lease;
#[cfg(test)]
mod lease_sim;
mod ledger;
mod liveness;
mod log_bridge;
mod machine;
mod node;
mod notify;
mod peer;
mod raft_codec;
pub mod remoting;
mod scan;
mod server;
mod state_machine;
mod store;

pub use command::{
    AlterSyncStateSet, Answer, ApplyBrokerId, BROKER_ID_MAX, COMMAND_LIMIT, CleanBrokerData, Code,
    Command, CommandError, ConfirmMaster, ElectMaster, GroupView, MasterView, RegisterBroker,
    Report, Reports, ReviewMembers, TEXT_LIMIT, UpdateAddress,
};
pub use config::{ControllerConfig, DEFAULT_GROUP, Peers};
pub use controller::Controller;
pub use elect::{Ballot, Choice, Incarnation, choose_first};
pub use error::{AppendError, Error, ReadError, TransferError};
pub use group::{BrokerGroup, EPOCH_MAX, Replica};
pub use ledger::{
    Appended, GetError, Ledger, LedgerConfig, LedgerCounters, LedgerEntry, LedgerMetadata,
    LedgerTimings, MemberProgress, PAYLOAD_LIMIT, PendingAppend, PendingBatch, Role,
    SnapshotReceipt, StateMachine, Transport,
};
pub use liveness::{
    BEAT_LIMIT, Beat, DEFAULT_TIMEOUT_MS, Heard, Heartbeat, HeartbeatError, LeaseAsk, Liveness,
    NoLease, Seen, TIMEOUT_LIMIT_MS, Verdict,
};
pub use raft_codec::{CodecError, Member, MemberStep};
pub use state_machine::{ControllerState, GROUP_LIMIT, REPLICA_LIMIT, REPORTED_EPOCH_MAX};
pub use store::{RowChanges, Rows};
