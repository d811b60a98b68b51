//! A master and a slave joined by a link that is not to be relied on: what is written, and what must
//! hold at every ack and in the end.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use epochlog_engine::{Message, Store, StoreConfig};
use epochlog_ha::{AckPolicy, AckRequest, HaConfig, HaService, Outcome, SyncStateSet};
use tempfile::TempDir;

pub(crate) const BODY_LEN: usize = 64 << 10;
pub(crate) const PATIENCE: Duration = Duration::from_secs(600);
/// Writes that wait for their acks at once.
const IN_FLIGHT: usize = 64;
const SEGMENT: u64 = 16 << 20;

pub(crate) struct Node {
    _dir: TempDir,
    pub(crate) store: Arc<Store>,
    pub(crate) ha: HaService,
}

impl Node {
    /// A node that gives a silent peer up after half a second.
    pub(crate) fn new(id: u64, listen: SocketAddr, tune: impl FnOnce(&mut HaConfig)) -> Self {
        let dir = TempDir::new().unwrap();
        let mut config = StoreConfig::new(dir.path());
        config.segment_size = SEGMENT;
        let store = Arc::new(Store::open(config).unwrap());
        let mut config = HaConfig::new(id, listen);
        config.heartbeat_interval_ms = 100;
        config.housekeeping_interval_ms = 500;
        config.reconnect_max_ms = 200;
        tune(&mut config);
        let ha = HaService::start(Arc::clone(&store), config).unwrap();
        Self {
            _dir: dir,
            store,
            ha,
        }
    }
}

/// The master of epoch 1 with both in its SyncStateSet, and the slave that follows it at `addr`.
pub(crate) fn begin(master: &Node, slave: &Node, addr: SocketAddr) {
    let set = SyncStateSet::new([1, 2], 1);
    master.ha.become_master(1, set).unwrap();
    slave.ha.become_slave(1, 1, addr).unwrap();
}

pub(crate) fn from_env(name: &str, default: usize) -> usize {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}

/// Writes `count` messages; each must be acknowledged, and not before the slave has it.
pub(crate) fn write_all(master: &Node, slave: &Arc<Store>, count: usize) {
    let host: SocketAddr = "10.99.0.1:10911".parse().unwrap();
    let ack = AckRequest::new(AckPolicy::AllInSync, PATIENCE);
    let (tell, told) = sync_channel::<Result<(), String>>(count);
    let mut body = vec![0; BODY_LEN];
    for i in 0..count {
        if i >= IN_FLIGHT {
            told.recv_timeout(PATIENCE).unwrap().unwrap();
        }
        body[..8].copy_from_slice(&(i as u64).to_be_bytes());
        let message = Message::new("cut", &body, host, 1_700_000_000_000);
        let (tell, slave) = (tell.clone(), Arc::clone(slave));
        master.ha.append(&message, ack, move |outcome| {
            let ended = match outcome {
                Outcome::Acked(appended) if slave.end_offset() >= appended.end => Ok(()),
                Outcome::Acked(appended) => Err(format!("acked before it was there: {appended:?}")),
                other => Err(format!("{other:?}")),
            };
            tell.send(ended).unwrap();
        });
    }
    for _ in 0..count.min(IN_FLIGHT) {
        told.recv_timeout(PATIENCE).unwrap().unwrap();
    }
}

/// Both logs hold the same bytes under the same epochs. Returns how many connections the slave gave up.
pub(crate) fn assert_equal(master: &Node, slave: &Node) -> u64 {
    let end = master.store.end_offset();
    assert_eq!(slave.store.end_offset(), end);
    assert_eq!(master.store.epochs(), slave.store.epochs());
    let mut at = 0;
    while at < end {
        let own = master.store.slice(at, 1 << 20).unwrap();
        let theirs = slave.store.slice(at, 1 << 20).unwrap();
        assert!(own[..] == theirs[..], "the logs differ behind {at}");
        at = own.end();
    }
    let metrics = slave.ha.runtime_info().metrics;
    assert_eq!(metrics.checksum_mismatches, 0);
    metrics.closes_by_slave.values().sum()
}
