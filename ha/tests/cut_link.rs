//! A master and a slave in two network namespaces, joined by a pair of virtual interfaces with delay
//! and loss where `tc` offers them. The link is taken down in the middle of the transfer, again and
//! again: every write is acknowledged in the end, none before the slave has it, and both logs are equal.
//!
//! Needs root, `ip`, and the right to make namespaces; elsewhere it says that it was left out.
//! `EPOCHLOG_LINK_MIB` and `EPOCHLOG_LINK_CUTS` make it longer.
#![expect(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

use std::fs::File;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use epochlog_engine::{Message, Store, StoreConfig};
use epochlog_ha::{AckPolicy, AckRequest, HaConfig, HaService, Outcome, SyncStateSet};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tempfile::TempDir;

const BODY_LEN: usize = 64 << 10;
/// Writes that wait for their acks at once.
const IN_FLIGHT: usize = 64;
const SEGMENT: u64 = 16 << 20;
/// Longer than a silent peer is waited for.
const DOWN: Duration = Duration::from_millis(900);
const PATIENCE: Duration = Duration::from_secs(600);

/// Two namespaces and the link between them; gone when dropped.
struct Link {
    near: String,
    far: String,
    device: String,
    netem: bool,
}

/// Runs a program and returns whether it could do what it was asked for.
fn does(line: &str) -> bool {
    let mut words = line.split(' ');
    let output = Command::new(words.next().unwrap()).args(words).output();
    output.is_ok_and(|output| output.status.success())
}

impl Link {
    /// None where namespaces or interfaces are not to be had.
    fn new() -> Option<Self> {
        let id = std::process::id();
        let mut link = Self {
            near: format!("epochlog-near-{id}"),
            far: format!("epochlog-far-{id}"),
            device: format!("eln{id}"),
            netem: false,
        };
        let (near, far, device) = (&link.near, &link.far, &link.device);
        let peer = format!("elf{id}");
        let lines = [
            format!("ip netns add {near}"),
            format!("ip netns add {far}"),
            format!("ip link add {device} type veth peer name {peer}"),
            format!("ip link set {device} netns {near}"),
            format!("ip link set {peer} netns {far}"),
            format!("ip -n {near} addr add 10.99.0.1/24 dev {device}"),
            format!("ip -n {far} addr add 10.99.0.2/24 dev {peer}"),
            format!("ip -n {near} link set {device} up"),
            format!("ip -n {far} link set {peer} up"),
        ];
        if let Some(line) = lines.iter().find(|line| !does(line)) {
            eprintln!("left out: `{line}` does not work here");
            return None;
        }
        let netem = "root netem delay 1ms 500us loss 0.1% reorder 1%";
        link.netem = does(&format!(
            "ip netns exec {near} tc qdisc add dev {device} {netem}"
        ));
        eprintln!("netem (delay, loss, reordering): {}", link.netem);
        Some(link)
    }

    fn set(&self, state: &str) {
        let (near, device) = (&self.near, &self.device);
        assert!(does(&format!("ip -n {near} link set {device} {state}")));
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // What is not there need not go.
        let _ = does(&format!("ip netns del {}", self.near));
        let _ = does(&format!("ip netns del {}", self.far));
    }
}

struct Node {
    _dir: TempDir,
    store: Arc<Store>,
    ha: HaService,
}

/// A node whose sockets are in the namespace: those of a thread are where it was started.
fn node(namespace: &str, id: u64, addr: &str) -> Node {
    let path = Path::new("/run/netns").join(namespace);
    let listen: SocketAddr = format!("{addr}:10912").parse().unwrap();
    let start = move || {
        let namespace = File::open(path).unwrap();
        let kind = Some(LinkNameSpaceType::Network);
        move_into_link_name_space(namespace.as_fd(), kind).unwrap();
        let dir = TempDir::new().unwrap();
        let mut config = StoreConfig::new(dir.path());
        config.segment_size = SEGMENT;
        let store = Arc::new(Store::open(config).unwrap());
        let mut config = HaConfig::new(id, listen);
        config.heartbeat_interval_ms = 100;
        config.housekeeping_interval_ms = 500;
        config.reconnect_max_ms = 200;
        let ha = HaService::start(Arc::clone(&store), config).unwrap();
        Node {
            _dir: dir,
            store,
            ha,
        }
    };
    std::thread::spawn(start).join().unwrap()
}

fn from_env(name: &str, default: usize) -> usize {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}

fn write_all(master: &Node, slave: &Arc<Store>, count: usize) {
    let host: SocketAddr = "10.99.0.1:10911".parse().unwrap();
    let ack = AckRequest::new(AckPolicy::AllInSync, PATIENCE);
    let (tell, told) = sync_channel::<Result<(), String>>(count);
    let mut body = vec![0; BODY_LEN];
    for i in 0..count {
        if i >= IN_FLIGHT {
            told.recv_timeout(PATIENCE).unwrap().unwrap();
        }
        body[..8].copy_from_slice(&(i as u64).to_be_bytes());
        let message = Message {
            topic: "cut",
            queue_id: 0,
            flag: 0,
            sys_flag: 0,
            born_timestamp_ms: 1_700_000_000_000,
            born_host: host,
            store_host: host,
            reconsume_times: 0,
            prepared_transaction_offset: 0,
            body: &body,
            properties: b"",
        };
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

#[test]
fn a_link_that_is_taken_down_again_and_again_loses_no_ack() {
    let Some(link) = Link::new() else { return };
    let mib = from_env("EPOCHLOG_LINK_MIB", 64);
    let cuts = from_env("EPOCHLOG_LINK_CUTS", 5);
    let count = (mib << 20) / BODY_LEN;
    let master = node(&link.near, 1, "10.99.0.1");
    let slave = node(&link.far, 2, "10.99.0.2");
    let set = SyncStateSet::new([1, 2], 1);
    master.ha.become_master(1, set).unwrap();
    let addr = master.ha.listen_addr();
    slave.ha.become_slave(1, 1, addr).unwrap();
    let step = ((mib << 20) / (cuts + 1)) as u64;
    let began = Instant::now();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| write_all(&master, &slave.store, count));
        for cut in 1..=cuts as u64 {
            while slave.store.end_offset() < cut * step {
                assert!(!writer.is_finished() && began.elapsed() < PATIENCE);
                std::thread::sleep(Duration::from_millis(1));
            }
            link.set("down");
            std::thread::sleep(DOWN);
            link.set("up");
        }
        writer.join().unwrap();
    });
    let end = master.store.end_offset();
    assert!(end >= (mib << 20) as u64);
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
    let broken: u64 = metrics.closes_by_slave.values().sum();
    eprintln!(
        "{mib} MiB, {cuts} cuts, {broken} connections given up, {:.1} s",
        began.elapsed().as_secs_f64()
    );
    assert!(broken > 0, "no cut was long enough to be noticed");
    assert_eq!(metrics.checksum_mismatches, 0);
    slave.ha.shutdown();
    master.ha.shutdown();
}
