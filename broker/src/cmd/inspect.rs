//! `epochlog inspect`: what is in a store folder, read-only.

use std::path::PathBuf;
use std::process::ExitCode;

use comfy_table::{Table, presets};
use epochlog_engine::inspect::{self, Inspection};
use serde::Serialize;

/// Show what is in a store folder; writes nothing.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The store folder, ours or Java's (storePathRootDir); no process should be writing it
    store: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// List every record
    #[arg(long)]
    records: bool,
}

#[derive(Serialize)]
struct Shown {
    ok: bool,
    segments: Vec<ShownSegment>,
    messages: u64,
    min_offset: u64,
    end_offset: u64,
    epochs: Vec<(u32, u64)>,
    problems: Vec<String>,
    checkpoint: Option<ShownCheckpoint>,
    abort: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    records: Option<Vec<ShownRecord>>,
}

#[derive(Serialize)]
struct ShownSegment {
    base: u64,
    len: u64,
    size: u64,
    file: String,
}

#[derive(Serialize)]
struct ShownCheckpoint {
    physic_msg_timestamp: i64,
    logics_msg_timestamp: i64,
    index_msg_timestamp: i64,
    confirm_offset: i64,
}

#[derive(Serialize)]
struct ShownRecord {
    offset: u64,
    size: u64,
    topic: String,
    queue: i32,
    queue_offset: i64,
    tags: Option<String>,
    keys: Option<String>,
    body_len: u64,
    body_sha256: String,
}

/// Runs the command; exit code 1 if something is wrong with the folder.
///
/// # Errors
/// The folder cannot be read.
pub fn run(args: &Args) -> Result<ExitCode, epochlog_engine::Error> {
    let found = inspect::scan(&args.store)?;
    let records = args.records.then(|| records_of(&found)).transpose()?;
    let ok = found.problems.is_empty();
    if args.json {
        println!("{}", json(&found, records));
    } else {
        print!("{}", text(&found, records.as_deref()));
    }
    Ok(if ok {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn records_of(found: &Inspection) -> Result<Vec<ShownRecord>, epochlog_engine::Error> {
    use sha2::{Digest, Sha256};
    let show = |view: epochlog_engine::RecordView| {
        let record = view.record();
        let digest = Sha256::digest(record.body());
        ShownRecord {
            offset: record.physical_offset(),
            size: record.total_size() as u64,
            topic: record.topic().to_owned(),
            queue: record.queue_id(),
            queue_offset: record.queue_offset(),
            tags: record.property("TAGS").map(|text| text.into_owned()),
            keys: record.property("KEYS").map(|text| text.into_owned()),
            body_len: record.body().len() as u64,
            body_sha256: digest.iter().map(|byte| format!("{byte:02x}")).collect(),
        }
    };
    found.records().map(|view| view.map(show)).collect()
}

fn epochs_of(found: &Inspection) -> Vec<(u32, u64)> {
    let entries = found
        .epochs
        .as_ref()
        .map(|list| list.entries())
        .unwrap_or_default();
    entries
        .iter()
        .map(|entry| (entry.epoch, entry.start))
        .collect()
}

fn json(found: &Inspection, records: Option<Vec<ShownRecord>>) -> String {
    let segments = found.segments.iter().map(|segment| ShownSegment {
        base: segment.base,
        len: segment.len,
        size: segment.size,
        file: segment
            .path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned(),
    });
    let checkpoint = found.checkpoint.as_ref().map(|checkpoint| ShownCheckpoint {
        physic_msg_timestamp: checkpoint.physic_msg_timestamp_ms,
        logics_msg_timestamp: checkpoint.logics_msg_timestamp_ms,
        index_msg_timestamp: checkpoint.index_msg_timestamp_ms,
        confirm_offset: checkpoint.confirm_offset,
    });
    let shown = Shown {
        ok: found.problems.is_empty(),
        segments: segments.collect(),
        messages: found.messages,
        min_offset: found.min_offset,
        end_offset: found.end_offset,
        epochs: epochs_of(found),
        problems: found.problems.iter().map(ToString::to_string).collect(),
        checkpoint,
        abort: found.abort,
        records,
    };
    serde_json::to_string(&shown).expect("plain numbers and strings always serialize")
}

fn text(found: &Inspection, records: Option<&[ShownRecord]>) -> String {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED);
    table.set_header(["segment", "bytes of log", "size"]);
    for segment in &found.segments {
        table.add_row([segment.base, segment.len, segment.size].map(|number| number.to_string()));
    }
    let mut out = format!("{table}\n");
    let mut line = |text: String| {
        out.push_str(&text);
        out.push('\n');
    };
    line(format!(
        "{} messages in [{}, {}); {} prepared segments behind the end",
        found.messages,
        found.min_offset,
        found.end_offset,
        found.prepared.len()
    ));
    let epochs: Vec<_> = epochs_of(found)
        .iter()
        .map(|(e, start)| format!("{e}:{start}"))
        .collect();
    line(format!("epochs (epoch:start) {}", epochs.join(" ")));
    match &found.checkpoint {
        Some(checkpoint) => line(format!(
            "checkpoint: last message {} ms, consume queues {} ms, index {} ms, confirm offset {}",
            checkpoint.physic_msg_timestamp_ms,
            checkpoint.logics_msg_timestamp_ms,
            checkpoint.index_msg_timestamp_ms,
            checkpoint.confirm_offset
        )),
        None => line("checkpoint: none".to_owned()),
    }
    for record in records.unwrap_or_default() {
        line(format!(
            "{:>14} {:>8} B  {}  queue {} offset {}  tags {}  keys {}  body {} B",
            record.offset,
            record.size,
            record.topic,
            record.queue,
            record.queue_offset,
            record.tags.as_deref().unwrap_or("-"),
            record.keys.as_deref().unwrap_or("-"),
            record.body_len
        ));
    }
    for problem in &found.problems {
        line(format!("problem: {problem}"));
    }
    line(
        if found.problems.is_empty() {
            "ok"
        } else {
            "NOT ok"
        }
        .to_owned(),
    );
    out
}
