//! Shuttle's locks with parking_lot's interface, as far as the engine uses it.
//!
//! No wait times out: time does not pass for shuttle. A wake-up that is lost is a deadlock then, and found.

use std::ops::{Deref, DerefMut};
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use shuttle::sync::{self, RwLockReadGuard, RwLockWriteGuard};

#[derive(Default)]
pub(crate) struct Mutex<T>(sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        let held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        MutexGuard { held: Some(held) }
    }

    #[expect(
        clippy::unnecessary_wraps,
        reason = "parking_lot's interface, and time does not pass"
    )]
    pub(crate) fn try_lock_until(&self, _deadline: Instant) -> Option<MutexGuard<'_, T>> {
        Some(self.lock())
    }
}

/// Shuttle changes threads at every lock anyway.
pub(crate) fn lock_in_runs<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock()
}

/// Holds nothing only while it waits for a condition.
pub(crate) struct MutexGuard<'a, T> {
    held: Option<sync::MutexGuard<'a, T>>,
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.held.as_ref().expect("held outside of its calls")
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.held.as_mut().expect("held outside of its calls")
    }
}

#[derive(Default)]
pub(crate) struct Condvar(sync::Condvar);

pub(crate) struct WaitTimeoutResult;

impl WaitTimeoutResult {
    #[expect(clippy::unused_self, reason = "parking_lot's interface")]
    pub(crate) fn timed_out(&self) -> bool {
        false
    }
}

impl Condvar {
    pub(crate) const fn new() -> Self {
        Self(sync::Condvar::new())
    }

    pub(crate) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        let held = guard.held.take().expect("held outside of its calls");
        let held = self.0.wait(held).unwrap_or_else(PoisonError::into_inner);
        guard.held = Some(held);
    }

    pub(crate) fn wait_for<T>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        _at_most: Duration,
    ) -> WaitTimeoutResult {
        self.wait(guard);
        WaitTimeoutResult
    }

    pub(crate) fn wait_until<T>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        _deadline: Instant,
    ) -> WaitTimeoutResult {
        self.wait(guard);
        WaitTimeoutResult
    }

    pub(crate) fn notify_one(&self) {
        self.0.notify_one();
    }

    pub(crate) fn notify_all(&self) {
        self.0.notify_all();
    }
}

/// As its namesake, of a lock and a condition.
pub(crate) struct Moves {
    count: Mutex<u32>,
    moved: Condvar,
}

impl Moves {
    pub(crate) const fn new() -> Self {
        Self {
            count: Mutex::new(0),
            moved: Condvar::new(),
        }
    }

    pub(crate) fn count(&self) -> u32 {
        *self.count.lock()
    }

    pub(crate) fn announce(&self) {
        *self.count.lock() += 1;
        self.moved.notify_all();
    }

    pub(crate) fn wait(&self, seen: u32, _deadline: Instant) -> bool {
        let mut count = self.count.lock();
        while *count == seen {
            self.moved.wait(&mut count);
        }
        false
    }
}

#[derive(Default)]
pub(crate) struct RwLock<T>(sync::RwLock<T>);

impl<T> RwLock<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(sync::RwLock::new(value))
    }

    pub(crate) fn read(&self) -> RwLockReadGuard<'_, T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}
