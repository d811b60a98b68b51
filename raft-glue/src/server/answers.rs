//! Answers as the protocol writes them.

use std::collections::{BTreeMap, BTreeSet};

use crate::command::{Answer, Code, GroupView};
use crate::decider::Decider;
use crate::lease::LeaseRefusal;
use crate::liveness::LeaseAsk;
use crate::remoting::{
    AlterSyncStateSetResponse, ApplyBrokerIdResponse, BrokerHeartbeatResponse, BrokerMemberGroup,
    BrokerReplicaInfo, BrokerReplicasInfo, ElectMasterBody, ElectMasterResponse,
    GetMetadataResponse, GetNextBrokerIdRequest, GetNextBrokerIdResponse, GetReplicaInfoResponse,
    InSyncReplica, RegisterBrokerResponse, RemotingCommand, SyncStateSetBody, lives_text,
};

/// The code and the remark, without more.
pub(super) fn plain(request: &RemotingCommand, answer: &Answer) -> RemotingCommand {
    let code = answer.code.value();
    if answer.remark.is_empty() {
        request.answer(code)
    } else {
        request.refuse(code, answer.remark.clone())
    }
}

/// Authority for as long as was asked for.
pub(super) fn lease(
    ask: &LeaseAsk,
    lease_mills: Option<i64>,
    lives: &[(u64, u64)],
) -> BrokerHeartbeatResponse {
    BrokerHeartbeatResponse {
        lease_mills,
        lease_epoch: Some(signed(ask.epoch)),
        lease_why: None,
        lease_code: None,
        incarnations: Some(lives_text(lives.iter().copied())).filter(|text| !text.is_empty()),
    }
}

pub(super) fn no_lease(epoch: u32, code: LeaseRefusal, why: &str) -> BrokerHeartbeatResponse {
    BrokerHeartbeatResponse {
        lease_mills: Some(0),
        lease_epoch: Some(signed(epoch)),
        lease_why: Some(why.to_owned()),
        lease_code: Some(code.value()),
        incarnations: None,
    }
}

pub(super) fn metadata(decider: &Decider, request: &RemotingCommand) -> RemotingCommand {
    let metadata = decider.metadata();
    let configured = decider.config.peers.members();
    let leader = metadata
        .leader
        .and_then(|id| configured.get(&id).or_else(|| metadata.members.get(&id)));
    // With a separator behind the last one, too, as RocketMQ writes it.
    let peers: String = metadata
        .members
        .iter()
        .map(|(id, member)| {
            let member = configured.get(id).unwrap_or(member);
            format!("{}:{};", member.name, member.address)
        })
        .collect();
    request
        .answer(Code::Success.value())
        .with_header(&GetMetadataResponse {
            group: Some(decider.config.group.clone()),
            controller_leader_id: leader.map(|leader| leader.name.clone()),
            controller_leader_address: leader.map(|leader| leader.address.clone()),
            is_leader: Some(metadata.is_ready),
            peers: Some(peers),
        })
}

pub(super) fn altered(request: &RemotingCommand, answer: &Answer) -> RemotingCommand {
    match (&answer.group, answer.code) {
        (Some(group), Code::Success) => plain(request, answer)
            .with_header(&AlterSyncStateSetResponse {
                new_sync_state_set_epoch: signed(group.sync_state_set_epoch),
            })
            .with_body(&set_body(group)),
        _ => plain(request, answer),
    }
}

pub(super) fn elected(request: &RemotingCommand, answer: &Answer) -> RemotingCommand {
    let Some(group) = &answer.group else {
        return plain(request, answer);
    };
    let members = (answer.code == Code::Success).then(|| BrokerMemberGroup {
        broker_addrs: group
            .members
            .iter()
            .map(|(id, a)| (signed_id(*id), a.clone()))
            .collect(),
        broker_name: group.broker.clone(),
        cluster: group.cluster.clone(),
    });
    let body = ElectMasterBody {
        broker_member_group: members,
        sync_state_set: signed_ids(&group.sync_state_set),
    };
    plain(request, answer)
        .with_header(&ElectMasterResponse {
            master_broker_id: group.master.as_ref().map(|master| signed_id(master.id)),
            master_address: group.master.as_ref().map(|master| master.address.clone()),
            master_epoch: Some(signed(group.master_epoch)),
            sync_state_set_epoch: Some(signed(group.sync_state_set_epoch)),
        })
        .with_body(&body)
}

