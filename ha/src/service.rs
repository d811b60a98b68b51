//! The service that keeps one node's log replicated: roles, writes, and the loops that feed the
//! pure parts.
//!
//! Threads: one drives the master's fan-out over all slaves, one the slave's connection to its
//! master, one syncs when a write waits for the disk. Role changes come from outside, one by one.
//!
//! Order of a role change. To master: the slave's connection is over and what it left is erased;
//! the promise and the epoch's entry are durable; only then is there a term, are handshakes
//! answered and writes taken. From master: writes are refused; the term ends, so that nothing is
//! acknowledged any more and what waits ends as unknown; the promise is durable; every connection is reset and
//! over; only then is another master followed.

mod clock;
mod completion;
mod config;
mod fanout;
mod flusher;
mod follower;
mod mailbox;
mod metrics;
mod outcome;
mod pending;
mod roles;
mod runtime_info;
mod term;
mod write;

pub use config::HaConfig;
pub use metrics::HaMetrics;
pub use outcome::{AckRequest, Outcome, Refused};
pub use pending::PendingWrite;
pub use roles::RoleOutcome;
pub use runtime_info::{ClientInfo, ConnectionInfo, HaRuntimeInfo, JoinInfo, RoleInfo};

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use epochlog_engine::Store;
use parking_lot::Mutex;

use crate::acks::UnknownReason;
use crate::error::Error;
use crate::sync_state::SyncStateSet;
use crate::transport::{TransportKind, TransportStats};
use clock::now_ms;
use fanout::{Fanout, MasterTransport};
use flusher::Flusher;
use follower::{Follower, SlaveTransport};
use mailbox::Mailbox;
use metrics::Metrics;
use pending::Slots;
use term::Terms;

/// A loop looks at its clock at least so often.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

const MASTER_THREAD: &str = "epochlog-master";
const SLAVE_THREAD: &str = "epochlog-slave";
const FLUSH_THREAD: &str = "epochlog-flush";

/// What the service and its threads share.
struct Core {
    store: Arc<Store>,
    config: HaConfig,
    terms: Terms,
    writes: Arc<Slots>,
    fanout: Mailbox<fanout::Order>,
    follower: Mailbox<follower::Order>,
    flusher: Flusher,
    role: Mutex<RoleInfo>,
    metrics: Metrics,
    shut_down: AtomicBool,
    /// Why the first of the threads ended before it was told to.
    stopped: OnceLock<String>,
}

