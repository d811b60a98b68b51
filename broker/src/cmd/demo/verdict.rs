//! What the stopped replicas prove: pure comparison of what was acknowledged with what is on disk.
//!
//! A demo is `ok` only if every acknowledged attempt is on every replica exactly once, all logs are
//! byte-equal, all epoch lists are equal, no folder has a problem, and every process stopped cleanly.

use std::collections::{BTreeSet, HashMap};

/// One replica's folder, read from disk after its process stopped.
#[derive(Debug, Clone, Default)]
pub(crate) struct OnDisk {
    /// Broker id as the controller gave it.
    pub(crate) id: u64,
    /// `master` or `slave` at the end of the run.
    pub(crate) role: &'static str,
    /// First offset held.
    pub(crate) min: u64,
    /// Offset behind the last byte.
    pub(crate) end: u64,
    /// Digest over the bytes of [min, end), in hex.
    pub(crate) sha256: String,
    /// The epoch file as (epoch, start).
    pub(crate) epochs: Vec<(u32, u64)>,
    /// How often each attempt stands in the log.
    pub(crate) attempts: HashMap<String, u32>,
    /// What an inspection of the folder found wrong.
    pub(crate) problems: Vec<String>,
}

/// The outcome of the comparison.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Verdict {
    /// Acknowledged attempts missing on at least one replica.
    pub(crate) lost: usize,
    /// Acknowledged attempts found more than once on some replica.
    pub(crate) duplicates: usize,
    /// Everything that speaks against `ok`, in words.
    pub(crate) findings: Vec<String>,
}

impl Verdict {
    /// Whether nothing speaks against it.
    pub(crate) fn ok(&self) -> bool {
        self.findings.is_empty()
    }
}

/// Compares the replicas with each other and with the acknowledged attempts. `unclean` names the
/// processes that did not stop by themselves with exit code 0.
pub(crate) fn compare(replicas: &[OnDisk], acked: &[String], unclean: &[String]) -> Verdict {
    let mut verdict = Verdict::default();
    if replicas.is_empty() || acked.is_empty() {
        verdict
            .findings
            .push("nothing was acknowledged, so nothing is proven".to_owned());
    }
    count_attempts(replicas, acked, &mut verdict);
    if let Some((first, others)) = replicas.split_first() {
        for other in others {
            compare_logs(first, other, &mut verdict.findings);
        }
    }
    for replica in replicas {
        let named = |problem: &String| format!("replica {}: {problem}", replica.id);
        verdict.findings.extend(replica.problems.iter().map(named));
    }
    let stops = unclean
        .iter()
        .map(|name| format!("{name} did not stop cleanly"));
    verdict.findings.extend(stops);
    verdict
}

fn count_attempts(replicas: &[OnDisk], acked: &[String], verdict: &mut Verdict) {
    let mut lost = BTreeSet::new();
    let mut duplicates = BTreeSet::new();
    for replica in replicas {
        for attempt in acked {
            match replica.attempts.get(attempt).copied().unwrap_or_default() {
                0 => lost.insert(attempt),
                1 => continue,
                _ => duplicates.insert(attempt),
            };
        }
    }
    verdict.lost = lost.len();
    verdict.duplicates = duplicates.len();
    if let Some(one) = lost.first() {
        let text = format!(
            "{} acknowledged attempts are missing, such as {one}",
            lost.len()
        );
        verdict.findings.push(text);
    }
    if let Some(one) = duplicates.first() {
        let text = format!(
            "{} acknowledged attempts stand twice, such as {one}",
            duplicates.len()
        );
        verdict.findings.push(text);
    }
}

fn compare_logs(first: &OnDisk, other: &OnDisk, findings: &mut Vec<String>) {
    let pair = format!("replicas {} and {}", first.id, other.id);
    if (first.min, first.end) != (other.min, other.end) {
        findings.push(format!(
            "{pair} hold [{}, {}) and [{}, {})",
            first.min, first.end, other.min, other.end
        ));
    } else if first.sha256 != other.sha256 {
        findings.push(format!(
            "{pair} differ somewhere in [{}, {})",
            first.min, first.end
        ));
    }
    if first.epochs != other.epochs {
        findings.push(format!(
            "{pair} have the epoch lists {:?} and {:?}",
            first.epochs, other.epochs
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replica(id: u64, attempts: &[(&str, u32)]) -> OnDisk {
        OnDisk {
            id,
            role: "slave",
            end: 300,
            sha256: "aa".to_owned(),
            epochs: vec![(1, 0), (2, 100)],
            attempts: attempts
                .iter()
                .map(|(name, n)| ((*name).to_owned(), *n))
                .collect(),
            ..OnDisk::default()
        }
    }

    fn group() -> Vec<OnDisk> {
        (1..=3)
            .map(|id| replica(id, &[("0-1", 1), ("1-1", 1), ("1-2", 1)]))
            .collect()
    }

    fn acked() -> Vec<String> {
        vec!["0-1".to_owned(), "1-2".to_owned()]
    }

    #[test]
    fn equal_replicas_with_every_acknowledged_attempt_once_are_ok() {
        let verdict = compare(&group(), &acked(), &[]);
        assert_eq!(verdict, Verdict::default());
        assert!(verdict.ok());
    }

    /// Each way to be wrong, alone, must turn the verdict.
    #[test]
    fn each_single_fault_is_found() {
        type Fault = fn(&mut Vec<OnDisk>);
        let faults: [(&str, Fault, usize, usize); 7] = [
            (
                "lost on one",
                |all| all[2].attempts.retain(|name, _| name != "0-1"),
                1,
                0,
            ),
            (
                "twice on one",
                |all| all[1].attempts.extend([("1-2".to_owned(), 2)]),
                0,
                1,
            ),
            ("another end", |all| all[1].end = 299, 0, 0),
            ("another start", |all| all[2].min = 100, 0, 0),
            ("other bytes", |all| all[2].sha256 = "ab".to_owned(), 0, 0),
            ("other epochs", |all| all[1].epochs.truncate(1), 0, 0),
            (
                "a problem",
                |all| all[0].problems.push("torn".to_owned()),
                0,
                0,
            ),
        ];
        for (name, fault, lost, duplicates) in faults {
            let mut all = group();
            fault(&mut all);
            let verdict = compare(&all, &acked(), &[]);
            assert!(!verdict.ok(), "{name} was not found");
            assert_eq!(
                (verdict.lost, verdict.duplicates),
                (lost, duplicates),
                "{name}"
            );
            assert_eq!(verdict.findings.len(), 1, "{name}: {:?}", verdict.findings);
        }
    }

    #[test]
    fn an_attempt_nobody_was_told_about_may_be_missing_or_there() {
        let mut all = group();
        all.iter_mut()
            .for_each(|one| one.attempts.retain(|name, _| name != "1-1"));
        assert!(compare(&all, &acked(), &[]).ok());
    }

    #[test]
    fn a_process_that_did_not_stop_cleanly_and_an_empty_run_are_not_ok() {
        assert!(!compare(&group(), &acked(), &["broker 2".to_owned()]).ok());
        assert!(!compare(&group(), &[], &[]).ok());
        assert!(!compare(&[], &acked(), &[]).ok());
    }
}
