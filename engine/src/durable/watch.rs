//! A look over the engine's shoulder, for one folder: which call comes next, and what is durable.
//!
//! It counts the calls, fails one of them or everything from one on, and keeps what each file and
//! directory was when it was last synced. From that and from what is there now it makes a folder as a
//! power loss may leave it: of every file each sector is the old or the new one, and so is each name.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

/// What a disk writes whole or not at all.
const SECTOR: usize = 512;

static WATCHED: Mutex<Vec<Arc<Watch>>> = Mutex::new(Vec::new());

/// What happens to the calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// All are let through.
    Through,
    /// The call with this number fails, the others do not.
    Fail(usize),
    /// The process is dead when it comes to the call with this number.
    Die(usize),
}

/// A watched folder. Dropping [`Watching`] ends it.
struct Watch {
    root: PathBuf,
    inner: Mutex<Inner>,
}

struct Inner {
    fate: Fate,
    calls: usize,
    files: HashMap<u64, Durable>,
    directories: HashMap<u64, BTreeMap<OsString, u64>>,
}

/// A file when it was last synced. The handle keeps its number from being given to another.
struct Durable {
    file: File,
    bytes: Vec<u8>,
}

pub(crate) struct Watching(Arc<Watch>);

impl Watching {
    /// Watches `root`; all that is there counts as durable.
    pub(crate) fn begin(root: &Path, fate: Fate) -> Self {
        let root = fs::canonicalize(root).unwrap();
        let inner = Inner {
            fate,
            calls: 0,
            files: HashMap::new(),
            directories: HashMap::new(),
        };
        let watch = Arc::new(Watch {
            root: root.clone(),
            inner: Mutex::new(inner),
        });
        watch.inner.lock().take_in(&root);
        WATCHED.lock().push(Arc::clone(&watch));
        Self(watch)
    }

    /// How many calls there were.
    pub(crate) fn calls(&self) -> usize {
        self.0.inner.lock().calls
    }

    /// What happens from now on; calls are counted anew.
    pub(crate) fn set(&self, fate: Fate) {
        let mut inner = self.0.inner.lock();
        (inner.fate, inner.calls) = (fate, 0);
    }

    /// Makes `to` what a power loss may leave. `pick` says which of two is on the disk: true for the
    /// new one.
    pub(crate) fn lose_power(&self, to: &Path, pick: &mut dyn FnMut() -> bool) {
        let root = fs::metadata(&self.0.root).unwrap().ino();
        let inner = self.0.inner.lock();
        inner.leave(Some(&self.0.root), root, to, pick);
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        WATCHED.lock().retain(|it| !Arc::ptr_eq(it, &self.0));
    }
}

impl Inner {
    fn take_in(&mut self, directory: &Path) {
        self.keep_names(directory);
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                self.take_in(&path);
            } else {
                self.keep_bytes(File::open(path).unwrap());
            }
        }
    }

    fn keep_bytes(&mut self, file: File) {
        let bytes = read(&file);
        let number = file.metadata().unwrap().ino();
        self.files.insert(number, Durable { file, bytes });
    }

    fn keep_names(&mut self, directory: &Path) {
        let number = fs::metadata(directory).unwrap().ino();
        self.directories.insert(number, names(directory));
    }

    /// `now`: where the directory with this number is, if it is.
    fn leave(&self, now: Option<&Path>, number: u64, to: &Path, pick: &mut dyn FnMut() -> bool) {
        fs::create_dir_all(to).unwrap();
        let none = BTreeMap::new();
        let old = self.directories.get(&number).unwrap_or(&none);
        let new = now.map(names).unwrap_or_default();
        let all: BTreeSet<_> = old.keys().chain(new.keys()).collect();
        for name in all {
            let (old, new) = (old.get(name), new.get(name));
            let Some(number) = (if old == new || pick() { new } else { old }) else {
                continue;
            };
            let here = now.filter(|_| Some(number) == new).map(|it| it.join(name));
            let to = to.join(name);
            if here.as_ref().is_some_and(|it| it.is_dir()) || self.directories.contains_key(number)
            {
                self.leave(here.as_deref(), *number, &to, pick);
            } else {
                fs::write(to, self.content(here.as_deref(), *number, pick)).unwrap();
            }
        }
    }

    fn content(&self, here: Option<&Path>, number: u64, pick: &mut dyn FnMut() -> bool) -> Vec<u8> {
        let durable = self.files.get(&number);
        let new = match (durable, here) {
            (Some(durable), _) => read(&durable.file),
            (None, Some(path)) => fs::read(path).unwrap(),
            (None, None) => Vec::new(),
        };
        let old = durable.map_or(&[][..], |it| &it.bytes);
        let len = if pick() { new.len() } else { old.len() };
        let mut bytes = vec![0; len];
        for (place, sector) in bytes.chunks_mut(SECTOR).enumerate() {
            let from = if pick() { &new[..] } else { old };
            let from = from.get(place * SECTOR..).unwrap_or_default();
            let there = from.len().min(sector.len());
            sector[..there].copy_from_slice(&from[..there]);
        }
        bytes
    }
}

fn names(directory: &Path) -> BTreeMap<OsString, u64> {
    let entries = fs::read_dir(directory).unwrap().map(Result::unwrap);
    entries
        .map(|entry| (entry.file_name(), entry.metadata().unwrap().ino()))
        .collect()
}

fn read(file: &File) -> Vec<u8> {
    let len = usize::try_from(file.metadata().unwrap().len()).unwrap();
    let mut bytes = vec![0; len];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

/// Comes before each call; fails if it is not to be made.
pub(super) fn before(path: &Path) -> io::Result<()> {
    let watched = WATCHED.lock();
    let Some(watch) = watched.iter().find(|it| path.starts_with(&it.root)) else {
        return Ok(());
    };
    let mut inner = watch.inner.lock();
    let call = inner.calls;
    inner.calls += 1;
    let refused = match inner.fate {
        Fate::Through => false,
        Fate::Fail(at) => call == at,
        Fate::Die(at) => call >= at,
    };
    if refused {
        return Err(io::Error::other(format!("call {call} was not made")));
    }
    Ok(())
}

pub(super) fn synced(path: &Path) {
    for watch in WATCHED.lock().iter() {
        if path.starts_with(&watch.root) {
            watch.inner.lock().keep_bytes(File::open(path).unwrap());
        }
    }
}

pub(super) fn synced_directory(path: &Path) {
    for watch in WATCHED.lock().iter() {
        if path.starts_with(&watch.root) {
            watch.inner.lock().keep_names(path);
        }
    }
}
