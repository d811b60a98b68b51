//! What a case says must happen, and how an outcome differs from it.

use std::fmt;
use std::path::Path;

use serde::Deserialize;

use super::{Action, Outcome, ReplayError};

/// The content of an `expect.toml`. Every key that is present must match; unknown keys are errors.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expectation {
    action: Action,
    point: Option<u64>,
    cut_bytes: Option<u64>,
    reason: Option<String>,
    slave_end: Option<u64>,
    epochs: Option<Vec<(u32, u64)>>,
}

/// One key that came out differently.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mismatch {
    key: &'static str,
    expected: String,
    found: String,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: expected {}, found {}",
            self.key, self.expected, self.found
        )
    }
}

impl Expectation {
    /// Reads an expectation.
    ///
    /// # Errors
    /// The file cannot be read or does not follow the schema.
    pub fn load(path: &Path) -> Result<Self, ReplayError> {
        let shown = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|source| ReplayError::Read {
            path: shown.clone(),
            source,
        })?;
        toml::from_str(&text).map_err(|error| ReplayError::Schema {
            path: shown,
            why: error.to_string(),
        })
    }

    /// Every key that differs; empty if the outcome is as expected.
    #[must_use]
    pub fn compare(&self, outcome: &Outcome) -> Vec<Mismatch> {
        let mut found = Vec::new();
        check(
            &mut found,
            "action",
            Some(&self.action),
            Some(&outcome.action),
        );
        check(
            &mut found,
            "point",
            self.point.as_ref(),
            outcome.point.as_ref(),
        );
        check(
            &mut found,
            "cut_bytes",
            self.cut_bytes.as_ref(),
            outcome.cut_bytes.as_ref(),
        );
        check(
            &mut found,
            "reason",
            self.reason.as_ref(),
            outcome.reason.as_ref(),
        );
        check(
            &mut found,
            "slave_end",
            self.slave_end.as_ref(),
            Some(&outcome.slave_end),
        );
        check(
            &mut found,
            "epochs",
            self.epochs.as_ref(),
            outcome.epochs.as_ref(),
        );
        found
    }
}

fn check<T: PartialEq + fmt::Debug>(
    found: &mut Vec<Mismatch>,
    key: &'static str,
    expected: Option<&T>,
    outcome: Option<&T>,
) {
    if let Some(expected) = expected
        && outcome != Some(expected)
    {
        found.push(Mismatch {
            key,
            expected: format!("{expected:?}"),
            found: outcome.map_or("nothing".to_owned(), |outcome| format!("{outcome:?}")),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome() -> Outcome {
        Outcome {
            action: Action::Cut,
            point: Some(100),
            cut_bytes: Some(200),
            reason: None,
            slave_end: 100,
            epochs: Some(vec![(1, 0), (2, 100)]),
            why: String::new(),
        }
    }

    fn expect(text: &str) -> Expectation {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn keys_that_are_present_must_match_and_others_are_not_compared() {
        assert_eq!(expect("action = \"cut\"").compare(&outcome()), []);
        let whole = "action = \"cut\"\npoint = 100\ncut_bytes = 200\nslave_end = 100\n\
                     epochs = [[1, 0], [2, 100]]";
        assert_eq!(expect(whole).compare(&outcome()), []);
        for wrong in [
            "action = \"keep\"",
            "action = \"cut\"\npoint = 101",
            "action = \"cut\"\ncut_bytes = 0",
            "action = \"cut\"\nreason = \"no-common-epoch\"",
            "action = \"cut\"\nslave_end = 300",
            "action = \"cut\"\nepochs = [[1, 0]]",
        ] {
            assert_eq!(expect(wrong).compare(&outcome()).len(), 1, "{wrong}");
        }
    }

    #[test]
    fn a_key_nobody_knows_is_an_error() {
        assert!(toml::from_str::<Expectation>("action = \"cut\"\npiont = 3").is_err());
    }
}
