//! What the format can hold, to the byte, and what the encoder does with host bits and foreign CRCs.

use epochlog_engine::{
    CheckOptions, MAX_PROPERTIES_LEN, MAX_RECORD_LEN, MAX_TOPIC_LEN, MIN_RECORD_LEN, Message,
    MessageError, PROPERTY_CRC_LEN, Version, encode_into, encoded_len, message_id, sys_flag,
};

use crate::{REQUIRE_CRC, WITH_CRC, WITHOUT_CRC, address, encode, hello, record, stamp_at};

#[test]
fn the_version_is_chosen_by_bytes_of_the_topic() {
    // 43 characters of three bytes each: Java would take V1 and write a negative length.
    let chinese = "订".repeat(43);
    let longest = "t".repeat(MAX_TOPIC_LEN);
    let cases = [
        ("t".repeat(127), Version::V1, 0),
        ("t".repeat(128), Version::V2, 1),
        ("订".repeat(42), Version::V1, 0),
        (chinese, Version::V2, 1),
        (longest, Version::V2, 1),
    ];
    for (topic, version, more) in cases {
        let message = Message {
            topic: &topic,
            body: b"",
            properties: b"",
            ..hello()
        };
        let bytes = encode(&message, WITHOUT_CRC);
        assert_eq!(bytes.len(), MIN_RECORD_LEN + topic.len() + more);
        let record = record(&bytes, CheckOptions::CHECKSUMS);
        assert_eq!(record.version(), version, "{} bytes", topic.len());
        assert_eq!(record.topic(), topic);
    }
}

#[test]
fn what_the_format_cannot_say_is_refused_and_the_slot_left_alone() {
    let topic = "t".repeat(MAX_TOPIC_LEN + 1);
    let properties = vec![b'p'; MAX_PROPERTIES_LEN + 1];
    let limit = MAX_PROPERTIES_LEN - PROPERTY_CRC_LEN;
    let cases = [
        (
            Message {
                topic: "",
                ..hello()
            },
            WITHOUT_CRC,
            MessageError::TopicLen { len: 0 },
        ),
        (
            Message {
                topic: &topic,
                ..hello()
            },
            WITHOUT_CRC,
            MessageError::TopicLen {
                len: MAX_TOPIC_LEN + 1,
            },
        ),
        (
            Message {
                properties: &properties,
                ..hello()
            },
            WITHOUT_CRC,
            MessageError::PropertiesLen {
                len: MAX_PROPERTIES_LEN + 1,
            },
        ),
        // One separator and the CRC itself: one byte too many.
        (
            Message {
                properties: &properties[..limit],
                ..hello()
            },
            WITH_CRC,
            MessageError::PropertiesLen {
                len: MAX_PROPERTIES_LEN + 1,
            },
        ),
    ];
    for (message, options, error) in cases {
        assert_eq!(encoded_len(&message, options), Err(error));
        let mut slot = [7; 100];
        assert_eq!(
            encode_into(&mut slot, &message, stamp_at(0), options),
            Err(error)
        );
        assert_eq!(slot, [7; 100]);
    }
    for (len, options) in [(MAX_PROPERTIES_LEN, WITHOUT_CRC), (limit - 1, WITH_CRC)] {
        let message = Message {
            properties: &properties[..len],
            ..hello()
        };
        let bytes = encode(&message, options);
        let record = record(&bytes, CheckOptions::CHECKSUMS);
        assert_eq!(record.properties_bytes().len(), MAX_PROPERTIES_LEN);
    }
}

#[test]
fn a_record_beyond_its_size_field_is_refused() {
    // Zero pages that are never written cost nothing.
    let body = vec![0; MAX_RECORD_LEN - MIN_RECORD_LEN];
    let message = Message {
        topic: "t",
        body: &body,
        properties: b"",
        ..hello()
    };
    let error = MessageError::RecordLen {
        body_len: body.len(),
    };
    assert_eq!(encoded_len(&message, WITHOUT_CRC), Err(error));
    let message = Message {
        body: &body[1..],
        ..message
    };
    assert_eq!(encoded_len(&message, WITHOUT_CRC), Ok(MAX_RECORD_LEN));
}

#[test]
#[should_panic(expected = "the slot was not made for this record")]
fn a_slot_of_another_length_is_our_own_mistake() {
    let mut slot = [0; 105];
    let _ = encode_into(&mut slot, &hello(), stamp_at(0), WITHOUT_CRC);
}

#[test]
#[should_panic(expected = "no such offset")]
fn an_offset_beyond_javas_range_is_our_own_mistake() {
    let mut slot = [0; 104];
    let _ = encode_into(&mut slot, &hello(), stamp_at(1 << 63), WITHOUT_CRC);
}

