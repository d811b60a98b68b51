//! Nodes over real stores in temporary folders, and comparisons.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use epochlog_engine::{Appended, EPOCH_FILE_NAME, Message, Store, StoreConfig};
use epochlog_ha::{
    AckPolicy, AckRequest, HaConfig, HaService, Outcome, SyncStateSet, TransportKind,
};
use tempfile::TempDir;

pub(crate) const SEGMENT: u64 = 256 << 10;
const PATIENCE: Duration = Duration::from_secs(20);
const HOST: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 10911);

/// One broker's worth of replication.
pub(crate) struct Node {
    pub(crate) id: u64,
    pub(crate) dir: TempDir,
    pub(crate) kind: TransportKind,
    tune: fn(&mut HaConfig),
    pub(crate) store: Arc<Store>,
    pub(crate) ha: HaService,
}

fn open(dir: &TempDir) -> Arc<Store> {
    let mut config = StoreConfig::new(dir.path());
    config.segment_size = SEGMENT;
    config.prefault_ahead_bytes = SEGMENT;
    // What is flushed is flushed because somebody asked.
    config.flush_interval_ms = 60_000;
    Arc::new(Store::open(config).unwrap())
}

fn copy_folder(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_folder(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

fn serve(id: u64, kind: TransportKind, tune: fn(&mut HaConfig), store: &Arc<Store>) -> HaService {
    let mut config = HaConfig::on_loopback(id);
    config.transport = kind;
    config.slave_transport = kind;
    config.reconnect_min_ms = 10;
    config.reconnect_max_ms = 100;
    tune(&mut config);
    HaService::start(Arc::clone(store), config).unwrap()
}

impl Node {
    pub(crate) fn new(id: u64, kind: TransportKind) -> Self {
        Self::tuned(id, kind, |_| ())
    }

    pub(crate) fn tuned(id: u64, kind: TransportKind, tune: fn(&mut HaConfig)) -> Self {
        let dir = TempDir::new().unwrap();
        let store = open(&dir);
        let ha = serve(id, kind, tune, &store);
        Self {
            id,
            dir,
            kind,
            tune,
            store,
            ha,
        }
    }

    /// Another node with a copy of this one's folder, as of now.
    pub(crate) fn copy(&mut self, id: u64) -> Self {
        self.ha.shutdown();
        self.store.close().unwrap();
        let dir = TempDir::new().unwrap();
        copy_folder(self.dir.path(), dir.path());
        let store = open(&dir);
        let ha = serve(id, self.kind, self.tune, &store);
        self.store = open(&self.dir);
        self.ha = serve(self.id, self.kind, self.tune, &self.store);
        Self {
            id,
            dir,
            kind: self.kind,
            tune: self.tune,
            store,
            ha,
        }
    }

    /// Ends as a killed process would, and starts again, fenced.
    pub(crate) fn kill_and_restart(&mut self) {
        self.ha.shutdown();
        self.store.abandon();
        self.store = open(&self.dir);
        self.ha = serve(self.id, self.kind, self.tune, &self.store);
    }

    pub(crate) fn restarted(mut self) -> Self {
        self.kill_and_restart();
        self
    }

    pub(crate) fn lead(&self, epoch: u32, members: &[u64]) {
        let set = SyncStateSet::new(members.iter().copied(), epoch);
        self.ha.become_master(epoch, set).unwrap();
    }

    pub(crate) fn follow(&self, epoch: u32, master: &Self) {
        self.follow_at(epoch, master.id, master.ha.listen_addr());
    }

    pub(crate) fn follow_at(&self, epoch: u32, id: u64, addr: SocketAddr) {
        self.ha.become_slave(epoch, id, addr).unwrap();
    }

    pub(crate) fn write(&self, body: &[u8], policy: AckPolicy) -> Outcome {
        self.write_within(body, AckRequest::new(policy, PATIENCE))
    }

    pub(crate) fn write_within(&self, body: &[u8], ack: AckRequest) -> Outcome {
        self.ha.append_and_wait(&message(body), ack)
    }

    /// Writes `count` messages of uneven length and expects each to be acknowledged.
    pub(crate) fn write_all(&self, count: usize, policy: AckPolicy) -> Vec<Appended> {
        let body = |i: usize| vec![u8::try_from(i % 251).unwrap(); 10 + (i * 7919) % 3000];
        let write = |i| acked(self.write(&body(i), policy));
        (0..count).map(write).collect()
    }

    pub(crate) fn epoch_file(&self) -> String {
        std::fs::read_to_string(self.dir.path().join(EPOCH_FILE_NAME)).unwrap_or_default()
    }

    /// The bytes of the log.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let (mut at, end) = (self.store.min_offset(), self.store.end_offset());
        let mut out = Vec::new();
        while at < end {
            let slice = self.store.slice(at, usize::MAX).unwrap();
            out.extend_from_slice(&slice);
            at = slice.end();
        }
        out
    }
}

pub(crate) fn message(body: &[u8]) -> Message<'_> {
    Message {
        topic: "replicated",
        queue_id: 0,
        flag: 0,
        sys_flag: 0,
        born_timestamp_ms: 1_700_000_000_000,
        born_host: HOST,
        store_host: HOST,
        reconsume_times: 0,
        prepared_transaction_offset: 0,
        body,
        properties: b"",
    }
}

pub(crate) fn acked(outcome: Outcome) -> Appended {
    match outcome {
        Outcome::Acked(appended) => appended,
        other => panic!("{other:?}"),
    }
}

/// Waits until `holds`, or panics with what `tell` says.
pub(crate) fn wait_until(tell: impl Fn() -> String, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "{}", tell());
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Waits until every node has the first one's end, then compares bytes and epoch files.
pub(crate) fn assert_equal(nodes: &[&Node]) {
    let first = nodes[0];
    for node in &nodes[1..] {
        wait_until(
            || {
                let (end, own) = (first.store.end_offset(), node.store.end_offset());
                format!(
                    "node {} stands at {own}, not {end}: {:#?}",
                    node.id,
                    node.ha.runtime_info()
                )
            },
            || {
                node.store.end_offset() == first.store.end_offset()
                    && node.epoch_file() == first.epoch_file()
            },
        );
        assert_eq!(node.store.min_offset(), first.store.min_offset());
        assert!(
            node.bytes() == first.bytes(),
            "the logs of {} and {} differ",
            node.id,
            first.id
        );
    }
}

/// Everything written to the master is on every node, found by walking the records.
pub(crate) fn assert_holds(node: &Node, written: &[Appended]) {
    let range = node.store.min_offset()..node.store.end_offset();
    let offsets: std::collections::HashSet<u64> = node
        .store
        .records(range)
        .map(|view| view.unwrap().record().physical_offset())
        .collect();
    for appended in written {
        assert!(
            offsets.contains(&appended.offset),
            "{} is not on {}",
            appended.offset,
            node.id
        );
    }
}
