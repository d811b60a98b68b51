//! Telling others that the log has grown: waiters with a deadline, and listeners.
//!
//! Whoever publishes pays two plain loads when nobody listens. Nobody is missed, because waiters and
//! listeners register under the lock under which the end is moved: a publisher that was there first has
//! stored its end before they look, and one that comes later sees them. That saves the publisher a fence
//! between its store and its look. Waking runs outside that lock.

use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::sync::{Condvar, Mutex, RwLock};

use crate::position::Offset;

/// Called after the published end has moved.
pub(crate) type Listener = Arc<dyn Fn() + Send + Sync>;

#[derive(Default)]
pub(crate) struct Growth {
    waiting: AtomicUsize,
    gate: Mutex<()>,
    moved: Condvar,
    listening: AtomicBool,
    listeners: RwLock<Vec<Listener>>,
}

impl Growth {
    /// Called with the publishers' lock.
    pub(crate) fn listen(&self, listener: Listener) {
        self.listeners.write().push(listener);
        self.listening.store(true, Ordering::Relaxed);
    }

    /// Wakes everybody. Called when the new end is stored and the publishers' lock given back.
    #[inline]
    pub(crate) fn announce(&self) {
        let waiting = self.waiting.load(Ordering::Relaxed) > 0;
        if waiting || self.listening.load(Ordering::Relaxed) {
            self.wake(waiting);
        }
    }

    #[cold]
    fn wake(&self, waiting: bool) {
        if waiting {
            // Taken and given back: a waiter has either seen the new end or waits by now.
            drop(self.gate.lock());
            self.moved.notify_all();
        }
        // None is missed who came before the publishers' lock was taken; the others look for themselves.
        for listener in self.listeners.read().iter() {
            listener();
        }
    }

    /// Waits until `end` says more than `past`, or until the time is over; answers what it says then.
    /// `publishers` is the lock under which the end is moved.
    pub(crate) fn wait<T>(
        &self,
        past: Offset,
        timeout: Duration,
        publishers: &Mutex<T>,
        end: impl Fn() -> Offset,
    ) -> Offset {
        let seen = end();
        if seen > past {
            return seen;
        }
        let deadline = deadline(timeout);
        // It may be held for as long as a disk takes.
        let Some(publishing) = publishers.try_lock_until(deadline) else {
            return end();
        };
        self.waiting.fetch_add(1, Ordering::Relaxed);
        drop(publishing);
        let mut gate = self.gate.lock();
        while end() <= past && !self.moved.wait_until(&mut gate, deadline).timed_out() {}
        drop(gate);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        end()
    }
}

/// The moment `timeout` from now; a year from now when it is longer than that.
pub(crate) fn deadline(timeout: Duration) -> Instant {
    const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);
    Instant::now() + timeout.min(LONGEST)
}
