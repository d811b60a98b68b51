//! The typed headers of the controller's requests and of sending, by exact Java field names.
//!
//! Ids and epochs keep Java's signed types here; whoever uses them checks their range.

use super::command::ExtFields;
use super::header::{HeaderError, Member, TypedHeader, typed_header};

typed_header! {
    /// 1001 CONTROLLER_ALTER_SYNC_STATE_SET; the body is a SyncStateSet with the **current** epoch.
    pub struct AlterSyncStateSetRequest {
        /// Broker set.
        broker_name: String = "brokerName",
        /// Controller id of the sender.
        master_broker_id: i64 = "masterBrokerId",
        /// The epoch the sender is master in.
        master_epoch: i32 = "masterEpoch",
        /// Sender's clock, ms.
        invoke_time: Option<i64> = "invokeTime",
        /// The lives in which the sender saw the members of the new set caught up, as
        /// `id:incarnation` joined by `,`; a Java master sends none.
        incarnations: Option<String> = "incarnations",
    }
}

typed_header! {
    /// Answer to 1001; the body is the new SyncStateSet.
    pub struct AlterSyncStateSetResponse {
        /// Epoch of the new set.
        new_sync_state_set_epoch: i32 = "newSyncStateSetEpoch",
    }
}

typed_header! {
    /// 1002 CONTROLLER_ELECT_MASTER.
    pub struct ElectMasterRequest {
        /// Cluster.
        cluster_name: Option<String> = "clusterName",
        /// Broker set.
        broker_name: String = "brokerName",
        /// Controller id of the asking broker; -1 or absent: not asked by a broker.
        broker_id: Option<i64> = "brokerId",
        /// Whether `broker_id` is to become master (an operator's wish).
        designate_elect: Option<bool> = "designateElect",
        /// Sender's clock, ms.
        invoke_time: Option<i64> = "invokeTime",
    }
}

typed_header! {
    /// Answer to 1002, with code 0 (new master) and 2011 (old master stays).
    pub struct ElectMasterResponse {
        /// Controller id of the master.
        master_broker_id: Option<i64> = "masterBrokerId",
        /// The master's `ip:port`.
        master_address: Option<String> = "masterAddress",
        /// Epoch of the master.
        master_epoch: Option<i32> = "masterEpoch",
        /// Epoch of the SyncStateSet.
        sync_state_set_epoch: Option<i32> = "syncStateSetEpoch",
    }
}

typed_header! {
    /// 1003 CONTROLLER_REGISTER_BROKER.
    pub struct RegisterBrokerRequest {
        /// Cluster.
        cluster_name: String = "clusterName",
        /// Broker set.
        broker_name: String = "brokerName",
        /// Controller id.
        broker_id: i64 = "brokerId",
        /// `ip:port` of the broker's listener.
        broker_address: String = "brokerAddress",
        /// Sender's clock, ms.
        invoke_time: Option<i64> = "invokeTime",
        /// Which opening of its store folder the sender lives in; not sent by Java brokers.
        incarnation: Option<i64> = "incarnation",
        /// Whether the sender could not prove its log after the last stop; not sent by Java brokers.
        unclean: Option<bool> = "unclean",
    }
}

typed_header! {
    /// Answer to 1003; the master fields only when one exists and is alive. The body is always
    /// the SyncStateSet.
    pub struct RegisterBrokerResponse {
        /// Cluster.
        cluster_name: Option<String> = "clusterName",
        /// Broker set.
        broker_name: Option<String> = "brokerName",
        /// Controller id of the master.
        master_broker_id: Option<i64> = "masterBrokerId",
        /// The master's `ip:port`.
        master_address: Option<String> = "masterAddress",
        /// Epoch of the master.
        master_epoch: Option<i32> = "masterEpoch",
        /// Epoch of the SyncStateSet.
        sync_state_set_epoch: Option<i32> = "syncStateSetEpoch",
    }
}

typed_header! {
    /// 1004 CONTROLLER_GET_REPLICA_INFO.
    pub struct GetReplicaInfoRequest {
        /// Broker set.
        broker_name: String = "brokerName",
    }
}

typed_header! {
    /// Answer to 1004; the body is the SyncStateSet.
    pub struct GetReplicaInfoResponse {
        /// Controller id of the master.
        master_broker_id: Option<i64> = "masterBrokerId",
        /// The master's `ip:port`.
        master_address: Option<String> = "masterAddress",
        /// Epoch of the master; grows also when an election fails.
        master_epoch: Option<i32> = "masterEpoch",
    }
}

