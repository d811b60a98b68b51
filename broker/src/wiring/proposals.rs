//! Carries the master's SyncStateSet proposals to the controller, one at a time (RocketMQ:
//! CONTROLLER_ALTER_SYNC_STATE_SET).

use std::sync::Arc;

use epochlog_ha::{HaService, SyncStateSet};
use epochlog_raft_glue::client::ControllerError;
use epochlog_raft_glue::remoting::{
    AlterSyncStateSetRequest, SyncStateSetBody, lives_text, response_code,
};
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
        if ha.wants_lives() {
            wires.beat.notify_one();
        }
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
        incarnations: (wires.node.authority.is_ours())
            .then(|| lives_text(ha.seen_lives(&proposal))),
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

/// What a failed proposal says about the controller's set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// It is still the one the proposal was made from.
    Rejected,
    /// It has the members that were asked for.
    Met,
    /// Nothing: this proposal, or one before it, may have been committed.
    Unknown,
}

/// A controller compares the epochs before it looks at the members, so only a complaint about these
/// proves that the set is what it was. The client asks several controllers in turn: a refusal by
/// the last one may follow a request that was carried out and whose answer was lost.
fn fate(code: Option<i32>) -> Fate {
    match code {
        Some(
            response_code::CONTROLLER_INVALID_REPLICAS | response_code::CONTROLLER_BROKER_NOT_ALIVE,
        ) => Fate::Rejected,
        Some(response_code::CONTROLLER_ALTER_SYNC_STATE_SET_FAILED) => Fate::Met,
        _ => Fate::Unknown,
    }
}

fn failed(wires: &Wires, ha: &HaService, error: &ControllerError) {
    warn!(%error, "SyncStateSet not changed");
    match fate(error.code()) {
        Fate::Rejected => ha.proposal_rejected(),
        Fate::Met => ha.proposal_met(),
        Fate::Unknown => ha.proposal_failed(),
    }
    if error.code().is_some() {
        // Most refusals mean that somebody else knows more.
        wires.poll.notify_one();
    }
}

fn committed(set: &SyncStateSetBody) -> Option<SyncStateSet> {
    let members = set.sync_state_set.iter().map(|id| u64::try_from(*id));
    Some(SyncStateSet {
        members: members.collect::<Result<_, _>>().ok()?,
        epoch: u32::try_from(set.sync_state_set_epoch).ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a02_only_a_refusal_of_the_members_proves_the_set_unchanged() {
        use response_code as code;
        let cases = [
            (Some(code::CONTROLLER_INVALID_REPLICAS), Fate::Rejected),
            (Some(code::CONTROLLER_BROKER_NOT_ALIVE), Fate::Rejected),
            (
                Some(code::CONTROLLER_ALTER_SYNC_STATE_SET_FAILED),
                Fate::Met,
            ),
            // The proposal before was committed and its answer lost, or so was this one's.
            (
                Some(code::CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH),
                Fate::Unknown,
            ),
            // Committed, and then somebody of the new set was elected.
            (Some(code::CONTROLLER_FENCED_MASTER_EPOCH), Fate::Unknown),
            (Some(code::CONTROLLER_INVALID_MASTER), Fate::Unknown),
            // Asked again elsewhere after the leader had taken it.
            (Some(code::CONTROLLER_NOT_LEADER), Fate::Unknown),
            (Some(code::SYSTEM_BUSY), Fate::Unknown),
            (Some(code::SYSTEM_ERROR), Fate::Unknown),
            (None, Fate::Unknown),
        ];
        for (code, expect) in cases {
            assert_eq!(fate(code), expect, "{code:?}");
        }
    }
}
