//! Does what [`Replicas`] asks for, one step after the other, and feeds it what controllers push.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use epochlog_ha::{HaConfig, HaService, LogId, SyncStateSet};
use epochlog_raft_glue::client::{ControllerError, Elected, Registered, ReplicaInfo};
use epochlog_raft_glue::remoting::{
    ApplyBrokerIdRequest, Client, ClientConfig, ElectMasterRequest, ExchangeHaInfoRequest,
    ExchangeHaInfoResponse, RegisterBrokerRequest, RemotingCommand, request_code, response_code,
};
use sha2::{Digest, Sha256};
use tokio::sync::mpsc;
use tracing::{debug, info, warn};

use super::{BrokerError, Wires, blocking, heartbeat};
use crate::clock;
use crate::endpoint::signed;
use crate::replicas::{Decision, Failure, Outcome, Replicas, Role, Step};

/// A master that does not tell its HA address within this time is asked again.
const HA_ADDRESS_TIMEOUT: Duration = Duration::from_millis(500);

/// Makes one value of the fields that controllers send.
///
/// # Errors
/// An id, epoch or address out of range.
pub(crate) fn decision(
    master: (Option<i64>, Option<String>),
    epoch: Option<i32>,
    members: BTreeSet<i64>,
    set_epoch: i32,
) -> Result<Decision, String> {
    let id = |id: i64| u64::try_from(id).map_err(|_| format!("broker id {id} is negative"));
    let number = |what, n: i32| u32::try_from(n).map_err(|_| format!("{what} {n} is negative"));
    let master = match master {
        (None, _) => None,
        (Some(-1), _) => None,
        (Some(broker), Some(address)) => Some((id(broker)?, address)),
        (Some(broker), None) => return Err(format!("master {broker} has no address")),
    };
    Ok(Decision {
        epoch: number("master epoch", epoch.unwrap_or(0))?,
        master,
        members: members.into_iter().map(id).collect::<Result<_, _>>()?,
        set_epoch: number("SyncStateSet epoch", set_epoch)?,
    })
}

/// Runs until something ends that cannot be mended.
pub(super) async fn run(
    wires: Arc<Wires>,
    mut replicas: Replicas,
    mut pushed: mpsc::Receiver<Decision>,
) -> BrokerError {
    let brokers = Client::new(ClientConfig::default());
    loop {
        let step = replicas.next(clock::now_ms());
        if let Step::Wait(until_ms) = step {
            let pause = Duration::from_millis(until_ms.saturating_sub(clock::now_ms()));
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                decision = pushed.recv() => take(&mut replicas, decision),
                () = wires.poll.notified() => replicas.poll_soon(),
            }
            continue;
        }
        debug!(?step, "next");
        let mut doing = std::pin::pin!(perform(&wires, &brokers, &step));
        let outcome = loop {
            tokio::select! {
                outcome = &mut doing => break Some(outcome),
                decision = pushed.recv() => {
                    take(&mut replicas, decision);
                    if replicas.is_outdated(&step) {
                        break None;
                    }
                }
            }
        };
        match outcome {
            None => {}
            Some(Ok(outcome)) => {
                let now_1970_ms = u64::try_from(clock::now_since_1970_ms()).unwrap_or(0);
                replicas.done(&step, outcome, clock::now_ms(), now_1970_ms);
                let master = replicas.decided().and_then(|it| it.master.as_ref());
                let master = master.map(|(_, address)| address.as_str());
                wires.node.set_master_address(master);
                wires.node.set_role(replicas.role().cloned());
            }
            Some(Err(error)) => return error,
        }
    }
}

fn take(replicas: &mut Replicas, decision: Option<Decision>) {
    if let Some(decision) = decision {
        let text = format!("{decision:?}");
        if replicas.news(decision) {
            info!(decision = text, "told by a controller");
        }
    }
}

/// Does one step. An error ends the broker.
async fn perform(
    wires: &Arc<Wires>,
    brokers: &Client,
    step: &Step,
) -> Result<Outcome, BrokerError> {
    match step {
        Step::SaveClaim(_) | Step::SaveIdentity(_) | Step::DropClaim => {
            write_identity(wires, step.clone()).await
        }
        Step::AskNextId | Step::Apply(_) | Step::Register(_) | Step::Elect(_) | Step::Poll => {
            Ok(ask_controller(wires, step)
                .await
                .unwrap_or_else(Outcome::Failed))
        }
        Step::AskHaAddress(master) => Ok(ask_ha_address(brokers, master).await),
        Step::Fence
        | Step::BecomeMaster { .. }
        | Step::BecomeSlave { .. }
        | Step::AdoptSet { .. } => take_role(wires, step.clone()).await,
        Step::Wait(_) => Ok(Outcome::Done),
    }
}

