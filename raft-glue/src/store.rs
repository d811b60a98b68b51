//! The raft log, hard state, membership and state machine rows of one controller in one redb file.
//!
//! Invariants: what one [`Batch`] carries becomes durable in one transaction or not at all; the
//! log is without gaps from the entry after `truncated` to `last`; `truncated ≤ applied ≤ commit ≤
//! last` on disk; rows, membership and the applied index always belong together, so that an entry's
//! effect is on disk exactly when its index counts as applied. A new store begins at index 1 in
//! term 1 on every first member, as if from a snapshot with the first membership and no rows.

mod mirror;
mod view;

use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use parking_lot::Mutex;
use raft::eraftpb;
use redb::{Database, ReadableDatabase, TableDefinition};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::ledger::Counters;
use crate::raft_codec::{
    Blob, CodecError, ConfStateRecord, EntryRecord, HardStateRecord, Member, SnapshotBody, decode,
    encode,
};
use mirror::{Mirror, Next};
pub(crate) use view::LogView;

const META: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("meta");
const LOG: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("log");
const ROWS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("rows");

/// Index and term at which every group begins.
const FIRST: u64 = 1;

/// Longest snapshot that fits a frame between controllers, with room for the rest of the frame.
const SNAPSHOT_LIMIT: usize = 12 << 20;

const CACHE_BYTES: usize = 32 << 20;

/// Changes of a state machine's rows: `None` takes the row away.
pub type RowChanges = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

/// Rows of a state machine with their keys.
pub type Rows = Vec<(Vec<u8>, Vec<u8>)>;

/// Who opens a store.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub(crate) group: String,
    pub(crate) id: u64,
    /// The members of a new group.
    pub(crate) first_members: BTreeMap<u64, Member>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct IdentityRecord {
    group: String,
    id: u64,
    store: u64,
}

/// The applied state that goes with a snapshot or a run of applied entries.
#[derive(Clone, Debug, Default)]
pub(crate) struct AppliedBatch {
    pub(crate) index: u64,
    pub(crate) rows: RowChanges,
    pub(crate) conf_state: Option<ConfStateRecord>,
    pub(crate) members: Option<BTreeMap<u64, Member>>,
}

/// One transaction.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    /// Replaces the whole log and all rows.
    pub(crate) snapshot: Option<(eraftpb::Snapshot, SnapshotBody)>,
    pub(crate) entries: Vec<eraftpb::Entry>,
    pub(crate) hard_state: Option<eraftpb::HardState>,
    pub(crate) applied: Option<AppliedBatch>,
    /// Stores seen under the ids of peers.
    pub(crate) peer_stores: Option<BTreeMap<u64, u64>>,
    /// Entries up to this index go, if they are applied; with the term of the entry there.
    pub(crate) truncate_to: Option<(u64, u64)>,
}

/// The store of one controller.
#[derive(Debug)]
pub(crate) struct Store {
    path: PathBuf,
    db: Database,
    store_id: u64,
    first_peer_stores: BTreeMap<u64, u64>,
    mirror: Mutex<Mirror>,
    counters: Arc<Counters>,
}

impl Store {
    /// Opens the file, or makes it as a first member's. Durable on return.
    pub(crate) fn open(path: &Path, identity: &Identity) -> Result<Self, Error> {
        let db = redb::Builder::new()
            .set_cache_size(CACHE_BYTES)
            .create(path);
        let db = db.map_err(|error| Error::Store {
            path: path.to_owned(),
            source: Box::new(error.into()),
        })?;
        Self::open_on(path, db, identity)
    }

    /// The same on a database that is open already; the path is for messages.
    pub(crate) fn open_on(path: &Path, db: Database, identity: &Identity) -> Result<Self, Error> {
        let fail = |source: redb::Error| Error::Store {
            path: path.to_owned(),
            source: Box::new(source),
        };
        if is_new(&db).map_err(fail)? {
            begin(path, &db, identity)?;
        }
        let known: IdentityRecord = read_meta(path, &db, "identity")?;
        if known.group != identity.group || known.id != identity.id {
            return Err(Error::WrongStore {
                path: path.to_owned(),
                found: format!("member {} of {}", known.id, known.group),
                wanted: format!("member {} of {}", identity.id, identity.group),
            });
        }
        let first_peer_stores = read_meta(path, &db, "peer_stores")?;
        let mirror = Mirror::load(path, &db)?;
        Ok(Self {
            path: path.to_owned(),
            db,
            store_id: known.store,
            first_peer_stores,
            mirror: Mutex::new(mirror),
            counters: Arc::default(),
        })
    }

