//! What a send request must be before it may be stored (RocketMQ: SendMessageProcessor, HookUtils),
//! and what the broker changes in it. Pure but for the topic table it looks into.
//!
//! The order of the checks is Java's: the first one that fails answers.

use std::fmt::Write as _;

use epochlog_engine::{MAX_PROPERTIES_LEN, Properties, sys_flag};
use epochlog_raft_glue::remoting::{SendMessageRequest, response_code as code};

use crate::topics::{DEFAULT_TOPIC, TopicError, Topics};

const RETRY_PREFIX: &str = "%RETRY%";
const DLQ_PREFIX: &str = "%DLQ%";
const MAX_TOPIC_LEN: usize = 127;
const MAX_GROUP_TOPIC_LEN: usize = 255;

/// Topics only the broker itself may write.
const SYSTEM_TOPICS: [&str; 6] = [
    "SCHEDULE_TOPIC_XXXX",
    "RMQ_SYS_TRANS_HALF_TOPIC",
    "RMQ_SYS_TRANS_OP_HALF_TOPIC",
    "TRANS_CHECK_MAX_TIME_TOPIC",
    "SELF_TEST_TOPIC",
    "OFFSET_MOVED_EVENT",
];

/// Properties that call for a service this broker does not have: stored as they are, such messages
/// would be delivered at once.
const UNSUPPORTED: [(&str, &str); 5] = [
    ("DELAY", "delayed messages"),
    ("TIMER_DELAY_SEC", "timer messages"),
    ("TIMER_DELAY_MS", "timer messages"),
    ("TIMER_DELIVER_MS", "timer messages"),
    ("TRAN_MSG", "transactional messages"),
];

/// Properties the broker sets itself, or that mean something only on the way.
const REPLACED: [&str; 5] = ["MSG_REGION", "TRACE_ON", "CLUSTER", "POP_CK", "__CRC32#"];

/// Settings the checks and changes depend on.
#[derive(Debug, Clone)]
pub(super) struct Rules {
    pub(super) cluster_name: String,
    pub(super) region_id: String,
    pub(super) trace_on: bool,
    pub(super) max_message_len: usize,
    pub(super) accept_send_from_ms: i64,
}

/// A request that is not stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) code: i32,
    pub(super) remark: String,
}

fn refuse(code: i32, remark: impl Into<String>) -> Refusal {
    Refusal {
        code,
        remark: remark.into(),
    }
}

/// Checks a request and finds its topic's queues, creating the topic if that is allowed. Gives the
/// number of queues.
pub(super) fn check(
    request: &SendMessageRequest,
    body: &[u8],
    rules: &Rules,
    topics: &Topics,
    now_ms: i64,
) -> Result<i32, Refusal> {
    if now_ms < rules.accept_send_from_ms {
        let from = rules.accept_send_from_ms;
        return Err(refuse(
            code::SYSTEM_ERROR,
            format!("no messages are taken before {from} ms"),
        ));
    }
    let topic = request.topic.as_str();
    let batch = request.batch == Some(true);
    check_topic_name(topic)?;
    if topic.starts_with(RETRY_PREFIX) {
        // Consumer groups are unknown here, so their retry topics are too.
        return Err(if batch {
            refuse(code::MESSAGE_ILLEGAL, "a batch cannot go to a retry topic")
        } else {
            refuse(
                code::SUBSCRIPTION_GROUP_NOT_EXIST,
                format!("the group of {topic} is unknown: consumer groups are not supported"),
            )
        });
    }
    let default_topic = request.default_topic.as_deref().unwrap_or(DEFAULT_TOPIC);
    let queues = request.default_topic_queue_nums.unwrap_or(0);
    let config = topics
        .get_or_create(topic, default_topic, queues, now_ms)
        .map_err(|error| {
            let code = match error {
                TopicError::NotExist => code::TOPIC_NOT_EXIST,
                TopicError::TooMany => code::SYSTEM_ERROR,
            };
            refuse(code, format!("topic {topic}: {error}"))
        })?;
    let queues = config.write_queue_nums.max(config.read_queue_nums);
    if request.queue_id >= queues {
        let id = request.queue_id;
        return Err(refuse(
            code::INVALID_PARAMETER,
            format!("queueId {id} of topic {topic} is not below {queues}"),
        ));
    }
    if batch && topic.len() > MAX_TOPIC_LEN {
        return Err(refuse(
            code::MESSAGE_ILLEGAL,
            "a batch needs a topic of at most 127 bytes",
        ));
    }
    check_services(request)?;
    check_len(body, batch, rules)?;
    Ok(config.write_queue_nums.max(1))
}

