//! Many threads wait for something to move, and all of them go on at once.
//!
//! A condition variable hands its lock from one woken thread to the next, and each hand-over costs a wake-up of
//! its own: with 64 threads that is longer than a sync of a fast disk. Here whoever waits holds no lock, and one
//! call wakes all.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use rustix::io::Errno;
use rustix::thread::futex::{Flags, Timespec, wait, wake};

/// How often something has moved.
pub(crate) struct Moves(AtomicU32);

impl Moves {
    pub(crate) const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// To be asked before looking at what moves: [`Self::wait`] then misses nothing.
    pub(crate) fn count(&self) -> u32 {
        self.0.load(Ordering::SeqCst)
    }

    /// It has moved; whoever waits looks again.
    pub(crate) fn announce(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
        // Fails for a bad address only.
        let _ = wake(&self.0, Flags::PRIVATE, i32::MAX.cast_unsigned());
    }

    /// Waits until the count is no longer `seen`, or for the deadline; true if that has passed.
    pub(crate) fn wait(&self, seen: u32, deadline: Instant) -> bool {
        while self.count() == seen {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return true;
            }
            // Longer than the kernel's clock counts is for ever.
            let left = Timespec::try_from(left).ok();
            match wait(&self.0, Flags::PRIVATE, seen, left.as_ref()) {
                // It had moved already, or a signal came: looked at again above, as is the clock.
                Ok(()) | Err(Errno::AGAIN | Errno::INTR | Errno::TIMEDOUT) => {}
                // A kernel without futexes runs no Rust program; its turns are not wasted all the same.
                Err(_) => std::thread::yield_now(),
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread;
    use std::time::Duration;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn all_who_wait_go_on_and_what_moved_before_is_not_waited_for() {
        let moves = Arc::new(Moves::new());
        let seen = moves.count();
        let threads: Vec<_> = (0..16)
            .map(|_| {
                let moves = Arc::clone(&moves);
                thread::spawn(move || moves.wait(seen, Instant::now() + LONG))
            })
            .collect();
        thread::sleep(Duration::from_millis(20));
        moves.announce();
        for thread in threads {
            assert!(!thread.join().expect("no panic"), "woken, not timed out");
        }
        assert!(!moves.wait(seen, Instant::now()), "it has moved since");
    }

    #[test]
    fn a_wait_ends_at_its_deadline_and_not_before() {
        let moves = Moves::new();
        let began = Instant::now();
        let time = Duration::from_millis(30);
        assert!(moves.wait(moves.count(), began + time));
        assert!(began.elapsed() >= time);
        assert!(
            moves.wait(moves.count(), began),
            "a deadline that has passed"
        );
    }
}
