//! Finding the end: by the marks of a clean stop, or by walking the records.

use std::path::PathBuf;
use std::sync::Arc;

use crate::checkpoint::Checkpoint;
use crate::epoch_list::EpochList;
use crate::error::Error;
use crate::folder::{Folder, SegmentFile};
use crate::position::Offset;
use crate::record::CheckOptions;
use crate::segment::{LogSlice, Segment};
use crate::state_file::{CleanStop, State};
use crate::walk::{Item, Stop, walk};

use super::Torn;
use super::layout::Layout;

/// Told how many bytes of how many a scan has read.
pub(crate) type Progress = Arc<dyn Fn(u64, u64) + Send + Sync>;

/// Java's recovery distrusts its checkpoint by this much, in ms.
const CHECKPOINT_MARGIN_MS: i64 = 3000;

pub(super) struct Scan<'a> {
    pub(super) folder: &'a Folder,
    pub(super) layout: &'a Layout,
    pub(super) segment_size: u64,
    pub(super) state: Option<&'a State>,
    pub(super) checkpoint: Option<Checkpoint>,
    pub(super) epochs: &'a EpochList,
    pub(super) same_memory: bool,
    pub(super) progress: Option<Progress>,
}

#[derive(Default)]
pub(super) struct Scanned {
    pub(super) end: Offset,
    pub(super) last_record: Option<Offset>,
    pub(super) last_store_ms: i64,
    pub(super) clean: bool,
    pub(super) scanned_bytes: u64,
    pub(super) torn: Option<Torn>,
}

/// Whether Java's checkpoint says that more was durable than a walk found which ended in `stop` behind a
/// record of `last_store_ms`. Java keeps no flushed mark; the store times of what it synced last are
/// the nearest thing to one. What its consume queues held counts only after a clean stop: while it
/// runs they may be synced before the log.
pub(crate) fn vouched_for(
    checkpoint: &Checkpoint,
    stopped_cleanly: bool,
    last_store_ms: Option<i64>,
    stop: &Stop,
) -> bool {
    let synced_ms = synced_ms(checkpoint, stopped_cleanly);
    match last_store_ms {
        Some(last) => last < synced_ms.saturating_sub(CHECKPOINT_MARGIN_MS),
        None => synced_ms > 0 && matches!(stop, Stop::Bad(_) | Stop::Short),
    }
}

fn synced_ms(checkpoint: &Checkpoint, stopped_cleanly: bool) -> i64 {
    let log = checkpoint.physic_msg_timestamp_ms;
    if stopped_cleanly {
        log.max(checkpoint.logics_msg_timestamp_ms)
    } else {
        log
    }
}

/// Maps a segment file for reading, the whole of it. For whoever has the folder to himself.
pub(crate) fn open_scanned(file: &SegmentFile) -> Result<LogSlice, Error> {
    look_at(file, false)
}

/// A segment file, the whole of it: mapped for reading, or copied if this process has it open for writing.
pub(crate) fn look_at(file: &SegmentFile, written_here: bool) -> Result<LogSlice, Error> {
    let path = file.path.clone();
    let segment = Segment::open_read_only(path, file.base, file.len, written_here)?;
    // All of a segment opened for reading is published.
    segment
        .slice(file.base, usize::MAX)
        .ok_or(Error::OutOfRange {
            offset: file.base,
            min: file.base,
            end: file.base,
        })
}

