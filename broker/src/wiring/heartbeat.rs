//! Heartbeats to all controllers: on time, whatever else goes on (RocketMQ: BROKER_HEARTBEAT).

use std::sync::Arc;

use epochlog_raft_glue::remoting::BrokerHeartbeatRequest;
use tokio::time::{Duration, MissedTickBehavior, interval};

use super::{BrokerError, Wires};
use crate::endpoint::signed;

/// Controller addresses are resolved again this often (RocketMQ: 120 s).
const RESOLVE_PERIOD: Duration = Duration::from_secs(120);
/// The leader is looked for again this often, so that it gets heartbeats even when it is not
/// configured here (RocketMQ: syncControllerMetadataPeriod).
const LEADER_PERIOD: Duration = Duration::from_secs(10);

/// Waits for the registration, then sends for ever.
pub(super) async fn run(wires: Arc<Wires>) -> BrokerError {
    wires.controllers.refresh_addresses().await;
    wires.registered.notified().await;
    let mut beat = interval(wires.node.conf.heartbeat_interval);
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut resolve = interval(RESOLVE_PERIOD);
    let mut leader = interval(LEADER_PERIOD);
    loop {
        tokio::select! {
            _ = beat.tick() => {
                // A log that failed to sync may have lost what it acknowledged: let go of the role,
                // so that another replica is elected. Asking for what is flushed costs nothing.
                if let Err(error) = wires.node.store.wait_flushed(0, Duration::ZERO) {
                    return error.into();
                }
                if let Some(id) = wires.node.id() {
                    send(&wires, id);
                }
            }
            _ = resolve.tick() => {
                let controllers = wires.controllers.clone();
                tokio::spawn(async move { controllers.refresh_addresses().await });
            }
            _ = leader.tick() => {
                let controllers = wires.controllers.clone();
                tokio::spawn(async move {
                    // Nobody leads just now; the next look will tell.
                    let _ = controllers.find_leader().await;
                });
            }
        }
    }
}

/// Sends one heartbeat to every controller, without waiting for any.
pub(super) fn send(wires: &Wires, id: u64) {
    let node = &wires.node;
    let promises = node.store.promises();
    wires.controllers.heartbeat(&BrokerHeartbeatRequest {
        cluster_name: node.conf.cluster_name.clone(),
        broker_addr: node.address.to_string(),
        broker_name: node.conf.broker_name.clone(),
        broker_id: Some(signed(id)),
        epoch: Some(i32::try_from(node.log_epoch()).unwrap_or(i32::MAX)),
        max_offset: Some(signed(node.store.end_offset())),
        confirm_offset: Some(signed(node.store.confirm_offset())),
        heartbeat_timeout_mills: i64::try_from(node.conf.heartbeat_timeout.as_millis()).ok(),
        election_priority: Some(node.conf.election_priority),
        incarnation: Some(signed(promises.incarnation)),
        unclean: Some(!promises.may_serve_again),
    });
}
