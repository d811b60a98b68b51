//! `epochlog repair`: makes a store folder usable that the broker refuses to open.

use std::path::PathBuf;
use std::process::ExitCode;

use epochlog_engine::repair::{Intent, Removed, Repair};
use epochlog_engine::{EpochEntry, Error};

/// Mend a store folder that is refused; the broker must be stopped.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Make a damaged or missing epoch file whole, from its .bak or from a list you give
    Epoch {
        #[command(flatten)]
        on: On,
        /// The list, oldest first, as another replica has it: 1:0,3:100 is epoch 1 from offset 0
        /// and epoch 3 from offset 100
        #[arg(long, value_name = "EPOCH:START,...", value_delimiter = ',', value_parser = entry)]
        entries: Option<Vec<EpochEntry>>,
    },
    /// Cut a damaged log at the first bad record; the bytes go to truncated/
    Tail {
        #[command(flatten)]
        on: On,
        /// Delete the bytes instead of keeping them under truncated/
        #[arg(long)]
        discard: bool,
    },
    /// Give up the whole log, so that this replica comes back as a new one; it goes to truncated/
    Resync {
        #[command(flatten)]
        on: On,
        /// Delete the log instead of keeping it under truncated/
        #[arg(long)]
        discard: bool,
    },
}

#[derive(Debug, clap::Args)]
struct On {
    /// The store folder (storePathRootDir)
    store: PathBuf,
    /// Print the plan and change nothing
    #[arg(long)]
    dry_run: bool,
}

/// Prints the plan and, unless it is a dry run, runs it.
///
/// # Errors
/// There is nothing to repair, the repair is refused, or a step failed; the error says which.
pub fn run(args: &Args) -> Result<ExitCode, Error> {
    let on = match &args.what {
        What::Epoch { on, .. } | What::Tail { on, .. } | What::Resync { on, .. } => on,
    };
    let intent = if on.dry_run {
        Intent::Look
    } else {
        Intent::Run
    };
    let repair = match &args.what {
        What::Epoch { entries, .. } => Repair::epoch(&on.store, entries.clone(), intent)?,
        What::Tail { discard, .. } => Repair::tail(&on.store, removed(*discard), intent)?,
        What::Resync { discard, .. } => Repair::resync(&on.store, removed(*discard), intent)?,
    };
    for finding in repair.findings() {
        println!("{finding}");
    }
    println!("plan:");
    for (index, step) in repair.steps().iter().enumerate() {
        println!("{:>3}. {step}", index + 1);
    }
    if on.dry_run {
        println!("dry run: nothing was changed");
    } else {
        repair.run()?;
        println!("done");
    }
    Ok(ExitCode::SUCCESS)
}

fn removed(discard: bool) -> Removed {
    if discard {
        Removed::Discarded
    } else {
        Removed::Kept
    }
}

fn entry(text: &str) -> Result<EpochEntry, String> {
    let parts = text.split_once(':');
    let parsed = parts.and_then(|(epoch, start)| {
        let (epoch, start) = (epoch.trim().parse().ok()?, start.trim().parse().ok()?);
        Some(EpochEntry { epoch, start })
    });
    parsed.ok_or_else(|| {
        "an entry is an epoch, a colon and the offset it starts at: 3:100".to_owned()
    })
}