async fn write_identity(wires: &Arc<Wires>, step: Step) -> Result<Outcome, BrokerError> {
    let files = wires.identity.clone();
    let done = blocking(move || match &step {
        Step::SaveClaim(claim) => files.save_claim(claim),
        Step::SaveIdentity(id) => files.save_identity(*id),
        _ => files.drop_claim(),
    })
    .await?;
    Ok(match done {
        Ok(()) => Outcome::Done,
        Err(error) => {
            warn!(%error, "cannot write the identity");
            Outcome::Failed(Failure::Unavailable)
        }
    })
}

fn failure(error: &ControllerError) -> Failure {
    warn!(%error, "controller");
    error.code().map_or(Failure::Unavailable, Failure::Code)
}

fn unusable(why: &str) -> Failure {
    warn!(why, "a controller's answer cannot be used");
    Failure::Unavailable
}

async fn ask_controller(wires: &Arc<Wires>, step: &Step) -> Result<Outcome, Failure> {
    let (node, controllers) = (&wires.node, &wires.controllers);
    match step {
        Step::AskNextId => {
            let conf = &node.conf;
            let id = controllers
                .next_broker_id(&conf.cluster_name, &conf.broker_name)
                .await;
            let id = id.map_err(|error| failure(&error))?;
            let id = u64::try_from(id).ok().filter(|id| *id > 0);
            id.map(Outcome::NextId)
                .ok_or_else(|| unusable("nextBrokerId is not above 0"))
        }
        Step::Apply(claim) => {
            let request = ApplyBrokerIdRequest {
                cluster_name: node.conf.cluster_name.clone(),
                broker_name: node.conf.broker_name.clone(),
                applied_broker_id: signed(claim.id),
                register_check_code: claim.check_code.clone(),
            };
            let done = controllers.apply_broker_id(&request).await;
            done.map(|()| Outcome::Done)
                .map_err(|error| failure(&error))
        }
        Step::Register(id) => {
            start_replication(wires, *id).await?;
            register(wires, *id).await
        }
        Step::Elect(id) => elect(wires, *id).await,
        _ => {
            let done = controllers.replica_info(&node.conf.broker_name).await;
            let ReplicaInfo { master, set } = done.map_err(|error| failure(&error))?;
            decided(
                (master.master_broker_id, master.master_address),
                master.master_epoch,
                set.sync_state_set,
                set.sync_state_set_epoch,
            )
        }
    }
}

async fn register(wires: &Arc<Wires>, id: u64) -> Result<Outcome, Failure> {
    let node = &wires.node;
    let promises = node.store.promises();
    let request = RegisterBrokerRequest {
        cluster_name: node.conf.cluster_name.clone(),
        broker_name: node.conf.broker_name.clone(),
        broker_id: signed(id),
        broker_address: node.address.to_string(),
        invoke_time: Some(clock::now_since_1970_ms()),
        incarnation: Some(signed(promises.incarnation)),
        unclean: Some(!promises.may_serve_again),
    };
    let done = wires.controllers.register_broker(&request).await;
    let Registered { master, set } = done.map_err(|error| failure(&error))?;
    // An election counts the living only.
    heartbeat::send(wires, id);
    wires.registered.notify_one();
    if master.master_broker_id.is_none() {
        return Ok(Outcome::Decided(None));
    }
    decided(
        (master.master_broker_id, master.master_address),
        master.master_epoch,
        set.sync_state_set,
        master
            .sync_state_set_epoch
            .unwrap_or(set.sync_state_set_epoch),
    )
}

async fn elect(wires: &Arc<Wires>, id: u64) -> Result<Outcome, Failure> {
    let node = &wires.node;
    heartbeat::send(wires, id);
    let request = ElectMasterRequest {
        cluster_name: Some(node.conf.cluster_name.clone()),
        broker_name: node.conf.broker_name.clone(),
        broker_id: Some(signed(id)),
        designate_elect: Some(false),
        invoke_time: Some(clock::now_since_1970_ms()),
    };
    let done = wires.controllers.elect_master(&request).await;
    let Elected { master, body } = done.map_err(|error| failure(&error))?;
    decided(
        (master.master_broker_id, master.master_address),
        master.master_epoch,
        body.sync_state_set,
        master.sync_state_set_epoch.unwrap_or(0),
    )
}

