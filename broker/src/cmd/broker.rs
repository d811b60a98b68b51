//! `epochlog broker`: runs one replica of a broker set, with a controller in the same process if asked
//! for.

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

use epochlog_raft_glue::Controller;

use super::{controller, goes_on, runtime};
use crate::conf::{BrokerConf, EmbeddedConf};
use crate::wiring;

/// Run a broker
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A RocketMQ broker.conf
    #[arg(short = 'c', long = "configFile", value_name = "FILE")]
    config: PathBuf,
    /// Run a controller in the same process; the file has the keys of a controller.conf too
    #[arg(long)]
    controller_embedded: bool,
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
/// The configuration is wrong, or the broker or its embedded controller cannot start, go on or stop
/// clean.
pub fn run(args: &Args) -> Result<ExitCode, Box<dyn Error>> {
    if args.controller_embedded {
        let conf = EmbeddedConf::open(&args.config)?;
        if goes_on(args.print, args.stop_with_stdin, &conf.effective()) {
            run_both(conf)?;
        }
    } else {
        let conf = BrokerConf::open(&args.config)?;
        if goes_on(args.print, args.stop_with_stdin, &conf.effective) {
            runtime()?.block_on(wiring::run(conf))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The controller has threads of its own: a busy broker must not cost it the leadership. It starts
/// first and stops last, so that the broker's farewell still reaches it.
fn run_both(conf: EmbeddedConf) -> Result<(), Box<dyn Error>> {
    let (own, beside) = (runtime()?, runtime()?);
    let settings = controller::settings(&conf.controller)?;
    let controller = beside.block_on(Controller::start(settings))?;
    let ended = own.block_on(wiring::run_beside(conf.broker, async {
        format!(
            "the controller in this process: {}",
            controller.failed().await
        )
    }));
    beside.block_on(controller.shutdown());
    Ok(ended?)
}
