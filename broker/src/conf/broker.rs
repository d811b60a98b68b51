//! broker.conf: what a replica of a broker set is told (RocketMQ: BrokerConfig, MessageStoreConfig,
//! NettyServerConfig).

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use epochlog_raft_glue::client::Addresses;
use epochlog_raft_glue::lease::LeaseTimes;

use super::retention::RetentionConf;
use super::{ConfError, Reader};
use crate::clock;

/// When a record counts as flushed (RocketMQ: FlushDiskType).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlushDiskType {
    /// Acknowledged from memory.
    Async,
    /// Acknowledged when on disk.
    Sync,
}

impl fmt::Display for FlushDiskType {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Async => "ASYNC_FLUSH",
            Self::Sync => "SYNC_FLUSH",
        })
    }
}

/// The settings of one broker. Field names follow Java's keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrokerConf {
    /// `brokerClusterName`.
    pub cluster_name: String,
    /// `brokerName`: the broker set.
    pub broker_name: String,
    /// `brokerIP1`; `None`: the local address from which the first controller is reached.
    pub broker_ip: Option<IpAddr>,
    /// `brokerIP2`, what slaves are told; `None`: as `brokerIP1`.
    pub ha_ip: Option<IpAddr>,
    /// `bindAddress` and `listenPort`.
    pub listen: SocketAddr,
    /// `bindAddress` and `haListenPort`, which defaults to listenPort + 1.
    pub ha_listen: SocketAddr,
    /// `storePathRootDir`.
    pub store_dir: PathBuf,
    /// `storePathBrokerIdentity`.
    pub identity_path: PathBuf,
    /// `mappedFileSizeCommitLog`, bytes.
    pub segment_size: u64,
    /// `mappedFileSizeConsumeQueue`, bytes; rounded up to whole units, as Java does.
    pub queue_file_size: u64,
    /// When old segments go.
    pub retention: RetentionConf,
    /// `flushDiskType`.
    pub flush_disk_type: FlushDiskType,
    /// `enabledAppendPropCRC`.
    pub append_property_crc: bool,
    /// `maxMessageSize`, bytes of body.
    pub max_message_len: usize,
    /// `enableControllerMode`.
    pub controller_mode: bool,
    /// `controllerAddr`.
    pub controller_addr: String,
    /// `namesrvAddr`: the name servers to register with; `None`: with none.
    pub name_servers: Option<Addresses>,
    /// `allAckInSyncStateSet`.
    pub all_ack_in_sync_state_set: bool,
    /// `inSyncReplicas`.
    pub in_sync_replicas: u32,
    /// `minInSyncReplicas`.
    pub min_in_sync_replicas: u32,
    /// `asyncLearner`.
    pub async_learner: bool,
    /// `haAllowedPeers`: from where slaves may connect; empty: from anywhere.
    pub ha_allowed_peers: Vec<IpAddr>,
    /// `haAllowedBrokerIds`: who may be a slave; empty: any broker.
    pub ha_allowed_broker_ids: Vec<u64>,
    /// `haAutoResync`: discard this log where a master can be followed in no other way.
    pub ha_auto_resync: bool,
    /// `haTransferBatchSize`, bytes.
    pub ha_transfer_batch_len: usize,
    /// `haSendHeartbeatInterval`.
    pub ha_heartbeat_interval: Duration,
    /// `haHousekeepingInterval`.
    pub ha_housekeeping_interval: Duration,
    /// `haMaxTimeSlaveNotCatchup`.
    pub ha_max_time_slave_not_catchup: Duration,
    /// `slaveTimeout`: how long a send waits for replicas.
    pub slave_timeout: Duration,
    /// `syncFlushTimeout`: how long a send waits for the disk.
    pub sync_flush_timeout: Duration,
    /// `brokerHeartbeatInterval`.
    pub heartbeat_interval: Duration,
    /// `leaseMills`, not one of Java's: for how long a controller's answer to a heartbeat allows to
    /// acknowledge.
    pub lease: Duration,
    /// `leaseAckMills`, not one of Java's: how long an acknowledgement may be on its way out.
    pub lease_ack: Duration,
    /// `controllerHeartBeatTimeoutMills`: after this much silence the controller takes us for dead.
    pub heartbeat_timeout: Duration,
    /// `syncBrokerMetadataPeriod`.
    pub metadata_period: Duration,
    /// `checkSyncStateSetPeriod`.
    pub sync_state_set_period: Duration,
    /// `brokerElectionPriority`: smaller is preferred.
    pub election_priority: i32,
    /// `autoCreateTopicEnable`.
    pub auto_create_topic: bool,
    /// `defaultTopicQueueNums`.
    pub default_topic_queue_nums: i32,
    /// `regionId`.
    pub region_id: String,
    /// `traceOn`.
    pub trace_on: bool,
    /// `startAcceptSendRequestTimeStamp`, ms since 1970.
    pub accept_send_from_ms: i64,
    /// One text per key without effect, and per repeated key.
    pub warnings: Vec<String>,
    /// Every supported key that was read, with the value in force.
    pub effective: Vec<(&'static str, String)>,
}

