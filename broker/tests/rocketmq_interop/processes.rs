//! Whole processes: RocketMQ's broker, controller and name server, and our binary.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use crate::SEGMENT_SIZE;

/// Longer than a JVM takes to start on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(120);

pub(crate) const BROKER: &str = "broker-a";
pub(crate) const CLUSTER: &str = "cluster";

/// The release the whole processes are of: 5.5.1 came to Maven Central without its client and tools.
pub(crate) fn version() -> String {
    match std::env::var("ROCKETMQ_VERSION") {
        Ok(version) if version != "5.5.1" => version,
        _ => "5.5.0".to_owned(),
    }
}

fn peer_script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/rocketmq-peer/peer")
}

fn peer(command: &str) -> Command {
    let mut run = Command::new(peer_script());
    run.arg(command).env("ROCKETMQ_VERSION", version());
    run
}

/// Runs mqadmin commands one after the other; gives what each printed, what went wrong included. A question that
/// was not answered in time is asked again: of the 3 s that mqadmin waits, a JVM that has just started spends some
/// on loading its own classes.
pub(crate) fn mqadmin(commands: &[Vec<String>]) -> Vec<String> {
    let mut said = mqadmin_once(commands);
    for (command, text) in commands.iter().zip(&mut said) {
        let asks = command[0].starts_with("get") || command[0] == "haStatus";
        for _ in 0..5 {
            if !asks || !text.contains("RemotingTimeoutException") {
                break;
            }
            // The first one is for the JVM to get going.
            let twice = [command.clone(), command.clone()];
            *text = mqadmin_once(&twice).swap_remove(1);
        }
    }
    said
}

fn mqadmin_once(commands: &[Vec<String>]) -> Vec<String> {
    let output = peer("mqadmin")
        .args(commands.join(&"--".to_owned()))
        .output()
        .expect("mqadmin starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{}\n{text}", output.status);
    let said: Vec<_> = text.split("mqadmin ").skip(1).collect();
    assert_eq!(said.len(), commands.len(), "{text}");
    let after_the_name = |said: &str| said.split_once('\n').map(|(_, rest)| rest.to_owned());
    said.into_iter().filter_map(after_the_name).collect()
}

/// RocketMQ's own producer sends to whoever this name server names; gives one line for each message.
pub(crate) fn produce_by_name(namesrv: &str, topic: &str, messages: usize) -> Vec<String> {
    let messages = messages.to_string();
    let args = [
        "--namesrv",
        namesrv,
        "--topic",
        topic,
        "--messages",
        &messages,
    ];
    let output = peer("produce").args(args).output().expect("it starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{}\n{text}\n{errors}",
        output.status
    );
    let sent = text.lines().filter(|line| line.starts_with("{\"status\""));
    sent.map(str::to_owned).collect()
}

