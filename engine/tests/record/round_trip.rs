//! Random messages and random bytes: what goes in comes out, and nothing panics.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use epochlog_engine::{
    CheckOptions, EncodeOptions, Message, Offset, Parsed, PropertyCrc, RecordError, Stamp,
    encode_into, encoded_len, message_id, parse_record, sys_flag,
};
use proptest::prelude::*;

const HOST_BITS: i32 = sys_flag::BORN_HOST_V6 | sys_flag::STORE_HOST_V6;

#[derive(Clone, Debug)]
struct Given {
    topic: String,
    numbers: (i32, i32, i32, i64, i32, i64),
    born_host: SocketAddr,
    store_host: SocketAddr,
    body: Vec<u8>,
    properties: Vec<u8>,
    stamp: Stamp,
    options: EncodeOptions,
}

impl Given {
    fn message(&self) -> Message<'_> {
        let (queue_id, flag, sys_flag, born_timestamp_ms, reconsume_times, prepared) = self.numbers;
        Message {
            topic: &self.topic,
            queue_id,
            flag,
            sys_flag,
            born_timestamp_ms,
            born_host: self.born_host,
            store_host: self.store_host,
            reconsume_times,
            prepared_transaction_offset: prepared,
            body: &self.body,
            properties: &self.properties,
        }
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = vec![0xEE; encoded_len(&self.message(), self.options).unwrap()];
        encode_into(&mut out, &self.message(), self.stamp, self.options).unwrap();
        out
    }
}

fn any_host() -> impl Strategy<Value = SocketAddr> {
    let v4 = any::<u32>().prop_map(|bits| IpAddr::V4(Ipv4Addr::from_bits(bits)));
    let v6 = any::<u128>().prop_map(|bits| IpAddr::V6(Ipv6Addr::from_bits(bits)));
    (prop_oneof![v4, v6], any::<u16>()).prop_map(|(ip, port)| SocketAddr::new(ip, port))
}

fn any_stamp() -> impl Strategy<Value = Stamp> {
    let offset = prop_oneof![0..1_u64 << 40, Just(i64::MAX as Offset - (1 << 20))];
    (any::<i64>(), offset, any::<i64>()).prop_map(|(queue_offset, physical_offset, time)| Stamp {
        queue_offset,
        physical_offset,
        store_timestamp_ms: time,
    })
}

fn any_given() -> impl Strategy<Value = Given> {
    let topic = prop_oneof!["[a-zA-Z0-9_%-]{1,140}", "\\PC{1,60}"];
    let bytes = |len| prop::collection::vec(any::<u8>(), 0..len);
    let properties = prop_oneof![bytes(200), Just(b"TAGS\x01A\x02KEYS\x01k\x02".to_vec())];
    let numbers = any::<(i32, i32, i32, i64, i32, i64)>();
    let parts = (
        topic,
        numbers,
        any_host(),
        any_host(),
        bytes(300),
        properties,
        any_stamp(),
    );
    (parts, any::<bool>()).prop_map(|(parts, append_property_crc)| {
        let (topic, numbers, born_host, store_host, body, properties, stamp) = parts;
        let options = EncodeOptions {
            append_property_crc,
        };
        Given {
            topic,
            numbers,
            born_host,
            store_host,
            body,
            properties,
            stamp,
            options,
        }
    })
}

proptest! {
    #[test]
    fn a_message_comes_back_as_it_went_in(given in any_given()) {
        let mut bytes = given.encode();
        let (at, len) = (given.stamp.physical_offset, bytes.len());
        // What follows the record is none of its business.
        bytes.extend_from_slice(&[0xFF; 9]);
        let property_crc =
            if given.options.append_property_crc { PropertyCrc::Require } else { PropertyCrc::Ignore };
        let check = CheckOptions { property_crc, ..CheckOptions::CHECKSUMS };
        let Ok(Parsed::Message(record)) = parse_record(&bytes, at, 1 << 20, check) else {
            return Err(TestCaseError::fail("not a record"));
        };
        let message = given.message();
        prop_assert_eq!(record.bytes(), &bytes[..len]);
        prop_assert_eq!((record.total_size(), record.end()), (len, at + len as u64));
        prop_assert_eq!((record.topic(), record.body()), (message.topic, message.body));
        prop_assert_eq!((record.queue_id(), record.flag()), (message.queue_id, message.flag));
        prop_assert_eq!(record.sys_flag() & !HOST_BITS, message.sys_flag & !HOST_BITS);
        prop_assert_eq!(record.born_timestamp_ms(), message.born_timestamp_ms);
        prop_assert_eq!(record.reconsume_times(), message.reconsume_times);
        prop_assert_eq!(record.prepared_transaction_offset(), message.prepared_transaction_offset);
        prop_assert_eq!(record.born_host().unwrap().ip(), message.born_host.ip().to_canonical());
        prop_assert_eq!(record.born_host().unwrap().port(), message.born_host.port());
        prop_assert_eq!(record.message_id(), Some(message_id(message.store_host, at)));
        prop_assert_eq!(record.queue_offset(), given.stamp.queue_offset);
        prop_assert_eq!(record.physical_offset(), at);
        prop_assert_eq!(record.store_timestamp_ms(), given.stamp.store_timestamp_ms);
        prop_assert!(record.properties_bytes().starts_with(message.properties));
        if !given.options.append_property_crc {
            prop_assert_eq!(record.properties_bytes(), message.properties);
        }
    }

    #[test]
    fn any_prefix_and_any_flipped_byte_of_any_record_has_a_defined_result(
        given in any_given(), mask in 1..=255_u8
    ) {
        let good = given.encode();
        let at = given.stamp.physical_offset;
        for len in 0..good.len() {
            let error = parse_record(&good[..len], at, 1 << 20, CheckOptions::CHECKSUMS).unwrap_err();
            let RecordError::NeedMore { len: needed, .. } = error else {
                return Err(TestCaseError::fail(format!("{len} bytes: {error}")));
            };
            prop_assert!(needed > len && needed <= good.len());
        }
        let property_crc = PropertyCrc::Require;
        let strict = CheckOptions { property_crc, ..CheckOptions::CHECKSUMS };
        for damaged in 0..good.len() {
            let mut bytes = good.clone();
            bytes[damaged] ^= mask;
            let _ = parse_record(&bytes, at, 1 << 20, CheckOptions::AFTER_POWER_LOSS);
            let strictly = parse_record(&bytes, at, 1 << 20, strict);
            prop_assert!(strictly.is_err(), "byte {}: {:?}", damaged, strictly);
        }
    }

    #[test]
    fn random_bytes_have_a_defined_result(
        mut bytes in prop::collection::vec(any::<u8>(), 0..300),
        magic in prop_oneof![Just([0xDA, 0xA3, 0x20, 0xA7]), Just([0xDA, 0xA3, 0x20, 0xAB])],
        size in 80..300_u16,
        room in 0..400_u64,
    ) {
        let _ = parse_record(&bytes, 0, room, CheckOptions::AFTER_POWER_LOSS);
        // The same with a front that gets past the first checks.
        if let Some(front) = bytes.first_chunk_mut::<48>() {
            front[..4].copy_from_slice(&i32::from(size).to_be_bytes());
            front[4..8].copy_from_slice(&magic);
            front[28..36].fill(0);
            if let Ok(Parsed::Message(record)) =
                parse_record(&bytes, 0, room, CheckOptions::AFTER_POWER_LOSS)
            {
                prop_assert_eq!(record.total_size(), usize::from(size));
                prop_assert!(u64::from(size) + 8 <= room);
            }
        }
    }
}
