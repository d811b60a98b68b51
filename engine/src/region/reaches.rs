//! How far the living views of one file reach: kept exactly, and without allocating for a view.
//!
//! A view has a slot for as long as it lives; its parts and clones share it. Slots stand in chunks that
//! neither move nor go while the file is known, so a clone counts itself in without a lock. A chunk is made
//! when more views live at a time than ever before, and each is twice as large as the one before.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::Mutex as StaticMutex;

use crate::sync::Mutex;
use crate::sync::atomic::{AtomicUsize, Ordering};

/// Slots of the first chunk.
const FIRST_CHUNK: u32 = 4;

/// As many as a slot's number can say; memory ends long before.
const CHUNKS: usize = 29;

/// One view with all that was made of it.
struct Slot {
    /// None of them reads at or behind this byte.
    reach: AtomicUsize,
    /// How many of them live; 0 if the slot is free, or is being given back.
    views: AtomicUsize,
}

/// How far the living views of one file reach.
pub(super) struct Reaches {
    /// Device and inode.
    file: Option<(u64, u64)>,
    chunks: [OnceLock<Box<[Slot]>>; CHUNKS],
    /// Who holds it makes views, or looks at all of them.
    free: Mutex<Free>,
}

/// The numbers of free slots. There is room for all that exist, so that none is allocated for when a view
/// goes.
#[derive(Default)]
pub(super) struct Free(Vec<u32>);

/// The files of this process that are mapped.
static MAPPED: StaticMutex<BTreeMap<(u64, u64), Weak<Reaches>>> = StaticMutex::new(BTreeMap::new());

impl Reaches {
    fn new(file: Option<(u64, u64)>) -> Self {
        Self {
            file,
            chunks: [const { OnceLock::new() }; CHUNKS],
            free: Mutex::new(Free::default()),
        }
    }

    pub(super) fn of_nothing_else() -> Arc<Self> {
        Arc::new(Self::new(None))
    }

    pub(super) fn of(file: &File) -> io::Result<Arc<Self>> {
        let metadata = file.metadata()?;
        // A mapping keeps its inode from being used again, so the number stands for one file.
        let id = (metadata.dev(), metadata.ino());
        let mut mapped = MAPPED.lock();
        if let Some(reaches) = mapped.get(&id).and_then(Weak::upgrade) {
            return Ok(reaches);
        }
        let reaches = Arc::new(Self::new(Some(id)));
        mapped.insert(id, Arc::downgrade(&reaches));
        Ok(reaches)
    }

    /// Runs `work` while no view is made and none is looked for.
    pub(super) fn locked<R>(&self, work: impl FnOnce(&mut Free) -> R) -> R {
        work(&mut self.free.lock())
    }

    /// A slot for a new view that ends at `reach`.
    pub(super) fn take(&self, free: &mut Free, reach: usize) -> u32 {
        let number = free.0.pop().unwrap_or_else(|| self.grow(free));
        // Seen by whoever has the lock next, or gets the view.
        let slot = self.slot(number);
        slot.reach.store(reach, Ordering::Relaxed);
        slot.views.store(1, Ordering::Relaxed);
        number
    }

    /// One more part or clone of a view that lives.
    pub(super) fn share(&self, number: u32) {
        self.slot(number).views.fetch_add(1, Ordering::Relaxed);
    }

    /// One of them is gone.
    pub(super) fn give_back(&self, number: u32) {
        // What was read through any of them was read before a look finds the slot free, or it is used again.
        if self.slot(number).views.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.locked(|free| free.0.push(number));
        }
    }

    /// A living view reads nothing at or behind `reach` any more; others of its slot may.
    pub(super) fn shorten(&self, number: u32, reach: usize) {
        let slot = self.slot(number);
        // It is the caller's alone then, and stays so: nobody else can make a clone.
        if slot.views.load(Ordering::Acquire) == 1 {
            slot.reach.store(reach, Ordering::Release);
        }
    }

    /// Whether a view lives that reaches past `end`.
    pub(super) fn past(&self, end: usize) -> bool {
        self.locked(|free| {
            let chunks = self.chunks.iter().map_while(OnceLock::get);
            let mut slots = chunks.flatten();
            free.0.len() < self.slots()
                && slots.any(|slot| {
                    slot.views.load(Ordering::Acquire) > 0
                        && slot.reach.load(Ordering::Acquire) > end
                })
        })
    }

    fn slots(&self) -> usize {
        self.chunks
            .iter()
            .map_while(OnceLock::get)
            .map(|chunk| chunk.len())
            .sum()
    }

    /// Chunk `n` holds the numbers from `FIRST_CHUNK * (2^n - 1)` on.
    fn slot(&self, number: u32) -> &Slot {
        let chunk = (number / FIRST_CHUNK + 1).ilog2();
        let first = FIRST_CHUNK * ((1 << chunk) - 1);
        let slots = self.chunks[chunk as usize].get();
        &slots.expect("a number is given out when its chunk is there")[(number - first) as usize]
    }

    /// Makes the next chunk when no slot is free, and takes a slot of it.
    fn grow(&self, free: &mut Free) -> u32 {
        let made = self
            .chunks
            .iter()
            .take_while(|it| it.get().is_some())
            .count();
        let first = FIRST_CHUNK * ((1 << made) - 1);
        let len = FIRST_CHUNK << made;
        self.chunks[made].get_or_init(|| (0..len).map(|_| Slot::free()).collect());
        free.0.reserve_exact((first + len) as usize);
        free.0.extend((first + 1..first + len).rev());
        first
    }
}

impl Slot {
    fn free() -> Self {
        Self {
            reach: AtomicUsize::new(0),
            views: AtomicUsize::new(0),
        }
    }
}

impl Drop for Reaches {
    fn drop(&mut self) {
        if let Some(id) = self.file {
            let mut mapped = MAPPED.lock();
            if mapped.get(&id).is_some_and(|it| it.strong_count() == 0) {
                mapped.remove(&id);
            }
        }
    }
}

/// Whether a view of `file`, of whatever mapping in this process, reaches past `end`.
pub(crate) fn is_held_past(file: &File, end: usize) -> io::Result<bool> {
    Ok(Reaches::of(file)?.past(end))
}
