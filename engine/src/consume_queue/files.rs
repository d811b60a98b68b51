//! The files of one queue, as one row of bytes that may begin anywhere, and the handles all queues share.
//!
//! Files are written with positioned writes, not through a mapping. A store has thousands of queues,
//! most of them nearly empty: a file is sparse (Java's are too), and a write that finds the disk full is
//! an error here where a store into a mapped hole would be a SIGBUS. How many files are open at a time is
//! bounded by [`FileCache`], however many queues there are.
//!
//! A file has its full length from the moment it has its name, as Java demands; a file of no length is
//! one whose making was interrupted.

use std::collections::{BTreeSet, HashMap};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

use crate::sync::Mutex;
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

use crate::allocate;
use crate::durable::calls;
use crate::error::Error;
use crate::folder::segment_name;
use crate::steps::{Hook, check as stop_here};

/// Queue files open at a time.
const MAX_OPEN_FILES: usize = 256;

/// Bytes of one write of pre-fill, and of one look for leftovers.
const CHUNK: usize = 64 * 1024;

/// Handles of queue files, by the queue's number and the file's first byte. A file that is asked for
/// rarely is closed; what was written to it is synced through another handle.
#[derive(Default)]
pub(crate) struct FileCache {
    open: Mutex<OpenFiles>,
}

#[derive(Default)]
struct OpenFiles {
    files: HashMap<(u32, u64), (Arc<File>, u64)>,
    clock: u64,
}

impl FileCache {
    fn get(&self, key: (u32, u64), path: impl Fn() -> PathBuf) -> Result<Arc<File>, Error> {
        let mut open = self.open.lock();
        open.clock += 1;
        let now = open.clock;
        if let Some((file, used)) = open.files.get_mut(&key) {
            *used = now;
            return Ok(Arc::clone(file));
        }
        let path = path();
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path)
            .map_err(Error::io("open", &path))?;
        let file = Arc::new(file);
        open.put(key, Arc::clone(&file));
        Ok(file)
    }

    fn put(&self, key: (u32, u64), file: Arc<File>) {
        self.open.lock().put(key, file);
    }

    fn forget(&self, key: (u32, u64)) {
        self.open.lock().files.remove(&key);
    }
}

impl OpenFiles {
    fn put(&mut self, key: (u32, u64), file: Arc<File>) {
        if self.files.len() >= MAX_OPEN_FILES {
            let oldest = self.files.iter().min_by_key(|(_, (_, used))| *used);
            if let Some(oldest) = oldest.map(|(key, _)| *key) {
                self.files.remove(&oldest);
            }
        }
        self.clock += 1;
        self.files.insert(key, (file, self.clock));
    }
}

/// What the files of every queue have in common.
#[derive(Clone)]
pub(crate) struct FileSettings {
    /// Bytes of each file, a multiple of a unit.
    pub(crate) file_size: u64,
    pub(crate) cache: Arc<FileCache>,
    pub(crate) hook: Option<Hook>,
}

/// The files of one queue: equal lengths, no gap.
pub(crate) struct QueueFiles {
    settings: FileSettings,
    dir: PathBuf,
    /// This queue's number in the cache.
    number: u32,
    /// First byte of the first file.
    first: u64,
    /// Behind the last byte of the last file; equal to `first` if there is none.
    limit: u64,
    /// First bytes of files with bytes that were not synced.
    unsynced: BTreeSet<u64>,
    /// A file was made or removed since the directory was synced.
    renamed: bool,
}

/// Files and directories of a queue to be made durable.
#[derive(Default)]
pub(crate) struct Unsynced {
    pub(crate) files: Vec<PathBuf>,
    pub(crate) dirs: Vec<PathBuf>,
}

impl Unsynced {
    pub(crate) fn is_empty(&self) -> bool {
        self.files.is_empty() && self.dirs.is_empty()
    }
}

impl QueueFiles {
    /// The files in `dir`, which were found to take `[first, limit)`.
    pub(crate) fn new(
        settings: FileSettings,
        dir: PathBuf,
        number: u32,
        range: Range<u64>,
    ) -> Self {
        Self {
            settings,
            dir,
            number,
            first: range.start,
            limit: range.end,
            unsynced: BTreeSet::new(),
            renamed: false,
        }
    }

