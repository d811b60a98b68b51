//! The Java side: one run of `rocketmq-peer`, or a replica that stays and is told what to be.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use serde::Deserialize;

use crate::SEGMENT_SIZE;

/// Longer than any answer takes on a loaded machine, JVM start included.
const PATIENCE: Duration = Duration::from_secs(90);

/// One sub-command on the folder `dir`.
fn command(dir: &Path, name: &str) -> Command {
    let peer = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/rocketmq-peer/peer");
    let mut command = Command::new(peer);
    command.arg(name).arg("--dir").arg(dir);
    command.args(["--segment-size", &SEGMENT_SIZE.to_string()]);
    command
}

/// Runs one sub-command to its end.
pub(crate) fn run(dir: &Path, name: &str, more: &[&str]) {
    let output = command(dir, name)
        .args(more)
        .output()
        .expect("the Java side starts");
    assert!(
        output.status.success(),
        "rocketmq-peer {name}: {}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

/// A RocketMQ replica in a process of its own. Dropped, it is killed.
pub(crate) struct Replica {
    pub(crate) id: u64,
    pub(crate) ha_addr: SocketAddr,
    process: Child,
    orders: ChildStdin,
    answers: Receiver<String>,
    /// What it writes to its standard error, for a report.
    errors: File,
}

/// What a replica answers to an order.
#[derive(Debug, Deserialize)]
pub(crate) struct Answer {
    ok: bool,
    #[serde(default)]
    ha_port: u16,
    /// Its max offset.
    #[serde(default)]
    pub(crate) end: u64,
    /// Its epoch list.
    #[serde(default)]
    pub(crate) epochs: Vec<(u32, u64)>,
    /// Its SyncStateSet, meaningful on a master.
    #[serde(default)]
    pub(crate) sync_state_set: Vec<u64>,
    /// How often each RocketMQ put status came back.
    #[serde(default)]
    pub(crate) puts: std::collections::BTreeMap<String, usize>,
}

impl Replica {
    /// Opens `dir` as a store of RocketMQ's and waits for a role. It grants itself every SyncStateSet.
    pub(crate) fn start(dir: &Path, id: u64, more: &[&str]) -> Self {
        let errors = tempfile::tempfile().expect("a temporary file");
        let mut process = command(dir, "serve")
            .args(["--id", &id.to_string(), "--small-only", "--accept-sets"])
            .args(["--seed", &id.to_string()])
            .args(more)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(errors.try_clone().expect("a second handle"))
            .spawn()
            .expect("the Java side starts");
        let orders = process.stdin.take().expect("piped");
        let lines = BufReader::new(process.stdout.take().expect("piped")).lines();
        let (tell, answers) = channel();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                if tell.send(line).is_err() {
                    break;
                }
            }
        });
        let ha_addr = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let mut replica = Self {
            id,
            ha_addr,
            process,
            orders,
            answers,
            errors,
        };
        let port = replica.answer("start").ha_port;
        replica.ha_addr.set_port(port);
        replica
    }

    fn answer(&mut self, order: &str) -> Answer {
        let line = self
            .answers
            .recv_timeout(PATIENCE)
            .unwrap_or_else(|error| panic!("{self}, {order}: {error}"));
        let answer: Answer = serde_json::from_str(&line).expect("an answer in JSON");
        assert!(answer.ok, "{self}, {order}: {line}");
        answer
    }

    /// Gives an order and waits for its answer; one that is not ok is a panic.
    pub(crate) fn order(&mut self, order: &str) -> Answer {
        writeln!(self.orders, "{order}").expect("the replica listens");
        self.answer(order)
    }

    /// Makes it follow the master `id` of `epoch`.
    pub(crate) fn follow(&mut self, epoch: u32, id: u64, addr: SocketAddr) -> Answer {
        self.order(&format!("slave {epoch} {id} {addr}"))
    }

    /// Puts `count` messages and expects PUT_OK for each.
    pub(crate) fn put(&mut self, count: usize) -> Answer {
        let answer = self.order(&format!("put {count}"));
        assert_eq!(answer.puts.get("PUT_OK"), Some(&count), "{answer:?}");
        answer
    }

    /// Waits until its log reaches `end`.
    pub(crate) fn wait_for(&mut self, end: u64) -> Answer {
        let answer = self.order(&format!("wait {end} 60000"));
        assert_eq!(answer.end, end, "{answer:?}");
        answer
    }

    /// Stops as a broker does.
    pub(crate) fn stop(mut self) {
        self.order("stop");
        let status = self.process.wait().expect("it ends");
        assert!(status.success(), "{status}");
    }

    /// Dies as by SIGKILL.
    pub(crate) fn kill(mut self) {
        self.process.kill().expect("it is ours");
        self.process.wait().expect("it ends");
    }
}

/// Its number, and the end of what it said on standard error.
impl std::fmt::Display for Replica {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        const SHOWN: u64 = 4 << 10;
        let mut errors = &self.errors;
        let mut text = Vec::new();
        let read = errors
            .metadata()
            .and_then(|it| errors.seek(SeekFrom::Start(it.len().saturating_sub(SHOWN))))
            .and_then(|_| errors.read_to_end(&mut text));
        let text = match &read {
            Ok(_) => String::from_utf8_lossy(&text),
            Err(error) => error.to_string().into(),
        };
        write!(f, "RocketMQ replica {} (it says: {text})", self.id)
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        // Both fail once it has ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
