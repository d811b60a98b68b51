//! A look into a store folder without opening it: nothing is locked, written or repaired.
//!
//! For folders that nobody has open, ours or Java's. In a folder that is being written the end found is
//! one that was there at some moment of the scan. A scan reads files and maps none; of a folder that this
//! process writes to, records are shown as copies.

mod pieces;
mod segments;

use std::path::{Path, PathBuf};

use crate::checkpoint::{Checkpoint, CheckpointFile};
use crate::epoch_file::{EpochFile, EpochFileError};
use crate::epoch_list::EpochList;
use crate::error::Error;
use crate::folder::{Folder, Listing, SegmentFile};
use crate::position::Offset;
use crate::record::{CheckOptions, Parsed, parse};
use crate::recovery::{Layout, look_at, vouched_for};
use crate::state_file::{State, StateFile, StateFileError};
use crate::store::{RecordView, SegmentInfo, StoreLock};
use crate::walk::Stop;

use segments::{Walked, walk_all};

/// What is in a store folder.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Inspection {
    /// The folder.
    pub dir: PathBuf,
    /// The length segments have, in bytes; `None` if there is none.
    pub segment_size: Option<u64>,
    /// The segments that hold log, oldest first.
    pub segments: Vec<SegmentInfo>,
    /// Segments behind the end in which nothing was written.
    pub prepared: Vec<PathBuf>,
    /// The log's first offset.
    pub min_offset: Offset,
    /// Behind the last whole record or filler.
    pub end_offset: Offset,
    /// Records in the log.
    pub messages: u64,
    /// Store time of the first record, in ms since 1970.
    pub first_store_timestamp_ms: Option<i64>,
    /// Store time of the last record, in ms since 1970.
    pub last_store_timestamp_ms: Option<i64>,
    /// The epoch file's list; `None` if there is no file or it is damaged.
    pub epochs: Option<EpochList>,
    /// Java's checkpoint; `None` if there is no file.
    pub checkpoint: Option<Checkpoint>,
    /// Our state file; `None` in a folder of Java's.
    pub state: Option<State>,
    /// `abort` is there: the last Java process was killed, or an epochlog has had the folder.
    pub abort: bool,
    /// Everything that is not as it should be.
    pub problems: Vec<Problem>,
}

/// Something in a store folder that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// What kind of thing it is.
    pub kind: ProblemKind,
    /// The file.
    pub path: PathBuf,
    /// Where in the log, if it is a place in the log.
    pub offset: Option<Offset>,
    /// What is wrong.
    pub what: String,
}

/// What kind of thing is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProblemKind {
    /// A bad record that no mark vouches for: opening cuts the log there.
    Torn,
    /// A bad record, or none, where a mark says that the log was durable: opening refuses.
    Damage,
    /// Bytes behind the end of the log: opening removes them.
    BehindTheEnd,
    /// Named as a segment, but behind a gap or of another length.
    NotInTheLog,
    /// No segment at all; Java does not start with it.
    Unexpected,
    /// A log without an epoch file: opening refuses.
    EpochFileMissing,
    /// An epoch file that cannot be trusted: opening refuses.
    EpochFileDamaged,
    /// An entry that starts behind the end: opening drops it.
    EpochPastTheEnd,
    /// The log's first byte has no epoch: opening refuses.
    NoEpoch,
    /// A state file that cannot be trusted: opening refuses.
    StateFileDamaged,
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.offset {
            Some(offset) => write!(
                f,
                "{} at offset {offset}: {}",
                self.path.display(),
                self.what
            ),
            None => write!(f, "{}: {}", self.path.display(), self.what),
        }
    }
}

/// Looks at the store folder `dir` and checks every record, CRCs included.
///
/// # Errors
/// [`Error::Io`] if something cannot be read. What can be read and is wrong is a [`Problem`].
pub fn scan(dir: impl AsRef<Path>) -> Result<Inspection, Error> {
    scan_with(dir, |_, _| {})
}

