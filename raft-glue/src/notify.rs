//! Telling brokers of a new master (request 1008), again and again until their heartbeats show that
//! they follow or it is no longer news.
//!
//! Invariant: at most one round of notices runs for a broker set; a newer election ends the older
//! round.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::task::JoinHandle;

use crate::command::GroupView;
use crate::decider::Decider;
use crate::remoting::{
    Client, ClientConfig, NotifyRoleChangedRequest, RemotingCommand, SyncStateSetBody, request_code,
};

/// How often a broker that does not follow is told.
const ROUND_COUNT: u32 = 10;

/// Between two rounds: a heartbeat should come within this time.
const ROUND_PAUSE: Duration = Duration::from_millis(1_000);

/// See the module.
pub(crate) struct Notifier {
    pub(crate) client: Client,
    /// By broker set.
    running: Mutex<BTreeMap<String, JoinHandle<()>>>,
}

impl Notifier {
    pub(crate) fn new() -> Self {
        let config = ClientConfig {
            connect_timeout: Duration::from_secs(1),
            ..ClientConfig::default()
        };
        Self {
            client: Client::new(config),
            running: Mutex::new(BTreeMap::new()),
        }
    }

    /// Begins to tell a set of the master of this epoch.
    pub(crate) fn start(&self, decider: &Arc<Decider>, broker: &str, epoch: u32) {
        let task = tokio::spawn(rounds(Arc::clone(decider), broker.to_owned(), epoch));
        let mut running = self.running.lock();
        running.retain(|_, task| !task.is_finished());
        if let Some(older) = running.insert(broker.to_owned(), task) {
            older.abort();
        }
    }

    /// Ends all rounds.
    pub(crate) fn stop(&self) {
        for (_, task) in std::mem::take(&mut *self.running.lock()) {
            task.abort();
        }
    }
}

async fn rounds(decider: Arc<Decider>, broker: String, epoch: u32) {
    for round in 0..ROUND_COUNT {
        let view = decider.state(|state| state.view(&broker));
        let Some(view) = view.filter(|view| view.master_epoch == epoch && decider.is_leader())
        else {
            return;
        };
        let addresses = laggards(&decider, &view, epoch);
        if addresses.is_empty() {
            return;
        }
        if round > 0 {
            tracing::debug!(%broker, epoch, ?addresses, "brokers do not follow yet");
        }
        let command = notice(&view);
        for address in addresses {
            if let Err(error) = decider.notifier.client.one_way(&address, command.clone()) {
                tracing::debug!(%error, "a notice was not sent");
            }
        }
        tokio::time::sleep(ROUND_PAUSE).await;
    }
}

/// Live brokers whose heartbeats are of an older epoch.
fn laggards(decider: &Decider, view: &GroupView, epoch: u32) -> Vec<String> {
    decider.liveness(|liveness, now| {
        liveness
            .alive(now, &view.cluster, &view.broker)
            .filter(|(id, beat)| {
                view.members.contains_key(id)
                    && u32::try_from(beat.report.epoch).unwrap_or(0) < epoch
            })
            .map(|(_, beat)| beat.address.clone())
            .collect()
    })
}

fn notice(view: &GroupView) -> RemotingCommand {
    let signed = |number: u32| i32::try_from(number).unwrap_or(i32::MAX);
    let id = |id: u64| i64::try_from(id).unwrap_or(i64::MAX);
    let header = NotifyRoleChangedRequest {
        master_address: view.master.as_ref().map(|master| master.address.clone()),
        master_epoch: signed(view.master_epoch),
        sync_state_set_epoch: signed(view.sync_state_set_epoch),
        master_broker_id: view.master.as_ref().map(|master| id(master.id)),
    };
    let body = SyncStateSetBody {
        sync_state_set: view
            .sync_state_set
            .iter()
            .map(|member| id(*member))
            .collect(),
        sync_state_set_epoch: signed(view.sync_state_set_epoch),
    };
    RemotingCommand::request_with(request_code::NOTIFY_BROKER_ROLE_CHANGED, &header)
        .with_body(&body)
}
