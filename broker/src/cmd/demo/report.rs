//! What the demo says at the end: a table for people, or one JSON object with fixed field names.

use comfy_table::{Table, presets};
use serde::Serialize;

use super::verdict::{OnDisk, Verdict};

/// The whole outcome; the JSON form has exactly these fields.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    /// Whether everything held.
    pub(crate) ok: bool,
    /// Acknowledged messages.
    pub(crate) messages_acked: usize,
    /// Acknowledged attempts missing on some replica.
    pub(crate) messages_lost: usize,
    /// Acknowledged attempts found more than once.
    pub(crate) duplicates: usize,
    /// Attempts with an unknown outcome, sent again under a new id.
    pub(crate) unknown: usize,
    /// Masters lost and replaced.
    pub(crate) failovers: usize,
    /// From the kill to the first acknowledged write on the new master, ms.
    pub(crate) failover_ms: Option<u64>,
    /// Bytes that returning replicas cut from their logs.
    pub(crate) truncated_bytes: u64,
    /// Each replica as found on disk.
    pub(crate) replicas: Vec<ReplicaReport>,
    /// What speaks against `ok`, in words.
    pub(crate) problems: Vec<String>,
}

/// One replica in the report.
#[derive(Debug, Serialize)]
pub(crate) struct ReplicaReport {
    id: u64,
    role: &'static str,
    end: u64,
    sha256: String,
    epochs: Vec<(u32, u64)>,
}

/// What the run itself counted.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Acknowledged messages.
    pub(crate) acked: usize,
    /// Attempts sent again because their outcome was unknown.
    pub(crate) unknown: usize,
    /// Masters lost and replaced.
    pub(crate) failovers: usize,
    /// From the kill to the first acknowledged write, ms.
    pub(crate) failover_ms: Option<u64>,
    /// Bytes cut.
    pub(crate) truncated_bytes: u64,
}

impl Report {
    /// Puts counts, folders and verdict together.
    pub(crate) fn new(counts: &Counts, replicas: &[OnDisk], verdict: Verdict) -> Self {
        let replicas = replicas.iter().map(|replica| ReplicaReport {
            id: replica.id,
            role: replica.role,
            end: replica.end,
            sha256: replica.sha256.clone(),
            epochs: replica.epochs.clone(),
        });
        Self {
            ok: verdict.ok(),
            messages_acked: counts.acked,
            messages_lost: verdict.lost,
            duplicates: verdict.duplicates,
            unknown: counts.unknown,
            failovers: counts.failovers,
            failover_ms: counts.failover_ms,
            truncated_bytes: counts.truncated_bytes,
            replicas: replicas.collect(),
            problems: verdict.findings,
        }
    }

    /// Of a run that ended before there was anything to judge.
    pub(crate) fn stopped(why: String) -> Self {
        let verdict = Verdict {
            findings: vec![why],
            ..Verdict::default()
        };
        Self::new(&Counts::default(), &[], verdict)
    }

    /// The table and the verdict, for people.
    pub(crate) fn text(&self) -> String {
        let mut table = Table::new();
        table.load_style(presets::UTF8_FULL_CONDENSED);
        table.set_header([
            "replica",
            "role at the end",
            "end",
            "sha256 of the log",
            "epochs",
        ]);
        for one in &self.replicas {
            let digest = one.sha256.get(..16).unwrap_or(&one.sha256);
            let epochs: Vec<_> = one
                .epochs
                .iter()
                .map(|(e, start)| format!("{e}:{start}"))
                .collect();
            table.add_row([
                one.id.to_string(),
                one.role.to_owned(),
                one.end.to_string(),
                format!("{digest}…"),
                epochs.join(" "),
            ]);
        }
        let failover = self
            .failover_ms
            .map_or("none".to_owned(), |ms| format!("{ms} ms"));
        let mut text = format!(
            "{table}\n\
             acknowledged {}   lost {}   duplicates {}   unknown, sent again {}\n\
             failovers {}   from the kill to the first acknowledged write {failover}   bytes cut {}\n",
            self.messages_acked,
            self.messages_lost,
            self.duplicates,
            self.unknown,
            self.failovers,
            self.truncated_bytes,
        );
        for problem in &self.problems {
            text.push_str(&format!("problem: {problem}\n"));
        }
        text.push_str(if self.ok { "ok" } else { "NOT ok" });
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_stopped_early_is_never_ok() {
        let report = Report::stopped("no master".to_owned());
        assert!(!report.ok);
        assert!(report.text().contains("problem: no master"));
        assert!(report.text().ends_with("NOT ok"));
    }

    #[test]
    fn the_json_form_has_the_promised_fields_in_their_shapes() {
        let replica = OnDisk {
            id: 2,
            role: "master",
            end: 300,
            sha256: "ab".repeat(32),
            epochs: vec![(1, 0), (3, 100)],
            ..OnDisk::default()
        };
        let counts = Counts {
            acked: 5,
            failover_ms: Some(90),
            ..Counts::default()
        };
        let report = Report::new(&counts, &[replica], Verdict::default());
        let json = serde_json::to_value(&report).unwrap();
        let expected = serde_json::json!({
            "ok": true, "messages_acked": 5, "messages_lost": 0, "duplicates": 0, "unknown": 0,
            "failovers": 0, "failover_ms": 90, "truncated_bytes": 0,
            "replicas": [{"id": 2, "role": "master", "end": 300, "sha256": "ab".repeat(32),
                          "epochs": [[1, 0], [3, 100]]}],
            "problems": [],
        });
        assert_eq!(json, expected);
        assert!(report.text().ends_with("\nok"));
    }
}
