//! A snapshot of replication, with the fields of RocketMQ's `HARuntimeInfo`.

use std::net::SocketAddr;

use epochlog_engine::{Epoch, EpochEntry, Offset};

use super::metrics::HaMetrics;
use crate::sync_state::SyncStateSet;

/// What this node is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoleInfo {
    /// Neither: writes are refused, nothing is followed.
    Fenced,
    /// Master of this epoch.
    Master {
        /// The epoch.
        epoch: Epoch,
    },
    /// Slave of this master.
    Slave {
        /// The epoch in which the controller said so.
        epoch: Epoch,
        /// The master's broker id.
        master_id: u64,
        /// Its HA address.
        master_addr: SocketAddr,
    },
}

/// The whole snapshot.
#[derive(Clone, Debug)]
pub struct HaRuntimeInfo {
    /// This node's role.
    pub role: RoleInfo,
    /// The end of this log.
    pub master_commit_log_max_offset: Offset,
    /// The confirm offset.
    pub confirm_offset: Offset,
    /// Slaves that are members of the SyncStateSet and connected.
    pub in_sync_slave_nums: usize,
    /// The committed set, while master.
    pub sync_state_set: Option<SyncStateSet>,
    /// One per slave connected.
    pub connections: Vec<ConnectionInfo>,
    /// The connection to the master, while slave.
    pub client: Option<ClientInfo>,
    /// What the master's frames travel by.
    pub transport: &'static str,
    /// Counters since the service was started.
    pub metrics: HaMetrics,
}

/// A slave's connection. RocketMQ: `HAConnectionRuntimeInfo`.
#[derive(Clone, Debug)]
pub struct ConnectionInfo {
    /// Where the slave connects from.
    pub addr: SocketAddr,
    /// Its id, once it has said it.
    pub broker_id: Option<u64>,
    /// Its newest report.
    pub slave_ack_offset: Option<Offset>,
    /// How far it is on disk, if it is a slave of ours.
    pub slave_flushed_offset: Option<Offset>,
    /// Whether the two speak the extension.
    pub extended: bool,
    /// Bytes it is behind.
    pub diff: u64,
    /// Milliseconds since it was last known to be level; none before it was for the first time.
    pub lag_ms: Option<u64>,
    /// Whether it is a member of the SyncStateSet.
    pub in_sync: bool,
    /// Bytes sent to it in the last second.
    pub transferred_byte_in_second: u64,
    /// Where its next frame begins.
    pub transfer_from_where: Option<Offset>,
}

/// The connection to the master. RocketMQ: `HAClientRuntimeInfo`.
#[derive(Clone, Debug)]
pub struct ClientInfo {
    /// The master's HA address.
    pub master_addr: SocketAddr,
    /// `READY`, `HANDSHAKE` or `TRANSFER`.
    pub state: &'static str,
    /// Bytes received in the last second.
    pub transferred_byte_in_second: u64,
    /// The end of this log.
    pub max_offset: Offset,
    /// The newest end of the master's log that this connection told of; none before a handshake.
    pub master_max_offset: Option<Offset>,
    /// The newest report to the master.
    pub reported_offset: Option<Offset>,
    /// Milliseconds since something was read; none before the first.
    pub last_read_age_ms: Option<u64>,
    /// Milliseconds since something was written; none before the first.
    pub last_write_age_ms: Option<u64>,
    /// Whether the connection is up and in TRANSFER.
    pub is_activated: bool,
    /// How the last handshake ended.
    pub last_join: Option<JoinInfo>,
    /// Why the last connection ended.
    pub last_close: Option<String>,
    /// Whether an operator has to act before this slave can go on.
    pub needs_operator: bool,
}

/// What a handshake with a master did to this log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinInfo {
    /// Where both logs agree.
    pub point: Offset,
    /// Bytes cut off this log.
    pub cut_bytes: u64,
    /// What that rests on.
    pub why: String,
    /// The newest epoch both have up to the point.
    pub last_epoch: Option<EpochEntry>,
}