pub(super) fn registered(request: &RemotingCommand, answer: &Answer) -> RemotingCommand {
    let Some(group) = &answer.group else {
        return plain(request, answer);
    };
    let header = RegisterBrokerResponse {
        cluster_name: Some(group.cluster.clone()),
        broker_name: Some(group.broker.clone()),
        master_broker_id: group.master.as_ref().map(|master| signed_id(master.id)),
        master_address: group.master.as_ref().map(|master| master.address.clone()),
        master_epoch: group.master.as_ref().map(|_| signed(group.master_epoch)),
        sync_state_set_epoch: group
            .master
            .as_ref()
            .map(|_| signed(group.sync_state_set_epoch)),
    };
    plain(request, answer)
        .with_header(&header)
        .with_body(&set_body(group))
}

pub(super) fn replica_info(request: &RemotingCommand, answer: &Answer) -> RemotingCommand {
    let Some(group) = &answer.group else {
        return plain(request, answer);
    };
    plain(request, answer)
        .with_header(&GetReplicaInfoResponse {
            master_broker_id: group.master.as_ref().map(|master| signed_id(master.id)),
            master_address: group.master.as_ref().map(|master| master.address.clone()),
            master_epoch: Some(signed(group.master_epoch)),
        })
        .with_body(&set_body(group))
}

pub(super) fn sync_state_data(
    request: &RemotingCommand,
    views: &BTreeMap<String, GroupView>,
    alive: impl Fn(&str) -> BTreeSet<u64>,
) -> RemotingCommand {
    let mut table = BTreeMap::new();
    for (broker, view) in views {
        let alive = alive(broker);
        let (mut in_sync, mut not_in_sync) = (Vec::new(), Vec::new());
        for (id, address) in &view.members {
            let replica = InSyncReplica {
                alive: alive.contains(id),
                broker_address: address.clone(),
                broker_id: signed_id(*id),
                broker_name: broker.clone(),
            };
            if view.sync_state_set.contains(id) {
                in_sync.push(replica);
            } else {
                not_in_sync.push(replica);
            }
        }
        let info = BrokerReplicaInfo {
            in_sync_replicas: in_sync,
            master_address: view.master.as_ref().map(|master| master.address.clone()),
            master_broker_id: view.master.as_ref().map(|master| signed_id(master.id)),
            master_epoch: signed(view.master_epoch),
            not_in_sync_replicas: not_in_sync,
            sync_state_set_epoch: signed(view.sync_state_set_epoch),
        };
        table.insert(broker.clone(), info);
    }
    let body = BrokerReplicasInfo {
        replicas_info_table: table,
    };
    request.answer(Code::Success.value()).with_body(&body)
}

pub(super) fn next_broker_id(
    request: &RemotingCommand,
    asked: GetNextBrokerIdRequest,
    id: u64,
) -> RemotingCommand {
    request
        .answer(Code::Success.value())
        .with_header(&GetNextBrokerIdResponse {
            cluster_name: Some(asked.cluster_name),
            broker_name: Some(asked.broker_name),
            next_broker_id: signed_id(id),
        })
}

pub(super) fn applied(request: &RemotingCommand, answer: &Answer) -> RemotingCommand {
    let Some(group) = &answer.group else {
        return plain(request, answer);
    };
    plain(request, answer).with_header(&ApplyBrokerIdResponse {
        cluster_name: Some(group.cluster.clone()),
        broker_name: Some(group.broker.clone()),
    })
}

fn set_body(group: &GroupView) -> SyncStateSetBody {
    SyncStateSetBody {
        sync_state_set: signed_ids(&group.sync_state_set),
        sync_state_set_epoch: signed(group.sync_state_set_epoch),
    }
}

/// Epochs never pass the largest Java `int`.
fn signed(epoch: u32) -> i32 {
    i32::try_from(epoch).unwrap_or(i32::MAX)
}

/// Ids never pass the largest Java `long`.
fn signed_id(id: u64) -> i64 {
    i64::try_from(id).unwrap_or(i64::MAX)
}

fn signed_ids(ids: &BTreeSet<u64>) -> BTreeSet<i64> {
    ids.iter().map(|id| signed_id(*id)).collect()
}
