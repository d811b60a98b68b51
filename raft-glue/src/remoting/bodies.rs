//! The JSON bodies of the controller's requests and of a broker's HA questions, by Java's names.
//!
//! fastjson leaves null members out and writes integer map keys unquoted; read these with
//! [`from_json`](super::from_json), which accepts that.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// RocketMQ: SyncStateSet.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SyncStateSetBody {
    /// Controller ids of the members.
    pub sync_state_set: BTreeSet<i64>,
    /// Epoch of the set.
    pub sync_state_set_epoch: i32,
}

/// RocketMQ: BrokerMemberGroup.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BrokerMemberGroup {
    /// Addresses by id.
    pub broker_addrs: BTreeMap<i64, String>,
    /// Broker set.
    pub broker_name: String,
    /// Cluster.
    pub cluster: String,
}

/// RocketMQ: ElectMasterResponseBody; with code 2011 only the set is there.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ElectMasterBody {
    /// The living members and their addresses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub broker_member_group: Option<BrokerMemberGroup>,
    /// Controller ids of the SyncStateSet.
    pub sync_state_set: BTreeSet<i64>,
}

/// One replica in the answer to 1006.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct InSyncReplica {
    /// Whether its heartbeats arrive.
    pub alive: bool,
    /// `ip:port`.
    pub broker_address: String,
    /// Controller id.
    pub broker_id: i64,
    /// Broker set.
    pub broker_name: String,
}

/// One broker set in the answer to 1006.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BrokerReplicaInfo {
    /// Members of the SyncStateSet.
    pub in_sync_replicas: Vec<InSyncReplica>,
    /// The master's `ip:port`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub master_address: Option<String>,
    /// Controller id of the master.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub master_broker_id: Option<i64>,
    /// Epoch of the master.
    pub master_epoch: i32,
    /// The others.
    pub not_in_sync_replicas: Vec<InSyncReplica>,
    /// Epoch of the SyncStateSet.
    pub sync_state_set_epoch: i32,
}

/// RocketMQ: BrokerReplicasInfo, the answer to 1006.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BrokerReplicasInfo {
    /// By broker set.
    pub replicas_info_table: BTreeMap<String, BrokerReplicaInfo>,
}

/// One epoch in the answer to 1007.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EpochSpan {
    /// Where the next epoch starts; i64 MAX for the newest.
    pub end_offset: i64,
    /// The epoch.
    pub epoch: i32,
    /// Where it starts.
    pub start_offset: i64,
}

/// RocketMQ: EpochEntryCache, the answer to 1007.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BrokerEpochCache {
    /// 0 for a master, else the controller id.
    pub broker_id: i64,
    /// Broker set.
    pub broker_name: String,
    /// Cluster.
    pub cluster_name: String,
    /// Epochs, oldest first.
    pub epoch_list: Vec<EpochSpan>,
    /// End of the log.
    pub max_offset: i64,
}

/// How a slave's connection stands, in the answer to 907.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HaClientRuntimeInfo {
    /// ms since 1970.
    pub last_read_timestamp: i64,
    /// ms since 1970.
    pub last_write_timestamp: i64,
    /// The master's HA address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub master_addr: Option<String>,
    /// Flushed end of the master.
    pub master_flush_offset: i64,
    /// End of the slave's log.
    pub max_offset: i64,
    /// Bytes per second.
    pub transferred_byte_in_second: i64,
}

/// One connection of a master, in the answer to 907.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HaConnectionRuntimeInfo {
    /// The slave's `ip:port`.
    pub addr: String,
    /// Bytes it is behind.
    pub diff: i64,
    /// Whether it counts as in sync.
    pub in_sync: bool,
    /// What it acknowledged.
    pub slave_ack_offset: i64,
    /// Where the transfer stands.
    pub transfer_from_where: i64,
    /// Bytes per second.
    pub transferred_byte_in_second: i64,
}

/// RocketMQ: HARuntimeInfo, the answer to 907.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HaRuntimeInfoBody {
    /// The slave side; absent or empty on a master.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ha_client_runtime_info: Option<HaClientRuntimeInfo>,
    /// The master side, one per slave.
    pub ha_connection_info: Vec<HaConnectionRuntimeInfo>,
    /// Slaves in sync.
    pub in_sync_slave_nums: i32,
    /// Whether the answering broker is master.
    pub master: bool,
    /// End of the answering broker's log.
    pub master_commit_log_max_offset: i64,
}

macro_rules! to_bytes {
    ($($body:ty),+) => {$(
        impl From<&$body> for Bytes {
            fn from(body: &$body) -> Self {
                // Plain structs, text keys and integer keys always serialize.
                serde_json::to_vec(body).unwrap_or_default().into()
            }
        }
    )+};
}

to_bytes!(
    SyncStateSetBody,
    ElectMasterBody,
    BrokerReplicasInfo,
    BrokerEpochCache,
    HaRuntimeInfoBody
);

#[cfg(test)]
mod tests {
    use super::super::from_json;
    use super::*;

    #[test]
    fn e52_what_fastjson_writes_is_read() {
        let text = br#"{"brokerMemberGroup":{"brokerAddrs":{1:"10.0.0.1:10911",2:"10.0.0.2:10911"},
            "brokerName":"b","cluster":"c"},"syncStateSet":[1,2]}"#;
        let body: ElectMasterBody = from_json(text).expect("reads");
        assert_eq!(body.sync_state_set, BTreeSet::from([1, 2]));
        let group = body.broker_member_group.expect("there");
        assert_eq!(group.broker_addrs[&2], "10.0.0.2:10911");
    }

    #[test]
    fn names_are_java_names_in_alphabetical_order() {
        let set = SyncStateSetBody {
            sync_state_set: BTreeSet::from([2, 1]),
            sync_state_set_epoch: 4,
        };
        assert_eq!(
            Bytes::from(&set),
            Bytes::from_static(br#"{"syncStateSet":[1,2],"syncStateSetEpoch":4}"#)
        );
        let info = HaRuntimeInfoBody {
            master: true,
            ..HaRuntimeInfoBody::default()
        };
        assert_eq!(
            Bytes::from(&info),
            Bytes::from_static(
                br#"{"haConnectionInfo":[],"inSyncSlaveNums":0,"master":true,"masterCommitLogMaxOffset":0}"#
            )
        );
    }
}
