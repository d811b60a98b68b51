//! A lock that is held for less time than it takes to hand it to another core.
//!
//! What such a lock guards lies in the cache of the core that had it last. When cores take turns, each pays
//! for fetching it, and a thread that sleeps for its turn pays for waking up besides. So a thread that finds the
//! lock taken again and again stays away from it for some microseconds, in which the other core takes it many
//! times in a row. One that seldom finds it taken looks again at once.

use std::cell::Cell;
use std::time::{Duration, Instant};

use super::{Mutex, MutexGuard};

/// Pauses of the processor between two looks of a thread that met nobody for a while: the time of one append of
/// 1 KiB or two.
const FEWEST_PAUSES: u32 = 16;

/// The most: about 25 µs, or two hundred appends of 1 KiB.
const MOST_PAUSES: u32 = 1024;

/// A thread that meets others this soon again stays away longer than the last time.
const SOON: Duration = Duration::from_micros(200);

/// Looks before the thread goes to sleep: whoever has the lock then may be waiting for a disk.
const LOOKS: u32 = 8;

thread_local! {
    /// When this thread last got a lock that it had found taken, and how long it stayed away between looks.
    static MET: Cell<Option<(Instant, u32)>> = const { Cell::new(None) };
}

/// Locks `mutex`, and leaves it to others for a while if it is taken.
#[inline]
pub(crate) fn lock_in_runs<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    match mutex.try_lock() {
        Some(guard) => guard,
        None => stay_away(mutex),
    }
}

#[cold]
fn stay_away<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A thread that is ending met nobody.
    let met = MET.try_with(Cell::get).ok().flatten();
    let pauses = match met {
        Some((at, pauses)) if at.elapsed() < SOON => (pauses * 4).min(MOST_PAUSES),
        _ => FEWEST_PAUSES,
    };
    let guard = wait(mutex, pauses);
    let _ = MET.try_with(|met| met.set(Some((Instant::now(), pauses))));
    guard
}

fn wait<T>(mutex: &Mutex<T>, pauses: u32) -> MutexGuard<'_, T> {
    for _ in 0..LOOKS {
        for _ in 0..pauses {
            std::hint::spin_loop();
        }
        // A look first: an attempt would take the line from the core that works with it.
        if !mutex.is_locked()
            && let Some(guard) = mutex.try_lock()
        {
            return guard;
        }
    }
    mutex.lock()
}
