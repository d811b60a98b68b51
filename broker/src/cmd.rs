//! The subcommands of `epochlog`: one file each, with its arguments and `run`.

pub mod broker;
pub mod controller;
pub mod demo;
pub mod hand_over;
pub mod inspect;
pub mod produce;
pub mod repair;
pub mod replay;
pub mod replica;
pub mod verify;

use std::error::Error;
use std::io::Read;
use std::process::ExitCode;

use tokio::runtime::{Builder, Runtime};

/// Sends the log to standard error, so that standard output holds results only. `RUST_LOG` chooses
/// what is shown; the default is `info`.
pub fn start_logging() {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .init();
}

/// One type for what any subcommand can fail with.
///
/// # Errors
/// The command's own.
pub fn told<E: Error + 'static>(done: Result<ExitCode, E>) -> Result<ExitCode, Box<dyn Error>> {
    done.map_err(Into::into)
}

/// The runtime of a server process.
///
/// # Errors
/// The system has no threads left.
pub(crate) fn runtime() -> std::io::Result<Runtime> {
    Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
}

/// What all server commands do with their settings first: with `print` they are printed, and that is all;
/// else the end of standard input is watched for if asked for. False: there is nothing left to do.
pub(crate) fn goes_on(
    print: bool,
    stop_with_stdin: bool,
    effective: &[(&'static str, String)],
) -> bool {
    if print {
        print_effective(effective);
    } else if stop_with_stdin {
        exit_with_stdin();
    }
    !print
}

/// Ends this process at once when standard input ends: the one who started it is gone then. Data is
/// left as a crash of the process leaves it.
pub(crate) fn exit_with_stdin() {
    std::thread::spawn(|| {
        let mut input = std::io::stdin().lock();
        let mut bytes = [0; 256];
        loop {
            match input.read(&mut bytes) {
                Ok(0) => break,
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        tracing::warn!("standard input ended, and so does this process");
        std::process::exit(1);
    });
}

/// Prints settings as they could stand in the file.
fn print_effective(effective: &[(&'static str, String)]) {
    for (key, value) in effective {
        println!("{key}={value}");
    }
}
