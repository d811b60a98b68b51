//! Which old segments go, and which copies of bytes that were cut. Pure: what is there, the time and the
//! disk come in as values.
//!
//! Only whole segments go, from the front on, and the last one stays. What keeps a segment is looked at in
//! this order: it is not safely behind the group, nobody wants it gone, somebody still reads it. The first
//! segment that is kept keeps all behind it, whatever their age (RocketMQ: DefaultMessageStore's
//! CleanCommitLogService, MappedFileQueue.deleteExpiredFileByTime).

use std::path::PathBuf;

use crate::position::Offset;

const HOUR_MS: u64 = 3_600_000;

/// When old segments go. The names behind the fields are RocketMQ's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetentionPolicy {
    /// Segments last written to longer ago than this, in ms, are expired (`fileReservedTime`); `None`:
    /// none ever is. Default 72 hours.
    pub reserved_ms: Option<u64>,
    /// Segments go from the front while the log has more bytes than this, at any time of the day; `None`:
    /// the log may be as long as the disk allows. Default `None`.
    pub max_log_bytes: Option<u64>,
    /// With more of the disk in use, in percent, expired segments go at any time of the day
    /// (`diskMaxUsedSpaceRatio`). Default 75.
    pub disk_max_used_percent: u8,
    /// With more of the disk in use, in percent, copies of cut bytes go, then segments that are not
    /// expired, as many as it takes (`diskSpaceCleanForciblyRatio`). Default 85.
    pub disk_clean_forcibly_percent: u8,
    /// With more of the disk in use, in percent, appends are refused, and readers and slaves do not hold
    /// segments back any more (`diskSpaceWarningLevelRatio`). Default 90.
    pub disk_warning_percent: u8,
    /// Segments that go in one call, at most (`deleteFileBatchMax`). Default 10.
    pub batch_max: usize,
    /// What lies under `truncated/` and `aside/` goes when it is older than this, in ms; `None`: it never
    /// is too old. Default 7 days.
    pub saved_reserved_ms: Option<u64>,
    /// The oldest of it goes while there are more bytes than this; the newest stays. `None`: there may be
    /// as many as the disk allows. Default 4 GiB.
    pub saved_max_bytes: Option<u64>,
}

impl Default for RetentionPolicy {
    fn default() -> Self {
        Self {
            reserved_ms: Some(72 * HOUR_MS),
            max_log_bytes: None,
            disk_max_used_percent: 75,
            disk_clean_forcibly_percent: 85,
            disk_warning_percent: 90,
            batch_max: 10,
            saved_reserved_ms: Some(7 * 24 * HOUR_MS),
            saved_max_bytes: Some(4 << 30),
        }
    }
}

/// How full a file system is, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskUse {
    /// In use.
    pub used: u64,
    /// Left for this process.
    pub usable: u64,
}

impl DiskUse {
    /// How much of what can be used is in use, in percent, rounded up as `df` does.
    #[must_use]
    pub fn percent(&self) -> u8 {
        let (used, all) = (u128::from(self.used), self.all());
        if all == 0 {
            return 0;
        }
        u8::try_from((used * 100).div_ceil(all)).unwrap_or(100)
    }

    /// Bytes that must go for `percent` of it to be in use.
    fn above(&self, percent: u8) -> u64 {
        let allowed = self.all() * u128::from(percent) / 100;
        let above = u128::from(self.used).saturating_sub(allowed);
        u64::try_from(above).unwrap_or(u64::MAX)
    }

    fn all(&self) -> u128 {
        u128::from(self.used) + u128::from(self.usable)
    }
}

/// What one call of [`Store::retain`](crate::Store::retain) is told.
#[derive(Clone, Copy, Debug)]
pub struct RetentionTick {
    /// The time, in ms since 1970.
    pub now_ms: i64,
    /// The hour has come in which expired segments go although the disk has room (`deleteWhen`), or an
    /// operator asked for it.
    pub due: bool,
    /// How full the disk is.
    pub disk: DiskUse,
    /// The smallest offset that a slave still needs, whether it is in the SyncStateSet or catches up.
    pub slaves_need: Option<Offset>,
}

/// How much of the disk is in use, held against the policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DiskLevel {
    /// No more than `disk_max_used_percent`.
    Normal,
    /// More than that: expired segments go at any time.
    Clean,
    /// More than `disk_clean_forcibly_percent`: what is not expired goes too.
    Forced,
    /// More than `disk_warning_percent`: appends are refused.
    Full,
}

