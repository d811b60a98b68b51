//! What RocketMQ's slaves copy from their master besides topics, kept in Java's files and answered as
//! it was written: this broker has no use for it, but the next Java master does (RocketMQ:
//! SlaveSynchronize).
//!
//! Invariant: a table is answered as some master gave it, or empty by the first master of the group;
//! one that is not known or damaged is never answered as empty, because a slave would drop its own.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use bytes::{Bytes, BytesMut};
use epochlog_raft_glue::remoting::{from_json, request_code as code};
use parking_lot::Mutex;
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use crate::identity::write_whole;
use crate::kept::{backup, read_limited, read_or_backup};

/// Longest table that is read from disk or taken over; a frame is no longer.
const MAX_LEN: usize = 16 * 1024 * 1024;
/// Length of a timer's checkpoint: seven numbers of 64 bits (RocketMQ: TimerCheckpoint).
const CHECKPOINT_LEN: usize = 56;

/// One of the tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Table {
    /// What consumers have read: 43.
    ConsumerOffsets,
    /// How far delayed messages have been delivered: 45.
    DelayOffsets,
    /// Settings of consumer groups: 201.
    Groups,
    /// How consumers of a topic get their messages: 402.
    RequestModes,
    /// How far the timer has come: 60.
    TimerCheckpoint,
    /// What the timer holds: 61.
    TimerMetrics,
}

impl Table {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::ConsumerOffsets,
        Self::DelayOffsets,
        Self::Groups,
        Self::RequestModes,
        Self::TimerCheckpoint,
        Self::TimerMetrics,
    ];

    /// The request that asks for it.
    #[must_use]
    pub fn request_code(self) -> i32 {
        match self {
            Self::ConsumerOffsets => code::GET_ALL_CONSUMER_OFFSET,
            Self::DelayOffsets => code::GET_ALL_DELAY_OFFSET,
            Self::Groups => code::GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
            Self::RequestModes => code::GET_ALL_MESSAGE_REQUEST_MODE,
            Self::TimerCheckpoint => code::GET_TIMER_CHECK_POINT,
            Self::TimerMetrics => code::GET_TIMER_METRICS,
        }
    }

    /// The table a request asks for.
    #[must_use]
    pub fn asked_by(request_code: i32) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|table| table.request_code() == request_code)
    }

    fn file_name(self) -> &'static str {
        match self {
            Self::ConsumerOffsets => "consumerOffset.json",
            Self::DelayOffsets => "delayOffset.json",
            Self::Groups => "subscriptionGroup.json",
            Self::RequestModes => "messageRequestMode.json",
            Self::TimerCheckpoint => "timercheck",
            Self::TimerMetrics => "timermetrics",
        }
    }

    /// What the first master of a group has.
    fn empty(self, now_ms: i64) -> Bytes {
        let version = json!({"counter": 0, "stateVersion": 0, "timestamp": 0});
        let table = match self {
            Self::ConsumerOffsets | Self::DelayOffsets => {
                json!({"dataVersion": version, "offsetTable": {}})
            }
            Self::Groups => json!({
                "dataVersion": version,
                "forbiddenTable": {},
                "subscriptionGroupTable": system_groups(),
            }),
            Self::RequestModes => json!({"messageRequestModeMap": {}}),
            Self::TimerMetrics => json!({"dataVersion": version, "timingCount": {}}),
            Self::TimerCheckpoint => {
                // The timer goes by whole seconds, and there is nothing before its beginning.
                let mut out = BytesMut::zeroed(CHECKPOINT_LEN);
                out[..8].copy_from_slice(&(now_ms - now_ms % 1000).to_be_bytes());
                return out.freeze();
            }
        };
        table.to_string().into()
    }

    /// What is kept of a file's or an answer's bytes.
    fn checked(self, bytes: Bytes) -> Result<Bytes, String> {
        if bytes.len() > MAX_LEN {
            return Err(format!(
                "{} bytes; at most {MAX_LEN} are taken",
                bytes.len()
            ));
        }
        if self == Self::TimerCheckpoint {
            if bytes.len() < CHECKPOINT_LEN {
                return Err(format!("{} bytes instead of {CHECKPOINT_LEN}", bytes.len()));
            }
            let mut kept = BytesMut::from(&bytes[..CHECKPOINT_LEN]);
            // Two of its numbers are positions in the timer's own files, which are not here.
            kept[8..24].fill(0);
            return Ok(kept.freeze());
        }
        let parsed = from_json::<BTreeMap<String, IgnoredAny>>(&bytes);
        match parsed {
            Ok(_) => Ok(bytes),
            Err(error) => Err(error.to_string()),
        }
    }
}

