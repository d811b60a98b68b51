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

use crate::command::{
    Answer, Code, Command, ConfirmMaster, ElectMaster, GroupView, Report, Reports,
};
use crate::config::ControllerConfig;
use crate::elect::Choice;
use crate::error::{AppendError, ReadError};
use crate::lease::LeaseRefusal;
use crate::ledger::{Ledger, LedgerMetadata, PendingAppend};
use crate::liveness::{Heartbeat, HeartbeatError, LeaseAsk, Liveness, NoLease, Seen};
use crate::machine::ControllerMachine;
use crate::notify::Notifier;
use crate::remoting::{HandOverRequest, RemotingCommand, request_code};
use crate::state_machine::ControllerState;

/// A broker that asks for an election before its first heartbeat was handled is waited for.
const HEARTBEAT_WAIT: Duration = Duration::from_millis(500);

/// How long a master may take to hand over: it waits for the new one to have everything.
const HAND_OVER_WAIT: Duration = Duration::from_millis(2_500);

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

/// While it lives, no master of this set is granted anything: an election is being decided, or its
/// outcome is not known.
pub(crate) struct ElectionMark {
    decider: Arc<Decider>,
    broker: String,
    /// The term this controller led in when it looked who holds a lease. What it decides is
    /// proposed in that term or not at all: in between, another leader may have granted one.
    term: Option<u64>,
    is_settled: bool,
}

impl ElectionMark {
    /// The outcome is known, or nothing was proposed.
    #[must_use]
    pub(crate) fn settled(mut self) -> Self {
        self.is_settled = true;
        self
    }
}

