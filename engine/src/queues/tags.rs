//! The tags code of a message: what a consumer's filter looks at without reading the log. Pure.

use crate::properties::java_string_hash;
use crate::record::Record;

/// Messages wait here for their time of delivery (RocketMQ: TopicValidator.RMQ_SYS_SCHEDULE_TOPIC).
pub(super) const SCHEDULE_TOPIC: &str = "SCHEDULE_TOPIC_XXXX";

const SECOND: i64 = 1000;
const MINUTE: i64 = 60 * SECOND;
const HOUR: i64 = 60 * MINUTE;

/// Delay of each level from 1 on, in ms (RocketMQ: the default of messageDelayLevel).
const DELAYS: [i64; 18] = [
    SECOND,
    5 * SECOND,
    10 * SECOND,
    30 * SECOND,
    MINUTE,
    2 * MINUTE,
    3 * MINUTE,
    4 * MINUTE,
    5 * MINUTE,
    6 * MINUTE,
    7 * MINUTE,
    8 * MINUTE,
    9 * MINUTE,
    10 * MINUTE,
    20 * MINUTE,
    30 * MINUTE,
    HOUR,
    2 * HOUR,
];

/// Java's hash of the property `TAGS`, 0 without one; for a delayed message the time of its delivery in
/// ms since 1970 (RocketMQ: CommitLog.checkMessageAndReturnSize).
pub(super) fn tags_code(record: &Record<'_>) -> i64 {
    if record.topic() == SCHEDULE_TOPIC
        && let Some(level) = record.property("DELAY")
        && let Ok(level @ 1..) = level.parse::<usize>()
    {
        let delay = DELAYS[level.min(DELAYS.len()) - 1];
        return record.store_timestamp_ms().saturating_add(delay);
    }
    let tags = record.property("TAGS");
    tags.map_or(0, |tags| i64::from(java_string_hash(&tags)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{
        CheckOptions, EncodeOptions, Message, Parsed, Stamp, encode_into, encoded_len, parse,
    };

    fn code(topic: &str, properties: &[u8]) -> i64 {
        let mut message = Message::new(topic, b"x", ([127, 0, 0, 1], 1).into(), 0);
        message.properties = properties;
        let stamp = Stamp {
            queue_offset: 0,
            physical_offset: 0,
            store_timestamp_ms: 1_700_000_000_000,
        };
        let options = EncodeOptions::default();
        let mut bytes = vec![0; encoded_len(&message, options).unwrap()];
        encode_into(&mut bytes, &message, stamp, options).unwrap();
        match parse(&bytes, 0, 4096, CheckOptions::STRUCTURE).unwrap() {
            Parsed::Message(record) => tags_code(&record),
            Parsed::Filler { .. } => panic!("a filler"),
        }
    }

    #[test]
    fn a_tags_code_is_the_hash_of_the_tags() {
        for (properties, expected) in [
            (&b""[..], 0),
            (b"KEYS\x01TagA\x02", 0),
            (b"TAGS\x01\x02", 0),
            (b"TAGS\x01TagA\x02", 2_598_919),
            (b"TAGS\x01TagA\x02TAGS\x01A\x02", 65),
            // Negative hashes keep their sign in 64 bits.
            (b"TAGS\x01polygenelubricants\x02", i64::from(i32::MIN)),
            (b"DELAY\x013\x02TAGS\x01A\x02", 65),
        ] {
            assert_eq!(code("topic", properties), expected, "{properties:?}");
        }
    }

    #[test]
    fn a_delayed_message_has_its_time_of_delivery() {
        let stored = 1_700_000_000_000;
        for (properties, expected) in [
            (&b"DELAY\x011\x02"[..], stored + 1000),
            (b"DELAY\x0118\x02TAGS\x01A\x02", stored + 7_200_000),
            (b"DELAY\x01999\x02", stored + 7_200_000),
            (b"DELAY\x010\x02TAGS\x01A\x02", 65),
            (b"DELAY\x01x\x02TAGS\x01A\x02", 65),
            (b"TAGS\x01A\x02", 65),
        ] {
            assert_eq!(code(SCHEDULE_TOPIC, properties), expected, "{properties:?}");
        }
    }
}
