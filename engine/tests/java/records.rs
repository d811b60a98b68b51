//! Every record RocketMQ wrote into the fixtures, read with our parser: it must agree with RocketMQ's own
//! reading field by field, and encoding what was read must give RocketMQ's bytes again.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::fixtures::{self, Line, Manifest};
use epochlog_engine::{
    CheckOptions, EncodeOptions, PROPERTY_CRC_LEN, Parsed, Record, Stamp, encode_into, encoded_len,
    parse_record,
};

/// Calls `on_record` for every record of a folder up to the end RocketMQ found.
fn walk(folder: &Path, manifest: &Manifest, mut on_record: impl FnMut(Record<'_>)) {
    let mut at = manifest.head.min_offset;
    while at < manifest.head.end_offset {
        let (base, segment) = segment_of(folder, at);
        while at < manifest.head.end_offset {
            let place = usize::try_from(at - base).expect("segments are small");
            let bytes = &segment[place..];
            match parse_record(
                bytes,
                at,
                bytes.len() as u64,
                CheckOptions::AFTER_POWER_LOSS,
            )
            .unwrap_or_else(|error| panic!("{}: {error}", fixtures::name(folder)))
            {
                Parsed::Message(record) => {
                    on_record(record);
                    at = record.end();
                }
                Parsed::Filler { len } => {
                    at += u64::from(len);
                    break;
                }
            }
        }
    }
    assert_eq!(at, manifest.head.end_offset, "{}", fixtures::name(folder));
}

fn segment_of(folder: &Path, at: u64) -> (u64, Vec<u8>) {
    let mut bases: Vec<u64> = fs::read_dir(folder.join("commitlog"))
        .expect("a commit log")
        .map(|entry| entry.expect("an entry").file_name())
        .map(|name| name.to_string_lossy().parse().expect("a segment's name"))
        .collect();
    bases.sort_unstable();
    let base = *bases
        .iter()
        .rfind(|&&base| base <= at)
        .expect("a segment holds the offset");
    let bytes = fs::read(folder.join(format!("commitlog/{base:020}"))).expect("a segment");
    (base, bytes)
}

fn assert_agrees(record: &Record<'_>, java: &Line, context: &str) {
    assert_eq!(record.physical_offset(), java.offset, "{context}");
    assert_eq!(record.total_size(), java.size, "{context}");
    assert_eq!(record.topic(), java.topic, "{context}");
    assert_eq!(record.queue_id(), java.queue, "{context}");
    assert_eq!(record.queue_offset(), java.queue_offset, "{context}");
    assert_eq!(record.flag(), java.flag, "{context}");
    assert_eq!(record.sys_flag(), java.sys_flag, "{context}");
    assert_eq!(record.born_timestamp_ms(), java.born_ms, "{context}");
    assert_eq!(record.store_timestamp_ms(), java.store_ms, "{context}");
    assert_eq!(record.born_host(), java.born_host.parse().ok(), "{context}");
    assert_eq!(
        record.store_host(),
        java.store_host.parse().ok(),
        "{context}"
    );
    assert_eq!(record.reconsume_times(), java.reconsume, "{context}");
    assert_eq!(
        record.property("TAGS").as_deref(),
        java.tags.as_deref(),
        "{context}"
    );
    assert_eq!(
        record.property("KEYS").as_deref(),
        java.keys.as_deref(),
        "{context}"
    );
    assert_eq!(record.body().len(), java.body_len, "{context}");
    assert_eq!(
        fixtures::sha256(record.body()),
        java.body_sha256,
        "{context}"
    );
    let properties: BTreeMap<_, _> = record.properties().collect();
    assert_eq!(properties.len(), java.properties, "{context}");
    let mut text = String::new();
    for (name, value) in &properties {
        text.extend([name, "\x01", value, "\x02"]);
    }
    assert_eq!(
        fixtures::sha256(text.as_bytes()),
        java.properties_sha256,
        "{context}"
    );
}

fn assert_encodes_to_itself(record: &Record<'_>, context: &str) {
    let message = record
        .message()
        .expect("RocketMQ stores ports that are ports");
    let options = EncodeOptions {
        append_property_crc: record.property("__CRC32#").is_some(),
    };
    let stamp = Stamp {
        queue_offset: record.queue_offset(),
        physical_offset: record.physical_offset(),
        store_timestamp_ms: record.store_timestamp_ms(),
    };
    let mut bytes = vec![0; encoded_len(&message, options).expect("it was encoded before")];
    encode_into(&mut bytes, &message, stamp, options).expect("it was encoded before");
    assert!(bytes == record.bytes(), "{context}: encoded differently");
}

#[test]
fn every_record_reads_as_rocketmq_reads_it_and_encodes_to_the_same_bytes() {
    let mut records = 0;
    for folder in fixtures::folders("", "java-") {
        let manifest = Manifest::read(&folder);
        let mut lines = manifest.messages.iter();
        walk(&folder, &manifest, |record| {
            let context = format!(
                "{} at {}",
                fixtures::name(&folder),
                record.physical_offset()
            );
            let java = lines.next().expect("RocketMQ read this record too");
            assert_agrees(&record, java, &context);
            assert_encodes_to_itself(&record, &context);
            records += 1;
        });
        assert!(
            lines.next().is_none(),
            "{}: RocketMQ read more",
            fixtures::name(&folder)
        );
    }
    assert!(records > 3000, "only {records} records");
}

#[test]
fn records_with_a_property_crc_are_checked_by_it() {
    let folder = fixtures::root().join("java-property-crc");
    let manifest = Manifest::read(&folder);
    let (base, segment) = segment_of(&folder, 0);
    let java = &manifest.messages[3];
    let from = usize::try_from(java.offset - base).expect("segments are small");
    let mut record = segment[from..from + java.size].to_vec();
    let room = segment.len() as u64 - java.offset;
    let parse =
        |bytes: &[u8]| parse_record(bytes, java.offset, room, CheckOptions::CHECKSUMS).map(|_| ());
    parse(&record).expect("as RocketMQ wrote it");
    // The queue id is covered by nothing but the property CRC.
    record[15] ^= 1;
    parse(&record).expect_err("a changed queue id");
    record[15] ^= 1;
    let last_digit = record.len() - PROPERTY_CRC_LEN + "__CRC32#\u{1}".len();
    record[last_digit] ^= 1;
    parse(&record).expect_err("a changed CRC");
}