impl Scan<'_> {
    /// The end of a clean stop, if every mark it left still holds: a few pages are read, whatever the
    /// log's length.
    pub(super) fn prove_clean(&self) -> Result<Option<Scanned>, Error> {
        let Some((state, stop)) = self.state.and_then(|state| Some((state, state.clean?))) else {
            return Ok(None);
        };
        let checkpoint = self.checkpoint.unwrap_or_default().fingerprint();
        let bases = self.layout.segments.iter().map(|segment| segment.base);
        if !self.layout.leftovers.is_empty()
            || stop.epoch_file_crc != self.epochs.fingerprint()
            || stop.checkpoint_crc != checkpoint
            || stop.bases_crc != bases_crc(bases, stop.end)
            || !(self.layout.min()..=self.layout.limit()).contains(&stop.end)
        {
            tracing::warn!("the folder has changed since its clean stop; its records are scanned");
            return Ok(None);
        }
        let proven = self.prove_tail(state, &stop)?;
        if proven.is_none() {
            tracing::warn!("the log's end has changed since its clean stop; it is scanned");
        }
        Ok(proven)
    }

    fn prove_tail(&self, state: &State, stop: &CleanStop) -> Result<Option<Scanned>, Error> {
        let end = stop.end;
        let mut scanned = Scanned {
            end,
            clean: true,
            ..Scanned::default()
        };
        let empty = end == self.layout.min();
        let last = end.saturating_sub(u64::from(stop.last_record_len));
        let mut found = empty && stop.last_record_len == 0;
        for file in &self.layout.segments {
            let limit = file.base + self.segment_size;
            let holds_last = last < end && (file.base..limit).contains(&last);
            if limit <= end && !holds_last {
                continue;
            }
            let bytes = open_scanned(file)?;
            // Behind the end, and in every later segment, nothing begins.
            let behind = end.max(file.base);
            if behind < limit && !starts_empty(&bytes, behind) {
                return Ok(None);
            }
            if holds_last {
                let from = if state.scan_from >= file.base {
                    state.scan_from.min(last)
                } else {
                    last
                };
                found = prove_last(&bytes, from, limit, stop, &mut scanned);
            }
        }
        Ok(found.then_some(scanned))
    }

    /// Walks the records from the last proven point to the first that is bad.
    pub(super) fn run(&self) -> Result<Scanned, Error> {
        let min = self.layout.min();
        let flushed = self.state.map_or(min, |state| state.flushed.max(min));
        let mut at = self.start(flushed);
        let goal = self.layout.limit();
        let mut scanned = Scanned {
            end: at,
            ..Scanned::default()
        };
        let lost_power = self.lost_power();
        let mut stop = Stop::Done;
        let mut at_file = None;
        for file in &self.layout.segments {
            let limit = file.base + self.segment_size;
            if limit <= at {
                continue;
            }
            let bytes = open_scanned(file)?;
            let rest = bytes.get(usize_of(at - file.base)..).unwrap_or_default();
            let from = at;
            let check = |offset| match lost_power && offset >= flushed {
                true => CheckOptions::AFTER_POWER_LOSS,
                false => CheckOptions::CHECKSUMS,
            };
            (at, stop) = walk(rest, from, limit, check, |item| {
                if let Item::Record(record) = item {
                    scanned.last_record = Some(record.physical_offset());
                    scanned.last_store_ms = record.store_timestamp_ms();
                }
                true
            });
            scanned.scanned_bytes += at - from;
            if let Some(progress) = &self.progress {
                progress(at - min, goal - min);
            }
            at_file = Some((file, bytes));
            if stop != Stop::Done {
                break;
            }
        }
        scanned.end = at;
        let why = match stop {
            Stop::Done | Stop::Asked => None,
            Stop::Empty => Some("unwritten space".to_owned()),
            Stop::Short => Some("the record does not fit its segment".to_owned()),
            Stop::Bad(ref why) => Some(why.clone()),
        };
        self.refuse_damage(&scanned, flushed, why.as_deref(), &stop)?;
        if let (Some(why), Some((file, bytes)), false) = (why, at_file, stop == Stop::Empty) {
            let cut_bytes = self.cut_bytes(file, &bytes, at)?;
            scanned.torn = Some(Torn {
                offset: at,
                why,
                cut_bytes,
            });
        }
        Ok(scanned)
    }

    /// Where the walk begins. If somebody else had the folder in between, at the first byte.
    fn start(&self, flushed: Offset) -> Offset {
        let min = self.layout.min();
        let Some(state) = self.state else { return min };
        let touched = state.clean.is_some() || !self.folder.abort().exists();
        let from = if touched {
            min
        } else {
            state.scan_from.clamp(min, flushed)
        };
        // Behind the last segment there is nothing to start at; the damage is found from the front.
        if from > self.layout.limit() {
            min
        } else {
            from
        }
    }

    /// Whether pages above the flushed mark may be missing.
    fn lost_power(&self) -> bool {
        match self.state {
            Some(_) => !self.same_memory,
            None => self.folder.abort().exists(),
        }
    }

    /// Tells damage from a torn tail.
    fn refuse_damage(
        &self,
        scanned: &Scanned,
        flushed: Offset,
        why: Option<&str>,
        stop: &Stop,
    ) -> Result<(), Error> {
        let offset = scanned.end;
        let reason = why.unwrap_or("the log ends here");
        let damaged = |why: String| {
            Err(Error::Damaged {
                file: self.file_at(offset),
                offset,
                why,
            })
        };
        if offset < flushed {
            return damaged(format!("{reason}, but the log was durable up to {flushed}"));
        }
        let (None, Some(checkpoint), Some(why)) = (self.state, self.checkpoint, why) else {
            return Ok(());
        };
        let last_store_ms = scanned.last_record.map(|_| scanned.last_store_ms);
        let stopped_cleanly = !self.folder.abort().exists();
        if vouched_for(&checkpoint, stopped_cleanly, last_store_ms, stop) {
            let synced_ms = synced_ms(&checkpoint, stopped_cleanly);
            return damaged(format!(
                "{why}, but the checkpoint says that records up to store time {synced_ms} were durable"
            ));
        }
        Ok(())
    }

    fn file_at(&self, offset: Offset) -> PathBuf {
        let base = offset - offset % self.segment_size;
        self.folder.segment(base)
    }

    /// Bytes that were written from `end` on and are given up.
    fn cut_bytes(&self, file: &SegmentFile, bytes: &[u8], end: Offset) -> Result<u64, Error> {
        let mut cut = written(&bytes[usize_of(end - file.base)..]);
        for later in self.layout.segments.iter().filter(|it| it.base > file.base) {
            let bytes = open_scanned(later)?;
            if !starts_empty(&bytes, later.base) {
                cut += written(&bytes);
            }
        }
        Ok(cut)
    }
}

