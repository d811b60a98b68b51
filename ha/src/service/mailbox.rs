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
    /// None once the thread has ended.
    orders: Mutex<Option<Vec<C>>>,
    waker: Waker,
}

impl<C> Mailbox<C> {
    pub(super) fn new(name: &'static str, waker: Waker) -> Self {
        Self {
            name,
            orders: Mutex::new(Some(Vec::new())),
            waker,
        }
    }

    /// Ends the thread's sleep; costs a system call only if it sleeps.
    pub(super) fn wake(&self) {
        self.waker.wake_by_ref();
    }

    pub(super) fn post(&self, order: C) {
        match &mut *self.orders.lock() {
            Some(orders) => orders.push(order),
            None => return,
        }
        self.wake();
    }

    /// Posts an order that carries the sender of its answer, and waits for the answer.
    pub(super) fn ask<A>(&self, order: impl FnOnce(Sender<A>) -> C) -> Result<A, Error> {
        let (tell, told): (Sender<A>, Receiver<A>) = bounded(1);
        self.post(order(tell));
        told.recv_timeout(PATIENCE)
            .map_err(|_| Error::ThreadGone { name: self.name })
    }

    /// The thread has ended: whoever waits for an answer, or will, is told so at once.
    pub(super) fn close(&self) {
        let orders = self.orders.lock().take();
        drop(orders);
    }

    /// Everything posted since the last call, in order.
    pub(super) fn take(&self) -> Vec<C> {
        self.orders
            .lock()
            .as_mut()
            .map(std::mem::take)
            .unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn an_order_to_a_thread_that_has_ended_is_answered_at_once() {
        let mailbox = Mailbox::new("some-thread", Waker::noop().clone());
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| mailbox.ask(|tell: Sender<()>| tell));
            while mailbox.orders.lock().as_ref().is_some_and(Vec::is_empty) {
                std::thread::yield_now();
            }
            let began = Instant::now();
            mailbox.close();
            let before = waiting.join().unwrap();
            let after = mailbox.ask(|tell: Sender<()>| tell);
            for gone in [before, after] {
                assert!(matches!(
                    gone,
                    Err(Error::ThreadGone {
                        name: "some-thread"
                    })
                ));
            }
            assert!(began.elapsed() < PATIENCE / 2);
            assert!(mailbox.take().is_empty());
        });
    }
}
