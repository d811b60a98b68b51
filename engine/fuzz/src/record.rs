//! One record, one client batch, one unit of a consume queue.
//!
//! The first two bytes of the data choose: whether the checksums and the fixed fields are mended first, so
//! that changes get past them; how much room the segment has left; which bit is flipped.

use std::net::SocketAddr;

use epochlog_engine::{
    CheckOptions, EncodeOptions, FILLER_MIN_LEN, MessageBatch, PROPERTY_CRC_LEN, Parsed,
    PropertyCrc, QUEUE_UNIT_LEN, QueueUnit, RECORD_MAGIC_V1, RECORD_MAGIC_V2, Record, RecordError,
    Stamp, Version, encode_into, encoded_len, parse_record,
};

use super::header;

const SIZE: std::ops::Range<usize> = 0..4;
const MAGIC: std::ops::Range<usize> = 4..8;
const BODY_CRC: std::ops::Range<usize> = 8..12;
const PHYSICAL_OFFSET: std::ops::Range<usize> = 28..36;

const REQUIRE: CheckOptions = CheckOptions {
    property_crc: PropertyCrc::Require,
    ..CheckOptions::CHECKSUMS
};

pub fn record(data: &[u8]) {
    batch(data);
    unit(data);
    let Some((&[how, choice], rest)) = header::<2>(data) else {
        return;
    };
    let mut bytes = rest.to_vec();
    if how & 1 != 0 {
        mend(&mut bytes, how);
    }
    let at = stated_offset(&bytes);
    let len = bytes.len() as u64;
    let room = match how >> 6 {
        0 => 1 << 30,
        1 => len + FILLER_MIN_LEN as u64,
        2 => len,
        _ => u64::from(choice),
    };
    let [structure, checksums, strict, required] = [
        CheckOptions::STRUCTURE,
        CheckOptions::CHECKSUMS,
        CheckOptions::AFTER_POWER_LOSS,
        REQUIRE,
    ]
    .map(|check| parse_record(&bytes, at, room, check));
    // Each check refuses more than the one before it.
    for (stricter, looser) in [
        (&checksums, &structure),
        (&strict, &checksums),
        (&required, &checksums),
    ] {
        match (stricter, looser) {
            (Ok(stricter), Ok(looser)) => assert_eq!(taken(stricter), taken(looser)),
            (Ok(_), Err(error)) => panic!("refused by the looser check alone: {error}"),
            (Err(_), Ok(_)) => {}
            (Err(stricter), Err(looser)) => assert_eq!(stricter, looser),
        }
    }
    if let Ok(Parsed::Message(found)) = &required {
        no_flipped_bit_is_missed(found, at, room, usize::from(choice));
    }
    let parsed = match structure {
        Ok(Parsed::Message(found)) => found,
        Ok(Parsed::Filler { len }) => {
            assert_eq!(u64::from(len), room, "a filler takes the rest");
            assert!(len as usize <= bytes.len());
            return;
        }
        Err(RecordError::NeedMore { len: needed, .. }) => {
            assert!(needed > bytes.len() && needed as u64 <= room.max(FILLER_MIN_LEN as u64));
            return;
        }
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return;
        }
    };
    look_at(&parsed, &bytes, at, room);
    encode_again(&parsed, checksums.is_ok());
}

/// Puts right what a change of the bytes is most likely to have broken.
fn mend(bytes: &mut [u8], how: u8) {
    if bytes.len() < PHYSICAL_OFFSET.end {
        return;
    }
    let magic = if how & 2 != 0 {
        RECORD_MAGIC_V2
    } else {
        RECORD_MAGIC_V1
    };
    let size = i32::try_from(bytes.len()).unwrap();
    bytes[SIZE].copy_from_slice(&size.to_be_bytes());
    bytes[MAGIC].copy_from_slice(&magic.to_be_bytes());
    bytes[PHYSICAL_OFFSET.start] &= 0x7F;
    let at = stated_offset(bytes);
    let Ok(Parsed::Message(found)) = parse_record(bytes, at, 1 << 30, CheckOptions::STRUCTURE)
    else {
        return;
    };
    let crc = masked_crc(found.body());
    bytes[BODY_CRC].copy_from_slice(&crc.to_be_bytes());
    let covered = bytes.len() - PROPERTY_CRC_LEN;
    if how & 4 != 0 && bytes[covered..].starts_with(b"__CRC32#\x01") {
        let digits = format!("{:010}\u{2}", masked_crc(&bytes[..covered]));
        bytes[covered + 9..].copy_from_slice(digits.as_bytes());
    }
}

fn masked_crc(bytes: &[u8]) -> u32 {
    crc32fast::hash(bytes) & 0x7FFF_FFFF
}

fn stated_offset(bytes: &[u8]) -> u64 {
    let stated = bytes.get(PHYSICAL_OFFSET).and_then(|it| it.try_into().ok());
    stated.map_or(0, u64::from_be_bytes)
}

fn taken(parsed: &Parsed<'_>) -> usize {
    match parsed {
        Parsed::Message(record) => record.total_size(),
        Parsed::Filler { len } => *len as usize,
    }
}