#[test]
fn host_bits_follow_the_addresses_and_other_bits_are_kept() {
    let (v4, v6) = (address("10.0.0.1:1"), address("[2001:db8::1]:65535"));
    let mapped = address("[::ffff:10.0.0.1]:1");
    let both = sys_flag::BORN_HOST_V6 | sys_flag::STORE_HOST_V6;
    let other = sys_flag::COMPRESSED | sys_flag::INNER_BATCH | sys_flag::NEED_UNWRAP | 0x300;
    let cases = [
        (v4, v4, 0, v4),
        (v6, v4, sys_flag::BORN_HOST_V6, v6),
        (v4, v6, sys_flag::STORE_HOST_V6, v4),
        (v6, v6, both, v6),
        // Java has no mapped addresses either: they become IPv4.
        (mapped, v4, 0, v4),
    ];
    for (born_host, store_host, bits, born_read) in cases {
        for given in [0, both] {
            let message = Message {
                born_host,
                store_host,
                sys_flag: other | given,
                ..hello()
            };
            let bytes = encode(&message, WITHOUT_CRC);
            let record = record(&bytes, CheckOptions::CHECKSUMS);
            assert_eq!(record.sys_flag(), other | bits);
            assert_eq!(record.born_host(), Some(born_read));
            assert_eq!(record.store_host(), Some(store_host));
            assert_eq!(record.message_id(), Some(message_id(store_host, 0)));
            assert_eq!(record.store_timestamp_ms(), 1_700_000_000_123);
            assert!(record.is_inner_batch() && record.needs_unwrap());
            assert_eq!(
                bytes.len(),
                104 + 12 * usize::try_from(bits.count_ones()).unwrap()
            );
        }
    }
    assert_eq!(message_id(mapped, 7), message_id(v4, 7));
}

#[test]
fn a_property_crc_is_separated_from_what_stands_before_it() {
    let cases: [(&[u8], &[u8]); 4] = [
        (b"", b"__CRC32#\x01"),
        (b"a\x01b\x02", b"a\x01b\x02__CRC32#\x01"),
        (b"a\x01b", b"a\x01b\x02__CRC32#\x01"),
        (b"\x02", b"\x02__CRC32#\x01"),
    ];
    for (properties, front) in cases {
        let bytes = encode(
            &Message {
                properties,
                ..hello()
            },
            WITH_CRC,
        );
        let record = record(&bytes, REQUIRE_CRC);
        assert!(
            record.properties_bytes().starts_with(front),
            "{properties:?}"
        );
        assert_eq!(record.properties_bytes().len(), front.len() + 11);
        assert_eq!(record.property("a").is_some(), properties.len() > 1);
    }
}

#[test]
fn a_property_crc_the_message_brings_along_is_left_out() {
    let foreign = b"a\x01b\x02__CRC32#\x012084936931\x02__CRC32#\x010000000000\x02";
    let message = Message {
        properties: foreign,
        ..hello()
    };
    let without = encode(&message, WITHOUT_CRC);
    assert_eq!(
        record(&without, CheckOptions::CHECKSUMS).properties_bytes(),
        b"a\x01b\x02"
    );
    let with = encode(&message, WITH_CRC);
    assert_eq!(
        record(&with, REQUIRE_CRC).properties_bytes().len(),
        4 + PROPERTY_CRC_LEN
    );
    // Its own record can be stored once more under another offset.
    let again = record(&with, REQUIRE_CRC).message().unwrap();
    assert_eq!(encode(&again, WITHOUT_CRC), without);
}

#[test]
fn every_crc_value_is_legal() {
    // The first has CRC-32 zero, the second one with the top bit set, which RocketMQ clears.
    for (body, crc) in [(&b"\x9d\x0a\xd9\x6d"[..], 0), (b"a", 0xE8B7_BE43_u32)] {
        assert_eq!(crc32fast::hash(body), crc);
        let bytes = encode(&Message { body, ..hello() }, WITHOUT_CRC);
        let record = record(&bytes, CheckOptions::CHECKSUMS);
        assert_eq!(record.body_crc().cast_unsigned(), crc & 0x7FFF_FFFF);
    }
    // Short CRCs are padded behind their last digit: look for one with at most seven.
    let found = (0..1_000_000).find_map(|flag| {
        let bytes = encode(&Message { flag, ..hello() }, WITH_CRC);
        let digits = record(&bytes, REQUIRE_CRC)
            .property("__CRC32#")
            .unwrap()
            .into_owned();
        digits.ends_with("000").then_some((bytes, digits))
    });
    let (bytes, digits) = found.expect("one in a thousand is short");
    let crc = crc32fast::hash(&bytes[..bytes.len() - PROPERTY_CRC_LEN]) & 0x7FFF_FFFF;
    let backwards: String = format!("{crc:010}").chars().rev().collect();
    assert_eq!(digits, backwards);
    assert!(crc < 10_000_000);
}

#[test]
fn an_empty_body_has_no_crc_to_check() {
    let mut bytes = encode(
        &Message {
            body: b"",
            ..hello()
        },
        WITHOUT_CRC,
    );
    assert_eq!(record(&bytes, CheckOptions::CHECKSUMS).body_crc(), 0);
    bytes[8..12].copy_from_slice(&[1, 2, 3, 4]);
    assert_eq!(
        record(&bytes, CheckOptions::CHECKSUMS).body_crc(),
        0x0102_0304
    );
}

#[test]
fn prepared_and_rolled_back_messages_take_no_place_in_a_queue() {
    let kinds = [
        (0, true),
        (sys_flag::TRANSACTION_PREPARED, false),
        (sys_flag::TRANSACTION_COMMIT, true),
        (sys_flag::TRANSACTION_ROLLBACK, false),
    ];
    for (kind, takes) in kinds {
        let message = Message {
            sys_flag: kind | sys_flag::COMPRESSED,
            ..hello()
        };
        let bytes = encode(&message, WITHOUT_CRC);
        assert_eq!(
            record(&bytes, CheckOptions::CHECKSUMS).takes_queue_offset(),
            takes
        );
    }
}
