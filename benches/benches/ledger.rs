//! Appends to a ledger of one member and of three: one at a time, and with 256 under way.
//!
//! Data set: payloads of 100 bytes; the state machine keeps one row. The three members are in this process
//! and speak TCP over loopback, by the frames that controllers use; each has a store of its own on the same
//! disk, and nothing is acknowledged before a majority has synced it. The raw limit: 4 KiB written to a
//! file whose blocks are allocated, and fdatasync, over and over, on the same disk. All take turns, and
//! the median of the turns counts. `TMPDIR` must be on a disk: a tmpfs has no syncs to wait for.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::net::SocketAddr;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use epochlog_benches::run::{asked, disk_folder, median};
use epochlog_raft_glue::remoting::{
    Client, ClientConfig, Coding, Handler, Peer, RemotingCommand, Server, ServerConfig,
};
use epochlog_raft_glue::{
    Ledger, LedgerConfig, Member, RowChanges, Rows, SnapshotReceipt, StateMachine, Transport,
};
use tokio::runtime::{Handle, Runtime};

const PAYLOAD_LEN: usize = 100;
const IN_FLIGHT: usize = 256;
const PATIENCE: Duration = Duration::from_secs(60);
/// Any request code does: nobody else is on these ports.
const FRAME: i32 = 30_100;

/// Keeps the index of the last entry.
#[derive(Default)]
struct Last(u64);

impl StateMachine for Last {
    type Answer = ();

    fn apply(&mut self, index: u64, _payload: &[u8], rows: &mut RowChanges) {
        self.0 = index;
        rows.insert(b"last".to_vec(), Some(index.to_be_bytes().to_vec()));
    }

    fn load(&mut self, rows: Rows) -> Result<(), String> {
        let last = rows
            .first()
            .and_then(|(_, value)| value[..].try_into().ok());
        self.0 = last.map_or(0, u64::from_be_bytes);
        Ok(())
    }
}

/// Frames of the others come in here.
#[derive(Clone, Default)]
struct Inbox(Arc<OnceLock<Ledger<Last>>>);

impl Handler for Inbox {
    fn handle(
        &self,
        _peer: &Peer,
        request: RemotingCommand,
    ) -> impl Future<Output = Option<RemotingCommand>> + Send + 'static {
        if let Some(ledger) = self.0.get() {
            ledger.receive(&request.body).expect("a frame of a member");
        }
        async { None }
    }
}

/// Frames go out here: one connection for each peer.
struct Tcp {
    client: Client,
    runtime: Handle,
    members: BTreeMap<u64, Member>,
}

impl Transport for Tcp {
    fn members(&mut self, members: &BTreeMap<u64, Member>) {
        self.members.clone_from(members);
    }

    fn send(&mut self, to: u64, frame: Bytes, receipt: Option<SnapshotReceipt>) -> bool {
        assert!(receipt.is_none(), "no member is that far behind");
        let _entered = self.runtime.enter();
        let command = RemotingCommand::request(FRAME).with_body(frame);
        let member = self.members.get(&to);
        member.is_some_and(|member| self.client.one_way(&member.address, command).is_ok())
    }
}

/// A group; its servers end with it.
struct Group {
    ledgers: Vec<Ledger<Last>>,
    leader: Ledger<Last>,
    _servers: Vec<Server>,
}

