//! What the endpoint, the scan and the notifier of one controller share: the ledger, the heartbeat
//! table, and the settings that may change while it runs.
//!
//! Invariants: every answer comes from apply or from behind a read barrier of the leader; every
//! proposal carries the liveness facts known when it was made; locks are never held across an
//! await.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::command::{Answer, Code, Command, ElectMaster, GroupView, Reports};
use crate::config::ControllerConfig;
use crate::error::{AppendError, ReadError};
use crate::ledger::{Ledger, LedgerMetadata, PendingAppend};
use crate::liveness::{Heartbeat, HeartbeatError, Liveness, Seen};
use crate::machine::ControllerMachine;
use crate::notify::Notifier;
use crate::state_machine::ControllerState;

/// A broker that asks for an election before its first heartbeat was handled is waited for.
const HEARTBEAT_WAIT: Duration = Duration::from_millis(500);

/// Settings a request may change.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LiveSettings {
    pub(crate) enable_elect_unclean_master: bool,
    pub(crate) notify_broker_role_changed: bool,
    pub(crate) scan_not_active_broker_interval_ms: u64,
    pub(crate) scan_inactive_master_interval_ms: u64,
}

/// Why a request was not decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) code: Code,
    pub(crate) remark: String,
}

impl Refusal {
    pub(crate) fn new(code: Code, remark: impl Into<String>) -> Self {
        Self {
            code,
            remark: remark.into(),
        }
    }
}

/// See the module.
pub(crate) struct Decider {
    pub(crate) config: ControllerConfig,
    pub(crate) ledger: Ledger<ControllerMachine>,
    pub(crate) settings: Mutex<LiveSettings>,
    pub(crate) notifier: Notifier,
    liveness: Mutex<Liveness>,
    /// Something happened that the scan should look at now.
    pub(crate) look: Notify,
    /// A heartbeat came.
    heard: Notify,
    started: Instant,
}

impl Decider {
    pub(crate) fn new(config: ControllerConfig, ledger: Ledger<ControllerMachine>) -> Self {
        let settings = LiveSettings {
            enable_elect_unclean_master: config.enable_elect_unclean_master,
            notify_broker_role_changed: config.notify_broker_role_changed,
            scan_not_active_broker_interval_ms: config.scan_not_active_broker_interval_ms,
            scan_inactive_master_interval_ms: config.scan_inactive_master_interval_ms,
        };
        let pause_ms = (4 * config.scan_not_active_broker_interval_ms).max(2_000);
        let liveness = Liveness::new(config.grace_ms, pause_ms);
        Self {
            config,
            ledger,
            settings: Mutex::new(settings),
            notifier: Notifier::new(),
            liveness: Mutex::new(liveness),
            look: Notify::new(),
            heard: Notify::new(),
            started: Instant::now(),
        }
    }

    /// Milliseconds since this controller started.
    pub(crate) fn now_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    pub(crate) fn metadata(&self) -> LedgerMetadata {
        self.ledger.metadata()
    }

    pub(crate) fn is_leader(&self) -> bool {
        self.ledger.watch().borrow().is_ready
    }

    /// Address of the leader, where it is known.
    pub(crate) fn leader_address(&self) -> Option<String> {
        let metadata = self.metadata();
        let leader = metadata.leader?;
        let configured = self.config.peers.members().get(&leader);
        let member = configured.or_else(|| metadata.members.get(&leader))?;
        Some(member.address.clone())
    }

    fn not_leader(&self) -> Refusal {
        Refusal::new(Code::NotLeader, self.leader_address().unwrap_or_default())
    }

    /// Looks at the heartbeat table.
    pub(crate) fn liveness<R>(&self, look: impl FnOnce(&mut Liveness, u64) -> R) -> R {
        // The time is taken under the lock, so that the table sees it go forward.
        let mut liveness = self.liveness.lock();
        let now = self.now_ms();
        look(&mut liveness, now)
    }

    /// Looks at the replicated state as it is now.
    pub(crate) fn state<R>(&self, look: impl FnOnce(&ControllerState) -> R) -> R {
        self.ledger.read(|machine| look(&machine.state))
    }

    pub(crate) fn heartbeat(&self, beat: Heartbeat) -> Result<(), HeartbeatError> {
        let returns = self.liveness(|liveness, now| {
            let before = match liveness.seen(now, &beat.cluster, &beat.broker, beat.id) {
                Seen::Alive(known) => Some(known.report.incarnation),
                Seen::Dead | Seen::Never => None,
            };
            let returns = before != Some(beat.report.incarnation);
            liveness.heartbeat(now, beat).map(|()| returns)
        })?;
        self.heard.notify_waiters();
        if returns {
            // A broker that came back may be the one an election waits for.
            self.look.notify_one();
        }
        Ok(())
    }

    pub(crate) fn disconnected(&self, connection: u64) {
        if self.liveness(|liveness, _| liveness.closed(connection)) {
            self.look.notify_one();
        }
    }

    /// The live brokers of a set and what they reported.
    pub(crate) fn reports(&self, broker: &str) -> Reports {
        let cluster = self.state(|state| state.group(broker).map(|group| group.cluster.clone()));
        match cluster {
            Some(cluster) => self.liveness(|liveness, now| liveness.reports(now, &cluster, broker)),
            None => Reports::new(),
        }
    }