    /// Counts of the member this store belongs to.
    pub(crate) fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    /// A number no other store has.
    pub(crate) fn store_id(&self) -> u64 {
        self.store_id
    }

    /// The peers' stores as they were at open.
    pub(crate) fn first_peer_stores(&self) -> BTreeMap<u64, u64> {
        self.first_peer_stores.clone()
    }

    pub(crate) fn members(&self) -> BTreeMap<u64, Member> {
        self.mirror.lock().members.clone()
    }

    /// Term, vote and last index on disk.
    #[cfg(test)]
    pub(crate) fn durable(&self) -> (u64, u64, u64) {
        let mirror = self.mirror.lock();
        (
            mirror.hard_state.term,
            mirror.hard_state.vote,
            mirror.last.0,
        )
    }

    /// The index up to which effects are on disk.
    pub(crate) fn applied(&self) -> u64 {
        self.mirror.lock().applied
    }

    /// The index before the first entry, and the last index.
    pub(crate) fn range(&self) -> (u64, u64) {
        let mirror = self.mirror.lock();
        (mirror.truncated.0, mirror.last.0)
    }

    /// All rows of the state machine, as of [`Self::applied`].
    pub(crate) fn rows(&self) -> Result<Rows, Error> {
        let read = || -> Result<_, redb::Error> {
            let rows = self.db.begin_read()?.open_table(ROWS)?;
            let mut all = Vec::new();
            for row in rows.range::<&[u8]>(..)? {
                let (key, value) = row?;
                all.push((key.value().to_vec(), value.value().to_vec()));
            }
            Ok(all)
        };
        read().map_err(|error| self.failed(error))
    }

    /// One entry; `None` below the first and above the last.
    pub(crate) fn entry(&self, index: u64) -> Result<Option<eraftpb::Entry>, Error> {
        if let Some(entry) = self.mirror.lock().recent(index) {
            return Ok(Some(entry.clone()));
        }
        Ok(self
            .read_entries(index, index.saturating_add(1), None)?
            .pop())
    }

    /// Makes a batch durable, all or nothing. After an error the store must not be used again.
    pub(crate) fn write(&self, batch: &Batch) -> Result<(), Error> {
        let next = self.mirror.lock().after(batch);
        let write = || -> Result<(), WriteError> {
            let transaction = self.db.begin_write()?;
            self.write_log(&transaction, batch, &next)?;
            write_rows(&transaction, batch)?;
            {
                let mut meta = transaction.open_table(META)?;
                meta.insert("hard_state", encode(&next.hard_state)?.as_slice())?;
                meta.insert("conf_state", encode(&next.conf_state)?.as_slice())?;
                meta.insert("members", encode(&next.members)?.as_slice())?;
                meta.insert("applied", encode(&next.applied)?.as_slice())?;
                meta.insert("truncated", encode(&next.truncated)?.as_slice())?;
                if let Some(stores) = &batch.peer_stores {
                    meta.insert("peer_stores", encode(stores)?.as_slice())?;
                }
            }
            let began = Instant::now();
            transaction.commit()?;
            self.counters.synced(began.elapsed());
            Ok(())
        };
        write().map_err(|error| match error {
            WriteError::Store(source) => self.failed(source),
            WriteError::Codec(source) => Error::Codec {
                what: "a record to write".into(),
                source,
            },
        })?;
        self.mirror.lock().adopt(next, batch);
        Ok(())
    }

