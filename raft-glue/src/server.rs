//! The controller's endpoint: requests become commands, outcomes become answers, with the codes,
//! field names and bodies of RocketMQ's protocol (RocketMQ: ControllerRequestProcessor).
//!
//! Invariants: only the leader answers what only the leader may; a success is answered from apply
//! or from behind a read barrier; whatever a request holds, it gets an answer.

mod admin;
mod answers;
mod settings;

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::Arc;

use crate::command::{
    AlterSyncStateSet, ApplyBrokerId, CleanBrokerData, Code, Command, RegisterBroker, Report,
};
use crate::decider::{Decider, Refusal};
use crate::lease::{LeaseNews, LeaseRefusal};
use crate::liveness::Heartbeat;
use crate::peer::RAFT_MESSAGE;
use crate::remoting::{
    AlterSyncStateSetRequest, ApplyBrokerIdRequest, BrokerHeartbeatRequest, CleanBrokerDataRequest,
    ElectMasterRequest, GetNextBrokerIdRequest, GetReplicaInfoRequest, Handler, HeaderError, Peer,
    RegisterBrokerRequest, RemotingCommand, SyncStateSetBody, from_json, read_lives, request_code,
};

/// Broker sets one request may ask for (1006).
const NAME_LIMIT: usize = 1 << 16;

/// See the module.
pub(crate) struct Endpoint(pub(crate) Arc<Decider>);

impl Handler for Endpoint {
    fn handle(
        &self,
        peer: &Peer,
        request: RemotingCommand,
    ) -> impl Future<Output = Option<RemotingCommand>> + Send + 'static {
        let decider = Arc::clone(&self.0);
        let connection = peer.id();
        async move {
            let outcome = match request.code {
                RAFT_MESSAGE => raft_message(&decider, &request),
                request_code::BROKER_HEARTBEAT => heartbeat(&decider, connection, &request).await,
                request_code::CONTROLLER_GET_METADATA_INFO => {
                    Ok(answers::metadata(&decider, &request))
                }
                request_code::GET_CONTROLLER_CONFIG => Ok(settings::print(&decider, &request)),
                request_code::UPDATE_CONTROLLER_CONFIG => settings::update(&decider, &request),
                request_code::CONTROLLER_STATUS => admin::status(&decider, &request).await,
                _ => leader_request(&decider, &request).await,
            };
            Some(
                outcome
                    .unwrap_or_else(|refusal| request.refuse(refusal.code.value(), refusal.remark)),
            )
        }
    }

    fn disconnected(&self, peer: &Peer) {
        self.0.disconnected(peer.id());
    }
}

type Outcome = Result<RemotingCommand, Refusal>;

async fn leader_request(decider: &Arc<Decider>, request: &RemotingCommand) -> Outcome {
    match request.code {
        request_code::CONTROLLER_ALTER_SYNC_STATE_SET => {
            alter_sync_state_set(decider, request).await
        }
        request_code::CONTROLLER_ELECT_MASTER => elect_master(decider, request).await,
        request_code::CONTROLLER_REGISTER_BROKER => register_broker(decider, request).await,
        request_code::CONTROLLER_GET_REPLICA_INFO => replica_info(decider, request).await,
        request_code::CONTROLLER_GET_SYNC_STATE_DATA => sync_state_data(decider, request).await,
        request_code::CLEAN_BROKER_DATA => clean_broker_data(decider, request).await,
        request_code::CONTROLLER_GET_NEXT_BROKER_ID => next_broker_id(decider, request).await,
        request_code::CONTROLLER_APPLY_BROKER_ID => apply_broker_id(decider, request).await,
        request_code::CONTROLLER_CHANGE_MEMBERS => admin::change_members(decider, request).await,
        request_code::CONTROLLER_TRANSFER_LEADER => admin::transfer(decider, request).await,
        code => Err(Refusal::new(
            Code::RequestCodeNotSupported,
            format!("request code {code} is not one a controller serves"),
        )),
    }
}

fn raft_message(decider: &Decider, request: &RemotingCommand) -> Outcome {
    match decider.ledger.receive(&request.body) {
        Ok(()) => Ok(request.answer(Code::Success.value())),
        Err(error) => {
            tracing::warn!(%error, "a frame of another controller is refused");
            Err(Refusal::new(Code::SystemError, error.to_string()))
        }
    }
}

