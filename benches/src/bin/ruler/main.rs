//! The first ruler: Apache RocketMQ beside epochlog, on the same messages, each as processes of its
//! own. `ruler run` drives both in turn by the same lines and writes a table of ratios; `ruler node`
//! is our side. `benches/first-ruler` builds both and calls it.

mod check;
mod figures;
mod messages;
mod node;
mod plan;
mod replica;
mod run;
mod table;

use std::process::ExitCode;

use clap::Parser;

#[derive(Parser)]
#[command(about = "Apache RocketMQ beside epochlog on the same messages")]
enum Command {
    /// Measure both sides in turn and write the table
    Run(run::RunArgs),
    /// Our side: a timed replica, told what to do on standard input
    #[command(visible_alias = "bench")]
    Node(node::NodeArgs),
}

fn main() -> ExitCode {
    let ended = match Command::parse() {
        Command::Run(args) => run::run(&args),
        Command::Node(args) => node::run(args),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ruler: {error}");
            ExitCode::FAILURE
        }
    }
}
