//! Sending messages to a broker the way Java producers do: SEND_MESSAGE_V2, answers by code.
//!
//! A failed send says whether the message may have been stored all the same.

use std::time::Duration;

use bytes::Bytes;
use epochlog_raft_glue::remoting::{
    Client, ClientConfig, RemotingCommand, RemotingError, SendMessageRequest, SendMessageResponse,
    request_code, response_code,
};

/// What the broker said about a stored message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Receipt {
    /// Store host and log offset in hex.
    pub msg_id: String,
    /// The queue it went to.
    pub queue_id: i32,
    /// Its place in the queue.
    pub queue_offset: i64,
}

/// A message that is not known to be stored safely.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// The broker took nothing.
    #[error("refused with code {code}: {remark}")]
    Refused {
        /// Response code.
        code: i32,
        /// The broker's text.
        remark: String,
    },
    /// The message is in the master's log; whether it survives is not known.
    #[error("stored, but not safely (code {code}): {remark}")]
    Unsafe {
        /// 10, 11 or 12.
        code: i32,
        /// The broker's text.
        remark: String,
    },
    /// No usable answer; the message may be stored or not.
    #[error("no answer: {why}")]
    NoAnswer {
        /// What happened.
        why: String,
    },
}

impl SendError {
    /// Whether the message may be in the log all the same.
    #[must_use]
    pub fn may_be_stored(&self) -> bool {
        match self {
            Self::Refused { .. } => false,
            Self::Unsafe { .. } | Self::NoAnswer { .. } => true,
        }
    }

    /// The response code, when there was an answer.
    #[must_use]
    pub fn code(&self) -> Option<i32> {
        match self {
            Self::Refused { code, .. } | Self::Unsafe { code, .. } => Some(*code),
            Self::NoAnswer { .. } => None,
        }
    }
}

/// Sends to brokers. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Producer {
    client: Client,
    group: String,
    topic: String,
    timeout: Duration,
}

impl Producer {
    /// A producer for one topic that keeps at most `in_flight` messages under way per broker.
    #[must_use]
    pub fn new(topic: &str, in_flight: usize, timeout: Duration) -> Self {
        let config = ClientConfig {
            max_in_flight: in_flight.max(1),
            queue_len: in_flight.clamp(1, 1024),
            connect_timeout: timeout.min(Duration::from_secs(3)),
            ..ClientConfig::default()
        };
        Self {
            client: Client::new(config),
            group: "epochlog_produce".into(),
            topic: topic.to_owned(),
            timeout,
        }
    }

    /// Sends one message to the broker at `address` and waits for its answer. `properties` are in
    /// RocketMQ's text form.
    ///
    /// # Errors
    /// [`SendError`], which says whether the message may be stored.
    pub async fn send(
        &self,
        address: &str,
        body: Bytes,
        properties: &str,
    ) -> Result<Receipt, SendError> {
        let header = SendMessageRequest {
            producer_group: self.group.clone(),
            topic: self.topic.clone(),
            default_topic: Some(crate::topics::DEFAULT_TOPIC.into()),
            default_topic_queue_nums: Some(8),
            queue_id: -1,
            born_timestamp: crate::clock::now_since_1970_ms(),
            properties: Some(properties.to_owned()).filter(|text| !text.is_empty()),
            reconsume_times: Some(0),
            batch: Some(false),
            ..SendMessageRequest::default()
        };
        let request = RemotingCommand::request_with(request_code::SEND_MESSAGE_V2, &header);
        let request = request.with_body(body);
        let answer = self.client.request(address, request, self.timeout).await;
        receipt(answer)
    }
}

fn receipt(answer: Result<RemotingCommand, RemotingError>) -> Result<Receipt, SendError> {
    let answer = match answer {
        Ok(answer) => answer,
        Err(RemotingError::Connect { address, source }) => {
            // Nothing was sent.
            let remark = format!("{address}: {source}");
            return Err(SendError::Refused {
                code: response_code::SERVICE_NOT_AVAILABLE,
                remark,
            });
        }
        Err(error) => {
            return Err(SendError::NoAnswer {
                why: error.to_string(),
            });
        }
    };
    let remark = answer.remark.clone().unwrap_or_default();
    match answer.code {
        response_code::SUCCESS => {
            let header: SendMessageResponse =
                answer.header().map_err(|error| SendError::NoAnswer {
                    why: error.to_string(),
                })?;
            Ok(Receipt {
                msg_id: header.msg_id,
                queue_id: header.queue_id,
                queue_offset: header.queue_offset,
            })
        }
        code @ (response_code::FLUSH_DISK_TIMEOUT
        | response_code::SLAVE_NOT_AVAILABLE
        | response_code::FLUSH_SLAVE_TIMEOUT) => Err(SendError::Unsafe { code, remark }),
        code => Err(SendError::Refused { code, remark }),
    }
}
