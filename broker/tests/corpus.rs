//! `epochlog inspect` and `epochlog replay` over everything under `fixtures/`, and what that corpus has to
//! hold: each condition once, with its expectation, a line on how it was made, and little room taken.

#![expect(
    clippy::unwrap_used,
    reason = "a test stops where something is missing"
)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};

/// Most bytes all fixtures together may take.
const ROOM: u64 = 20 << 20;

/// What a log may have gone through, and the fixture that holds it.
const CONDITIONS: [(&str, &str); 17] = [
    ("clean", "java-clean-three-epochs"),
    ("several epochs", "java-clean-three-epochs"),
    ("unclean", "java-killed"),
    ("unclean with a torn tail", "java-torn-tail"),
    ("a hole", "java-hole-in-an-unflushed-segment"),
    ("damage", "java-damage-in-a-flushed-segment"),
    (
        "elections without writes, several epochs at one start",
        "java-elections-without-writes",
    ),
    ("prefix expired", "java-prefix-expired"),
    ("cut and resurrected tail", "java-cut-tail-comes-back"),
    ("IPv6", "java-ipv6-hosts-and-long-topics"),
    ("V2 topics", "java-ipv6-hosts-and-long-topics"),
    ("property CRC", "java-property-crc"),
    ("inner batch", "java-inner-batches"),
    (
        "fillers: exactly 8 bytes left, 7 not possible, a batch that does not fit",
        "java-segment-edges",
    ),
    ("empty store", "java-elected-and-empty"),
    ("no epoch file", "java-without-controller"),
    ("consume queues", "java-consume-queues"),
];

/// Each way an epoch file may be damaged.
const DAMAGES: [&str; 22] = [
    "count-beyond-any-list",
    "damaged-with-a-good-copy",
    "entry-changed",
    "entry-with-three-parts",
    "entry-without-start",
    "epoch-beyond-32-bits",
    "epoch-twice",
    "epochs-out-of-order",
    "negative-count",
    "negative-start",
    "not-a-number",
    "not-utf-8",
    "one-entry-too-many",
    "start-beyond-64-bits",
    "starts-out-of-order",
    "text-behind-the-entries",
    "torn-after-an-entry",
    "torn-after-the-count",
    "torn-in-an-entry",
    "torn-in-the-crc",
    "wrong-crc",
    "zero-length",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures")
}

/// The folders in `dir` that hold an `expect.toml`, sorted.
fn folders(dir: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(root().join(dir)).unwrap();
    let mut found: Vec<_> = entries
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.join("expect.toml").exists())
        .collect();
    found.sort();
    found
}

fn name(path: &Path) -> String {
    path.file_name().unwrap().to_string_lossy().into_owned()
}

fn expect(folder: &Path) -> toml::Table {
    let text = fs::read_to_string(folder.join("expect.toml")).unwrap();
    text.parse().unwrap()
}

fn command(command: &str, folder: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_epochlog"))
        .args([command, "--json"])
        .arg(folder)
        .output()
        .unwrap()
}

/// What the command printed, and whether it ended with success.
fn epochlog(name: &str, folder: &Path) -> (Value, bool) {
    let output = command(name, folder);
    let said = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
        let why = String::from_utf8_lossy(&output.stderr);
        panic!("{name} {}: {error}: {why}", folder.display())
    });
    (said, output.status.success())
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let from = entry.unwrap().path();
        let to = to.join(from.file_name().unwrap());
        if from.is_dir() {
            copy(&from, &to);
        } else {
            fs::copy(&from, &to).unwrap();
        }
    }
}

/// A case for `epochlog replay`; what is expected of it is of no account.
fn case(master: &Path, slave: &Path) -> tempfile::TempDir {
    let case = tempfile::tempdir().unwrap();
    copy(master, &case.path().join("master"));
    copy(slave, &case.path().join("slave"));
    fs::write(case.path().join("expect.toml"), "action = \"keep\"\n").unwrap();
    case
}

