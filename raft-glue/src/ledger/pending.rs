//! Appends under way: what the caller waits by, and what the thread answers by.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::sync::oneshot;

use super::counters::Room;
use crate::error::AppendError;

/// The outcome of an append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended<A> {
    /// Its place in the log.
    pub index: u64,
    /// What the state machine answered.
    pub answer: A,
}

type Outcome<A> = Result<Appended<A>, AppendError>;

/// Where the outcome of an append goes. Who stopped waiting needs none.
#[derive(Debug)]
pub(crate) struct AppendReply<A> {
    sender: oneshot::Sender<Outcome<A>>,
    room: Option<Room>,
}

impl<A> AppendReply<A> {
    pub(crate) fn new(room: Option<Room>) -> (Self, PendingAppend<A>) {
        let (sender, outcome) = oneshot::channel();
        (Self { sender, room }, PendingAppend(outcome))
    }

    /// Who learns of the outcome finds the room free.
    pub(crate) fn end(self, outcome: Outcome<A>) {
        drop(self.room);
        let _ = self.sender.send(outcome);
    }
}

/// An append under way: a future of its outcome. Dropping it does not take the append back.
#[derive(Debug)]
pub struct PendingAppend<A>(oneshot::Receiver<Outcome<A>>);

impl<A> Future for PendingAppend<A> {
    type Output = Outcome<A>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0)
            .poll(context)
            .map(|outcome| outcome.unwrap_or(Err(AppendError::Stopped)))
    }
}

impl<A> PendingAppend<A> {
    /// Waits on a thread that runs no futures.
    ///
    /// # Errors
    /// See [`AppendError`].
    pub fn wait(self) -> Result<Appended<A>, AppendError> {
        self.0.blocking_recv().unwrap_or(Err(AppendError::Stopped))
    }

    /// The outcome, if there is one; `None` while the append is under way.
    pub fn try_take(&mut self) -> Option<Result<Appended<A>, AppendError>> {
        match self.0.try_recv() {
            Ok(outcome) => Some(outcome),
            Err(oneshot::error::TryRecvError::Empty) => None,
            Err(oneshot::error::TryRecvError::Closed) => Some(Err(AppendError::Stopped)),
        }
    }
}

/// A batch of appends under way: a future of all their outcomes. Dropping it takes nothing back.
#[derive(Debug)]
pub struct PendingBatch<A> {
    pending: std::vec::IntoIter<PendingAppend<A>>,
    current: Option<PendingAppend<A>>,
    done: Vec<Appended<A>>,
}

impl<A> PendingBatch<A> {
    pub(super) fn new(pending: Vec<PendingAppend<A>>) -> Self {
        Self {
            done: Vec::with_capacity(pending.len()),
            pending: pending.into_iter(),
            current: None,
        }
    }

    /// Waits on a thread that runs no futures.
    ///
    /// # Errors
    /// That of the first append without success; see [`AppendError`].
    pub fn wait(self) -> Result<Vec<Appended<A>>, AppendError> {
        self.pending.map(PendingAppend::wait).collect()
    }
}

impl<A: Unpin> Future for PendingBatch<A> {
    type Output = Result<Vec<Appended<A>>, AppendError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            let this = &mut *self;
            if this.current.is_none() {
                this.current = this.pending.next();
            }
            let Some(current) = &mut this.current else {
                return Poll::Ready(Ok(std::mem::take(&mut this.done)));
            };
            match Pin::new(current).poll(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Err(why)) => return Poll::Ready(Err(why)),
                Poll::Ready(Ok(appended)) => {
                    this.done.push(appended);
                    this.current = None;
                }
            }
        }
    }
}
