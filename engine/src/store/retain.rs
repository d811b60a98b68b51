//! Retention: what the pure decision says is carried out here, under the role lock.
//!
//! Order: the first offset moves in memory, so that nobody finds a file that is about to go; files go
//! oldest first, each durably before the next, so that what is left is a log without a gap at every
//! place; then the epoch entries of what is gone. A crash in between leaves entries too many, which
//! claim nothing. A file that cannot be removed is tried again by the next call, before any other.

use crate::sync::atomic::Ordering;
use std::collections::BTreeMap;
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::sync::Mutex;

use crate::error::Error;
use crate::position::Offset;
use crate::retention::{
    Candidate, Decision, DiskLevel, DiskUse, HeldBack, RetentionPolicy, RetentionTick, Saved,
    Situation, decide, decide_saved,
};
use crate::steps::{SegmentStep, unlink_steps};

use super::{Shared, Store};

/// Offsets that somebody reads from, each with how many do.
#[derive(Default)]
pub(crate) struct Pins(Mutex<BTreeMap<Offset, usize>>);

/// Keeps the segment at its offset, and those behind it, from being removed by [`Store::retain`] until the
/// disk is full. Dropping it lets them go.
#[must_use = "a pin that is dropped holds nothing"]
pub struct Pin {
    pins: Arc<Pins>,
    offset: Offset,
}

/// What a call of [`Store::retain`] did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retained {
    /// The log's first offset now.
    pub min_offset: Offset,
    /// Segment files that are gone, oldest first.
    pub removed_segments: Vec<PathBuf>,
    /// What is gone of `truncated/` and `aside/`.
    pub removed_saved: Vec<PathBuf>,
    /// Why a segment that was to go stays.
    pub held_back: Option<HeldBack>,
    /// How full the disk was before.
    pub level: DiskLevel,
}

impl Store {
    /// How full the file system with the store is.
    ///
    /// # Errors
    /// [`Error::Io`] if the system does not say.
    pub fn disk_use(&self) -> Result<DiskUse, Error> {
        let root = self.shared.folder.root();
        let stat = rustix::fs::statvfs(root)
            .map_err(|error| Error::io("look at the disk of", root)(error.into()))?;
        Ok(DiskUse {
            used: (stat.f_blocks.saturating_sub(stat.f_bfree)).saturating_mul(stat.f_frsize),
            usable: stat.f_bavail.saturating_mul(stat.f_frsize),
        })
    }

    /// Keeps everything from `offset` on in the log while the pin lives, however old it gets, unless the
    /// disk is full. Slices and views need none: they keep their bytes in any case.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] if the log begins behind `offset` or ends before it, [`Error::Closed`].
    pub fn pin(&self, offset: Offset) -> Result<Pin, Error> {
        let shared = &*self.shared;
        shared.check_open()?;
        let mut pins = shared.pins.0.lock();
        let (min, end) = (shared.log.min(), shared.log.end());
        if !(min..=end).contains(&offset) {
            return Err(Error::OutOfRange { offset, min, end });
        }
        *pins.entry(offset).or_insert(0) += 1;
        drop(pins);
        Ok(Pin {
            pins: Arc::clone(&shared.pins),
            offset,
        })
    }

