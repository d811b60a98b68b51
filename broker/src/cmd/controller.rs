//! `epochlog controller`: runs one controller of a group.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;

use epochlog_raft_glue::{Controller, ControllerConfig};
use tracing::{error, info, warn};

use super::{exit_with_stdin, print_effective, runtime};
use crate::conf::ControllerConf;
use crate::stop::Stop;

/// Run a controller
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A RocketMQ controller.conf
    #[arg(short = 'c', long = "configFile", value_name = "FILE")]
    config: PathBuf,
    /// Print every setting with the value in force, and exit
    #[arg(short = 'p', long = "printConfigItem")]
    print: bool,
    /// End when standard input does: whoever started this process holds the other end
    #[arg(long, hide = true)]
    stop_with_stdin: bool,
}

/// Runs until SIGTERM or SIGINT; exit code 0 after a clean stop.
///
/// # Errors
/// The configuration is wrong, or the controller cannot start or go on.
pub fn run(args: &Args) -> Result<ExitCode, Box<dyn std::error::Error>> {
    let conf = ControllerConf::open(&args.config)?;
    if args.print {
        print_effective(&conf.effective);
        return Ok(ExitCode::SUCCESS);
    }
    if args.stop_with_stdin {
        exit_with_stdin();
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

fn settings(conf: &ControllerConf) -> Result<ControllerConfig, epochlog_raft_glue::Error> {
    let peers: Vec<String> = conf
        .peers
        .iter()
        .map(|peer| format!("{}-{}", peer.id, peer.address))
        .collect();
    let mut config = ControllerConfig::new(&conf.self_id, &peers.join(";"), &conf.store_dir)?;
    let ms = crate::clock::ms;
    config.group.clone_from(&conf.group);
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
