//! Groups of whole processes: RocketMQ's brokers on our controller, ours on RocketMQ's.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bytes::Bytes;
use epochlog_broker::producer::{Producer, Receipt};
use epochlog_raft_glue::client::{ControllerClient, ControllerClientConfig};
use tempfile::TempDir;

use crate::SEGMENT_SIZE;
use crate::processes::{BROKER, Process, broker_conf, controller_conf, free_port};

const PATIENCE: Duration = Duration::from_secs(90);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Java,
    Ours,
}

/// Who leads, as the controller says.
#[derive(Clone, Debug)]
pub(crate) struct View {
    pub(crate) master: u64,
    pub(crate) address: String,
    pub(crate) epoch: i32,
    pub(crate) members: Vec<i64>,
}

struct Member {
    dir: PathBuf,
    port: u16,
    kind: Kind,
    process: Option<Process>,
}

/// One controller and its brokers; a name server, from which Java slaves learn where their master ships.
pub(crate) struct Group {
    pub(crate) dir: TempDir,
    controller: Process,
    pub(crate) controller_addr: String,
    client: ControllerClient,
    namesrv: Process,
    pub(crate) namesrv_addr: String,
    members: Vec<Member>,
    /// Further lines for every broker.conf; they win.
    pub(crate) extra: &'static str,
    producer: Producer,
    acked: BTreeMap<String, Receipt>,
}