    /// Removes what `policy` says has had its time: whole segments from the front, with their epoch
    /// entries and consume queue files, and copies under `truncated/` and `aside/`. The last segment
    /// stays, and so does whatever is not confirmed, durable, and in the consume queues. To be called
    /// every few seconds: it costs little when there is nothing to do. What lies under `truncated/` and
    /// `aside/` is looked at when `tick.due`, when the disk fills, and by the first call.
    ///
    /// When `tick.disk` is above `disk_warning_percent`, appends are refused with [`Error::DiskFull`] from
    /// now on, until a call that finds it is not.
    ///
    /// On return the removals are durable. Slices that exist keep their bytes, and the disk its blocks
    /// until the last of them is dropped.
    ///
    /// # Errors
    /// [`Error::Io`] if a file cannot be removed: the log begins behind it all the same, nothing behind
    /// it was removed, and the next call tries again. [`Error::Failed`], [`Error::Closed`], and the
    /// failure of a write to the epoch file or a sync, which is final.
    pub fn retain(
        &self,
        policy: &RetentionPolicy,
        tick: &RetentionTick,
    ) -> Result<Retained, Error> {
        let shared = &*self.shared;
        shared.check_usable()?;
        let level = policy.level(tick.disk);
        shared.set_disk_full(policy, tick.disk);
        // What goes must be in the queues for good, or an open after a crash would look for it. Before
        // the role lock is taken: no change of role is to wait for a sync. A cut may come in between.
        let wanted = shared.candidates(policy.batch_max).is_ok_and(|candidates| {
            decide(&shared.situation(policy, *tick, &candidates)) != Decision::default()
        });
        if wanted {
            shared.sync_queues()?;
        }
        let mut role = shared.role.lock();
        shared.check_usable()?;
        let look = tick.due || level >= DiskLevel::Clean || !role.saved_looked_at;
        let mut saved = Vec::new();
        if look {
            saved = shared.remove_saved(policy, level, tick.now_ms)?;
            role.saved_looked_at = true;
        }
        let mut removed = shared.unlink_doomed()?;
        let freed = saved.iter().map(|it| it.bytes).sum();
        let decision = shared.retire(policy, *tick, freed)?;
        removed.extend(shared.unlink_doomed()?);
        shared.cut_epochs()?;
        if !removed.is_empty()
            && let Some(queues) = &shared.queues
        {
            queues.sync_bell.ring();
        }
        Ok(Retained {
            min_offset: shared.log.min(),
            removed_segments: removed,
            removed_saved: saved.into_iter().map(|it| it.path).collect(),
            held_back: decision.held_back,
            level,
        })
    }
}

impl Pin {
    /// From where on nothing goes.
    #[must_use]
    pub fn offset(&self) -> Offset {
        self.offset
    }

    /// Lets go of everything below `offset`; does nothing if the pin is there or further on.
    pub fn advance(&mut self, offset: Offset) {
        if offset > self.offset {
            let mut pins = self.pins.0.lock();
            *pins.entry(offset).or_insert(0) += 1;
            release(&mut pins, self.offset);
            self.offset = offset;
        }
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        release(&mut self.pins.0.lock(), self.offset);
    }
}

fn release(pins: &mut BTreeMap<Offset, usize>, offset: Offset) {
    if let Some(count) = pins.get_mut(&offset) {
        *count -= 1;
        if *count == 0 {
            pins.remove(&offset);
        }
    }
}

impl Shared {
    /// Fails while the disk is too full to take more.
    pub(super) fn check_room(&self) -> Result<(), Error> {
        match self.disk_full.load(Ordering::Relaxed) {
            0 => Ok(()),
            used_percent => Err(Error::DiskFull {
                path: self.folder.root().to_path_buf(),
                used_percent,
            }),
        }
    }

    fn set_disk_full(&self, policy: &RetentionPolicy, disk: DiskUse) {
        let full = policy.level(disk) == DiskLevel::Full;
        let used_percent = if full { disk.percent() } else { 0 };
        let before = self.disk_full.swap(used_percent, Ordering::Relaxed);
        let (folder, limit) = (self.folder.root().display(), policy.disk_warning_percent);
        match (before, used_percent) {
            (0, 0) => {}
            (0, _) => {
                tracing::error!(%folder, used_percent, limit, "the disk is nearly full: writes are refused")
            }
            (_, 0) => tracing::info!(%folder, limit, "the disk has room again: writes are taken"),
            _ => {}
        }
    }

    /// Moves the log's first offset; the files behind it are to be unlinked next.
    fn retire(
        &self,
        policy: &RetentionPolicy,
        tick: RetentionTick,
        freed: u64,
    ) -> Result<Decision, Error> {
        let candidates = self.candidates(policy.batch_max)?;
        let situation = self.situation(policy, tick, &candidates);
        let safe = self.safe_to_remove();
        let pins = self.pins.0.lock();
        let pinned = pins.first_key_value().map(|(offset, _)| *offset);
        let decision = decide(&Situation {
            safe,
            pinned,
            freed,
            ..situation
        });
        if let Some(last) = candidates[..decision.count].last() {
            let min = last.limit;
            let passed_over = pinned.into_iter().chain(tick.slaves_need);
            if let Some(offset) = passed_over.min().filter(|offset| *offset < min) {
                tracing::error!(
                    offset,
                    min,
                    "the disk is full: segments go that a reader or a slave still needs"
                );
            }
            tracing::info!(min, segments = decision.count, "old segments go");
            self.log.retire_below(min);
        }
        Ok(decision)
    }

