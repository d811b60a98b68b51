//! Runs of both sides in turn, their comparison, and what is written down.

use std::error::Error;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use epochlog_benches::run::file_system;

use crate::figures::{Figure, Measured, measure};
use crate::plan::{Plan, Side};
use crate::table::markdown;

/// What one message takes in the log at most, in bytes.
const RECORD_LEN: usize = 1160;
/// Heaps, consume queues and prepared segments of a side.
const BESIDE_THE_LOGS: u64 = 1 << 30;
/// RocketMQ's own settings of the collector (bin/runbroker.sh) with a heap that fits two, and no log:
/// a slave would write many lines of the records it has only the first part of.
const JAVA_OPTIONS: &str = "-Xms2g -Xmx2g -XX:-UseSerialGC -XX:+UseG1GC -XX:G1HeapRegionSize=16m \
    -XX:G1ReservePercent=25 -XX:InitiatingHeapOccupancyPercent=30 -XX:SoftRefLRUPolicyMSPerMB=0 \
    -XX:+AlwaysPreTouch -Dpeer.log.level=OFF";

#[derive(clap::Args)]
pub(crate) struct RunArgs {
    /// How often each side is measured
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// Where the stores are made; a folder in memory keeps the disk out
    #[arg(long, default_value = "/dev/shm", overrides_with = "dir")]
    dir: PathBuf,
    /// What is started as RocketMQ: fixtures/rocketmq-peer/peer
    #[arg(long)]
    peer: PathBuf,
    /// The RocketMQ release
    #[arg(long, default_value = "5.5.1")]
    release: String,
    /// Options of the JVM
    #[arg(long, default_value = JAVA_OPTIONS, allow_hyphen_values = true)]
    java_options: String,
    /// RocketMQ with transientStorePoolEnable
    #[arg(long)]
    transient_pool: bool,
    /// Messages of each figure, a multiple of 1024
    #[arg(long, default_value_t = 512 << 10)]
    messages: usize,
    /// Time of each warm-up of RocketMQ, in ms
    #[arg(long, default_value_t = 10_000)]
    java_warm_ms: u64,
    /// Time of each warm-up of ours, in ms
    #[arg(long, default_value_t = 2_000)]
    our_warm_ms: u64,
    /// Messages in a batch, a power of two; the same for both, as a batch rolls to the next segment as a
    /// whole
    #[arg(long, default_value_t = 64)]
    batch: usize,
    /// RocketMQ's best haTransferBatchSize, in bytes
    #[arg(long, default_value_t = 1 << 20)]
    java_frames: u32,
    /// Our best frames, in bytes
    #[arg(long, default_value_t = 1 << 20)]
    our_frames: u32,
    /// Bytes of a segment
    #[arg(long, default_value_t = 1 << 30)]
    segment_size: u64,
    /// One run of few messages and short warm-ups: to see that it runs, the figures mean nothing
    #[arg(long)]
    short: bool,
    /// File the JSON lines are appended to, one for each figure; standard output otherwise
    #[arg(long)]
    json: Option<PathBuf>,
    /// File the table is written to, besides standard output
    #[arg(long)]
    out: Option<PathBuf>,
}

impl RunArgs {
    fn plan(&self) -> Result<Plan, String> {
        if self.messages == 0 || !self.messages.is_multiple_of(2048) {
            return Err(format!(
                "--messages {} is no multiple of 2048",
                self.messages
            ));
        }
        let messages = if self.short { 32 << 10 } else { self.messages };
        Ok(Plan {
            messages,
            batch: self.batch,
            warm_messages: messages / 2,
            puts_one: messages / 100,
            puts_many: messages / 10,
            segment_size: self.segment_size,
        })
    }

    fn sides(&self) -> Result<[Side; 2], Box<dyn Error>> {
        let warm = |ms: u64| if self.short { ms.min(1000) } else { ms };
        let pool = self.transient_pool.then(|| "--transient-pool".to_owned());
        let java = Side {
            name: "java",
            program: self.peer.clone(),
            more_args: pool.into_iter().collect(),
            env: vec![
                ("ROCKETMQ_VERSION", self.release.clone()),
                ("PEER_JAVA_OPTIONS", self.java_options.clone()),
            ],
            warm_ms: warm(self.java_warm_ms),
            best_frames: self.java_frames,
        };
        let ours = Side {
            name: "epochlog",
            program: std::env::current_exe()?,
            more_args: Vec::new(),
            env: Vec::new(),
            warm_ms: warm(self.our_warm_ms),
            best_frames: self.our_frames,
        };
        Ok([java, ours])
    }
}

