//! `epochlog hand-over`: makes another replica master without losing a write.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use epochlog_raft_glue::client::{ControllerClient, ControllerClientConfig};
use epochlog_raft_glue::remoting::ElectMasterRequest;

use super::runtime;

/// Make another replica of a broker set its master, without losing a write
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The controllers, as host:port;host:port
    #[arg(long, value_name = "HOST:PORT;...")]
    controllers: String,
    /// Name of the broker set
    #[arg(long, value_name = "NAME")]
    broker_name: String,
    /// Controller id of the next master; without it the smallest of the other members in sync
    #[arg(long, value_name = "ID")]
    to: Option<i64>,
}

/// Runs the command; exit code 0 when the replica named is master.
///
/// # Errors
/// No controller leads, or the set has no member to hand over to.
pub fn run(args: &Args) -> Result<ExitCode, Box<dyn std::error::Error>> {
    runtime()?.block_on(hand_over(args))
}

async fn hand_over(args: &Args) -> Result<ExitCode, Box<dyn std::error::Error>> {
    let mut config = ControllerClientConfig::new(args.controllers.as_str());
    // The master may take a while to have everything replicated, and its lease may run after that.
    config.request_timeout = Duration::from_secs(10);
    let controllers = ControllerClient::new(config)?;
    let before = controllers.replica_info(&args.broker_name).await?;
    let old = before.master.master_broker_id;
    let mut others = before
        .set
        .sync_state_set
        .iter()
        .filter(|id| Some(**id) != old);
    let to = args
        .to
        .or_else(|| others.next().copied())
        .ok_or("no other member is in sync")?;
    let begin = Instant::now();
    let elected = controllers
        .elect_master(&ElectMasterRequest {
            broker_name: args.broker_name.clone(),
            broker_id: Some(to),
            designate_elect: Some(true),
            ..ElectMasterRequest::default()
        })
        .await?;
    let master = elected.master;
    println!(
        "master of {}: broker {} at {} in epoch {}, decided in {} ms",
        args.broker_name,
        master.master_broker_id.unwrap_or(-1),
        master.master_address.as_deref().unwrap_or("?"),
        master.master_epoch.unwrap_or(0),
        begin.elapsed().as_millis()
    );
    Ok(match master.master_broker_id == Some(to) {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}