/// A CRC-32C over the bases of the segments that hold a log ending at `end`; the first always counts.
pub(crate) fn bases_crc(bases: impl Iterator<Item = Offset>, end: Offset) -> u32 {
    bases
        .enumerate()
        .filter(|(index, base)| *index == 0 || *base < end)
        .fold(0, |crc, (_, base)| {
            crc32c::crc32c_append(crc, &base.to_be_bytes())
        })
}

/// Whether the last record or filler of a clean stop is what it was. The walk begins at `from`, the
/// start of the last record: a filler behind it has no store time.
fn prove_last(
    bytes: &LogSlice,
    from: Offset,
    limit: Offset,
    stop: &CleanStop,
    scanned: &mut Scanned,
) -> bool {
    let start = usize_of(from - bytes.start());
    let behind = bytes
        .len()
        .min(start + usize_of(stop.end.saturating_sub(from)));
    let (end, why) = walk(
        &bytes[start..behind],
        from,
        limit,
        |_| CheckOptions::CHECKSUMS,
        |item| {
            if let Item::Record(record) = item {
                scanned.last_record = Some(record.physical_offset());
                scanned.last_store_ms = record.store_timestamp_ms();
            }
            true
        },
    );
    let last = behind.saturating_sub(stop.last_record_len as usize);
    why == Stop::Done
        && end == stop.end
        && crc32c::crc32c(&bytes[last..behind]) == stop.last_record_crc
}

/// Whether the 8 bytes at `offset`, or all that are left there, are zero.
fn starts_empty(bytes: &LogSlice, offset: Offset) -> bool {
    let from = usize_of(offset - bytes.start());
    bytes[from..].iter().take(8).all(|byte| *byte == 0)
}

/// Bytes up to the last that is not zero.
fn written(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .rposition(|byte| *byte != 0)
        .map_or(0, |last| last as u64 + 1)
}

/// A position inside a segment, which is shorter than 2^31 bytes.
fn usize_of(len: u64) -> usize {
    usize::try_from(len).unwrap_or(usize::MAX)
}
