//! Counts of what a ledger did since it was opened.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What a member did since it was opened, and what it holds now. Counts only grow; those
        /// marked *now* are the present state.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(rename_all = "camelCase")]
        pub struct LedgerCounters {
            $($(#[$doc])* pub $name: u64,)*
        }

        /// The same, counted by many threads.
        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $(pub(crate) $name: Count,)*
        }

        impl Counters {
            pub(crate) fn now(&self) -> LedgerCounters {
                LedgerCounters { $($name: self.$name.get(),)* }
            }
        }

        impl LedgerCounters {
            /// Every counter with its name, in the order of the fields.
            #[must_use]
            pub fn named(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name),)*]
            }
        }
    };
}

counters! {
    /// Votes asked for in a new term.
    elections_begun,
    /// Times this member became leader.
    elections_won,
    /// Times it stopped being leader.
    step_downs,
    /// Leadership transfers begun here.
    transfers,
    /// Appends applied and answered with success.
    appends_done,
    /// Appends refused before anything was appended: not the leader, or full.
    appends_refused,
    /// Appends begun here that ended without success: leadership lost, too late, replaced, stopped.
    appends_failed,
    /// *Now*: appends without an outcome.
    appends_pending,
    /// *Now*: bytes of their payloads.
    pending_bytes,
    /// Read barriers reached.
    reads_done,
    /// Read barriers not reached.
    reads_failed,
    /// Transactions synced to disk.
    syncs,
    /// Time they took in all, in µs.
    sync_us,
    /// The longest of them, in µs.
    sync_us_max,
    /// Snapshots sent to followers.
    snapshots_sent,
    /// Snapshots taken over from a leader.
    snapshots_taken,
    /// Frames of peers that were refused.
    frames_refused,
}

/// One number.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub(crate) fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    pub(crate) fn one(&self) {
        self.add(1);
    }

    pub(crate) fn sub(&self, count: u64) {
        self.0.fetch_sub(count, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn raise(&self, to: u64) {
        self.0.fetch_max(to, Ordering::Relaxed);
    }

    /// Adds `count` if the sum stays within `limit`.
    fn add_within(&self, count: u64, limit: u64) -> bool {
        let add = |now: u64| now.checked_add(count).filter(|sum| *sum <= limit);
        let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
        self.0.fetch_update(set, fetch, add).is_ok()
    }
}

impl Counters {
    pub(crate) fn synced(&self, took: Duration) {
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.syncs.one();
        self.sync_us.add(us);
        self.sync_us_max.raise(us);
    }
}

/// Room that a payload takes until its append has an outcome.
#[derive(Debug)]
pub(crate) struct Room {
    counters: Arc<Counters>,
    bytes: u64,
}

impl Room {
    /// `None`: the bytes under way would be over the limit.
    pub(crate) fn take(counters: &Arc<Counters>, bytes: usize, limit: u64) -> Option<Self> {
        let bytes = bytes as u64;
        if !counters.pending_bytes.add_within(bytes, limit) {
            return None;
        }
        counters.appends_pending.one();
        let counters = Arc::clone(counters);
        Some(Self { counters, bytes })
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.counters.pending_bytes.sub(self.bytes);
        self.counters.appends_pending.sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_bounded_and_given_back() {
        let counters = Arc::new(Counters::default());
        let first = Room::take(&counters, 60, 100).unwrap();
        assert!(Room::take(&counters, 41, 100).is_none());
        let second = Room::take(&counters, 40, 100).unwrap();
        assert!(Room::take(&counters, usize::MAX, u64::MAX).is_none());
        let now = counters.now();
        assert_eq!((now.appends_pending, now.pending_bytes), (2, 100));
        drop((first, second));
        assert_eq!(counters.now(), LedgerCounters::default());
    }

    #[test]
    fn counters_have_the_names_of_their_fields() {
        let counters = Counters::default();
        counters.synced(Duration::from_micros(7));
        counters.synced(Duration::from_micros(3));
        let named = counters.now().named();
        for pair in [("syncs", 2), ("sync_us", 10), ("sync_us_max", 7)] {
            assert!(named.contains(&pair), "{pair:?}");
        }
        assert_eq!(named.len(), 17);
    }
}
