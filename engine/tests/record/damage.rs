//! Bytes that are no record: each has one defined answer, and none is taken for a record.

use epochlog_engine::{
    BadRecord, CheckOptions, FILLER_MAGIC, Message, PROPERTY_CRC_LEN, Parsed, PropertyCrc,
    RECORD_MAGIC_V1, RecordError, parse_record, write_filler,
};

use crate::{
    REQUIRE_CRC, ROOM, WITH_CRC, WITHOUT_CRC, address, encode, encode_at, hello, record, why_bad,
};

const CHECKSUMS: CheckOptions = CheckOptions::CHECKSUMS;

// Where the fields of `hello()` lie: V1, IPv4 both.
const BODY_LEN: usize = 84;
const BODY: std::ops::Range<usize> = 88..93;
const TOPIC_LEN: usize = 93;
const PROPERTIES_LEN: usize = 95;
const SIZE: usize = 104;

fn patched(bytes: &[u8], at: usize, with: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes[at..at + with.len()].copy_from_slice(with);
    bytes
}

fn sized(size: i32, magic: i32) -> Vec<u8> {
    let mut bytes = vec![0; 200];
    bytes[..4].copy_from_slice(&size.to_be_bytes());
    bytes[4..8].copy_from_slice(&magic.to_be_bytes());
    bytes
}

#[test]
fn every_prefix_asks_for_more() {
    for (message, options) in [
        (hello(), WITHOUT_CRC),
        (
            Message {
                born_host: address("[::1]:1"),
                ..hello()
            },
            WITH_CRC,
        ),
    ] {
        let bytes = encode(&message, options);
        for len in 0..bytes.len() {
            let needed = if len < 8 { 8 } else { bytes.len() };
            let error = parse_record(&bytes[..len], 0, ROOM, CHECKSUMS).unwrap_err();
            assert_eq!(
                error,
                RecordError::NeedMore { at: 0, len: needed },
                "{len} bytes"
            );
        }
    }
}

#[test]
fn every_flipped_bit_has_a_defined_answer_and_none_in_the_body_is_missed() {
    let good = encode(&hello(), WITHOUT_CRC);
    for at in 0..good.len() {
        for bit in 0..8 {
            let bytes = patched(&good, at, &[good[at] ^ (1 << bit)]);
            let parsed = parse_record(&bytes, 0, ROOM, CHECKSUMS);
            if BODY.contains(&at) {
                let why = why_bad(&bytes, ROOM, CHECKSUMS);
                assert!(matches!(why, BadRecord::BodyCrc { .. }), "byte {at}: {why}");
            }
            if let Ok(Parsed::Message(record)) = parsed {
                assert_eq!(record.total_size(), SIZE, "byte {at}");
            }
        }
    }
}

#[test]
fn with_a_property_crc_no_flipped_bit_is_missed() {
    let v6 = Message {
        store_host: address("[2001:db8::2]:10911"),
        ..hello()
    };
    for message in [
        hello(),
        v6,
        Message {
            body: b"",
            ..hello()
        },
    ] {
        let good = encode(&message, WITH_CRC);
        record(&good, REQUIRE_CRC);
        for at in 0..good.len() {
            for bit in 0..8 {
                let bytes = patched(&good, at, &[good[at] ^ (1 << bit)]);
                let parsed = parse_record(&bytes, 0, ROOM, REQUIRE_CRC);
                assert!(parsed.is_err(), "byte {at}, bit {bit}: {parsed:?}");
            }
        }
    }
}

#[test]
fn c06_a_record_whose_properties_never_reached_the_disk_is_refused() {
    let good = encode(&hello(), WITHOUT_CRC);
    for lost_from in 1..SIZE {
        let mut bytes = good.clone();
        bytes[lost_from..].fill(0);
        let parsed = parse_record(&bytes, 0, ROOM, CheckOptions::AFTER_POWER_LOSS);
        assert!(parsed.is_err(), "lost from byte {lost_from}: {parsed:?}");
    }
    // The structure alone does not show it when the lengths survived.
    let mut bytes = good;
    bytes[PROPERTIES_LEN + 2..].fill(0);
    record(&bytes, CHECKSUMS);
    let why = why_bad(&bytes, ROOM, CheckOptions::AFTER_POWER_LOSS);
    assert_eq!(
        why,
        BadRecord::NulByte {
            field: "properties"
        }
    );
    bytes[TOPIC_LEN + 1] = 0;
    let why = why_bad(&bytes, ROOM, CheckOptions::AFTER_POWER_LOSS);
    assert_eq!(why, BadRecord::NulByte { field: "topic" });
}

