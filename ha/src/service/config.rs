//! Settings of the service, with RocketMQ's defaults.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use super::Error;
use crate::frame::{
    Capabilities, HandshakeAnswerForm, LogId, MAX_ADDRESS_LEN, MAX_BODY_LEN, MAX_EXTENDED_BODY_LEN,
    SlaveHandshake, SlaveIdentity,
};
use crate::master::{MasterClose, MasterConnectionConfig};
use crate::slave::SlaveConnectionConfig;
use crate::sync_state::SyncStateLimits;
use crate::transport::{TransportConfig, TransportKind};

/// More than the longest record, so that one can always be acked.
const LEAST_UNACKED: u64 = 32 << 20;

/// How a node replicates. Make one with [`HaConfig::new`] and set the fields that differ.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct HaConfig {
    /// Where slaves connect; port 0 picks one. RocketMQ: haListenPort.
    pub listen: SocketAddr,
    /// This broker's id within its group, as the controller gave it; below 2^32.
    pub broker_id: u64,
    /// Addresses slaves may come from; empty: from anywhere. Whoever can connect can read the log.
    pub allowed_peers: Vec<IpAddr>,
    /// Ids of the brokers that may be slaves; empty: any. A slave that gives no id is then refused.
    pub allowed_brokers: Vec<u64>,
    /// Connections that have not shaken hands yet; further ones are turned away. Default 64.
    pub max_half_open: usize,
    /// A slave of ours gets no more of the log while it has not acked so much of what was sent to it, in
    /// bytes; at least 32 MiB, which is more than a record. Default 64 MiB.
    pub max_unacked_bytes: u64,
    /// As slave, discard the whole log and begin anew where a master can be followed in no other way:
    /// the bytes are kept in `truncated/`. Off, such a master is refused, and `epochlog repair resync`
    /// does it. Default false.
    pub resync_allowed: bool,
    /// Most bytes of log in one frame, 1 to [`MAX_BODY_LEN`]. RocketMQ: haTransferBatchSize, 32768.
    pub transfer_batch_size: u32,
    /// Most bytes of log in one frame to a slave of ours that is far behind, up to
    /// [`MAX_EXTENDED_BODY_LEN`]. Default 1 MiB.
    pub extended_batch_size: u32,
    /// Speak the extension with peers of ours: frames with checksums, reports of what is on disk, large
    /// frames, and a handshake that tells role epoch, segment size and log. Java's peers see nothing
    /// of it. Default true.
    pub extension: bool,
    /// Names the log of this broker set: a slave refuses a master that tells another.
    pub log_id: LogId,
    /// Something is sent at least so often, both ways. RocketMQ: haSendHeartbeatInterval, 5000.
    pub heartbeat_interval_ms: u64,
    /// A peer that says nothing for longer is left. RocketMQ: haHousekeepingInterval, 20000.
    pub housekeeping_interval_ms: u64,
    /// A member of the SyncStateSet that was not level for so long is proposed out. RocketMQ:
    /// haMaxTimeSlaveNotCatchup, 15000.
    pub max_time_slave_not_catchup_ms: u64,
    /// A member without a connection is proposed out after so long. Default 500.
    pub disconnected_member_ms: u64,
    /// Writes are refused while the committed SyncStateSet has fewer members. RocketMQ:
    /// minInSyncReplicas, 1.
    pub min_in_sync_replicas: usize,
    /// Writes are refused while so many wait for their acks. Default 100,000.
    pub max_waiting_writes: usize,
    /// Never join the SyncStateSet. RocketMQ: asyncLearner.
    pub async_learner: bool,
    /// As a new replica, begin with the master's last file only. RocketMQ: syncFromLastFile.
    pub sync_from_last_file: bool,
    /// As slave, report what is on disk instead of what is in memory.
    pub report_flushed: bool,
    /// Also serve slaves of 5.0.0 and 5.1.0, which send an address instead of an id.
    pub accept_address_handshake: bool,
    /// As slave of a master of 5.0.0 or 5.1.0: say this address, its own HA address, in place of the broker
    /// id that 5.1.1 and later ask for. Default none.
    pub slave_address: Option<SocketAddr>,
    /// As master, the ids of slaves that say their address. One that is not named here is served and
    /// counts for nothing.
    pub address_ids: BTreeMap<String, u64>,
    /// The form of the handshake's answer; [`HandshakeAnswerForm::Long`] for 5.0.0 peers, as master
    /// and as slave.
    pub answer_form: HandshakeAnswerForm,
    /// First pause before a slave connects again; doubles up to `reconnect_max_ms`. Default 50.
    pub reconnect_min_ms: u64,
    /// Longest pause before a slave connects again. Default 5000.
    pub reconnect_max_ms: u64,
    /// What carries the master's frames. Default: the raw ring, or `std` where it is refused.
    pub transport: TransportKind,
    /// What carries the slave's connection. Default: the raw ring, or `std` where it is refused.
    pub slave_transport: TransportKind,
    /// Limits of both transports.
    pub transport_config: TransportConfig,
}