/// One process. It ends with its standard input; dropped, it is killed.
pub(crate) struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    /// A RocketMQ process with these settings, up.
    pub(crate) fn java(command: &str, dir: &Path, conf: &str) -> Self {
        let mut run = peer(command);
        let name = dir.join(format!("java-{command}-{}", free_port(&[0])));
        let mut process = Self::spawn(run.arg("--conf"), &name, conf, Stdio::piped());
        let lines = BufReader::new(process.child.stdout.take().expect("piped")).lines();
        let (tell, told) = channel();
        std::thread::spawn(move || {
            // RocketMQ prints lines of its own; all are read so that it never waits for us.
            for line in lines.map_while(Result::ok) {
                if line.contains("{\"ok\":true}") {
                    let _ = tell.send(());
                }
            }
        });
        if told.recv_timeout(PATIENCE).is_err() {
            panic!("RocketMQ's {command} is not up:\n{}", process.log());
        }
        process
    }

    /// Our binary with these settings.
    pub(crate) fn ours(command: &str, dir: &Path, conf: &str) -> Self {
        let mut run = Command::new(env!("CARGO_BIN_EXE_epochlog"));
        run.args([command, "--stop-with-stdin", "-c"]);
        let name = dir.join(format!("ours-{command}-{}", free_port(&[0])));
        Self::spawn(&mut run, &name, conf, Stdio::null())
    }

    fn spawn(run: &mut Command, name: &Path, conf: &str, stdout: Stdio) -> Self {
        let file = name.with_extension("conf");
        std::fs::write(&file, conf).expect("settings");
        let log = name.with_extension("log");
        let child = run
            .arg(&file)
            .stdin(Stdio::piped())
            .stdout(stdout)
            .stderr(std::fs::File::create(&log).expect("a log"))
            .spawn()
            .expect("starts");
        Self { child, log }
    }

    /// All that it logged.
    pub(crate) fn whole_log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// The end of what it logged.
    pub(crate) fn log(&self) -> String {
        let text = self.whole_log();
        let tail = text.lines().rev().take(30).collect::<Vec<_>>();
        tail.into_iter().rev().collect::<Vec<_>>().join("\n")
    }

    /// Dies as by SIGKILL.
    pub(crate) fn kill(mut self) {
        self.end();
    }

    /// A RocketMQ process shuts down when its standard input ends.
    pub(crate) fn stop_java(mut self) {
        drop(self.child.stdin.take());
        let status = self.child.wait().expect("it ends");
        assert!(status.success(), "{status}\n{}", self.log());
    }

    fn end(&mut self) {
        // Both fail once it has ended. `peer` becomes the JVM, so there is no other process.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}

/// A port that is free, as are those at these distances from it. Each call looks elsewhere.
pub(crate) fn free_port(near: &[i32]) -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = u16::try_from(std::process::id() % 500).unwrap_or(0);
    loop {
        let step = NEXT.fetch_add(1, Ordering::Relaxed) + first;
        let port = 21_004 + 8 * (step % 1200);
        let free = |distance: &i32| {
            let port = u16::try_from(i32::from(port) + distance).expect("a port");
            TcpListener::bind(("127.0.0.1", port)).is_ok()
        };
        if near.iter().all(free) {
            return port;
        }
    }
}

/// A broker.conf that both sides take. RocketMQ listens on two ports below, HA on the one above.
pub(crate) fn broker_conf(dir: &Path, port: u16, controllers: &str, namesrv: &str) -> String {
    let root = dir.display();
    format!(
        "brokerClusterName={CLUSTER}\nbrokerName={BROKER}\n\
         brokerIP1=127.0.0.1\nbrokerIP2=127.0.0.1\nbindAddress=127.0.0.1\n\
         listenPort={port}\nhaListenPort={}\n\
         storePathRootDir={root}\nstorePathCommitLog={root}/commitlog\n\
         storePathEpochFile={root}/epochFileCheckpoint\n\
         storePathBrokerIdentity={root}/brokerIdentity\n\
         mappedFileSizeCommitLog={SEGMENT_SIZE}\nmappedFileSizeConsumeQueue=20000\n\
         enableControllerMode=true\ncontrollerAddr={controllers}\nnamesrvAddr={namesrv}\n\
         allAckInSyncStateSet=true\ninSyncReplicas=2\nminInSyncReplicas=1\n\
         syncBrokerMetadataPeriod=1000\ncheckSyncStateSetPeriod=500\n\
         timerWheelEnable=false\nrocketmqHome={root}\n",
        port + 1
    )
}

/// A controller.conf that both sides take, for a controller alone.
pub(crate) fn controller_conf(dir: &Path, port: u16) -> String {
    format!(
        "controllerDLegerGroup=group\ncontrollerDLegerPeers=n0-127.0.0.1:{port}\n\
         controllerDLegerSelfId=n0\ncontrollerStorePath={}\nbindAddress=127.0.0.1\n\
         mappedFileSize=10485760\nrocketmqHome={}\n",
        dir.join(format!("controller-{port}")).display(),
        dir.display()
    )
}