fn check_topic_name(topic: &str) -> Result<(), Refusal> {
    let bad = |why: &str| refuse(code::INVALID_PARAMETER, format!("topic {topic:?} {why}"));
    if topic.trim().is_empty() {
        return Err(bad("is blank"));
    }
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"%|_-".contains(&byte);
    if !topic.bytes().all(allowed) {
        return Err(bad("holds a character other than % | a-z A-Z 0-9 _ -"));
    }
    let of_group = topic.starts_with(RETRY_PREFIX) || topic.starts_with(DLQ_PREFIX);
    let max = if of_group {
        MAX_GROUP_TOPIC_LEN
    } else {
        MAX_TOPIC_LEN
    };
    if topic.len() > max {
        return Err(bad(&format!("is longer than {max} bytes")));
    }
    if SYSTEM_TOPICS.contains(&topic) {
        let remark = format!("topic {topic} is the broker's own");
        return Err(refuse(code::NO_PERMISSION, remark));
    }
    Ok(())
}

fn check_services(request: &SendMessageRequest) -> Result<(), Refusal> {
    let refused = |what: &str| {
        refuse(
            code::MESSAGE_ILLEGAL,
            format!("{what} are not supported by this broker"),
        )
    };
    if request.sys_flag & sys_flag::TRANSACTION_MASK != 0 {
        return Err(refused("transactional messages"));
    }
    if request.sys_flag & (sys_flag::NEED_UNWRAP | sys_flag::INNER_BATCH) != 0 {
        return Err(refused("inner batches"));
    }
    check_properties(request.properties.as_deref().unwrap_or("").as_bytes())
}

/// Refuses properties that need a service which is not there.
pub(super) fn check_properties(properties: &[u8]) -> Result<(), Refusal> {
    for (name, value) in Properties::new(properties) {
        let inert = value == "0" || value.eq_ignore_ascii_case("false");
        let what = UNSUPPORTED
            .iter()
            .find(|(unsupported, _)| *unsupported == name);
        let what = what.map(|(_, what)| *what).filter(|_| !inert);
        let what = what.or_else(|| (name == "INNER_NUM").then_some("inner batches"));
        if let Some(what) = what {
            let remark = format!("{what} are not supported by this broker");
            return Err(refuse(code::MESSAGE_ILLEGAL, remark));
        }
    }
    Ok(())
}

fn check_len(body: &[u8], batch: bool, rules: &Rules) -> Result<(), Refusal> {
    if body.is_empty() {
        return Err(refuse(code::SYSTEM_ERROR, "the body is missing"));
    }
    if body.len() > rules.max_message_len {
        let (len, max) = (body.len(), rules.max_message_len);
        // Java refuses a batch by an exception, a message by its own code.
        let code = if batch {
            code::SYSTEM_ERROR
        } else {
            code::MESSAGE_ILLEGAL
        };
        let remark = format!("the body has {len} bytes; maxMessageSize is {max}");
        return Err(refuse(code, remark));
    }
    Ok(())
}

