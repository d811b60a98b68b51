//! The broker's listen port: which request goes where.
//!
//! Serves sends, the questions of slaves, controllers and operators about replication, the tables a
//! slave copies, and role changes pushed by controllers. Every other code is answered with "not
//! supported".

use std::future::Future;
use std::sync::Arc;

use epochlog_ha::{HaRuntimeInfo, RoleInfo};
use epochlog_raft_glue::remoting::{
    BrokerEpochCache, EpochSpan, ExchangeHaInfoRequest, ExchangeHaInfoResponse,
    HaClientRuntimeInfo, HaConnectionRuntimeInfo, HaRuntimeInfoBody, Handler, HeaderError,
    NotifyRoleChangedRequest, Peer, RemotingCommand, SyncStateSetBody, from_json, request_code,
    response_code as code,
};

use crate::clock;
use crate::node::Node;
use crate::replicas::Role;
use crate::send::{SendService, Sending};
use crate::slaves;
use crate::wiring::{decision, hand_over, has_authority};

/// Answers the requests of one broker.
pub struct Endpoint {
    node: Arc<Node>,
    send: SendService,
}

impl Endpoint {
    /// The endpoint of `node`.
    #[must_use]
    pub fn new(node: Arc<Node>) -> Self {
        let send = SendService::new(Arc::clone(&node));
        Self { node, send }
    }

    fn answer(&self, peer: &Peer, request: &RemotingCommand) -> Sending {
        let answer = match request.code {
            request_code::SEND_MESSAGE
            | request_code::SEND_MESSAGE_V2
            | request_code::SEND_BATCH_MESSAGE => return self.send.send(peer, request),
            request_code::EXCHANGE_BROKER_HA_INFO => self.ha_address(request),
            request_code::GET_BROKER_EPOCH_CACHE => Ok(self.epochs(request)),
            request_code::NOTIFY_BROKER_ROLE_CHANGED => self.role_changed(request),
            request_code::HEART_BEAT => Ok(slaves::heart_beat(request)),
            request_code::UNREGISTER_CLIENT => Ok(request.answer(code::SUCCESS)),
            other => Ok(request.refuse(
                code::REQUEST_CODE_NOT_SUPPORTED,
                format!("request type {other} not supported"),
            )),
        };
        Sending::Answered(
            answer.unwrap_or_else(|error| request.refuse(code::SYSTEM_ERROR, error.to_string())),
        )
    }

    /// 906: only a master has an address to give; what others set is not needed with controllers.
    fn ha_address(&self, request: &RemotingCommand) -> Result<RemotingCommand, HeaderError> {
        let header: ExchangeHaInfoRequest = request.header()?;
        let is_query = header.master_ha_address.is_none();
        let is_master = matches!(self.node.role(), Some(Role::Master { .. }));
        if !(is_query && is_master) {
            return Ok(request.answer(code::SUCCESS));
        }
        Ok(request
            .answer(code::SUCCESS)
            .with_header(&ExchangeHaInfoResponse {
                master_ha_address: Some(self.node.ha_address.to_string()),
                master_flush_offset: Some(signed(self.node.store.end_offset())),
                master_address: Some(self.node.address.to_string()),
            }))
    }

    /// 1007.
    fn epochs(&self, request: &RemotingCommand) -> RemotingCommand {
        let is_master = matches!(self.node.role(), Some(Role::Master { .. }));
        let list = self.node.store.epochs();
        let entries = list.entries();
        let ends = entries
            .iter()
            .skip(1)
            .map(|next| signed(next.start))
            .chain([i64::MAX]);
        let spans = entries
            .iter()
            .zip(ends)
            .map(|(entry, end_offset)| EpochSpan {
                epoch: i32::try_from(entry.epoch).unwrap_or(i32::MAX),
                start_offset: signed(entry.start),
                end_offset,
            });
        let body = BrokerEpochCache {
            broker_id: if is_master {
                0
            } else {
                signed(self.node.id().unwrap_or(0))
            },
            broker_name: self.node.conf.broker_name.clone(),
            cluster_name: self.node.conf.cluster_name.clone(),
            epoch_list: spans.collect(),
            max_offset: signed(self.node.store.end_offset()),
        };
        request.answer(code::SUCCESS).with_body(&body)
    }

