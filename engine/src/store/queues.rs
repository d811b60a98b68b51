//! The store's side of the consume queues: opened and held against the log, filled by one thread, synced
//! by another, cut with the log.
//!
//! Order of a sync: units go to their files, files and directories are synced, then the log up to the
//! same place, then the mark in the state file, then Java's marks in the checkpoint. So neither mark says
//! more than what is on disk, and Java, which opens the folder as after a crash, looks again at every
//! record that might not be in a queue.

use std::fs::File;
use std::io::ErrorKind;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::sync::MutexGuard;

use crate::commit_log::{CommitLog, Tail};
use crate::consume_queue::{UNIT, Unsynced};
use crate::durable::calls;
use crate::error::Error;
use crate::folder::{CONSUME_QUEUES, Folder};
use crate::position::Offset;
use crate::queue_offsets::QueueOffsets;
use crate::queues::{Dispatch, Queue, QueueSettings, Queues, common_len, list};
use crate::state_file::QueuesMark;
use crate::steps::{Files, SegmentStep, run_segment_steps};

use super::{Disk, Shared, StoreConfig};

/// The shortest and the longest queue file, in bytes.
const FILE_SIZES: std::ops::RangeInclusive<u64> = UNIT..=1 << 30;

/// Bytes of log that are dispatched between two syncs, at most.
const SYNC_BYTES: u64 = 256 << 20;

/// Files that are synced one by one.
const FEW_FILES: usize = 64;

/// After a refusal (a full disk) the dispatcher tries again this much later.
const RETRY: Duration = Duration::from_secs(1);

/// Refusals in a row after which the store fails (RocketMQ: ConsumeQueue.putMessagePositionInfoWrapper).
const MOST_REFUSALS: u32 = 30;

/// Panics in a row at the same place after which the store fails.
const MOST_PANICS: u32 = 3;

/// What an open knows before it looks at the queues.
pub(super) struct QueuesStart<'a> {
    pub(super) folder: &'a Folder,
    pub(super) config: &'a StoreConfig,
    pub(super) log: &'a CommitLog,
    pub(super) confirm: Offset,
    /// The mark of the last run, if nobody else had the folder since.
    pub(super) mark: Option<QueuesMark>,
}

pub(super) fn check_file_size(size: u64) -> Result<(), Error> {
    if FILE_SIZES.contains(&size) && size.is_multiple_of(UNIT) {
        return Ok(());
    }
    let why = format!(
        "{size} is not a multiple of {UNIT} from {} to {}",
        FILE_SIZES.start(),
        FILE_SIZES.end()
    );
    Err(Error::Setting {
        name: "queue_file_size",
        why,
    })
}

/// Brings the queues to hold exactly what the log holds up to the confirm offset. True beside them if no
/// mark proved them, so that they were held against the whole log. None are opened if they are not kept.
pub(super) fn open_queues(
    start: &QueuesStart<'_>,
    files: &mut Files,
) -> Result<(Option<Queues>, bool), Error> {
    if !start.config.consume_queues {
        return Ok((None, false));
    }
    let dir = start.folder.consume_queues();
    let mut found = list(&dir)?;
    let mut mark = start.mark;
    let mut file_size = start.config.queue_file_size;
    match common_len(&found) {
        Some(len) if len != file_size && start.config.adopt_segment_size => file_size = len,
        Some(len) if len != file_size => {
            tracing::warn!(
                len,
                file_size,
                "consume queue files of another length than configured (mappedFileSizeConsumeQueue) \
                 are moved aside and made again"
            );
            distrust(files)?;
            let step = SegmentStep::MoveAside {
                name: CONSUME_QUEUES,
                into: start.folder.aside(),
            };
            let settings = start.log.settings();
            run_segment_steps(&[step], start.folder, settings.segment_size, &settings.hook)?;
            found = Vec::new();
            mark = None;
        }
        _ => {}
    }
    let settings = QueueSettings {
        dir,
        file_size,
        hook: start.config.stop_before.clone(),
    };
    let at = match mark {
        Some(mark) => mark.through,
        None => {
            distrust(files)?;
            start.confirm
        }
    };
    let (queues, whole) = Queues::load(settings, found, at)?;
    let proven = mark.filter(|mark| whole && queues.agree_with(mark));
    match proven {
        Some(mark) => {
            queues.trust(&mark);
            while queues.step(start.log, || start.confirm)? {}
        }
        None => {
            if mark.is_some() {
                tracing::error!("consume queues are missing or damaged; they are made again");
                distrust(files)?;
            }
            queues.verify(start.log, start.confirm, start.config.progress.as_ref())?;
        }
    }
    Ok((Some(queues), proven.is_none()))
}