#[test]
fn each_store_is_inspected_as_expected() {
    let stores = folders("");
    assert!(stores.len() >= 15, "{stores:?}");
    for folder in stores {
        let name = name(&folder);
        let (found, ok) = epochlog("inspect", &folder);
        let expect = expect(&folder);
        for key in ["messages", "min_offset", "end_offset", "epochs"] {
            let wanted = serde_json::to_value(&expect[key]).unwrap();
            assert_eq!(found[key], wanted, "{name}: {key}");
        }
        let problems = found["problems"].to_string();
        let word = match expect.get("problem").and_then(|it| it.as_str()) {
            None => "[]",
            Some("torn") => "at offset",
            Some("damage") => "durable behind it",
            Some("epoch-file-missing") => "missing, but the log is not empty",
            Some(other) => panic!("{name}: unknown problem {other}"),
        };
        assert!(problems.contains(word), "{name}: {problems}");
        assert_eq!(found["ok"], json!(word == "[]"), "{name}");
        assert_eq!(ok, word == "[]", "{name}: the exit code");
    }
}

/// A store that meets a master with the same bytes keeps them; what is torn is gone when it opens. One that
/// cannot be opened does not join.
#[test]
fn each_store_joins_its_own_copy_or_is_refused() {
    for folder in folders("") {
        let (name, expect) = (name(&folder), expect(&folder));
        let problem = expect.get("problem").and_then(|it| it.as_str());
        let master = match problem {
            Some("epoch-file-missing") => root().join("java-clean-three-epochs"),
            _ => folder.clone(),
        };
        let case = case(&master, &folder);
        for side in ["master", "slave"] {
            // Git keeps no empty folder.
            fs::create_dir_all(case.path().join(side).join("commitlog")).unwrap();
        }
        if problem == Some("damage") {
            let output = command("replay", case.path());
            let why = String::from_utf8_lossy(&output.stderr);
            assert!(!output.status.success(), "{name}");
            assert!(why.contains("commitlog/"), "{name} names no file: {why}");
            continue;
        }
        let (outcome, ok) = epochlog("replay", case.path());
        let end = serde_json::to_value(&expect["end_offset"]).unwrap();
        assert_eq!(outcome["slave_end"], end, "{name}");
        if problem == Some("epoch-file-missing") {
            assert_eq!(outcome["reason"], json!("epoch-file-missing"), "{name}");
            assert!(!ok, "{name}: the case expects it to be kept");
            continue;
        }
        assert_eq!(outcome["action"], json!("keep"), "{name}: {outcome}");
        assert_eq!(outcome["point"], end, "{name}");
        let epochs = serde_json::to_value(&expect["epochs"]).unwrap();
        assert_eq!(outcome["epochs"], epochs, "{name}");
        assert!(ok, "{name}");
    }
}

#[test]
fn each_case_is_replayed_as_expected_and_its_sides_are_inspected() {
    let cases = folders("replay");
    assert!(cases.len() >= 20, "{cases:?}");
    let mut stores = 0;
    for folder in cases {
        let name = name(&folder);
        let (outcome, ok) = epochlog("replay", &folder);
        assert!(ok && outcome["ok"] == json!(true), "{name}: {outcome}");
        let case = case(&folder.join("master"), &folder.join("slave"));
        fs::copy(
            folder.join("expect-wrong.toml"),
            case.path().join("expect.toml"),
        )
        .unwrap();
        let (outcome, ok) = epochlog("replay", case.path());
        assert!(!ok && outcome["ok"] == json!(false), "{name}: {outcome}");
        for side in ["master", "slave"] {
            let dir = folder.join(side);
            if dir.join("commitlog").exists() {
                stores += 1;
                let (found, ok) = epochlog("inspect", &dir);
                assert!(ok, "{name}/{side}: {found}");
            }
        }
    }
    assert!(stores >= 4, "{stores} sides are store folders");
}