    /// What there is, as if nothing but the policy kept a segment.
    fn situation<'a>(
        &self,
        policy: &'a RetentionPolicy,
        tick: RetentionTick,
        candidates: &'a [Candidate],
    ) -> Situation<'a> {
        Situation {
            policy,
            tick,
            candidates,
            end: self.log.end(),
            safe: Offset::MAX,
            pinned: None,
            freed: 0,
        }
    }

    /// Below it everything is confirmed, durable, and in the consume queues by a mark on disk.
    fn safe_to_remove(&self) -> Offset {
        let progress = self.flush.progress();
        let safe = progress.confirm.min(progress.flushed);
        drop(progress);
        match &self.queues {
            Some(queues) => safe.min(queues.marked().unwrap_or(0)),
            None => safe,
        }
    }

    /// The oldest segments, at most as many; never the last one.
    fn candidates(&self, most: usize) -> Result<Vec<Candidate>, Error> {
        let segments = self.log.segments();
        let pairs = segments.windows(2).take(most);
        pairs
            .map(|pair| {
                let (this, next) = (&pair[0], &pair[1]);
                let path = this.path();
                let metadata = fs::metadata(path).map_err(Error::io("look at", path))?;
                // The time of the file is not touched by stores into a mapping on every file system;
                // no record of a segment is younger than the first of the next.
                let youngest = self.log.record(next.base());
                let youngest = youngest.map_or(0, |view| view.record().store_timestamp_ms());
                Ok(Candidate {
                    base: this.base(),
                    limit: this.limit(),
                    written_ms: modified_ms(&metadata).max(youngest),
                })
            })
            .collect()
    }

    /// Unlinks the files that the log has given up, oldest first.
    fn unlink_doomed(&self) -> Result<Vec<PathBuf>, Error> {
        let mut removed = Vec::new();
        while let Some(base) = self.log.next_doomed() {
            let layout = self.log.lock_layout();
            self.run_segment_steps(&unlink_steps(&self.folder, base))?;
            self.log.is_gone(base);
            drop(layout);
            removed.push(self.folder.segment(base));
        }
        Ok(removed)
    }

    /// Drops the entries of epochs whose bytes are gone.
    fn cut_epochs(&self) -> Result<(), Error> {
        let min = self.log.min();
        let is_surplus = |list: &mut crate::epoch_list::EpochList| list.cut_prefix(min);
        if !is_surplus(&mut (*self.epochs()).clone()) {
            return Ok(());
        }
        // A receiver puts entries behind the others, under this lock.
        let _tail = self.log.lock_tail();
        let mut list = (*self.epochs()).clone();
        is_surplus(&mut list);
        self.replace_epochs(list)
    }

    fn remove_saved(
        &self,
        policy: &RetentionPolicy,
        level: DiskLevel,
        now_ms: i64,
    ) -> Result<Vec<Saved>, Error> {
        let mut all = saved_in(&self.folder.truncated())?;
        all.extend(saved_in(&self.folder.aside())?);
        let gone = decide_saved(policy, level, now_ms, all);
        for it in &gone {
            let path = it.path.clone();
            tracing::info!(path = %path.display(), bytes = it.bytes, "a copy of cut bytes goes");
            self.run_segment_steps(&[SegmentStep::RemoveSaved { path }])?;
        }
        Ok(gone)
    }
}

/// What lies in a directory that may be missing.
fn saved_in(directory: &Path) -> Result<Vec<Saved>, Error> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(Error::io("list", directory))?,
    };
    let mut saved = Vec::new();
    for entry in entries {
        let path = entry.map_err(Error::io("list", directory))?.path();
        let metadata = fs::symlink_metadata(&path).map_err(Error::io("look at", &path))?;
        saved.push(Saved {
            // Moving a directory leaves its own time as it was, but not the time of its change.
            since_ms: modified_ms(&metadata).max(metadata.ctime().saturating_mul(1000)),
            bytes: bytes_of(&path, &metadata)?,
            path,
        });
    }
    Ok(saved)
}

/// Bytes on the disk of a file, or of all files under a directory.
fn bytes_of(path: &Path, metadata: &Metadata) -> Result<u64, Error> {
    let mut bytes = metadata.blocks() * 512;
    if metadata.is_dir() {
        for entry in fs::read_dir(path).map_err(Error::io("list", path))? {
            let path = entry.map_err(Error::io("list", path))?.path();
            let metadata = fs::symlink_metadata(&path).map_err(Error::io("look at", &path))?;
            bytes += bytes_of(&path, &metadata)?;
        }
    }
    Ok(bytes)
}

fn modified_ms(metadata: &Metadata) -> i64 {
    let modified = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
    let since_1970 = modified.duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since_1970.as_millis()).unwrap_or(i64::MAX)
}