/// As [`scan`], and tells now and then how many bytes of how many it has read.
///
/// # Errors
/// As [`scan`].
pub fn scan_with(
    dir: impl AsRef<Path>,
    mut progress: impl FnMut(u64, u64),
) -> Result<Inspection, Error> {
    let folder = Folder::new(dir.as_ref());
    std::fs::metadata(folder.root()).map_err(Error::io("open", folder.root()))?;
    let listing = folder.list()?;
    let mut found = Inspection::empty(&folder, &listing);
    found.small_files(&folder)?;
    // No mark counts here: what does not fit is told, not refused.
    let size = listing.common_len().unwrap_or(1);
    let layout = Layout::of(&listing, size, Some(0), &folder)?;
    found.walk(&layout, &mut progress)?;
    if let (Some(path), Some(why)) = (layout.leftovers.first(), &layout.irregular) {
        found.problem(
            ProblemKind::NotInTheLog,
            path,
            None,
            format!("not part of the log: {why}"),
        );
    }
    found.check_marks(&folder);
    Ok(found)
}

impl Inspection {
    fn empty(folder: &Folder, listing: &Listing) -> Self {
        let what = "no segment; Java does not start with it".to_owned();
        let unexpected = listing.unexpected.iter().map(|path| Problem {
            kind: ProblemKind::Unexpected,
            path: path.clone(),
            offset: None,
            what: what.clone(),
        });
        Self {
            dir: folder.root().to_path_buf(),
            segment_size: listing.common_len(),
            segments: Vec::new(),
            prepared: Vec::new(),
            min_offset: 0,
            end_offset: 0,
            messages: 0,
            first_store_timestamp_ms: None,
            last_store_timestamp_ms: None,
            epochs: None,
            checkpoint: None,
            state: None,
            abort: folder.abort().exists(),
            problems: unexpected.collect(),
        }
    }

    fn problem(
        &mut self,
        kind: ProblemKind,
        path: &Path,
        offset: Option<Offset>,
        what: impl Into<String>,
    ) {
        self.problems.push(Problem {
            kind,
            path: path.to_path_buf(),
            offset,
            what: what.into(),
        });
    }

    /// Such an error begins with the file's name, which a problem has already.
    fn damaged_file(&mut self, kind: ProblemKind, path: &Path, why: &dyn std::error::Error) {
        let why = why.to_string();
        let named = format!("{}: ", path.display());
        self.problem(kind, path, None, why.strip_prefix(&named).unwrap_or(&why));
    }

    fn small_files(&mut self, folder: &Folder) -> Result<(), Error> {
        match EpochFile::new(folder.epoch_file()).load() {
            Ok(epochs) => self.epochs = epochs,
            Err(EpochFileError::File(error)) => return Err(error.into()),
            Err(why) => {
                let kind = ProblemKind::EpochFileDamaged;
                self.damaged_file(kind, &folder.epoch_file(), &why);
            }
        }
        match StateFile::read(&folder.state_file()) {
            Ok(state) => self.state = state,
            Err(StateFileError::File(error)) => return Err(error.into()),
            Err(why) => {
                let kind = ProblemKind::StateFileDamaged;
                self.damaged_file(kind, &folder.state_file(), &why);
            }
        }
        self.checkpoint = CheckpointFile::read(&folder.checkpoint())?;
        Ok(())
    }

    /// Walks the records to the first thing that is none.
    fn walk(&mut self, layout: &Layout, progress: &mut dyn FnMut(u64, u64)) -> Result<(), Error> {
        self.min_offset = layout.min();
        self.end_offset = self.min_offset;
        let all = layout.limit() - layout.min();
        let files = &layout.segments;
        let found = walk_all(files, &mut |done| progress(done, all));
        let walked = found.len();
        for (file, found) in files.iter().zip(found) {
            self.segment(file, &found?);
        }
        for file in &files[walked..] {
            self.behind_the_end(file)?;
        }
        Ok(())
    }

    /// Looks at the first bytes of a segment behind the one in which the log ends.
    fn behind_the_end(&mut self, file: &SegmentFile) -> Result<(), Error> {
        if file.begins_unwritten()? {
            self.prepared.push(file.path.clone());
        } else {
            let what = "records may lie here, behind the end of the log";
            self.problem(ProblemKind::BehindTheEnd, &file.path, Some(file.base), what);
        }
        Ok(())
    }