    pub(crate) fn first(&self) -> u64 {
        self.first
    }

    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }

    pub(crate) fn size(&self) -> u64 {
        self.settings.file_size
    }

    pub(crate) fn path_of(&self, at: u64) -> PathBuf {
        self.dir.join(segment_name(self.base(at)))
    }

    fn base(&self, at: u64) -> u64 {
        at - at % self.size()
    }

    fn file(&self, base: u64) -> Result<Arc<File>, Error> {
        self.settings
            .cache
            .get((self.number, base), || self.path_of(base))
    }

    /// Behind the last byte of the file at `base` that may not be zero. A search that stays below it
    /// fills no memory with holes.
    pub(crate) fn written_end(&self, base: u64) -> Result<u64, Error> {
        let file = self.file(base)?;
        let mut end = 0;
        while let Some(extent) = next_extent(&file, end, self.size()) {
            end = extent.end;
        }
        Ok(base + end)
    }

    /// Fills `bytes` from `at` on; all of it lies in the files.
    pub(crate) fn read(&self, at: u64, bytes: &mut [u8]) -> Result<(), Error> {
        let mut at = at;
        let mut rest = bytes;
        while !rest.is_empty() {
            let base = self.base(at);
            let here = clamp_len(base + self.size() - at, rest.len());
            let (part, behind) = rest.split_at_mut(here);
            self.file(base)?
                .read_exact_at(part, at - base)
                .map_err(|error| Error::io("read", &self.path_of(at))(error))?;
            at += here as u64;
            rest = behind;
        }
        Ok(())
    }

    /// Writes `bytes` at `at`, which lies in the files or right behind them; makes the files that are
    /// missing. Nothing is durable.
    pub(crate) fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), Error> {
        let mut at = at;
        let mut rest = bytes;
        while !rest.is_empty() {
            let base = self.base(at);
            let file = if base == self.limit {
                self.make(base)?
            } else {
                self.file(base)?
            };
            let here = clamp_len(base + self.size() - at, rest.len());
            self.unsynced.insert(base);
            calls::changing(&self.path_of(at))
                .and_then(|()| file.write_all_at(&rest[..here], at - base))
                .map_err(|error| Error::io("write", &self.path_of(at))(error))?;
            at += here as u64;
            rest = &rest[here..];
        }
        Ok(())
    }

    fn make(&mut self, base: u64) -> Result<Arc<File>, Error> {
        let path = self.path_of(base);
        calls::changing(&self.dir)
            .and_then(|()| fs::create_dir_all(&self.dir))
            .map_err(Error::io("create", &self.dir))?;
        self.renamed = true;
        let file = calls::changing(&path)
            .and_then(|()| {
                let mut options = OpenOptions::new();
                options.read(true).write(true).create(true);
                options.truncate(true).open(&path)
            })
            .and_then(|file| file.set_len(self.size()).map(|()| file))
            .map_err(Error::io("create", &path))?;
        let file = Arc::new(file);
        self.settings
            .cache
            .put((self.number, base), Arc::clone(&file));
        self.unsynced.insert(base);
        self.limit = base + self.size();
        Ok(file)
    }

    /// Lets the queue, which has no files, begin at `at`: units of `fill` stand before it in its file.
    pub(crate) fn begin_at(&mut self, at: u64, fill: &[u8]) -> Result<(), Error> {
        assert_eq!(self.first, self.limit, "only a queue without files begins");
        let base = self.base(at);
        (self.first, self.limit) = (base, base);
        let chunk = fill.repeat(CHUNK / fill.len());
        let mut done = base;
        while done < at {
            let len = clamp_len(at - done, chunk.len());
            if let Err(error) = self.write(done, &chunk[..len]) {
                // Half-filled it is no beginning; the next attempt makes the file anew.
                self.limit = self.first;
                return Err(error);
            }
            done += len as u64;
        }
        Ok(())
    }

    /// Makes the row of bytes end at `at`, durably: later files go, newest first, and what is left of
    /// the file behind `at` reads as zero. Nothing is written if that is so already.
    pub(crate) fn cut(&mut self, at: u64) -> Result<(), Error> {
        self.cut_down_to(at, self.first)
    }

    /// As [`Self::cut`], for a queue without messages that begins at `at`: one file stays, so that an open
    /// finds where that is.
    pub(crate) fn empty(&mut self, at: u64) -> Result<(), Error> {
        if self.is_empty() {
            let base = self.base(at);
            (self.first, self.limit) = (base, base);
            let file = self.make(base)?;
            let path = self.path_of(base);
            calls::sync_all(&file, &path).map_err(Error::io("sync", &path))?;
            return allocate::sync_directory(&self.dir);
        }
        self.cut_down_to(at, self.first + self.size())
    }

    /// Whether there is no file.
    pub(crate) fn is_empty(&self) -> bool {
        self.first == self.limit
    }

    fn cut_down_to(&mut self, at: u64, least: u64) -> Result<(), Error> {
        let before = self.limit;
        while self.limit > least && self.limit - self.size() >= at {
            self.remove(self.limit - self.size())?;
            self.limit -= self.size();
        }
        if self.limit < before {
            allocate::sync_directory(&self.dir)?;
        }
        if at < self.limit {
            let base = self.base(at);
            let file = self.file(base)?;
            let path = self.path_of(at);
            let written = is_written(&file, at - base, self.size());
            if written.map_err(Error::io("read", &path))? {
                stop_here(&self.settings.hook)?;
                allocate::punch(&file, &path, at - base, self.size())
                    .map_err(Error::io("erase the end of", &path))?;
                self.unsynced.remove(&base);
            }
        }
        Ok(())
    }

    /// Removes all files, durably.
    pub(crate) fn clear(&mut self) -> Result<(), Error> {
        self.cut(self.first)?;
        (self.first, self.limit) = (0, 0);
        Ok(())
    }

    /// Removes files that are none of the row, durably.
    pub(crate) fn remove_stray(&mut self, bases: &[u64]) -> Result<(), Error> {
        // Newest first, so that an interruption leaves no other gap.
        for base in bases.iter().rev() {
            self.remove(*base)?;
        }
        if bases.is_empty() {
            return Ok(());
        }
        allocate::sync_directory(&self.dir)
    }

    /// Removes the first file; there is another one.
    pub(crate) fn remove_first(&mut self) -> Result<(), Error> {
        assert!(self.first + self.size() < self.limit, "the last file stays");
        self.remove(self.first)?;
        self.first += self.size();
        self.renamed = true;
        Ok(())
    }

    fn remove(&mut self, base: u64) -> Result<(), Error> {
        stop_here(&self.settings.hook)?;
        let path = self.path_of(base);
        self.settings.cache.forget((self.number, base));
        match calls::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(Error::io("remove", &path)(error));
            }
            _ => {}
        }
        self.unsynced.remove(&base);
        Ok(())
    }

    /// What is to be synced, told once: whoever takes it syncs it or gives it back.
    pub(crate) fn take_unsynced(&mut self, into: &mut Unsynced) {
        for base in std::mem::take(&mut self.unsynced) {
            into.files.push(self.path_of(base));
        }
        if std::mem::take(&mut self.renamed) {
            into.dirs.push(self.dir.clone());
        }
    }

    /// Everything there is was not synced.
    pub(crate) fn distrust(&mut self) {
        let mut base = self.first;
        while base < self.limit {
            self.unsynced.insert(base);
            base += self.size();
        }
        self.renamed = true;
    }
}

