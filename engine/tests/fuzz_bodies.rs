//! Runs what the fuzz targets run, without a fuzzer: over the seeds, and over random changes of them.
//!
//! `EPOCHLOG_SEED` replays one run, `EPOCHLOG_FUZZ_RUNS` sets how many changed inputs each body gets.
#![allow(clippy::unwrap_used, reason = "a run ends where it fails")]

mod common;
#[path = "../fuzz/src/lib.rs"]
mod fuzz;

use std::fs;
use std::path::{Path, PathBuf};

use common::{Random, seeds};
use epochlog_engine::{
    CHECKPOINT_FILE_NAME, CheckOptions, CleanStop, EPOCH_FILE_NAME, EncodeOptions, Message,
    QueueUnit, QueuesMark, STATE_SLOT_LEN, STATE_SLOT_STRIDE, Stamp, State, StateFile, encode_into,
    encoded_len, inspect, parse_record, write_filler,
};

type Body = fn(&[u8]);

const BODIES: [(&str, Body, usize); 5] = [
    ("record", fuzz::record, 20_000),
    ("segment", fuzz::segment, 1000),
    ("epoch_file", fuzz::epoch_file, 1000),
    ("checkpoint", fuzz::checkpoint, 500),
    ("state_file", fuzz::state_file, 1000),
];

/// All seeds together may not outgrow this, in bytes.
const MAX_SEEDS_LEN: usize = 200 * 1024;

fn seed_dir(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("fuzz/seeds")
        .join(name)
}

fn seed_files(name: &str) -> Vec<Vec<u8>> {
    let dir = seed_dir(name);
    let mut paths: Vec<_> = fs::read_dir(&dir)
        .unwrap_or_else(|error| panic!("{}: {error}", dir.display()))
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.sort();
    assert!(!paths.is_empty(), "{}: no seeds", dir.display());
    paths.iter().map(|path| fs::read(path).unwrap()).collect()
}

/// One input made of the seeds: parts of two of them, with bytes and bits changed.
fn changed(random: &mut Random, seeds: &[Vec<u8>]) -> Vec<u8> {
    let mut input = seeds[random.below(seeds.len())].clone();
    let other = &seeds[random.below(seeds.len())];
    if random.below(4) == 0 && !other.is_empty() {
        input.truncate(random.below(input.len() + 1));
        input.extend_from_slice(&other[random.below(other.len())..]);
    }
    for _ in 0..random.below(6) {
        if input.is_empty() {
            break;
        }
        let at = random.below(input.len());
        match random.below(5) {
            0 => input[at] ^= 1 << random.below(8),
            1 => input[at] = u8::try_from(random.below(256)).unwrap(),
            2 => input.truncate(at),
            3 => {
                let byte = [0, 1, 0x7F, 0x80, 0xFF][random.below(5)];
                input.insert(at, byte);
            }
            _ => {
                input.remove(at);
            }
        }
    }
    input
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn run(name: &str) {
    let (_, body, count) = BODIES.into_iter().find(|it| it.0 == name).unwrap();
    let files = seed_files(name);
    for input in &files {
        body(input);
    }
    let count = std::env::var("EPOCHLOG_FUZZ_RUNS").map_or(count, |it| it.parse().unwrap());
    for seed in seeds(1) {
        println!("{name}: EPOCHLOG_SEED={seed}");
        let mut random = Random::new(seed);
        for _ in 0..count {
            let input = changed(&mut random, &files);
            if let Err(panic) = std::panic::catch_unwind(|| body(&input)) {
                println!("{name}: the input was {}", hex(&input));
                std::panic::resume_unwind(panic);
            }
        }
    }
}

#[test]
fn any_bytes_are_a_record_a_batch_and_a_unit_or_have_a_defined_answer() {
    run("record");
}

#[test]
fn a_folder_with_any_segments_opens_to_a_sound_log_or_is_refused_unchanged() {
    run("segment");
}

#[test]
fn any_epoch_file_is_a_list_or_is_refused_unchanged() {
    run("epoch_file");
}

#[test]
fn any_checkpoint_reads_as_six_numbers() {
    run("checkpoint");
}

#[test]
fn any_state_file_keeps_its_promises_or_is_refused_unchanged() {
    run("state_file");
}

#[test]
fn the_seeds_are_few_and_reach_what_they_are_for() {
    let all: Vec<_> = BODIES.iter().map(|it| (it.0, seed_files(it.0))).collect();
    let len: usize = all.iter().flat_map(|(_, files)| files).map(Vec::len).sum();
    assert!(len <= MAX_SEEDS_LEN, "{len} bytes of seeds");
    let whole = |input: &&Vec<u8>| {
        input.len() > 2 + 91
            && parse_record(
                &input[2..],
                stated(&input[2..]),
                1 << 30,
                CheckOptions::CHECKSUMS,
            )
            .is_ok()
    };
    let records = all[0].1.iter().filter(whole).count();
    assert!(records >= 8, "{records} of the seeds are sound records");
}

fn stated(record: &[u8]) -> u64 {
    u64::from_be_bytes(record[28..36].try_into().unwrap())
}

/// Makes the seeds anew, but for what a fuzzer found (`found-…`): `cargo test -p epochlog-engine --test fuzz_bodies -- --ignored make_the_seeds`.
#[test]
#[ignore = "writes into the source tree"]
fn make_the_seeds() {
    for (name, _, _) in BODIES {
        let dir = seed_dir(name);
        fs::create_dir_all(&dir).unwrap();
        for entry in fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy();
            if !name.starts_with("found-") {
                fs::remove_file(&path).unwrap();
            }
        }
        let put = |seed: &str, bytes: &[&[u8]]| fs::write(dir.join(seed), bytes.concat()).unwrap();
        match name {
            "record" => record_seeds(put),
            "segment" => segment_seeds(put),
            "epoch_file" => epoch_seeds(put),
            "checkpoint" => checkpoint_seeds(put),
            _ => state_seeds(put),
        }
    }
}

