//! `epochlog replica`: joins a master without any controller and keeps a copy of its log, for backup
//! and for moving a broker set elsewhere.
//!
//! Every record is checked, CRC included, before it counts; every handshake compares the last record
//! with the master's before it is acknowledged. What a handshake cuts goes to `truncated/`.

mod master;
mod progress;

use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use epochlog_engine::{Offset, Store, StoreConfig};
use epochlog_ha::{HaConfig, HaService, HandshakeAnswerForm, SlaveHandshake, SlaveIdentity};

use self::master::{Probed, probe};
use self::progress::{Growth, Progress, Shown};
use super::{exit_with_stdin, runtime};
use crate::stop::Stop;

/// Follow a master without controllers and keep a verified copy of its log
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The master's HA address, HOST:PORT (RocketMQ: haListenPort, not listenPort)
    #[arg(long, value_name = "HOST:PORT")]
    master: String,
    /// The folder of the copy; one that holds a copy already is resumed
    #[arg(long)]
    dir: PathBuf,
    /// Never count for the master's acknowledgements; what happens without --id
    #[arg(long, conflicts_with = "id")]
    learner: bool,
    /// Be the replica that the master's controllers know by this id, and count as it
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=u64::from(u32::MAX)))]
    id: Option<u64>,
    /// How the master knows its slaves: by their id (5.1.1 and later), by address (5.1.0), or by
    /// address with the longer answer of 5.0.0; nothing on the wire tells which
    #[arg(long, value_enum, default_value_t = Handshake::Id)]
    handshake: Handshake,
    /// With a handshake by address: be the replica that the master's controllers know by this one
    /// (RocketMQ: brokerIP1:listenPort), and count as it
    #[arg(long, value_name = "IP:PORT", conflicts_with_all = ["learner", "id"])]
    address: Option<SocketAddr>,
    /// Bytes of each segment of the master (RocketMQ: mappedFileSizeCommitLog); an existing copy
    /// knows it
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 30,
          value_parser = clap::value_parser!(u64).range(4096..=(1 << 31) - 1))]
    segment_size: u64,
    /// Start a new copy with the master's newest segment only (RocketMQ: syncFromLastFile)
    #[arg(long)]
    sync_from_last_file: bool,
    /// Stop, with exit code 0, as soon as the copy is level with the master and on disk
    #[arg(long)]
    until_level: bool,
    /// With --until-level: stop, with exit code 1, when the copy has not grown for so long
    #[arg(long, value_name = "SECONDS", default_value_t = 60, requires = "until_level",
          value_parser = clap::value_parser!(u64).range(1..=86_400))]
    give_up: u64,
    /// Follow a master although its log ends in an older epoch than this copy, and cut what differs
    #[arg(long)]
    allow_older_master: bool,
    /// Print one JSON object a second
    #[arg(long)]
    json: bool,
    /// End when standard input does: whoever started this process holds the other end
    #[arg(long, hide = true)]
    stop_with_stdin: bool,
}

/// How a slave says who it is, and the form of the master's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Handshake {
    Id,
    Address,
    #[value(name = "address-5.0.0")]
    AddressLong,
}

impl Handshake {
    fn answer_form(self) -> HandshakeAnswerForm {
        match self {
            Self::Id | Self::Address => HandshakeAnswerForm::Short,
            Self::AddressLong => HandshakeAnswerForm::Long,
        }
    }
}