    /// 1008.
    fn role_changed(&self, request: &RemotingCommand) -> Result<RemotingCommand, HeaderError> {
        let header: NotifyRoleChangedRequest = request.header()?;
        let Ok(set) = from_json::<SyncStateSetBody>(&request.body) else {
            return Ok(request.refuse(code::SYSTEM_ERROR, "the body is no SyncStateSet"));
        };
        let master = (header.master_broker_id, header.master_address);
        match decision(
            master,
            Some(header.master_epoch),
            set.sync_state_set,
            header.sync_state_set_epoch,
        ) {
            Ok(decision) => {
                self.node.push_news(decision);
                Ok(request.answer(code::SUCCESS))
            }
            Err(why) => Ok(request.refuse(code::SYSTEM_ERROR, why)),
        }
    }
}

impl Handler for Endpoint {
    fn handle(
        &self,
        peer: &Peer,
        request: RemotingCommand,
    ) -> impl Future<Output = Option<RemotingCommand>> + Send + 'static {
        let node = Arc::clone(&self.node);
        let waits = [request_code::GET_BROKER_HA_STATUS, request_code::HAND_OVER];
        let waits = waits.contains(&request.code) || slaves::asks_for_a_table(request.code);
        let sending = (!waits).then(|| self.answer(peer, &request));
        async move {
            match sending {
                Some(sending) => Some(sending.answer().await),
                None if request.code == request_code::HAND_OVER => {
                    Some(hand_over(node, request).await)
                }
                None => {
                    let answer = tokio::task::spawn_blocking(move || match request.code {
                        request_code::GET_BROKER_HA_STATUS => ha_status(&node, &request),
                        _ => slaves::table(&node, &request),
                    });
                    answer.await.ok()
                }
            }
        }
    }
}

/// 907, with the role, epoch, id and confirm offset in fields that Java ignores. Asks the threads of
/// replication and waits for them.
fn ha_status(node: &Node, request: &RemotingCommand) -> RemotingCommand {
    let info = node.ha().map(epochlog_ha::HaService::runtime_info);
    let end = node.store.end_offset();
    let body = info.as_ref().map_or_else(
        || HaRuntimeInfoBody {
            master_commit_log_max_offset: signed(end),
            ..HaRuntimeInfoBody::default()
        },
        ha_body,
    );
    let (role, epoch) = match node.role() {
        None => ("FENCED", None),
        Some(Role::Master { epoch }) => ("MASTER", Some(epoch)),
        Some(Role::Slave { epoch, .. }) => ("SLAVE", Some(epoch)),
    };
    let mut answer = request
        .answer(code::SUCCESS)
        .with_body(&body)
        .with_field("role", role);
    if let Some(epoch) = epoch {
        answer = answer.with_field("masterEpoch", epoch.to_string());
    }
    if let Some(info) = &info {
        answer = answer.with_field("haMetrics", info.metrics.to_string());
    }
    if let Some(id) = node.id() {
        answer = answer.with_field("brokerId", id.to_string());
    }
    let authority = has_authority(node.role().as_ref(), node.ha());
    answer = answer.with_field("authority", authority.to_string());
    answer.with_field("confirmOffset", node.store.confirm_offset().to_string())
}

/// Offsets and ids travel as Java's long.
pub(crate) fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn ha_body(info: &HaRuntimeInfo) -> HaRuntimeInfoBody {
    let now_ms = clock::now_since_1970_ms();
    let ago = |age_ms: Option<u64>| age_ms.map_or(0, |age| now_ms.saturating_sub(signed(age)));
    let client = info.client.as_ref().map(|client| HaClientRuntimeInfo {
        last_read_timestamp: ago(client.last_read_age_ms),
        last_write_timestamp: ago(client.last_write_age_ms),
        master_addr: Some(client.master_addr.to_string()),
        master_flush_offset: 0,
        max_offset: signed(client.max_offset),
        transferred_byte_in_second: signed(client.transferred_byte_in_second),
    });
    let connections = info
        .connections
        .iter()
        .map(|slave| HaConnectionRuntimeInfo {
            addr: slave.addr.to_string(),
            diff: signed(slave.diff),
            in_sync: slave.in_sync,
            slave_ack_offset: slave.slave_ack_offset.map_or(-1, signed),
            transfer_from_where: slave.transfer_from_where.map_or(-1, signed),
            transferred_byte_in_second: signed(slave.transferred_byte_in_second),
        });
    HaRuntimeInfoBody {
        ha_client_runtime_info: client,
        ha_connection_info: connections.collect(),
        in_sync_slave_nums: i32::try_from(info.in_sync_slave_nums).unwrap_or(i32::MAX),
        master: matches!(info.role, RoleInfo::Master { .. }),
        master_commit_log_max_offset: signed(info.master_commit_log_max_offset),
    }
}
