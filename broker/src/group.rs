//! A whole replica group as operating-system processes on this machine: configuration files, free
//! loopback ports, start, SIGKILL, restart, clean stop. The demo and the tests use it.
//!
//! Every child runs this project's own binary with `--stop-with-stdin` and holds the read end of a
//! pipe whose write end lives here: when this process ends, however it ends, its children stop too.

use std::fs::{self, File};
use std::io;
use std::net::TcpListener;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, prlimit};

/// How often a stopping process is looked at.
const STOP_POLL: Duration = Duration::from_millis(10);
/// Ports are taken below the range from which the system gives ports to outgoing connections, so
/// that a restarted process finds its own port free.
const PORTS: std::ops::Range<u16> = 18_000..32_000;

/// What to start.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The binary `epochlog`.
    pub binary: PathBuf,
    /// Where configuration, logs and stores go; created if missing.
    pub dir: PathBuf,
    /// Number of brokers.
    pub replicas: usize,
    /// Number of controllers: odd, so that a majority survives the loss of one of three.
    pub controllers: usize,
    /// Each broker has a controller in its process; none runs by itself.
    pub embedded: bool,
    /// `minInSyncReplicas`.
    pub min_in_sync: usize,
    /// `mappedFileSizeCommitLog`, bytes.
    pub segment_size: u64,
    /// Further lines for every broker.conf.
    pub broker_extra: String,
    /// Further lines for every controller.conf.
    pub controller_extra: String,
    /// What the processes log (`RUST_LOG`); `None`: as this process would.
    pub log_filter: Option<String>,
}

/// The lines of every broker.conf that fail over fast, where machines and network are never slow
/// for long: see the operations page.
pub const FAST_BROKER: &str = "brokerHeartbeatInterval=50\nleaseMills=250\nleaseAckMills=40\n";

/// The lines of every controller.conf that go with [`FAST_BROKER`].
pub const FAST_CONTROLLER: &str =
    "leaseWaitMills=300\nelectionTimeoutMinMills=150\nelectionTimeoutMaxMills=300\n";

/// One process and what is needed to start it again.
#[derive(Debug)]
pub struct Process {
    name: String,
    binary: PathBuf,
    command: &'static [&'static str],
    conf: PathBuf,
    log: PathBuf,
    log_filter: Option<String>,
    child: Option<Child>,
}

/// One broker of the group.
#[derive(Debug)]
pub struct Broker {
    /// The process.
    pub process: Process,
    /// `host:port` of `listenPort`.
    pub address: String,
    /// `storePathRootDir`.
    pub store: PathBuf,
}

/// The processes of one replica group.
#[derive(Debug)]
pub struct Group {
    /// The controllers.
    pub controllers: Vec<Process>,
    /// `controllerAddr` as every broker has it.
    pub controller_addr: String,
    /// `controllerDLegerPeers` as the first controllers have it.
    peers: String,
    /// The brokers.
    pub brokers: Vec<Broker>,
}

/// `brokerName` of the group.
pub const BROKER_NAME: &str = "broker-a";
/// `brokerClusterName` of the group.
pub const CLUSTER_NAME: &str = "epochlog";

impl Group {
    /// Writes the configuration and starts everything. Returns when all processes run; they are
    /// not ready yet.
    ///
    /// # Errors
    /// A file cannot be written, no port is free, or a process cannot be started.
    pub fn start(plan: &Plan) -> io::Result<Self> {
        fs::create_dir_all(&plan.dir)?;
        let mut ports = FreePorts;
        let count = match plan.embedded {
            true => plan.replicas,
            false => plan.controllers,
        };
        let peers: Vec<u16> = ports.take(count)?;
        let peer_text: Vec<_> = peers
            .iter()
            .enumerate()
            .map(|(index, port)| format!("n{index}-127.0.0.1:{port}"))
            .collect();
        let addresses: Vec<_> = peers
            .iter()
            .map(|port| format!("127.0.0.1:{port}"))
            .collect();
        let mut group = Self {
            controllers: Vec::new(),
            controller_addr: addresses.join(";"),
            peers: peer_text.join(";"),
            brokers: Vec::new(),
        };
        let alone = if plan.embedded { 0 } else { count };
        for index in 0..alone {
            let text = controller_text(plan, index, &group.peers);
            let mut controller = controller(plan, index, text)?;
            controller.start()?;
            group.controllers.push(controller);
        }
        for index in 0..plan.replicas {
            // With name servers a broker listens two ports below `listenPort` too.
            let row = ports.take_row(4)?;
            let mut broker = broker(plan, index, (row[2], row[3]), &group)?;
            broker.process.start()?;
            group.brokers.push(broker);
        }
        Ok(group)
    }

