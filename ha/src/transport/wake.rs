//! Waking a loop that sleeps in the kernel, at the cost of a system call only if it does.
//!
//! Invariant: a wake is never lost. Either the loop sees it before it sleeps, or the waker sees
//! the loop asleep and writes to the eventfd.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::task::Wake;

use rustix::event::{EventfdFlags, eventfd};

const AWAKE: u8 = 0;
const ASLEEP: u8 = 1;
const WOKEN: u8 = 2;

/// The loop's side and the waker's side in one; turned into a [`std::task::Waker`].
pub(super) struct EventFdWake {
    state: AtomicU8,
    writes: AtomicU64,
    fd: OwnedFd,
}

impl EventFdWake {
    /// For a loop that polls the eventfd and then calls [`Self::drain`].
    pub(super) fn new() -> io::Result<Self> {
        Self::with_flags(EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
    }

    /// For a loop that has a read of the eventfd in a ring; such a read would fail at once on a
    /// nonblocking descriptor.
    pub(super) fn for_ring() -> io::Result<Self> {
        Self::with_flags(EventfdFlags::CLOEXEC)
    }

    fn with_flags(flags: EventfdFlags) -> io::Result<Self> {
        let fd = eventfd(0, flags)?;
        Ok(Self {
            state: AtomicU8::new(AWAKE),
            writes: AtomicU64::new(0),
            fd,
        })
    }

    /// Called by the loop before it sleeps; false: somebody woke it already, so do not sleep.
    pub(super) fn may_sleep(&self) -> bool {
        // Release and acquire on both sides: what the waker did before the wake is seen by the
        // loop after it.
        let entered =
            self.state
                .compare_exchange(AWAKE, ASLEEP, Ordering::AcqRel, Ordering::Acquire);
        entered.is_ok()
    }

    /// Called by the loop after it slept or was told not to. Whether it was woken.
    pub(super) fn awake(&self) -> bool {
        self.state.swap(AWAKE, Ordering::AcqRel) == WOKEN
    }

    /// Takes what was written, so that the next sleep is not cut short. A write that is still
    /// under way cuts it short once, which is harmless.
    pub(super) fn drain(&self) {
        let mut count = [0; 8];
        // Not readable or interrupted: nothing to take, or taken at the next wake.
        let _ = rustix::io::read(&self.fd, &mut count);
    }

    /// How many wakes cost a system call.
    pub(super) fn writes(&self) -> u64 {
        self.writes.load(Ordering::Relaxed)
    }

    fn write(&self) {
        self.writes.fetch_add(1, Ordering::Relaxed);
        // Any count but 0 will do, so its byte order does not matter.
        // The counter being full (EAGAIN) means that the loop is being woken already.
        // Any count but 0 will do, so its byte order does not matter.
        while rustix::io::write(&self.fd, &1u64.to_le_bytes()) == Err(rustix::io::Errno::INTR) {}
    }
}

impl AsFd for EventFdWake {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Wake for EventFdWake {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.state.swap(WOKEN, Ordering::AcqRel) == ASLEEP {
            self.write();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    #[test]
    fn a_wake_before_the_sleep_costs_no_write_and_is_seen_once() {
        let wake = Arc::new(EventFdWake::new().unwrap());
        let waker = Waker::from(Arc::clone(&wake));
        waker.wake_by_ref();
        waker.wake_by_ref();
        assert!(!wake.may_sleep());
        assert!(wake.awake());
        assert!(wake.may_sleep());
        assert!(!wake.awake());
        assert_eq!(wake.writes(), 0);
    }

    #[test]
    fn a_sleeping_loop_is_woken_by_one_write() {
        let wake = Arc::new(EventFdWake::new().unwrap());
        let waker = Waker::from(Arc::clone(&wake));
        assert!(wake.may_sleep());
        waker.wake_by_ref();
        waker.wake_by_ref();
        assert_eq!(wake.writes(), 1);
        let mut count = [0; 8];
        assert_eq!(rustix::io::read(wake.as_fd(), &mut count), Ok(8));
        assert!(wake.awake());
    }
}