impl HaConfig {
    /// The defaults for a broker of this id that listens on `listen`.
    pub fn new(broker_id: u64, listen: SocketAddr) -> Self {
        Self {
            listen,
            broker_id,
            allowed_peers: Vec::new(),
            allowed_brokers: Vec::new(),
            max_half_open: 64,
            max_unacked_bytes: 64 << 20,
            resync_allowed: false,
            transfer_batch_size: 32 * 1024,
            extended_batch_size: 1 << 20,
            extension: true,
            log_id: LogId::UNKNOWN,
            heartbeat_interval_ms: 5000,
            housekeeping_interval_ms: 20_000,
            max_time_slave_not_catchup_ms: 15_000,
            disconnected_member_ms: 500,
            min_in_sync_replicas: 1,
            max_waiting_writes: 100_000,
            async_learner: false,
            sync_from_last_file: false,
            report_flushed: false,
            accept_address_handshake: false,
            slave_address: None,
            address_ids: BTreeMap::new(),
            answer_form: HandshakeAnswerForm::Short,
            reconnect_min_ms: 50,
            reconnect_max_ms: 5000,
            transport: TransportKind::Auto,
            slave_transport: TransportKind::Auto,
            transport_config: TransportConfig::default(),
        }
    }

    /// The defaults on a free port of the loopback address.
    pub fn on_loopback(broker_id: u64) -> Self {
        Self::new(
            broker_id,
            SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0),
        )
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        let refuse = |name, why: String| Err(Error::Setting { name, why });
        if self.transfer_batch_size == 0 || self.transfer_batch_size > MAX_BODY_LEN {
            let size = self.transfer_batch_size;
            let why = format!("{size} is not within 1 and {MAX_BODY_LEN} bytes");
            return refuse("transfer_batch_size", why);
        }
        if self.extended_batch_size == 0 || self.extended_batch_size > MAX_EXTENDED_BODY_LEN {
            let size = self.extended_batch_size;
            let why = format!("{size} is not within 1 and {MAX_EXTENDED_BODY_LEN} bytes");
            return refuse("extended_batch_size", why);
        }
        if self.max_unacked_bytes < LEAST_UNACKED {
            let why = format!("{} is below {LEAST_UNACKED} bytes", self.max_unacked_bytes);
            return refuse("max_unacked_bytes", why);
        }
        if self.broker_id > u64::from(u32::MAX) {
            let why = format!("{} does not fit into 32 bits", self.broker_id);
            return refuse("broker_id", why);
        }
        if let Some(addr) = self.slave_address
            && addr.to_string().len() > MAX_ADDRESS_LEN as usize
        {
            let why = format!("{addr} is longer than {MAX_ADDRESS_LEN} bytes");
            return refuse("slave_address", why);
        }
        if self.heartbeat_interval_ms >= self.housekeeping_interval_ms {
            let why = format!(
                "{} ms must be below housekeeping_interval_ms ({})",
                self.heartbeat_interval_ms, self.housekeeping_interval_ms
            );
            return refuse("heartbeat_interval_ms", why);
        }
        Ok(())
    }

    pub(super) fn allows_addr(&self, addr: IpAddr) -> bool {
        self.allowed_peers.is_empty() || self.allowed_peers.contains(&addr.to_canonical())
    }

    /// Puts the id in the place of an address it is known for.
    pub(super) fn name(&self, hello: &mut SlaveHandshake) {
        if let SlaveIdentity::Address(address) = &hello.identity
            && let Some(id) = self.address_ids.get(address)
        {
            hello.identity = SlaveIdentity::BrokerId(*id);
        }
    }

    pub(super) fn check_broker(&self, hello: &SlaveHandshake) -> Result<(), MasterClose> {
        let broker_id = match hello.identity {
            SlaveIdentity::BrokerId(id) => Some(id),
            SlaveIdentity::Address(_) => None,
        };
        let listed = broker_id.is_some_and(|id| self.allowed_brokers.contains(&id));
        if self.allowed_brokers.is_empty() || listed {
            return Ok(());
        }
        Err(MasterClose::NotAllowed { broker_id })
    }

    pub(super) fn limits(&self) -> SyncStateLimits {
        SyncStateLimits {
            not_catch_up_ms: self.max_time_slave_not_catchup_ms,
            disconnected_ms: self.disconnected_member_ms,
        }
    }

    pub(super) fn master(&self) -> MasterConnectionConfig {
        MasterConnectionConfig {
            transfer_batch_size: self.transfer_batch_size,
            extended_batch_size: self.extended_batch_size,
            extension: self.extension.then_some(Capabilities::ALL),
            max_unacked_bytes: self.max_unacked_bytes,
            log_id: self.log_id,
            heartbeat_interval_ms: self.heartbeat_interval_ms,
            housekeeping_interval_ms: self.housekeeping_interval_ms,
            handshake_wait_ms: 15_000,
            answer_form: self.answer_form,
        }
    }

    pub(super) fn slave(&self, segment_size: u64) -> SlaveConnectionConfig {
        SlaveConnectionConfig {
            handshake: SlaveHandshake {
                sync_from_last_file: self.sync_from_last_file,
                async_learner: self.async_learner,
                identity: match self.slave_address {
                    Some(addr) => SlaveIdentity::Address(addr.to_string()),
                    None => SlaveIdentity::BrokerId(self.broker_id),
                },
                asks: self.extension.then_some(match self.report_flushed {
                    true => Capabilities::ALL,
                    false => Capabilities::ALL.without(Capabilities::DURABLE),
                }),
            },
            log_id: self.log_id,
            segment_size,
            heartbeat_interval_ms: self.heartbeat_interval_ms,
            housekeeping_interval_ms: self.housekeeping_interval_ms,
            reconnect_min_ms: self.reconnect_min_ms,
            reconnect_max_ms: self.reconnect_max_ms,
            report_flushed: self.report_flushed,
        }
    }
}
