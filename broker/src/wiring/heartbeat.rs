//! Heartbeats to all controllers: on time, whatever else goes on (RocketMQ: BROKER_HEARTBEAT). Their
//! answers carry the lease.

use std::sync::Arc;

use epochlog_ha::HaService;
use epochlog_raft_glue::lease::LeaseNews;
use epochlog_raft_glue::remoting::{BrokerHeartbeatRequest, BrokerHeartbeatResponse, read_lives};
use tokio::time::{Duration, Instant, MissedTickBehavior, interval};
use tracing::debug;

use super::authority::ToSend;
use super::{BrokerError, Wires};
use crate::endpoint::signed;
use crate::replicas::Role;

/// Controller addresses are resolved again this often (RocketMQ: 120 s).
const RESOLVE_PERIOD: Duration = Duration::from_secs(120);
/// The leader is looked for again this often, so that it gets heartbeats even when it is not
/// configured here (RocketMQ: syncControllerMetadataPeriod).
const LEADER_PERIOD: Duration = Duration::from_secs(10);
/// Heartbeats out of turn are at least this far apart.
const OUT_OF_TURN: Duration = Duration::from_millis(20);

/// Waits for the registration, then sends for ever.
pub(super) async fn run(wires: Arc<Wires>) -> BrokerError {
    wires.controllers.refresh_addresses().await;
    wires.registered.notified().await;
    let times = wires.node.conf.lease_times();
    let mut beat = interval(Duration::from_millis(times.heartbeat_ms));
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut resolve = interval(RESOLVE_PERIOD);
    let mut leader = interval(LEADER_PERIOD);
    let mut last = Instant::now();
    loop {
        tokio::select! {
            _ = beat.tick() => {}
            () = wires.beat.notified() => {
                tokio::time::sleep_until(last + OUT_OF_TURN).await;
            }
            _ = resolve.tick() => {
                let controllers = wires.controllers.clone();
                tokio::spawn(async move { controllers.refresh_addresses().await });
                continue;
            }
            _ = leader.tick() => {
                let controllers = wires.controllers.clone();
                tokio::spawn(async move {
                    // Nobody leads just now; the next look will tell.
                    let _ = controllers.find_leader().await;
                });
                continue;
            }
        }
        last = Instant::now();
        if let Err(error) = check_health(&wires) {
            return error;
        }
        if let Some(id) = wires.node.id() {
            send(&wires, id);
            poll_java(&wires, id);
        }
    }
}

/// A broker that cannot do a master's work any more must let go of the role, so that another replica
/// is elected: it stops.
fn check_health(wires: &Wires) -> Result<(), BrokerError> {
    // A log that failed to sync may have lost what it acknowledged. Asking for what is flushed costs
    // nothing.
    wires.node.store.wait_flushed(0, Duration::ZERO)?;
    if wires.node.ha().is_some_and(|ha| !ha.is_running()) {
        return Err(BrokerError::Task("a thread of replication is gone".into()));
    }
    Ok(())
}

/// Sends one heartbeat to every controller, without waiting for any.
pub(super) fn send(wires: &Arc<Wires>, id: u64) {
    let to_send = wires.node.authority.to_send();
    let heartbeat = heartbeat(wires, id, to_send.news);
    // An answer that comes later grants nothing any more.
    let limit = wires.node.conf.lease.max(Duration::from_millis(500));
    for address in wires.controllers.addresses() {
        let (wires, heartbeat) = (Arc::clone(wires), heartbeat.clone());
        tokio::spawn(async move {
            let answer = wires
                .controllers
                .heartbeat_to(&address, &heartbeat, limit)
                .await;
            match answer {
                Ok(answer) => answered(&wires, to_send, &answer),
                Err(error) => {
                    debug!(%error, "heartbeat not answered");
                    wires.node.authority.line_broke(wires.node.ha());
                }
            }
        });
    }
}