fn decided(
    master: (Option<i64>, Option<String>),
    epoch: Option<i32>,
    members: BTreeSet<i64>,
    set_epoch: i32,
) -> Result<Outcome, Failure> {
    let decision = decision(master, epoch, members, set_epoch).map_err(|why| unusable(&why))?;
    Ok(Outcome::Decided(Some(decision)))
}

/// The HA service speaks under the id, so it starts when there is one.
async fn start_replication(wires: &Arc<Wires>, id: u64) -> Result<(), Failure> {
    if wires.node.ha().is_some() {
        return Ok(());
    }
    let node = Arc::clone(&wires.node);
    let started = blocking(move || {
        let service = HaService::start(Arc::clone(&node.store), ha_config(&node.conf, id))?;
        info!(id, listen = %service.listen_addr(), "replication listens");
        node.set_ha(id, service);
        Ok::<(), epochlog_ha::Error>(())
    });
    match started.await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => {
            warn!(%error, "replication cannot start");
            Err(Failure::Unavailable)
        }
        Err(error) => {
            warn!(%error, "replication cannot start");
            Err(Failure::Unavailable)
        }
    }
}

fn ha_config(conf: &crate::conf::BrokerConf, id: u64) -> HaConfig {
    let ms = clock::ms;
    let mut config = HaConfig::new(id, conf.ha_listen);
    config.transfer_batch_size = u32::try_from(conf.ha_transfer_batch_len).unwrap_or(u32::MAX);
    config.heartbeat_interval_ms = ms(conf.ha_heartbeat_interval);
    config.housekeeping_interval_ms = ms(conf.ha_housekeeping_interval);
    config.max_time_slave_not_catchup_ms = ms(conf.ha_max_time_slave_not_catchup);
    config.min_in_sync_replicas = usize::try_from(conf.min_in_sync_replicas).unwrap_or(usize::MAX);
    config.async_learner = conf.async_learner;
    config.allowed_peers.clone_from(&conf.ha_allowed_peers);
    config
        .allowed_brokers
        .clone_from(&conf.ha_allowed_broker_ids);
    config.resync_allowed = conf.ha_auto_resync;
    config.log_id = log_id(&conf.cluster_name, &conf.broker_name);
    config.report_flushed = conf.flush_disk_type == crate::conf::FlushDiskType::Sync;
    config
}

/// All brokers of a set make the same of their names, and those of two sets something else.
fn log_id(cluster: &str, set: &str) -> LogId {
    let mut hash = Sha256::new();
    for name in [cluster, set] {
        hash.update((name.len() as u64).to_be_bytes());
        hash.update(name);
    }
    let mut id = LogId::UNKNOWN;
    id.0.copy_from_slice(&hash.finalize()[..16]);
    id
}

async fn ask_ha_address(brokers: &Client, master: &str) -> Outcome {
    let query = ExchangeHaInfoRequest::default();
    let request = RemotingCommand::request_with(request_code::EXCHANGE_BROKER_HA_INFO, &query);
    let answer = match brokers.request(master, request, HA_ADDRESS_TIMEOUT).await {
        Ok(answer) if answer.code == response_code::SUCCESS => answer,
        Ok(answer) => {
            debug!(
                master,
                code = answer.code,
                "the master does not tell its HA address"
            );
            return Outcome::Failed(Failure::Unavailable);
        }
        Err(error) => {
            debug!(%error, "the master does not tell its HA address");
            return Outcome::Failed(Failure::Unavailable);
        }
    };
    let header: Option<ExchangeHaInfoResponse> = answer.header().ok();
    let Some(address) = header.and_then(|header| header.master_ha_address) else {
        // It is not master yet.
        return Outcome::Failed(Failure::Unavailable);
    };
    match tokio::net::lookup_host(&address)
        .await
        .map(|mut found| found.next())
    {
        Ok(Some(address)) => Outcome::HaAddress(address),
        _ => {
            warn!(master, address, "the master's HA address cannot be used");
            Outcome::Failed(Failure::Unavailable)
        }
    }
}