    /// Starts one more controller, `n{index}`, which waits to be added to the group; gives its
    /// `host:port`.
    ///
    /// # Errors
    /// As [`Group::start`].
    pub fn add_controller(&mut self, plan: &Plan, index: usize) -> io::Result<String> {
        let port = FreePorts.take(1)?[0];
        let address = format!("127.0.0.1:{port}");
        let peers = format!("{};n{index}-{address}", self.peers);
        let text = controller_text(plan, index, &peers) + "\ncontrollerJoin=true\n";
        let mut controller = controller(plan, index, text)?;
        controller.start()?;
        self.controllers.push(controller);
        Ok(address)
    }

    /// The broker that listens on `address`.
    #[must_use]
    pub fn broker_at(&self, address: &str) -> Option<usize> {
        self.brokers
            .iter()
            .position(|broker| broker.address == address)
    }

    /// Stops everything cleanly: the brokers in the order given, which should end with the master
    /// so that no other is elected meanwhile, then the rest, then the controllers. Returns the names
    /// of those that did not end by themselves with exit code 0 within `limit` each.
    ///
    /// # Errors
    /// A signal cannot be sent.
    pub fn stop(&mut self, order: &[usize], limit: Duration) -> io::Result<Vec<String>> {
        let mut unclean = Vec::new();
        let rest = (0..self.brokers.len()).filter(|index| !order.contains(index));
        let indexes: Vec<usize> = order.iter().copied().chain(rest).collect();
        for index in indexes {
            let process = &mut self.brokers[index].process;
            if !process.stop(limit)? {
                unclean.push(process.name.clone());
            }
        }
        for process in &mut self.controllers {
            if !process.stop(limit)? {
                unclean.push(process.name.clone());
            }
        }
        Ok(unclean)
    }
}

impl Process {
    /// Its name in messages, such as `broker 2`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its log file.
    #[must_use]
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// Starts the process; its output is appended to its log file.
    ///
    /// # Errors
    /// The log cannot be opened or the binary not be started.
    pub fn start(&mut self) -> io::Result<()> {
        let log = File::options().create(true).append(true).open(&self.log)?;
        let mut command = Command::new(&self.binary);
        if let Some(filter) = &self.log_filter {
            command.env("RUST_LOG", filter);
        }
        let child = command
            .args(self.command)
            .arg("-c")
            .arg(&self.conf)
            .arg("--stop-with-stdin")
            .stdin(Stdio::piped())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()?;
        self.child = Some(child);
        Ok(())
    }

    /// Whether it has ended by itself, and how.
    ///
    /// # Errors
    /// The system does not know the child.
    pub fn ended(&mut self) -> io::Result<Option<ExitStatus>> {
        self.child.as_mut().map_or(Ok(None), Child::try_wait)
    }

    /// Sends SIGKILL and waits for the end.
    ///
    /// # Errors
    /// The process does not run, or the signal cannot be sent.
    pub fn kill(&mut self) -> io::Result<()> {
        let mut child = self.child.take().ok_or_else(|| not_running(&self.name))?;
        child.kill()?;
        child.wait().map(drop)
    }

    /// Sends `signal`.
    ///
    /// # Errors
    /// The process does not run, or the signal cannot be sent.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        Ok(kill_process(self.pid()?, signal)?)
    }

    /// Sets the largest length in bytes that its files may grow to; `None` lifts the limit.
    ///
    /// # Errors
    /// The process does not run, or the limit cannot be set.
    pub fn limit_file_len(&self, len: Option<u64>) -> io::Result<()> {
        let limit = Rlimit {
            current: len,
            maximum: None,
        };
        prlimit(Some(self.pid()?), Resource::Fsize, limit)?;
        Ok(())
    }

    fn pid(&self) -> io::Result<Pid> {
        let child = self.child.as_ref().ok_or_else(|| not_running(&self.name))?;
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        pid.ok_or_else(|| not_running(&self.name))
    }

    /// Sends SIGTERM and waits; says whether the process ended by itself with exit code 0 within
    /// `limit`. One that does not is killed. A process that does not run stopped cleanly.
    ///
    /// # Errors
    /// The signal cannot be sent.
    pub fn stop(&mut self, limit: Duration) -> io::Result<bool> {
        let Some(child) = self.child.as_mut() else {
            return Ok(true);
        };
        if let Some(status) = child.try_wait()? {
            tracing::warn!(process = self.name, %status, "ended before it was stopped");
            self.child = None;
            return Ok(false);
        }
        self.signal(Signal::TERM)?;
        let deadline = Instant::now() + limit;
        let mut child = self.child.take().ok_or_else(|| not_running(&self.name))?;
        loop {
            if let Some(status) = child.try_wait()? {
                if status.code() != Some(0) {
                    let signal = status.signal();
                    tracing::warn!(process = self.name, %status, ?signal, "did not stop cleanly");
                }
                return Ok(status.code() == Some(0));
            }
            if Instant::now() >= deadline {
                tracing::warn!(process = self.name, ?limit, "did not stop in time; killed");
                child.kill()?;
                child.wait()?;
                return Ok(false);
            }
            std::thread::sleep(STOP_POLL);
        }
    }
}

impl Drop for Process {
    /// Leaves no orphan behind.
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            drop(child.kill());
            drop(child.wait());
        }
    }
}

