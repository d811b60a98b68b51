//! The store as the `raft` crate reads it.

use std::sync::Arc;

use raft::eraftpb;
use raft::{GetEntriesContext, RaftState, StorageError};

use super::Store;
use crate::error::Error;

/// What `raft` reads the store by.
#[derive(Clone, Debug)]
pub(crate) struct LogView(pub(crate) Arc<Store>);

fn other(error: Error) -> raft::Error {
    raft::Error::Store(StorageError::Other(Box::new(error)))
}

impl raft::Storage for LogView {
    fn initial_state(&self) -> raft::Result<RaftState> {
        let mirror = self.0.mirror.lock();
        Ok(RaftState {
            hard_state: mirror.hard_state.into(),
            conf_state: (&mirror.conf_state).into(),
        })
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        _context: GetEntriesContext,
    ) -> raft::Result<Vec<eraftpb::Entry>> {
        let max_size = max_size.into();
        {
            let mirror = self.0.mirror.lock();
            if low <= mirror.truncated.0 {
                return Err(StorageError::Compacted.into());
            }
            if high > mirror.last.0 + 1 {
                return Err(StorageError::Unavailable.into());
            }
            if mirror
                .recent
                .front()
                .is_some_and(|first| first.index <= low)
            {
                let mut entries: Vec<_> = (low..high)
                    .map_while(|index| mirror.recent(index).cloned())
                    .collect();
                raft::util::limit_size(&mut entries, max_size);
                return Ok(entries);
            }
        }
        self.0.read_entries(low, high, max_size).map_err(other)
    }

    fn term(&self, index: u64) -> raft::Result<u64> {
        let (truncated, last) = self.0.range();
        if index < truncated {
            return Err(StorageError::Compacted.into());
        }
        if index > last {
            return Err(StorageError::Unavailable.into());
        }
        self.0.term_at(index).map_err(other)
    }

    fn first_index(&self) -> raft::Result<u64> {
        Ok(self.0.range().0 + 1)
    }

    fn last_index(&self) -> raft::Result<u64> {
        Ok(self.0.range().1)
    }

    fn snapshot(&self, request_index: u64, _to: u64) -> raft::Result<eraftpb::Snapshot> {
        let snapshot = match self.0.snapshot_now() {
            Ok(snapshot) => snapshot,
            Err(error) => {
                tracing::error!(%error, "cannot make a snapshot");
                return Err(StorageError::SnapshotTemporarilyUnavailable.into());
            }
        };
        if snapshot.get_metadata().index < request_index {
            return Err(StorageError::SnapshotTemporarilyUnavailable.into());
        }
        Ok(snapshot)
    }
}
