//! Every replay case comes out as its expectation says, and its twin with a wrong expectation does
//! not.

#![expect(
    clippy::unwrap_used,
    reason = "a test stops where something is missing"
)]

use std::fs;
use std::path::{Path, PathBuf};

use epochlog_broker::replay::{Expectation, replay};

fn cases() -> Vec<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/replay");
    let mut found: Vec<_> = fs::read_dir(&dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.join("expect.toml").exists())
        .collect();
    found.sort();
    assert!(
        found.len() >= 8,
        "only {} cases in {}",
        found.len(),
        dir.display()
    );
    found
}

#[test]
fn every_case_comes_out_as_expected_and_its_wrong_twin_does_not() {
    for case in cases() {
        let outcome = replay(&case).unwrap_or_else(|error| panic!("{}: {error}", case.display()));
        let right = Expectation::load(&case.join("expect.toml"))
            .unwrap()
            .compare(&outcome);
        assert!(
            right.is_empty(),
            "{}: {right:?}\n{outcome:?}",
            case.display()
        );
        let wrong = Expectation::load(&case.join("expect-wrong.toml")).unwrap();
        assert_ne!(
            wrong.compare(&outcome),
            [],
            "{}: the wrong twin passed",
            case.display()
        );
    }
}

#[test]
fn replaying_twice_gives_the_same_outcome_because_nothing_is_written() {
    for case in cases() {
        assert_eq!(
            replay(&case).unwrap(),
            replay(&case).unwrap(),
            "{}",
            case.display()
        );
    }
}