#[test]
fn each_epoch_file_is_read_or_refused_by_both_commands() {
    for folder in folders("epoch-files") {
        let (name, expect) = (name(&folder), expect(&folder));
        let reason = expect.get("reason").and_then(|it| it.as_str());
        let (found, _) = epochlog("inspect", &folder);
        let damaged = found["problems"].to_string().contains("damaged epoch file");
        assert_eq!(damaged, reason == Some("epoch-file-damaged"), "{name}");
        // As a slave of a master that holds the same, or a good list.
        let own = expect.get("epochs").map(|it| it.as_array().unwrap());
        let last = own.and_then(|list| list.last()?.as_array()?[1].as_integer());
        let good = root().join("epoch-files/good");
        let master = if reason.is_some() { &good } else { &folder };
        let case = case(master, &folder);
        let end = last.unwrap_or(5000).max(1);
        for side in ["master", "slave"] {
            let log = format!("min = 0\nend = {end}\n");
            fs::write(case.path().join(side).join("log.toml"), log).unwrap();
        }
        let (outcome, _) = epochlog("replay", case.path());
        match reason {
            Some(reason) => {
                assert_eq!(outcome["action"], json!("refuse"), "{name}: {outcome}");
                assert_eq!(outcome["reason"], json!(reason), "{name}");
            }
            // Bytes without an epoch have nothing in common with anybody's.
            None if last.is_none() => assert_eq!(outcome["action"], json!("refuse"), "{name}"),
            None => {
                assert_eq!(outcome["action"], json!("keep"), "{name}: {outcome}");
                let epochs = serde_json::to_value(&expect["epochs"]).unwrap();
                assert_eq!(outcome["epochs"], epochs, "{name}");
                assert_eq!(found["epochs"], epochs, "{name}");
            }
        }
    }
}

#[test]
fn each_condition_is_there_with_a_line_on_how_it_was_made() {
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    for (condition, fixture) in CONDITIONS {
        let folder = root().join(fixture);
        assert!(folder.join("manifest.jsonl").exists(), "{condition}");
        assert!(folder.join("expect-wrong.toml").exists(), "{condition}");
        assert!(readme.contains(&format!("| `{fixture}` |")), "{condition}");
    }
    for damage in DAMAGES {
        let folder = root().join("epoch-files").join(damage);
        let expect = expect(&folder);
        assert_eq!(
            expect["reason"].as_str(),
            Some("epoch-file-damaged"),
            "{damage}"
        );
    }
    for under in ["", "replay", "epoch-files"] {
        for folder in folders(under) {
            let text = fs::read_to_string(folder.join("expect.toml")).unwrap();
            let first = text.lines().next().unwrap_or_default();
            assert!(first.starts_with("# ") && first.len() > 10, "{folder:?}");
        }
    }
}

/// The fillers of the edges, read from the bytes: what is left of a segment is 8 bytes or more, never less.
#[test]
fn segments_end_with_the_fillers_that_their_names_promise() {
    let folder = root().join("java-segment-edges");
    let size = expect(&folder)["segment_size"].as_integer().unwrap();
    let manifest = fs::read_to_string(folder.join("manifest.jsonl")).unwrap();
    let mut ends = std::collections::BTreeMap::new();
    for line in manifest.lines().skip(1) {
        let line: Value = serde_json::from_str(line).unwrap();
        let offset = line["offset"].as_i64().unwrap();
        ends.insert(offset / size, offset + line["size"].as_i64().unwrap());
    }
    let left: Vec<_> = ends.iter().map(|(at, end)| (at + 1) * size - end).collect();
    assert_eq!(left[..4], [8, 60536, 9, 4000]);
}

#[test]
fn all_fixtures_together_are_small() {
    fn bytes(dir: &Path) -> u64 {
        let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
        let sizes = entries.map(|entry| match entry.file_type().unwrap().is_dir() {
            // What Maven built; git does not keep it.
            true if entry.path().ends_with("rocketmq-peer/target") => 0,
            true => bytes(&entry.path()),
            false => entry.metadata().unwrap().len(),
        });
        sizes.sum()
    }
    let held = bytes(&root());
    assert!(held <= ROOM, "{held} bytes, {ROOM} are allowed");
}