typed_header! {
    /// Answer to 1005 CONTROLLER_GET_METADATA_INFO.
    pub struct GetMetadataResponse {
        /// Name of the controller group.
        group: Option<String> = "group",
        /// Id of the leader, as in the peers text.
        controller_leader_id: Option<String> = "controllerLeaderId",
        /// `ip:port` of the leader.
        controller_leader_address: Option<String> = "controllerLeaderAddress",
        /// Whether the answering controller leads.
        is_leader: Option<bool> = "isLeader",
        /// All controllers, `n0:ip:port;n1:ip:port;`.
        peers: Option<String> = "peers",
    }
}

typed_header! {
    /// 1008 NOTIFY_BROKER_ROLE_CHANGED, controller to broker, one-way; the body is the SyncStateSet.
    pub struct NotifyRoleChangedRequest {
        /// The master's `ip:port`.
        master_address: Option<String> = "masterAddress",
        /// Epoch of the master.
        master_epoch: i32 = "masterEpoch",
        /// Epoch of the SyncStateSet.
        sync_state_set_epoch: i32 = "syncStateSetEpoch",
        /// Controller id of the master.
        master_broker_id: Option<i64> = "masterBrokerId",
    }
}

typed_header! {
    /// 30200 HAND_OVER, controller to master. An answer with code 0 says that the master has no
    /// authority in this epoch any more, until it asks anew.
    pub struct HandOverRequest {
        /// Broker set.
        broker_name: String = "brokerName",
        /// The epoch to be handed over.
        master_epoch: i32 = "masterEpoch",
        /// Controller id of the member that is to be master.
        to: i64 = "brokerId",
    }
}

typed_header! {
    /// 1011 CLEAN_BROKER_DATA.
    pub struct CleanBrokerDataRequest {
        /// Cluster.
        cluster_name: Option<String> = "clusterName",
        /// Broker set.
        broker_name: String = "brokerName",
        /// Ids joined by `;`; absent: the whole set.
        broker_controller_ids_to_clean: Option<String> = "brokerControllerIdsToClean",
        /// Whether living brokers may be removed too.
        is_clean_living_broker: Option<bool> = "isCleanLivingBroker",
        /// Sender's clock, ms.
        invoke_time: Option<i64> = "invokeTime",
    }
}

typed_header! {
    /// 1012 CONTROLLER_GET_NEXT_BROKER_ID.
    pub struct GetNextBrokerIdRequest {
        /// Cluster.
        cluster_name: String = "clusterName",
        /// Broker set.
        broker_name: String = "brokerName",
    }
}

typed_header! {
    /// Answer to 1012.
    pub struct GetNextBrokerIdResponse {
        /// Cluster.
        cluster_name: Option<String> = "clusterName",
        /// Broker set.
        broker_name: Option<String> = "brokerName",
        /// The id to apply for; not reserved.
        next_broker_id: i64 = "nextBrokerId",
    }
}

typed_header! {
    /// 1013 CONTROLLER_APPLY_BROKER_ID.
    pub struct ApplyBrokerIdRequest {
        /// Cluster.
        cluster_name: String = "clusterName",
        /// Broker set.
        broker_name: String = "brokerName",
        /// The id wanted.
        applied_broker_id: i64 = "appliedBrokerId",
        /// `<broker address>;<ms>`: makes a repeated request the same request.
        register_check_code: String = "registerCheckCode",
    }
}

typed_header! {
    /// Answer to 1013.
    pub struct ApplyBrokerIdResponse {
        /// Cluster.
        cluster_name: Option<String> = "clusterName",
        /// Broker set.
        broker_name: Option<String> = "brokerName",
    }
}