/// The properties of a single message as they are stored, and its UNIQ_KEY.
pub(super) fn stored_properties(
    properties: &str,
    rules: &Rules,
    make_unique_key: impl FnOnce() -> String,
) -> Result<(String, String), Refusal> {
    let mut stored = String::with_capacity(properties.len() + 128);
    let mut unique_key = None;
    for pair in properties.split('\u{2}') {
        let Some((name, value)) = pair.split_once('\u{1}') else {
            continue;
        };
        if name.is_empty() || value.is_empty() || REPLACED.contains(&name) {
            continue;
        }
        if name == "UNIQ_KEY" {
            unique_key = Some(value.to_owned());
        }
        push(&mut stored, name, value);
    }
    let unique_key = unique_key.unwrap_or_else(|| {
        let key = make_unique_key();
        push(&mut stored, "UNIQ_KEY", &key);
        key
    });
    push(&mut stored, "MSG_REGION", &rules.region_id);
    push(
        &mut stored,
        "TRACE_ON",
        if rules.trace_on { "true" } else { "false" },
    );
    push(&mut stored, "CLUSTER", &rules.cluster_name);
    if stored.len() > MAX_PROPERTIES_LEN {
        let len = stored.len();
        let remark = format!("properties take {len} bytes; a record holds {MAX_PROPERTIES_LEN}");
        return Err(refuse(code::MESSAGE_ILLEGAL, remark));
    }
    Ok((stored, unique_key))
}

fn push(stored: &mut String, name: &str, value: &str) {
    // Writing to a String cannot fail.
    let _ = write!(stored, "{name}\u{1}{value}\u{2}");
}