/// Why the copy cannot be kept.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplicaError {
    /// `--master` names nobody.
    #[error("--master {text}: {why}")]
    Address {
        /// What was given.
        text: String,
        /// What is wrong with it.
        why: String,
    },
    /// Options that do not fit together.
    #[error("{0}")]
    Options(&'static str),
    /// A copy may only lose its newest epochs if the operator says so.
    #[error(
        "the log of {master} ends in epoch {theirs}, this copy in epoch {own}: an old master, or \
         another group; name the present master, or cut this copy with --allow-older-master"
    )]
    OlderMaster {
        /// The master.
        master: SocketAddr,
        /// Its last epoch; 0 for none.
        theirs: u32,
        /// Ours.
        own: u32,
    },
    /// The slave's side stopped for good.
    #[error("this copy cannot go on: {0}")]
    NeedsOperator(String),
    /// With `--until-level` somebody waits for the end.
    #[error(
        "the copy is not level with {master} and has not grown beyond {end} for {seconds} s: {why}"
    )]
    Stalled {
        /// The master.
        master: SocketAddr,
        /// The end of the copy.
        end: Offset,
        /// How long it was waited, in seconds.
        seconds: u64,
        /// Why the last connection, or the last attempt at one, ended.
        why: String,
    },
    /// The copy.
    #[error(transparent)]
    Store(#[from] epochlog_engine::Error),
    /// Replication.
    #[error(transparent)]
    Ha(#[from] epochlog_ha::Error),
    /// The system.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// What the system says.
        source: std::io::Error,
    },
}

impl Args {
    fn check(&self) -> Result<(), ReplicaError> {
        let by_address = self.handshake != Handshake::Id;
        if by_address && self.id.is_some() {
            let why = "--id: a master of 5.1.0 or 5.0.0 knows no ids; give --address instead";
            return Err(ReplicaError::Options(why));
        }
        if !by_address && self.address.is_some() {
            let why = "--address needs --handshake address or address-5.0.0";
            return Err(ReplicaError::Options(why));
        }
        Ok(())
    }

    fn is_learner(&self) -> bool {
        self.id.is_none() && self.address.is_none()
    }

    /// What a master that knows addresses is told; it looks it up in its SyncStateSet and does not
    /// connect there.
    fn own_address(&self) -> SocketAddr {
        self.address.unwrap_or_else(nobodys_address)
    }

    /// What the probe says: a learner that leaves again.
    fn hello(&self) -> SlaveHandshake {
        SlaveHandshake {
            sync_from_last_file: false,
            async_learner: true,
            identity: match self.handshake {
                Handshake::Id => SlaveIdentity::BrokerId(u64::from(u32::MAX) - 1),
                Handshake::Address | Handshake::AddressLong => {
                    SlaveIdentity::Address(nobodys_address().to_string())
                }
            },
            asks: None,
        }
    }
}

/// How often progress is shown, and the end looked for.
const LOOK_EVERY: Duration = Duration::from_millis(100);
const SHOW_EVERY: Duration = Duration::from_secs(1);

/// Runs until SIGTERM or SIGINT, or with `--until-level` until the copy is level; exit code 0 then,
/// and everything copied is on disk.
///
/// # Errors
/// [`ReplicaError`].
pub fn run(args: &Args) -> Result<ExitCode, ReplicaError> {
    if args.stop_with_stdin {
        exit_with_stdin();
    }
    let io = |what: &str| {
        let what = what.to_owned();
        move |source| ReplicaError::Io { what, source }
    };
    args.check()?;
    let master = resolve(&args.master)?;
    let mut config = StoreConfig::new(&args.dir);
    config.segment_size = args.segment_size;
    config.adopt_segment_size = true;
    let store = Arc::new(Store::open(config)?);
    let runtime = runtime().map_err(io("threads"))?;
    let ended = runtime.block_on(async {
        let mut stop = Stop::new().map_err(io("signals"))?;
        let ha = Arc::new(start(args, &store)?);
        let ended = tokio::select! {
            name = stop.wait() => {
                tracing::info!(signal = name, "stopping");
                Ok(())
            }
            ended = follow(args, master, &store, &ha) => ended,
        };
        // The connection is over, and what was received of a record erased, before the copy closes.
        blocking(move || ha.shutdown()).await?;
        ended
    });
    let end = store.end_offset();
    let closed = store.close();
    ended?;
    closed?;
    tracing::info!(end, "the copy is on disk");
    Ok(ExitCode::SUCCESS)
}