typed_header! {
    /// 904 BROKER_HEARTBEAT. The last two fields are ours; Java ignores them.
    pub struct BrokerHeartbeatRequest {
        /// Cluster.
        cluster_name: String = "clusterName",
        /// `ip:port` of the broker's listener.
        broker_addr: String = "brokerAddr",
        /// Broker set.
        broker_name: String = "brokerName",
        /// Controller id; a controller answers 2005 when it is absent.
        broker_id: Option<i64> = "brokerId",
        /// Newest epoch of the sender's log.
        epoch: Option<i32> = "epoch",
        /// End of the sender's log.
        max_offset: Option<i64> = "maxOffset",
        /// The sender's confirm offset.
        confirm_offset: Option<i64> = "confirmOffset",
        /// After how many ms of silence the sender counts as dead.
        heartbeat_timeout_mills: Option<i64> = "heartbeatTimeoutMills",
        /// Smaller is preferred in elections.
        election_priority: Option<i32> = "electionPriority",
        /// Which opening of its store folder the sender lives in.
        incarnation: Option<i64> = "incarnation",
        /// Whether the sender could not prove its log after the last stop.
        unclean: Option<bool> = "unclean",
        /// The newest epoch the sender ever promised to keep to; it may be above that of its log.
        max_epoch: Option<i32> = "maxEpoch",
        /// How long the sender wants to be granted authority for, in ms; 0: it has given back what
        /// it had; absent: it knows of no leases, as a Java broker, or hands over.
        lease_mills: Option<i64> = "leaseMills",
        /// How long an acknowledgement of the sender may be on its way, in ms.
        lease_ack_mills: Option<i64> = "leaseAckMills",
        /// The epoch the lease is asked for in, or given back up to.
        lease_epoch: Option<i32> = "leaseEpoch",
        /// The sender is about to stop: it counts as dead from now on.
        leaving: Option<bool> = "leaving",
    }
}

typed_header! {
    /// Answer to 904. A Java controller sends none of the fields.
    pub struct BrokerHeartbeatResponse {
        /// For how long authority is granted, in ms from when the heartbeat was sent; 0: not at all.
        lease_mills: Option<i64> = "leaseMills",
        /// The epoch it is granted in.
        lease_epoch: Option<i32> = "leaseEpoch",
        /// Why nothing is granted, for people.
        lease_why: Option<String> = "leaseWhy",
        /// The same for programs: see [`crate::lease::LeaseRefusal`].
        lease_code: Option<i32> = "leaseCode",
        /// The lives of the live brokers of the set, as `id:incarnation` joined by `,`.
        incarnations: Option<String> = "incarnations",
    }
}

typed_header! {
    /// 906 EXCHANGE_BROKER_HA_INFO; without `master_ha_address` it is a query.
    pub struct ExchangeHaInfoRequest {
        /// `ip:port` of the master's HA listener.
        master_ha_address: Option<String> = "masterHaAddress",
        /// End of the master's log.
        master_flush_offset: Option<i64> = "masterFlushOffset",
        /// `ip:port` of the master's listener.
        master_address: Option<String> = "masterAddress",
    }
}

typed_header! {
    /// Answer of a master to a 906 query.
    pub struct ExchangeHaInfoResponse {
        /// `ip:port` of the master's HA listener.
        master_ha_address: Option<String> = "masterHaAddress",
        /// End of the master's log.
        master_flush_offset: Option<i64> = "masterFlushOffset",
        /// `ip:port` of the master's listener.
        master_address: Option<String> = "masterAddress",
    }
}

typed_header! {
    /// Answer to 10, 310 and 320 (RocketMQ: SendMessageResponseHeader).
    pub struct SendMessageResponse {
        /// Message id; of a batch the ids joined by `,`.
        msg_id: String = "msgId",
        /// The queue used.
        queue_id: i32 = "queueId",
        /// Offset in the queue; of a batch that of its first message.
        queue_offset: i64 = "queueOffset",
        /// The message's UNIQ_KEY.
        transaction_id: Option<String> = "transactionId",
    }
}

/// The header of 10 (long names), 310 and 320 (short names).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SendMessageRequest {
    /// Producer group.
    pub producer_group: String,
    /// Topic.
    pub topic: String,
    /// Topic whose settings are copied when the topic is created.
    pub default_topic: Option<String>,
    /// Queues a created topic should have.
    pub default_topic_queue_nums: Option<i32>,
    /// Queue; below 0: the broker chooses.
    pub queue_id: i32,
    /// SYSFLAG of the record.
    pub sys_flag: i32,
    /// Sender's clock, ms.
    pub born_timestamp: i64,
    /// FLAG of the record.
    pub flag: i32,
    /// Properties in their stored text form.
    pub properties: Option<String>,
    /// How often the message was consumed in vain.
    pub reconsume_times: Option<i32>,
    /// Unit mode, unused here.
    pub unit_mode: Option<bool>,
    /// Limit of `reconsume_times`.
    pub max_reconsume_times: Option<i32>,
    /// Whether the body is a list of messages.
    pub batch: Option<bool>,
}