/// The receipt is noted before anything is waited for; a broker that asks for no lease is answered
/// at once.
async fn heartbeat(decider: &Arc<Decider>, connection: u64, request: &RemotingCommand) -> Outcome {
    let header: BrokerHeartbeatRequest = read(request)?;
    let Some(id) = header.broker_id else {
        return Err(Refusal::new(Code::InvalidRequest, "brokerId is missing"));
    };
    let id = broker_id(id)?;
    let lease = lease_news(&header);
    let report = Report {
        epoch: header.epoch.unwrap_or(0),
        max_epoch: header.max_epoch.unwrap_or(0),
        max_offset: header.max_offset.unwrap_or(0),
        priority: header.election_priority.unwrap_or(i32::MAX),
        incarnation: header
            .incarnation
            .and_then(|number| u64::try_from(number).ok()),
        // A broker that says nothing of it vouches for nothing.
        unclean: header.unclean.unwrap_or(true),
    };
    let (cluster, broker) = (header.cluster_name, header.broker_name);
    let beat = Heartbeat {
        cluster: cluster.clone(),
        broker: broker.clone(),
        id,
        address: header.broker_addr,
        report: report.clone(),
        confirm_offset: header.confirm_offset.unwrap_or(0),
        timeout_ms: header
            .heartbeat_timeout_mills
            .map_or(0, |ms| u64::try_from(ms).unwrap_or(0)),
        connection,
        lease,
        leaving: header.leaving.unwrap_or(false),
    };
    let ask = decider
        .heartbeat(beat)
        .map_err(|error| Refusal::new(Code::SystemError, error.to_string()))?;
    let answer = request.answer(Code::Success.value());
    let Some(ask) = ask.filter(|_| !request.is_one_way()) else {
        // A Java controller answers without these fields: they tell which kind this one is.
        return Ok(answer.with_header(&answers::no_lease(
            0,
            LeaseRefusal::NotAsked,
            "not asked for",
        )));
    };
    let header = match decider.grant(&broker, id, &report, &ask).await {
        Ok(()) => {
            let lives = decider.lives(&cluster, &broker);
            answers::lease(&ask, header.lease_mills, &lives)
        }
        Err((code, why)) => answers::no_lease(ask.epoch, code, &why),
    };
    Ok(answer.with_header(&header))
}

/// What a heartbeat says of its sender's lease.
fn lease_news(header: &BrokerHeartbeatRequest) -> LeaseNews {
    let epoch = header
        .lease_epoch
        .and_then(|epoch| u32::try_from(epoch).ok())
        .unwrap_or(0);
    let ms = |ms: Option<i64>| ms.and_then(|ms| u64::try_from(ms).ok());
    match ms(header.lease_mills) {
        None => LeaseNews::Silent,
        Some(0) => LeaseNews::GivenBack { epoch },
        Some(lease_ms) => LeaseNews::Asks {
            epoch,
            lease_ms,
            // Whoever does not say how long its acknowledgements take is granted nothing.
            ack_ms: ms(header.lease_ack_mills).unwrap_or(u64::MAX),
        },
    }
}

async fn alter_sync_state_set(decider: &Arc<Decider>, request: &RemotingCommand) -> Outcome {
    let header: AlterSyncStateSetRequest = read(request)?;
    let body: SyncStateSetBody = from_json(&request.body)
        .map_err(|error| malformed(&format!("the body is no SyncStateSet: {error}")))?;
    let mut new_set = BTreeSet::new();
    for id in &body.sync_state_set {
        new_set.insert(broker_id(*id).map_err(|r| Refusal {
            code: Code::InvalidReplicas,
            ..r
        })?);
    }
    let command = Command::AlterSyncStateSet(AlterSyncStateSet {
        master_id: broker_id(header.master_broker_id).map_err(|refusal| Refusal {
            code: Code::InvalidMaster,
            ..refusal
        })?,
        master_epoch: epoch(header.master_epoch),
        sync_state_set_epoch: epoch(body.sync_state_set_epoch),
        new_set,
        seen_in: header
            .incarnations
            .as_deref()
            .map(|it| read_lives(it).collect()),
        alive: decider.reports(&header.broker_name),
        broker: header.broker_name,
    });
    let answer = decider.propose(&command).await?;
    Ok(answers::altered(request, &answer))
}

async fn elect_master(decider: &Arc<Decider>, request: &RemotingCommand) -> Outcome {
    let header: ElectMasterRequest = read(request)?;
    let broker_id = match header.broker_id {
        None | Some(-1) => None,
        Some(id) => Some(broker_id(id)?),
    };
    let designate = header.designate_elect.unwrap_or(false);
    let answer = decider
        .elect(&header.broker_name, broker_id, designate)
        .await?;
    Ok(answers::elected(request, &answer))
}