    /// Takes over what was found in the next segment.
    fn segment(&mut self, file: &SegmentFile, found: &Walked) {
        let (end, stop) = (found.end, &found.stop);
        self.messages += found.messages;
        if let Some((first, last)) = found.store_ms {
            self.first_store_timestamp_ms.get_or_insert(first);
            self.last_store_timestamp_ms = Some(last);
        }
        let empty = end == file.base && *stop == Stop::Empty;
        if empty && !self.segments.is_empty() {
            self.prepared.push(file.path.clone());
        } else {
            self.segments.push(SegmentInfo {
                base: file.base,
                len: end - file.base,
                size: file.len,
                path: file.path.clone(),
            });
        }
        self.end_offset = end;
        let what = match stop {
            Stop::Done | Stop::Asked => return,
            Stop::Empty => "unwritten space",
            Stop::Short => "the record does not fit its segment",
            Stop::Bad(why) => why,
        };
        let flushed = self.state.map(|state| state.flushed);
        let durable = match (flushed, self.checkpoint) {
            (Some(flushed), _) => end < flushed,
            (None, Some(it)) => vouched_for(&it, !self.abort, self.last_store_timestamp_ms, stop),
            (None, None) => false,
        };
        if durable {
            let what = format!("{what}, but the log was durable behind it");
            self.problem(ProblemKind::Damage, &file.path, Some(end), what);
        } else if *stop != Stop::Empty {
            self.problem(ProblemKind::Torn, &file.path, Some(end), what);
        }
    }

    /// Holds epochs and marks against the log.
    fn check_marks(&mut self, folder: &Folder) {
        let (min, end) = (self.min_offset, self.end_offset);
        let path = folder.epoch_file();
        let log_path = folder.commit_log();
        match self.epochs.clone() {
            Some(list) => {
                if let Some(last) = list.last().filter(|last| last.start > end) {
                    let what = format!(
                        "epoch {} starts at {}, behind the end",
                        last.epoch, last.start
                    );
                    self.problem(ProblemKind::EpochPastTheEnd, &path, Some(end), what);
                }
                if min < end && list.covering(min).is_none() {
                    let what = "no epoch covers the log's first byte";
                    self.problem(ProblemKind::NoEpoch, &path, Some(min), what);
                }
            }
            None if min < end && !path.exists() => {
                let what = "missing, but the log is not empty";
                self.problem(ProblemKind::EpochFileMissing, &path, None, what);
            }
            None => {}
        }
        let damaged = self
            .problems
            .iter()
            .any(|problem| problem.kind == ProblemKind::Damage);
        if let Some(state) = self.state.filter(|state| state.flushed > end && !damaged) {
            let what = format!("the log ends here but was durable up to {}", state.flushed);
            self.problem(ProblemKind::Damage, &log_path, Some(end), what);
        }
    }

    /// Whether this process has the store open, and writes to its files.
    fn is_open_here(&self) -> bool {
        StoreLock::is_a_store_here(&Folder::new(&self.dir))
    }

    /// Every record of the log in order, each kept alive by its view.
    pub fn records(&self) -> impl Iterator<Item = Result<RecordView, Error>> + '_ {
        self.segments.iter().flat_map(|segment| {
            let file = SegmentFile {
                base: segment.base,
                len: segment.size,
                path: segment.path.clone(),
            };
            let (bytes, failed) = match look_at(&file, self.is_open_here()) {
                Ok(bytes) => (Some(bytes), None),
                Err(error) => (None, Some(Err(error))),
            };
            let mut at = 0;
            let len = usize::try_from(segment.len).unwrap_or(usize::MAX);
            let records = std::iter::from_fn(move || {
                let bytes = bytes.as_ref()?;
                let rest = bytes.narrow(at..len).filter(|rest| !rest.is_empty())?;
                let room = segment.size - at as u64;
                match parse(&rest, rest.start(), room, CheckOptions::STRUCTURE) {
                    Ok(Parsed::Message(record)) => {
                        let size = record.total_size();
                        at += size;
                        rest.narrow(0..size).map(|slice| Ok(RecordView::new(slice)))
                    }
                    // A filler ends the segment; an error cannot be, the scan passed here.
                    Ok(Parsed::Filler { .. }) => None,
                    Err(error) => {
                        at = len;
                        Some(Err(Error::Corrupt {
                            file: segment.path.clone(),
                            offset: rest.start(),
                            why: error.to_string(),
                        }))
                    }
                }
            });
            failed.into_iter().chain(records)
        })
    }
}
