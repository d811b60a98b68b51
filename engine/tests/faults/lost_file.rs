//! A mapped file that another program shortens.

use std::fs::File;
use std::os::unix::process::ExitStatusExt;

use epochlog_engine::signals::{self, BUS_ERROR_EXIT_CODE};
use epochlog_engine::{Store, StoreConfig};
use rustix::process::{Signal, getpid, kill_process};

use crate::child::{self, Walls};
use crate::common::{append, body_for, message, segment_path};

const SEGMENT: u64 = 64 * 1024;

fn tell(dir: &std::path::Path, part: &str) {
    if part != "without" {
        signals::install().unwrap();
        signals::install().unwrap();
    }
    if part == "elsewhere" {
        // The first one only puts the system's own way of ending a process back.
        for _ in 0..2 {
            kill_process(getpid(), Signal::BUS).unwrap();
        }
    }
    let mut config = StoreConfig::new(dir);
    config.segment_size = SEGMENT;
    config.flush_interval_ms = 3_600_000;
    let store = Store::open(config).unwrap();
    store.promote(1).unwrap();
    append(&store, 20, 1000);
    store.flush().unwrap();
    let held = store.slice(0, usize::MAX).unwrap();
    let file = File::options()
        .write(true)
        .open(segment_path(dir, 0))
        .unwrap();
    file.set_len(4096).unwrap();
    if part == "write" {
        let body = body_for(1000);
        for _ in 0..20 {
            store.append(&message(&body)).unwrap();
        }
    } else {
        println!("{}", held[10_000]);
    }
    println!("still here");
}

fn ended(part: &str) -> (std::process::Output, String) {
    let dir = tempfile::tempdir().unwrap();
    let name = "lost_file::h02_c20_a_shortened_file_ends_the_process_with_its_name";
    let output = child::run(name, part, dir.path(), Walls::None).unwrap();
    assert!(!String::from_utf8_lossy(&output.stdout).contains("still here"));
    let root = std::fs::canonicalize(dir.path()).unwrap();
    (output, segment_path(&root, 0).display().to_string())
}

#[test]
fn h02_c20_a_shortened_file_ends_the_process_with_its_name() {
    if let Some((dir, part)) = child::role() {
        return tell(&dir, &part);
    }
    for (part, position) in [("read", 10_000), ("write", 20_000)] {
        let (output, path) = ended(part);
        assert_eq!(output.status.code(), Some(BUS_ERROR_EXIT_CODE), "{part}");
        let said = String::from_utf8_lossy(&output.stderr);
        let line = format!("epochlog: {path}: cannot reach byte ");
        let said = said
            .split_once(&line)
            .unwrap_or_else(|| panic!("{part}: {said}"))
            .1;
        let named: u64 = said.split(' ').next().unwrap().parse().unwrap();
        assert_eq!(named, position, "{part}");
        assert!(said.contains("epochlog verify"), "{said}");
    }
}

#[test]
fn without_the_handler_and_elsewhere_the_system_ends_the_process() {
    for part in ["without", "elsewhere"] {
        let (output, path) = ended(part);
        assert_eq!(output.status.signal(), Some(Signal::BUS.as_raw()), "{part}");
        assert!(
            !String::from_utf8_lossy(&output.stderr).contains(&path),
            "{part}"
        );
    }
}