    /// The live brokers of a set.
    pub(crate) fn alive(&self, broker: &str) -> BTreeSet<u64> {
        self.reports(broker).into_keys().collect()
    }

    /// Begins to replicate a command.
    pub(crate) fn begin(&self, command: &Command) -> Result<PendingAppend<Answer>, Refusal> {
        if !self.is_leader() {
            return Err(self.not_leader());
        }
        let payload = command
            .encode()
            .map_err(|error| Refusal::new(Code::SystemError, error.to_string()))?;
        self.ledger
            .start_append(payload)
            .map_err(|error| self.append_refusal(&error))
    }

    /// Waits for what a command came to.
    pub(crate) async fn end(&self, pending: PendingAppend<Answer>) -> Result<Answer, Refusal> {
        match pending.await {
            Ok(appended) => Ok(appended.answer),
            Err(error) => Err(self.append_refusal(&error)),
        }
    }

    pub(crate) async fn propose(&self, command: &Command) -> Result<Answer, Refusal> {
        let pending = self.begin(command)?;
        self.end(pending).await
    }

    fn append_refusal(&self, error: &AppendError) -> Refusal {
        match error {
            // All commands may be sent again: the next leader finds what this one may have done.
            AppendError::NotLeader { .. } | AppendError::LostLeadership | AppendError::Replaced => {
                self.not_leader()
            }
            AppendError::Full => Refusal::new(Code::SystemBusy, error.to_string()),
            _ => Refusal::new(Code::SystemError, error.to_string()),
        }
    }

    /// Makes sure that what is read next is no older than now.
    pub(crate) async fn barrier(&self) -> Result<(), Refusal> {
        self.ledger
            .read_barrier()
            .await
            .map_err(|error| match error {
                ReadError::NotLeader { .. } => self.not_leader(),
                ReadError::Full => Refusal::new(Code::SystemBusy, error.to_string()),
                ReadError::Timeout | ReadError::Stopped => {
                    Refusal::new(Code::SystemError, error.to_string())
                }
            })
    }

    /// Elects, and tells the brokers when there is a new master.
    pub(crate) async fn elect(
        self: &Arc<Self>,
        broker: &str,
        broker_id: Option<u64>,
        designate: bool,
    ) -> Result<Answer, Refusal> {
        if let Some(id) = broker_id {
            self.wait_for_heartbeat(broker, id).await;
        }
        if !designate {
            self.wait_for_history(broker)?;
        }
        let command = self.election(broker, broker_id, designate, None);
        let answer = self.propose(&command).await?;
        self.elected(&answer);
        Ok(answer)
    }

    /// The command for an election with all that is known now.
    pub(crate) fn election(
        &self,
        broker: &str,
        broker_id: Option<u64>,
        designate: bool,
        expected_master_epoch: Option<u32>,
    ) -> Command {
        Command::ElectMaster(ElectMaster {
            broker: broker.to_owned(),
            broker_id,
            designate,
            allow_unclean: self.settings.lock().enable_elect_unclean_master,
            expected_master_epoch,
            alive: self.reports(broker),
        })
    }

    /// To be called with the answer to every election.
    pub(crate) fn elected(self: &Arc<Self>, answer: &Answer) {
        let Some(GroupView {
            cluster,
            broker,
            master: Some(master),
            master_epoch,
            ..
        }) = answer.group.as_ref().filter(|_| answer.changed)
        else {
            return;
        };
        tracing::info!(
            %cluster, %broker, master = master.id, address = %master.address, epoch = master_epoch,
            "a master was elected"
        );
        if self.settings.lock().notify_broker_role_changed {
            self.notifier.start(self, broker, *master_epoch);
        }
    }

    /// A set that never had a master here, but whose brokers report epochs: the controllers lost
    /// their data. Whoever asks first need not be who holds most, so the others get the time to be
    /// heard of.
    fn wait_for_history(&self, broker: &str) -> Result<(), Refusal> {
        let is_first = self.state(|state| {
            state
                .group(broker)
                .is_some_and(|group| group.master_epoch == 0)
        });
        let has_history = || self.reports(broker).values().any(|report| report.epoch > 0);
        let is_early = || !self.liveness(|liveness, now| liveness.grace_is_over(now));
        if is_first && has_history() && is_early() {
            return Err(Refusal::new(
                Code::ElectMasterFailed,
                format!(
                    "the brokers of set {broker} report epochs that were never decided here: asking                      again is granted when all had {} ms to be heard of",
                    self.config.grace_ms
                ),
            ));
        }
        Ok(())
    }

    /// A broker's heartbeat and its request for an election may be handled in either order.
    async fn wait_for_heartbeat(&self, broker: &str, id: u64) {
        let deadline = tokio::time::Instant::now() + HEARTBEAT_WAIT;
        loop {
            let heard = self.heard.notified();
            let is_registered = self.state(|state| {
                state
                    .group(broker)
                    .is_some_and(|g| g.replicas.contains_key(&id))
            });
            if !is_registered || self.alive(broker).contains(&id) {
                return;
            }
            if tokio::time::timeout_at(deadline, heard).await.is_err() {
                return;
            }
        }
    }
}