fn fixture(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../fixtures")
        .join(path)
}

/// The first `count` records of a fixture that are not long.
fn records_of(name: &str, count: usize) -> Vec<Vec<u8>> {
    let scan = inspect::scan(fixture(name)).unwrap();
    scan.records()
        .map(|record| record.unwrap().bytes().to_vec())
        .filter(|record| record.len() <= 2048)
        .take(count)
        .collect()
}

fn record_seeds(put: impl Fn(&str, &[&[u8]])) {
    for name in [
        "java-inner-batches",
        "java-ipv6-hosts-and-long-topics",
        "java-property-crc",
        "java-consume-queues",
    ] {
        for (index, record) in records_of(name, 4).iter().enumerate() {
            put(&format!("{name}-{index}"), &[&[0, 9], record]);
            put(&format!("{name}-{index}-mended"), &[&[5, 9], record]);
        }
    }
    let mut filler = vec![0; 100];
    write_filler(&mut filler);
    put("filler", &[&[0x80, 0], &filler]);
    put("unwritten", &[&[0x40, 0], &[0; 64]]);
    let item = |body: &[u8], properties: &[u8]| {
        let size = i32::try_from(22 + body.len() + properties.len()).unwrap();
        let body_len = i32::try_from(body.len()).unwrap().to_be_bytes();
        let properties_len = i16::try_from(properties.len()).unwrap().to_be_bytes();
        let head = [&size.to_be_bytes()[..], &[0; 12], &body_len].concat();
        [&head, body, &properties_len[..], properties].concat()
    };
    put(
        "client-batch",
        &[
            &item(b"one", b"A\x01b\x02"),
            &item(b"", b""),
            &item(b"two", b""),
        ],
    );
    let mapped = Message {
        born_host: "[::ffff:10.0.0.1]:1".parse().unwrap(),
        ..Message::new("topic", b"body", "[2001:db8::1]:2".parse().unwrap(), 1)
    };
    let options = EncodeOptions::default();
    let mut record = vec![0; encoded_len(&mapped, options).unwrap()];
    let stamp = Stamp {
        queue_offset: 0,
        physical_offset: 0,
        store_timestamp_ms: 1,
    };
    encode_into(&mut record, &mapped, stamp, options).unwrap();
    put("two-kinds-of-hosts", &[&[0, 0], &record]);
    let unit = QueueUnit {
        offset: 4711,
        size: 200,
        tags_code: -1,
    };
    put("queue-unit", &[&unit.encode()]);
}

