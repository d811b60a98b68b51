//! SEND_MESSAGE, SEND_MESSAGE_V2 and SEND_BATCH_MESSAGE: from a request to a record and an answer
//! (RocketMQ: SendMessageProcessor).
//!
//! Invariants: nothing is written before every check has passed; each request gets one answer, and
//! one that was written never gets an answer that says it was not.

mod check;
mod open;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use epochlog_engine::{Appended, Message, MessageBatch, message_id};
use epochlog_ha::{AckPolicy, AckRequest, HaService, Outcome, PutStatus};
use epochlog_raft_glue::remoting::{
    Peer, RemotingCommand, SendMessageRequest, SendMessageResponse, request_code,
    response_code as code,
};
use tokio::sync::oneshot;

use crate::clock;
use crate::conf::{BrokerConf, FlushDiskType};
use crate::node::Node;
use crate::replicas::Role;
use check::{Refusal, Rules};
use open::OpenAnswer;
pub(crate) use open::OpenAnswers;

/// Takes messages for one broker.
pub struct SendService {
    node: Arc<Node>,
    rules: Rules,
    /// For messages that wait, which is the default.
    ack: AckRequest,
    /// For messages with `WAIT` other than true.
    no_wait: AckRequest,
    next_queue: AtomicU32,
    unique_keys: UniqueKeys,
}

/// A request on its way to its answer.
pub enum Sending {
    /// Answered already.
    Answered(RemotingCommand),
    /// Written; waits for copies or the disk.
    Waiting(Written),
}

/// What the answer is made of, once the write has ended.
pub struct Written {
    request: RemotingCommand,
    ended: oneshot::Receiver<Ended>,
    answer: AnswerParts,
    open: OpenAnswer,
}

/// How a write ended: what RocketMQ calls it, a text if it failed, and where the records are.
struct Ended {
    status: PutStatus,
    remark: String,
    appended: Vec<Appended>,
}

struct AnswerParts {
    store_host: SocketAddr,
    queue_id: i32,
    unique_key: Option<String>,
    region_id: String,
    trace_on: bool,
}

impl SendService {
    /// A service that follows the settings of `node`.
    #[must_use]
    pub fn new(node: Arc<Node>) -> Self {
        let conf = &node.conf;
        let rules = Rules {
            cluster_name: conf.cluster_name.clone(),
            region_id: conf.region_id.clone(),
            trace_on: conf.trace_on,
            max_message_len: conf.max_message_len,
            accept_send_from_ms: conf.accept_send_from_ms,
        };
        let (ack, no_wait) = ack_requests(conf);
        let unique_keys = UniqueKeys::new(node.address);
        Self {
            node,
            rules,
            ack,
            no_wait,
            next_queue: AtomicU32::new(0),
            unique_keys,
        }
    }

    /// Checks and appends one request. Does not block beyond the append itself; the rest is waited
    /// for in [`Sending::answer`].
    pub fn send(&self, peer: &Peer, request: &RemotingCommand) -> Sending {
        match self.try_send(peer, request) {
            Ok(written) => Sending::Waiting(written),
            Err(refusal) => {
                let answer = request.refuse(refusal.code, refusal.remark);
                Sending::Answered(self.marked(answer))
            }
        }
    }

    /// Refusals carry region and trace too.
    fn marked(&self, answer: RemotingCommand) -> RemotingCommand {
        mark(answer, &self.rules.region_id, self.rules.trace_on)
    }

    fn try_send(&self, peer: &Peer, request: &RemotingCommand) -> Result<Written, Refusal> {
        let ha = self.master()?;
        let header = match request.code {
            request_code::SEND_MESSAGE => SendMessageRequest::read_long(&request.ext_fields),
            _ => SendMessageRequest::read_short(&request.ext_fields),
        };
        let header = header.map_err(|error| refuse(code::SYSTEM_ERROR, error.to_string()))?;
        let now_ms = clock::now_since_1970_ms();
        let topics = &self.node.topics;
        let queues = check::check(&header, &request.body, &self.rules, topics, now_ms)?;
        let queue_id = self.queue(header.queue_id, queues);
        let properties = header.properties.as_deref().unwrap_or("");
        let ack = if check::waits(properties) {
            self.ack
        } else {
            self.no_wait
        };
        let base = self.base_message(peer, &header, queue_id);
        let open = OpenAnswer::new(&self.node);
        let (done, ended) = oneshot::channel();
        let unique_key = if header.batch == Some(true) {
            self.append_batch(ha, base, &request.body, ack, done)?;
            property(properties, "UNIQ_KEY")
        } else {
            let make = || self.unique_keys.next();
            let (stored, unique_key) = check::stored_properties(properties, &self.rules, make)?;
            let message = Message {
                properties: stored.as_bytes(),
                body: &request.body,
                ..base
            };
            ha.append(&message, ack, move |outcome| {
                // The receiver is gone when the broker stops; nobody is left to tell.
                let _ = done.send(Ended::of(outcome, |appended| vec![appended]));
            });
            Some(unique_key)
        };
        let answer = AnswerParts {
            store_host: self.node.address,
            queue_id,
            unique_key,
            region_id: self.rules.region_id.clone(),
            trace_on: self.rules.trace_on,
        };
        // The body is not needed for the answer.
        let request = RemotingCommand {
            opaque: request.opaque,
            coding: request.coding,
            ..RemotingCommand::request(request.code)
        };
        Ok(Written {
            request,
            ended,
            answer,
            open,
        })
    }