/// Whether a byte of `[from, to)` is not zero. Holes are not read.
fn is_written(file: &File, from: u64, to: u64) -> io::Result<bool> {
    let mut chunk = Vec::new();
    let mut at = from;
    while let Some(extent) = next_extent(file, at, to) {
        at = extent.start;
        while at < extent.end {
            chunk.resize(clamp_len(extent.end - at, CHUNK), 0);
            file.read_exact_at(&mut chunk, at)?;
            if chunk.iter().any(|byte| *byte != 0) {
                return Ok(true);
            }
            at += chunk.len() as u64;
        }
    }
    Ok(false)
}

/// The first part of `[from, to)` that is no hole. A file system that knows no holes has data everywhere.
fn next_extent(file: &File, from: u64, to: u64) -> Option<Range<u64>> {
    if from >= to {
        return None;
    }
    let start = match seek(file, SeekFrom::Data(from)) {
        Ok(start) => start,
        Err(Errno::NXIO) => return None,
        Err(_) => return Some(from..to),
    };
    let end = seek(file, SeekFrom::Hole(start)).unwrap_or(to).min(to);
    (start < end).then_some(start..end)
}

fn clamp_len(len: u64, most: usize) -> usize {
    usize::try_from(len).map_or(most, |len| len.min(most))
}
