//! Handing the role of master over (30200): stop writes, see that the next master has everything,
//! lay authority down. The controller elects then, and the election ends this role like any other.
//!
//! If no election comes, this master goes on: writes are taken again and authority is asked for
//! anew. Until then it has none, so nothing is acknowledged here that another might not have.

use std::sync::Arc;
use std::time::{Duration, Instant};

use epochlog_ha::HaService;
use epochlog_raft_glue::remoting::{HandOverRequest, RemotingCommand, response_code as code};
use tracing::{info, warn};

use crate::node::Node;
use crate::replicas::Role;

/// How long the next master may take to have everything; writes are refused meanwhile.
const LEVEL_WAIT: Duration = Duration::from_secs(2);
/// How often that is looked at.
const LOOK: Duration = Duration::from_millis(1);
/// How long answers may take that only have to be made.
const ANSWERS_WAIT: Duration = Duration::from_millis(100);
/// An election that did not come within this time does not come.
const ELECTION_WAIT: Duration = Duration::from_secs(2);
/// How often it is looked at whether the role is over.
const END_LOOK: Duration = Duration::from_millis(5);

/// Does what a controller asks for; the answer says whether authority was laid down.
pub(crate) async fn hand_over(node: Arc<Node>, request: RemotingCommand) -> RemotingCommand {
    let refuse = |why: &str| request.refuse(code::SYSTEM_ERROR, why);
    let header: HandOverRequest = match request.header() {
        Ok(header) => header,
        Err(error) => return refuse(&error.to_string()),
    };
    let (Ok(epoch), Ok(to)) = (u32::try_from(header.master_epoch), u64::try_from(header.to)) else {
        return refuse("epoch or id is negative");
    };
    let Some(ha) = node.ha().filter(|_| serves(&node, epoch)) else {
        return refuse("this broker is not master in that epoch");
    };
    if header.broker_name != node.conf.broker_name {
        return refuse("this broker belongs to another set");
    }
    if !node.authority.try_hand_over() {
        return refuse("a hand-over is under way already");
    }
    info!(epoch, to, "handing over: writes are refused");
    ha.pause_writes(true);
    if !is_level(&node, ha, epoch, to).await {
        ha.pause_writes(false);
        node.authority.hand_over_ended();
        warn!(
            epoch,
            to, "not handed over: that member does not have everything"
        );
        return refuse("the member named does not have everything");
    }
    answers_left(&node).await;
    node.authority.pause(ha);
    info!(epoch, to, "handed over: no authority any more");
    tokio::spawn(go_on(Arc::clone(&node), epoch));
    request.answer(code::SUCCESS)
}

async fn is_level(node: &Node, ha: &HaService, epoch: u32, to: u64) -> bool {
    let end = Instant::now() + LEVEL_WAIT;
    while !ha.is_level(to) {
        if Instant::now() >= end || !serves(node, epoch) {
            return false;
        }
        tokio::time::sleep(LOOK).await;
    }
    true
}

/// What is replicated is acknowledged while there is authority: later the answers would say that
/// nothing is known.
async fn answers_left(node: &Node) {
    node.answers.next_turn();
    let end = Instant::now() + ANSWERS_WAIT;
    while !node.answers.drained() && Instant::now() < end {
        tokio::time::sleep(LOOK).await;
    }
}

/// Ends the hand-over with the role, so that the next role can be handed over too; takes writes again
/// if this broker is still master when an election should have come.
async fn go_on(node: Arc<Node>, epoch: u32) {
    let end = Instant::now() + ELECTION_WAIT;
    while let Some(ha) = node.ha().filter(|_| serves(&node, epoch)) {
        if Instant::now() >= end {
            warn!(
                epoch,
                "no election came after handing over: this master goes on"
            );
            ha.pause_writes(false);
            node.authority.resume();
            break;
        }
        tokio::time::sleep(END_LOOK).await;
    }
    node.authority.hand_over_ended();
}

fn serves(node: &Node, epoch: u32) -> bool {
    node.role() == Some(Role::Master { epoch })
}