/// Measures and prints; the last lines are the table.
///
/// # Errors
/// If there is no room, a replica fails, or the sides did not write the same.
pub(crate) fn run(args: &RunArgs) -> Result<(), Box<dyn Error>> {
    let (plan, sides) = (args.plan()?, args.sides()?);
    let runs = if args.short { 1 } else { args.runs.max(1) };
    check_room(&args.dir, &plan)?;
    let began = Instant::now();
    let mut table = Vec::with_capacity(runs);
    let mut loads = Vec::with_capacity(runs + 1);
    let mut what = Default::default();
    for run in 0..runs {
        loads.push(load());
        // Who begins changes, so that a machine that gets slower or faster favours neither.
        let order = if run % 2 == 0 { [0, 1] } else { [1, 0] };
        let mut measured: [Option<Measured>; 2] = [None, None];
        for side in order {
            let dir = tempfile::Builder::new()
                .prefix("first-ruler-")
                .tempdir_in(&args.dir)?;
            let one = measure(&sides[side], &plan, dir.path())?;
            tell(args, &sides[side], run + 1, &one.figures)?;
            measured[side] = Some(one);
        }
        let [Some(java), Some(ours)] = measured else {
            return Err("a side was not measured".into());
        };
        agree(&java, &ours)?;
        what = [java.what, ours.what];
        table.push([java.figures, ours.figures]);
    }
    loads.push(load());
    let trial = if args.short {
        "A short run: the figures mean nothing. "
    } else {
        ""
    };
    let text = format!(
        "{trial}{} beside {}, {runs} run(s) of each in turn, {} messages a figure, {}, {} cores, {:.0} s in all; load \
         averages before each run and after the last: {}.\n\n{}",
        what[0],
        what[1],
        plan.messages,
        file_system(&args.dir).unwrap_or_else(|| "unknown file system".to_owned()),
        std::thread::available_parallelism().map_or(0, usize::from),
        began.elapsed().as_secs_f64(),
        loads.join(", "),
        markdown(&table)
    );
    if let Some(path) = &args.out {
        fs::write(path, &text).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    print!("{text}");
    Ok(())
}

/// Both sides must have written the same messages to the same offsets.
fn agree(java: &Measured, ours: &Measured) -> Result<(), String> {
    for (java, ours) in java.logs.iter().zip(&ours.logs) {
        if !java.holds_the_same(ours) {
            return Err(format!(
                "the sides did not write the same: {java:?}, {ours:?}"
            ));
        }
    }
    Ok(())
}

fn tell(args: &RunArgs, side: &Side, run: usize, figures: &[Figure]) -> Result<(), Box<dyn Error>> {
    let lines: String = figures
        .iter()
        .map(|figure| format!("{}\n", figure.line(side.name, run)))
        .collect();
    match &args.json {
        None => print!("{lines}"),
        Some(path) => fs::File::options()
            .append(true)
            .create(true)
            .open(path)
            .and_then(|mut file| file.write_all(lines.as_bytes()))
            .map_err(|error| format!("{}: {error}", path.display()))?,
    }
    Ok(())
}

/// Master and slave of one side stand beside each other; a side is gone before the next begins.
fn check_room(dir: &Path, plan: &Plan) -> Result<(), String> {
    let logs = 2 * (plan.most_messages() * RECORD_LEN) as u64;
    let need = logs + BESIDE_THE_LOGS;
    let system = rustix::fs::statvfs(dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    let have = system.f_bavail * system.f_frsize;
    if have < need {
        return Err(format!(
            "{} has {} MiB free, {} are needed: choose another --dir or fewer --messages",
            dir.display(),
            have >> 20,
            need >> 20
        ));
    }
    Ok(())
}

/// The load average of the last minute.
fn load() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().unwrap_or("?").to_owned()
}