impl Drop for ElectionMark {
    fn drop(&mut self) {
        let (broker, is_settled) = (&self.broker, self.is_settled);
        self.decider
            .liveness(|liveness, _| liveness.end_election(broker, is_settled));
        if !is_settled {
            self.decider.look.notify_one();
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
        let liveness =
            Liveness::new(config.grace_ms, pause_ms).with_lease_wait(config.lease_wait_ms);
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

    /// Tells the heartbeat table whether this controller leads, and knows all that was decided;
    /// returns the term. Looked at under the table's lock, so that news come to it in order.
    pub(crate) fn note_leadership(&self, liveness: &mut Liveness, now_ms: u64) -> Option<u64> {
        let metadata = self.ledger.watch();
        let term = {
            let metadata = metadata.borrow();
            metadata.is_ready.then_some(metadata.term)
        };
        liveness.set_leader(now_ms, term);
        term
    }

    /// Address of the leader, where it is known.
    pub(crate) fn leader_address(&self) -> Option<String> {
        let metadata = self.metadata();
        let leader = metadata.leader?;
        let configured = self.config.peers.members().get(&leader);
        let member = configured.or_else(|| metadata.members.get(&leader))?;
        Some(member.address.clone())
    }

    /// What a request gets that only the leader answers.
    pub(crate) fn not_leader(&self) -> Refusal {
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

    /// Takes a heartbeat. Returns what it asks for, if it asks for a lease.
    pub(crate) fn heartbeat(&self, beat: Heartbeat) -> Result<Option<LeaseAsk>, HeartbeatError> {
        let leaves = beat.leaving;
        let (cluster, broker, id) = (beat.cluster.clone(), beat.broker.clone(), beat.id);
        let (returns, ask) = self.liveness(|liveness, now| {
            let before = match liveness.seen(now, &beat.cluster, &beat.broker, beat.id) {
                Seen::Alive(known) => Some(known.report.incarnation),
                Seen::Dead | Seen::Never => None,
            };
            let returns = before != Some(beat.report.incarnation);
            liveness.heartbeat(now, beat)?;
            Ok((returns, liveness.asked(&cluster, &broker, id)))
        })?;
        self.heard.notify_waiters();
        if returns || leaves {
            // A broker that came back may be the one an election waits for, and a master that
            // leaves is one.
            self.look.notify_one();
        }
        Ok(ask)
    }

    /// Whether a broker that asked for a lease is granted it. The read barrier comes first: whoever
    /// leads no more finds no majority, and what was decided elsewhere is known after it.
    pub(crate) async fn grant(
        &self,
        broker: &str,
        id: u64,
        report: &Report,
        ask: &LeaseAsk,
    ) -> Result<(), (LeaseRefusal, String)> {
        let undecided = |refusal: Refusal| {
            let code = match refusal.code {
                Code::NotLeader => LeaseRefusal::NotLeader,
                _ => LeaseRefusal::NotDecided,
            };
            (code, refusal.remark)
        };
        self.barrier().await.map_err(undecided)?;
        match self.may_grant(broker, id, ask) {
            Err(NoLease::NotConfirmed) => {
                let command = Command::ConfirmMaster(ConfirmMaster {
                    broker: broker.to_owned(),
                    id,
                    master_epoch: ask.epoch,
                    incarnation: report.incarnation,
                    unclean: report.unclean,
                });
                self.propose(&command).await.map_err(undecided)?;
                // It was applied here while this controller led: no second barrier is needed.
                self.may_grant(broker, id, ask)
            }
            decided => decided,
        }
        .map_err(|error| (error.code(), error.to_string()))
    }

    fn may_grant(&self, broker: &str, id: u64, ask: &LeaseAsk) -> Result<(), NoLease> {
        self.state(|state| {
            self.liveness(|liveness, now| {
                // The scan may not have run yet since the leadership began.
                self.note_leadership(liveness, now);
                let group = state.group(broker).ok_or(NoLease::NotMaster)?;
                liveness.may_grant(broker, group, id, ask)
            })
        })
    }

    /// The lives of the live brokers of a set, for its master; a Java broker's are counted by its
    /// registrations.
    pub(crate) fn lives(&self, cluster: &str, broker: &str) -> Vec<(u64, u64)> {
        self.state(|state| {
            let Some(group) = state.group(broker) else {
                return Vec::new();
            };
            self.liveness(|liveness, now| {
                let alive = liveness.alive(now, cluster, broker);
                let life = |id, opened| group.incarnation(id, opened);
                alive
                    .filter_map(|(id, beat)| Some((id, life(id, beat.report.incarnation)?.count())))
                    .collect()
            })
        })
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

    /// Begins to replicate a command; an election or what else needs a mark, in the mark's term.
    pub(crate) fn begin(
        &self,
        command: &Command,
        mark: Option<&ElectionMark>,
    ) -> Result<PendingAppend<Answer>, Refusal> {
        let is_of_no_term = mark.is_some_and(|mark| mark.term.is_none());
        if !self.is_leader() || is_of_no_term {
            return Err(self.not_leader());
        }
        let payload = command
            .encode()
            .map_err(|error| Refusal::new(Code::SystemError, error.to_string()))?;
        self.ledger
            .start_append_in(mark.and_then(|mark| mark.term), payload)
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
        let pending = self.begin(command, None)?;
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

    /// Elects, and tells the brokers when there is a new master. Away from a master that may hold a
    /// lease only an operator's wish is carried out, and waits until the lease is over.
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
        let mark = self.mark(broker);
        let mut command = self.election(broker, broker_id, designate, None);
        let (now, over_ms) = (self.now_ms(), self.lease_over_ms(broker));
        if self.keeps(&command) || now >= over_ms {
            // Nobody loses a lease by it.
        } else if designate {
            let epoch = self.hand_over(broker, broker_id).await;
            if epoch.is_none() {
                self.lease_is_over(broker).await;
            }
            command = self.election(broker, broker_id, designate, epoch);
        } else {
            drop(mark.settled());
            let remark = format!(
                "the last lease of the master of {broker} may run for {} ms more: ask again then",
                over_ms - now
            );
            return Err(Refusal::new(Code::ElectMasterFailed, remark));
        }
        let answer = self.propose_marked(&command, mark).await?;
        self.elected(&answer);
        Ok(answer)
    }

    /// Whether an election with these reports leaves the master as it is.
    fn keeps(&self, command: &Command) -> bool {
        let Command::ElectMaster(election) = command else {
            return false;
        };
        let designated = election.broker_id.filter(|_| election.designate);
        self.state(|state| {
            state.group(&election.broker).is_some_and(|group| {
                let choice = group.choose(&election.alive, designated, election.allow_unclean);
                matches!(choice, Choice::Keep(_))
            })
        })
    }

    /// When the recorded master's last lease is over.
    fn lease_over_ms(&self, broker: &str) -> u64 {
        self.state(|state| {
            state.group(broker).map_or(0, |group| {
                self.liveness(|liveness, _| liveness.lease_over_ms(broker, group))
            })
        })
    }

    /// Waits until no lease of the master is out. An election must be marked, so that none is
    /// granted anew.
    async fn lease_is_over(&self, broker: &str) {
        loop {
            let (now, over_ms) = (self.now_ms(), self.lease_over_ms(broker));
            // Without an end this controller does not lead: the proposal will say so.
            if now >= over_ms || over_ms == u64::MAX {
                return;
            }
            tokio::time::sleep(Duration::from_millis(over_ms - now)).await;
        }
    }

    /// Asks the master to hand over to `to`: it stops writes, waits until that member has all, and
    /// lays its authority down. Returns the epoch it laid it down in; none: it did not, so its
    /// lease must be waited for. The set must be marked.
    async fn hand_over(&self, broker: &str, to: Option<u64>) -> Option<u32> {
        let to = to?;
        let alive = self.reports(broker);
        let (address, epoch) = self.state(|state| {
            let group = state.group(broker)?;
            // Nobody stops for a member that would not be elected.
            let choice = group.choose(&alive, Some(to), false);
            let address = group.replicas.get(&group.master?)?.address.clone();
            (choice == Choice::Elect(to)).then_some((address, group.master_epoch))
        })?;
        let header = HandOverRequest {
            broker_name: broker.to_owned(),
            master_epoch: i32::try_from(epoch).ok()?,
            to: i64::try_from(to).ok()?,
        };
        let request = RemotingCommand::request_with(request_code::HAND_OVER, &header);
        let asked = self
            .notifier
            .client
            .request(&address, request, HAND_OVER_WAIT);
        match asked.await {
            Ok(answer) if answer.code == Code::Success.value() => Some(epoch),
            Ok(answer) => {
                tracing::warn!(%broker, to, remark = ?answer.remark, "the master does not hand over");
                None
            }
            Err(error) => {
                tracing::warn!(%broker, to, %error, "the master does not hand over");
                None
            }
        }
    }

    /// Takes brokers out of the state; the master only when it has no lease any more.
    pub(crate) async fn clean(
        self: &Arc<Self>,
        broker: &str,
        command: &Command,
    ) -> Result<Answer, Refusal> {
        let mark = self.mark(broker);
        self.lease_is_over(broker).await;
        self.propose_marked(command, mark).await
    }

    /// Nothing is granted to the master of this set until the mark is gone.
    pub(crate) fn mark(self: &Arc<Self>, broker: &str) -> ElectionMark {
        let term = self.liveness(|liveness, now| {
            // The scan may not have run yet since the leadership began.
            let term = self.note_leadership(liveness, now);
            liveness.begin_election(broker);
            term
        });
        self.marked(broker, term)
    }

    /// The mark for an election that was begun in the table already, which knew of this leadership.
    pub(crate) fn marked(self: &Arc<Self>, broker: &str, term: Option<u64>) -> ElectionMark {
        ElectionMark {
            decider: Arc::clone(self),
            broker: broker.to_owned(),
            term,
            is_settled: false,
        }
    }

    pub(crate) async fn propose_marked(
        &self,
        command: &Command,
        mark: ElectionMark,
    ) -> Result<Answer, Refusal> {
        let pending = match self.begin(command, Some(&mark)) {
            Ok(pending) => pending,
            Err(refusal) => {
                // Nothing was proposed.
                drop(mark.settled());
                return Err(refusal);
            }
        };
        let answer = self.end(pending).await?;
        drop(mark.settled());
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
        let has_history = || {
            let reports = self.reports(broker);
            reports.values().any(|it| it.epoch.max(it.max_epoch) > 0)
        };
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
