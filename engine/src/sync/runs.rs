//! A lock that is held for less time than it takes to hand it to another core.
//!
//! What such a lock guards lies in the cache of the core that had it last. When cores take turns, each pays
//! for fetching it, and a thread that sleeps for its turn pays for waking up besides. So whoever finds the
//! lock taken stays away for some microseconds, in which the other core takes it many times in a row.

use super::{Mutex, MutexGuard};

/// Pauses of the processor between two looks: about 25 µs, or two hundred appends of 1 KiB.
const PAUSES: u32 = 1024;

/// Looks before the thread goes to sleep: whoever has the lock then may be waiting for a disk.
const LOOKS: u32 = 8;

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
    for _ in 0..LOOKS {
        for _ in 0..PAUSES {
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