    fn write_log(
        &self,
        transaction: &redb::WriteTransaction,
        batch: &Batch,
        next: &Next,
    ) -> Result<(), WriteError> {
        let mut log = transaction.open_table(LOG)?;
        if batch.snapshot.is_some() {
            log.retain(|_, _| false)?;
        }
        if let Some(first) = batch.entries.first() {
            log.retain_in(first.index.., |_, _| false)?;
        }
        for entry in &batch.entries {
            log.insert(entry.index, encode(&EntryRecord::from(entry))?.as_slice())?;
        }
        if batch.truncate_to.is_some() {
            log.retain_in(..=next.truncated.0, |_, _| false)?;
        }
        Ok(())
    }

    fn failed(&self, source: redb::Error) -> Error {
        Error::Store {
            path: self.path.clone(),
            source: Box::new(source),
        }
    }

    fn read_entries(
        &self,
        low: u64,
        high: u64,
        max_bytes: Option<u64>,
    ) -> Result<Vec<eraftpb::Entry>, Error> {
        let mut entries = Vec::new();
        let mut room = max_bytes.unwrap_or(u64::MAX);
        let mut read = || -> Result<(), WriteError> {
            let log = self.db.begin_read()?.open_table(LOG)?;
            for row in log.range(low..high)? {
                let (_, bytes) = row?;
                let record: EntryRecord = decode(bytes.value())?;
                let len = bytes.value().len() as u64;
                if len > room && !entries.is_empty() {
                    break;
                }
                room = room.saturating_sub(len);
                entries.push(record.into());
            }
            Ok(())
        };
        match read() {
            Ok(()) => Ok(entries),
            Err(WriteError::Store(source)) => Err(self.failed(source)),
            Err(WriteError::Codec(source)) => Err(Error::Codec {
                what: format!("{}: a log entry", self.path.display()),
                source,
            }),
        }
    }

    fn snapshot_now(&self) -> Result<eraftpb::Snapshot, Error> {
        let (index, conf_state, members, rows) = {
            // One read transaction: the rows are those of this very applied index.
            let read = || -> Result<_, WriteError> {
                let transaction = self.db.begin_read()?;
                let meta = transaction.open_table(META)?;
                let rows = transaction.open_table(ROWS)?;
                let mut all = Vec::new();
                for row in rows.range::<&[u8]>(..)? {
                    let (key, value) = row?;
                    let blob = |bytes: &[u8]| Blob(Bytes::copy_from_slice(bytes));
                    all.push((blob(key.value()), blob(value.value())));
                }
                let get = |key: &str| -> Result<Vec<u8>, WriteError> {
                    Ok(meta
                        .get(key)?
                        .map(|bytes| bytes.value().to_vec())
                        .unwrap_or_default())
                };
                let index: u64 = decode(&get("applied")?)?;
                let conf_state: ConfStateRecord = decode(&get("conf_state")?)?;
                let members: BTreeMap<u64, Member> = decode(&get("members")?)?;
                Ok((index, conf_state, members, all))
            };
            read().map_err(|error| match error {
                WriteError::Store(source) => self.failed(source),
                WriteError::Codec(source) => Error::Codec {
                    what: format!("{}", self.path.display()),
                    source,
                },
            })?
        };
        let body = encode(&SnapshotBody { members, rows }).map_err(|source| Error::Codec {
            what: "a snapshot".into(),
            source,
        })?;
        if body.len() > SNAPSHOT_LIMIT {
            let why = format!(
                "a snapshot of {} bytes is over the limit of {SNAPSHOT_LIMIT}: clean broker sets \
                 that are no more",
                body.len()
            );
            return Err(Error::Damaged {
                path: self.path.clone(),
                why,
            });
        }
        let mut snapshot = eraftpb::Snapshot {
            data: body.into(),
            ..eraftpb::Snapshot::default()
        };
        let metadata = snapshot.mut_metadata();
        metadata.index = index;
        metadata.term = self.term_at(index)?;
        metadata.set_conf_state((&conf_state).into());
        Ok(snapshot)
    }

    /// The term of an entry from `truncated` to `last`.
    pub(crate) fn term_at(&self, index: u64) -> Result<u64, Error> {
        let mirror = self.mirror.lock();
        if index == mirror.truncated.0 {
            return Ok(mirror.truncated.1);
        }
        if index == mirror.last.0 {
            return Ok(mirror.last.1);
        }
        drop(mirror);
        self.entry(index)?
            .map(|entry| entry.term)
            .ok_or_else(|| Error::Damaged {
                path: self.path.clone(),
                why: format!("log entry {index} is missing"),
            })
    }
}

