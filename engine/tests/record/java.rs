//! A log that RocketMQ wrote: every record of it is read as RocketMQ reads it, and written again to
//! the same bytes.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use epochlog_engine::{
    CheckOptions, CheckpointFile, EncodeOptions, EpochEntry, EpochFile, Parsed, Record, Stamp,
    Version, encode_into, encoded_len, parse_record,
};

const SEGMENT_SIZE: usize = 1024 * 1024;

fn fixture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/java-clean-three-epochs")
}

/// A manifest's line for a message, up to what needs a hash.
fn line(record: &Record<'_>) -> String {
    // Java writes all eight groups of an IPv6 address.
    let host = |host: Option<SocketAddr>| match host.unwrap() {
        SocketAddr::V4(host) => host.to_string(),
        SocketAddr::V6(host) => {
            let groups = host.ip().segments().map(|group| format!("{group:x}"));
            format!("[{}]:{}", groups.join(":"), host.port())
        }
    };
    let property = |name| {
        record
            .property(name)
            .map_or_else(|| "null".to_owned(), |value| format!("\"{value}\""))
    };
    format!(
        r#"{{"offset":{},"size":{},"topic":"{}","queue":{},"queue_offset":{},"flag":{},"#,
        record.physical_offset(),
        record.total_size(),
        record.topic(),
        record.queue_id(),
        record.queue_offset(),
        record.flag(),
    ) + &format!(
        r#""sys_flag":{},"born_ms":{},"store_ms":{},"born_host":"{}","store_host":"{}","#,
        record.sys_flag(),
        record.born_timestamp_ms(),
        record.store_timestamp_ms(),
        host(record.born_host()),
        host(record.store_host()),
    ) + &format!(
        r#""reconsume":{},"tags":{},"keys":{},"properties":{},"#,
        record.reconsume_times(),
        property("TAGS"),
        property("KEYS"),
        record.properties().count(),
    )
}

fn written_again(record: &Record<'_>) -> Vec<u8> {
    let options = EncodeOptions {
        append_property_crc: false,
    };
    let message = record.message().unwrap();
    let stamp = Stamp {
        queue_offset: record.queue_offset(),
        physical_offset: record.physical_offset(),
        store_timestamp_ms: record.store_timestamp_ms(),
    };
    let mut bytes = vec![0xEE; encoded_len(&message, options).unwrap()];
    encode_into(&mut bytes, &message, stamp, options).unwrap();
    bytes
}

#[test]
fn every_record_of_a_java_log_reads_as_java_reads_it_and_is_written_as_java_wrote_it() {
    let manifest = fs::read_to_string(fixture().join("manifest.jsonl")).unwrap();
    let mut lines = manifest.lines().skip(1);
    let (mut long_topics, mut v6_hosts, mut fillers) = (0, 0, 0);
    for base in (0..5).map(|index| index * SEGMENT_SIZE) {
        let path = fixture().join(format!("commitlog/{base:020}"));
        let segment = fs::read(path).unwrap();
        let mut at = 0;
        loop {
            let (offset, room) = ((base + at) as u64, (SEGMENT_SIZE - at) as u64);
            let check = CheckOptions::AFTER_POWER_LOSS;
            match parse_record(&segment[at..], offset, room, check) {
                Ok(Parsed::Message(record)) => {
                    let expected = lines.next().expect("a line for each record");
                    assert!(
                        expected.starts_with(&line(&record)),
                        "{}\n{expected}",
                        line(&record)
                    );
                    let body_len = format!(r#""body_len":{},"#, record.body().len());
                    assert!(expected.contains(&body_len), "{expected}");
                    assert!(
                        written_again(&record) == record.bytes(),
                        "bytes at {offset}"
                    );
                    long_topics += i32::from(record.version() == Version::V2);
                    v6_hosts += i32::from(record.born_host().is_some_and(|host| host.is_ipv6()));
                    at += record.total_size();
                }
                Ok(Parsed::Filler { .. }) => {
                    fillers += 1;
                    break;
                }
                Err(_) => {
                    assert_eq!(offset, 4_898_718, "only the end of the log is no record");
                    break;
                }
            }
        }
    }
    assert_eq!(lines.next(), None, "a record for each line");
    assert_eq!(fillers, 4);
    assert!(long_topics > 0 && v6_hosts > 0);
}

#[test]
fn the_small_files_of_a_java_store_read_as_java_wrote_them() {
    let epochs = EpochFile::new(fixture().join("epochFileCheckpoint"))
        .load()
        .unwrap()
        .unwrap();
    let entry = |epoch, start| EpochEntry { epoch, start };
    assert_eq!(
        epochs.entries(),
        [entry(1, 0), entry(3, 1_455_454), entry(4, 2_928_553)]
    );
    let text = fs::read_to_string(fixture().join("epochFileCheckpoint")).unwrap();
    assert_eq!(epochs.encode(), text);
    let checkpoint = CheckpointFile::read(&fixture().join("checkpoint"))
        .unwrap()
        .unwrap();
    assert_eq!(checkpoint.confirm_offset, 2_928_553);
    assert_eq!(checkpoint.logics_physical_offset, 4_897_736);
    let file = fs::read(fixture().join("checkpoint")).unwrap();
    assert_eq!(checkpoint.encode(), file[..48]);
    assert!(file[48..].iter().all(|byte| *byte == 0));
    assert_eq!(file.len(), 4096);
}