impl RetentionPolicy {
    /// Where `disk` stands.
    #[must_use]
    pub fn level(&self, disk: DiskUse) -> DiskLevel {
        match disk.percent() {
            percent if percent > self.disk_warning_percent => DiskLevel::Full,
            percent if percent > self.disk_clean_forcibly_percent => DiskLevel::Forced,
            percent if percent > self.disk_max_used_percent => DiskLevel::Clean,
            _ => DiskLevel::Normal,
        }
    }
}

/// Why a segment that was to go stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeldBack {
    /// Bytes of it are not yet on every member of the SyncStateSet, on disk and in the consume queues.
    /// Everything below this offset is.
    Unsafe(Offset),
    /// A pin or a slave needs it from this offset on.
    Needed(Offset),
}

/// A segment that might go: not the last one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    pub(crate) base: Offset,
    pub(crate) limit: Offset,
    /// When the youngest byte was written, in ms since 1970.
    pub(crate) written_ms: i64,
}

/// What a decision about segments rests on.
pub(crate) struct Situation<'a> {
    pub(crate) policy: &'a RetentionPolicy,
    pub(crate) tick: RetentionTick,
    /// Oldest first.
    pub(crate) candidates: &'a [Candidate],
    pub(crate) end: Offset,
    /// Everything below it is confirmed, durable, and marked as dispatched.
    pub(crate) safe: Offset,
    /// The lowest pin.
    pub(crate) pinned: Option<Offset>,
    /// Bytes that go from the disk anyway.
    pub(crate) freed: u64,
}

/// How many segments go, from the front.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Decision {
    pub(crate) count: usize,
    pub(crate) held_back: Option<HeldBack>,
}

pub(crate) fn decide(situation: &Situation<'_>) -> Decision {
    let Situation { policy, tick, .. } = situation;
    let level = policy.level(tick.disk);
    let needed = [situation.pinned, tick.slaves_need];
    let needed = needed.into_iter().flatten().min();
    let excess = tick.disk.above(policy.disk_clean_forcibly_percent);
    let mut freed = situation.freed;
    let mut decision = Decision::default();
    for candidate in situation.candidates.iter().take(policy.batch_max) {
        let by_age = (tick.due || level >= DiskLevel::Clean)
            && is_older(tick.now_ms, candidate.written_ms, policy.reserved_ms);
        let by_size = policy
            .max_log_bytes
            .is_some_and(|most| situation.end - candidate.base > most);
        let by_force = level >= DiskLevel::Forced && freed < excess;
        if !(by_age || by_size || by_force) {
            break;
        }
        if candidate.limit > situation.safe {
            decision.held_back = Some(HeldBack::Unsafe(situation.safe));
            break;
        }
        if let Some(offset) = needed.filter(|offset| *offset < candidate.limit)
            && level < DiskLevel::Full
        {
            decision.held_back = Some(HeldBack::Needed(offset));
            break;
        }
        freed += candidate.limit - candidate.base;
        decision.count += 1;
    }
    decision
}

fn is_older(now_ms: i64, then_ms: i64, reserved_ms: Option<u64>) -> bool {
    let age = now_ms.saturating_sub(then_ms);
    reserved_ms.is_some_and(|reserved| u64::try_from(age).is_ok_and(|age| age > reserved))
}

/// Something under `truncated/` or `aside/`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Saved {
    pub(crate) path: PathBuf,
    /// When it came there or was last changed, in ms since 1970.
    pub(crate) since_ms: i64,
    /// Bytes it takes on the disk.
    pub(crate) bytes: u64,
}

/// What of `saved` goes; the rest is dropped from it.
pub(crate) fn decide_saved(
    policy: &RetentionPolicy,
    level: DiskLevel,
    now_ms: i64,
    mut saved: Vec<Saved>,
) -> Vec<Saved> {
    if level >= DiskLevel::Forced {
        return saved;
    }
    saved.sort_by(|a, b| (a.since_ms, &a.path).cmp(&(b.since_ms, &b.path)));
    let newest = saved.len().saturating_sub(1);
    let mut left: u64 = saved.iter().map(|it| it.bytes).sum();
    let mut gone = 0;
    for (place, it) in saved.iter().enumerate() {
        let too_many = policy.saved_max_bytes.is_some_and(|most| left > most) && place < newest;
        if !too_many && !is_older(now_ms, it.since_ms, policy.saved_reserved_ms) {
            break;
        }
        left -= it.bytes;
        gone += 1;
    }
    saved.truncate(gone);
    saved
}

#[cfg(test)]
mod tests;