enum WriteError {
    Store(redb::Error),
    Codec(CodecError),
}

impl<E: Into<redb::Error>> From<E> for WriteError {
    fn from(error: E) -> Self {
        Self::Store(error.into())
    }
}

fn write_rows(transaction: &redb::WriteTransaction, batch: &Batch) -> Result<(), WriteError> {
    let mut rows = transaction.open_table(ROWS)?;
    if let Some((_, body)) = &batch.snapshot {
        rows.retain(|_, _| false)?;
        for (key, value) in &body.rows {
            rows.insert(&key.0[..], &value.0[..])?;
        }
    }
    for (key, value) in batch.applied.iter().flat_map(|applied| &applied.rows) {
        match value {
            Some(value) => rows.insert(key.as_slice(), value.as_slice())?,
            None => rows.remove(key.as_slice())?,
        };
    }
    Ok(())
}

impl From<CodecError> for WriteError {
    fn from(error: CodecError) -> Self {
        Self::Codec(error)
    }
}

fn is_new(db: &Database) -> Result<bool, redb::Error> {
    match db.begin_read()?.open_table(META) {
        Ok(_) => Ok(false),
        Err(redb::TableError::TableDoesNotExist(_)) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

/// Writes what a member of a new group begins with.
fn begin(path: &Path, db: &Database, identity: &Identity) -> Result<(), Error> {
    let is_first = identity.first_members.contains_key(&identity.id);
    // A member that joins later begins empty and takes the group's state from a snapshot.
    let at = if is_first { FIRST } else { 0 };
    let conf_state = ConfStateRecord {
        voters: identity
            .first_members
            .keys()
            .copied()
            .filter(|_| is_first)
            .collect(),
        ..ConfStateRecord::default()
    };
    let record = IdentityRecord {
        group: identity.group.clone(),
        id: identity.id,
        store: random_number(),
    };
    let write = || -> Result<(), WriteError> {
        let transaction = db.begin_write()?;
        {
            let mut meta = transaction.open_table(META)?;
            let hard_state = HardStateRecord {
                term: at,
                vote: 0,
                commit: at,
            };
            meta.insert("identity", encode(&record)?.as_slice())?;
            meta.insert("hard_state", encode(&hard_state)?.as_slice())?;
            meta.insert("conf_state", encode(&conf_state)?.as_slice())?;
            meta.insert("members", encode(&identity.first_members)?.as_slice())?;
            meta.insert("applied", encode(&at)?.as_slice())?;
            meta.insert("truncated", encode(&(at, at))?.as_slice())?;
            meta.insert(
                "peer_stores",
                encode(&BTreeMap::<u64, u64>::new())?.as_slice(),
            )?;
            transaction.open_table(LOG)?;
            transaction.open_table(ROWS)?;
        }
        transaction.commit()?;
        Ok(())
    };
    write().map_err(|error| match error {
        WriteError::Store(source) => Error::Store {
            path: path.to_owned(),
            source: Box::new(source),
        },
        WriteError::Codec(source) => Error::Codec {
            what: "the first record".into(),
            source,
        },
    })
}

fn read_meta<T: DeserializeOwned>(path: &Path, db: &Database, key: &str) -> Result<T, Error> {
    let read = || -> Result<Option<Vec<u8>>, redb::Error> {
        let meta = db.begin_read()?.open_table(META)?;
        Ok(meta.get(key)?.map(|bytes| bytes.value().to_vec()))
    };
    let bytes = read()
        .map_err(|error| Error::Store {
            path: path.to_owned(),
            source: Box::new(error),
        })?
        .ok_or_else(|| Error::Damaged {
            path: path.to_owned(),
            why: format!("the record {key} is missing"),
        })?;
    decode(&bytes).map_err(|source| Error::Codec {
        what: format!("{}: the record {key}", path.display()),
        source,
    })
}

/// Different for each store ever made; the hasher's keys are random.
fn random_number() -> u64 {
    std::hash::RandomState::new().build_hasher().finish()
}

#[cfg(test)]
#[path = "store_tests.rs"]
mod tests;