/// Replicates one store: as master to any number of slaves, as slave from its master.
///
/// Dropping it shuts it down. The store stays open; it is the caller's.
pub struct HaService {
    core: Arc<Core>,
    listen_addr: SocketAddr,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl HaService {
    /// Starts the service, fenced: it listens, and waits to be told its role.
    ///
    /// # Errors
    /// [`Error::Setting`], [`Error::Listen`], [`Error::Transport`], [`Error::Thread`].
    pub fn start(store: Arc<Store>, config: HaConfig) -> Result<Self, Error> {
        config.check()?;
        let fanout: MasterTransport = config.transport.open(config.transport_config.clone())?;
        // Where the ring is refused once it is refused twice: one warning is enough.
        let slave_kind = match (config.transport, config.slave_transport, fanout.name()) {
            (TransportKind::Auto, TransportKind::Auto, "std") => TransportKind::Std,
            (_, kind, _) => kind,
        };
        let follower: SlaveTransport = slave_kind.open(config.transport_config.clone())?;
        Self::start_on(store, config, fanout, follower)
    }

    fn start_on(
        store: Arc<Store>,
        config: HaConfig,
        mut fanout: MasterTransport,
        follower: SlaveTransport,
    ) -> Result<Self, Error> {
        let addr = config.listen;
        let listen_addr = fanout
            .listen(addr)
            .map_err(|source| Error::Listen { addr, source })?;
        let core = Arc::new(Core {
            terms: Terms::new(config.min_in_sync_replicas, config.max_waiting_writes),
            writes: Arc::default(),
            fanout: Mailbox::new(MASTER_THREAD, fanout.waker()),
            follower: Mailbox::new(SLAVE_THREAD, follower.waker()),
            flusher: Flusher::default(),
            role: Mutex::new(RoleInfo::Fenced),
            metrics: Metrics::default(),
            shut_down: AtomicBool::new(false),
            stopped: OnceLock::new(),
            store,
            config,
        });
        // The listener outlives the service: it must not keep it.
        let weak = Arc::downgrade(&core);
        core.store.on_growth(Arc::new(move || {
            if let Some(core) = weak.upgrade()
                && core.terms.serves()
            {
                core.fanout.wake();
            }
        }));
        let service = Self {
            core: Arc::clone(&core),
            listen_addr,
            threads: Mutex::default(),
        };
        let master = Fanout::new(Arc::clone(&core), fanout);
        service.spawn(MASTER_THREAD, move || master.run())?;
        let slave = Follower::new(Arc::clone(&core), follower);
        service.spawn(SLAVE_THREAD, move || slave.run())?;
        service.spawn(FLUSH_THREAD, move || flusher::run(&core))?;
        let broker_id = service.core.config.broker_id;
        tracing::info!(%listen_addr, broker_id, "replication is up");
        Ok(service)
    }

    fn spawn(&self, name: &'static str, body: impl FnOnce() + Send + 'static) -> Result<(), Error> {
        let core = Arc::clone(&self.core);
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                // Runs also when the body panics.
                let _ends = Ends { core, name };
                body();
            });
        let thread = thread.map_err(|source| Error::Thread { name, source })?;
        self.threads.lock().push(thread);
        Ok(())
    }

    /// Whether every thread of replication runs: false after [`HaService::shutdown`], and after a
    /// failure of the transport or of a thread. Then nothing is written or acknowledged any more,
    /// and the process is to be started again; [`HaService::stopped_because`] says why.
    pub fn is_running(&self) -> bool {
        self.stopped_because().is_none()
    }

    /// Why replication has stopped; none while it runs.
    pub fn stopped_because(&self) -> Option<String> {
        if let Some(why) = self.core.stopped.get() {
            return Some(why.clone());
        }
        let shut_down = self.core.shut_down.load(Ordering::SeqCst);
        shut_down.then(|| "the replication service is shut down".to_owned())
    }

    /// The store being replicated.
    pub fn store(&self) -> &Arc<Store> {
        &self.core.store
    }

    /// Where slaves connect.
    pub fn listen_addr(&self) -> SocketAddr {
        self.listen_addr
    }

    /// Milliseconds of the clock that [`HaService::set_authority`] means. It goes on while the
    /// machine sleeps.
    pub fn now_ms() -> u64 {
        now_ms()
    }

    /// Until when this master may acknowledge, in ms of [`HaService::now_ms`]; none: no lease is in
    /// use. Without authority writes are refused and acks are held back until it returns, the
    /// write's time is over, or the role ends.
    pub fn set_authority(&self, until_ms: Option<u64>) {
        self.core.terms.set_authority(until_ms);
        self.core.fanout.wake();
    }

    /// Until when this master may acknowledge, in ms of [`HaService::now_ms`]; none: no lease is in
    /// use.
    pub fn authority_until_ms(&self) -> Option<u64> {
        Some(self.core.terms.authority_until_ms()).filter(|until| *until != u64::MAX)
    }

    /// Refuses writes from now on, for a hand-over, or no longer; what waits goes on. A role change
    /// ends it.
    pub fn pause_writes(&self, paused: bool) {
        self.core.terms.pause_writes(paused);
    }

    /// Whether the replica `id`, a member of the SyncStateSet, has all of the log, and nothing
    /// waits or is being written. To be asked while writes are paused.
    pub fn is_level(&self, id: u64) -> bool {
        self.core.terms.is_level(id, &self.core.store)
    }

    /// In which life each replica is, as the controller knows it now: (id, incarnation). From the
    /// first call on a replica joins the SyncStateSet only when it is known in which life it was
    /// seen on its connection; see [`HaService::seen_lives`].
    pub fn set_lives(&self, lives: impl IntoIterator<Item = (u64, u64)>) {
        let lives = lives.into_iter().collect();
        self.core
            .terms
            .with(|term| term.sync.set_lives(lives, now_ms()));
    }

    /// The lives in which the members of a proposed set were seen on their present connections.
    pub fn seen_lives(&self, set: &SyncStateSet) -> Vec<(u64, u64)> {
        let seen = |id: &u64| Some((*id, self.core.terms.with(|term| term.sync.life(*id))??));
        set.members.iter().filter_map(seen).collect()
    }

    /// Whether a replica would join the SyncStateSet if its life were known: ask the controller.
    pub fn wants_lives(&self) -> bool {
        let wants = self.core.terms.with(|term| term.sync.wants_lives(now_ms()));
        wants.unwrap_or(false)
    }

    /// The set to ask the controller for, with the epoch of the committed set it is made from
    /// (RocketMQ: the body of alterSyncStateSet); none while there is nothing to change, or a
    /// proposal is open. Tell the answer with [`HaService::set_sync_state_set`],
    /// [`HaService::proposal_rejected`], [`HaService::proposal_met`] or
    /// [`HaService::proposal_failed`].
    pub fn next_proposal(&self) -> Option<SyncStateSet> {
        self.core
            .terms
            .with(|term| term.sync.next_proposal(now_ms()))
            .flatten()
    }

    /// Takes over the set the controller has committed; one of an equal or lower epoch changes
    /// nothing. Returns whether it was newer.
    pub fn set_sync_state_set(&self, set: SyncStateSet) -> bool {
        let newer = self.core.terms.with(|term| term.sync.commit(set, now_ms()));
        self.core.terms.settle(&self.core.store, now_ms());
        newer.unwrap_or(false)
    }

    /// No answer came to the proposal, or none that says what the set is: it may have been
    /// committed, and goes on counting until a newer set is known.
    pub fn proposal_failed(&self) {
        self.core
            .terms
            .with(|term| term.sync.proposal_unknown(now_ms()));
    }

    /// The controller's leader has just the members asked for in its set: they count until that set
    /// is told by [`HaService::set_sync_state_set`].
    pub fn proposal_met(&self) {
        self.core
            .terms
            .with(|term| term.sync.proposal_met(now_ms()));
        self.core.terms.settle(&self.core.store, now_ms());
    }

    /// The controller's leader rejected the proposal, and its set is still the one that the
    /// proposal was made from. Nothing else is a rejection: a refusal for an older epoch, or by one
    /// who does not lead, may come after the proposal itself was committed.
    pub fn proposal_rejected(&self) {
        self.core
            .terms
            .with(|term| term.sync.proposal_rejected(now_ms()));
        self.core.terms.settle(&self.core.store, now_ms());
    }

    /// A snapshot.
    pub fn runtime_info(&self) -> HaRuntimeInfo {
        let core = &self.core;
        let connections = core.fanout.ask(fanout::Order::Info);
        let (transport, connections, of_master) =
            connections.unwrap_or(("none", Vec::new(), TransportStats::default()));
        let client = core.follower.ask(follower::Order::Info);
        let (client, of_slave) = client.unwrap_or_default();
        HaRuntimeInfo {
            role: core.role_now(),
            master_commit_log_max_offset: core.store.end_offset(),
            confirm_offset: core.store.confirm_offset(),
            in_sync_slave_nums: connections.iter().filter(|it| it.in_sync).count(),
            sync_state_set: core.terms.with(|term| term.sync.committed().clone()),
            connections,
            client,
            transport,
            metrics: core.metrics.snapshot(of_master, of_slave),
        }
    }

    /// Ends everything: writes that wait end as unknown, connections are reset, what was received
    /// and not published is erased, the threads are joined. Calling it again does nothing.
    pub fn shutdown(&self) {
        let core = &self.core;
        if core.shut_down.swap(true, Ordering::SeqCst) {
            return;
        }
        // A role change under way ends first, and is undone; a later one is refused.
        let mut role = core.role.lock();
        *role = RoleInfo::Fenced;
        core.store.fence();
        core.terms.end(UnknownReason::ShutDown);
        core.fanout.post(fanout::Order::Stop);
        core.follower.post(follower::Order::End);
        core.flusher.end();
        for thread in self.threads.lock().drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread of the replication service panicked");
            }
        }
    }
}