impl Group {
    pub(crate) fn start(controller: Kind) -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let namesrv_port = free_port(&[0]);
        let conf = format!(
            "listenPort={namesrv_port}\nrocketmqHome={}\n",
            dir.path().display()
        );
        let namesrv = Process::java("namesrv", dir.path(), &conf);
        let port = free_port(&[0]);
        let conf = controller_conf(dir.path(), port);
        let process = match controller {
            Kind::Java => Process::java("controller", dir.path(), &conf),
            Kind::Ours => Process::ours("controller", dir.path(), &conf),
        };
        let addr = format!("127.0.0.1:{port}");
        let config = ControllerClientConfig::new(addr.as_str());
        Self {
            client: ControllerClient::new(config).expect("an address"),
            dir,
            controller: process,
            controller_addr: addr,
            namesrv,
            namesrv_addr: format!("127.0.0.1:{namesrv_port}"),
            members: Vec::new(),
            extra: "",
            producer: Producer::new("orders", 1, Duration::from_secs(10)),
            acked: BTreeMap::new(),
        }
    }

    /// Adds a broker with an empty disk.
    pub(crate) fn add(&mut self, kind: Kind) -> usize {
        let port = free_port(&[-2, 0, 1]);
        let dir = self.dir.path().join(format!("store-{port}"));
        std::fs::create_dir(&dir).expect("a folder");
        self.members.push(Member {
            dir,
            port,
            kind,
            process: None,
        });
        self.run(self.members.len() - 1);
        self.members.len() - 1
    }

    /// Starts the broker again, on the disk it has.
    pub(crate) fn run(&mut self, at: usize) {
        let member = &mut self.members[at];
        let conf = broker_conf(
            &member.dir,
            member.port,
            &self.controller_addr,
            &self.namesrv_addr,
        ) + self.extra;
        member.process = Some(match member.kind {
            Kind::Java => Process::java("broker", self.dir.path(), &conf),
            Kind::Ours => {
                // Keys of RocketMQ that our broker has no use for stand in the file for both.
                Process::ours("broker", self.dir.path(), &conf)
            }
        });
    }

    pub(crate) fn kill(&mut self, at: usize) {
        self.members[at].process.take().expect("it runs").kill();
    }

    /// Stops a Java broker clean.
    pub(crate) fn stop_java(&mut self, at: usize) {
        let process = self.members[at].process.take().expect("it runs");
        process.stop_java();
    }

    /// All that the broker logged since it was started last.
    pub(crate) fn log_of(&self, at: usize) -> String {
        let process = self.members[at].process.as_ref();
        process.map(Process::whole_log).unwrap_or_default()
    }

    pub(crate) fn address(&self, at: usize) -> String {
        format!("127.0.0.1:{}", self.members[at].port)
    }

    /// Where it ships its log.
    pub(crate) fn ha_address(&self, at: usize) -> String {
        format!("127.0.0.1:{}", self.members[at].port + 1)
    }

    async fn view(&self) -> Option<View> {
        let info = self.client.replica_info(BROKER).await.ok()?;
        Some(View {
            master: u64::try_from(info.master.master_broker_id?).ok()?,
            address: info.master.master_address?,
            epoch: info.master.master_epoch?,
            members: info.set.sync_state_set.into_iter().collect(),
        })
    }

    pub(crate) async fn wait_until(&self, what: &str, holds: impl Fn(&View) -> bool) -> View {
        let give_up = Instant::now() + PATIENCE;
        loop {
            let view = self.view().await;
            if let Some(view) = &view
                && holds(view)
            {
                return view.clone();
            }
            if Instant::now() > give_up {
                panic!("{what}: {view:?}\n{}", self.logs());
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    pub(crate) fn logs(&self) -> String {
        let members = self.members.iter().filter_map(|it| it.process.as_ref());
        let all = [&self.controller, &self.namesrv].into_iter().chain(members);
        all.map(Process::log).collect::<Vec<_>>().join("\n--- \n")
    }

    /// Sends `count` messages to the master of the day, one after the other; each is acknowledged. A broker that
    /// has just been elected may still refuse: nothing was written then, and it is asked again.
    pub(crate) async fn produce(&mut self, master: &View, name: &str, count: usize) {
        let mut address = master.address.clone();
        let give_up = Instant::now() + PATIENCE;
        for n in 0..count {
            let id = format!("{name}-{n}");
            let properties = format!("ATTEMPT\u{1}{id}\u{2}TAGS\u{1}t\u{2}");
            let body = Bytes::from(vec![b'x'; 10 + n * 389 % 3000]);
            loop {
                let sent = self.producer.send(&address, body.clone(), &properties);
                match sent.await {
                    Ok(receipt) => {
                        self.acked.insert(id, receipt);
                        break;
                    }
                    Err(error) if !error.may_be_stored() && Instant::now() < give_up => {
                        tokio::time::sleep(Duration::from_millis(200)).await;
                        // There may be another one since.
                        address = self.view().await.map_or(address, |view| view.address);
                    }
                    Err(error) => panic!("{id}: {error}\n{}", self.logs()),
                }
            }
        }
    }

    /// Every acknowledged message stands where its receipt says, in each of these stores.
    pub(crate) fn assert_all_acked_are_in(&self, stores: &[usize]) {
        let logs: Vec<_> = stores
            .iter()
            .map(|at| log(&self.members[*at].dir))
            .collect();
        for (attempt, receipt) in &self.acked {
            // The last 16 digits of a message id are its offset.
            let at = receipt.msg_id.len() - 16;
            let offset = u64::from_str_radix(&receipt.msg_id[at..], 16).expect("an offset");
            let from = usize::try_from(offset).expect("logs are small");
            let needle = format!("ATTEMPT\u{1}{attempt}\u{2}");
            for log in &logs {
                let size = u32::from_be_bytes(log[from..from + 4].try_into().expect("4 bytes"));
                let record = &log[from..from + size as usize];
                let found = record
                    .windows(needle.len())
                    .any(|it| it == needle.as_bytes());
                assert!(found, "{attempt} was acknowledged and is lost");
            }
        }
        let ends: Vec<usize> = logs.iter().map(|log| end(log)).collect();
        let least = *ends.iter().min().expect("a store");
        for log in &logs[1..] {
            assert!(log[..least] == logs[0][..least], "the logs differ");
        }
    }
}

/// All segment files, one after the other.
fn log(dir: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    for base in (0..).step_by(usize::try_from(SEGMENT_SIZE).expect("small")) {
        match std::fs::read(dir.join(format!("commitlog/{base:020}"))) {
            Ok(segment) => bytes.extend_from_slice(&segment),
            Err(_) => break,
        }
    }
    bytes
}

/// The end of the last record.
fn end(log: &[u8]) -> usize {
    let last = log.iter().rposition(|byte| *byte != 0);
    last.map_or(0, |at| at + 1)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a JVM; .ci/interop runs it"]
async fn java_brokers_live_on_our_controller() {
    let mut group = Group::start(Kind::Ours);
    let first = group.add(Kind::Java);
    let one = group
        .wait_until("a first master", |view| view.master == 1)
        .await;
    assert_eq!((one.epoch, one.address), (1, group.address(first)));
    let second = group.add(Kind::Java);
    let both = group
        .wait_until("both in the set", |view| view.members == [1, 2])
        .await;
    group.produce(&both, "first", 60).await;
    group.kill(first);
    let second_view = group
        .wait_until("the slave leads", |view| view.master == 2)
        .await;
    assert!(second_view.epoch > both.epoch, "{second_view:?}");
    group.produce(&second_view, "second", 60).await;
    // The first one comes back with nothing: a new replica under a new id, and the old one is cleaned.
    std::fs::remove_dir_all(&group.members[first].dir).expect("its disk");
    std::fs::create_dir(&group.members[first].dir).expect("a new disk");
    group.run(first);
    let again = group
        .wait_until("a third id", |view| view.members == [2, 3])
        .await;
    assert_eq!(
        again.epoch, second_view.epoch,
        "nothing was elected for that"
    );
    group.produce(&again, "third", 60).await;
    for at in [first, second] {
        group.members[at]
            .process
            .take()
            .expect("it runs")
            .stop_java();
    }
    assert_eq!(group.acked.len(), 180);
    group.assert_all_acked_are_in(&[first, second]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a JVM; .ci/interop runs it"]
async fn our_brokers_live_on_a_java_controller() {
    let mut group = Group::start(Kind::Java);
    let first = group.add(Kind::Ours);
    group
        .wait_until("a first master", |view| view.master == 1)
        .await;
    let second = group.add(Kind::Ours);
    let both = group
        .wait_until("both in the set", |view| view.members == [1, 2])
        .await;
    group.produce(&both, "first", 60).await;
    // Back within the heartbeat timeout (10 s): whoever leads then, every message is there.
    group.kill(first);
    group.run(first);
    let members = |view: &View| view.members == [1, 2];
    let back = group.wait_until("both again", members).await;
    group.produce(&back, "second", 60).await;
    let leads = usize::from(back.address == group.address(second));
    group.kill([first, second][leads]);
    let other = group.address([second, first][leads]);
    let last = group
        .wait_until("the other leads", |view| view.address == other)
        .await;
    assert!(last.epoch > back.epoch, "{last:?}");
    group.produce(&last, "third", 60).await;
    group.run([first, second][leads]);
    group.wait_until("both once more", members).await;
    for at in [first, second] {
        group.kill(at);
    }
    assert_eq!(group.acked.len(), 180);
    group.assert_all_acked_are_in(&[first, second]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a JVM; .ci/interop runs it"]
async fn our_broker_takes_over_from_a_java_broker() {
    for controller in [Kind::Ours, Kind::Java] {
        let mut group = Group::start(controller);
        let java = group.add(Kind::Java);
        group
            .wait_until("a first master", |view| view.master == 1)
            .await;
        let ours = group.add(Kind::Ours);
        let both = group
            .wait_until("both in the set", |view| view.members == [1, 2])
            .await;
        assert_eq!(both.address, group.address(java));
        group.produce(&both, "java", 60).await;
        group.kill(java);
        let next = group
            .wait_until("ours leads", |view| view.master == 2)
            .await;
        group.produce(&next, "ours", 60).await;
        group.kill(ours);
        assert_eq!(group.acked.len(), 120);
        group.assert_all_acked_are_in(&[ours]);
    }
}
