//! What `epochlog verify` runs finds single bits that have changed.
#![allow(clippy::unwrap_used, reason = "a story ends where it fails")]

mod common;

use std::fs;
use std::path::Path;

use common::{config, message, segment_path};
use epochlog_engine::{EncodeOptions, Message, Record, Store, inspect};

const FLIPS: usize = 1000;

/// A whole log of ten records, closed; answers the places of `part` of each.
fn log(dir: &Path, crc: bool, part: impl Fn(&Record<'_>) -> (u64, u64)) -> Vec<u64> {
    let mut config = config(dir);
    config.encode = EncodeOptions {
        append_property_crc: crc,
    };
    let store = Store::open(config).unwrap();
    store.promote(1).unwrap();
    for count in 0..10u8 {
        let body = vec![b'a' + count; 40 + 7 * usize::from(count)];
        let message = Message {
            properties: b"KEYS\x01one\x02TAGS\x01a\x02",
            ..message(&body)
        };
        store.append(&message).unwrap();
    }
    let places = store.records(0..store.end_offset()).flat_map(|view| {
        let view = view.unwrap();
        let (from, to) = part(&view.record());
        from..to
    });
    let places = places.collect();
    store.close().unwrap();
    places
}

fn every_flip_is_found(crc: bool, part: impl Fn(&Record<'_>) -> (u64, u64)) {
    let dir = tempfile::tempdir().unwrap();
    let places = log(dir.path(), crc, part);
    assert_eq!(inspect::scan(dir.path()).unwrap().problems, []);
    let path = segment_path(dir.path(), 0);
    let whole = fs::read(&path).unwrap();
    let seed = std::env::var("EPOCHLOG_SEED").map_or_else(
        |_| std::process::id().into(),
        |seed| seed.parse::<u64>().expect("EPOCHLOG_SEED is a number"),
    );
    println!("EPOCHLOG_SEED={seed}");
    let mut state = seed;
    let mut random = move |below: usize| {
        // SplitMix64: any seed is good.
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        usize::try_from((mixed ^ (mixed >> 31)) % below as u64).unwrap()
    };
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    let put = |at: u64, byte: u8| {
        std::os::unix::fs::FileExt::write_all_at(&file, &[byte], at).unwrap();
    };
    for _ in 0..FLIPS {
        let (at, bit) = (places[random(places.len())], random(8));
        let byte = whole[usize::try_from(at).unwrap()];
        put(at, byte ^ (1 << bit));
        let problems = inspect::scan(dir.path()).unwrap().problems;
        assert!(!problems.is_empty(), "seed {seed}: bit {bit} of byte {at}");
        put(at, byte);
    }
    assert_eq!(inspect::scan(dir.path()).unwrap().problems, []);
}

#[test]
fn a_thousand_flips_in_records_with_a_property_crc() {
    every_flip_is_found(true, |record| (record.physical_offset(), record.end()));
}

#[test]
fn a_thousand_flips_in_property_crcs_alone() {
    every_flip_is_found(true, |record| (record.end() - 20, record.end()));
}

#[test]
fn a_thousand_flips_in_bodies_without_a_property_crc() {
    // The body lies behind 88 bytes of fixed fields: both hosts are IPv4.
    every_flip_is_found(false, |record| {
        let from = record.physical_offset() + 88;
        (from, from + record.body().len() as u64)
    });
}