async fn register_broker(decider: &Arc<Decider>, request: &RemotingCommand) -> Outcome {
    let header: RegisterBrokerRequest = read(request)?;
    let command = Command::RegisterBroker(RegisterBroker {
        cluster: header.cluster_name,
        id: broker_id(header.broker_id)?,
        address: header.broker_address,
        incarnation: header
            .incarnation
            .and_then(|number| u64::try_from(number).ok()),
        unclean: header.unclean.unwrap_or(true),
        alive: decider.alive(&header.broker_name),
        broker: header.broker_name,
    });
    let answer = decider.propose(&command).await?;
    Ok(answers::registered(request, &answer))
}

async fn replica_info(decider: &Arc<Decider>, request: &RemotingCommand) -> Outcome {
    let header: GetReplicaInfoRequest = read(request)?;
    decider.barrier().await?;
    let answer = decider.state(|state| state.replica_info(&header.broker_name));
    Ok(answers::replica_info(request, &answer))
}

async fn sync_state_data(decider: &Arc<Decider>, request: &RemotingCommand) -> Outcome {
    let names: Vec<String> = from_json(&request.body).unwrap_or_default();
    if names.is_empty() || names.len() > NAME_LIMIT {
        return Err(malformed("the body must be a list of broker names"));
    }
    decider.barrier().await?;
    let views: BTreeMap<String, _> = decider.state(|state| {
        names
            .into_iter()
            .filter_map(|name| Some((name.clone(), state.view(&name)?)))
            .collect()
    });
    let alive = |broker: &str| decider.alive(broker);
    Ok(answers::sync_state_data(request, &views, alive))
}

async fn clean_broker_data(decider: &Arc<Decider>, request: &RemotingCommand) -> Outcome {
    let header: CleanBrokerDataRequest = read(request)?;
    let text = header.broker_controller_ids_to_clean.unwrap_or_default();
    let ids: Result<BTreeSet<u64>, _> = text
        .split(';')
        .map(str::trim)
        .filter(|id| !id.is_empty())
        .map(str::parse)
        .collect();
    let ids = ids.map_err(|error| {
        Refusal::new(
            Code::InvalidCleanBrokerMetadata,
            format!("{text} is no list of ids: {error}"),
        )
    })?;
    let command = Command::CleanBrokerData(CleanBrokerData {
        ids: Some(ids).filter(|ids| !ids.is_empty()),
        clean_living: header.is_clean_living_broker.unwrap_or(false),
        alive: decider.alive(&header.broker_name),
        broker: header.broker_name,
    });
    let answer = decider.clean(command.broker(), &command).await?;
    Ok(answers::plain(request, &answer))
}

async fn next_broker_id(decider: &Arc<Decider>, request: &RemotingCommand) -> Outcome {
    let header: GetNextBrokerIdRequest = read(request)?;
    decider.barrier().await?;
    let id = decider.state(|state| state.next_broker_id(&header.broker_name));
    Ok(answers::next_broker_id(request, header, id))
}

async fn apply_broker_id(decider: &Arc<Decider>, request: &RemotingCommand) -> Outcome {
    let header: ApplyBrokerIdRequest = read(request)?;
    let command = Command::ApplyBrokerId(ApplyBrokerId {
        id: broker_id(header.applied_broker_id).map_err(|refusal| Refusal {
            code: Code::BrokerIdInvalid,
            ..refusal
        })?,
        cluster: header.cluster_name,
        broker: header.broker_name,
        check_code: header.register_check_code,
    });
    let answer = decider.propose(&command).await?;
    Ok(answers::applied(request, &answer))
}

fn read<H: crate::remoting::TypedHeader>(request: &RemotingCommand) -> Result<H, Refusal> {
    request
        .header()
        .map_err(|error: HeaderError| malformed(&error.to_string()))
}

fn malformed(why: &str) -> Refusal {
    Refusal::new(Code::SystemError, why)
}

/// Ids are 1 and above.
fn broker_id(id: i64) -> Result<u64, Refusal> {
    match u64::try_from(id) {
        Ok(id) if id > 0 => Ok(id),
        _ => Err(malformed(&format!("{id} is no broker id"))),
    }
}

/// A negative epoch is no epoch ever decided.
fn epoch(epoch: i32) -> u32 {
    u32::try_from(epoch).unwrap_or(u32::MAX)
}