/// Nothing on disk says any more that a queue holds something.
fn distrust(files: &mut Files) -> Result<(), Error> {
    let mut state = files.state();
    if state.queues.take().is_some() {
        files.write_state(&state)?;
    }
    let mut checkpoint = files.checkpoint()?;
    if checkpoint.logics_msg_timestamp_ms != 0 || checkpoint.logics_physical_offset != 0 {
        checkpoint.logics_msg_timestamp_ms = 0;
        checkpoint.logics_physical_offset = 0;
        files.write_checkpoint(checkpoint)?;
    }
    Ok(())
}

/// The queues during a cut: the dispatcher waits until this is dropped.
pub(super) struct QueuesCut<'a> {
    queues: &'a Queues,
    follow: Vec<Arc<Queue>>,
    _dispatch: MutexGuard<'a, Dispatch>,
}

impl QueuesCut<'_> {
    /// Makes the files end where the queues do, durably.
    pub(super) fn follow(&self) -> Result<(), Error> {
        self.queues.follow(&self.follow)
    }
}

impl Shared {
    /// Takes back, in memory, every message that ends behind `to`; `last` are start and store time of the
    /// last record before it. `None` if queues are not kept.
    pub(super) fn retract_queues(
        &self,
        to: Offset,
        last: Option<(Offset, i64)>,
    ) -> Result<Option<QueuesCut<'_>>, Error> {
        let Some(queues) = &self.queues else {
            return Ok(None);
        };
        let mut dispatch = queues.lock();
        let follow = queues.retract(&mut dispatch, to, last)?;
        Ok(Some(QueuesCut {
            queues,
            follow,
            _dispatch: dispatch,
        }))
    }

    /// Up to where messages may come into their queues.
    pub(super) fn dispatch_goal(&self) -> Offset {
        let progress = self.flush.progress();
        match self.config.queues_hold_flushed_only {
            true => progress.confirm.min(progress.flushed),
            false => progress.confirm,
        }
    }

    /// The flushed mark has grown: messages that were confirmed before may come into their queues now.
    pub(crate) fn wake_for_flushed(&self) {
        if self.config.queues_hold_flushed_only
            && let Some(queues) = &self.queues
        {
            queues.wake();
        }
    }

    /// Dispatches up to the confirm offset.
    fn dispatch_confirmed(&self, queues: &Queues) -> Result<(), Error> {
        loop {
            if let Some(hook) = &self.config.before_dispatch {
                hook(queues.dispatched());
            }
            let more = queues.step(&self.log, || self.dispatch_goal())?;
            if queues.unmarked_bytes() >= SYNC_BYTES {
                queues.sync_bell.ring();
            }
            if !more || queues.sync_bell.is_stopping() {
                return Ok(());
            }
        }
    }

    /// Puts everything up to the confirm offset into the queues and makes them durable; for a stop.
    pub(super) fn finish_queues(&self) -> Result<(), Error> {
        let Some(queues) = &self.queues else {
            return Ok(());
        };
        while queues.step(&self.log, || self.dispatch_goal())? {}
        self.sync_queues()
    }

    /// Makes what is dispatched durable and marks it.
    pub(crate) fn sync_queues(&self) -> Result<(), Error> {
        let Some(queues) = &self.queues else {
            return Ok(());
        };
        let _one = queues.syncing.lock();
        queues.remove_below(self.log.min())?;
        let unmarked = queues.write_out()?;
        if unmarked.unsynced.is_empty() && queues.is_marked(unmarked.mark.through) {
            return Ok(());
        }
        match sync_all(&self.folder.consume_queues(), &unmarked.unsynced) {
            Ok(()) => {}
            Err(Unsyncable::Refused(error)) => {
                queues.give_back(unmarked);
                return Err(error);
            }
            Err(Unsyncable::Lost(error)) => return Err(self.fail(error)),
        }
        self.sync_to(unmarked.mark.through)?;
        let mut disk = self.disk.lock();
        // A cut in between has taken back what the mark would say.
        if queues.generation() != unmarked.generation {
            return Ok(());
        }
        self.write_marks(&mut disk)?;
        let marked = mark(&mut disk, unmarked.mark, unmarked.last);
        marked.map_err(|error| self.fail_with(&mut disk, error))?;
        queues.set_marked(unmarked.mark.through);
        Ok(())
    }

    /// Makes the table of next queue offsets if it is not there.
    pub(super) fn load_queue_offsets(&self, tail: &mut Tail) -> Result<(), Error> {
        if tail.queues.is_some() {
            return Ok(());
        }
        let known = self.queues.as_ref().and_then(Queues::next_offsets);
        let (known, from) = known.unwrap_or_else(|| (QueueOffsets::default(), self.log.min()));
        self.log.load_queue_offsets(tail, known, from)
    }
}