#[test]
fn c06_sizes_that_cannot_be_are_refused_before_anything_is_read_by_them() {
    let size = |size, room| BadRecord::Size { size, room };
    let filler = |size, room| BadRecord::FillerSize { size, room };
    let v1 = RECORD_MAGIC_V1;
    let cases = [
        (sized(0, v1), 200, size(0, 200)),
        (sized(-1, v1), 200, size(-1, 200)),
        (sized(i32::MIN, v1), 200, size(i32::MIN, 200)),
        (sized(90, v1), 200, size(90, 200)),
        (sized(193, v1), 200, size(193, 200)),
        (sized(i32::MAX, v1), 200, size(i32::MAX, 200)),
        (sized(0, FILLER_MAGIC), 200, filler(0, 200)),
        (sized(-200, FILLER_MAGIC), 200, filler(-200, 200)),
        (sized(199, FILLER_MAGIC), 200, filler(199, 200)),
        (sized(201, FILLER_MAGIC), 200, filler(201, 200)),
        (sized(100, 0), 200, BadRecord::Magic { magic: 0 }),
        (sized(0, 1), 200, BadRecord::Magic { magic: 1 }),
        (
            sized(100, v1 + 1),
            200,
            BadRecord::Magic { magic: 0xDAA3_20A8 },
        ),
        (sized(0, 0), 7, BadRecord::NoRoom { room: 7 }),
        (sized(8, FILLER_MAGIC), 0, BadRecord::NoRoom { room: 0 }),
    ];
    for (bytes, room, why) in cases {
        assert_eq!(why_bad(&bytes, room, CHECKSUMS), why);
    }
    let empty = parse_record(&sized(0, 0), 5, 200, CHECKSUMS).unwrap_err();
    assert_eq!(empty, RecordError::Empty { at: 5 });
}

#[test]
fn a_record_leaves_room_for_a_filler_and_a_filler_ends_its_segment() {
    let bytes = encode(&hello(), WITHOUT_CRC);
    assert!(parse_record(&bytes, 0, SIZE as u64 + 8, CHECKSUMS).is_ok());
    let room = SIZE as u64 + 7;
    assert_eq!(
        why_bad(&bytes, room, CHECKSUMS),
        BadRecord::Size { size: 104, room }
    );
    let mut filler = [0xEE; 8];
    write_filler(&mut filler);
    let parsed = parse_record(&filler, 1016, 8, CHECKSUMS);
    assert!(
        matches!(parsed, Ok(Parsed::Filler { len: 8 })),
        "{parsed:?}"
    );
    // A segment of another size, or a filler in its middle.
    assert_eq!(
        why_bad(&filler, 9, CHECKSUMS),
        BadRecord::FillerSize { size: 8, room: 9 }
    );
}

#[test]
fn a_record_lies_where_it_says() {
    let bytes = encode_at(4096, &hello(), WITHOUT_CRC);
    assert!(parse_record(&bytes, 4096, ROOM, CheckOptions::STRUCTURE).is_ok());
    // Said as soon as the head is there, not when the whole record is.
    for len in 48..=SIZE {
        let error = parse_record(&bytes[..len], 4095, ROOM, CheckOptions::STRUCTURE).unwrap_err();
        let why = BadRecord::PhysicalOffset { found: 4096 };
        assert_eq!(error, RecordError::Bad { at: 4095, why });
        assert_eq!(
            error.to_string(),
            "offset 4095: the record says it lies at offset 4096"
        );
    }
    let negative = patched(&bytes, 28, &(-1_i64).to_be_bytes());
    let error = parse_record(&negative, u64::MAX, ROOM, CheckOptions::STRUCTURE).unwrap_err();
    let why = BadRecord::PhysicalOffset { found: -1 };
    assert_eq!(error, RecordError::Bad { at: u64::MAX, why });
}

