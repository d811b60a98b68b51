//! `epochlog demo`: a whole replica group on this machine, real messages, one master lost to SIGKILL,
//! and a check of what is on disk afterwards.
//!
//! The run and the judgement are apart: the run counts what was acknowledged; the judgement reads the
//! store folders after every process has stopped, and asks no process anything.

mod disk;
mod input;
mod report;
mod traffic;
mod verdict;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use epochlog_raft_glue::remoting::{Client, ClientConfig};
use indicatif::{ProgressBar, ProgressStyle};
use tokio::sync::watch;

use crate::group::{BROKER_NAME, Group, Plan};
use crate::observe::{Late, MasterView, Observer};
pub use input::InputError;
use report::{Counts, Report};
use traffic::{Master, Traffic};
use verdict::OnDisk;

/// How long the group may take to elect its first master and gather its replicas.
const START_LIMIT: Duration = Duration::from_secs(20);
/// How long a returning replica may take to be in sync again.
const REJOIN_LIMIT: Duration = Duration::from_secs(20);
/// How long one process may take to stop.
const STOP_LIMIT: Duration = Duration::from_secs(10);
/// The input is spread over about this long, so that the failure happens while messages flow.
const TRAFFIC_SPAN: Duration = Duration::from_secs(6);
/// Longest pause between two messages.
const MAX_GAP: Duration = Duration::from_millis(50);
/// How often the group is looked at.
const LOOK: Duration = Duration::from_millis(20);
/// How often the progress is drawn anew.
const SHOW: Duration = Duration::from_millis(250);
/// Segments are small, so that a short demo rolls several times.
const SEGMENT_SIZE: u64 = 1 << 20;

/// Start a replica group, send messages, kill the master, check what is on disk.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Number of brokers
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(2..=9))]
    replicas: u8,
    /// Number of controllers
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=7))]
    controllers: u8,
    /// A store folder or a text file whose lines are messages; default: the log in fixtures/ that
    /// Apache RocketMQ wrote
    #[arg(long, value_name = "STORE_DIR|TEXT_FILE")]
    input: Option<PathBuf>,
    /// How many messages to send; the input is repeated or shortened
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    messages: Option<u32>,
    /// Messages on the way at a time
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=4096))]
    in_flight: u16,
    /// SIGKILL the master while messages flow, then start it again (the default)
    #[arg(long, overrides_with = "no_kill_master")]
    kill_master: bool,
    /// Let the master live
    #[arg(long)]
    no_kill_master: bool,
    /// Where the folders go, and stay; default: a temporary folder that is removed
    #[arg(long)]
    dir: Option<PathBuf>,
    /// The last line of the output is one JSON object
    #[arg(long)]
    json: bool,
}

/// What can stop a demo before its verdict.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// The input cannot be used.
    #[error(transparent)]
    Input(#[from] InputError),
    /// The group did not get where it should in time.
    #[error("{late}; logs and stores are in {}", dir.display())]
    Late {
        /// What did not happen.
        late: Late,
        /// Where to look.
        dir: PathBuf,
    },
    /// A process ended by itself.
    #[error("{name} ended with {status}; see {}", log.display())]
    Ended {
        /// Which.
        name: String,
        /// How.
        status: std::process::ExitStatus,
        /// Where it logged.
        log: PathBuf,
    },
    /// The system refused something.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// What the system says.
        source: std::io::Error,
    },
    /// A message could not be delivered.
    #[error("the traffic stopped: {0}")]
    Traffic(String),
}

