//! `epochlog controller`: runs one controller of a group, and the operator's commands to a running
//! group.

mod members;
mod status;
mod transfer;

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use epochlog_raft_glue::client::{ControllerClient, ControllerClientConfig};
use epochlog_raft_glue::{Controller, ControllerConfig};
use tracing::{error, info, warn};

use super::{goes_on, runtime};
use crate::conf::ControllerConf;
use crate::stop::Stop;

/// Longer than a controller takes to decide on a change, or to give a transfer up.
const REQUEST_LIMIT: Duration = Duration::from_secs(10);

/// Run a controller, or look after a running group of them
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    /// A RocketMQ controller.conf
    #[arg(short = 'c', long = "configFile", value_name = "FILE", required = true)]
    config: Option<PathBuf>,
    /// Print every setting with the value in force, and exit
    #[arg(short = 'p', long = "printConfigItem")]
    print: bool,
    /// End when standard input does: whoever started this process holds the other end
    #[arg(long, hide = true)]
    stop_with_stdin: bool,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Status(status::Args),
    Members(members::Args),
    Transfer(transfer::Args),
}

/// Which group is meant.
#[derive(Debug, clap::Args)]
struct GroupArgs {
    /// Controllers of the group; one that runs is enough
    #[arg(long, value_name = "HOST:PORT,...")]
    addr: String,
}

impl GroupArgs {
    fn client(&self, limit: Duration) -> Result<ControllerClient, Box<dyn std::error::Error>> {
        let mut config = ControllerClientConfig::new(self.addr.replace(',', ";"));
        config.request_timeout = limit;
        let client = ControllerClient::new(config);
        Ok(client.map_err(|error| format!("--addr: {error}"))?)
    }
}

/// Runs until SIGTERM or SIGINT, or does what the subcommand says; exit code 0 after a clean stop,
/// or when it is done.
///
/// # Errors
/// The configuration is wrong, the controller cannot start or go on, or the group does not do what
/// was asked of it.
pub fn run(args: &Args) -> Result<ExitCode, Box<dyn std::error::Error>> {
    match &args.command {
        Some(Command::Status(args)) => return runtime()?.block_on(status::run(args)),
        Some(Command::Members(args)) => return runtime()?.block_on(members::run(args)),
        Some(Command::Transfer(args)) => return runtime()?.block_on(transfer::run(args)),
        None => {}
    }
    let path = args.config.as_deref().ok_or("-c FILE is missing")?;
    let conf = ControllerConf::open(path)?;
    if !goes_on(args.print, args.stop_with_stdin, &conf.effective) {
        return Ok(ExitCode::SUCCESS);
    }
    runtime()?.block_on(serve(conf))
}

async fn serve(conf: ControllerConf) -> Result<ExitCode, Box<dyn std::error::Error>> {
    let mut stop = Stop::new()?;
    for warning in &conf.warnings {
        warn!("{warning}");
    }
    let controller = Controller::start(settings(&conf)?).await?;
    tokio::select! {
        signal = stop.wait() => {
            info!(signal, "stopping");
            controller.shutdown().await;
            info!("stopped clean");
            Ok(ExitCode::SUCCESS)
        }
        why = controller.failed() => {
            error!(why, "the controller cannot go on");
            Ok(ExitCode::FAILURE)
        }
    }
}

/// What a controller is started with.
pub(super) fn settings(
    conf: &ControllerConf,
) -> Result<ControllerConfig, epochlog_raft_glue::Error> {
    let peers: Vec<String> = conf
        .peers
        .iter()
        .map(|peer| format!("{}-{}", peer.id, peer.address))
        .collect();
    let mut config = ControllerConfig::new(&conf.self_id, &peers.join(";"), &conf.store_dir)?;
    let ms = crate::clock::ms;
    config.group.clone_from(&conf.group);
    config.join = conf.join;
    config.preferred_leaders = conf.preferred_leaders.iter().cloned().collect();
    config.listen = conf.bind_ip.and_then(|ip| listen(ip, conf.self_address()));
    config.scan_not_active_broker_interval_ms = ms(conf.scan_not_active_interval);
    config.scan_inactive_master_interval_ms = ms(conf.scan_inactive_master_interval);
    config.lease_wait_ms = ms(conf.lease_wait);
    (
        config.timings.election_min_ms,
        config.timings.election_max_ms,
    ) = (ms(conf.election_timeout.0), ms(conf.election_timeout.1));
    config.enable_elect_unclean_master = conf.elect_unclean_master;
    config.notify_broker_role_changed = conf.notify_role_changed;
    Ok(config)
}

/// The port of the own entry at the address to bind to.
fn listen(ip: IpAddr, own: &str) -> Option<SocketAddr> {
    let (_, port) = own.rsplit_once(':')?;
    Some(SocketAddr::new(ip, port.parse().ok()?))
}
