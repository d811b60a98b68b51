//! Opening: find the end, write the marks of an open store, erase what lies behind the end.
//!
//! Nothing but the lock is written before everything was looked at and accepted. Running it twice gives
//! the same result.

use crate::sync::atomic::{AtomicBool, AtomicU8};
use crate::sync::thread;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::sync::{Mutex, RwLock};

use crate::boot::boot_id;
use crate::commit_log::{CommitLog, LogSettings, LogStart, prepare_loop, ready_count};
use crate::error::Error;
use crate::flush::{Flush, Marked, flush_loop};
use crate::folder::{Folder, SegmentFile};
use crate::position::Offset;
use crate::recovery::{Examination, Findings, Torn, examine, open_steps};
use crate::region::is_held_past;
use crate::segment::{Segment, to_len};
use crate::state_file::{QueuesMark, State};
use crate::steps::{Files, check, run_steps};

use super::lock::{Opener, StoreLock};
use super::queues::{QueuesStart, dispatch_loop, open_queues, queue_sync_loop};
use super::{Disk, Role, Shared, Store, StoreConfig};

/// What an open found, and what it changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenReport {
    /// The marks of a clean stop proved the end; no records were scanned.
    pub clean: bool,
    /// Bytes of records that were scanned.
    pub scanned_bytes: u64,
    /// A record at the end that was not whole; the log ends before it.
    pub torn: Option<Torn>,
    /// Written bytes that were given up with it; 0 if nothing was torn.
    pub cut_bytes: u64,
    /// Files that were removed from `commitlog/`: behind the end, behind a gap, or empty.
    pub removed: Vec<PathBuf>,
    /// What lies under `commitlog/` and is no segment; left alone, but Java refuses to start with it.
    pub unexpected: Vec<PathBuf>,
    /// Epoch entries that started behind the end were dropped.
    pub epochs_dropped: bool,
    /// No mark proved the consume queues: they were held against the whole log.
    pub queues_verified: bool,
    /// Bytes of each segment.
    pub segment_size: u64,
}

impl Store {
    /// Opens the store, alone on this machine, and brings it to a state where nothing behind the end
    /// can be read. Costs a few pages after a clean stop, and a scan from the last mark on (about a
    /// second's writes) after a crash; a folder written by Java is scanned whole.
    ///
    /// On return everything up to the end is durable. Appends are refused until [`Store::promote`].
    ///
    /// # Errors
    /// [`Error::Locked`] or [`Error::OpenInThisProcess`] if somebody has it open;
    /// [`Error::Damaged`], [`Error::Epochs`], [`Error::EpochFile`], [`Error::StateFile`] or
    /// [`Error::SegmentSize`] if what is there cannot be trusted, with nothing changed.
    pub fn open(config: StoreConfig) -> Result<Self, Error> {
        config.check()?;
        let dir = &config.dir;
        fs::create_dir_all(dir).map_err(Error::io("create", dir))?;
        let folder = Folder::new(&fs::canonicalize(dir).map_err(Error::io("find", dir))?);
        let lock = StoreLock::take(&folder, Opener::Store)?;
        let boot_id = boot_id();
        let findings = examine(&Examination {
            folder: &folder,
            segment_size: config.segment_size,
            adopt_segment_size: config.adopt_segment_size,
            boot_id,
            progress: config.progress.clone(),
        })?;
        report(&folder, &findings);
        let mut files = Files::new(&folder);
        let touched = touched(&folder, &findings);
        let mark = queues_mark(&findings, touched);
        let (dirty, flushed) = states(&findings, boot_id, touched, mark);
        let held = held_past_end(&findings)?;
        let steps = open_steps(&findings, std::process::id(), held, dirty, flushed);
        let hook = &config.stop_before;
        run_steps(&steps, &folder, findings.segment_size, &mut files, hook)?;
        let confirm = u64::try_from(files.checkpoint()?.confirm_offset).unwrap_or(0);
        let log = open_log(&folder, &config, &findings)?;
        // What was marked as dispatched was confirmed.
        let confirm = confirm.max(mark.map_or(0, |mark| mark.through));
        let confirm = floor(&log, &findings, confirm)?;
        let start = QueuesStart {
            folder: &folder,
            config: &config,
            log: &log,
            confirm,
            mark,
        };
        let (queues, queues_verified) = open_queues(&start, &mut files)?;
        let shared = Arc::new(Shared {
            flush: Flush::new(findings.end, confirm, files.state().generation),
            folder,
            log,
            queues,
            role: Mutex::new(Role::default()),
            disk: Mutex::new(Disk {
                marked: Marked::now(files.state().flushed, confirm),
                proven: None,
                restart_allowed: files.state().boot_id == boot_id && boot_id != [0; 16],
                files,
            }),
            pins: Arc::default(),
            disk_full: AtomicU8::new(0),
            epochs: RwLock::new(Arc::new(findings.epochs.clone())),
            boot_id,
            report: OpenReport::of(findings, queues_verified),
            closed: AtomicBool::new(false),
            lock: Mutex::new(Some(lock)),
            config,
        });
        // What was found out with a walk over the log is not to be found out again.
        if queues_verified && let Err(error) = shared.sync_queues() {
            tracing::warn!(%error, "the consume queues could not be synced");
        }
        let store = Self {
            shared,
            threads: Mutex::default(),
        };
        // Dropping it ends the threads that did start, and gives the folder back.
        store.start_threads()?;
        Ok(store)
    }

    fn start_threads(&self) -> Result<(), Error> {
        let shared = &self.shared;
        self.spawn("epochlog-flush", flush_loop)?;
        if shared.config.prefault_ahead_bytes > 0 {
            self.spawn("epochlog-prepare", |shared| prepare_loop(&shared.log))?;
        }
        if shared.queues.is_some() {
            self.spawn("epochlog-dispatch", dispatch_loop)?;
            self.spawn("epochlog-queues", queue_sync_loop)?;
        }
        Ok(())
    }