fn answered(wires: &Wires, to_send: ToSend, answer: &BrokerHeartbeatResponse) {
    let node = &wires.node;
    let granted = node.authority.answered(node.ha(), to_send.asked, answer);
    if granted && let (Some(ha), Some(lives)) = (node.ha(), &answer.incarnations) {
        ha.set_lives(read_lives(lives));
    }
}

/// With Java controllers: asks their leader who is master, which stands in for a lease.
fn poll_java(wires: &Arc<Wires>, id: u64) {
    let Some(asked) = wires.node.authority.by_polling() else {
        return;
    };
    let wires = Arc::clone(wires);
    tokio::spawn(async move {
        let info = wires.controllers.replica_info(&wires.node.conf.broker_name);
        let Ok(Ok(info)) = tokio::time::timeout(wires.node.conf.lease, info).await else {
            return;
        };
        let is_master = info.master.master_broker_id == Some(signed(id))
            && info.master.master_epoch == i32::try_from(asked.epoch).ok();
        if let Some(ha) = wires.node.ha().filter(|_| is_master) {
            wires.node.authority.named(ha, asked);
        }
    });
}

/// Says goodbye to all controllers: this broker has no authority any more and is about to stop.
/// Waits a little for their answers, so that the word is out before the connections close.
pub(super) async fn leave(wires: &Arc<Wires>) {
    let Some(id) = wires.node.id() else {
        return;
    };
    let news = wires.node.authority.to_send().news;
    let heartbeat = BrokerHeartbeatRequest {
        leaving: Some(true),
        ..heartbeat(wires, id, news)
    };
    let mut told = tokio::task::JoinSet::new();
    for address in wires.controllers.addresses() {
        let (controllers, heartbeat) = (wires.controllers.clone(), heartbeat.clone());
        told.spawn(async move {
            let limit = Duration::from_millis(300);
            // Whoever does not answer finds out when the connection closes.
            let _ = controllers.heartbeat_to(&address, &heartbeat, limit).await;
        });
    }
    while told.join_next().await.is_some() {}
}

fn heartbeat(wires: &Wires, id: u64, news: LeaseNews) -> BrokerHeartbeatRequest {
    let node = &wires.node;
    let promises = node.store.promises();
    let ms = |ms: u64| i64::try_from(ms).ok();
    let epoch = |epoch: u32| Some(i32::try_from(epoch).unwrap_or(i32::MAX));
    let (lease_mills, lease_ack_mills, lease_epoch) = match news {
        LeaseNews::Silent => (None, None, None),
        LeaseNews::Asks {
            epoch: of,
            lease_ms,
            ack_ms,
        } => (ms(lease_ms), ms(ack_ms), epoch(of)),
        LeaseNews::GivenBack { epoch: of } => (Some(0), None, epoch(of)),
    };
    BrokerHeartbeatRequest {
        cluster_name: node.conf.cluster_name.clone(),
        broker_addr: node.address.to_string(),
        broker_name: node.conf.broker_name.clone(),
        broker_id: Some(signed(id)),
        epoch: epoch(node.log_epoch()),
        max_offset: Some(signed(node.store.end_offset())),
        confirm_offset: Some(signed(node.store.confirm_offset())),
        heartbeat_timeout_mills: i64::try_from(node.conf.heartbeat_timeout.as_millis()).ok(),
        election_priority: Some(node.conf.election_priority),
        incarnation: Some(signed(promises.incarnation)),
        unclean: Some(!promises.may_serve_again),
        max_epoch: epoch(promises.max_epoch.unwrap_or(0)),
        lease_mills,
        lease_ack_mills,
        lease_epoch,
        leaving: None,
    }
}

/// Whether this broker is master and may acknowledge just now.
pub(crate) fn has_authority(role: Option<&Role>, ha: Option<&HaService>) -> bool {
    matches!(role, Some(Role::Master { .. }))
        && ha.is_some_and(|ha| {
            ha.authority_until_ms()
                .is_none_or(|until| HaService::now_ms() < until)
        })
}
