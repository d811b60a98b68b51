//! The request and response codes this workspace speaks, under RocketMQ's names.

/// Request codes (RocketMQ: RequestCode).
pub mod request_code {
    /// A message, long field names.
    pub const SEND_MESSAGE: i32 = 10;
    /// A slave asks for all topics.
    pub const GET_ALL_TOPIC_CONFIG: i32 = 21;
    /// A client's sign of life, with its groups.
    pub const HEART_BEAT: i32 = 34;
    /// A client leaves.
    pub const UNREGISTER_CLIENT: i32 = 35;
    /// A slave asks for the offsets of all consumers.
    pub const GET_ALL_CONSUMER_OFFSET: i32 = 43;
    /// A slave asks how far delayed messages have been delivered.
    pub const GET_ALL_DELAY_OFFSET: i32 = 45;
    /// A slave asks how far the timer has come.
    pub const GET_TIMER_CHECK_POINT: i32 = 60;
    /// A slave asks what the timer holds.
    pub const GET_TIMER_METRICS: i32 = 61;
    /// A broker tells a name server where it is and which topics it has.
    pub const REGISTER_BROKER: i32 = 103;
    /// A broker leaves a name server.
    pub const UNREGISTER_BROKER: i32 = 104;
    /// A slave asks for the settings of all consumer groups.
    pub const GET_ALL_SUBSCRIPTIONGROUP_CONFIG: i32 = 201;
    /// A message, short field names.
    pub const SEND_MESSAGE_V2: i32 = 310;
    /// A list of messages, short field names; the field `m` decides, not the code.
    pub const SEND_BATCH_MESSAGE: i32 = 320;
    /// A slave asks how consumers of each topic get their messages.
    pub const GET_ALL_MESSAGE_REQUEST_MODE: i32 = 402;
    /// A broker's sign of life to a controller or name server; one-way.
    pub const BROKER_HEARTBEAT: i32 = 904;
    /// Sets or asks the HA address of a master.
    pub const EXCHANGE_BROKER_HA_INFO: i32 = 906;
    /// Asks a broker how its replication stands.
    pub const GET_BROKER_HA_STATUS: i32 = 907;
    /// The master proposes another SyncStateSet.
    pub const CONTROLLER_ALTER_SYNC_STATE_SET: i32 = 1001;
    /// Asks for an election.
    pub const CONTROLLER_ELECT_MASTER: i32 = 1002;
    /// A broker with an id registers its address.
    pub const CONTROLLER_REGISTER_BROKER: i32 = 1003;
    /// Who is master of a broker set, and its SyncStateSet.
    pub const CONTROLLER_GET_REPLICA_INFO: i32 = 1004;
    /// Who leads the controllers; answered by every controller.
    pub const CONTROLLER_GET_METADATA_INFO: i32 = 1005;
    /// The replicas of several broker sets.
    pub const CONTROLLER_GET_SYNC_STATE_DATA: i32 = 1006;
    /// Asks a broker for its epochs.
    pub const GET_BROKER_EPOCH_CACHE: i32 = 1007;
    /// A controller tells a broker of a new master; one-way.
    pub const NOTIFY_BROKER_ROLE_CHANGED: i32 = 1008;
    /// Changes controller settings.
    pub const UPDATE_CONTROLLER_CONFIG: i32 = 1009;
    /// Reads controller settings.
    pub const GET_CONTROLLER_CONFIG: i32 = 1010;
    /// Forgets brokers of a set.
    pub const CLEAN_BROKER_DATA: i32 = 1011;
    /// The id a new broker may ask for.
    pub const CONTROLLER_GET_NEXT_BROKER_ID: i32 = 1012;
    /// A new broker takes an id.
    pub const CONTROLLER_APPLY_BROKER_ID: i32 = 1013;
    /// How a controller stands, by itself; answered by every controller. Not one of RocketMQ's, nor
    /// are the two that follow.
    pub const CONTROLLER_STATUS: i32 = 30_101;
    /// Changes the members of the group of controllers.
    pub const CONTROLLER_CHANGE_MEMBERS: i32 = 30_102;
    /// Hands the leadership among the controllers over.
    pub const CONTROLLER_TRANSFER_LEADER: i32 = 30_103;
    /// Controller to master, not one of RocketMQ's: stop writes, see that a member has everything,
    /// lay the authority down.
    pub const HAND_OVER: i32 = 30_200;
}

