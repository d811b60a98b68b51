//! A write under way, for a caller that waits or awaits: a slot that is told how the write ended.
//!
//! Slots are used again; each use has a generation of its own, so that the end of a write nobody
//! waits for any more is never taken for that of a later one.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

use crossbeam::utils::Backoff;
use epochlog_engine::Appended;
use parking_lot::Mutex;

use super::outcome::Outcome;
use crate::acks::{Ended, UnknownReason};

/// One use of one slot.
#[derive(Clone, Copy, Debug)]
struct Key {
    index: usize,
    generation: u32,
}

#[derive(Debug)]
enum State {
    Free,
    /// Not ended; whoever is to be woken then.
    Waits(Option<Waker>),
    Ended(Ended),
}

#[derive(Debug)]
struct Slot {
    generation: u32,
    state: State,
}

#[derive(Debug, Default)]
struct Slab {
    slots: Vec<Slot>,
    free: Vec<usize>,
}

/// The slots of one service: as many as were ever in use at once.
#[derive(Debug, Default)]
pub(super) struct Slots {
    slab: Mutex<Slab>,
}

impl Slots {
    /// A slot for a write that is made and has not ended, and who tells it the end.
    pub(super) fn pending<A>(self: &Arc<Self>, appended: A) -> (PendingWrite<A>, Tell) {
        let slab = &mut *self.slab.lock();
        let index = slab.free.pop().unwrap_or_else(|| {
            slab.slots.push(Slot {
                generation: 0,
                state: State::Free,
            });
            slab.slots.len() - 1
        });
        let slot = &mut slab.slots[index];
        slot.state = State::Waits(None);
        let key = Key {
            index,
            generation: slot.generation,
        };
        let slots = Arc::clone(self);
        let tell = Tell {
            slots: Arc::clone(self),
            key: Some(key),
        };
        let waits = Waits {
            slots,
            key,
            appended,
        };
        (PendingWrite(Stage::Waits(waits)), tell)
    }

    fn end(&self, key: Key, ended: Ended) {
        let mut slab = self.slab.lock();
        let slot = &mut slab.slots[key.index];
        if slot.generation != key.generation {
            return;
        }
        let before = std::mem::replace(&mut slot.state, State::Ended(ended));
        drop(slab);
        if let State::Waits(Some(waker)) = before {
            waker.wake();
        }
    }

    /// How the write ended, if it has. Else `waker` is woken when it does.
    fn ended(&self, key: Key, waker: Option<&Waker>) -> Option<Ended> {
        let mut slab = self.slab.lock();
        match (&mut slab.slots[key.index].state, waker) {
            (State::Ended(ended), _) => return Some(*ended),
            (State::Waits(Some(known)), Some(waker)) => known.clone_from(waker),
            (State::Waits(nobody), Some(waker)) => *nobody = Some(waker.clone()),
            _ => (),
        }
        None
    }

    /// Nobody asks for it any more.
    fn free(&self, key: Key) {
        let slab = &mut *self.slab.lock();
        let slot = &mut slab.slots[key.index];
        slot.generation = slot.generation.wrapping_add(1);
        slot.state = State::Free;
        slab.free.push(key.index);
    }
}

/// Tells a slot how its write ended. Dropped without a word, the end is not known.
#[derive(Debug)]
pub(super) struct Tell {
    slots: Arc<Slots>,
    key: Option<Key>,
}

impl Tell {
    pub(super) fn ended(mut self, ended: Ended) {
        if let Some(key) = self.key.take() {
            self.slots.end(key, ended);
        }
    }
}

impl Drop for Tell {
    fn drop(&mut self) {
        if let Some(key) = self.key.take() {
            let ended = Ended::Unknown(UnknownReason::ShutDown);
            self.slots.end(key, ended);
        }
    }
}

#[derive(Debug)]
struct Waits<A> {
    slots: Arc<Slots>,
    key: Key,
    appended: A,
}

#[derive(Debug)]
enum Stage<A> {
    Waits(Waits<A>),
    Over(Outcome<A>),
    /// The outcome was given.
    Told,
}

/// A write that was asked for: wait for its outcome, or await it.
///
/// Dropping it takes nothing back. A message that is in the log stays there and is replicated; only
/// nobody is told any more.
#[derive(Debug)]
#[must_use = "whether the write was acknowledged is told here only"]
pub struct PendingWrite<A = Appended>(Stage<A>);

impl<A> PendingWrite<A> {
    pub(super) fn over(outcome: Outcome<A>) -> Self {
        Self(Stage::Over(outcome))
    }

    /// Waits for the outcome; it comes at the write's deadline at the latest.
    pub fn wait(mut self) -> Outcome<A> {
        // What ends soon is worth no sleep.
        let backoff = Backoff::new();
        while !backoff.is_completed() {
            if let Some(outcome) = self.outcome(None) {
                return outcome;
            }
            backoff.snooze();
        }
        let waker = UNPARK
            .try_with(Waker::clone)
            .unwrap_or_else(|_| unpark_this_thread());
        loop {
            if let Some(outcome) = self.outcome(Some(&waker)) {
                return outcome;
            }
            std::thread::park();
        }
    }

    /// The outcome, once.
    fn outcome(&mut self, waker: Option<&Waker>) -> Option<Outcome<A>> {
        let ended = match &self.0 {
            Stage::Waits(waits) => Some(waits.slots.ended(waits.key, waker)?),
            Stage::Over(_) | Stage::Told => None,
        };
        match (std::mem::replace(&mut self.0, Stage::Told), ended) {
            (Stage::Waits(waits), Some(ended)) => {
                waits.slots.free(waits.key);
                Some(Outcome::of(waits.appended, ended))
            }
            (Stage::Over(outcome), _) => Some(outcome),
            _ => None,
        }
    }
}

impl<A: Unpin> Future for PendingWrite<A> {
    type Output = Outcome<A>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome<A>> {
        match self.outcome(Some(context.waker())) {
            Some(outcome) => Poll::Ready(outcome),
            None => Poll::Pending,
        }
    }
}

impl<A> Drop for PendingWrite<A> {
    fn drop(&mut self) {
        if let Stage::Waits(waits) = &self.0 {
            waits.slots.free(waits.key);
        }
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.unpark();
    }
}

fn unpark_this_thread() -> Waker {
    Waker::from(Arc::new(Unpark(std::thread::current())))
}

thread_local! {
    static UNPARK: Waker = unpark_this_thread();
}

#[cfg(test)]
mod tests;