    fn spawn(&self, name: &str, run: fn(&Shared)) -> Result<(), Error> {
        let shared = &self.shared;
        check(&shared.config.stop_before)?;
        let on_thread = Arc::clone(shared);
        let thread = thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || run(&on_thread))
            .map_err(Error::io("start a thread for", shared.folder.root()))?;
        self.threads.lock().push(thread);
        Ok(())
    }
}

impl OpenReport {
    fn of(findings: Findings, queues_verified: bool) -> Self {
        Self {
            clean: findings.clean,
            scanned_bytes: findings.scanned_bytes,
            cut_bytes: findings.torn.as_ref().map_or(0, |torn| torn.cut_bytes),
            torn: findings.torn,
            removed: findings.leftovers,
            unexpected: findings.unexpected,
            epochs_dropped: findings.epochs_changed,
            queues_verified,
            segment_size: findings.segment_size,
        }
    }
}

/// Whether somebody else had the folder since this program last wrote to it.
fn touched(folder: &Folder, findings: &Findings) -> bool {
    let stopped = findings.state.is_some_and(|state| state.clean.is_some());
    !findings.clean && (stopped || !folder.abort().exists())
}

/// The mark that proves the consume queues, unless somebody else had the folder since it was written.
fn queues_mark(findings: &Findings, touched: bool) -> Option<QueuesMark> {
    let mark = findings.state?.queues;
    mark.filter(|mark| !touched && mark.through <= findings.end)
}

/// The state while open, and the one once what was scanned is durable.
fn states(
    findings: &Findings,
    boot_id: [u8; 16],
    touched: bool,
    queues: Option<QueuesMark>,
) -> (State, State) {
    let before = findings.state.unwrap_or(State {
        // A folder of Java's: it has followed what its epoch file names, and served unknown epochs.
        max_epoch: findings.epochs.last().map(|last| last.epoch),
        boot_id,
        incarnation: first_incarnation(),
        ..State::default()
    });
    // Once this node cannot prove its log, it stays so until it serves a newer epoch: the zero id
    // equals no boot, whatever stops follow.
    let proven = before.boot_id != [0; 16] && (findings.clean || findings.same_memory && !touched);
    let proven = proven || findings.state.is_none();
    let flushed = before.flushed.clamp(findings.min, findings.end);
    let dirty = State {
        clean: None,
        boot_id: if proven { boot_id } else { [0; 16] },
        incarnation: before.incarnation + 1,
        flushed,
        scan_from: before.scan_from.clamp(findings.min, flushed),
        generation: before.generation + 1,
        queues,
        ..before
    };
    let durable = State {
        flushed: findings.end,
        scan_from: findings.last_record.unwrap_or(dirty.scan_from),
        sync_failed: false,
        ..dirty
    };
    (dirty, durable)
}

/// Microseconds since 1970: no life of a folder that was emptied has the number of one before, so that
/// nobody takes its new log for the old one.
fn first_incarnation() -> u64 {
    let since_1970 = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    // Far below i64::MAX, as which it travels.
    u64::try_from(since_1970.as_micros()).unwrap_or(0) & (u64::MAX >> 8)
}

/// Whether a view that an earlier open in this process left reaches past the end.
fn held_past_end(findings: &Findings) -> Result<bool, Error> {
    let Some(last) = findings.segments.last() else {
        return Ok(false);
    };
    let end = to_len(findings.end.saturating_sub(last.base));
    let file = fs::File::open(&last.path).map_err(Error::io("open", &last.path))?;
    is_held_past(&file, end).map_err(Error::io("look at", &last.path))
}

fn open_log(
    folder: &Folder,
    config: &StoreConfig,
    findings: &Findings,
) -> Result<CommitLog, Error> {
    let size = findings.segment_size;
    let map = |file: &SegmentFile| {
        let published = (findings.end - file.base.min(findings.end)).min(size);
        Segment::open(file.path.clone(), file.base, size, published)
    };
    let settings = LogSettings {
        folder: folder.clone(),
        segment_size: size,
        encode: config.encode,
        prefault_ahead: config.prefault_ahead_bytes,
        ready: ready_count(config.ready_ahead_bytes, size),
        hook: config.stop_before.clone(),
    };
    let start = LogStart {
        segments: findings
            .segments
            .iter()
            .map(map)
            .collect::<Result<_, _>>()?,
        ready: findings.ready.iter().map(map).collect::<Result<_, _>>()?,
        min: findings.min,
        end: findings.end,
        last_record: findings.last_record.unwrap_or(findings.min),
        last_store_ms: findings.last_store_ms,
    };
    CommitLog::new(settings, start)
}

/// The confirm offset of the checkpoint, on a record's end inside the log.
fn floor(log: &CommitLog, findings: &Findings, confirm: Offset) -> Result<Offset, Error> {
    let confirm = confirm.clamp(findings.min, findings.end);
    // After a clean stop it is what this program wrote.
    if findings.clean {
        Ok(confirm)
    } else {
        log.record_boundary_before(confirm)
    }
}

fn report(folder: &Folder, findings: &Findings) {
    for path in &findings.unexpected {
        tracing::warn!(path = %path.display(), "no segment, left alone; Java would not start here");
    }
    for path in &findings.leftovers {
        tracing::warn!(path = %path.display(), "behind the log's end, removed");
    }
    if let Some(Torn {
        offset,
        why,
        cut_bytes,
    }) = &findings.torn
    {
        let folder = folder.root().display();
        tracing::warn!(%folder, offset, why, cut_bytes, "the log ends at a record that is not whole");
    }
}
