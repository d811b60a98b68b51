//! What a store keeps in memory of its file, and what it becomes by a batch (pure but for loading).
//!
//! Invariant: the mirror changes only after the transaction it mirrors is durable.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;

use raft::eraftpb;
use redb::{Database, ReadableDatabase, ReadableTable, ReadableTableMetadata};

use super::{Batch, LOG, read_meta};
use crate::error::Error;
use crate::raft_codec::{ConfStateRecord, EntryRecord, HardStateRecord, Member, decode};

/// Newest entries kept in memory, so that replication does not read the disk.
const RECENT_COUNT: usize = 4096;
const RECENT_BYTES: usize = 8 << 20;

/// Sizes, positions and the newest entries of a store.
#[derive(Debug)]
pub(super) struct Mirror {
    pub(super) hard_state: HardStateRecord,
    pub(super) conf_state: ConfStateRecord,
    pub(super) members: BTreeMap<u64, Member>,
    pub(super) applied: u64,
    /// Index and term before the first entry.
    pub(super) truncated: (u64, u64),
    pub(super) last: (u64, u64),
    pub(super) recent: VecDeque<eraftpb::Entry>,
    pub(super) recent_bytes: usize,
}

/// The mirror a batch leads to, without the cached entries.
pub(super) struct Next {
    pub(super) hard_state: HardStateRecord,
    pub(super) conf_state: ConfStateRecord,
    pub(super) members: BTreeMap<u64, Member>,
    pub(super) applied: u64,
    pub(super) truncated: (u64, u64),
    pub(super) last: (u64, u64),
}

impl Mirror {
    pub(super) fn load(path: &Path, db: &Database) -> Result<Self, Error> {
        let damaged = |why: String| Error::Damaged {
            path: path.to_owned(),
            why,
        };
        let mut mirror = Self {
            hard_state: read_meta(path, db, "hard_state")?,
            conf_state: read_meta(path, db, "conf_state")?,
            members: read_meta(path, db, "members")?,
            applied: read_meta(path, db, "applied")?,
            truncated: read_meta(path, db, "truncated")?,
            last: (0, 0),
            recent: VecDeque::new(),
            recent_bytes: 0,
        };
        let ends = || -> Result<_, redb::Error> {
            let log = db.begin_read()?.open_table(LOG)?;
            let first = log.first()?.map(|(index, _)| index.value());
            let last = log
                .last()?
                .map(|(index, bytes)| (index.value(), bytes.value().to_vec()));
            Ok((first, last, log.len()?))
        };
        let (first, last, count) = ends().map_err(|error| Error::Store {
            path: path.to_owned(),
            source: Box::new(error),
        })?;
        mirror.last = match last {
            None => mirror.truncated,
            Some((index, bytes)) => {
                let entry: EntryRecord = decode(&bytes).map_err(|source| Error::Codec {
                    what: format!("{}: log entry {index}", path.display()),
                    source,
                })?;
                (index, eraftpb::Entry::from(entry).term)
            }
        };
        let (truncated, last, commit) =
            (mirror.truncated.0, mirror.last.0, mirror.hard_state.commit);
        let begins_well = first.is_none_or(|first| first == truncated + 1);
        if !begins_well || last.checked_sub(truncated) != Some(count) {
            let why = format!(
                "the log holds {count} entries from {first:?} to {last}, but should begin after \
                 {truncated}: restore the file or replace this controller"
            );
            return Err(damaged(why));
        }
        // An applied entry was committed, whatever the hard state says of it.
        mirror.hard_state.commit = commit.max(mirror.applied);
        if mirror.hard_state.commit > last || mirror.applied < truncated {
            let why = format!(
                "committed entries are missing: commit {commit}, applied {}, but the log holds \
                 ({truncated}, {last}]: restore the file or replace this controller",
                mirror.applied
            );
            return Err(damaged(why));
        }
        Ok(mirror)
    }

    pub(super) fn after(&self, batch: &Batch) -> Next {
        let mut next = Next {
            hard_state: self.hard_state,
            conf_state: self.conf_state.clone(),
            members: self.members.clone(),
            applied: self.applied,
            truncated: self.truncated,
            last: self.last,
        };
        if let Some((snapshot, body)) = &batch.snapshot {
            let metadata = snapshot.get_metadata();
            next.truncated = (metadata.index, metadata.term);
            next.last = next.truncated;
            next.applied = metadata.index;
            next.conf_state = metadata.get_conf_state().into();
            next.members.clone_from(&body.members);
        }
        if let Some(last) = batch.entries.last() {
            next.last = (last.index, last.term);
        }
        if let Some(state) = &batch.hard_state {
            next.hard_state = state.into();
        }
        if let Some(applied) = &batch.applied {
            next.applied = applied.index;
            if let Some(state) = &applied.conf_state {
                next.conf_state = state.clone();
            }
            if let Some(members) = &applied.members {
                next.members.clone_from(members);
            }
        }
        next.hard_state.commit = next.hard_state.commit.max(next.applied);
        if let Some((index, term)) = batch.truncate_to
            && index > next.truncated.0
            && index <= next.applied
        {
            next.truncated = (index, term);
        }
        next
    }

    pub(super) fn adopt(&mut self, next: Next, batch: &Batch) {
        if batch.snapshot.is_some() {
            self.recent.clear();
        }
        if let Some(first) = batch.entries.first() {
            while self
                .recent
                .back()
                .is_some_and(|entry| entry.index >= first.index)
            {
                self.recent.pop_back();
            }
        }
        self.recent.extend(batch.entries.iter().cloned());
        self.recent_bytes = self.recent.iter().map(|entry| entry.data.len()).sum();
        while self.recent.len() > RECENT_COUNT || self.recent_bytes > RECENT_BYTES {
            let Some(entry) = self.recent.pop_front() else {
                break;
            };
            self.recent_bytes -= entry.data.len();
        }
        self.hard_state = next.hard_state;
        self.conf_state = next.conf_state;
        self.members = next.members;
        self.applied = next.applied;
        self.truncated = next.truncated;
        self.last = next.last;
    }

    pub(super) fn recent(&self, index: u64) -> Option<&eraftpb::Entry> {
        let first = self.recent.front()?.index;
        if index <= self.truncated.0 {
            return None;
        }
        self.recent
            .get(usize::try_from(index.checked_sub(first)?).ok()?)
    }
}