    /// Replication, if this broker is master.
    fn master(&self) -> Result<&HaService, Refusal> {
        match (self.node.role(), self.node.ha()) {
            (Some(Role::Master { .. }), Some(ha)) => Ok(ha),
            (Some(Role::Slave { .. }), _) => Err(refuse(
                code::SYSTEM_BUSY,
                "[REJECTREQUEST] this broker is a slave; send to the master",
            )),
            _ => Err(refuse(
                code::SERVICE_NOT_AVAILABLE,
                "this broker is fenced: the controllers have not confirmed its role yet",
            )),
        }
    }

    /// The queue asked for, or the next one in turn.
    fn queue(&self, asked: i32, queues: i32) -> i32 {
        if asked >= 0 {
            return asked;
        }
        let queues = u32::try_from(queues).unwrap_or(1).max(1);
        let turn = self.next_queue.fetch_add(1, Ordering::Relaxed) % queues;
        i32::try_from(turn).unwrap_or(0)
    }

    fn base_message<'a>(
        &self,
        peer: &Peer,
        header: &'a SendMessageRequest,
        queue_id: i32,
    ) -> Message<'a> {
        let peer = peer.address();
        Message {
            topic: &header.topic,
            queue_id,
            flag: header.flag,
            sys_flag: header.sys_flag,
            born_timestamp_ms: header.born_timestamp,
            // A dual-stack listener shows IPv4 peers as mapped IPv6 addresses.
            born_host: SocketAddr::new(peer.ip().to_canonical(), peer.port()),
            store_host: self.node.address,
            reconsume_times: header.reconsume_times.unwrap_or(0),
            prepared_transaction_offset: 0,
            body: &[],
            properties: &[],
        }
    }

    fn append_batch(
        &self,
        ha: &HaService,
        base: Message<'_>,
        body: &[u8],
        ack: AckRequest,
        done: oneshot::Sender<Ended>,
    ) -> Result<(), Refusal> {
        let illegal = |why: String| refuse(code::MESSAGE_ILLEGAL, why);
        let batch = MessageBatch::new(body).map_err(|error| illegal(error.to_string()))?;
        let mut messages = Vec::with_capacity(batch.len());
        for item in batch {
            check::check_properties(item.properties)?;
            let (flag, body, properties) = (item.flag, item.body, item.properties);
            messages.push(Message {
                flag,
                body,
                properties,
                ..base
            });
        }
        ha.append_batch(&messages, ack, move |outcome| {
            // As for a single message.
            let _ = done.send(Ended::of(outcome, |appended| appended));
        });
        Ok(())
    }
}

impl Sending {
    /// Waits for the end of the write, if there was one.
    pub async fn answer(self) -> RemotingCommand {
        match self {
            Self::Answered(answer) => answer,
            Self::Waiting(written) => written.answer().await,
        }
    }
}

impl Written {
    async fn answer(self) -> RemotingCommand {
        let Self {
            request,
            ended,
            answer,
            open,
        } = self;
        let node = &open.node;
        let mut ended = ended.await.unwrap_or_else(|_| Ended {
            status: PutStatus::UnknownError,
            remark: "replication ended without an answer; the message may be stored".into(),
            appended: Vec::new(),
        });
        // The last look at the authority: from here the answer has the time the lease leaves it.
        let mut send_by_ms = None;
        if let (PutStatus::Ok, Some(ha)) = (ended.status, node.ha()) {
            send_by_ms = node.authority.send_by_ms(ha);
            if send_by_ms.is_none() {
                ended.status = PutStatus::FlushSlaveTimeout;
                ended.remark = "stored, but this master lost its authority".into();
            }
        }
        RemotingCommand {
            send_by_ms,
            ..answer.build(&request, &ended)
        }
    }
}

