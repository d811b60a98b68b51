//! The subcommands of `epochlog`: one file each, with its arguments and `run`.

pub mod produce;

use std::error::Error;
use std::process::ExitCode;

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
