//! A term as master: its SyncStateSet, the writes that wait, the authority to acknowledge.
//!
//! There is a term exactly while this node durably is master. Its lock is short: appends take it
//! before and after they write, the replication thread at each ack. Completions run outside it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use epochlog_engine::{Epoch, Offset, Store};
use parking_lot::Mutex;

use super::completion::{Pool, Token, complete};
use super::outcome::{AckRequest, Refused};
use crate::acks::{AckPolicy, Durability, Ended, UnknownReason, Waiter, Waiters};
use crate::sync_state::SyncState;

pub(super) struct Term {
    pub(super) epoch: Epoch,
    pub(super) sync: SyncState,
    waiters: Waiters<Token>,
    /// Which uninterrupted time as master this is; epochs may follow each other within one.
    reign: u64,
    /// Writes that are allowed and not placed yet.
    writing: usize,
    /// Writes are refused: a hand-over is under way.
    paused: bool,
}

impl Term {
    pub(super) fn new(epoch: Epoch, sync: SyncState) -> Self {
        Self {
            epoch,
            sync,
            waiters: Waiters::new(),
            reign: 0,
            writing: 0,
            paused: false,
        }
    }
}

/// What the lock holds.
#[derive(Default)]
struct Guarded {
    term: Option<Term>,
    /// Outlives the terms.
    pool: Pool,
}

/// The term, if there is one, and what may be done in it.
pub(super) struct Terms {
    guarded: Mutex<Guarded>,
    reigns: AtomicU64,
    /// Whether there is a term; read without the lock at every growth of the log.
    serves: AtomicBool,
    min_in_sync: usize,
    max_waiting: usize,
    /// Authority ends then; `u64::MAX` when no lease is in use.
    authority_until_ms: AtomicU64,
    /// When the replication thread will look at deadlines next.
    planned_look_ms: AtomicU64,
}

/// What the replication thread is to do for a write just made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Placed {
    /// It is complete: the token was given back.
    Complete,
    /// It waits.
    Waits {
        /// For the disk: a flush is to be asked for.
        flush: bool,
        /// Its deadline comes before the replication thread would look.
        wake: bool,
    },
}

impl Terms {
    pub(super) fn new(min_in_sync: usize, max_waiting: usize) -> Self {
        Self {
            guarded: Mutex::default(),
            reigns: AtomicU64::new(0),
            serves: AtomicBool::new(false),
            min_in_sync,
            max_waiting,
            authority_until_ms: AtomicU64::new(u64::MAX),
            planned_look_ms: AtomicU64::new(u64::MAX),
        }
    }

    /// Until when acks may be given; none: no lease is in use.
    pub(super) fn set_authority(&self, until_ms: Option<u64>) {
        self.authority_until_ms
            .store(until_ms.unwrap_or(u64::MAX), Ordering::SeqCst);
    }

    fn has_authority(&self, now_ms: u64) -> bool {
        now_ms < self.authority_until_ms()
    }

    /// As set; `u64::MAX` without a lease.
    pub(super) fn authority_until_ms(&self) -> u64 {
        self.authority_until_ms.load(Ordering::SeqCst)
    }

    /// Works on the term, if there is one.
    pub(super) fn with<R>(&self, work: impl FnOnce(&mut Term) -> R) -> Option<R> {
        self.guarded.lock().term.as_mut().map(work)
    }

    /// The epoch being served.
    pub(super) fn serving(&self) -> Option<Epoch> {
        self.with(|term| term.epoch)
    }

    /// Begins a term; the role is durable. An older one goes on in it, with its waiting writes.
    pub(super) fn begin(&self, mut term: Term) {
        let slot = &mut self.guarded.lock().term;
        match slot.take() {
            Some(older) => {
                term.waiters = older.waiters;
                term.reign = older.reign;
                term.writing = older.writing;
            }
            None => term.reign = self.reigns.fetch_add(1, Ordering::SeqCst),
        }
        *slot = Some(term);
        self.serves.store(true, Ordering::SeqCst);
    }

    /// Whether this node is master.
    pub(super) fn serves(&self) -> bool {
        self.serves.load(Ordering::SeqCst)
    }

    /// Ends the term; its writes end as unknown. Returns how many.
    pub(super) fn end(&self, reason: UnknownReason) -> usize {
        let mut guard = self.guarded.lock();
        self.serves.store(false, Ordering::SeqCst);
        let Some(mut term) = guard.term.take() else {
            return 0;
        };
        let mut ends = guard.pool.list();
        drop(guard);
        let waiters = &mut term.waiters;
        waiters.end_all(|token| ends.push((token, Ended::Unknown(reason))));
        complete(&mut ends);
        let count = ends.len();
        self.guarded.lock().pool.give_back(ends);
        count
    }

    /// Whether a write may be made now. Returns the reign it belongs to.
    pub(super) fn may_write(&self, now_ms: u64) -> Result<u64, Refused> {
        let mut guard = self.guarded.lock();
        let Some(term) = guard.term.as_mut() else {
            return Err(Refused::NotMaster);
        };
        if term.paused {
            return Err(Refused::HandingOver);
        }
        if !self.has_authority(now_ms) {
            return Err(Refused::NoAuthority);
        }
        let (have, need) = (term.sync.committed().members.len(), self.min_in_sync);
        if have < need {
            return Err(Refused::NotEnoughInSync { have, need });
        }
        let waiting = term.waiters.len();
        if waiting >= self.max_waiting {
            return Err(Refused::Overloaded { waiting });
        }
        term.writing += 1;
        Ok(term.reign)
    }

