//! Sends the input to whoever is master, a bounded number at a time, and keeps what became of every
//! attempt.
//!
//! Each try to send a message is an attempt with an id of its own, kept in the message's properties,
//! so that the check on disk can tell a second try from a duplicate. An attempt whose outcome is not
//! known is never counted as acknowledged, and never sent again under the same id.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use epochlog_raft_glue::remoting::{
    Client, RemotingCommand, RemotingError, SendMessageRequest, request_code, response_code,
};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::input::Outgoing;

/// The property that carries an attempt's id.
pub(crate) const ATTEMPT: &str = "EPOCHLOG_ATTEMPT";

/// How long one send may take before its outcome counts as unknown.
const SEND_TIMEOUT: Duration = Duration::from_secs(5);
/// How long after a refusal the message is sent again.
const RETRY_PAUSE: Duration = Duration::from_millis(10);
/// How long one message may be tried before the demo gives up.
const GIVE_UP: Duration = Duration::from_secs(40);

/// Where to send: the master the controllers name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Master {
    /// Broker id.
    pub(crate) id: u64,
    /// Epoch it is master in.
    pub(crate) epoch: u32,
    /// `host:port` it takes sends on.
    pub(crate) address: String,
}

/// What is known of one attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Sent {
    /// It holds on every member of the SyncStateSet.
    Acked,
    /// Nothing was written; try again.
    Refused(String),
    /// It may or may not have been written.
    Unknown(String),
    /// It will never be taken.
    Rejected(String),
}

/// What became of the whole input.
#[derive(Debug, Default, Clone)]
pub(crate) struct Tally {
    /// Ids of the acknowledged attempts.
    pub(crate) acked: Vec<String>,
    /// Body bytes of the acknowledged messages.
    pub(crate) bytes: u64,
    /// Attempts whose outcome was unknown and that were sent again under a new id.
    pub(crate) unknown: usize,
    /// Attempts that were refused without a write.
    pub(crate) refused: usize,
    /// When the first write was acknowledged by a master of an epoch above `failing_epoch`.
    pub(crate) first_after_failover: Option<std::time::Instant>,
    /// The epoch whose master was killed.
    pub(crate) failing_epoch: Option<u32>,
    /// Why the traffic stopped early.
    pub(crate) failure: Option<String>,
}

/// The input on its way.
#[derive(Debug)]
pub(crate) struct Traffic {
    client: Client,
    messages: Vec<Outgoing>,
    next: AtomicUsize,
    master: watch::Receiver<Option<Master>>,
    began: Instant,
    gap: Duration,
    stopped: AtomicBool,
    tally: Mutex<Tally>,
}

impl Traffic {
    /// Prepares to send `messages`, one each `gap` at the earliest.
    pub(crate) fn new(
        client: Client,
        messages: Vec<Outgoing>,
        master: watch::Receiver<Option<Master>>,
        gap: Duration,
    ) -> Arc<Self> {
        Arc::new(Self {
            client,
            messages,
            next: AtomicUsize::new(0),
            master,
            began: Instant::now(),
            gap,
            stopped: AtomicBool::new(false),
            tally: Mutex::default(),
        })
    }

    /// How many messages there are.
    pub(crate) fn len(&self) -> usize {
        self.messages.len()
    }

    /// A copy of what is known so far.
    pub(crate) fn tally(&self) -> Tally {
        self.tally.lock().clone()
    }

    /// Number of acknowledged attempts and bytes so far.
    pub(crate) fn progress(&self) -> (usize, u64) {
        let tally = self.tally.lock();
        (tally.acked.len(), tally.bytes)
    }

    /// Says that the master of `epoch` was killed just now.
    pub(crate) fn master_killed(&self, epoch: u32) {
        self.tally.lock().failing_epoch = Some(epoch);
    }

    /// Sends everything with `in_flight` messages on the way at a time; ends when all are
    /// acknowledged or one cannot be sent.
    pub(crate) async fn run(self: &Arc<Self>, in_flight: usize) {
        let mut senders = JoinSet::new();
        for _ in 0..in_flight.max(1) {
            let traffic = Arc::clone(self);
            senders.spawn(async move { traffic.send_from_the_front().await });
        }
        while senders.join_next().await.is_some() {}
    }

    async fn send_from_the_front(&self) {
        while !self.stopped.load(Ordering::Relaxed) {
            let index = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(message) = self.messages.get(index) else {
                return;
            };
            let turn = u32::try_from(index).unwrap_or(u32::MAX);
            sleep_until(self.began + self.gap * turn).await;
            let delivered = timeout(GIVE_UP, self.deliver(index, message)).await;
            let failure = match delivered {
                Ok(Ok(())) => continue,
                Ok(Err(reason)) => reason,
                Err(_) => format!("message {index} was not acknowledged within {GIVE_UP:?}"),
            };
            self.stopped.store(true, Ordering::Relaxed);
            self.tally.lock().failure.get_or_insert(failure);
        }
    }

