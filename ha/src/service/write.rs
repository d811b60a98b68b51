//! Writes as master: into the log, then waiting for their acks. Nothing is allocated for one, beyond
//! what its caller's closure holds.

use epochlog_engine::{Appended, Message, Offset, Store};

use super::HaService;
use super::clock::now_ms;
use super::outcome::{AckRequest, Outcome, Refused};
use super::pending::PendingWrite;
use super::term::Placed;
use crate::acks::Ended;

/// A write that is in the log.
struct Put<A> {
    /// It was allowed in.
    reign: u64,
    appended: A,
    end: Offset,
}

impl HaService {
    /// Writes one message as master. `on_done` is told how it ended, exactly once, on this thread
    /// or on one of the service's: it must be short and change no role.
    pub fn append(
        &self,
        message: &Message<'_>,
        ack: AckRequest,
        on_done: impl FnOnce(Outcome) + Send + 'static,
    ) {
        self.write(ack, one(message), on_done);
    }

    /// Writes all of `messages` as one unit: consecutive records, published together. Otherwise as
    /// [`HaService::append`].
    pub fn append_batch(
        &self,
        messages: &[Message<'_>],
        ack: AckRequest,
        on_done: impl FnOnce(Outcome<Vec<Appended>>) + Send + 'static,
    ) {
        self.write(ack, all(messages), on_done);
    }

    /// As [`HaService::append`], for a caller that awaits the end, or waits for it later.
    pub fn submit(&self, message: &Message<'_>, ack: AckRequest) -> PendingWrite {
        self.start_write(ack, one(message))
    }

    /// As [`HaService::append_batch`], for a caller that awaits the end, or waits for it later.
    pub fn submit_batch(
        &self,
        messages: &[Message<'_>],
        ack: AckRequest,
    ) -> PendingWrite<Vec<Appended>> {
        self.start_write(ack, all(messages))
    }

    /// As [`HaService::append`], waiting for the end.
    pub fn append_and_wait(&self, message: &Message<'_>, ack: AckRequest) -> Outcome {
        self.submit(message, ack).wait()
    }

    fn write<A: Send + 'static>(
        &self,
        ack: AckRequest,
        append: impl FnOnce(&Store) -> Result<(A, Offset), epochlog_engine::Error>,
        on_done: impl FnOnce(Outcome<A>) + Send + 'static,
    ) {
        match self.put(append) {
            Ok(put) => self.place(put.reign, put.end, ack, move |ended| {
                on_done(Outcome::of(put.appended, ended));
            }),
            Err(refused) => on_done(Outcome::Refused(refused)),
        }
    }

    fn start_write<A>(
        &self,
        ack: AckRequest,
        append: impl FnOnce(&Store) -> Result<(A, Offset), epochlog_engine::Error>,
    ) -> PendingWrite<A> {
        match self.put(append) {
            Ok(put) => {
                let (pending, tell) = self.core.writes.pending(put.appended);
                self.place(put.reign, put.end, ack, |ended| tell.ended(ended));
                pending
            }
            Err(refused) => PendingWrite::over(Outcome::Refused(refused)),
        }
    }

    /// Writes to the log, if that is allowed now.
    fn put<A>(
        &self,
        append: impl FnOnce(&Store) -> Result<(A, Offset), epochlog_engine::Error>,
    ) -> Result<Put<A>, Refused> {
        let core = &*self.core;
        let reign = core.terms.may_write(now_ms())?;
        match append(&core.store) {
            Ok((appended, end)) => Ok(Put {
                reign,
                appended,
                end,
            }),
            Err(error) => {
                core.terms.not_written(reign);
                if matches!(error, epochlog_engine::Error::Failed { .. }) {
                    core.log_failed();
                }
                Err(Refused::Store(error))
            }
        }
    }

    /// A write up to `end` is made and waits for its acks, or has them.
    fn place(
        &self,
        reign: u64,
        end: Offset,
        ack: AckRequest,
        done: impl FnOnce(Ended) + Send + 'static,
    ) {
        let core = &*self.core;
        let (placed, over) = core
            .terms
            .place(reign, end, ack, now_ms(), &core.store, done);
        if let Placed::Waits { flush, wake } = placed {
            if flush {
                core.flusher.request();
            }
            if wake {
                core.fanout.wake();
            }
        }
        if let Some((done, ended)) = over {
            done(ended);
        }
    }
}

fn one(
    message: &Message<'_>,
) -> impl FnOnce(&Store) -> Result<(Appended, Offset), epochlog_engine::Error> {
    |store| {
        let appended = store.append(message)?;
        Ok((appended, appended.end))
    }
}

fn all(
    messages: &[Message<'_>],
) -> impl FnOnce(&Store) -> Result<(Vec<Appended>, Offset), epochlog_engine::Error> {
    |store| {
        let appended = store.append_batch(messages)?;
        let end = appended.last().map_or(0, |last| last.end);
        Ok((appended, end))
    }
}
