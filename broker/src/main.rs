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
    Demo(cmd::demo::Args),
    HandOver(cmd::hand_over::Args),
    Inspect(cmd::inspect::Args),
    Produce(cmd::produce::Args),
    Repair(cmd::repair::Args),
    Replay(cmd::replay::Args),
    Replica(cmd::replica::Args),
    Verify(cmd::verify::Args),
}

fn main() -> ExitCode {
    cmd::start_logging();
    if let Err(error) = epochlog_engine::signals::install() {
        tracing::warn!(%error, "the loss of a mapped file would end this process without a word");
    }
    let done = match Cli::parse().command {
        Command::Broker(args) => cmd::broker::run(&args),
        Command::Controller(args) => cmd::controller::run(&args),
        Command::Demo(args) => cmd::told(cmd::demo::run(&args)),
        Command::HandOver(args) => cmd::hand_over::run(&args),
        Command::Inspect(args) => cmd::told(cmd::inspect::run(&args)),
        Command::Repair(args) => cmd::told(cmd::repair::run(&args)),
        Command::Verify(args) => cmd::told(cmd::verify::run(&args)),
        Command::Replay(args) => cmd::told(cmd::replay::run(&args)),
        Command::Replica(args) => cmd::told(cmd::replica::run(&args)),
        Command::Produce(args) => cmd::told(cmd::produce::run(&args)),
    };
    done.unwrap_or_else(|error| {
        eprintln!("epochlog: {error}");
        ExitCode::FAILURE
    })
}