const ADDRESSES: &str = "IP addresses, with commas between";
const IDS: &str = "broker ids, with commas between";

impl BrokerConf {
    /// Reads `broker.conf`.
    ///
    /// # Errors
    /// [`ConfError`], naming file, line and key.
    pub fn open(path: &Path) -> Result<Self, ConfError> {
        Self::read(Reader::open(path)?)
    }

    /// Reads the keys of an opened file.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn read(mut keys: Reader) -> Result<Self, ConfError> {
        let controller_mode = keys.flag("enableControllerMode", false)?;
        refuse_without_controller(&mut keys, controller_mode)?;
        let listen_port = port(&mut keys, "listenPort", 10911)?;
        let ha_port = port(&mut keys, "haListenPort", listen_port.saturating_add(1))?;
        let unspecified = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        let bind = keys.parsed("bindAddress", unspecified, "an IP address", |t| {
            t.parse().ok()
        })?;
        let store_dir = PathBuf::from(keys.text_or("storePathRootDir", home("store")));
        let identity = store_dir.join("brokerIdentity");
        let identity = keys.text_or("storePathBrokerIdentity", identity.to_string_lossy());
        let controller_addr = keys.text("controllerAddr");
        let controller_addr = controller_addr.ok_or_else(|| {
            keys.missing("controllerAddr", "the controllers, as host:port;host:port")
        })?;
        // Names are always resolved to all their addresses, which is what this key asks for.
        keys.flag("fetchControllerAddrByDnsLookup", false)?;
        let mut conf = Self {
            cluster_name: name(&mut keys, "brokerClusterName", "DefaultCluster")?,
            broker_name: name(&mut keys, "brokerName", &host_name())?,
            broker_ip: ip(&mut keys, "brokerIP1")?,
            ha_ip: ip(&mut keys, "brokerIP2")?,
            listen: SocketAddr::new(bind, listen_port),
            ha_listen: SocketAddr::new(bind, ha_port),
            store_dir,
            identity_path: PathBuf::from(identity),
            segment_size: keys.number("mappedFileSizeCommitLog", 1 << 30, 4096, (1 << 31) - 1)?,
            queue_file_size: keys
                .number("mappedFileSizeConsumeQueue", 6_000_000, 20, 1 << 29)?
                .next_multiple_of(20),
            retention: RetentionConf::read(&mut keys)?,
            flush_disk_type: flush_disk_type(&mut keys)?,
            append_property_crc: keys.flag("enabledAppendPropCRC", false)?,
            max_message_len: len(&mut keys, "maxMessageSize", 4 << 20, 10, 15 << 20)?,
            controller_mode,
            controller_addr,
            name_servers: name_servers(&mut keys, listen_port)?,
            all_ack_in_sync_state_set: keys.flag("allAckInSyncStateSet", false)?,
            in_sync_replicas: count(&mut keys, "inSyncReplicas", 1)?,
            min_in_sync_replicas: count(&mut keys, "minInSyncReplicas", 1)?,
            async_learner: keys.flag("asyncLearner", false)?,
            ha_allowed_peers: list(&mut keys, "haAllowedPeers", ADDRESSES)?,
            ha_allowed_broker_ids: list(&mut keys, "haAllowedBrokerIds", IDS)?,
            ha_auto_resync: keys.flag("haAutoResync", false)?,
            ha_transfer_batch_len: len(&mut keys, "haTransferBatchSize", 32768, 64, 4_194_268)?,
            ha_heartbeat_interval: keys.ms("haSendHeartbeatInterval", 5000)?,
            ha_housekeeping_interval: keys.ms("haHousekeepingInterval", 20000)?,
            ha_max_time_slave_not_catchup: keys.ms("haMaxTimeSlaveNotCatchup", 15000)?,
            slave_timeout: keys.ms("slaveTimeout", 3000)?,
            sync_flush_timeout: keys.ms("syncFlushTimeout", 5000)?,
            heartbeat_interval: keys.ms("brokerHeartbeatInterval", 250)?,
            lease: keys.ms("leaseMills", 1200)?,
            lease_ack: keys.ms("leaseAckMills", 100)?,
            heartbeat_timeout: keys.ms("controllerHeartBeatTimeoutMills", 10000)?,
            metadata_period: keys.ms("syncBrokerMetadataPeriod", 5000)?,
            sync_state_set_period: keys.ms("checkSyncStateSetPeriod", 5000)?,
            election_priority: priority(&mut keys)?,
            auto_create_topic: keys.flag("autoCreateTopicEnable", true)?,
            default_topic_queue_nums: queue_nums(&mut keys)?,
            region_id: keys.text_or("regionId", "DefaultRegion"),
            trace_on: keys.flag("traceOn", true)?,
            accept_send_from_ms: accept_send_from(&mut keys)?,
            warnings: Vec::new(),
            effective: Vec::new(),
        };
        conf.check(&keys)?;
        (conf.warnings, conf.effective) = keys.finish();
        Ok(conf)
    }

    /// The lease's times, with heartbeats often enough that a lost one does no harm.
    #[must_use]
    pub fn lease_times(&self) -> LeaseTimes {
        let lease_ms = clock::ms(self.lease);
        LeaseTimes {
            heartbeat_ms: clock::ms(self.heartbeat_interval).min(lease_ms / 4).max(1),
            lease_ms,
            ack_ms: clock::ms(self.lease_ack),
        }
    }

    /// Relations between keys.
    fn check(&self, keys: &Reader) -> Result<(), ConfError> {
        if self.listen.port() == self.ha_listen.port() {
            let value = self.ha_listen.port().to_string();
            return Err(keys.bad("haListenPort", &value, "a port other than listenPort"));
        }
        let asked_by_slaves = self.listen.port().saturating_sub(2);
        if self.name_servers.is_some() && self.ha_listen.port() == asked_by_slaves {
            let value = self.ha_listen.port().to_string();
            let allowed = "a port other than listenPort - 2, where Java slaves ask for topics";
            return Err(keys.bad("haListenPort", &value, allowed));
        }
        if self.heartbeat_timeout <= self.heartbeat_interval {
            let value = self.heartbeat_timeout.as_millis().to_string();
            let allowed = "more than brokerHeartbeatInterval";
            return Err(keys.bad("controllerHeartBeatTimeoutMills", &value, allowed));
        }
        if self.lease + self.lease_ack >= self.heartbeat_timeout {
            let value = self.lease.as_millis().to_string();
            let allowed = "with leaseAckMills less than controllerHeartBeatTimeoutMills";
            return Err(keys.bad("leaseMills", &value, allowed));
        }
        if let Err(error) = self.lease_times().check() {
            let value = self.lease.as_millis().to_string();
            return Err(keys.bad("leaseMills", &value, &error.to_string()));
        }
        if !self.all_ack_in_sync_state_set && self.in_sync_replicas < self.min_in_sync_replicas {
            let value = self.in_sync_replicas.to_string();
            let allowed = "at least minInSyncReplicas, or allAckInSyncStateSet=true";
            return Err(keys.bad("inSyncReplicas", &value, allowed));
        }
        Ok(())
    }
}

