//! Role changes: idempotent, durable, one at a time.

use std::net::SocketAddr;

use epochlog_engine::{Epoch, EpochEntry};

use super::clock::now_ms;
use super::fanout;
use super::follower::{self, Target};
use super::term::Term;
use super::{Core, HaService, RoleInfo};
use crate::acks::UnknownReason;
use crate::error::Error;
use crate::sync_state::{SyncState, SyncStateSet};

/// What a role change did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoleOutcome {
    /// The epoch of the role.
    pub epoch: Epoch,
    /// As master: the epoch's entry, durable.
    pub entry: Option<EpochEntry>,
    /// Whether anything changed; false when this was the role already.
    pub changed: bool,
    /// Writes that waited for acks and ended as unknown.
    pub unknown_writes: usize,
}

impl HaService {
    /// Makes this node the master of `epoch`, with the SyncStateSet the controller decided. On
    /// return the promise and the epoch's entry are durable, no byte of another master can arrive
    /// any more, and writes are taken.
    ///
    /// A master that is master again in a newer epoch keeps its connections and its waiting writes.
    ///
    /// # Errors
    /// [`Error::StaleEpoch`] if a newer epoch was told before: nothing has changed.
    /// [`Error::Store`] with [`epochlog_engine::Error::NeedsNewerEpoch`] if this epoch was served
    /// before a stop after which the log cannot be proven: the node is fenced until a newer one is decided.
    pub fn become_master(&self, epoch: Epoch, set: SyncStateSet) -> Result<RoleOutcome, Error> {
        let core = &*self.core;
        let mut role = core.role.lock();
        core.check_open()?;
        core.check_not_stale(epoch)?;
        let store = &core.store;
        let is_master = matches!(*role, RoleInfo::Master { .. }) && core.terms.serving().is_some();
        if *role == (RoleInfo::Master { epoch }) && is_master {
            core.terms.with(|term| term.sync.commit(set, now_ms()));
            core.terms.settle(store, now_ms());
            let entry = store.epochs().find(epoch);
            return Ok(RoleOutcome {
                epoch,
                entry,
                changed: false,
                unknown_writes: 0,
            });
        }
        if !is_master {
            *role = RoleInfo::Fenced;
            core.follower.ask(follower::Order::Stop)?;
            core.fanout.ask(fanout::Order::Reset)?;
        }
        let served_before = store.promises().served_epoch == Some(epoch);
        let last = store.epochs().last();
        let entry = match store.promote(epoch) {
            Ok(entry) => entry,
            Err(error) => {
                *role = RoleInfo::Fenced;
                core.step_down(UnknownReason::RoleChanged)?;
                return Err(error.into());
            }
        };
        let repeated_start = last.is_some_and(|last| last != entry && last.start == entry.start);
        if is_master && repeated_start {
            // A slave whose list ends in the older of two equal starts must shake hands anew.
            core.fanout.ask(fanout::Order::Reset)?;
        }
        core.begin_term(epoch, entry, set, served_before);
        *role = RoleInfo::Master { epoch };
        core.terms.settle(store, now_ms());
        core.fanout.wake();
        tracing::info!(epoch, start = entry.start, "this node is master");
        Ok(RoleOutcome {
            epoch,
            entry: Some(entry),
            changed: true,
            unknown_writes: 0,
        })
    }

    /// Makes this node follow the master of `epoch` at `master_addr`, its HA address. On return the
    /// promise is durable, nothing is written or acknowledged any more, and every connection of an
    /// older role is over. The log stays as it is until the handshake decides what of it is cut.
    ///
    /// # Errors
    /// [`Error::StaleEpoch`] if a newer epoch was told before, [`Error::OwnMaster`]: nothing has
    /// changed. [`Error::Store`]: the node is fenced.
    pub fn become_slave(
        &self,
        epoch: Epoch,
        master_id: u64,
        master_addr: SocketAddr,
    ) -> Result<RoleOutcome, Error> {
        let core = &*self.core;
        let mut role = core.role.lock();
        core.check_open()?;
        core.check_not_stale(epoch)?;
        if master_id == core.config.broker_id {
            return Err(Error::OwnMaster {
                broker_id: master_id,
            });
        }
        let wanted = RoleInfo::Slave {
            epoch,
            master_id,
            master_addr,
        };
        if *role == wanted {
            return Ok(RoleOutcome {
                epoch,
                entry: None,
                changed: false,
                unknown_writes: 0,
            });
        }
        *role = RoleInfo::Fenced;
        let unknown_writes = core.stop_acks(UnknownReason::RoleChanged);
        core.store.demote(epoch)?;
        core.fanout.ask(fanout::Order::Reset)?;
        let target = Target { epoch, master_addr };
        core.follower
            .ask(|done| follower::Order::Follow(target, done))?;
        *role = wanted;
        tracing::info!(epoch, master_id, %master_addr, unknown_writes, "this node is slave");
        Ok(RoleOutcome {
            epoch,
            entry: None,
            changed: true,
            unknown_writes,
        })
    }

    /// Ends the role as master, if it is one: writes are refused, what waits ends as unknown, every
    /// connection of a slave is over. A slave goes on following. Returns how many writes waited.
    ///
    /// # Errors
    /// [`Error::ThreadGone`]: nothing is acknowledged all the same.
    pub fn fence(&self) -> Result<usize, Error> {
        let core = &*self.core;
        let mut role = core.role.lock();
        core.check_open()?;
        if !matches!(*role, RoleInfo::Master { .. }) {
            return Ok(0);
        }
        *role = RoleInfo::Fenced;
        tracing::warn!("this node is fenced");
        core.step_down(UnknownReason::RoleChanged)
    }
}

impl Core {
    fn check_not_stale(&self, epoch: Epoch) -> Result<(), Error> {
        match self.store.promises().max_epoch {
            Some(told) if epoch < told => Err(Error::StaleEpoch { asked: epoch, told }),
            _ => Ok(()),
        }
    }

    /// Refuses writes, then ends the term: after that nothing is acknowledged.
    fn stop_acks(&self, reason: UnknownReason) -> usize {
        self.store.fence();
        self.terms.end(reason)
    }

    fn step_down(&self, reason: UnknownReason) -> Result<usize, Error> {
        let unknown = self.stop_acks(reason);
        self.fanout.ask(fanout::Order::Reset)?;
        Ok(unknown)
    }

    fn begin_term(&self, epoch: Epoch, entry: EpochEntry, set: SyncStateSet, served_before: bool) {
        let now = now_ms();
        let next = self
            .terms
            .with(|term| term.sync.next_term(set.clone(), entry.start, now));
        let sync = next.unwrap_or_else(|| {
            SyncState::new(
                self.config.broker_id,
                set,
                entry.start,
                self.store.confirm_offset(),
                served_before,
                self.config.limits(),
                now,
            )
        });
        self.terms.begin(Term::new(epoch, sync));
    }
}