/// Whether the sender waits for replicas and disk: unless `WAIT` says anything but true.
pub(super) fn waits(properties: &str) -> bool {
    Properties::new(properties.as_bytes())
        .get("WAIT")
        .is_none_or(|wait| wait.eq_ignore_ascii_case("true"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules() -> Rules {
        Rules {
            cluster_name: "c".into(),
            region_id: "r".into(),
            trace_on: true,
            max_message_len: 100,
            accept_send_from_ms: 10,
        }
    }

    fn request(change: impl FnOnce(&mut SendMessageRequest)) -> SendMessageRequest {
        let mut request = SendMessageRequest {
            producer_group: "g".into(),
            topic: "T".into(),
            default_topic: Some(DEFAULT_TOPIC.into()),
            default_topic_queue_nums: Some(4),
            queue_id: -1,
            ..SendMessageRequest::default()
        };
        change(&mut request);
        request
    }

    fn checked(
        change: impl FnOnce(&mut SendMessageRequest),
        body: &[u8],
        auto_create: bool,
        now_ms: i64,
    ) -> Result<i32, i32> {
        let dir = tempfile::tempdir().expect("temp dir");
        let topics = Topics::open(dir.path(), auto_create, 8).expect("opens");
        let request = request(change);
        check(&request, body, &rules(), &topics, now_ms).map_err(|refusal| refusal.code)
    }

    type Change = fn(&mut SendMessageRequest);

    const TABLE: &[(&str, Change, Result<i32, i32>)] = &[
        ("plain", |_| {}, Ok(4)),
        (
            "many queues",
            |r| r.default_topic_queue_nums = Some(99),
            Ok(8),
        ),
        (
            "no queue number",
            |r| r.default_topic_queue_nums = None,
            Ok(1),
        ),
        ("last queue", |r| r.queue_id = 3, Ok(4)),
        ("queue too high", |r| r.queue_id = 4, Err(29)),
        ("blank topic", |r| r.topic = " ".into(), Err(29)),
        ("bad character", |r| r.topic = "a.b".into(), Err(29)),
        ("long topic", |r| r.topic = "t".repeat(128), Err(29)),
        ("longest topic", |r| r.topic = "t".repeat(127), Ok(4)),
        (
            "long DLQ topic",
            |r| r.topic = format!("%DLQ%{}", "t".repeat(200)),
            Ok(4),
        ),
        (
            "system topic",
            |r| r.topic = "SCHEDULE_TOPIC_XXXX".into(),
            Err(16),
        ),
        (
            "other default",
            |r| r.default_topic = Some("X".into()),
            Err(17),
        ),
        ("retry topic", |r| r.topic = "%RETRY%g".into(), Err(26)),
        (
            "delay",
            |r| r.properties = Some("DELAY\u{1}3\u{2}".into()),
            Err(13),
        ),
        (
            "no delay",
            |r| r.properties = Some("DELAY\u{1}0\u{2}".into()),
            Ok(4),
        ),
        (
            "timer",
            |r| r.properties = Some("TIMER_DELAY_MS\u{1}5\u{2}".into()),
            Err(13),
        ),
        (
            "half",
            |r| r.properties = Some("TRAN_MSG\u{1}true\u{2}".into()),
            Err(13),
        ),
        (
            "not half",
            |r| r.properties = Some("TRAN_MSG\u{1}false\u{2}".into()),
            Ok(4),
        ),
        ("prepared", |r| r.sys_flag = 4, Err(13)),
        ("inner batch", |r| r.sys_flag = 0x80, Err(13)),
        (
            "inner count",
            |r| r.properties = Some("INNER_NUM\u{1}2".into()),
            Err(13),
        ),
        ("compressed", |r| r.sys_flag = 1, Ok(4)),
    ];

    #[test]
    fn a_table_of_requests_and_their_codes() {
        for (what, change, want) in TABLE {
            assert_eq!(checked(change, b"x", true, 10), *want, "{what}");
        }
        assert_eq!(
            checked(|_| {}, b"x", false, 10),
            Err(17),
            "no automatic creation"
        );
        assert_eq!(checked(|_| {}, b"x", true, 9), Err(1), "too early");
        assert_eq!(checked(|_| {}, b"", true, 10), Err(1), "no body");
        assert_eq!(checked(|_| {}, &[0; 100], true, 10), Ok(4), "longest body");
        assert_eq!(
            checked(|_| {}, &[0; 101], true, 10),
            Err(13),
            "body too long"
        );
        let batch = |r: &mut SendMessageRequest| r.batch = Some(true);
        assert_eq!(
            checked(batch, &[0; 101], true, 10),
            Err(1),
            "batch too long"
        );
        let retry = |r: &mut SendMessageRequest| {
            r.batch = Some(true);
            r.topic = "%RETRY%g".into();
        };
        assert_eq!(
            checked(retry, b"x", true, 10),
            Err(13),
            "batch to a retry topic"
        );
        let long = |r: &mut SendMessageRequest| {
            r.batch = Some(true);
            r.topic = format!("%DLQ%{}", "t".repeat(200));
        };
        assert_eq!(
            checked(long, b"x", true, 10),
            Err(13),
            "batch with a long topic"
        );
    }

    #[test]
    fn the_broker_adds_its_own_properties_and_keeps_the_others() {
        let sent =
            "TAGS\u{1}A\u{2}MSG_REGION\u{1}x\u{2}POP_CK\u{1}y\u{2}\u{1}z\u{2}bad\u{2}k\u{1}v\u{1}w";
        let (stored, key) = stored_properties(sent, &rules(), || "KEY".into()).expect("fits");
        assert_eq!(
            stored,
            "TAGS\u{1}A\u{2}k\u{1}v\u{1}w\u{2}UNIQ_KEY\u{1}KEY\u{2}MSG_REGION\u{1}r\u{2}\
             TRACE_ON\u{1}true\u{2}CLUSTER\u{1}c\u{2}"
        );
        assert_eq!(key, "KEY");
        let (_, key) =
            stored_properties("UNIQ_KEY\u{1}own", &rules(), || "KEY".into()).expect("fits");
        assert_eq!(key, "own");
        let long = format!("k\u{1}{}", "v".repeat(MAX_PROPERTIES_LEN - 20));
        let refusal = stored_properties(&long, &rules(), || "KEY".into()).expect_err("too long");
        assert_eq!(refusal.code, 13);
    }

    #[test]
    fn only_an_absent_or_true_wait_waits() {
        assert!(waits("") && waits("WAIT\u{1}TRUE") && waits("a\u{1}b\u{2}WAIT\u{1}true\u{2}"));
        assert!(!waits("WAIT\u{1}false\u{2}") && !waits("WAIT\u{1}yes"));
    }
}