/// Without a controller Java takes the role from `brokerRole`; that mode is not there yet.
fn refuse_without_controller(keys: &mut Reader, controller_mode: bool) -> Result<(), ConfError> {
    let role = keys.text("brokerRole");
    if !controller_mode {
        let allowed = "true; a broker that takes its role from brokerRole instead of a controller \
                       is not supported yet";
        return Err(keys.bad("enableControllerMode", "false", allowed));
    }
    match role.as_deref() {
        None | Some("ASYNC_MASTER" | "SYNC_MASTER" | "SLAVE") => Ok(()),
        Some(other) => Err(keys.bad("brokerRole", other, "ASYNC_MASTER, SYNC_MASTER or SLAVE")),
    }
}

/// A broker that registers listens two ports below `listenPort` too.
fn name_servers(keys: &mut Reader, listen_port: u16) -> Result<Option<Addresses>, ConfError> {
    // As with controllers: names are always resolved to all their addresses.
    keys.flag("fetchNameSrvAddrByDnsLookup", false)?;
    let Some(text) = keys.text("namesrvAddr") else {
        return Ok(None);
    };
    let addresses = Addresses::parse(&text);
    let addresses = addresses.map_err(|_| keys.bad("namesrvAddr", &text, "host:port;host:port"))?;
    if listen_port < 3 {
        let allowed = "at least 3 with namesrvAddr: Java slaves ask at listenPort - 2";
        return Err(keys.bad("listenPort", &listen_port.to_string(), allowed));
    }
    Ok(Some(addresses))
}

