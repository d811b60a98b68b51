//! The first ruler without a JVM: our own side stands in for RocketMQ's, by the same lines.

#![expect(
    clippy::unwrap_used,
    reason = "a test stops where something is missing"
)]

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

const RULER: &str = env!("CARGO_BIN_EXE_ruler");

fn run(peer: &Path, dir: &Path) -> Output {
    let sizes = ["--messages", "2048", "--segment-size", "1048576"];
    let warm = ["--java-warm-ms", "50", "--our-warm-ms", "50"];
    Command::new(RULER)
        .args(["run", "--runs", "2", "--batch", "32"])
        .args(sizes)
        .args(warm)
        .arg("--peer")
        .arg(peer)
        .arg("--dir")
        .arg(dir)
        .output()
        .unwrap()
}

#[test]
fn both_sides_are_measured_in_turn_and_every_figure_is_in_the_table() {
    let dir = tempfile::tempdir().unwrap();
    let output = run(Path::new(RULER), dir.path());
    let text = String::from_utf8(output.stdout).unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}{errors}");
    let sides: Vec<_> = text
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .map(|line| {
            for key in ["value", "wall_s"] {
                assert!(line[key].as_f64().unwrap() > 0.0, "{line}");
            }
            assert!(line["bytes"].as_u64().unwrap() > 0, "{line}");
            (
                line["run"].as_u64().unwrap(),
                line["side"].as_str().unwrap().to_owned(),
            )
        })
        .collect();
    assert_eq!(sides.len(), 40, "{text}");
    let mut order = sides;
    order.dedup();
    let order: Vec<_> = order
        .iter()
        .map(|(run, side)| (*run, side.as_str()))
        .collect();
    let expected = [(1, "java"), (1, "epochlog"), (2, "epochlog"), (2, "java")];
    assert_eq!(order, expected);
    for name in [
        "append, one by one, GB/s",
        "append, batches of 32, GB/s",
        "catch-up, frames of 32 KiB, GB/s",
        "live, frames of 32 KiB, GB/s",
        "synchronous puts, 1 in flight, puts/s",
        "synchronous puts, 1 in flight, p50, µs",
        "synchronous puts, 1 in flight, p99, µs",
        "synchronous puts, 1000 in flight, puts/s",
        "catch-up, best frames, GB/s",
        "live, best frames, GB/s",
    ] {
        assert!(text.contains(&format!("\n| {name} | ")), "{name}: {text}");
    }
    assert_eq!(dir.path().read_dir().unwrap().count(), 0, "stores are left");
}

/// A peer that loses a message in each append must not get into a table.
#[test]
fn a_side_that_writes_something_else_ends_the_run() {
    let dir = tempfile::tempdir().unwrap();
    let peer = dir.path().join("peer");
    let loses = format!("#!/bin/sh\nsed -u 's/^append 2048 1$/append 2047 1/' | {RULER} \"$@\"\n");
    std::fs::write(&peer, loses).unwrap();
    let chmod = Command::new("chmod").arg("+x").arg(&peer).status().unwrap();
    assert!(chmod.success());
    let output = run(&peer, dir.path());
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(errors.contains("did not write the same"), "{errors}");
}

#[test]
fn a_node_answers_bad_lines_and_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let mut node = Command::new(RULER)
        .args(["bench", "--id", "1", "--segment-size", "1048576", "--dir"])
        .arg(dir.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = [
        "append 1 1",
        "fly",
        "",
        "append",
        "append x 1",
        "append 3 2",
        "acks some",
        "master 1",
        "append 6 2",
        "acks all",
        "append 6 2",
        "puts 3 1",
        "status",
        "stop",
    ];
    let mut input = node.stdin.take().unwrap();
    writeln!(input, "{}", lines.join("\n")).unwrap();
    drop(input);
    let output = node.wait_with_output().unwrap();
    assert!(output.status.success());
    let answers: Vec<serde_json::Value> = String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let good = [
        "master 1",
        "append 6 2",
        "acks all",
        "puts 3 1",
        "status",
        "stop",
    ];
    assert_eq!(answers.len(), lines.len() + 1, "{answers:?}");
    for (at, (line, answer)) in lines.iter().zip(&answers[1..]).enumerate() {
        // The second of the two is refused: it would not wait for the acks.
        let expected = good.contains(line) && at != 10;
        assert_eq!(answer["ok"], expected, "{line}: {answer}");
        assert!(expected || answer["why"].is_string(), "{answer}");
    }
    assert_eq!(answers[13]["sync_state_set"], serde_json::json!([1]));
}
