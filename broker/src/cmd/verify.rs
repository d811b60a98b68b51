//! `epochlog verify`: checks every record of a store folder, CRCs included, and the files beside
//! the log.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use epochlog_engine::Error;
use epochlog_engine::inspect::{self, Inspection};
use indicatif::{HumanBytes, ProgressBar, ProgressStyle};
use serde::Serialize;

/// Check every record of a store folder; writes nothing.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The store folder, ours or Java's (storePathRootDir); no process should be writing it
    store: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Shown {
    ok: bool,
    messages: u64,
    min_offset: u64,
    end_offset: u64,
    bytes: u64,
    bytes_per_second: u64,
    problems: Vec<ShownProblem>,
}

#[derive(Serialize)]
struct ShownProblem {
    kind: String,
    file: String,
    offset: Option<u64>,
    what: String,
    remedy: String,
}

/// Runs the command; exit code 1 if there is any problem.
///
/// # Errors
/// The folder cannot be read.
pub fn run(args: &Args) -> Result<ExitCode, Error> {
    let bar = progress_bar(args.json);
    let begun = Instant::now();
    let found = inspect::scan_with(&args.store, |done, all| {
        bar.set_length(all);
        bar.set_position(done);
    });
    bar.finish_and_clear();
    let (found, took) = (found?, begun.elapsed());
    if args.json {
        println!("{}", json(&found, took));
    } else {
        print!("{}", text(&found, took));
    }
    Ok(if found.problems.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn progress_bar(json: bool) -> ProgressBar {
    if json {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template(
        "{bar:40} {bytes} of {total_bytes}, {binary_bytes_per_sec}, {eta} left",
    );
    let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(0).with_style(style)
}

fn bytes(found: &Inspection) -> u64 {
    found.end_offset - found.min_offset
}

fn per_second(bytes: u64, took: Duration) -> u64 {
    let nanos = took.as_nanos().max(1);
    u64::try_from(u128::from(bytes) * 1_000_000_000 / nanos).unwrap_or(u64::MAX)
}

fn json(found: &Inspection, took: Duration) -> String {
    let problems = found.problems.iter().map(|problem| ShownProblem {
        kind: format!("{:?}", problem.kind),
        file: problem.path.display().to_string(),
        offset: problem.offset,
        what: problem.what.clone(),
        remedy: problem.kind.remedy(&found.dir),
    });
    let shown = Shown {
        ok: found.problems.is_empty(),
        messages: found.messages,
        min_offset: found.min_offset,
        end_offset: found.end_offset,
        bytes: bytes(found),
        bytes_per_second: per_second(bytes(found), took),
        problems: problems.collect(),
    };
    serde_json::to_string(&shown).expect("plain numbers and strings always serialize")
}

fn text(found: &Inspection, took: Duration) -> String {
    let mut out = format!(
        "{} messages in [{}, {}), {} at {}/s\n",
        found.messages,
        found.min_offset,
        found.end_offset,
        HumanBytes(bytes(found)),
        HumanBytes(per_second(bytes(found), took)),
    );
    for problem in &found.problems {
        let remedy = problem.kind.remedy(&found.dir);
        out.push_str(&format!("problem: {problem}\n  what helps: {remedy}\n"));
    }
    out.push_str(if found.problems.is_empty() {
        "ok\n"
    } else {
        "NOT ok\n"
    });
    out
}