/// Response codes (RocketMQ: RemotingSysResponseCode, ResponseCode).
pub mod response_code {
    /// Done.
    pub const SUCCESS: i32 = 0;
    /// Anything that went wrong without a code of its own.
    pub const SYSTEM_ERROR: i32 = 1;
    /// Too much waits already, or the whole kind of request is rejected now.
    pub const SYSTEM_BUSY: i32 = 2;
    /// Nobody here answers this request code.
    pub const REQUEST_CODE_NOT_SUPPORTED: i32 = 3;
    /// Written; not on disk within the time allowed.
    pub const FLUSH_DISK_TIMEOUT: i32 = 10;
    /// Written; no slave can take it.
    pub const SLAVE_NOT_AVAILABLE: i32 = 11;
    /// Written; not replicated within the time allowed.
    pub const FLUSH_SLAVE_TIMEOUT: i32 = 12;
    /// The message breaks a rule of the store.
    pub const MESSAGE_ILLEGAL: i32 = 13;
    /// The broker does not take writes now.
    pub const SERVICE_NOT_AVAILABLE: i32 = 14;
    /// Not allowed, by configuration.
    pub const NO_PERMISSION: i32 = 16;
    /// No such topic, and it may not be created.
    pub const TOPIC_NOT_EXIST: i32 = 17;
    /// The consumer group is unknown.
    pub const SUBSCRIPTION_GROUP_NOT_EXIST: i32 = 26;
    /// A field's value is not allowed.
    pub const INVALID_PARAMETER: i32 = 29;
    /// 1001: the master epoch is not the current one.
    pub const CONTROLLER_FENCED_MASTER_EPOCH: i32 = 2000;
    /// 1001: the set's epoch is not the current one.
    pub const CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH: i32 = 2001;
    /// 1001: the sender is not the master.
    pub const CONTROLLER_INVALID_MASTER: i32 = 2002;
    /// 1001: an id of the set is not registered.
    pub const CONTROLLER_INVALID_REPLICAS: i32 = 2003;
    /// 1002 by a controller or operator: nobody is electable; the master is none now.
    pub const CONTROLLER_MASTER_NOT_AVAILABLE: i32 = 2004;
    /// The request lacks something.
    pub const CONTROLLER_INVALID_REQUEST: i32 = 2005;
    /// 1001: an id of the set has no live heartbeat.
    pub const CONTROLLER_BROKER_NOT_ALIVE: i32 = 2006;
    /// This controller does not lead.
    pub const CONTROLLER_NOT_LEADER: i32 = 2007;
    /// 1004: unknown broker set.
    pub const CONTROLLER_BROKER_METADATA_NOT_EXIST: i32 = 2008;
    /// 1011: refused.
    pub const CONTROLLER_INVALID_CLEAN_BROKER_METADATA: i32 = 2009;
    /// 1002, 1003: broker set or id unknown.
    pub const CONTROLLER_BROKER_NEED_TO_BE_REGISTERED: i32 = 2010;
    /// 1002: the old master stays; the answer carries its data.
    pub const CONTROLLER_MASTER_STILL_EXIST: i32 = 2011;
    /// 1002 by a broker: nobody is electable; nothing changed.
    pub const CONTROLLER_ELECT_MASTER_FAILED: i32 = 2012;
    /// 1001: unknown or equal set, or the master is not in it.
    pub const CONTROLLER_ALTER_SYNC_STATE_SET_FAILED: i32 = 2013;
    /// 1013: the id belongs to another check code.
    pub const CONTROLLER_BROKER_ID_INVALID: i32 = 2014;
}
