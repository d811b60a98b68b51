//! The record format from outside: golden bytes, limits, damage, and the batches clients send.

#![expect(
    clippy::unwrap_used,
    reason = "a test stops where its own input is wrong"
)]

mod batch;
mod damage;
mod golden;
mod limits;
mod round_trip;

use std::net::SocketAddr;

use epochlog_engine::{
    BadRecord, CheckOptions, EncodeOptions, Message, Offset, Parsed, PropertyCrc, Record,
    RecordError, Stamp, encode_into, encoded_len, parse_record,
};

const WITH_CRC: EncodeOptions = EncodeOptions {
    append_property_crc: true,
};
const WITHOUT_CRC: EncodeOptions = EncodeOptions {
    append_property_crc: false,
};
const REQUIRE_CRC: CheckOptions = CheckOptions {
    body_crc: true,
    property_crc: PropertyCrc::Require,
    nul_bytes: true,
};

/// Room behind every record a test parses, unless the test is about room.
const ROOM: u64 = 1 << 20;

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn hello() -> Message<'static> {
    Message {
        topic: "T",
        queue_id: 3,
        flag: 0,
        sys_flag: 0,
        born_timestamp_ms: 1_700_000_000_000,
        born_host: address("10.0.0.1:40000"),
        store_host: address("10.0.0.2:10911"),
        reconsume_times: 0,
        prepared_transaction_offset: 0,
        body: b"hello",
        properties: b"TAGS\x01A\x02",
    }
}

fn stamp_at(physical_offset: Offset) -> Stamp {
    Stamp {
        queue_offset: 0,
        physical_offset,
        store_timestamp_ms: 1_700_000_000_123,
    }
}

fn encode_at(at: Offset, message: &Message<'_>, options: EncodeOptions) -> Vec<u8> {
    // What was in the slot before must not shine through.
    let mut out = vec![0xEE; encoded_len(message, options).unwrap()];
    encode_into(&mut out, message, stamp_at(at), options).unwrap();
    out
}

fn encode(message: &Message<'_>, options: EncodeOptions) -> Vec<u8> {
    encode_at(0, message, options)
}

fn record(bytes: &[u8], check: CheckOptions) -> Record<'_> {
    match parse_record(bytes, 0, ROOM, check) {
        Ok(Parsed::Message(record)) => record,
        other => panic!("not a record: {other:?}"),
    }
}

fn why_bad(bytes: &[u8], room: u64, check: CheckOptions) -> BadRecord {
    match parse_record(bytes, 0, room, check) {
        Err(RecordError::Bad { at: 0, why }) => why,
        other => panic!("not bad: {other:?}"),
    }
}
