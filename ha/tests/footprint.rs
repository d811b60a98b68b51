//! What replication costs while nothing happens, and in memory: a test program of its own, because
//! both are measured for the whole process.
#![expect(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use epochlog_engine::{Message, Store, StoreConfig};
use epochlog_ha::{AckPolicy, AckRequest, HaConfig, HaService, Outcome, SyncStateSet};
use rustix::time::{ClockId, clock_gettime};
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(60);
const SEGMENT: u64 = 32 << 20;
const MASTER: u64 = 1;

struct Node {
    service: HaService,
    store: Arc<Store>,
    _dir: TempDir,
}

impl Node {
    fn new(id: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut config = StoreConfig::new(dir.path());
        config.segment_size = SEGMENT;
        config.prefault_ahead_bytes = 1 << 20;
        let store = Arc::new(Store::open(config).unwrap());
        let service = HaService::start(Arc::clone(&store), HaConfig::on_loopback(id)).unwrap();
        Self {
            service,
            store,
            _dir: dir,
        }
    }

    fn follow(&self, master: &Self) {
        let addr = master.service.listen_addr();
        self.service.become_slave(1, MASTER, addr).unwrap();
    }
}

fn message(body: &[u8]) -> Message<'_> {
    let host = SocketAddr::from((Ipv4Addr::LOCALHOST, 10911));
    Message::new("footprint", body, host, 1)
}

/// Time this process has had on a core.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    let (seconds, nanos) = (time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs());
    Duration::from_secs(seconds) + Duration::from_nanos(nanos)
}

/// Resident bytes that are no file's: everything but the mapped logs and the program itself.
fn anonymous_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.unwrap().trim().strip_suffix(" kB").unwrap();
    kib.trim().parse::<u64>().unwrap() << 10
}

#[test]
fn an_idle_pair_and_eight_slaves_cost_little() {
    let master = Node::new(MASTER);
    let set = SyncStateSet::new([MASTER, MASTER + 1], 1);
    master.service.become_master(1, set).unwrap();
    let first = Node::new(MASTER + 1);
    first.follow(&master);
    let ack = AckRequest::new(AckPolicy::AllInSync, PATIENCE);
    let outcome = master.service.append_and_wait(&message(b"first"), ack);
    assert!(matches!(outcome, Outcome::Acked(_)), "{outcome:?}");

    // Connected and idle: what both nodes and their stores take in some seconds.
    std::thread::sleep(Duration::from_millis(500));
    let (began, before) = (Instant::now(), cpu_time());
    std::thread::sleep(Duration::from_secs(4));
    let share = (cpu_time() - before).as_secs_f64() / began.elapsed().as_secs_f64();
    println!("idle: {:.3} % of one core", share * 100.0);
    assert!(share < 0.005, "an idle pair takes {:.2} %", share * 100.0);

    // Eight slaves take 24 MiB each.
    let body = vec![7; 4096];
    while master.store.end_offset() < 24 << 20 {
        master.store.append(&message(&body)).unwrap();
    }
    let others: Vec<_> = (2..=8).map(|id| Node::new(MASTER + id)).collect();
    for slave in &others {
        slave.follow(&master);
    }
    let end = master.store.end_offset();
    let slaves = || others.iter().chain([&first]);
    let (asked, mut most) = (Instant::now(), 0);
    while slaves().any(|slave| slave.store.end_offset() < end) {
        assert!(asked.elapsed() < PATIENCE, "the slaves did not catch up");
        most = most.max(anonymous_bytes());
        std::thread::sleep(Duration::from_millis(1));
    }
    most = most.max(anonymous_bytes());
    assert_eq!(master.service.runtime_info().connections.len(), 8);
    println!("{} KiB beyond the mapped logs with 8 slaves", most >> 10);
    assert!(most < 32 << 20, "{} KiB beyond the mapped logs", most >> 10);
}