/// Follows the master; returns when the copy is level and that was asked for.
async fn follow(
    args: &Args,
    master: SocketAddr,
    store: &Arc<Store>,
    ha: &Arc<HaService>,
) -> Result<(), ReplicaError> {
    let give_up = args.until_level.then(|| Duration::from_secs(args.give_up));
    let mut growth = Growth::new(give_up, store.end_offset(), Instant::now());
    let probed = wait_for_master(args, master, store, &mut growth).await?;
    // Without controllers no one tells an epoch; the promise given before stays.
    let epoch = store.promises().max_epoch.unwrap_or(0);
    let shared = Arc::clone(ha);
    blocking(move || shared.become_slave(epoch, 0, master)).await??;
    watch(args, ha, store, Progress::new(probed.end), growth).await
}

/// Asks the master what it holds, until it answers; refuses one that this copy must not follow.
async fn wait_for_master(
    args: &Args,
    master: SocketAddr,
    store: &Arc<Store>,
    growth: &mut Growth,
) -> Result<Probed, ReplicaError> {
    loop {
        let hello = args.hello();
        let form = args.handshake.answer_form();
        match blocking(move || probe(master, &hello, form)).await? {
            Ok(probed) => {
                let own = store.epochs().last().map_or(0, |entry| entry.epoch);
                let theirs = probed.last_epoch.unwrap_or(0);
                let holds = store.end_offset() > store.min_offset();
                if holds && theirs < own && !args.allow_older_master {
                    return Err(ReplicaError::OlderMaster {
                        master,
                        theirs,
                        own,
                    });
                }
                return Ok(probed);
            }
            Err(error) => {
                tracing::warn!(%master, %error, "the master does not answer yet");
                growth.look(store.end_offset(), Some(&error.to_string()), Instant::now());
                growth.check(master)?;
            }
        }
        tokio::time::sleep(SHOW_EVERY).await;
    }
}

fn start(args: &Args, store: &Arc<Store>) -> Result<HaService, ReplicaError> {
    let mut config = HaConfig::on_loopback(args.id.unwrap_or_else(learner_id));
    config.async_learner = args.is_learner();
    config.answer_form = args.handshake.answer_form();
    if args.handshake != Handshake::Id {
        config.slave_address = Some(args.own_address());
    }
    config.sync_from_last_file = args.sync_from_last_file;
    Ok(HaService::start(Arc::clone(store), config)?)
}

async fn watch(
    args: &Args,
    ha: &Arc<HaService>,
    store: &Arc<Store>,
    mut progress: Progress,
    mut growth: Growth,
) -> Result<(), ReplicaError> {
    let shown = Shown::new(args.json);
    let mut next = Instant::now();
    loop {
        let asked = Arc::clone(ha);
        let client = blocking(move || asked.runtime_info().client).await?;
        if let Some(client) = client {
            if client.needs_operator {
                return Err(ReplicaError::NeedsOperator(
                    client.last_close.unwrap_or_default(),
                ));
            }
            progress.take(&client, store.min_offset());
            growth.look(
                client.max_offset,
                client.last_close.as_deref(),
                Instant::now(),
            );
            if args.until_level && progress.is_level() {
                shown.show(&progress, true);
                return Ok(());
            }
            growth.check(client.master_addr)?;
        }
        if Instant::now() >= next {
            next = Instant::now() + SHOW_EVERY;
            shown.show(&progress, false);
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ReplicaError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| ReplicaError::Io {
        what: "a thread of the copy".to_owned(),
        source: std::io::Error::other(error),
    })
}

/// An id no controller gives out: a master that counted it as a member's would count its acks.
fn learner_id() -> u64 {
    (1 << 31) + u64::from(std::process::id())
}

/// An address no broker listens on, of this process.
fn nobodys_address() -> SocketAddr {
    let port = u16::try_from(std::process::id() % 65_535).unwrap_or(0) + 1;
    SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port)
}

fn resolve(text: &str) -> Result<SocketAddr, ReplicaError> {
    let refuse = |why: String| ReplicaError::Address {
        text: text.to_owned(),
        why,
    };
    let mut found = text
        .to_socket_addrs()
        .map_err(|error| refuse(error.to_string()))?;
    found
        .next()
        .ok_or_else(|| refuse("the name has no address".to_owned()))
}
