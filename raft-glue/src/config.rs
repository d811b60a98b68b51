//! Settings of a controller.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;

use crate::error::Error;
use crate::lease::LEASE_WAIT_LIMIT_MS;
use crate::ledger::LedgerTimings;
use crate::raft_codec::Member;

/// Most controllers in one group.
const PEER_LIMIT: usize = 31;

/// Name of a group that was not given one (RocketMQ: controllerDLegerGroup).
pub const DEFAULT_GROUP: &str = "DefaultControllerGroup";

/// Settings of a controller. The comments name RocketMQ's keys.
#[derive(Clone, Debug)]
pub struct ControllerConfig {
    /// Name of the group (controllerDLegerGroup).
    pub group: String,
    /// Which of the peers this is (controllerDLegerSelfId).
    pub self_id: String,
    /// The first members of the group (controllerDLegerPeers). They matter when the store is new;
    /// after that, they give the addresses of known members only.
    pub peers: Peers,
    /// Begin without a group and wait to be added to the one the other peers form. Matters when the
    /// store is new.
    pub join: bool,
    /// Folder of the store (controllerStorePath); made if it is not there.
    pub store_path: PathBuf,
    /// Where to listen; absent = this one's address among the peers.
    pub listen: Option<SocketAddr>,
    /// Names of the members that should lead where they can (preferredLeaderIds); empty: all alike.
    pub preferred_leaders: BTreeSet<String>,
    /// Clocks of the log.
    pub timings: LedgerTimings,
    /// How often heartbeats are checked for being too old (scanNotActiveBrokerInterval), in ms.
    pub scan_not_active_broker_interval_ms: u64,
    /// How often sets are checked for being without a live master (scanInactiveMasterInterval), in
    /// ms. A closed connection is looked at at once.
    pub scan_inactive_master_interval_ms: u64,
    /// A new leader takes a broker it never heard of for dead after this long, in ms.
    pub grace_ms: u64,
    /// How long a master's last lease is waited for before another is elected, in ms (L_c in
    /// [`crate::lease`]). The same on all controllers of a group.
    pub lease_wait_ms: u64,
    /// May a replica outside the SyncStateSet be elected when nobody in it can
    /// (enableElectUncleanMaster). Acknowledged messages may be lost by it.
    pub enable_elect_unclean_master: bool,
    /// Tell brokers of a new master at once (notifyBrokerRoleChanged).
    pub notify_broker_role_changed: bool,
    /// Most connections at a time.
    pub max_connections: usize,
}

impl ControllerConfig {
    /// A controller with default clocks and limits.
    ///
    /// # Errors
    /// Peers that cannot be read, or a self id that is not among them.
    pub fn new(
        self_id: impl Into<String>,
        peers: &str,
        store_path: impl Into<PathBuf>,
    ) -> Result<Self, Error> {
        let config = Self {
            group: DEFAULT_GROUP.to_owned(),
            self_id: self_id.into(),
            peers: Peers::parse(peers)?,
            join: false,
            store_path: store_path.into(),
            listen: None,
            preferred_leaders: BTreeSet::new(),
            timings: LedgerTimings::default(),
            scan_not_active_broker_interval_ms: 500,
            scan_inactive_master_interval_ms: 500,
            grace_ms: crate::liveness::DEFAULT_TIMEOUT_MS,
            lease_wait_ms: crate::lease::DEFAULT_LEASE_WAIT_MS,
            enable_elect_unclean_master: false,
            notify_broker_role_changed: true,
            max_connections: 4096,
        };
        config.me()?;
        Ok(config)
    }

    /// Id and entry of this controller among the peers.
    pub(crate) fn me(&self) -> Result<(u64, &Member), Error> {
        let id = member_id(&self.self_id);
        match self.peers.0.get(&id) {
            Some(member) if member.name == self.self_id => Ok((id, member)),
            _ => Err(Error::Setting {
                key: "controllerDLegerSelfId",
                why: format!(
                    "{} is not among the peers {}",
                    self.self_id,
                    self.peers.text()
                ),
            }),
        }
    }