impl AnswerParts {
    fn build(&self, request: &RemotingCommand, ended: &Ended) -> RemotingCommand {
        let code = ended.status.response_code();
        let mut answer = if ended.remark.is_empty() {
            request.answer(code)
        } else {
            request.refuse(code, ended.remark.as_str())
        };
        if let (true, Some(first)) = (ended.status.is_stored(), ended.appended.first()) {
            let ids: Vec<String> = ended
                .appended
                .iter()
                .map(|appended| message_id(self.store_host, appended.offset))
                .collect();
            answer = answer.with_header(&SendMessageResponse {
                msg_id: ids.join(","),
                queue_id: self.queue_id,
                queue_offset: first.queue_offset,
                transaction_id: self.unique_key.clone(),
            });
        }
        mark(answer, &self.region_id, self.trace_on)
    }
}

impl Ended {
    fn of<A>(outcome: Outcome<A>, list: impl FnOnce(A) -> Vec<Appended>) -> Self {
        let status = outcome.put_status();
        let (remark, appended) = match outcome {
            Outcome::Acked(appended) => (String::new(), list(appended)),
            Outcome::Refused(refused) if status == PutStatus::InSyncReplicasNotEnough => (
                format!("in-sync replicas are not enough: {refused}"),
                Vec::new(),
            ),
            Outcome::Refused(refused) => (refused.to_string(), Vec::new()),
            Outcome::Unknown(appended, reason) => (
                format!("stored, but not known to be replicated: {reason:?}"),
                list(appended),
            ),
        };
        Self {
            status,
            remark,
            appended,
        }
    }
}

fn mark(answer: RemotingCommand, region_id: &str, trace_on: bool) -> RemotingCommand {
    answer
        .with_field("MSG_REGION", region_id)
        .with_field("TRACE_ON", trace_on.to_string())
}

fn refuse(code: i32, remark: impl Into<String>) -> Refusal {
    Refusal {
        code,
        remark: remark.into(),
    }
}

fn property(properties: &str, name: &str) -> Option<String> {
    let found = epochlog_engine::Properties::new(properties.as_bytes()).get(name);
    found.map(std::borrow::Cow::into_owned)
}

/// What messages wait for: with and without `WAIT`.
fn ack_requests(conf: &BrokerConf) -> (AckRequest, AckRequest) {
    let policy = match conf.in_sync_replicas {
        _ if conf.all_ack_in_sync_state_set => AckPolicy::AllInSync,
        0 | 1 => AckPolicy::Local,
        copies => AckPolicy::Replicas(copies),
    };
    let local = AckRequest::new(AckPolicy::Local, conf.slave_timeout);
    match conf.flush_disk_type {
        FlushDiskType::Async => (AckRequest::new(policy, conf.slave_timeout), local),
        FlushDiskType::Sync => {
            // Disk and replicas are waited for together, so the longer limit counts.
            let timeout: Duration = conf.slave_timeout.max(conf.sync_flush_timeout);
            (AckRequest::new(policy, timeout).flushed(), local)
        }
    }
}

/// Makes UNIQ_KEY values for clients that send none: 32 hex digits, different in every process.
struct UniqueKeys {
    prefix: String,
    next: AtomicU64,
}

impl UniqueKeys {
    fn new(address: SocketAddr) -> Self {
        let ip = match address.ip() {
            std::net::IpAddr::V4(ip) => ip.octets(),
            std::net::IpAddr::V6(ip) => {
                let [.., a, b, c, d] = ip.octets();
                [a, b, c, d]
            }
        };
        let start_ms = clock::now_since_1970_ms() & 0xFFFF_FFFF;
        let process = std::process::id() & 0xFFFF;
        let prefix = format!("{:08X}{process:04X}{start_ms:08X}", u32::from_be_bytes(ip));
        Self {
            prefix,
            next: AtomicU64::new(0),
        }
    }

    fn next(&self) -> String {
        let count = self.next.fetch_add(1, Ordering::Relaxed) & 0xFFFF_FFFF_FFFF;
        format!("{}{count:012X}", self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn unique_keys_have_32_digits_and_differ() {
        let keys = UniqueKeys::new("10.0.0.1:10911".parse().expect("address"));
        let made: BTreeSet<String> = (0..1000).map(|_| keys.next()).collect();
        assert_eq!(made.len(), 1000);
        assert!(
            made.iter()
                .all(|key| key.len() == 32 && key.starts_with("0A000001"))
        );
    }
}