/// The field names in the order of the struct: those of code 10, then those of 310 and 320.
const SEND_LONG: [&str; 13] = [
    "producerGroup",
    "topic",
    "defaultTopic",
    "defaultTopicQueueNums",
    "queueId",
    "sysFlag",
    "bornTimestamp",
    "flag",
    "properties",
    "reconsumeTimes",
    "unitMode",
    "maxReconsumeTimes",
    "batch",
];
const SEND_SHORT: [&str; 13] = [
    "a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m",
];

impl SendMessageRequest {
    /// Reads the long names of code 10.
    ///
    /// # Errors
    /// A mandatory field is missing, or a field does not parse.
    pub fn read_long(ext: &ExtFields) -> Result<Self, HeaderError> {
        Self::read(ext, &SEND_LONG)
    }

    /// Reads the short names of codes 310 and 320.
    ///
    /// # Errors
    /// A mandatory field is missing, or a field does not parse.
    pub fn read_short(ext: &ExtFields) -> Result<Self, HeaderError> {
        Self::read(ext, &SEND_SHORT)
    }

    fn read(ext: &ExtFields, names: &[&'static str; 13]) -> Result<Self, HeaderError> {
        Ok(Self {
            producer_group: Member::read(ext, names[0])?,
            // A blank topic is answered by the topic check with a code of its own.
            topic: ext
                .get(names[1])
                .cloned()
                .ok_or(HeaderError::Missing { field: names[1] })?,
            default_topic: Member::read(ext, names[2])?,
            default_topic_queue_nums: Member::read(ext, names[3])?,
            queue_id: Member::read(ext, names[4])?,
            sys_flag: Member::read(ext, names[5])?,
            born_timestamp: Member::read(ext, names[6])?,
            flag: Member::read(ext, names[7])?,
            properties: Member::read(ext, names[8])?,
            reconsume_times: Member::read(ext, names[9])?,
            unit_mode: Member::read(ext, names[10])?,
            max_reconsume_times: Member::read(ext, names[11])?,
            batch: Member::read(ext, names[12])?,
        })
    }

    fn write(&self, ext: &mut ExtFields, names: &[&'static str; 13]) {
        Member::write(&self.producer_group, ext, names[0]);
        Member::write(&self.topic, ext, names[1]);
        Member::write(&self.default_topic, ext, names[2]);
        Member::write(&self.default_topic_queue_nums, ext, names[3]);
        Member::write(&self.queue_id, ext, names[4]);
        Member::write(&self.sys_flag, ext, names[5]);
        Member::write(&self.born_timestamp, ext, names[6]);
        Member::write(&self.flag, ext, names[7]);
        Member::write(&self.properties, ext, names[8]);
        Member::write(&self.reconsume_times, ext, names[9]);
        Member::write(&self.unit_mode, ext, names[10]);
        Member::write(&self.max_reconsume_times, ext, names[11]);
        Member::write(&self.batch, ext, names[12]);
    }

    /// Adds the long names of code 10.
    pub fn write_long(&self, ext: &mut ExtFields) {
        self.write(ext, &SEND_LONG);
    }
}

/// The short names: what 310 and 320 carry.
impl TypedHeader for SendMessageRequest {
    fn read_ext(ext: &ExtFields) -> Result<Self, HeaderError> {
        Self::read_short(ext)
    }

    fn write_ext(&self, ext: &mut ExtFields) {
        self.write(ext, &SEND_SHORT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_send_header_reads_back_under_both_sets_of_names() {
        let header = SendMessageRequest {
            producer_group: "g".into(),
            topic: "T".into(),
            queue_id: -1,
            sys_flag: 0,
            born_timestamp: 5,
            properties: Some("TAGS\u{1}A\u{2}".into()),
            batch: Some(false),
            ..SendMessageRequest::default()
        };
        let mut long = ExtFields::new();
        header.write_long(&mut long);
        assert_eq!(long.get("queueId").map(String::as_str), Some("-1"));
        assert_eq!(SendMessageRequest::read_long(&long), Ok(header.clone()));
        let mut short = ExtFields::new();
        header.write_ext(&mut short);
        assert_eq!(short.get("m").map(String::as_str), Some("false"));
        assert_eq!(SendMessageRequest::read_short(&short), Ok(header));
        assert_eq!(
            SendMessageRequest::read_short(&long),
            Err(HeaderError::Missing { field: "a" })
        );
    }
}