impl Group {
    fn start(runtime: &Runtime, dir: &Path, count: u64) -> Self {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let (mut members, mut inboxes, mut servers) = (BTreeMap::new(), Vec::new(), Vec::new());
        for id in 1..=count {
            let inbox = Inbox::default();
            let server = Server::start(ServerConfig::new(any), Arc::new(inbox.clone()));
            let server = runtime.block_on(server).expect("a port on loopback");
            let (name, address) = (format!("n{id}"), server.address().to_string());
            members.insert(id, Member { name, address });
            inboxes.push(inbox);
            servers.push(server);
        }
        let start = |id| {
            let path = dir.join(format!("{count}-{id}.redb"));
            let mut config = LedgerConfig::new("bench", id, path, members.clone());
            config.max_pending = 2 * IN_FLIGHT;
            let client = ClientConfig {
                coding: Coding::RocketMq,
                ..ClientConfig::default()
            };
            let tcp = Tcp {
                client: Client::new(client),
                runtime: runtime.handle().clone(),
                members: BTreeMap::new(),
            };
            Ledger::start(config, Last::default(), tcp).expect("an empty folder")
        };
        let ledgers: Vec<Ledger<Last>> = (1..=count).map(start).collect();
        for (inbox, ledger) in inboxes.iter().zip(&ledgers) {
            assert!(inbox.0.set(ledger.clone()).is_ok(), "set once");
        }
        let begin = Instant::now();
        let leader = loop {
            if let Some(leader) = ledgers.iter().find(|it| it.metadata().is_ready) {
                break leader.clone();
            }
            assert!(begin.elapsed() < PATIENCE, "no leader");
            thread::sleep(Duration::from_millis(5));
        };
        Self {
            ledgers,
            leader,
            _servers: servers,
        }
    }

    /// Appends per second with so many under way, for `time`.
    fn appends(&self, in_flight: usize, time: Duration) -> f64 {
        let payload = Bytes::from(vec![7; PAYLOAD_LEN]);
        let mut open = VecDeque::new();
        let mut count = 0u32;
        let began = Instant::now();
        while began.elapsed() < time {
            while open.len() < in_flight {
                let pending = self.leader.start_append(payload.clone());
                open.push_back(pending.expect("room for it"));
            }
            if let Some(first) = open.pop_front() {
                first.wait().expect("the leader stays");
                count += 1;
            }
        }
        let took = began.elapsed();
        for rest in open {
            rest.wait().expect("the leader stays");
        }
        f64::from(count) / took.as_secs_f64()
    }
}

/// Syncs per second of a file that gets 4 KiB before each.
fn raw_syncs(file: &File, time: Duration) -> f64 {
    let page = [7; 4 << 10];
    let mut count = 0u32;
    let began = Instant::now();
    while began.elapsed() < time {
        let at = u64::from(count) % 4096 * (4 << 10);
        file.write_all_at(&page, at).expect("room for it");
        file.sync_data().expect("the disk syncs");
        count += 1;
    }
    f64::from(count) / began.elapsed().as_secs_f64()
}

fn main() {
    let Some(length) = asked("ledger") else {
        return;
    };
    let (dir, kind) = disk_folder(length);
    let raw_path = dir.path().join("raw");
    // Written once, so that a sync has no blocks to note down.
    std::fs::write(&raw_path, vec![1; 16 << 20]).expect("room for 16 MiB");
    let raw_file = File::options().write(true).open(&raw_path);
    let raw_file = raw_file.expect("it was made");
    raw_file.sync_all().expect("the disk syncs");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("two threads");
    let groups = [1, 3].map(|count| Group::start(&runtime, dir.path(), count));

    let turns = length.pick(7, 1);
    let time = Duration::from_millis(length.pick(1_000, 50));
    let mut raw = Vec::new();
    let mut rates: BTreeMap<(usize, usize), Vec<f64>> = BTreeMap::new();
    for _ in 0..turns {
        raw.push(raw_syncs(&raw_file, time));
        for group in &groups {
            for in_flight in [1, IN_FLIGHT] {
                let rate = group.appends(in_flight, time);
                let key = (group.ledgers.len(), in_flight);
                rates.entry(key).or_default().push(rate);
            }
        }
    }
    let raw = median(raw);
    println!(
        "ledger: payloads of {PAYLOAD_LEN} bytes, {kind}, median of {turns} turns of {time:?}"
    );
    println!("raw: write 4 KiB + fdatasync       {raw:>9.0} /s");
    for ((members, in_flight), rates) in rates {
        let rate = median(rates);
        println!(
            "{members} member(s), {in_flight:>3} under way        {rate:>9.0} /s  {:.2} of raw",
            rate / raw
        );
    }
    for group in groups {
        let counters = group.leader.counters();
        println!(
            "leader of {}: {} appends in {} syncs",
            group.ledgers.len(),
            counters.appends_done,
            counters.syncs
        );
        assert_eq!(counters.step_downs, 0, "the leader stays");
        group.ledgers.iter().for_each(Ledger::shutdown);
    }
}
