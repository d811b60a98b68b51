//! Epoch files sound and damaged, each kept under `fixtures/epoch-files` with what is to be made of it.

use std::fs;
use std::path::Path;

use epochlog_engine::{EPOCH_FILE_NAME, EpochEntry, EpochFile, EpochFileError};
use serde::Deserialize;

use crate::fixtures;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Expect {
    epochs: Option<Vec<(u32, u64)>>,
    reason: Option<String>,
}

/// What became of a file: its entries, or the reason word of `expect.toml`.
fn outcome(folder: &Path) -> Result<Vec<(u32, u64)>, String> {
    match EpochFile::new(folder.join(EPOCH_FILE_NAME)).load() {
        Ok(Some(list)) => Ok(list
            .entries()
            .iter()
            .map(|&EpochEntry { epoch, start }| (epoch, start))
            .collect()),
        Ok(None) => Err("epoch-file-missing".to_owned()),
        Err(EpochFileError::Damaged { .. }) => Err("epoch-file-damaged".to_owned()),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn each_epoch_file_reads_as_expected_or_is_refused() {
    let mut wrong = Vec::new();
    for folder in fixtures::folders("epoch-files", "") {
        let text = fs::read_to_string(folder.join("expect.toml")).expect("an expectation");
        let expect: Expect = toml::from_str(&text).expect("a well-formed expectation");
        let expected = match (expect.epochs, expect.reason) {
            (Some(epochs), None) => Ok(epochs),
            (None, Some(reason)) => Err(reason),
            _ => panic!("{}: one of epochs and reason", fixtures::name(&folder)),
        };
        let found = outcome(&folder);
        if found != expected {
            wrong.push(format!(
                "{}: {found:?}, expected {expected:?}",
                fixtures::name(&folder)
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_damaged_file_is_refused_by_name_with_the_state_of_its_backup() {
    let folder = fixtures::root().join("epoch-files/damaged-with-a-good-copy");
    let error = EpochFile::new(folder.join(EPOCH_FILE_NAME))
        .load()
        .expect_err("a damaged file");
    let text = error.to_string();
    assert!(text.contains("epochFileCheckpoint: damaged"), "{text}");
    assert!(
        text.contains("epochFileCheckpoint.bak: readable, 2 entries"),
        "{text}"
    );
}

#[test]
fn what_java_wrote_is_what_we_would_write() {
    for folder in fixtures::folders("", "java-") {
        let path = folder.join(EPOCH_FILE_NAME);
        let Ok(Some(list)) = EpochFile::new(&path).load() else {
            assert_eq!(fixtures::name(&folder), "java-without-controller");
            continue;
        };
        let java = fs::read_to_string(&path).expect("the file just read");
        assert_eq!(list.encode(), java, "{}", fixtures::name(&folder));
        let entries: Vec<_> = list.entries().iter().map(|e| (e.epoch, e.start)).collect();
        assert_eq!(entries, fixtures::Manifest::read(&folder).head.epochs);
    }
}
