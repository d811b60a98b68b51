//! controller.conf: what a controller is told (RocketMQ: ControllerConfig).

use std::path::{Path, PathBuf};
use std::time::Duration;

use epochlog_raft_glue::DEFAULT_GROUP;

use super::broker::home;
use super::{ConfError, Reader};

/// One entry of `controllerDLegerPeers`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControllerPeer {
    /// `n0`.
    pub id: String,
    /// `host:port`.
    pub address: String,
}

/// The settings of one controller. Field names follow Java's keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControllerConf {
    /// `controllerDLegerGroup`.
    pub group: String,
    /// `controllerDLegerPeers`, `n0-host:port;n1-host:port`.
    pub peers: Vec<ControllerPeer>,
    /// `controllerDLegerSelfId`: one of the peers.
    pub self_id: String,
    /// `controllerJoin`, not one of Java's: begin empty and wait to be added to the running group
    /// that the other peers form.
    pub join: bool,
    /// `preferredLeaderIds`, DLedger's: ids of the members that should lead where they can.
    pub preferred_leaders: Vec<String>,
    /// `bindAddress`; `None`: the address of the own peer entry.
    pub bind_ip: Option<std::net::IpAddr>,
    /// `controllerStorePath`.
    pub store_dir: PathBuf,
    /// `scanNotActiveBrokerInterval`; 500 ms, where RocketMQ has 5000.
    pub scan_not_active_interval: Duration,
    /// `scanInactiveMasterInterval`; 500 ms, where RocketMQ has 5000.
    pub scan_inactive_master_interval: Duration,
    /// `leaseWaitMills`, not one of Java's: how long a master's last lease is waited for before
    /// another is elected.
    pub lease_wait: Duration,
    /// `electionTimeoutMinMills` and `electionTimeoutMaxMills`, not Java's: a controller that hears
    /// of no leader for a random time between them seeks votes.
    pub election_timeout: (Duration, Duration),
    /// `enableElectUncleanMaster`.
    pub elect_unclean_master: bool,
    /// `notifyBrokerRoleChanged`.
    pub notify_role_changed: bool,
    /// One text per key without effect, and per repeated key.
    pub warnings: Vec<String>,
    /// Every supported key that was read, with the value in force.
    pub effective: Vec<(&'static str, String)>,
}

/// Most controllers in a group.
const MAX_PEERS: usize = 31;

impl ControllerConf {
    /// Reads `controller.conf`.
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
        keys.parsed("controllerType", "DLedger".to_owned(), "DLedger", |text| {
            text.eq_ignore_ascii_case("DLedger")
                .then(|| text.to_owned())
        })?;
        let peers = peers(&mut keys)?;
        let self_id = keys
            .text("controllerDLegerSelfId")
            .ok_or_else(|| keys.missing("controllerDLegerSelfId", "which of the peers this is"))?;
        if !peers.iter().any(|peer| peer.id == self_id) {
            let allowed = "an id of controllerDLegerPeers";
            return Err(keys.bad("controllerDLegerSelfId", &self_id, allowed));
        }
        let bind_ip = match keys.text("bindAddress") {
            None => None,
            Some(text) => Some(
                text.parse()
                    .map_err(|_| keys.bad("bindAddress", &text, "an IP address"))?,
            ),
        };
        let mut conf = Self {
            group: keys.text_or("controllerDLegerGroup", DEFAULT_GROUP),
            peers,
            self_id,
            join: keys.flag("controllerJoin", false)?,
            preferred_leaders: preferred_leaders(&mut keys)?,
            bind_ip,
            store_dir: PathBuf::from(
                keys.text_or("controllerStorePath", home("DLedgerController")),
            ),
            scan_not_active_interval: keys.ms("scanNotActiveBrokerInterval", 500)?,
            scan_inactive_master_interval: keys.ms("scanInactiveMasterInterval", 500)?,
            lease_wait: keys.ms("leaseWaitMills", 1500)?,
            election_timeout: (
                keys.ms("electionTimeoutMinMills", 300)?,
                keys.ms("electionTimeoutMaxMills", 600)?,
            ),
            elect_unclean_master: keys.flag("enableElectUncleanMaster", false)?,
            notify_role_changed: keys.flag("notifyBrokerRoleChanged", true)?,
            warnings: Vec::new(),
            effective: Vec::new(),
        };
        (conf.warnings, conf.effective) = keys.finish();
        Ok(conf)
    }

    /// The `host:port` of this controller's own entry.
    #[must_use]
    pub fn self_address(&self) -> &str {
        let own = self.peers.iter().find(|peer| peer.id == self.self_id);
        own.map_or("", |peer| &peer.address)
    }
}

fn peers(keys: &mut Reader) -> Result<Vec<ControllerPeer>, ConfError> {
    const KEY: &str = "controllerDLegerPeers";
    let text = keys
        .text(KEY)
        .ok_or_else(|| keys.missing(KEY, "all controllers, as n0-host:port;n1-host:port"))?;
    let allowed = "n0-host:port;n1-host:port, every id and address once, at most 31";
    let mut peers: Vec<ControllerPeer> = Vec::new();
    for entry in text
        .split(';')
        .map(str::trim)
        .filter(|entry| !entry.is_empty())
    {
        let peer = peer(entry).filter(|peer| {
            !peers
                .iter()
                .any(|other| other.id == peer.id || other.address == peer.address)
        });
        peers.push(peer.ok_or_else(|| keys.bad(KEY, &text, allowed))?);
    }
    if peers.is_empty() || peers.len() > MAX_PEERS {
        return Err(keys.bad(KEY, &text, allowed));
    }
    Ok(peers)
}

/// They need not be among the peers of this file: members come and go.
fn preferred_leaders(keys: &mut Reader) -> Result<Vec<String>, ConfError> {
    const KEY: &str = "preferredLeaderIds";
    let Some(text) = keys.text(KEY) else {
        return Ok(Vec::new());
    };
    let ids = text.split([';', ',']).map(str::trim);
    let ids: Vec<String> = ids.filter(|id| !id.is_empty()).map(str::to_owned).collect();
    if ids.iter().any(|id| id.len() > 64 || id.contains('-')) {
        return Err(keys.bad(KEY, &text, "ids of controllers, such as n0;n1"));
    }
    Ok(ids)
}

fn peer(entry: &str) -> Option<ControllerPeer> {
    let (id, address) = entry.split_once('-')?;
    let (host, port) = address.rsplit_once(':')?;
    let port: u16 = port.parse().ok()?;
    (!id.is_empty() && !host.is_empty() && port > 0).then(|| ControllerPeer {
        id: id.to_owned(),
        address: address.to_owned(),
    })
}
