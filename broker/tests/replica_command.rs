//! `epochlog replica`: the binary against a master of ours that no controller knows.

use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use epochlog_engine::{Message, Store, StoreConfig};
use epochlog_ha::{
    AckPolicy, AckRequest, HaConfig, HaService, HandshakeAnswerForm, Outcome, SyncStateSet,
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const SEGMENT_SIZE: u64 = 64 * 1024;
const PATIENCE: Duration = Duration::from_secs(60);

struct Master {
    store: Arc<Store>,
    ha: HaService,
}

impl Master {
    fn start(dir: &Path) -> Self {
        let store = Arc::new(open(dir));
        let ha = HaService::start(Arc::clone(&store), HaConfig::on_loopback(1)).expect("starts");
        Self { store, ha }
    }

    fn lead(&self, epoch: u32) {
        let set = SyncStateSet::new([1], epoch);
        self.ha.become_master(epoch, set).expect("a newer epoch");
    }

    fn put(&self, count: usize) {
        let host = SocketAddr::from((Ipv4Addr::LOCALHOST, 10911));
        for n in 0..count {
            let body = vec![b'x'; 10 + n * 389 % 3000];
            let message = Message::new("orders", &body, host, 1);
            let ack = AckRequest::new(AckPolicy::Local, PATIENCE);
            let outcome = self.ha.append_and_wait(&message, ack);
            assert!(matches!(outcome, Outcome::Acked(_)), "{outcome:?}");
        }
    }

    fn addr(&self) -> String {
        self.ha.listen_addr().to_string()
    }
}

fn open(dir: &Path) -> Store {
    let mut config = StoreConfig::new(dir);
    config.segment_size = SEGMENT_SIZE;
    Store::open(config).expect("opens")
}

fn command(master: &str, dir: &Path, more: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_epochlog"));
    command.args(["replica", "--master", master, "--dir"]);
    command.arg(dir).args(more);
    command
}

/// Copies until level, and gives what was printed last.
fn copy(master: &str, dir: &Path, more: &[&str]) -> Value {
    let output = command(master, dir, &["--until-level", "--json"])
        .args(more)
        .output()
        .expect("starts");
    assert!(output.status.success(), "{}", text(&output));
    let lines = String::from_utf8(output.stdout).expect("text");
    serde_json::from_str(lines.lines().last().expect("a line")).expect("JSON")
}

fn text(output: &Output) -> String {
    let both = [&output.stdout[..], &output.stderr[..]].concat();
    String::from_utf8_lossy(&both).into_owned()
}

/// Bytes and epoch list of a store that nobody has open.
fn content(dir: &Path) -> (Vec<u8>, Vec<(u32, u64)>) {
    let store = open(dir);
    let held = held(&store);
    store.close().expect("closes");
    held
}

fn held(store: &Store) -> (Vec<u8>, Vec<(u32, u64)>) {
    let (mut at, end) = (store.min_offset(), store.end_offset());
    let mut bytes = Vec::new();
    while at < end {
        let slice = store.slice(at, usize::MAX).expect("readable");
        bytes.extend_from_slice(&slice);
        at += slice.len() as u64;
    }
    let list = store.epochs();
    let epochs = list.entries().iter().map(|it| (it.epoch, it.start));
    (bytes, epochs.collect())
}

const SIZE: [&str; 2] = ["--segment-size", "65536"];

#[test]
fn a_copy_is_resumed_after_elections_and_a_cut_of_its_own_tail() {
    let dir = tempfile::tempdir().expect("a folder");
    let (first, second, copied) = (
        dir.path().join("first"),
        dir.path().join("second"),
        dir.path().join("copy"),
    );
    let master = Master::start(&first);
    master.lead(1);
    master.put(120);
    let last = copy(&master.addr(), &copied, &SIZE);
    assert_eq!(last["lag"], 0);
    assert_eq!(last["end_offset"], master.store.end_offset());
    assert!(master.store.end_offset() > 2 * SEGMENT_SIZE);
    assert!(content(&copied) == held(&master.store));

    // A second master holds the same and no more; the first one goes on without it.
    copy(&master.addr(), &second, &SIZE);
    master.lead(2);
    master.put(40);
    // The size of the segments is known from the copy.
    copy(&master.addr(), &copied, &[]);
    assert!(content(&copied) == held(&master.store));
    drop(master);

    // The second one is elected and has never seen epoch 2: the copy loses it.
    let master = Master::start(&second);
    master.lead(3);
    master.put(70);
    let last = copy(&master.addr(), &copied, &["--learner"]);
    assert!(last["cut_bytes"].as_u64() > Some(0), "{last}");
    assert!(content(&copied) == held(&master.store));
    assert!(copied.join("truncated").is_dir(), "what was cut is kept");
}

#[test]
fn a_copy_of_a_newer_epoch_is_not_cut_by_an_old_master_unasked() {
    let dir = tempfile::tempdir().expect("a folder");
    let (old, new, copied) = (
        dir.path().join("old"),
        dir.path().join("new"),
        dir.path().join("copy"),
    );
    let first = Master::start(&old);
    first.lead(1);
    first.put(10);
    copy(&first.addr(), &new, &SIZE);
    let second = Master::start(&new);
    second.lead(2);
    second.put(10);
    copy(&second.addr(), &copied, &SIZE);
    let before = content(&copied);
    first.put(3);
    let refused = command(&first.addr(), &copied, &["--until-level"])
        .output()
        .expect("starts");
    assert_eq!(refused.status.code(), Some(1));
    let why = text(&refused);
    assert!(
        why.contains("ends in epoch 1, this copy in epoch 2"),
        "{why}"
    );
    assert!(why.contains("--allow-older-master"), "{why}");
    assert!(content(&copied) == before, "nothing was touched");
    copy(&first.addr(), &copied, &["--allow-older-master"]);
    assert!(content(&copied) == held(&first.store));
}

#[test]
fn a_copy_that_is_waited_for_is_given_up_when_nothing_comes() {
    let dir = tempfile::tempdir().expect("a folder");
    let gone = Master::start(&dir.path().join("gone"));
    let nobody = gone.addr();
    drop(gone);
    let began = Instant::now();
    let output = command(&nobody, &dir.path().join("copy"), &SIZE)
        .args(["--until-level", "--give-up", "2"])
        .output()
        .expect("starts");
    assert_eq!(output.status.code(), Some(1));
    assert!(began.elapsed() < PATIENCE / 2, "{:?}", began.elapsed());
    let why = text(&output);
    assert!(
        why.contains("is not level with") && why.contains("efused"),
        "{why}"
    );
}

#[test]
fn a_running_copy_follows_survives_a_kill_and_stops_clean() {
    let dir = tempfile::tempdir().expect("a folder");
    let copied = dir.path().join("copy");
    let master = Master::start(&dir.path().join("master"));
    master.lead(1);
    master.put(30);
    let mut running = Running::start(&master.addr(), &copied, &SIZE);
    running.wait_for(master.store.end_offset());
    master.put(60);
    running.wait_for(master.store.end_offset());
    running.child.kill().expect("it is ours");
    running.child.wait().expect("it ends");
    master.put(60);
    let mut running = Running::start(&master.addr(), &copied, &SIZE);
    running.wait_for(master.store.end_offset());
    let set = master.ha.runtime_info().sync_state_set.expect("a set");
    assert_eq!(set.members.len(), 1, "a learner is proposed for nothing");
    assert_eq!(master.ha.next_proposal(), None);
    let pid = Pid::from_child(&running.child);
    kill_process(pid, Signal::TERM).expect("it is ours");
    assert!(running.child.wait().expect("it ends").success());
    let store = open(&copied);
    assert!(store.opened().clean);
    assert!(held(&store) == held(&master.store));
}

/// As masters of 5.1.0 and 5.0.0 are.
#[test]
fn a_copy_is_made_of_a_master_that_knows_addresses() {
    for (word, form) in [
        ("address", HandshakeAnswerForm::Short),
        ("address-5.0.0", HandshakeAnswerForm::Long),
    ] {
        let dir = tempfile::tempdir().expect("a folder");
        let (first, copied) = (dir.path().join("first"), dir.path().join("copy"));
        let mut config = HaConfig::on_loopback(1);
        config.accept_address_handshake = true;
        config.answer_form = form;
        config.address_ids.insert("10.0.0.7:10911".to_owned(), 7);
        let store = Arc::new(open(&first));
        let ha = HaService::start(Arc::clone(&store), config).expect("starts");
        let master = Master { store, ha };
        master.lead(1);
        master.put(50);
        let mut options = vec!["--handshake", word];
        options.extend(SIZE);
        copy(&master.addr(), &copied, &options);
        assert!(content(&copied) == held(&master.store));
        // A learner until it says whose place it takes.
        assert!(master.ha.next_proposal().is_none());
        // A replica that comes under a name with bytes of this epoch that were never sent to that name does not
        // count; in the next epoch it does.
        master.lead(2);
        options.extend(["--address", "10.0.0.7:10911"]);
        let mut member = Running::start(&master.addr(), &copied, &options);
        member.wait_for(master.store.end_offset());
        let give_up = Instant::now() + PATIENCE;
        while master
            .ha
            .next_proposal()
            .is_none_or(|set| !set.members.contains(&7))
        {
            assert!(Instant::now() < give_up, "{:#?}", master.ha.runtime_info());
        }
    }
}

#[test]
fn options_that_name_the_copy_in_the_other_way_are_refused() {
    let dir = tempfile::tempdir().expect("a folder");
    for (options, word) in [
        (&["--handshake", "address", "--id", "3"][..], "--address"),
        (&["--address", "10.0.0.7:10911"][..], "--handshake address"),
        (&["--handshake", "name"][..], "address-5.0.0"),
    ] {
        let output = command("127.0.0.1:1", dir.path(), options).output();
        let output = output.expect("starts");
        assert!(!output.status.success());
        assert!(text(&output).contains(word), "{}", text(&output));
    }
    assert!(
        std::fs::read_dir(dir.path())
            .expect("a folder")
            .next()
            .is_none()
    );
}

struct Running {
    child: Child,
    /// Waiting for a child closes its input; this one ends with it, so it is kept open here.
    _stdin: std::process::ChildStdin,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Running {
    fn start(master: &str, dir: &Path, more: &[&str]) -> Self {
        let mut child = command(master, dir, &["--json", "--stop-with-stdin"])
            .args(more)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("starts");
        let stdin = child.stdin.take().expect("piped");
        let out = child.stdout.take().expect("piped");
        Self {
            child,
            _stdin: stdin,
            lines: BufReader::new(out).lines(),
        }
    }

    /// Reads progress until the copy ends at `end` and is behind by nothing.
    fn wait_for(&mut self, end: u64) {
        let give_up = Instant::now() + PATIENCE;
        for line in self.lines.by_ref() {
            let line: Value = serde_json::from_str(&line.expect("a line")).expect("JSON");
            if line["end_offset"] == end && line["lag"] == 0 {
                return;
            }
            assert!(Instant::now() < give_up, "{line}");
        }
        panic!("the copy ended");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail once it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