    /// Checks the settings that depend on each other.
    pub(crate) fn check(&self) -> Result<(), Error> {
        self.me()?;
        self.timings.check()?;
        let intervals = [
            (
                "scanNotActiveBrokerInterval",
                self.scan_not_active_broker_interval_ms,
            ),
            (
                "scanInactiveMasterInterval",
                self.scan_inactive_master_interval_ms,
            ),
        ];
        for (key, interval) in intervals {
            check_interval(key, interval)?;
        }
        if !(10..=LEASE_WAIT_LIMIT_MS).contains(&self.lease_wait_ms) {
            return Err(Error::Setting {
                key: "leaseWaitMills",
                why: format!(
                    "{} ms is not in 10..={LEASE_WAIT_LIMIT_MS}",
                    self.lease_wait_ms
                ),
            });
        }
        if self.grace_ms < self.lease_wait_ms {
            return Err(Error::Setting {
                key: "leaseWaitMills",
                why: format!(
                    "{} ms is longer than a new leader waits for brokers it never heard of ({} ms)",
                    self.lease_wait_ms, self.grace_ms
                ),
            });
        }
        for name in &self.preferred_leaders {
            check_name(name).map_err(|why| Error::Setting {
                key: "preferredLeaderIds",
                why: format!("{name}: {why}"),
            })?;
        }
        if self.group.is_empty() || self.group.len() > 255 {
            let why = "it must be 1 to 255 bytes long".to_owned();
            return Err(Error::Setting {
                key: "controllerDLegerGroup",
                why,
            });
        }
        Ok(())
    }
}

pub(crate) fn check_interval(key: &'static str, interval_ms: u64) -> Result<(), Error> {
    if (10..=60_000).contains(&interval_ms) {
        return Ok(());
    }
    Err(Error::Setting {
        key,
        why: format!("{interval_ms} ms is not in 10..=60000"),
    })
}

/// The members of a group of controllers by their ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peers(BTreeMap<u64, Member>);

impl Peers {
    /// Reads RocketMQ's text: `n0-host:port;n1-host:port`.
    ///
    /// # Errors
    /// What is wrong, with the entry it is wrong in.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let bad = |why: String| Error::Setting {
            key: "controllerDLegerPeers",
            why,
        };
        let mut peers = BTreeMap::new();
        for entry in text
            .split(';')
            .map(str::trim)
            .filter(|entry| !entry.is_empty())
        {
            let member = parse_peer(entry).map_err(|why| bad(format!("{entry}: {why}")))?;
            let is_twice = peers
                .values()
                .any(|known: &Member| known.address == member.address);
            if is_twice || peers.insert(member_id(&member.name), member).is_some() {
                return Err(bad(format!("{entry}: its name or address is there twice")));
            }
        }
        if peers.is_empty() || peers.len() > PEER_LIMIT {
            return Err(bad(format!(
                "{} peers: it must be 1 to {PEER_LIMIT}",
                peers.len()
            )));
        }
        Ok(Self(peers))
    }

    /// By id.
    #[must_use]
    pub fn members(&self) -> &BTreeMap<u64, Member> {
        &self.0
    }

    /// RocketMQ's text again.
    #[must_use]
    pub fn text(&self) -> String {
        let entries: Vec<String> = self
            .0
            .values()
            .map(|member| format!("{}-{}", member.name, member.address))
            .collect();
        entries.join(";")
    }
}

/// Checks the name of a member.
pub(crate) fn check_name(name: &str) -> Result<(), &'static str> {
    if name.is_empty() || name.len() > 64 || name.contains(['-', ';']) {
        return Err("a name has 1 to 64 bytes, without '-' and ';'");
    }
    Ok(())
}

