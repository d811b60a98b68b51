//! The typed headers of what a broker tells a name server.

use super::header::typed_header;

typed_header! {
    /// 103 REGISTER_BROKER; the body holds the broker's topics.
    pub struct NameServerRegisterRequest {
        /// Cluster.
        cluster_name: String = "clusterName",
        /// Broker set.
        broker_name: String = "brokerName",
        /// `ip:port` of the broker's listener.
        broker_addr: String = "brokerAddr",
        /// 0 as master, the controller id as slave.
        broker_id: i64 = "brokerId",
        /// `ip:port` from where the broker ships its log.
        ha_server_addr: String = "haServerAddr",
        /// Whether the smallest id of a set without master is to stand in for it.
        enable_acting_master: Option<bool> = "enableActingMaster",
        /// Whether the body is compressed.
        compressed: bool = "compressed",
        /// CRC-32 of the body without its highest bit; 0: not checked.
        body_crc32: i32 = "bodyCrc32",
    }
}

typed_header! {
    /// Answer to 103; both fields only for a slave whose set has a master registered.
    pub struct NameServerRegisterResponse {
        /// From where the master ships its log.
        ha_server_addr: Option<String> = "haServerAddr",
        /// The master's listener.
        master_addr: Option<String> = "masterAddr",
    }
}

typed_header! {
    /// 104 UNREGISTER_BROKER.
    pub struct NameServerUnregisterRequest {
        /// Cluster.
        cluster_name: String = "clusterName",
        /// Broker set.
        broker_name: String = "brokerName",
        /// `ip:port` of the broker's listener.
        broker_addr: String = "brokerAddr",
        /// As it was registered.
        broker_id: i64 = "brokerId",
    }
}
