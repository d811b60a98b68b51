//! Carries the master's SyncStateSet proposals to the controller, one at a time (RocketMQ:
//! CONTROLLER_ALTER_SYNC_STATE_SET).

use std::sync::Arc;

use epochlog_ha::{HaService, SyncStateSet};
use epochlog_raft_glue::client::ControllerError;
use epochlog_raft_glue::remoting::{AlterSyncStateSetRequest, SyncStateSetBody, response_code};
use tokio::time::{Duration, MissedTickBehavior, interval};
use tracing::{info, warn};

use super::{BrokerError, Wires};
use crate::clock;
use crate::endpoint::signed;
use crate::replicas::Role;

/// How often the HA service is asked; what it answers is ready, so asking costs next to nothing.
const LOOK_PERIOD: Duration = Duration::from_millis(25);
/// Pause after a proposal that did not come through; doubles up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Runs for ever.
pub(super) async fn run(wires: Arc<Wires>) -> BrokerError {
    let mut look = interval(LOOK_PERIOD);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut pause = FIRST_PAUSE;
    loop {
        look.tick().await;
        let Some(Role::Master { epoch }) = wires.node.role() else {
            continue;
        };
        let (Some(ha), Some(id)) = (wires.node.ha(), wires.node.id()) else {
            continue;
        };
        let Some(proposal) = ha.next_proposal() else {
            continue;
        };
        if propose(&wires, ha, id, epoch, proposal).await {
            pause = FIRST_PAUSE;
        } else {
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}

/// Whether the controller took it.
async fn propose(
    wires: &Wires,
    ha: &HaService,
    id: u64,
    epoch: u32,
    proposal: SyncStateSet,
) -> bool {
    let header = AlterSyncStateSetRequest {
        broker_name: wires.node.conf.broker_name.clone(),
        master_broker_id: signed(id),
        master_epoch: i32::try_from(epoch).unwrap_or(i32::MAX),
        invoke_time: Some(clock::now_since_1970_ms()),
    };
    let body = SyncStateSetBody {
        sync_state_set: proposal.members.iter().map(|id| signed(*id)).collect(),
        sync_state_set_epoch: i32::try_from(proposal.epoch).unwrap_or(i32::MAX),
    };
    let answer = wires.controllers.alter_sync_state_set(&header, &body).await;
    match answer.map(|set| (committed(&set), set)) {
        Ok((Some(set), _)) => {
            info!(members = ?set.members, set_epoch = set.epoch, "SyncStateSet changed");
            ha.set_sync_state_set(set);
            true
        }
        Ok((None, set)) => {
            warn!(?set, "the controller's SyncStateSet cannot be used");
            ha.proposal_failed();
            false
        }
        Err(error) => {
            failed(wires, ha, &error);
            false
        }
    }
}

/// A refusal is known to have changed nothing; without an answer the change may have been made.
fn failed(wires: &Wires, ha: &HaService, error: &ControllerError) {
    warn!(%error, "SyncStateSet not changed");
    match error.code() {
        Some(code) if code != response_code::SYSTEM_ERROR => {
            ha.proposal_rejected();
            // Most refusals mean that somebody else knows more.
            wires.poll.notify_one();
        }
        _ => ha.proposal_failed(),
    }
}

fn committed(set: &SyncStateSetBody) -> Option<SyncStateSet> {
    let members = set.sync_state_set.iter().map(|id| u64::try_from(*id));
    Some(SyncStateSet {
        members: members.collect::<Result<_, _>>().ok()?,
        epoch: u32::try_from(set.sync_state_set_epoch).ok()?,
    })
}
