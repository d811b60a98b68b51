//! Telling others that the log has grown: waiters with a deadline, and listeners.
//!
//! An appender pays one atomic load when nobody listens. Everything here runs outside the append lock.

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
    pub(crate) fn listen(&self, listener: Listener) {
        self.listeners.write().push(listener);
        self.listening.store(true, Ordering::SeqCst);
    }

    /// Wakes everybody. The new end must be visible before this is called.
    pub(crate) fn announce(&self) {
        if self.waiting.load(Ordering::SeqCst) > 0 {
            // Taken and given back: a waiter has either seen the new end or waits by now.
            drop(self.gate.lock());
            self.moved.notify_all();
        }
        if self.listening.load(Ordering::SeqCst) {
            for listener in self.listeners.read().iter() {
                listener();
            }
        }
    }

    /// Waits until `end` says more than `past`, or until the time is over; answers what it says then.
    pub(crate) fn wait(&self, past: Offset, timeout: Duration, end: impl Fn() -> Offset) -> Offset {
        let seen = end();
        if seen > past {
            return seen;
        }
        let deadline = deadline(timeout);
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let mut gate = self.gate.lock();
        while end() <= past && !self.moved.wait_until(&mut gate, deadline).timed_out() {}
        drop(gate);
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        end()
    }
}

/// The moment `timeout` from now; a year from now when it is longer than that.
pub(crate) fn deadline(timeout: Duration) -> Instant {
    const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);
    Instant::now() + timeout.min(LONGEST)
}