/// Reads one entry of RocketMQ's text, `n0-host:port`.
pub(crate) fn parse_peer(entry: &str) -> Result<Member, &'static str> {
    let (name, address) = entry.split_once('-').ok_or("it must be name-host:port")?;
    let (host, port) = address
        .rsplit_once(':')
        .ok_or("it must be name-host:port")?;
    if name.is_empty() || name.len() > 64 || host.is_empty() || host.len() > 255 {
        return Err("name or host is empty or too long");
    }
    if port.parse::<u16>().map_or(true, |port| port == 0) {
        return Err("the port must be 1 to 65535");
    }
    let host = host.trim_start_matches('[').trim_end_matches(']');
    if host
        .parse::<std::net::IpAddr>()
        .is_ok_and(|ip| ip.is_unspecified())
    {
        return Err("no other controller and no broker can reach this address");
    }
    Ok(Member {
        name: name.to_owned(),
        address: address.to_owned(),
    })
}

/// `n0` is 1, `n1` is 2 and so on; another name has a number of its own, above those.
pub(crate) fn member_id(name: &str) -> u64 {
    let digits = name.strip_prefix('n').filter(|digits| {
        !digits.is_empty() && digits.len() <= 6 && digits.bytes().all(|byte| byte.is_ascii_digit())
    });
    if let Some(number) = digits.and_then(|digits| digits.parse::<u64>().ok()) {
        return number + 1;
    }
    // FNV-1a with the top half set: never 0, never one of the numbers above.
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    (hash >> 2) | (1 << 61)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rocketmq_peers_are_read_and_written() {
        let text = "n0-127.0.0.1:9876;n1-host-b.example:9877;x-[::1]:9878";
        let peers = Peers::parse(&format!(" {text};")).unwrap();
        assert_eq!(peers.members()[&1].address, "127.0.0.1:9876");
        assert_eq!(peers.members()[&2].address, "host-b.example:9877");
        assert_eq!(peers.text(), text);
        assert_eq!(member_id("n30"), 31);
        assert!(member_id("node") > 1 << 60 && member_id("n") != member_id("nx"));
        assert_ne!(member_id("n1234567"), 1_234_568);
    }

    #[test]
    fn b12_a_bad_peer_is_named() {
        for (text, why) in [
            ("", "0 peers"),
            ("n0", "name-host:port"),
            ("n0-host", "name-host:port"),
            ("n0-host:x", "port"),
            ("n0-host:0", "port"),
            ("n0-:1", "empty"),
            ("n0-0.0.0.0:9876", "can reach"),
            ("n0-[::]:9876", "can reach"),
            ("n0-h:1;n0-h:2", "twice"),
            ("n0-h:1;n1-h:1", "twice"),
        ] {
            let error = Peers::parse(text).unwrap_err().to_string();
            assert!(
                error.contains(why) && error.contains("controllerDLegerPeers"),
                "{error}"
            );
        }
    }

    #[test]
    fn settings_at_odds_are_refused_by_key() {
        let good = ControllerConfig::new("n0", "n0-h:1;n1-h:2;n2-h:3", "/x").unwrap();
        good.check().unwrap();
        assert!(ControllerConfig::new("n7", "n0-h:1", "/x").is_err());
        let check = |change: &dyn Fn(&mut ControllerConfig), key: &str| {
            let mut config = good.clone();
            change(&mut config);
            let error = config.check().unwrap_err().to_string();
            assert!(error.starts_with(key), "{error}");
        };
        check(
            &|c| c.scan_inactive_master_interval_ms = 0,
            "scanInactiveMasterInterval",
        );
        check(
            &|c| c.scan_not_active_broker_interval_ms = 1 << 40,
            "scanNotActiveBrokerInterval",
        );
        check(&|c| c.lease_wait_ms = 9, "leaseWaitMills");
        check(&|c| c.grace_ms = c.lease_wait_ms - 1, "leaseWaitMills");
        check(&|c| c.group = String::new(), "controllerDLegerGroup");
        check(&|c| c.timings.election_min_ms = 100, "controller timings");
        check(&|c| c.timings.election_max_ms = 310, "controller timings");
        check(&|c| c.timings.heartbeat_ms = 10, "controller timings");
        check(&|c| c.timings.tick_ms = 0, "controller timings");
        check(&|c| c.timings.append_timeout_ms = 1, "controller timings");
    }
}
