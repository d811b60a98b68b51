//! Settings of a ledger and the relations between them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use super::PAYLOAD_LIMIT;
use crate::error::Error;
use crate::node::NodeSettings;
use crate::raft_codec::Member;

/// A leader that is not preferred looks this often for one that is, in ms.
const PREFER_MS: u64 = 1_000;

/// Clocks of a ledger, in ms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LedgerTimings {
    /// Length of one tick.
    pub tick_ms: u64,
    /// A leader is heard of this often.
    pub heartbeat_ms: u64,
    /// A follower that hears of no leader for a random time in `[min, max)` seeks votes.
    pub election_min_ms: u64,
    /// See [`Self::election_min_ms`].
    pub election_max_ms: u64,
    /// Appends and reads without an outcome for this long are told so.
    pub append_timeout_ms: u64,
    /// Effects of entries are on disk at the latest this long after they were applied; until then
    /// a restart applies the entries again.
    pub flush_ms: u64,
}

impl Default for LedgerTimings {
    fn default() -> Self {
        Self {
            tick_ms: 50,
            heartbeat_ms: 50,
            election_min_ms: 300,
            election_max_ms: 600,
            append_timeout_ms: 3_000,
            flush_ms: 1_000,
        }
    }
}

impl LedgerTimings {
    /// Checks that a healthy leader is never taken for dead.
    ///
    /// # Errors
    /// The relation that does not hold.
    pub fn check(&self) -> Result<(), Error> {
        let bad = |why: String| {
            Err(Error::Setting {
                key: "controller timings",
                why,
            })
        };
        if self.tick_ms < 5 || self.tick_ms > 1_000 {
            return bad(format!("a tick of {} ms is not in 5..=1000", self.tick_ms));
        }
        if self.heartbeat_ms < self.tick_ms {
            return bad(format!(
                "heartbeats each {} ms are more often than ticks each {} ms",
                self.heartbeat_ms, self.tick_ms
            ));
        }
        if self.election_min_ms < 3 * self.heartbeat_ms {
            return bad(format!(
                "an election after {} ms leaves no room for three heartbeats of {} ms",
                self.election_min_ms, self.heartbeat_ms
            ));
        }
        if self.election_max_ms < self.election_min_ms + 3 * self.tick_ms {
            return bad(format!(
                "elections between {} and {} ms would collide: leave three ticks between",
                self.election_min_ms, self.election_max_ms
            ));
        }
        if self.append_timeout_ms < self.election_max_ms {
            return bad(format!(
                "an append timeout of {} ms is shorter than an election",
                self.append_timeout_ms
            ));
        }
        Ok(())
    }

    fn ticks(&self, ms: u64) -> u64 {
        ms.div_ceil(self.tick_ms).max(1)
    }
}

/// Settings of a ledger.
#[derive(Clone, Debug)]
pub struct LedgerConfig {
    /// Name of the group; members of another group are refused.
    pub group: String,
    /// Id of this member, not 0.
    pub id: u64,
    /// The store file; made if it is not there.
    pub path: PathBuf,
    /// The members of a new group, this one among them. A member that is not among them begins
    /// empty and waits to be added. Once the store exists, it is what counts.
    pub first_members: BTreeMap<u64, Member>,
    /// Clocks.
    pub timings: LedgerTimings,
    /// Applied entries kept for followers that lag; a follower further behind gets a snapshot.
    pub keep_entries: u64,
    /// Appends under way at a time; more are refused as full.
    pub max_pending: usize,
    /// Bytes of appends under way at a time; more are refused as full.
    pub max_pending_bytes: u64,
    /// Members that should lead where they can.
    pub preferred: BTreeSet<u64>,
}

impl LedgerConfig {
    /// A member with default clocks and limits.
    #[must_use]
    pub fn new(
        group: impl Into<String>,
        id: u64,
        path: impl Into<PathBuf>,
        first_members: BTreeMap<u64, Member>,
    ) -> Self {
        Self {
            group: group.into(),
            id,
            path: path.into(),
            first_members,
            timings: LedgerTimings::default(),
            keep_entries: 10_000,
            max_pending: 4096,
            max_pending_bytes: 64 << 20,
            preferred: BTreeSet::new(),
        }
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        self.timings.check()?;
        let bad = |key, why: &str| {
            let why = why.to_owned();
            Err(Error::Setting { key, why })
        };
        if self.id == 0 {
            return bad("id", "0 is no member id");
        }
        if self.max_pending == 0 {
            return bad("max_pending", "0 would refuse every append");
        }
        if self.max_pending_bytes < PAYLOAD_LIMIT as u64 {
            return bad("max_pending_bytes", "it must hold the longest payload");
        }
        Ok(())
    }

    pub(super) fn node_settings(&self) -> NodeSettings {
        let timings = &self.timings;
        let ticks = |ms| usize::try_from(timings.ticks(ms)).unwrap_or(usize::MAX);
        NodeSettings {
            group: self.group.clone(),
            id: self.id,
            heartbeat_ticks: ticks(timings.heartbeat_ms),
            election_ticks: (
                ticks(timings.election_min_ms),
                ticks(timings.election_max_ms),
            ),
            timeout_ticks: timings.ticks(timings.append_timeout_ms),
            flush_ticks: timings.ticks(timings.flush_ms),
            keep_entries: self.keep_entries,
            max_pending: self.max_pending,
            prefer_ticks: timings.ticks(PREFER_MS),
            preferred: self.preferred.clone(),
        }
    }
}
