//! `epochlog broker`: runs one replica of a broker set.

use std::path::PathBuf;
use std::process::ExitCode;

use super::{exit_with_stdin, print_effective, runtime};
use crate::conf::BrokerConf;

/// Run a broker
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A RocketMQ broker.conf
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
/// The configuration is wrong, or the broker cannot start, go on or stop clean.
pub fn run(args: &Args) -> Result<ExitCode, Box<dyn std::error::Error>> {
    let conf = BrokerConf::open(&args.config)?;
    if args.print {
        print_effective(&conf.effective);
        return Ok(ExitCode::SUCCESS);
    }
    if args.stop_with_stdin {
        exit_with_stdin();
    }
    runtime()?.block_on(crate::wiring::run(conf))?;
    Ok(ExitCode::SUCCESS)
}
