//! `epochlog demo`: a whole replica group on this machine, real messages, one master lost to SIGKILL,
//! and a check of what is on disk afterwards.
//!
//! The run and the judgement are apart: the run counts what was acknowledged; the judgement reads the
//! store folders after every process has stopped, and asks no process anything.

mod disk;
mod input;
mod report;
mod run;
mod traffic;
mod verdict;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use crate::group::{BROKER_NAME, Group, Plan};
use crate::observe::{Late, MasterView, Observer};
pub use input::InputError;
use report::{Counts, Report};
use run::{Finished, Run};
use verdict::OnDisk;

/// How long the group may take to elect its first master and gather its replicas.
const START_LIMIT: Duration = Duration::from_secs(20);
/// How long one process may take to stop.
const STOP_LIMIT: Duration = Duration::from_secs(10);
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

/// Runs the demo; exit code 0 only for `ok`. What stops it early becomes a report that is not ok,
/// and the folders stay for whoever looks into it.
///
/// # Errors
/// [`DemoError`] if the demo could not even begin.
pub fn run(args: &Args) -> Result<ExitCode, DemoError> {
    let runtime = super::runtime().map_err(io("start a runtime"))?;
    let (dir, temporary) = match &args.dir {
        Some(dir) => (dir.clone(), None),
        None => {
            let made = tempfile::Builder::new().prefix("epochlog-demo-").tempdir();
            let made = made.map_err(io("make a temporary folder"))?;
            (made.path().to_owned(), Some(made))
        }
    };
    let report = runtime
        .block_on(demonstrate(args, &dir))
        .unwrap_or_else(|error| Report::stopped(error.to_string()));
    if !report.ok {
        say(&format!(
            "stores, configuration and logs are in {}",
            dir.display()
        ));
        drop(temporary.map(tempfile::TempDir::keep));
    }
    if args.json {
        let line = serde_json::to_string(&report).map_err(|error| io("report")(error.into()))?;
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

async fn demonstrate(args: &Args, dir: &Path) -> Result<Report, DemoError> {
    let input = input::load(
        args.input.as_deref(),
        args.messages.map(|count| count as usize),
    )?;
    say(&format!("input: {}", input.origin));
    let plan = Plan {
        binary: own_binary()?,
        dir: dir.to_owned(),
        replicas: usize::from(args.replicas),
        controllers: usize::from(args.controllers),
        embedded: false,
        min_in_sync: 2,
        segment_size: SEGMENT_SIZE,
        broker_extra: String::new(),
        controller_extra: String::new(),
        log_filter: None,
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
