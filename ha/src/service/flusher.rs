//! Group commit: one thread that syncs when somebody waits for the disk.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::Core;
use super::clock::now_ms;
use super::follower;

#[derive(Default)]
struct Wanted {
    flush: bool,
    end: bool,
}

/// Asks for a sync; many requests share one.
#[derive(Default)]
pub(super) struct Flusher {
    wanted: Mutex<Wanted>,
    wake: Condvar,
}

impl Flusher {
    /// Everything written so far is to be on disk soon.
    pub(super) fn request(&self) {
        let mut wanted = self.wanted.lock();
        if !wanted.flush {
            wanted.flush = true;
            self.wake.notify_one();
        }
    }

    pub(super) fn end(&self) {
        self.wanted.lock().end = true;
        self.wake.notify_one();
    }

    /// Returns false at the end.
    fn wait(&self) -> bool {
        let mut wanted = self.wanted.lock();
        while !wanted.flush && !wanted.end {
            self.wake.wait_for(&mut wanted, Duration::from_secs(60));
        }
        wanted.flush = false;
        !wanted.end
    }
}

/// The body of the thread.
pub(super) fn run(core: &Arc<Core>) {
    while core.flusher.wait() {
        match core.store.flush() {
            Ok(_) => {
                core.terms.settle(&core.store, now_ms());
                core.follower.post(follower::Order::Flushed);
            }
            Err(error) => {
                tracing::error!(%error, "the log cannot be synced; this node steps down");
                core.log_failed();
            }
        }
    }
}
