//! `epochlog replay`: where a slave would be cut, why, and whether the case expects that.

use std::path::PathBuf;
use std::process::ExitCode;

use serde::Serialize;

use crate::replay::{Expectation, Outcome, ReplayError, replay};

/// Show where a slave would be cut on rejoining a master; works on a copy.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A folder with master/, slave/ and expect.toml
    case: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Shown<'a> {
    ok: bool,
    #[serde(flatten)]
    outcome: &'a Outcome,
    mismatches: Vec<String>,
}

/// Runs the command; exit code 1 if the outcome is not as expected.
///
/// # Errors
/// The case itself is not usable.
pub fn run(args: &Args) -> Result<ExitCode, ReplayError> {
    let outcome = replay(&args.case)?;
    let expectation = Expectation::load(&args.case.join("expect.toml"))?;
    let mismatches = expectation.compare(&outcome);
    let ok = mismatches.is_empty();
    let shown = Shown {
        ok,
        outcome: &outcome,
        mismatches: mismatches.iter().map(ToString::to_string).collect(),
    };
    if args.json {
        let text = serde_json::to_string(&shown);
        println!(
            "{}",
            text.expect("plain numbers and strings always serialize")
        );
    } else {
        print!("{}", text(&shown));
    }
    Ok(if ok {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn text(shown: &Shown<'_>) -> String {
    let outcome = shown.outcome;
    let mut lines = vec![match (outcome.point, outcome.cut_bytes) {
        (Some(point), Some(0)) => format!("keep: both logs agree up to {point}, nothing is cut"),
        (Some(point), Some(bytes)) => format!("cut at {point}: {bytes} bytes go"),
        _ => format!(
            "refuse: {}",
            outcome.reason.as_deref().unwrap_or("no reason given")
        ),
    }];
    lines.push(format!("why: {}", outcome.why));
    lines.push(format!("slave's end afterwards: {}", outcome.slave_end));
    if let Some(epochs) = &outcome.epochs {
        let entries: Vec<_> = epochs
            .iter()
            .map(|(e, start)| format!("{e}:{start}"))
            .collect();
        lines.push(format!("slave's epochs afterwards: {}", entries.join(" ")));
    }
    lines.extend(
        shown
            .mismatches
            .iter()
            .map(|mismatch| format!("not as expected: {mismatch}")),
    );
    lines.push(if shown.ok { "ok" } else { "NOT ok" }.to_owned());
    lines.join("\n") + "\n"
}