fn segment_seeds(put: impl Fn(&str, &[&[u8]])) {
    for (name, beside) in [
        ("java-inner-batches", 0),
        ("java-property-crc", 1),
        ("java-segment-edges", 2),
    ] {
        let bytes = fs::read(fixture(name).join("commitlog/00000000000000000000")).unwrap();
        put(
            &format!("{name}-raw"),
            &[&[1, beside, 10, 0], &bytes[..8000]],
        );
    }
    // Records of three lengths, a filler, noise, a flipped bit.
    let good: Vec<u8> = (0..40).flat_map(|at| [at % 4, at * 5]).collect();
    put("good-records", &[&[4, 0x20, 0, 0], &good]);
    put(
        "good-records-of-a-killed-broker",
        &[&[5, 0x21, 100, 0], &good],
    );
    put("two-epochs", &[&[6, 0x43, 30, 90], &good]);
    put("a-java-folder", &[&[7, 0x26, 0, 0], &good]);
    let torn = [&good[..20], &[7, 3], &good[..10]].concat();
    put("torn", &[&[4, 0, 0, 0], &torn]);
    put("damage", &[&[4, 1, 250, 0], &torn]);
    let hole = [&good[..12], &[6, 60], &good[..30]].concat();
    put("hole", &[&[5, 2, 0, 0], &hole]);
    let noise = [&good[..12], &[4, 0, 5, 20], &[0xAB; 20][..], &good[..10]].concat();
    put("noise", &[&[4, 0x62, 0, 0], &noise]);
    put("odd-length", &[&[28, 0, 0, 100], &good]);
    put("empty", &[&[0, 0, 0, 0]]);
}

fn epoch_seeds(put: impl Fn(&str, &[&[u8]])) {
    for entry in fs::read_dir(fixture("epoch-files")).unwrap() {
        let dir = entry.unwrap().path();
        let name = dir.file_name().unwrap().to_string_lossy().into_owned();
        let Ok(main) = fs::read(dir.join(EPOCH_FILE_NAME)) else {
            continue;
        };
        let backup = fs::read(dir.join(format!("{EPOCH_FILE_NAME}.bak"))).unwrap_or_default();
        let Ok(len) = u8::try_from(backup.len()) else {
            continue;
        };
        let has = 2 * u8::from(len > 0);
        put(&name, &[&[has, len], &backup, &main]);
    }
    put("lines-alone", &[&[1, 0], b"1-0\n2-300\n3-300\n7-4096\n"]);
}

fn checkpoint_seeds(put: impl Fn(&str, &[&[u8]])) {
    for name in [
        "java-clean-three-epochs",
        "java-killed",
        "java-consume-queues",
    ] {
        let bytes = fs::read(fixture(name).join(CHECKPOINT_FILE_NAME)).unwrap();
        put(name, &[&bytes[..64]]);
        put(&format!("{name}-short"), &[&bytes[..20]]);
    }
    put("whole-file", &[&[0x55; 48], &[0; 4048]]);
}

fn state_seeds(put: impl Fn(&str, &[&[u8]])) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state");
    let first = State {
        max_epoch: Some(3),
        served_epoch: Some(2),
        flushed: 4096,
        scan_from: 4000,
        incarnation: 7,
        generation: 9,
        boot_id: [7; 16],
        ..State::default()
    };
    let clean = State {
        clean: Some(CleanStop {
            end: 4096,
            last_record_len: 96,
            ..CleanStop::default()
        }),
        queues: Some(QueuesMark {
            through: 4096,
            ends_crc: 5,
            complete: true,
        }),
        ..first
    };
    StateFile::open(&path, first).unwrap().store(clean).unwrap();
    let bytes = fs::read(&path).unwrap();
    let slots = [
        &bytes[..STATE_SLOT_LEN],
        &bytes[STATE_SLOT_STRIDE..][..STATE_SLOT_LEN],
    ];
    put("two-slots", &[&[0], slots[0], slots[1]]);
    put("two-slots-mended", &[&[3], slots[0], slots[1]]);
    put("one-slot", &[&[0], slots[0]]);
    put("torn", &[&[0], slots[0], &slots[1][..200]]);
    put("never-written", &[&[0]]);
}
