//! The byte vectors of the record format: what must come out of the encoder to the last bit, and
//! what the view reads back from it.

use epochlog_engine::{
    CheckOptions, FILLER_MAGIC, Parsed, RecordError, Version, message_id, parse_record,
    write_filler,
};

use crate::{REQUIRE_CRC, WITH_CRC, WITHOUT_CRC, address, encode, hello, record};

const HELLO: &str = "
    00 00 00 68 da a3 20 a7 36 10 a6 86 00 00 00 03 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00
    00 00 00 00 00 00 00 00 00 00 01 8b cf e5 68 00 0a 00 00 01 00 00 9c 40 00 00 01 8b cf e5 68 7b
    0a 00 00 02 00 00 2a 9f 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 05 68 65 6c 6c 6f 01 54 00
    07 54 41 47 53 01 41 02";

const HELLO_PROPERTY_CRC_TAIL: &str = "
    68 65 6c 6c 6f 01 54 00 1b 54 41 47 53 01 41 02 5f 5f 43 52 43 33 32 23 01 32 30 38 34 39 33 36
    39 33 31 02";

fn hex(text: &str) -> Vec<u8> {
    text.split_whitespace()
        .map(|byte| u8::from_str_radix(byte, 16).unwrap())
        .collect()
}

#[test]
fn a_v1_record_has_the_bytes_java_writes() {
    let bytes = encode(&hello(), WITHOUT_CRC);
    assert_eq!(bytes, hex(HELLO));
    let record = record(&bytes, CheckOptions::CHECKSUMS);
    assert_eq!(record.message(), Some(hello()));
    assert_eq!(record.version(), Version::V1);
    assert_eq!(record.body_crc(), 907_060_870);
    assert_eq!(record.store_timestamp_ms(), 1_700_000_000_123);
    assert_eq!(record.end(), 104);
    assert_eq!(
        record.message_id().as_deref(),
        Some("0A00000200002A9F0000000000000000")
    );
    assert_eq!(record.property("TAGS").as_deref(), Some("A"));
}

#[test]
fn a_property_crc_covers_the_finished_record_and_stands_backwards() {
    let bytes = encode(&hello(), WITH_CRC);
    assert_eq!(bytes.len(), 124);
    assert_eq!(bytes[3], 0x7c);
    assert_eq!(bytes[88..], hex(HELLO_PROPERTY_CRC_TAIL));
    let record = record(&bytes, REQUIRE_CRC);
    assert_eq!(record.property("__CRC32#").as_deref(), Some("2084936931"));
}

#[test]
fn a_filler_is_size_magic_and_zeros() {
    let mut bytes = [0xEE; 64];
    write_filler(&mut bytes);
    assert_eq!(bytes[..8], hex("00 00 00 40 cb d4 31 94"));
    assert_eq!(bytes[4..8], FILLER_MAGIC.to_be_bytes());
    assert!(bytes[8..].iter().all(|&byte| byte == 0));
    assert!(matches!(
        parse_record(&bytes, 960, 64, CheckOptions::STRUCTURE),
        Ok(Parsed::Filler { len: 64 })
    ));
    assert!(matches!(
        parse_record(&bytes[..63], 960, 64, CheckOptions::STRUCTURE),
        Err(RecordError::NeedMore { at: 960, len: 64 })
    ));
}

#[test]
fn message_ids_are_upper_case_hex_of_address_port_and_offset() {
    assert_eq!(
        message_id(address("127.0.0.1:65535"), 0xABCDEF),
        "7F0000010000FFFF0000000000ABCDEF"
    );
    let v6 = message_id(address("[fe80::a]:10911"), 1);
    assert_eq!(
        v6,
        "FE80000000000000000000000000000A00002A9F0000000000000001"
    );
    assert_eq!(v6.len(), 56);
}