    /// Tries until the message is acknowledged; an error is final.
    async fn deliver(&self, index: usize, message: &Outgoing) -> Result<(), String> {
        let mut master = self.master.clone();
        for attempt in 1_u32.. {
            let target = match master.wait_for(Option::is_some).await {
                Ok(known) => known.clone(),
                Err(_) => return Err("the demo stopped looking for a master".to_owned()),
            };
            let Some(target) = target else { continue };
            let id = format!("{index}-{attempt}");
            let command = message.command(&id);
            let answer = self
                .client
                .request(&target.address, command, SEND_TIMEOUT)
                .await;
            match judge(answer) {
                Sent::Acked => {
                    self.acked(id, message.body.len(), target.epoch);
                    return Ok(());
                }
                Sent::Unknown(_) => self.tally.lock().unknown += 1,
                Sent::Refused(_) => self.tally.lock().refused += 1,
                Sent::Rejected(why) => return Err(format!("message {index}: {why}")),
            }
            sleep(RETRY_PAUSE).await;
        }
        Ok(())
    }

    fn acked(&self, id: String, body_len: usize, epoch: u32) {
        let mut tally = self.tally.lock();
        tally.acked.push(id);
        tally.bytes += body_len as u64;
        if tally.failing_epoch.is_some_and(|failing| epoch > failing) {
            tally
                .first_after_failover
                .get_or_insert_with(std::time::Instant::now);
        }
    }
}

/// What an answer, or its absence, says about the attempt.
pub(crate) fn judge(answer: Result<RemotingCommand, RemotingError>) -> Sent {
    let answer = match answer {
        Ok(answer) => answer,
        Err(error @ (RemotingError::Connect { .. } | RemotingError::Busy { .. })) => {
            return Sent::Refused(error.to_string());
        }
        Err(error @ RemotingError::Frame { .. }) => return Sent::Rejected(error.to_string()),
        Err(error) => return Sent::Unknown(error.to_string()),
    };
    let remark = answer.remark.clone().unwrap_or_default();
    let text = format!("code {}: {remark}", answer.code);
    match answer.code {
        response_code::SUCCESS => Sent::Acked,
        response_code::FLUSH_DISK_TIMEOUT
        | response_code::SLAVE_NOT_AVAILABLE
        | response_code::FLUSH_SLAVE_TIMEOUT => Sent::Unknown(text),
        response_code::SYSTEM_BUSY | response_code::SERVICE_NOT_AVAILABLE => Sent::Refused(text),
        response_code::SYSTEM_ERROR if remark.contains("in-sync replicas") => Sent::Refused(text),
        response_code::SYSTEM_ERROR => Sent::Unknown(text),
        _ => Sent::Rejected(text),
    }
}

impl Outgoing {
    /// The SEND_MESSAGE_V2 request of one attempt.
    fn command(&self, attempt: &str) -> RemotingCommand {
        let mut properties = self.properties.clone();
        if !properties.is_empty() && !properties.ends_with('\u{2}') {
            properties.push('\u{2}');
        }
        properties.push_str(ATTEMPT);
        properties.push('\u{1}');
        properties.push_str(attempt);
        properties.push('\u{2}');
        let header = SendMessageRequest {
            producer_group: "epochlog-demo".to_owned(),
            topic: self.topic.clone(),
            default_topic: Some("TBW102".to_owned()),
            default_topic_queue_nums: Some(8),
            queue_id: self.queue_id,
            sys_flag: self.sys_flag,
            born_timestamp: self.born_timestamp_ms,
            flag: self.flag,
            properties: Some(properties),
            reconsume_times: Some(self.reconsume_times),
            batch: Some(false),
            ..SendMessageRequest::default()
        };
        RemotingCommand::request_with(request_code::SEND_MESSAGE_V2, &header)
            .with_body(self.body.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(code: i32, remark: &str) -> Result<RemotingCommand, RemotingError> {
        Ok(RemotingCommand::request(request_code::SEND_MESSAGE_V2).refuse(code, remark))
    }

    #[test]
    fn only_a_success_counts_as_acknowledged_and_a_lost_answer_is_never_a_refusal() {
        let closed = || RemotingError::Closed {
            address: "127.0.0.1:1".to_owned(),
        };
        let late = RemotingError::Timeout {
            address: "127.0.0.1:1".to_owned(),
            code: request_code::SEND_MESSAGE_V2,
            limit: SEND_TIMEOUT,
        };
        assert_eq!(judge(answer(0, "")), Sent::Acked);
        for code in [10, 11, 12] {
            assert!(
                matches!(judge(answer(code, "")), Sent::Unknown(_)),
                "{code}"
            );
        }
        assert!(matches!(judge(Err(closed())), Sent::Unknown(_)));
        assert!(matches!(judge(Err(late)), Sent::Unknown(_)));
        assert!(matches!(
            judge(answer(1, "handler failed")),
            Sent::Unknown(_)
        ));
        let few = "the number of in-sync replicas is not enough";
        assert!(matches!(judge(answer(1, few)), Sent::Refused(_)));
        for code in [2, 14] {
            assert!(
                matches!(judge(answer(code, "")), Sent::Refused(_)),
                "{code}"
            );
        }
        for code in [13, 16, 17, 29] {
            assert!(
                matches!(judge(answer(code, "")), Sent::Rejected(_)),
                "{code}"
            );
        }
    }

    #[test]
    fn the_attempt_stands_behind_the_messages_own_properties() {
        let message = Outgoing {
            properties: "TAGS\u{1}a".to_owned(),
            ..Outgoing::text("orders", "hello")
        };
        let command = message.command("7-2");
        let sent = SendMessageRequest::read_short(&command.ext_fields).unwrap();
        let expected = "TAGS\u{1}a\u{2}EPOCHLOG_ATTEMPT\u{1}7-2\u{2}";
        assert_eq!(sent.properties.as_deref(), Some(expected));
    }
}