/// Runs the demo; exit code 0 only for `ok`.
///
/// # Errors
/// [`DemoError`] if there is nothing to judge.
pub fn run(args: &Args) -> Result<ExitCode, DemoError> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|source| DemoError::Io {
            what: "tokio runtime".to_owned(),
            source,
        })?;
    let report = runtime.block_on(demonstrate(args))?;
    if args.json {
        let line = serde_json::to_string(&report).map_err(|error| DemoError::Io {
            what: "report".to_owned(),
            source: error.into(),
        })?;
        println!("{line}");
    } else {
        println!("{}", report.text());
    }
    Ok(if report.ok {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

async fn demonstrate(args: &Args) -> Result<Report, DemoError> {
    let input = input::load(
        args.input.as_deref(),
        args.messages.map(|count| count as usize),
    )?;
    say(&format!("input: {}", input.origin));
    let temporary;
    let dir: &Path = match &args.dir {
        Some(dir) => dir,
        None => {
            temporary = tempfile::Builder::new()
                .prefix("epochlog-demo-")
                .tempdir()
                .map_err(|source| DemoError::Io {
                    what: "temporary folder".to_owned(),
                    source,
                })?;
            temporary.path()
        }
    };
    let plan = Plan {
        binary: own_binary()?,
        dir: dir.to_owned(),
        replicas: usize::from(args.replicas),
        controllers: usize::from(args.controllers),
        min_in_sync: 2,
        segment_size: SEGMENT_SIZE,
        broker_extra: String::new(),
    };
    let mut group = Group::start(&plan).map_err(io("start the group"))?;
    let observer = Observer::new(BROKER_NAME, &group.controller_addr)
        .map_err(|error| io("controller addresses")(std::io::Error::other(error)))?;
    let mut run = Run::new(&mut group, &observer, dir);
    let first = run.gather(0, START_LIMIT).await?;
    say(&format!(
        "{} replicas in sync; {}",
        first.in_sync.len(),
        describe(&first)
    ));
    let outcome = run.drive(first, input.messages, args).await?;
    let unclean = stop_all(&mut group, &outcome.last)?;
    let stores: Vec<_> = group
        .brokers
        .iter()
        .map(|broker| broker.store.clone())
        .collect();
    Ok(judge(&outcome, &stores, &unclean))
}

fn io(what: &str) -> impl FnOnce(std::io::Error) -> DemoError {
    let what = what.to_owned();
    move |source| DemoError::Io { what, source }
}

fn own_binary() -> Result<PathBuf, DemoError> {
    std::env::current_exe().map_err(io("find this program's own file"))
}

fn describe(master: &MasterView) -> String {
    format!("broker {} is master in epoch {}", master.id, master.epoch)
}

fn say(text: &str) {
    eprintln!("{text}");
}

/// The slaves first, so that no other master is elected while the group goes down.
fn stop_all(group: &mut Group, last: &MasterView) -> Result<Vec<String>, DemoError> {
    let master = group.broker_at(&last.address).unwrap_or_default();
    let slaves = (0..group.brokers.len()).filter(|at| *at != master);
    let order: Vec<usize> = slaves.chain([master]).collect();
    group.stop(&order, STOP_LIMIT).map_err(io("stop the group"))
}

/// What the run left behind for the judgement.
#[derive(Debug)]
struct Finished {
    acked: Vec<String>,
    counts: Counts,
    last: MasterView,
}

/// One run: the group, and what was done to it.
#[derive(Debug)]
struct Run<'a> {
    group: &'a mut Group,
    observer: &'a Observer,
    dir: &'a Path,
    bar: ProgressBar,
}

/// The state of a run while messages flow.
#[derive(Debug)]
struct Flow {
    traffic: Arc<Traffic>,
    to_traffic: watch::Sender<Option<Master>>,
    master: MasterView,
    killed: Option<Killed>,
    failovers: usize,
}

#[derive(Debug)]
struct Killed {
    broker: usize,
    at: Instant,
    epoch: u32,
    restarted: bool,
}

impl<'a> Run<'a> {
    fn new(group: &'a mut Group, observer: &'a Observer, dir: &'a Path) -> Self {
        let bar = ProgressBar::new(0);
        let style = ProgressStyle::with_template("{wide_bar} {pos}/{len} {per_sec}  {msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Self {
            group,
            observer,
            dir,
            bar,
        }
    }

    /// Waits until every replica is in sync under a master of an epoch above `above`.
    async fn gather(&mut self, above: u32, limit: Duration) -> Result<MasterView, DemoError> {
        let members = self.group.brokers.len();
        let gathered = self.observer.wait_in_sync(members, above, limit).await;
        self.check_running()?;
        gathered.map_err(|late| self.late(late))
    }

    fn late(&self, late: Late) -> DemoError {
        DemoError::Late {
            late,
            dir: self.dir.to_owned(),
        }
    }

    /// An error if a process has ended by itself.
    fn check_running(&mut self) -> Result<(), DemoError> {
        let brokers = self
            .group
            .brokers
            .iter_mut()
            .map(|broker| &mut broker.process);
        for process in brokers.chain(&mut self.group.controllers) {
            if let Some(status) = process.ended().map_err(io("look at a process"))? {
                let (name, log) = (process.name().to_owned(), process.log().to_owned());
                return Err(DemoError::Ended { name, status, log });
            }
        }
        Ok(())
    }

    async fn drive(
        mut self,
        first: MasterView,
        messages: Vec<input::Outgoing>,
        args: &Args,
    ) -> Result<Finished, DemoError> {
        let count = u32::try_from(messages.len()).unwrap_or(u32::MAX).max(1);
        self.bar.set_length(u64::from(count));
        let (to_traffic, from_run) = watch::channel(Some(target_of(&first)));
        let client = Client::new(ClientConfig::default());
        let gap = (TRAFFIC_SPAN / count).min(MAX_GAP);
        let traffic = Traffic::new(client, messages, from_run, gap);
        let sender = Arc::clone(&traffic);
        let in_flight = usize::from(args.in_flight);
        let sending = tokio::spawn(async move { sender.run(in_flight).await });
        let mut flow = Flow {
            traffic,
            to_traffic,
            master: first,
            killed: None,
            failovers: 0,
        };
        let mut next_status = Instant::now();
        while !sending.is_finished() || flow.is_replica_missing() {
            self.look(&mut flow, !args.no_kill_master).await?;
            if Instant::now() >= next_status {
                self.show(&flow).await;
                next_status = Instant::now() + SHOW;
            }
            if let Some(failure) = flow.traffic.tally().failure {
                return Err(DemoError::Traffic(failure));
            }
            tokio::time::sleep(LOOK).await;
        }
        let last = self.gather(0, REJOIN_LIMIT).await?;
        let addresses = self
            .group
            .brokers
            .iter()
            .map(|broker| broker.address.as_str());
        let addresses: Vec<_> = addresses.collect();
        let level = self.observer.wait_level(&addresses, REJOIN_LIMIT).await;
        level.map_err(|late| self.late(late))?;
        self.bar.finish_and_clear();
        say(&format!(
            "{} replicas in sync at the end; {}",
            last.in_sync.len(),
            describe(&last)
        ));
        Ok(flow.finish(last))
    }

    /// Kills, follows and restarts as the progress asks for.
    async fn look(&mut self, flow: &mut Flow, kill: bool) -> Result<(), DemoError> {
        self.check_running()?;
        let (acked, _) = flow.traffic.progress();
        if kill && flow.killed.is_none() && acked * 3 >= flow.traffic.len() {
            self.kill_master(flow)?;
        }
        if let Ok(Some(seen)) = self.observer.master().await
            && seen.epoch >= flow.master.epoch
        {
            if seen.epoch > flow.master.epoch {
                self.bar.println(describe(&seen));
            }
            flow.follow(seen);
        }
        let back_at = flow.traffic.len() * 2 / 3;
        if let Some(killed) = &mut flow.killed
            && !killed.restarted
            && flow.master.epoch > killed.epoch
            && acked >= back_at
        {
            let broker = &mut self.group.brokers[killed.broker];
            broker.process.start().map_err(io("start a broker again"))?;
            killed.restarted = true;
            let name = broker.process.name();
            self.bar
                .println(format!("started {name} again while messages flow"));
        }
        Ok(())
    }

    fn kill_master(&mut self, flow: &mut Flow) -> Result<(), DemoError> {
        let Some(broker) = self.group.broker_at(&flow.master.address) else {
            return Ok(());
        };
        let epoch = flow.master.epoch;
        flow.traffic.master_killed(epoch);
        let at = Instant::now();
        self.group.brokers[broker]
            .process
            .kill()
            .map_err(io("kill the master"))?;
        self.bar
            .println(format!("SIGKILL: {}", describe(&flow.master)));
        flow.killed = Some(Killed {
            broker,
            at,
            epoch,
            restarted: false,
        });
        Ok(())
    }

    /// Messages so far, and how far each replica is behind.
    async fn show(&self, flow: &Flow) {
        let mut ends = Vec::new();
        for broker in &self.group.brokers {
            let status = self.observer.status(&broker.address).await;
            ends.push(status.map(|status| status.end));
        }
        let head = ends.iter().flatten().max().copied().unwrap_or_default();
        let lags = ends.iter().enumerate().map(|(at, end)| match end {
            Some(end) => format!("{}:{}", at + 1, head - end),
            None => format!("{}:down", at + 1),
        });
        let lags = lags.collect::<Vec<_>>().join(" ");
        let (acked, bytes) = flow.traffic.progress();
        self.bar.set_position(acked as u64);
        self.bar.set_message(format!(
            "{} KiB  epoch {}  bytes behind {lags}",
            bytes / 1024,
            flow.master.epoch
        ));
    }
}

impl Flow {
    /// Whether the killed master still has to be started again.
    fn is_replica_missing(&self) -> bool {
        self.killed.as_ref().is_some_and(|killed| !killed.restarted)
    }

    fn follow(&mut self, seen: MasterView) {
        if seen.epoch > self.master.epoch {
            self.failovers += 1;
        }
        let target = Some(target_of(&seen));
        self.to_traffic.send_if_modified(|known| {
            let changed = *known != target;
            known.clone_from(&target);
            changed
        });
        self.master = seen;
    }

    fn finish(self, last: MasterView) -> Finished {
        let tally = self.traffic.tally();
        let after_kill = self.killed.as_ref().zip(tally.first_after_failover);
        let failover_ms = after_kill.map(|(killed, first)| {
            let span = first.saturating_duration_since(killed.at);
            u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
        });
        let counts = Counts {
            acked: tally.acked.len(),
            unknown: tally.unknown,
            failovers: self.failovers,
            failover_ms,
            truncated_bytes: 0,
        };
        Finished {
            acked: tally.acked,
            counts,
            last,
        }
    }
}

fn target_of(master: &MasterView) -> Master {
    Master {
        id: master.id,
        epoch: master.epoch,
        address: master.address.clone(),
    }
}

fn judge(outcome: &Finished, stores: &[PathBuf], unclean: &[String]) -> Report {
    let mut counts = Counts {
        truncated_bytes: 0,
        ..outcome.counts
    };
    let mut replicas = Vec::new();
    for store in stores {
        let (replica, cut) = disk::read(store);
        counts.truncated_bytes += cut;
        let role = if replica.id == outcome.last.id {
            "master"
        } else {
            "slave"
        };
        replicas.push(OnDisk { role, ..replica });
    }
    let verdict = verdict::compare(&replicas, &outcome.acked, unclean);
    Report::new(&counts, &replicas, verdict)
}