async fn take_role(wires: &Arc<Wires>, step: Step) -> Result<Outcome, BrokerError> {
    let node = Arc::clone(&wires.node);
    let text = format!("{step:?}");
    let serves = match step {
        Step::BecomeMaster { epoch, .. } => Some(epoch),
        _ => None,
    };
    if matches!(step, Step::Fence | Step::BecomeSlave { .. }) {
        // From here on senders get the code for it, whatever the HA service is still ending.
        if matches!(node.role(), Some(Role::Master { .. })) {
            node.set_role(None);
        }
        node.authority.end(node.ha());
    } else if let (Some(epoch), Some(ha)) = (serves, node.ha())
        && !node.authority.before_role(ha, epoch)
    {
        return Ok(Outcome::Failed(Failure::NeedsNewerEpoch));
    }
    let done = blocking(move || {
        let Some(ha) = node.ha() else {
            return Ok(Outcome::Failed(Failure::Unavailable));
        };
        apply_role(ha, step).map(|()| Outcome::Done)
    })
    .await?;
    match done {
        Ok(outcome) => {
            info!(role = text, "role taken");
            if let Some(epoch) = serves {
                begin_tables(wires).await?;
                wires.node.authority.begin(epoch);
                wires.beat.notify_one();
            }
            Ok(outcome)
        }
        Err(error) => judge(&text, error),
    }
}

/// The master of a log without a byte is the first of its group: there is nothing to copy.
async fn begin_tables(wires: &Arc<Wires>) -> Result<(), BrokerError> {
    let node = Arc::clone(&wires.node);
    let begun = blocking(move || match node.store.end_offset() {
        0 => node.tables.begin(clock::now_since_1970_ms()),
        _ => Ok(()),
    });
    if let Err(error) = begun.await? {
        warn!(%error, "Java slaves get no tables from this broker");
    }
    Ok(())
}

fn apply_role(ha: &HaService, step: Step) -> Result<(), epochlog_ha::Error> {
    match step {
        Step::Fence => {
            ha.fence()?;
        }
        Step::BecomeMaster {
            epoch,
            members,
            set_epoch,
        } => {
            ha.become_master(
                epoch,
                SyncStateSet {
                    members,
                    epoch: set_epoch,
                },
            )?;
        }
        Step::BecomeSlave {
            epoch,
            master_id,
            ha_address,
        } => {
            ha.become_slave(epoch, master_id, ha_address)?;
        }
        Step::AdoptSet { members, set_epoch } => {
            ha.set_sync_state_set(SyncStateSet {
                members,
                epoch: set_epoch,
            });
        }
        _ => {}
    }
    Ok(())
}

/// A log that failed cannot go on in this process; everything else is tried again or decided anew.
fn judge(step: &str, error: epochlog_ha::Error) -> Result<Outcome, BrokerError> {
    use epochlog_engine::Error as StoreError;
    use epochlog_ha::Error;
    warn!(step, %error, "the role cannot be taken");
    match error {
        Error::Store(StoreError::NeedsNewerEpoch { .. }) => {
            Ok(Outcome::Failed(Failure::NeedsNewerEpoch))
        }
        Error::Store(StoreError::StaleEpoch { .. }) | Error::StaleEpoch { .. } => {
            Ok(Outcome::Failed(Failure::NeedsNewerEpoch))
        }
        Error::Store(StoreError::Failed { .. } | StoreError::Closed)
        | Error::ThreadGone { .. }
        | Error::ShutDown => Err(error.into()),
        _ => Ok(Outcome::Failed(Failure::Unavailable)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decisions_are_checked_before_they_are_values() {
        let members = || BTreeSet::from([1, 2]);
        let address = || Some("10.0.0.1:1".to_owned());
        let good = decision((Some(1), address()), Some(3), members(), 4).expect("fits");
        assert_eq!((good.epoch, good.set_epoch), (3, 4));
        assert_eq!(good.master, Some((1, "10.0.0.1:1".into())));
        let none = decision((None, None), None, BTreeSet::new(), 0).expect("no master");
        assert_eq!((none.epoch, none.master), (0, None));
        assert_eq!(
            decision((Some(-1), None), Some(2), members(), 1)
                .expect("none")
                .master,
            None
        );
        assert!(decision((Some(1), None), Some(3), members(), 4).is_err());
        assert!(decision((Some(-2), address()), Some(3), members(), 4).is_err());
        assert!(decision((Some(1), address()), Some(-3), members(), 4).is_err());
        assert!(decision((Some(1), address()), Some(3), BTreeSet::from([-1]), 4).is_err());
        assert!(decision((Some(1), address()), Some(3), members(), -4).is_err());
    }

    #[test]
    fn the_log_id_tells_broker_sets_apart() {
        assert_eq!(log_id("c", "b"), log_id("c", "b"));
        assert!(log_id("c", "b").contradicts(log_id("c", "b2")));
        assert!(log_id("c", "bb").contradicts(log_id("cb", "b")));
    }
}