fn look_at(record: &Record<'_>, bytes: &[u8], at: u64, room: u64) {
    let len = record.total_size();
    assert_eq!(record.bytes(), &bytes[..len]);
    assert!(
        len as u64 <= room - FILLER_MIN_LEN as u64,
        "no room for a filler"
    );
    assert_eq!(record.physical_offset(), at);
    assert_eq!(record.end(), at + len as u64);
    // What follows a record does not count, and what is missing of it is asked for.
    assert!(parse_record(&bytes[..len], at, room, CheckOptions::STRUCTURE).is_ok());
    for short in [0, 4, 7, 8, 40, 90, len / 2, len - 1] {
        if short < len {
            let error = parse_record(&bytes[..short], at, room, CheckOptions::STRUCTURE);
            match error {
                Err(RecordError::NeedMore { len: needed, .. }) => {
                    assert!(short < needed && needed <= len);
                }
                other => panic!("{short} of {len} bytes: {other:?}"),
            }
        }
    }
    let text = record.properties_bytes();
    for (name, value) in record.properties().take(64) {
        assert!(!name.is_empty() && !value.is_empty());
        let last = record.properties().filter(|pair| pair.0 == name).last();
        assert_eq!(record.property(&name), last.map(|pair| pair.1));
    }
    assert!(record.body().len() + record.topic().len() + text.len() < len);
    let id = record.message_id();
    assert_eq!(id.is_some(), record.store_host().is_some());
    assert!(!format!("{record:?}").is_empty());
    if record.is_inner_batch() && !record.body().is_empty() {
        batch(record.body());
    }
}

/// The message of a record makes the same record, and the same bytes where nothing in them was free.
fn encode_again(record: &Record<'_>, sound: bool) {
    let Some(message) = record.message() else {
        return;
    };
    let stamp = Stamp {
        queue_offset: record.queue_offset(),
        physical_offset: record.physical_offset(),
        store_timestamp_ms: record.store_timestamp_ms(),
    };
    for append_property_crc in [false, true] {
        let options = EncodeOptions {
            append_property_crc,
        };
        let Ok(len) = encoded_len(&message, options) else {
            continue;
        };
        let mut out = vec![0xEE; len];
        encode_into(&mut out, &message, stamp, options).unwrap();
        let check = if append_property_crc {
            REQUIRE
        } else {
            CheckOptions::CHECKSUMS
        };
        let again = parse_record(&out, stamp.physical_offset, 1 << 32, check);
        let Ok(Parsed::Message(again)) = again else {
            panic!("what was encoded does not parse: {again:?}");
        };
        assert_eq!(again.total_size(), len);
        assert_eq!(again.topic(), record.topic());
        assert_eq!(again.body(), record.body());
        assert_eq!(again.queue_id(), record.queue_id());
        assert_eq!(again.queue_offset(), record.queue_offset());
        // An IPv4 address in IPv6 form is stored as what it is, as Java does.
        let plain = |host: Option<SocketAddr>| host.map(|it| (it.ip().to_canonical(), it.port()));
        assert_eq!(plain(again.born_host()), plain(record.born_host()));
        assert_eq!(plain(again.store_host()), plain(record.store_host()));
        let same_hosts =
            again.born_host() == record.born_host() && again.store_host() == record.store_host();
        assert_eq!(again.store_timestamp_ms(), record.store_timestamp_ms());
        assert!(again.sys_flag() == record.sys_flag() || !same_hosts);
        let short_topic = record.topic().len() <= 127;
        let plain = (again.version() == Version::V1) == short_topic;
        assert!(plain, "V2 is for long topics");
        // An empty body's CRC is not checked, so any number may stand there.
        let same_crc = again.body_crc() == record.body_crc();
        assert!(same_crc || !sound || record.body().is_empty());
        let same_properties = again.properties_bytes() == record.properties_bytes();
        if same_hosts && same_properties && same_crc && again.version() == record.version() {
            assert_eq!(out, record.bytes(), "the same fields, but other bytes");
        }
    }
}

fn no_flipped_bit_is_missed(record: &Record<'_>, at: u64, room: u64, choice: usize) {
    let len = record.total_size();
    for flip in [choice, choice * 31, choice * 257] {
        let mut bytes = record.bytes().to_vec();
        bytes[flip / 8 % len] ^= 1 << (flip % 8);
        let parsed = parse_record(&bytes, at, room, REQUIRE);
        assert!(parsed.is_err(), "bit {flip} was flipped: {parsed:?}");
    }
}

/// A batch as a client sends it.
fn batch(bytes: &[u8]) {
    let Ok(batch) = MessageBatch::new(bytes) else {
        return;
    };
    let count = batch.len();
    assert!(count > 0);
    let mut seen = 0;
    let mut taken = 0;
    for item in batch {
        seen += 1;
        taken += 22 + item.body.len() + item.properties.len();
    }
    assert_eq!(seen, count);
    assert_eq!(taken, bytes.len(), "every byte belongs to an item");
}

fn unit(bytes: &[u8]) {
    let Some((bytes, _)) = bytes.split_first_chunk::<QUEUE_UNIT_LEN>() else {
        return;
    };
    if let Some(unit) = QueueUnit::decode(bytes) {
        assert_eq!(unit.encode(), *bytes);
        assert!(unit.end() > unit.offset);
    }
}