impl Drop for HaService {
    fn drop(&mut self) {
        self.shutdown();
    }
}

impl Core {
    fn check_open(&self) -> Result<(), Error> {
        if self.shut_down.load(Ordering::SeqCst) {
            return Err(Error::ShutDown);
        }
        Ok(())
    }

    /// The role; a master whose log failed is none any more.
    fn role_now(&self) -> RoleInfo {
        match *self.role.lock() {
            RoleInfo::Master { .. } if !self.terms.serves() => RoleInfo::Fenced,
            role => role,
        }
    }

    /// The log takes no syncs any more: nothing is acknowledged from now on, and slaves look for
    /// another master. Waits for nobody, for it is also called where the log is written.
    fn log_failed(&self) {
        self.store.fence();
        self.terms.end(UnknownReason::LogFailed);
        let (done, _) = crossbeam::channel::bounded(1);
        self.fanout.post(fanout::Order::Reset(done));
    }

    /// A thread has ended by itself: what it did is not done any more, so nothing is promised.
    fn lost_thread(&self, name: &'static str, why: &str) {
        // The first reason is the one to tell.
        let _ = self.stopped.set(format!(
            "thread {name} has ended ({why}); restart this broker"
        ));
        self.store.fence();
        self.terms.end(UnknownReason::ShutDown);
    }
}

/// Tells that a thread has ended, however it did.
struct Ends {
    core: Arc<Core>,
    name: &'static str,
}

impl Drop for Ends {
    fn drop(&mut self) {
        let core = &self.core;
        if !core.shut_down.load(Ordering::SeqCst) {
            tracing::error!(
                thread = self.name,
                "a thread of replication has ended; this node is fenced"
            );
            core.lost_thread(self.name, "it panicked");
        }
        match self.name {
            MASTER_THREAD => core.fanout.close(),
            SLAVE_THREAD => core.follower.close(),
            _ => (),
        }
    }
}

#[cfg(test)]
mod tests;