/// Values with commas between; none is an empty list.
fn list<T: FromStr>(
    keys: &mut Reader,
    key: &'static str,
    allowed: &str,
) -> Result<Vec<T>, ConfError> {
    let Some(text) = keys.text(key) else {
        return Ok(Vec::new());
    };
    let values = text
        .split(',')
        .map(str::trim)
        .filter(|word| !word.is_empty());
    let parsed: Result<_, _> = values.map(T::from_str).collect();
    parsed.map_err(|_| keys.bad(key, &text, allowed))
}

fn port(keys: &mut Reader, key: &'static str, default: u16) -> Result<u16, ConfError> {
    let parse = |text: &str| text.parse().ok().filter(|port| *port > 0);
    keys.parsed(key, default, "a port from 1 to 65535", parse)
}

fn ip(keys: &mut Reader, key: &'static str) -> Result<Option<IpAddr>, ConfError> {
    let Some(text) = keys.text(key) else {
        return Ok(None);
    };
    match text.parse::<IpAddr>() {
        Ok(ip) if !ip.is_unspecified() => Ok(Some(ip)),
        _ => Err(keys.bad(key, &text, "the IP address others reach this broker at")),
    }
}

/// `#` separates the fields of the identity file, `/` and control characters help nobody.
fn name(keys: &mut Reader, key: &'static str, default: &str) -> Result<String, ConfError> {
    let fits = |text: &str| {
        let ok = text.len() <= 255 && !text.chars().any(|c| c == '#' || c == '/' || c.is_control());
        ok.then(|| text.to_owned())
    };
    keys.parsed(
        key,
        default.to_owned(),
        "at most 255 bytes without '#' and '/'",
        fits,
    )
}

fn flush_disk_type(keys: &mut Reader) -> Result<FlushDiskType, ConfError> {
    let allowed = "ASYNC_FLUSH or SYNC_FLUSH";
    keys.parsed(
        "flushDiskType",
        FlushDiskType::Async,
        allowed,
        |text| match text {
            "ASYNC_FLUSH" => Some(FlushDiskType::Async),
            "SYNC_FLUSH" => Some(FlushDiskType::Sync),
            _ => None,
        },
    )
}

fn len(
    keys: &mut Reader,
    key: &'static str,
    default: u64,
    min: u64,
    max: u64,
) -> Result<usize, ConfError> {
    let value = keys.number(key, default, min, max)?;
    Ok(usize::try_from(value).unwrap_or(usize::MAX))
}

fn count(keys: &mut Reader, key: &'static str, default: u64) -> Result<u32, ConfError> {
    let value = keys.number(key, default, 1, 128)?;
    Ok(u32::try_from(value).unwrap_or(u32::MAX))
}

fn priority(keys: &mut Reader) -> Result<i32, ConfError> {
    let allowed = "a whole number from 0 to 2147483647; smaller is preferred";
    let parse = |text: &str| text.parse().ok().filter(|priority| *priority >= 0);
    keys.parsed("brokerElectionPriority", i32::MAX, allowed, parse)
}

fn queue_nums(keys: &mut Reader) -> Result<i32, ConfError> {
    let allowed = "a whole number from 1 to 1024";
    let parse = |text: &str| text.parse().ok().filter(|nums| (1..=1024).contains(nums));
    keys.parsed("defaultTopicQueueNums", 8, allowed, parse)
}

fn accept_send_from(keys: &mut Reader) -> Result<i64, ConfError> {
    let allowed = "ms since 1970";
    keys.parsed("startAcceptSendRequestTimeStamp", 0, allowed, |text| {
        text.parse().ok()
    })
}

/// Java's default folders lie in the home directory.
pub(super) fn home(name: &str) -> String {
    let home = std::env::var("HOME").unwrap_or_else(|_| ".".into());
    format!("{home}/{name}")
}

fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = name.trim();
    if name.is_empty() {
        "DEFAULT_BROKER".into()
    } else {
        name.to_owned()
    }
}