fn mark(disk: &mut Disk, mark: QueuesMark, last: Option<(Offset, i64)>) -> Result<(), Error> {
    let mut state = disk.files.state();
    state.queues = Some(mark);
    disk.files.write_state(&state)?;
    if let Some((offset, store_ms)) = last {
        let mut checkpoint = disk.files.checkpoint()?;
        checkpoint.logics_physical_offset = offset.cast_signed();
        checkpoint.logics_msg_timestamp_ms = store_ms;
        disk.files.write_checkpoint(checkpoint)?;
    }
    Ok(())
}

enum Unsyncable {
    /// Not tried; it can be tried again.
    Refused(Error),
    /// The kernel may call the lost pages clean by now.
    Lost(Error),
}

/// Syncs files, then the directories with their names. What is gone by now was removed by a cut, which
/// has synced that.
///
/// Of many files each would cost a commit of the file system's journal, so then the file system that
/// holds `dir` is synced as a whole; Linux reports a lost page of any file by that since 5.8.
fn sync_all(dir: &Path, unsynced: &Unsynced) -> Result<(), Unsyncable> {
    if unsynced.files.len() > FEW_FILES {
        let refused = |error| Unsyncable::Refused(Error::io("open", dir)(error));
        let file = File::open(dir).map_err(refused)?;
        calls::changing(dir).map_err(|error| Unsyncable::Lost(Error::io("sync", dir)(error)))?;
        let synced = rustix::fs::syncfs(&file);
        return synced.map_err(|error| Unsyncable::Lost(Error::io("sync", dir)(error.into())));
    }
    for path in unsynced.files.iter().chain(&unsynced.dirs) {
        sync(path)?;
    }
    Ok(())
}

fn sync(path: &Path) -> Result<(), Unsyncable> {
    let file = match File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        file => file.map_err(|error| Unsyncable::Refused(Error::io("open", path)(error)))?,
    };
    let synced = if path.is_dir() {
        calls::sync_directory(path)
    } else {
        calls::sync_data(&file, path)
    };
    synced.map_err(|error| Unsyncable::Lost(Error::io("sync", path)(error)))
}

/// Runs until the queues are stopped. What fails is tried again from the same record; what goes on
/// failing ends the store, so that nobody goes on writing what nobody can read.
pub(super) fn dispatch_loop(shared: &Shared) {
    let Some(queues) = &shared.queues else {
        return;
    };
    let mut failures = 0;
    let mut wait = Some(Duration::ZERO);
    while queues.wait_wake(wait) {
        let before = queues.dispatched();
        let done = catch_unwind(AssertUnwindSafe(|| shared.dispatch_confirmed(queues)));
        if queues.dispatched() > before {
            failures = 0;
        }
        let (error, most, again) = match done {
            Ok(Ok(())) => {
                (failures, wait) = (0, None);
                continue;
            }
            Ok(Err(error @ Error::Io { .. })) => (error, MOST_REFUSALS, RETRY),
            Ok(Err(error)) => (error, 0, RETRY),
            Err(_) => {
                let why = "the dispatcher of consume queues panicked".to_owned();
                (Error::Failed { why }, MOST_PANICS, Duration::ZERO)
            }
        };
        failures += 1;
        if failures > most {
            shared.fail(error);
            return;
        }
        tracing::error!(%error, failures, "messages could not be put into their queues; tried again");
        queues.count_restart();
        wait = Some(again);
    }
}

/// Runs until the queues are stopped.
pub(super) fn queue_sync_loop(shared: &Shared) {
    let Some(queues) = &shared.queues else {
        return;
    };
    let interval = Duration::from_millis(shared.config.queue_flush_interval_ms.max(1));
    while queues.sync_bell.wait(Some(interval)) {
        if shared.check_usable().is_ok()
            && let Err(error) = shared.sync_queues()
        {
            tracing::warn!(%error, "the consume queues could not be synced");
        }
    }
}
