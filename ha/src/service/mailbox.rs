//! Orders to a replication thread: a queue and the wake that ends the thread's sleep.

use std::task::Waker;
use std::time::Duration;

use crossbeam::channel::{Receiver, Sender, bounded};
use parking_lot::Mutex;

use super::Error;

/// How long an order may take: resets and the erasure of an unpublished tail are short.
const PATIENCE: Duration = Duration::from_secs(30);

/// The queue of one thread.
pub(super) struct Mailbox<C> {
    name: &'static str,
    orders: Mutex<Vec<C>>,
    waker: Waker,
}

impl<C> Mailbox<C> {
    pub(super) fn new(name: &'static str, waker: Waker) -> Self {
        Self {
            name,
            orders: Mutex::new(Vec::new()),
            waker,
        }
    }

    /// Ends the thread's sleep; costs a system call only if it sleeps.
    pub(super) fn wake(&self) {
        self.waker.wake_by_ref();
    }

    pub(super) fn post(&self, order: C) {
        self.orders.lock().push(order);
        self.wake();
    }

    /// Posts an order that carries the sender of its answer, and waits for the answer.
    pub(super) fn ask<A>(&self, order: impl FnOnce(Sender<A>) -> C) -> Result<A, Error> {
        let (tell, told): (Sender<A>, Receiver<A>) = bounded(1);
        self.post(order(tell));
        told.recv_timeout(PATIENCE)
            .map_err(|_| Error::ThreadGone { name: self.name })
    }

    /// Everything posted since the last call, in order.
    pub(super) fn take(&self) -> Vec<C> {
        std::mem::take(&mut *self.orders.lock())
    }
}
