//! What broke elsewhere in the field and must not here, by the name each report has in this project:
//! a letter for its group (A replication, C log and recovery, E other systems, H disks) and a number.
//! Stories that another file tells better are there; the list below holds all of them to be somewhere.
#![allow(clippy::unwrap_used, reason = "a story ends where it fails")]

#[path = "../common/mod.rs"]
mod common;

mod ends_and_roles;
mod queues;
mod scans;
mod waits;

use std::fs;
use std::path::Path;

/// The reports an engine without peers can answer for.
const ENGINE: &str = "A01 A06 A07 A08 A11 A12 A13 A14 A15 A16 A17 A29 \
    C01 C02 C03 C04 C05 C06 C07 C08 C09 C10 C12 C13 C14 C16 C17 C18 C19 C20 C22 C23 C24 C25 C26 C27 C28 C31 C33 \
    E01 E03 E04 E05 E06 E07 E08 E09 E10 E11 E12 E13 E15 E16 E17 E19 E20 E21 \
    H01 H02 H03 H05 H06 H07 H08 H09 H11 H12";

/// Appends the text of every Rust file under `dir` that has tests, this one left out.
fn read_all(dir: &Path, text: &mut String) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            read_all(&path, text);
        } else if path.extension().is_some_and(|it| it == "rs")
            && !path.ends_with("field_failures/main.rs")
        {
            text.push_str(&fs::read_to_string(path).unwrap());
        }
    }
}

/// Whether a test is named by the report, or says it in the comment before it: `/// A07: …`.
fn is_told(text: &str, id: &str) -> bool {
    let lower = id.to_lowercase();
    let named = |line: &str| {
        let name = line.trim().strip_prefix("fn ").unwrap_or_default();
        name.split('_').any(|part| part == lower)
    };
    let said = |line: &str| {
        let said = line
            .trim()
            .strip_prefix("/// ")
            .and_then(|it| it.split_once(": "));
        said.is_some_and(|(ids, _)| ids.split(", ").any(|it| it == id))
    };
    text.lines().any(|line| named(line) || said(line))
}

#[test]
fn every_report_has_a_story() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut text = String::new();
    for dir in ["src", "tests"] {
        read_all(&root.join(dir), &mut text);
    }
    let missing: Vec<_> = ENGINE
        .split_whitespace()
        .filter(|id| !is_told(&text, id))
        .collect();
    assert!(missing.is_empty(), "no test tells of {missing:?}");
    assert!(!is_told(&text, "A99"));
}