fn not_running(name: &str) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, format!("{name} does not run"))
}

/// The keys of controller `n{index}`.
fn controller_text(plan: &Plan, index: usize, peers: &str) -> String {
    format!(
        "controllerDLegerGroup=epochlog\n\
         controllerDLegerPeers={peers}\n\
         controllerDLegerSelfId=n{index}\n\
         controllerStorePath={}\n\
         scanNotActiveBrokerInterval=500\n\
         scanInactiveMasterInterval=500\n{}",
        plan.dir.join(format!("controller-n{index}")).display(),
        plan.controller_extra,
    )
}

fn controller(plan: &Plan, index: usize, text: String) -> io::Result<Process> {
    let name = format!("controller-n{index}");
    let conf = plan.dir.join(format!("{name}.conf"));
    fs::write(&conf, text)?;
    Ok(Process {
        name: format!("controller n{index}"),
        binary: plan.binary.clone(),
        command: &["controller"],
        conf,
        log: plan.dir.join(format!("{name}.log")),
        log_filter: plan.log_filter.clone(),
        child: None,
    })
}

fn broker(plan: &Plan, index: usize, ports: (u16, u16), group: &Group) -> io::Result<Broker> {
    let name = format!("broker-{}", index + 1);
    let store = plan.dir.join(&name);
    let conf = plan.dir.join(format!("{name}.conf"));
    let controllers = &group.controller_addr;
    let mut text = format!(
        "brokerClusterName={CLUSTER_NAME}\n\
         brokerName={BROKER_NAME}\n\
         brokerIP1=127.0.0.1\n\
         bindAddress=127.0.0.1\n\
         listenPort={}\n\
         haListenPort={}\n\
         storePathRootDir={}\n\
         mappedFileSizeCommitLog={}\n\
         enableControllerMode=true\n\
         controllerAddr={controllers}\n\
         allAckInSyncStateSet=true\n\
         minInSyncReplicas={}\n\
         controllerHeartBeatTimeoutMills=3000\n\
         syncBrokerMetadataPeriod=1000\n\
         checkSyncStateSetPeriod=500\n\
         haMaxTimeSlaveNotCatchup=5000\n\
         cleanResourceInterval=3600000\n\
         {}\n",
        ports.0,
        ports.1,
        store.display(),
        plan.segment_size,
        plan.min_in_sync,
        plan.broker_extra,
    );
    if plan.embedded {
        text += &controller_text(plan, index, &group.peers);
    }
    fs::write(&conf, text)?;
    Ok(Broker {
        process: Process {
            name: format!("broker {}", index + 1),
            binary: plan.binary.clone(),
            command: match plan.embedded {
                true => &["broker", "--controller-embedded"],
                false => &["broker"],
            },
            conf,
            log: plan.dir.join(format!("{name}.log")),
            log_filter: plan.log_filter.clone(),
            child: None,
        },
        address: format!("127.0.0.1:{}", ports.0),
        store,
    })
}

/// Hands out ports nobody listens on, each once in the life of this process: a port is free until
/// its owner has started, so looking is not enough when two groups start at a time.
#[derive(Debug)]
struct FreePorts;

/// How many ports were looked at.
static LOOKED_AT: AtomicU32 = AtomicU32::new(0);

impl FreePorts {
    fn take(&mut self, count: usize) -> io::Result<Vec<u16>> {
        let span = u32::from(PORTS.end - PORTS.start);
        // Begins at a place that differs from process to process, so that two rarely meet.
        let first = std::process::id().wrapping_mul(61);
        let mut found = Vec::with_capacity(count);
        for _ in PORTS {
            let at = first.wrapping_add(LOOKED_AT.fetch_add(1, Ordering::Relaxed)) % span;
            let port = PORTS.start + u16::try_from(at).unwrap_or_default();
            if TcpListener::bind(("127.0.0.1", port)).is_ok() {
                found.push(port);
                if found.len() == count {
                    return Ok(found);
                }
            }
        }
        Err(io::Error::new(
            io::ErrorKind::AddrInUse,
            format!("no free port in {PORTS:?}"),
        ))
    }

    /// Ports one after the other.
    fn take_row(&mut self, count: usize) -> io::Result<Vec<u16>> {
        loop {
            let found = self.take(count)?;
            if found.windows(2).all(|pair| pair[0] + 1 == pair[1]) {
                return Ok(found);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_free_and_handed_out_once() {
        let mut ports = FreePorts;
        let first = ports.take(3).unwrap();
        let second = ports.take(3).unwrap();
        assert!(
            first
                .iter()
                .all(|port| PORTS.contains(port) && !second.contains(port))
        );
        let row = ports.take_row(4).unwrap();
        assert_eq!(row, (row[0]..row[0] + 4).collect::<Vec<_>>());
        let held = TcpListener::bind(("127.0.0.1", first[0])).unwrap();
        let mut again = FreePorts;
        assert!(
            !again
                .take(8)
                .unwrap()
                .contains(&held.local_addr().unwrap().port())
        );
    }
}