    /// A write that was allowed in `reign` was not made.
    pub(super) fn not_written(&self, reign: u64) {
        self.with(|term| {
            if term.reign == reign {
                term.writing = term.writing.saturating_sub(1);
            }
        });
    }

    /// Refuses writes from now on, or no more. A new term begins without.
    pub(super) fn pause_writes(&self, paused: bool) {
        self.with(|term| term.paused = paused);
    }

    /// Whether no write is under way, none waits, and this member of the set has acked up to the
    /// end of the log.
    pub(super) fn is_level(&self, id: u64, store: &Store) -> bool {
        self.with(|term| {
            let acked = term
                .sync
                .replicas()
                .get(&id)
                .and_then(|replica| replica.ack);
            term.writing == 0
                && term.waiters.is_empty()
                && term.sync.committed().members.contains(&id)
                && acked.is_some_and(|ack| ack >= store.end_offset())
        })
        .unwrap_or(false)
    }

    /// A write up to `end` was allowed in `reign` and is made: it is complete, and `done` is given
    /// back, or it waits from now on. If another reign has begun meanwhile, nothing is known of it.
    pub(super) fn place<F: FnOnce(Ended) + Send + 'static>(
        &self,
        reign: u64,
        end: Offset,
        ack: AckRequest,
        now_ms: u64,
        store: &Store,
        done: F,
    ) -> (Placed, Option<(F, Ended)>) {
        let Guarded { term, pool } = &mut *self.guarded.lock();
        let Some(term) = term.as_mut().filter(|term| term.reign == reign) else {
            let ended = Ended::Unknown(UnknownReason::RoleChanged);
            return (Placed::Complete, Some((done, ended)));
        };
        term.writing = term.writing.saturating_sub(1);
        raise_confirm(store, term, self.has_authority(now_ms));
        let on_disk = ack.durability == Durability::Memory || store.flushed_offset() >= end;
        if on_disk
            && self.may_ack(term, now_ms)
            && term.sync.acked_in(ack.policy, ack.durability) >= end
        {
            (Placed::Complete, Some((done, Ended::Acked)))
        } else {
            let timeout_ms = u64::try_from(ack.timeout.as_millis()).unwrap_or(u64::MAX);
            let deadline_ms = now_ms.saturating_add(timeout_ms);
            let AckRequest {
                policy, durability, ..
            } = ack;
            term.waiters.push(Waiter {
                end,
                policy,
                durability,
                deadline_ms,
                token: pool.token(done),
            });
            let wake = deadline_ms < self.planned_look_ms.load(Ordering::SeqCst);
            (
                Placed::Waits {
                    flush: !on_disk,
                    wake,
                },
                None,
            )
        }
    }

    fn may_ack(&self, term: &Term, now_ms: u64) -> bool {
        self.has_authority(now_ms) && term.sync.committed().members.len() >= self.min_in_sync
    }

    /// Completes what is complete, gives up what is overdue, raises the confirm offset. Any thread
    /// may call it; returns when the next deadline is.
    pub(super) fn settle(&self, store: &Store, now_ms: u64) -> u64 {
        let mut guard = self.guarded.lock();
        let Guarded { term, pool } = &mut *guard;
        let Some(term) = term.as_mut() else {
            return u64::MAX;
        };
        let mut ends = pool.list();
        raise_confirm(store, term, self.has_authority(now_ms));
        let may_ack = self.may_ack(term, now_ms);
        let Term { sync, waiters, .. } = term;
        let acked_by = |policy: AckPolicy, durability| sync.acked_in(policy, durability);
        if may_ack {
            waiters.release(acked_by, store.flushed_offset(), |token| {
                ends.push((token, Ended::Acked));
            });
        }
        waiters.expire(now_ms, acked_by, |token, reason| {
            ends.push((token, Ended::Unknown(reason)));
        });
        let next = waiters.next_deadline_ms();
        if ends.is_empty() {
            pool.give_back(ends);
            return next;
        }
        drop(guard);
        complete(&mut ends);
        self.guarded.lock().pool.give_back(ends);
        next
    }

    /// As [`Terms::settle`], by the replication thread, which will look again at `look_ms` or at
    /// the next deadline, whichever is earlier; returns that.
    pub(super) fn settle_and_plan(&self, store: &Store, now_ms: u64, look_ms: u64) -> u64 {
        self.settle(store, now_ms);
        let guard = self.guarded.lock();
        let next = guard
            .term
            .as_ref()
            .map_or(u64::MAX, |term| term.waiters.next_deadline_ms());
        let planned = next.min(look_ms);
        // Under the lock: whoever places a write later sees the plan.
        self.planned_look_ms.store(planned, Ordering::SeqCst);
        planned
    }
}

/// Raises the store's confirm offset as far as the set has acked. Under the lock of the term: a
/// role change, and so a truncation, comes after it or not at all.
fn raise_confirm(store: &Store, term: &mut Term, authority: bool) {
    let confirm = term.sync.advance_confirm(store.end_offset(), authority);
    if confirm > store.confirm_offset() {
        store.set_confirm(confirm);
    }
}
