//! `epochlog`: the reference broker, the controller, and the tools to look into a store folder.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use epochlog_broker::cmd;

/// A RocketMQ-compatible replica group: broker, controller, and tools.
#[derive(Parser)]
#[command(name = "epochlog", version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Broker(cmd::broker::Args),
    Controller(cmd::controller::Args),
    Produce(cmd::produce::Args),
}

fn main() -> ExitCode {
    cmd::start_logging();
    let done = match Cli::parse().command {
        Command::Broker(args) => cmd::broker::run(&args),
        Command::Controller(args) => cmd::controller::run(&args),
        Command::Produce(args) => cmd::told(cmd::produce::run(&args)),
    };
    done.unwrap_or_else(|error| {
        eprintln!("epochlog: {error}");
        ExitCode::FAILURE
    })
}