#[test]
fn lengths_inside_a_record_are_held_against_it() {
    let good = encode(&hello(), WITHOUT_CRC);
    let length = |field, len| BadRecord::Length {
        field,
        len,
        size: 104,
    };
    let sum = |sum| BadRecord::Sum { sum, size: 104 };
    let cases = [
        (BODY_LEN, &(-1_i32).to_be_bytes()[..], length("body", -1)),
        (BODY_LEN, &17_i32.to_be_bytes(), length("body", 17)),
        (BODY_LEN, &i32::MAX.to_be_bytes(), length("body", i32::MAX)),
        (TOPIC_LEN, &[0x80], length("topic", -128)),
        (TOPIC_LEN, &[11], length("topic", 11)),
        (
            PROPERTIES_LEN,
            &(-1_i16).to_be_bytes(),
            length("properties", -1),
        ),
        (
            PROPERTIES_LEN,
            &8_i16.to_be_bytes(),
            length("properties", 8),
        ),
        (PROPERTIES_LEN, &6_i16.to_be_bytes(), sum(103)),
        (PROPERTIES_LEN, &0_i16.to_be_bytes(), sum(97)),
        (TOPIC_LEN + 1, &[0xFF], BadRecord::TopicText),
    ];
    for (at, with, why) in cases {
        assert_eq!(
            why_bad(&patched(&good, at, with), ROOM, CheckOptions::STRUCTURE),
            why
        );
    }
    // The body swallows everything up to the end, or to one byte before it.
    for body_len in [16_i32, 15, 14] {
        let bytes = patched(&good, BODY_LEN, &body_len.to_be_bytes());
        let parsed = parse_record(&bytes, 0, ROOM, CheckOptions::STRUCTURE);
        assert!(
            matches!(parsed, Err(RecordError::Bad { .. })),
            "{body_len}: {parsed:?}"
        );
    }
    // Host bits that make the fixed fields longer than the smallest record.
    let small = encode(
        &Message {
            topic: "t",
            body: b"",
            properties: b"",
            ..hello()
        },
        WITHOUT_CRC,
    );
    for bits in [0x10, 0x20, 0x30_i32] {
        let bytes = patched(&small, 36, &bits.to_be_bytes());
        let parsed = parse_record(&bytes, 0, ROOM, CheckOptions::STRUCTURE);
        assert!(
            matches!(parsed, Err(RecordError::Bad { .. })),
            "{bits}: {parsed:?}"
        );
    }
}

#[test]
fn a_property_crc_is_looked_for_as_told() {
    let without = encode(&hello(), WITHOUT_CRC);
    let with = encode(&hello(), WITH_CRC);
    // One bit of the queue id, which no other check covers.
    let damaged = patched(&with, 15, &[with[15] ^ 1]);
    let check = |property_crc| CheckOptions {
        property_crc,
        ..CHECKSUMS
    };
    record(&without, check(PropertyCrc::Ignore));
    record(&without, check(PropertyCrc::IfPresent));
    assert_eq!(
        why_bad(&without, ROOM, check(PropertyCrc::Require)),
        BadRecord::NoPropertyCrc
    );
    record(&damaged, check(PropertyCrc::Ignore));
    for property_crc in [PropertyCrc::IfPresent, PropertyCrc::Require] {
        record(&with, check(property_crc));
        let why = why_bad(&damaged, ROOM, check(property_crc));
        assert!(matches!(why, BadRecord::PropertyCrc { .. }), "{why}");
    }
    // One bit of the CRC's own text: a reader finds none there, and takes the record for one without.
    let suspicious = CheckOptions::VERIFY;
    for at in with.len() - PROPERTY_CRC_LEN..with.len() {
        for bit in 0..8 {
            let hidden = patched(&with, at, &[with[at] ^ (1 << bit)]);
            let why = why_bad(&hidden, ROOM, suspicious);
            let changed = matches!(why, BadRecord::PropertyCrcChanged);
            assert!(
                changed || matches!(why, BadRecord::PropertyCrc { .. }),
                "{at}.{bit}: {why}"
            );
        }
    }
    record(&with, suspicious);
    record(&without, suspicious);
}

#[test]
fn a_port_no_socket_has_is_no_reason_to_refuse_a_record() {
    let good = encode(&hello(), WITHOUT_CRC);
    for port in [-1, 65_536] {
        let bytes = patched(
            &patched(&good, 52, &i32::to_be_bytes(port)),
            68,
            &port.to_be_bytes(),
        );
        let record = record(&bytes, CHECKSUMS);
        assert_eq!((record.born_host(), record.store_host()), (None, None));
        assert_eq!((record.message_id(), record.message()), (None, None));
        assert_eq!(record.body(), b"hello");
    }
}