/// The groups every RocketMQ broker has from its start (RocketMQ: SubscriptionGroupManager.init): a
/// Java slave drops those its master does not have.
fn system_groups() -> serde_json::Map<String, Value> {
    const GROUPS: [(&str, bool); 8] = [
        ("TOOLS_CONSUMER", false),
        ("FILTERSRV_CONSUMER", false),
        ("SELF_TEST_C_GROUP", false),
        ("CID_ONS-HTTP-PROXY", true),
        ("CID_ONSAPI_PULL", true),
        ("CID_ONSAPI_PERMISSION", true),
        ("CID_ONSAPI_OWNER", true),
        ("CID_RMQ_SYS_TRANS", true),
    ];
    let group = |(name, broadcast): (&str, bool)| {
        let settings = json!({
            "groupName": name,
            "consumeEnable": true,
            "consumeFromMinEnable": true,
            "consumeBroadcastEnable": broadcast,
            "consumeMessageOrderly": false,
            "retryQueueNums": 1,
            "retryMaxTimes": 16,
            "brokerId": 0,
            "whichBrokerWhenConsumeSlowly": 1,
            "notifyConsumerIdsChangedEnable": true,
            "groupSysFlag": 0,
            "consumeTimeoutMinute": 15,
            "attributes": {},
        });
        (name.to_owned(), settings)
    };
    GROUPS.into_iter().map(group).collect()
}

/// A table cannot be read, taken over or written.
#[derive(Debug, thiserror::Error)]
#[error("{}: {why}", path.display())]
pub struct TableError {
    path: PathBuf,
    why: String,
}

/// The tables of one broker, those it knows.
#[derive(Debug)]
pub struct Tables {
    dir: PathBuf,
    known: Mutex<BTreeMap<Table, Bytes>>,
}

impl Tables {
    /// Reads what lies in `config/` under the store folder; a missing or damaged file is made up for
    /// by its `.bak`.
    ///
    /// # Errors
    /// A file is there, but neither it nor its `.bak` can be read: restore it, or remove both to let
    /// the next master's be copied.
    pub fn open(store_dir: &Path) -> Result<Self, TableError> {
        let dir = store_dir.join("config");
        let mut known = BTreeMap::new();
        for table in Table::ALL {
            let path = dir.join(table.file_name());
            let found = read_or_backup(&path, |path| read(table, path))?;
            known.extend(found.map(|bytes| (table, bytes)));
        }
        Ok(Self {
            dir,
            known: Mutex::new(known),
        })
    }

    /// The table as a slave is to get it; `None`: this log had another master once, whose table was
    /// never copied.
    #[must_use]
    pub fn get(&self, table: Table) -> Option<Bytes> {
        self.known.lock().get(&table).cloned()
    }

    /// Says that this broker is the first master of its group: tables it does not know are empty.
    /// Durable on return.
    ///
    /// # Errors
    /// The system refuses to write.
    pub fn begin(&self, now_ms: i64) -> Result<(), TableError> {
        for table in Table::ALL {
            if self.get(table).is_none() {
                self.write(table, table.empty(now_ms))?;
            }
        }
        Ok(())
    }

    /// Takes a master's table over; durable on return. False when it is the one known.
    ///
    /// # Errors
    /// It is not what such a table is, or the system refuses to write; the one known stays.
    pub fn adopt(&self, table: Table, body: Bytes) -> Result<bool, TableError> {
        let bytes = table.checked(body).map_err(|why| TableError {
            path: self.dir.join(table.file_name()),
            why: format!("the master's table cannot be taken over: {why}"),
        })?;
        if self.get(table).as_ref() == Some(&bytes) {
            return Ok(false);
        }
        self.write(table, bytes)?;
        Ok(true)
    }

    fn write(&self, table: Table, bytes: Bytes) -> Result<(), TableError> {
        let path = self.dir.join(table.file_name());
        let write = || {
            // A good main file becomes the backup; a damaged one must not.
            if let Ok(Some(old)) = read(table, &path) {
                write_whole(&backup(&path), &old)?;
            }
            write_whole(&path, &bytes)
        };
        write().map_err(|error: io::Error| TableError {
            why: error.to_string(),
            path: path.clone(),
        })?;
        self.known.lock().insert(table, bytes);
        Ok(())
    }
}

