//! The thread of a ledger: events and ticks in, frames and outcomes out.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::{oneshot, watch};

use super::{AppendReply, LedgerMetadata, MemberProgress, Role, StateMachine, Transport};
use crate::error::{AppendError, Error, ReadError};
use crate::node::{Node, Outgoing, TransferReply};
use crate::raft_codec::{MemberChange, PeerMessage};

/// Events taken before the node turns.
const GATHER_COUNT: usize = 1024;

/// What the thread is told.
pub(super) enum Event<A> {
    Peer(PeerMessage),
    /// Where a term is given: only while this member leads in it.
    Append(Bytes, Option<u64>, AppendReply<A>),
    Batch(Vec<(Bytes, AppendReply<A>)>),
    Read(oneshot::Sender<Result<(), ReadError>>),
    Members(MemberChange, oneshot::Sender<Result<u64, AppendError>>),
    Transfer(u64, TransferReply),
    Prefer(BTreeSet<u64>),
    Progress(oneshot::Sender<Option<BTreeMap<u64, MemberProgress>>>),
    Wake,
}

/// Tells the ledger what became of a snapshot it sent; dropped = it was not delivered.
#[derive(Debug)]
pub struct SnapshotReceipt {
    to: u64,
    delivered: bool,
    reports: Arc<Mutex<Vec<(u64, bool)>>>,
}

impl SnapshotReceipt {
    /// The peer has it.
    pub fn delivered(mut self) {
        self.delivered = true;
    }
}

impl Drop for SnapshotReceipt {
    fn drop(&mut self) {
        self.reports.lock().push((self.to, self.delivered));
    }
}

/// The thread: it owns the node and the clock.
pub(super) struct Run<M: StateMachine, T> {
    pub(super) node: Node<M>,
    pub(super) queue: Receiver<Event<M::Answer>>,
    pub(super) transport: T,
    pub(super) status: watch::Sender<LedgerMetadata>,
    pub(super) reports: Arc<Mutex<Vec<(u64, bool)>>>,
    pub(super) stop: Arc<AtomicBool>,
    pub(super) tick: Duration,
}

impl<M: StateMachine, T: Transport> Run<M, T> {
    pub(super) fn guarded(mut self) {
        let ended = catch_unwind(AssertUnwindSafe(|| self.run()));
        let failure = match ended {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error.to_string()),
            Err(panic) => Some(panic_text(panic.as_ref())),
        };
        if let Some(why) = &failure {
            tracing::error!(%why, "the ledger stopped");
        }
        self.status.send_modify(|metadata| {
            metadata.role = Role::Follower;
            metadata.is_ready = false;
            metadata.leader = None;
            metadata.failure = failure;
        });
    }

    fn run(&mut self) -> Result<(), Error> {
        let mut next_tick = Instant::now() + self.tick;
        loop {
            let wait = if self.node.has_more() {
                Duration::ZERO
            } else {
                next_tick.saturating_duration_since(Instant::now())
            };
            match self.queue.recv_timeout(wait) {
                Ok(event) => self.handle(event),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            for _ in 0..GATHER_COUNT {
                let Ok(event) = self.queue.try_recv() else {
                    break;
                };
                self.handle(event);
            }
            if self.stop.load(Ordering::Acquire) {
                break;
            }
            let now = Instant::now();
            if now >= next_tick {
                self.node.tick();
                // After a pause of this process no ticks are made up for: nobody was heard.
                next_tick = (next_tick + self.tick).max(now);
            }
            self.turn()?;
        }
        self.turn()?;
        self.node.flush()
    }

    fn handle(&mut self, event: Event<M::Answer>) {
        match event {
            Event::Peer(message) => self.node.step(message),
            Event::Append(payload, term, reply) => self.node.append_in(term, &payload, reply),
            Event::Read(reply) => self.node.read_barrier(reply),
            Event::Members(change, reply) => self.node.change_members(&change, reply),
            Event::Batch(batch) => self.node.append_batch(batch),
            Event::Transfer(to, reply) => self.node.transfer_leader(to, reply),
            Event::Prefer(ids) => self.node.set_preferred(ids),
            // Who stopped waiting needs no answer.
            Event::Progress(reply) => drop(reply.send(self.node.progress())),
            Event::Wake => {}
        }
    }

    fn turn(&mut self) -> Result<(), Error> {
        let reports = std::mem::take(&mut *self.reports.lock());
        for (id, is_sent) in reports {
            self.node.report_snapshot(id, is_sent);
        }
        if let Some(members) = self.node.changed_members() {
            self.transport.members(&members);
        }
        let mut unreachable = Vec::new();
        let Self {
            node,
            transport,
            reports,
            ..
        } = self;
        node.turn(&mut |out: Outgoing| {
            let receipt = out.is_snapshot.then(|| SnapshotReceipt {
                to: out.to,
                delivered: false,
                reports: Arc::clone(reports),
            });
            if !transport.send(out.to, out.frame, receipt) {
                unreachable.push(out.to);
            }
        })?;
        for id in unreachable {
            node.report_unreachable(id);
        }
        let metadata = node.metadata();
        self.status.send_if_modified(|known| {
            let is_news = !known.is_like(&metadata);
            *known = metadata;
            is_news
        });
        Ok(())
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    panic
        .downcast_ref::<String>()
        .cloned()
        .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
        .unwrap_or_else(|| "a panic without text".to_owned())
}
