//! A log of fixed-length records in memory, with its epochs and what was received beyond its end.

use epochlog_engine::{EpochEntry, EpochList};
use epochlog_ha::LogBounds;

pub(crate) const RECORD_LEN: usize = 12;
pub(crate) const SEGMENT_SIZE: u64 = 12 * 10;

#[derive(Clone, Debug, Default)]
pub(crate) struct Node {
    /// The published log; each record says who wrote it and when.
    pub(crate) log: Vec<u8>,
    /// Received, not yet a whole record.
    pub(crate) window: Vec<u8>,
    pub(crate) epochs: EpochList,
}

impl Node {
    pub(crate) fn end(&self) -> u64 {
        self.log.len() as u64
    }

    pub(crate) fn bounds(&self) -> LogBounds {
        LogBounds {
            min: 0,
            end: self.end(),
            segment_size: SEGMENT_SIZE,
        }
    }

    /// Returns whether the epoch starts where the one before it does.
    pub(crate) fn promote(&mut self, epoch: u32) -> bool {
        assert!(
            self.window.is_empty(),
            "what was received and not published is erased"
        );
        let start = self.end();
        self.epochs.drop_starting_after(start);
        let equal = self.epochs.last().is_some_and(|last| last.start == start);
        self.epochs.append(EpochEntry { epoch, start }).unwrap();
        equal
    }

    pub(crate) fn append(&mut self, epoch: u32, number: u64) {
        self.log.extend_from_slice(&epoch.to_be_bytes());
        self.log.extend_from_slice(&number.to_be_bytes());
    }

    /// Bytes go, entries stay in the file, as after a loss of power; an open drops those past the
    /// end.
    pub(crate) fn lose_tail(&mut self, bytes: usize) {
        self.log.truncate(self.log.len().saturating_sub(bytes));
        self.epochs.drop_starting_after(self.end());
    }

    pub(crate) fn receive(&mut self, bytes: &[u8]) {
        self.window.extend_from_slice(bytes);
        let whole = self.window.len() - self.window.len() % RECORD_LEN;
        self.log.extend(self.window.drain(..whole));
        self.check_labels();
    }

    /// Every record carries the epoch that the list gives its first byte.
    pub(crate) fn check_labels(&self) {
        for (i, record) in self.log.chunks_exact(RECORD_LEN).enumerate() {
            let at = (i * RECORD_LEN) as u64;
            let label = self.epochs.covering(at).unwrap().entry.epoch;
            assert_eq!(record[..4], label.to_be_bytes(), "the label of {at}");
        }
    }

    pub(crate) fn summary(&self) -> String {
        let entries = self.epochs.entries().iter();
        let entries: Vec<_> = entries
            .map(|e| format!("{}:{}", e.epoch, e.start))
            .collect();
        format!(
            "end {} + {}, {}",
            self.end(),
            self.window.len(),
            entries.join(" ")
        )
    }

    pub(crate) fn equals(&self, other: &Self) -> bool {
        self.log == other.log && self.epochs == other.epochs && self.window.is_empty()
    }
}