fn read(table: Table, path: &Path) -> Result<Option<Bytes>, TableError> {
    let failed = |why: String| TableError {
        path: path.to_owned(),
        why: format!("cannot be read: {why}; restore it, or remove it and its .bak"),
    };
    let bytes = read_limited(path, MAX_LEN as u64).map_err(failed)?;
    let bytes = bytes.map(|bytes| table.checked(bytes.into())).transpose();
    bytes.map_err(failed)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use bytes::BufMut;

    use super::*;

    #[test]
    fn the_first_master_has_empty_tables_and_keeps_them() {
        let dir = tempfile::tempdir().expect("temp dir");
        let tables = Tables::open(dir.path()).expect("opens");
        assert!(Table::ALL.iter().all(|table| tables.get(*table).is_none()));
        tables.begin(1_700_000_000_123).expect("writes");
        let again = Tables::open(dir.path()).expect("opens");
        for table in Table::ALL {
            assert_eq!(again.get(table), tables.get(table));
            assert_eq!(Table::asked_by(table.request_code()), Some(table));
        }
        let offsets = again.get(Table::ConsumerOffsets).expect("known");
        let want =
            r#"{"dataVersion":{"counter":0,"stateVersion":0,"timestamp":0},"offsetTable":{}}"#;
        assert_eq!(offsets, want.as_bytes());
        let groups = again.get(Table::Groups).expect("known");
        let groups: Value = serde_json::from_slice(&groups).expect("JSON");
        let of_tools = &groups["subscriptionGroupTable"]["TOOLS_CONSUMER"];
        assert_eq!(of_tools["retryMaxTimes"], 16);
        let timer = again.get(Table::TimerCheckpoint).expect("known");
        assert_eq!(timer.len(), CHECKPOINT_LEN);
        assert_eq!(timer[..8], 1_700_000_000_000_i64.to_be_bytes());
        assert_eq!(Table::asked_by(code::SEND_MESSAGE), None);
    }

    #[test]
    fn a_masters_tables_are_kept_as_they_came() {
        let dir = tempfile::tempdir().expect("temp dir");
        let tables = Tables::open(dir.path()).expect("opens");
        // fastjson leaves integer keys bare.
        let body = Bytes::from(r#"{"dataVersion":{"counter":1},"offsetTable":{"T@g":{0:7,1:9}}}"#);
        let taken = tables.adopt(Table::ConsumerOffsets, body.clone());
        assert!(taken.expect("taken"));
        let taken = tables.adopt(Table::ConsumerOffsets, body.clone());
        assert!(!taken.expect("known"));
        tables.begin(0).expect("writes");
        let mut checkpoint = BytesMut::new();
        for number in 1..=7_i64 {
            checkpoint.put_i64(number);
        }
        let taken = tables.adopt(Table::TimerCheckpoint, checkpoint.freeze());
        assert!(taken.expect("taken"));
        let again = Tables::open(dir.path()).expect("opens");
        assert_eq!(again.get(Table::ConsumerOffsets), Some(body));
        let timer = again.get(Table::TimerCheckpoint).expect("known");
        let numbers: Vec<u8> = timer.chunks(8).map(|number| number[7]).collect();
        assert_eq!(
            numbers,
            [1, 0, 0, 4, 5, 6, 7],
            "not the positions in its files"
        );
    }

    #[test]
    fn e52_a_damaged_table_is_never_taken_for_an_empty_one() {
        let dir = tempfile::tempdir().expect("temp dir");
        let tables = Tables::open(dir.path()).expect("opens");
        let groups =
            |n: u32| Bytes::from(format!(r#"{{"subscriptionGroupTable":{{"g{n}":{{}}}}}}"#));
        for n in 1..=2 {
            tables.adopt(Table::Groups, groups(n)).expect("taken");
        }
        for bad in ["", "[]", "{", "<html>"] {
            let error = tables.adopt(Table::Groups, bad.into()).expect_err(bad);
            assert!(
                error.to_string().contains("subscriptionGroup.json"),
                "{error}"
            );
        }
        assert_eq!(tables.get(Table::Groups), Some(groups(2)));
        let short = tables.adopt(Table::TimerCheckpoint, Bytes::from_static(&[0; 55]));
        assert!(short.is_err());
        let path = dir.path().join("config/subscriptionGroup.json");
        fs::write(&path, "{").expect("damages");
        let again = Tables::open(dir.path()).expect("falls back");
        assert_eq!(again.get(Table::Groups), Some(groups(1)));
        // The damaged file does not replace the good backup.
        again.adopt(Table::Groups, groups(3)).expect("taken");
        fs::write(&path, "{").expect("damages");
        let again = Tables::open(dir.path()).expect("falls back");
        assert_eq!(again.get(Table::Groups), Some(groups(1)));
        fs::write(backup(&path), "").expect("damages");
        let error = Tables::open(dir.path())
            .expect_err("both damaged")
            .to_string();
        assert!(error.contains("remove it and its .bak"), "{error}");
    }
}
