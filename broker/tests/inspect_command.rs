//! `epochlog inspect --json` says of the log that Apache RocketMQ wrote what RocketMQ itself read
//! back from it, message by message.

#![expect(
    clippy::unwrap_used,
    reason = "a test stops where something is missing"
)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

fn fixture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/java-clean-three-epochs")
}

fn inspect(store: &Path, flags: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_epochlog"))
        .arg("inspect")
        .arg(store)
        .args(flags)
        .output()
        .unwrap()
}

/// The summary, then one object per message.
fn manifest() -> (Value, Vec<Value>) {
    let text = fs::read_to_string(fixture().join("manifest.jsonl")).unwrap();
    let mut lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
    (lines.next().unwrap(), lines.collect())
}

#[test]
fn the_command_agrees_with_javas_manifest_in_every_message() {
    let output = inspect(&fixture(), &["--json", "--records"]);
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    let (summary, messages) = manifest();
    assert!(
        messages.len() >= 2000,
        "the fixture holds {} messages",
        messages.len()
    );
    assert!(found["segments"].as_array().unwrap().len() >= 4);
    for key in ["messages", "min_offset", "end_offset", "epochs"] {
        assert_eq!(found[key], summary[key], "{key}");
    }
    assert_eq!(found["ok"], true);
    assert_eq!(found["problems"], Value::Array(Vec::new()));
    let records = found["records"].as_array().unwrap();
    assert_eq!(records.len(), messages.len());
    for (record, message) in records.iter().zip(&messages) {
        for key in [
            "offset",
            "size",
            "topic",
            "queue",
            "queue_offset",
            "tags",
            "keys",
        ] {
            assert_eq!(record[key], message[key], "{key} of {message}");
        }
        for key in ["body_len", "body_sha256"] {
            assert_eq!(record[key], message[key], "{key} of {message}");
        }
    }
}

#[test]
fn one_damaged_byte_is_a_problem_and_an_exit_code() {
    let copy = tempfile::tempdir().unwrap();
    fs::create_dir(copy.path().join("commitlog")).unwrap();
    for name in ["epochFileCheckpoint", "checkpoint"] {
        fs::copy(fixture().join(name), copy.path().join(name)).unwrap();
    }
    for entry in fs::read_dir(fixture().join("commitlog")).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(
            &path,
            copy.path()
                .join("commitlog")
                .join(path.file_name().unwrap()),
        )
        .unwrap();
    }
    // The last byte of the first message's body; the body ends before topic and properties.
    let (_, messages) = manifest();
    let body_end = 88 + usize::try_from(messages[0]["body_len"].as_u64().unwrap()).unwrap();
    let first = copy.path().join("commitlog").join("00000000000000000000");
    let mut bytes = fs::read(&first).unwrap();
    bytes[body_end - 1] ^= 1;
    fs::write(&first, bytes).unwrap();

    let output = inspect(copy.path(), &["--json"]);
    assert_eq!(output.status.code(), Some(1));
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(found["ok"], false);
    assert_eq!(found["messages"], 0);
    assert!(!found["problems"].as_array().unwrap().is_empty());
}
