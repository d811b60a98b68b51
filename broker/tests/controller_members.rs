//! A group that loses controllers and brokers, on real processes while messages flow: it is asked how
//! it stands, a dead controller is replaced by the documented command, and three processes that hold
//! a broker and a controller each are enough.

mod common;

use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use common::{Cluster, LIMIT, plan};
use epochlog_broker::group::{BROKER_NAME, Plan};
use epochlog_broker::observe::Observer;
use epochlog_broker::producer::{Producer, Receipt};
use epochlog_raft_glue::admin::{ControllerRole, ControllerStatus};
use epochlog_raft_glue::remoting::ElectMasterRequest;
use parking_lot::Mutex;
use serde::Deserialize;

fn epochlog(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_epochlog"))
        .args(arguments)
        .output()
        .expect("runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// `epochlog controller …`, which must succeed; gives what it printed.
fn done(arguments: &[&str], cluster: &Cluster) -> String {
    let ended = epochlog(&[&["controller"], arguments].concat());
    assert!(
        ended.status.success(),
        "{arguments:?}: {}{}\n{}",
        text(&ended.stdout),
        text(&ended.stderr),
        cluster.logs()
    );
    text(&ended.stdout)
}

/// The same, which must fail; gives its complaint.
fn refused(arguments: &[&str]) -> String {
    let ended = epochlog(&[&["controller"], arguments].concat());
    assert_eq!(ended.status.code(), Some(1), "{}", text(&ended.stdout));
    text(&ended.stderr)
}

#[derive(Deserialize)]
struct Asked {
    leader: Option<ControllerStatus>,
    controllers: Vec<Answer>,
}

#[derive(Deserialize)]
struct Answer {
    address: String,
    status: Option<ControllerStatus>,
    error: Option<String>,
}

/// `controller status --json`, once somebody leads.
fn status(addr: &str, cluster: &Cluster) -> (ControllerStatus, Vec<Answer>) {
    let end = Instant::now() + LIMIT;
    loop {
        let ended = epochlog(&["controller", "status", "--addr", addr, "--json"]);
        let asked: Asked = serde_json::from_slice(&ended.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}", text(&ended.stderr)));
        assert_eq!(ended.status.success(), asked.leader.is_some());
        if let Some(leader) = asked.leader {
            return (leader, asked.controllers);
        }
        assert!(Instant::now() < end, "nobody leads\n{}", cluster.logs());
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Messages sent one after another to whoever is master.
struct Stream {
    acked: Mutex<Vec<(String, Receipt, Instant)>>,
    stop: AtomicBool,
}

impl Stream {
    fn start(addr: &str) -> (Arc<Self>, tokio::task::JoinHandle<()>) {
        let stream = Arc::new(Self {
            acked: Mutex::default(),
            stop: AtomicBool::new(false),
        });
        let observer = Observer::new(BROKER_NAME, addr).expect("addresses");
        let task = tokio::spawn(Arc::clone(&stream).send(observer));
        (stream, task)
    }

    async fn send(self: Arc<Self>, observer: Observer) {
        let producer = Producer::new("orders", 4, Duration::from_secs(1));
        let mut master = None;
        let mut next = 0_u64;
        while !self.stop.load(Ordering::Relaxed) {
            let Some(address) = master.clone() else {
                let seen = observer.master().await;
                master = seen.ok().flatten().map(|it| it.address);
                tokio::time::sleep(Duration::from_millis(5)).await;
                continue;
            };
            let id = format!("s{next}");
            next += 1;
            let properties = format!("ATTEMPT\u{1}{id}\u{2}");
            let body = Bytes::from_static(&[b'x'; 100]);
            match producer.send(&address, body, &properties).await {
                Ok(receipt) => self.acked.lock().push((id, receipt, Instant::now())),
                Err(_) => master = None,
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// Waits until `count` more are acknowledged.
    async fn flows(&self, count: usize, cluster: &Cluster) {
        let wanted = self.acked.lock().len() + count;
        let end = Instant::now() + LIMIT;
        while self.acked.lock().len() < wanted {
            assert!(Instant::now() < end, "nothing flows\n{}", cluster.logs());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// The longest time without an acknowledgement since `begin`.
    fn silence(&self, begin: Instant) -> Duration {
        let acked = self.acked.lock();
        let times = acked.iter().map(|(_, _, at)| *at).filter(|at| *at >= begin);
        let mut last = begin;
        let mut longest = Duration::ZERO;
        for at in times.chain([Instant::now()]) {
            longest = longest.max(at.saturating_duration_since(last));
            last = at;
        }
        longest
    }

    /// Ends it; what was acknowledged is the cluster's to check.
    async fn end(&self, task: tokio::task::JoinHandle<()>, cluster: &mut Cluster) {
        self.stop.store(true, Ordering::Relaxed);
        task.await.expect("no panic");
        let acked = std::mem::take(&mut *self.acked.lock());
        cluster
            .acked
            .extend(acked.into_iter().map(|(id, receipt, _)| (id, receipt)));
    }
}

/// Starts controller `n{at}`, which waits to be added; gives its address once it answers.
async fn one_more(cluster: &mut Cluster, plan: &Plan, at: usize) -> String {
    let spare = cluster.group.add_controller(plan, at).expect("starts");
    let end = Instant::now() + LIMIT;
    loop {
        let asked = cluster.observer.controller().status(&spare).await;
        if asked.is_ok_and(|it| it.role == ControllerRole::Joining) {
            return spare;
        }
        assert!(Instant::now() < end, "it does not wait\n{}", cluster.logs());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Words of a command after `epochlog controller`.
fn words<'a>(parts: &[&[&'a str]]) -> Vec<&'a str> {
    parts.concat()
}

/// `controller members replace …`.
fn replace(addr: &str, old: &str, id: &str, peer: &str) -> [String; 10] {
    let all = [
        "members", "replace", "--addr", addr, "--old", old, "--id", id, "--peer", peer,
    ];
    all.map(str::to_owned)
}

/// What the same complains of.
fn not_replaced(addr: &str, old: &str, id: &str, peer: &str) -> String {
    refused(&replace(addr, old, id, peer).each_ref().map(String::as_str))
}

/// A machine this busy may take a master's authority away for a moment.
const SILENCE: Duration = Duration::from_secs(if cfg!(debug_assertions) { 10 } else { 3 });

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_controller_is_replaced_by_one_command_while_writes_go_on() {
    let dir = tempfile::tempdir().expect("temp dir");
    let mut plan = plan(dir.path(), 2);
    plan.controllers = 3;
    // Who leads goes on leading on a busy machine too.
    plan.controller_extra = "electionTimeoutMinMills=1500\nelectionTimeoutMaxMills=2000\n".into();
    let mut cluster = Cluster::start(&plan);
    cluster.in_sync(2, 0).await;
    let addr = cluster.group.controller_addr.replace(';', ",");
    let addresses: Vec<String> = addr.split(',').map(str::to_owned).collect();
    let (stream, task) = Stream::start(&cluster.group.controller_addr);
    stream.flows(20, &cluster).await;

    // One that leads is not replaced, and one that is none neither.
    let (leader, _) = status(&addr, &cluster);
    let spare = one_more(&mut cluster, &plan, 3).await;
    let error = not_replaced(&addr, &leader.name, "n3", &spare);
    assert!(error.contains("leads: hand the leadership over"), "{error}");
    let error = not_replaced(&addr, "n9", "n3", &spare);
    let why = "n9 is no member: there are n0 (number 1)";
    assert!(error.contains(why), "{error}");

    let dead = (0..3).find(|at| format!("n{at}") != leader.name);
    let dead = dead.expect("one more");
    let dead_name = format!("n{dead}");
    cluster.group.controllers[dead].kill().expect("killed");
    for (id, peer, why) in [
        ("n4", "127.0.0.1:1", "n4 does not answer"),
        ("n4", spare.as_str(), "is n3, not n4"),
        ("4", spare.as_str(), "controllerDLegerSelfId"),
    ] {
        let error = not_replaced(&addr, &dead_name, id, peer);
        assert!(error.contains(why), "{error}");
    }

    let begin = Instant::now();
    let command = replace(&addr, &dead_name, "n3", &spare);
    let printed = done(&command.each_ref().map(String::as_str), &cluster);
    println!("{printed}replaced in {:?}", begin.elapsed());
    assert!(printed.contains(&format!("n3-{spare}")), "{printed}");
    assert!(!printed.contains(&addresses[dead]), "{printed}");
    stream.flows(20, &cluster).await;
    let silence = stream.silence(begin);
    println!("longest time without an acknowledgement: {silence:?}");
    assert!(silence < SILENCE, "writes went on: {silence:?}");
    // It is done: the same command again changes nothing.
    done(&command.each_ref().map(String::as_str), &cluster);

    let old = the_new_one_counts(&mut cluster, &stream, &spare, &dead_name).await;
    let (_, answers) = status(&addr, &cluster);
    let gone = answers.iter().find(|it| it.address == addresses[old]);
    let gone = gone.expect("asked");
    assert!(gone.status.is_none() && gone.error.is_some());
    let shown = done(&["status", "--addr", &addr], &cluster);
    for part in ["leads the controllers of group epochlog", "set broker-a of"] {
        assert!(shown.contains(part), "{shown}");
    }

    cluster.group.controllers[old].start().expect("starts");
    stream.end(task, &mut cluster).await;
    let last = cluster.in_sync(2, 0).await;
    cluster.stop_and_compare(&last).await;
}

/// The members are the ones left and the new one; kills one of the old ones that does not lead, and
/// gives which.
async fn the_new_one_counts(
    cluster: &mut Cluster,
    stream: &Stream,
    spare: &str,
    dead: &str,
) -> usize {
    let (leader, answers) = status(spare, cluster);
    let members: Vec<&str> = leader.members.iter().map(|it| it.name.as_str()).collect();
    assert_eq!(members.len(), 3);
    assert!(
        members.contains(&"n3") && !members.contains(&dead),
        "{members:?}"
    );
    assert!(leader.members.iter().all(|it| it.is_voter) && !leader.is_joint);
    assert_eq!(answers.len(), 3, "the others are found from the new one");

    // Without the new one there would be no majority any more.
    let old = members
        .iter()
        .find(|name| **name != "n3" && **name != leader.name);
    let old: usize = old.expect("one more")[1..].parse().expect("a number");
    cluster.group.controllers[old].kill().expect("killed");
    let begin = Instant::now();
    tokio::time::sleep(Duration::from_secs(3)).await;
    stream.flows(20, cluster).await;
    assert!(stream.silence(begin) < SILENCE);
    old
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_processes_with_a_controller_each_survive_the_loss_of_any() {
    let dir = tempfile::tempdir().expect("temp dir");
    let mut plan = plan(dir.path(), 3);
    plan.embedded = true;
    let mut cluster = Cluster::start(&plan);
    assert_eq!(cluster.group.controllers.len(), 0);
    cluster.in_sync(3, 0).await;
    let (stream, task) = Stream::start(&cluster.group.controller_addr);
    for at in 0..3 {
        stream.flows(20, &cluster).await;
        let before = cluster.in_sync(3, 0).await;
        let was_master = before.address == cluster.group.brokers[at].address;
        let begin = Instant::now();
        cluster.group.brokers[at].process.kill().expect("killed");
        tokio::time::sleep(Duration::from_secs(1)).await;
        stream.flows(20, &cluster).await;
        println!(
            "process {at} killed (master: {was_master}): longest time without an acknowledgement {:?}",
            stream.silence(begin)
        );
        cluster.group.brokers[at].process.start().expect("starts");
    }
    // The master in any case: it may have been none of the three above.
    let before = cluster.in_sync(3, 0).await;
    let at = cluster
        .group
        .broker_at(&before.address)
        .expect("one of ours");
    cluster.group.brokers[at].process.kill().expect("killed");
    let after = cluster.in_sync(2, before.epoch).await;
    assert_ne!(after.id, before.id);
    stream.flows(20, &cluster).await;
    cluster.group.brokers[at].process.start().expect("starts");
    stream.end(task, &mut cluster).await;
    let last = cluster.in_sync(3, 0).await;
    cluster.stop_and_compare(&last).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_come_and_go_and_the_leadership_moves_by_command() {
    let dir = tempfile::tempdir().expect("temp dir");
    let mut plan = plan(dir.path(), 0);
    plan.controller_extra = "preferredLeaderIds=n1\n".to_owned();
    let mut cluster = Cluster::start(&plan);
    let addr = cluster.group.controller_addr.clone();
    status(&addr, &cluster);
    let spare = one_more(&mut cluster, &plan, 1).await;
    let both = format!("{addr},{spare}");
    let of = ["--addr", both.as_str()];
    let new = ["--id", "n1", "--peer", spare.as_str()];

    let complaint = refused(&words(&[&["members", "remove"], &of, &["--id", "n0"]]));
    assert!(complaint.contains("last member with a vote"), "{complaint}");
    let add = words(&[&["members", "add", "--learner"], &of, &new]);
    let printed = done(&add, &cluster);
    let wanted = format!("members without a vote: n1-{spare}");
    assert!(printed.contains(&wanted), "{printed}");
    let promote = words(&[&["members", "promote"], &of, &["--id", "2"]]);
    let printed = done(&promote, &cluster);
    let wanted = format!("members with a vote: n0-{addr};n1-{spare}");
    assert!(printed.contains(&wanted), "{printed}");
    let complaint = refused(&words(&[&["members", "add"], &of, &new]));
    assert!(complaint.contains("with a vote already"), "{complaint}");

    let leads = async |name: &str| {
        let end = Instant::now() + LIMIT;
        while status(&both, &cluster).0.name != name {
            assert!(
                Instant::now() < end,
                "{name} does not lead\n{}",
                cluster.logs()
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    leads("n1").await;
    let printed = done(&["transfer", "--addr", &both, "--to", "n0"], &cluster);
    assert!(
        printed.contains("n0 leads group epochlog, after "),
        "{printed}"
    );
    assert!(
        printed.contains("not one of preferredLeaderIds (n1)"),
        "{printed}"
    );
    let complaint = refused(&["transfer", "--addr", &both, "--to", "n7"]);
    assert!(
        complaint.contains("n7 is no member: there are n0"),
        "{complaint}"
    );
    leads("n1").await;
    let printed = done(
        &words(&[&["members", "remove"], &of, &["--id", "n0"]]),
        &cluster,
    );
    let wanted = format!("members with a vote: n1-{spare}\n");
    assert!(printed.contains(&wanted), "{printed}");
    let complaint = refused(&["status", "--addr", "nonsense"]);
    assert!(
        complaint.contains("--addr: address \"nonsense\" is not host:port"),
        "{complaint}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_embedded_controller_that_fails_ends_the_process() {
    let dir = tempfile::tempdir().expect("temp dir");
    let mut plan = plan(dir.path(), 1);
    plan.embedded = true;
    let mut cluster = Cluster::start(&plan);
    let master = cluster.in_sync(1, 0).await;
    cluster.produce(&master, "first", 5).await;
    // Room for the head of the controller's file and for the text of the log, and for no more.
    let process = &cluster.group.brokers[0].process;
    process.limit_file_len(Some(64 << 10)).expect("limited");
    let request = ElectMasterRequest {
        broker_name: BROKER_NAME.to_owned(),
        ..ElectMasterRequest::default()
    };
    let asked = cluster.observer.controller().elect_master(&request).await;
    assert!(asked.is_err(), "{asked:?}");
    let end = Instant::now() + LIMIT;
    let ended = loop {
        let process = &mut cluster.group.brokers[0].process;
        if let Some(ended) = process.ended().expect("known") {
            break ended;
        }
        assert!(Instant::now() < end, "it goes on\n{}", cluster.logs());
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    assert_eq!(ended.code(), Some(1), "{}", cluster.logs());
    let said = cluster.logs();
    let why = "a part of the broker ended: the controller in this process: ";
    assert!(
        said.contains(why) && said.contains("controller.redb"),
        "{said}"
    );

    // With room again it goes on where it was.
    let process = &mut cluster.group.brokers[0].process;
    assert!(!process.stop(LIMIT).expect("ended"), "not by being asked");
    process.start().expect("starts");
    let master = cluster.in_sync(1, 0).await;
    cluster.stop_and_compare(&master).await;
}

/// One of these files cannot be used, and the process says so and ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_embedded_controller_that_cannot_start_ends_the_process() {
    let dir = tempfile::tempdir().expect("temp dir");
    let mut plan = plan(dir.path(), 1);
    plan.embedded = true;
    let mut cluster = Cluster::start(&plan);
    let master = cluster.in_sync(1, 0).await;
    cluster.produce(&master, "first", 5).await;
    // A second one finds the controller's port taken.
    let conf = dir.path().join("broker-1.conf");
    let text = std::fs::read_to_string(&conf).expect("reads");
    let text = text
        .replace("broker-1", "broker-9")
        .replace("controller-n0", "controller-n9");
    let other = dir.path().join("other.conf");
    std::fs::write(&other, text).expect("writes");
    let path = other.to_string_lossy();
    let ended = epochlog(&["broker", "--controller-embedded", "-c", &path]);
    assert_eq!(ended.status.code(), Some(1));
    let error = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(error.contains("epochlog: listen on 127.0.0.1:"), "{error}");
    let printed = epochlog(&["broker", "--controller-embedded", "-c", &path, "-p"]);
    let printed = String::from_utf8_lossy(&printed.stdout).into_owned();
    let count = |key: &str| printed.lines().filter(|line| line.starts_with(key)).count();
    assert_eq!(
        (count("bindAddress="), count("leaseWaitMills=")),
        (1, 1),
        "{printed}"
    );
    cluster.stop_and_compare(&master).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_of_two_survives_the_loss_of_either() {
    let dir = tempfile::tempdir().expect("temp dir");
    let mut plan = plan(dir.path(), 2);
    plan.controllers = 3;
    plan.min_in_sync = 1;
    let mut cluster = Cluster::start(&plan);
    let first = cluster.in_sync(2, 0).await;
    cluster.produce(&first, "first", 50).await;
    let at = cluster
        .group
        .broker_at(&first.address)
        .expect("one of ours");

    // The slave: the set shrinks, the master goes on.
    cluster.group.brokers[1 - at]
        .process
        .kill()
        .expect("killed");
    cluster.produce(&first, "alone", 50).await;
    cluster.group.brokers[1 - at]
        .process
        .start()
        .expect("starts");
    let both = cluster.in_sync(2, 0).await;
    assert_eq!(both.epoch, first.epoch);

    // The master: the slave takes over.
    cluster.group.brokers[at].process.kill().expect("killed");
    let second = cluster.in_sync(1, first.epoch).await;
    assert_ne!(second.id, first.id);
    cluster.produce(&second, "second", 50).await;
    cluster.group.brokers[at].process.start().expect("starts");
    let third = cluster.in_sync(2, second.epoch - 1).await;
    cluster.stop_and_compare(&third).await;
}
