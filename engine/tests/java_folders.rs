//! Folders that Java wrote: what a look finds, and what opening them makes of it.
#![allow(clippy::unwrap_used, reason = "a story ends where it fails")]

mod common;
#[path = "java/fixtures.rs"]
#[expect(
    dead_code,
    reason = "the manifests' fields are compared by the other suite"
)]
mod fixtures;

use std::fs;
use std::path::Path;

use epochlog_engine::inspect::{self, Inspection, ProblemKind};
use epochlog_engine::{Error, Store, StoreConfig};
use fixtures::{Manifest, folders, name, sha256};

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

/// The value of `key` in an expect file, as it stands there.
fn expected<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .filter_map(|line| line.split_once(" = "))
        .find(|(it, _)| *it == key)
        .map(|(_, it)| it)
}

/// Whether the inspection is what the expect file says.
fn agrees(found: &Inspection, text: &str) -> bool {
    let number = |key| expected(text, key).map(|it| it.parse::<u64>().unwrap());
    let epochs = found.epochs.clone().unwrap_or_default();
    let epochs: Vec<_> = epochs
        .entries()
        .iter()
        .map(|it| [u64::from(it.epoch), it.start])
        .collect();
    let kinds: Vec<_> = found.problems.iter().map(|it| it.kind).collect();
    let problem = match expected(text, "problem") {
        None => kinds.is_empty(),
        Some("\"torn\"") => kinds.contains(&ProblemKind::Torn),
        Some("\"damage\"") => kinds.contains(&ProblemKind::Damage),
        Some("\"epoch-file-missing\"") => kinds == [ProblemKind::EpochFileMissing],
        Some(other) => panic!("unknown problem {other}"),
    };
    let segments = (found.segments.len() + found.prepared.len()) as u64;
    let behind = kinds
        .iter()
        .filter(|it| **it == ProblemKind::BehindTheEnd)
        .count() as u64;
    problem
        && number("segments") == Some(segments + behind)
        && (segments == 0 || number("segment_size") == found.segment_size)
        && number("messages") == Some(found.messages)
        && number("min_offset") == Some(found.min_offset)
        && number("end_offset") == Some(found.end_offset)
        && expected(text, "epochs") == Some(&format!("{epochs:?}"))
}

#[test]
fn a_look_finds_what_is_there_and_not_the_plausible_mistake() {
    for folder in folders("", "java-") {
        let found = inspect::scan(&folder).unwrap();
        let expect = fs::read_to_string(folder.join("expect.toml")).unwrap();
        assert!(agrees(&found, &expect), "{}: {found:?}", name(&folder));
        let mut wrong = expect.clone();
        for line in fs::read_to_string(folder.join("expect-wrong.toml"))
            .unwrap()
            .lines()
        {
            if let Some((key, _)) = line.split_once(" = ") {
                let old = format!("{key} = {}", expected(&expect, key).unwrap());
                wrong = wrong.replace(&old, line);
            }
        }
        assert!(!agrees(&found, &wrong), "{}", name(&folder));
    }
}

#[test]
fn opening_cuts_what_is_torn_and_refuses_what_is_damaged() {
    let dir = tempfile::tempdir().unwrap();
    for folder in folders("", "java-") {
        let path = dir.path().join(name(&folder));
        copy(&folder, &path);
        let expect = fs::read_to_string(folder.join("expect.toml")).unwrap();
        let end = expected(&expect, "end_offset")
            .unwrap()
            .parse::<u64>()
            .unwrap();
        let mut config = StoreConfig::new(&path);
        config.adopt_segment_size = true;
        config.prefault_ahead_bytes = 0;
        let before = inspect::scan(&path).unwrap();
        match (expected(&expect, "problem"), Store::open(config.clone())) {
            (Some("\"damage\""), Err(Error::Damaged { offset, .. })) => assert_eq!(offset, end),
            (Some("\"epoch-file-missing\""), Err(Error::Epochs { .. })) => {}
            (problem @ (None | Some("\"torn\"")), Ok(store)) => {
                assert_eq!(store.end_offset(), end, "{}", name(&folder));
                assert_eq!(
                    store.opened().torn.is_some(),
                    problem.is_some(),
                    "{}",
                    name(&folder)
                );
                reads_on_and_reopens(store, &config, &before);
            }
            (problem, opened) => {
                panic!("{}: {problem:?}, {:?}", name(&folder), opened.err());
            }
        }
    }
}

/// Appends to a folder of Java's, closes it, and finds all of it again.
fn reads_on_and_reopens(store: Store, config: &StoreConfig, before: &Inspection) {
    let last = before.epochs.as_ref().and_then(|it| it.last()).unwrap();
    // The epoch may have been served by the Java process, and nobody can tell how that ended.
    assert!(store.promote(last.epoch).is_err());
    store.promote(last.epoch + 1).unwrap();
    common::append(&store, 3, 300);
    let end = store.end_offset();
    store.close().unwrap();
    let after = inspect::scan(&config.dir).unwrap();
    assert_eq!((&after.problems[..], after.end_offset), (&[][..], end));
    assert_eq!(after.messages, before.messages + 3);
    let store = Store::open(config.clone()).unwrap();
    assert!(store.opened().clean);
    assert_eq!(store.end_offset(), end);
}

#[test]
fn the_records_are_what_java_read_in_them() {
    for folder in folders("", "java-") {
        let found = inspect::scan(&folder).unwrap();
        // Java steps over what is bad and reads what it had cut; the other suite follows it there.
        if !found.problems.is_empty() {
            continue;
        }
        let manifest = Manifest::read(&folder);
        let mut records = 0;
        for (view, line) in found.records().zip(&manifest.messages) {
            let view = view.unwrap();
            let record = view.record();
            assert_eq!(record.physical_offset(), line.offset, "{}", name(&folder));
            assert_eq!(record.topic(), line.topic);
            assert_eq!(sha256(record.body()), line.body_sha256);
            records += 1;
        }
        assert_eq!(records, manifest.messages.len(), "{}", name(&folder));
        assert_eq!(found.messages, records as u64, "{}", name(&folder));
    }
}
