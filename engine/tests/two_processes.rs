//! A second process at the door, and a process that is killed while it appends.
#![allow(clippy::unwrap_used, reason = "a story ends where it fails")]

mod common;

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use common::{SEGMENT, config, master, message, open};
use epochlog_engine::{Error, Store, inspect};

const DIR: &str = "EPOCHLOG_TEST_DIR";

/// Runs the test `name` of this file in a process of its own, told where the store is.
fn child(name: &str, dir: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture", "--test-threads=1"])
        .env(DIR, dir)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

#[test]
fn a_second_process_is_refused() {
    if let Some(dir) = std::env::var_os(DIR) {
        let refused = Store::open(config(Path::new(&dir)));
        assert!(
            matches!(refused, Err(Error::Locked { .. })),
            "{:?}",
            refused.err()
        );
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let store = master(dir.path(), 1);
    // A look is allowed, and must not cost the lock.
    inspect::scan(dir.path()).unwrap();
    for _ in 0..2 {
        let status = child("a_second_process_is_refused", dir.path())
            .wait()
            .unwrap();
        assert!(status.success());
    }
    store.close().unwrap();
}

#[test]
fn a_killed_process_loses_nothing_it_has_told() {
    if let Some(dir) = std::env::var_os(DIR) {
        let mut config = config(Path::new(&dir));
        config.prefault_ahead_bytes = SEGMENT;
        config.flush_interval_ms = 1;
        let store = Store::open(config).unwrap();
        store.promote(1).unwrap();
        let mut out = std::io::stdout();
        for index in 0..1_000_000 {
            let body = vec![b'k'; 10 + index % 700];
            let end = store.append(&message(&body)).unwrap().end;
            writeln!(out, "end {end}").unwrap();
        }
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (mut told, mut first) = (0, 0);
    for round in 1..=3_u64 {
        let mut writer = child("a_killed_process_loses_nothing_it_has_told", dir.path());
        let mut lines = BufReader::new(writer.stdout.take().unwrap()).lines();
        let tells = |line: String| {
            line.strip_prefix("end ")
                .map(|end| end.parse::<u64>().unwrap())
        };
        let mut seen = 0;
        while seen < 200 {
            let line = lines
                .next()
                .expect("it goes on until it is killed")
                .unwrap();
            if let Some(end) = tells(line) {
                told = end;
                seen += 1;
            }
        }
        writer.kill().unwrap();
        writer.wait().unwrap();
        // What it had written to the pipe counts as told.
        for end in lines.map_while(Result::ok).filter_map(tells) {
            told = end;
        }
        let store = open(dir.path());
        assert!(
            store.end_offset() >= told,
            "round {round}: {} of {told}",
            store.end_offset()
        );
        assert_eq!(store.flushed_offset(), store.end_offset());
        assert!(store.promises().may_serve_again);
        let incarnation = store.promises().incarnation;
        if round == 1 {
            first = incarnation;
        }
        assert_eq!(incarnation, first + 2 * (round - 1));
        let count = store
            .records(0..store.end_offset())
            .map(Result::unwrap)
            .count();
        assert!(count >= 200);
        store.abandon();
    }
}
