//! The topics a broker knows, in Java's `config/topics.json`.
//!
//! Topics come to be by sending, when their default topic allows it, and are written behind: a table
//! that is older than the log only means that a topic is created once more. Invariants: the file is
//! replaced whole and the last good one kept as `.bak`; a topic has at least one queue.

mod shown;
mod system;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use epochlog_raft_glue::remoting::from_json;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use crate::identity::write_whole;
use crate::kept::{backup, read_limited, read_or_backup};
pub use shown::AdoptError;

/// Topic whose settings new topics copy (RocketMQ: TopicValidator.AUTO_CREATE_TOPIC_KEY_TOPIC).
pub const DEFAULT_TOPIC: &str = "TBW102";
/// Most topics of one broker.
pub const MAX_TOPICS: usize = 65_536;
const MAX_FILE_LEN: u64 = 64 * 1024 * 1024;

const PERM_INHERIT: i32 = 1;
const PERM_READ_WRITE: i32 = 6;

/// Settings of one topic (RocketMQ: TopicConfig).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TopicConfig {
    attributes: BTreeMap<String, String>,
    order: bool,
    /// Bits: 4 read, 2 write, 1 inherit.
    pub perm: i32,
    /// Queues consumers read.
    pub read_queue_nums: i32,
    topic_filter_type: String,
    topic_name: String,
    topic_sys_flag: i32,
    /// Queues producers write.
    pub write_queue_nums: i32,
}

impl Default for TopicConfig {
    fn default() -> Self {
        Self::new("", 8, PERM_READ_WRITE)
    }
}

impl TopicConfig {
    fn new(name: &str, queues: i32, perm: i32) -> Self {
        Self {
            attributes: BTreeMap::new(),
            order: false,
            perm,
            read_queue_nums: queues,
            topic_filter_type: "SINGLE_TAG".into(),
            topic_name: name.to_owned(),
            topic_sys_flag: 0,
            write_queue_nums: queues,
        }
    }
}

/// By which brokers see that a table changed.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct DataVersion {
    counter: i64,
    /// The master epoch: a name server takes no table older than the one it has.
    state_version: i64,
    /// ms since 1970.
    timestamp: i64,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Table {
    data_version: DataVersion,
    topic_config_table: BTreeMap<String, TopicConfig>,
}

/// Why a topic cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TopicError {
    /// It does not exist and may not be created.
    #[error("the topic does not exist and {DEFAULT_TOPIC} does not allow to create it")]
    NotExist,
    /// The table is full.
    #[error("this broker knows {MAX_TOPICS} topics already")]
    TooMany,
}

/// The topic table could not be read.
#[derive(Debug, thiserror::Error)]
#[error("{}: the topic table cannot be read: {why}; restore it or remove it", path.display())]
pub struct TopicsError {
    path: PathBuf,
    why: String,
}

/// The table of one broker.
#[derive(Debug)]
pub struct Topics {
    path: PathBuf,
    /// Topics every table of this broker holds.
    own: Vec<TopicConfig>,
    table: Mutex<Table>,
    /// Version of the table taken over from a master, as long as it is what stands here.
    copied: Mutex<Option<DataVersion>>,
    changed: AtomicBool,
    wake: Notify,
}

impl Topics {
    /// Reads `config/topics.json` under the store folder, or its `.bak` when it is missing or
    /// damaged. With `auto_create` the default topic exists with so many queues.
    ///
    /// # Errors
    /// Neither file can be read although one is there.
    pub fn open(store_dir: &Path, auto_create: bool, queues: i32) -> Result<Self, TopicsError> {
        let path = store_dir.join("config").join("topics.json");
        let mut table = read_or_backup(&path, read)?.unwrap_or_default();
        let mut own = Vec::new();
        if auto_create {
            let default = TopicConfig::new(DEFAULT_TOPIC, queues, PERM_READ_WRITE | PERM_INHERIT);
            table
                .topic_config_table
                .insert(DEFAULT_TOPIC.into(), default.clone());
            own.push(default);
        } else {
            table.topic_config_table.remove(DEFAULT_TOPIC);
        }
        Ok(Self {
            path,
            own,
            table: Mutex::new(table),
            copied: Mutex::new(None),
            changed: AtomicBool::new(false),
            wake: Notify::new(),
        })
    }

    /// The settings of `topic`; creates it with `queues` queues, at most as many as `default_topic`
    /// has, when that one allows it.
    ///
    /// # Errors
    /// Unknown and not to be created, or the table is full.
    pub fn get_or_create(
        &self,
        topic: &str,
        default_topic: &str,
        queues: i32,
        now_ms: i64,
    ) -> Result<TopicConfig, TopicError> {
        let mut table = self.table.lock();
        if let Some(config) = table.topic_config_table.get(topic) {
            return Ok(config.clone());
        }
        let default = table.topic_config_table.get(default_topic);
        let default = default.filter(|default| default.perm & PERM_INHERIT != 0);
        let default = default.ok_or(TopicError::NotExist)?;
        if table.topic_config_table.len() >= MAX_TOPICS {
            return Err(TopicError::TooMany);
        }
        let queues = queues.min(default.write_queue_nums).max(1);
        let config = TopicConfig::new(topic, queues, default.perm & !PERM_INHERIT);
        table
            .topic_config_table
            .insert(topic.to_owned(), config.clone());
        table.data_version.counter += 1;
        table.data_version.timestamp = now_ms;
        *self.copied.lock() = None;
        drop(table);
        self.touch();
        Ok(config)
    }

    fn touch(&self) {
        self.changed.store(true, Ordering::Release);
        self.wake.notify_one();
    }

    /// Waits until there is something to save.
    pub async fn changed(&self) {
        self.wake.notified().await;
    }

    /// Writes the table if it changed since it was last written; durable on return.
    ///
    /// # Errors
    /// The system refuses; the next call tries again.
    pub fn save(&self) -> io::Result<()> {
        if !self.changed.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        self.write()
            .inspect_err(|_| self.changed.store(true, Ordering::Release))
    }

    fn write(&self) -> io::Result<()> {
        let text = serde_json::to_vec_pretty(&*self.table.lock()).map_err(io::Error::other)?;
        // A good main file becomes the backup; a damaged one must not.
        if let Ok(Some(_)) = read(&self.path) {
            write_whole(&backup(&self.path), &fs::read(&self.path)?)?;
        }
        write_whole(&self.path, &text)
    }
}

fn read(path: &Path) -> Result<Option<Table>, TopicsError> {
    let failed = |why: String| TopicsError {
        path: path.to_owned(),
        why,
    };
    let text = read_limited(path, MAX_FILE_LEN).map_err(failed)?;
    let table = text.map(|text| from_json(&text)).transpose();
    table.map_err(|error| failed(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_is_created_once_and_known_after_a_restart() {
        let dir = tempfile::tempdir().expect("temp dir");
        let topics = Topics::open(dir.path(), true, 8).expect("opens");
        let made = topics
            .get_or_create("T", DEFAULT_TOPIC, 4, 5)
            .expect("created");
        assert_eq!(
            (made.write_queue_nums, made.read_queue_nums, made.perm),
            (4, 4, 6)
        );
        assert_eq!(
            topics
                .get_or_create("T", DEFAULT_TOPIC, 2, 6)
                .expect("known"),
            made
        );
        assert_eq!(
            topics
                .get_or_create("U", DEFAULT_TOPIC, 64, 6)
                .map(|t| t.perm),
            Ok(6)
        );
        topics.save().expect("writes");
        let text = fs::read_to_string(dir.path().join("config/topics.json")).expect("there");
        assert!(text.contains("\"writeQueueNums\": 4"), "{text}");
        let again = Topics::open(dir.path(), false, 8).expect("opens");
        assert_eq!(again.get_or_create("T", DEFAULT_TOPIC, 1, 7), Ok(made));
        let unknown = again.get_or_create("V", DEFAULT_TOPIC, 1, 7);
        assert_eq!(unknown, Err(TopicError::NotExist));
        assert_eq!(
            again.get_or_create("V", "T", 1, 7),
            Err(TopicError::NotExist)
        );
    }

    #[test]
    fn e52_a_java_table_is_read_and_a_damaged_one_falls_back() {
        let dir = tempfile::tempdir().expect("temp dir");
        let config = dir.path().join("config");
        fs::create_dir_all(&config).expect("creates");
        let java = r#"{"dataVersion":{"counter":2,"stateVersion":1,"timestamp":3},
            "topicConfigTable":{"T":{"attributes":{},"order":false,"perm":6,"readQueueNums":3,
            "topicFilterType":"SINGLE_TAG","topicName":"T","topicSysFlag":0,"writeQueueNums":3}}}"#;
        fs::write(config.join("topics.json"), java).expect("writes");
        let topics = Topics::open(dir.path(), true, 8).expect("opens");
        let known = topics.get_or_create("T", "", 0, 0).expect("known");
        assert_eq!(known.write_queue_nums, 3);
        topics
            .get_or_create("U", DEFAULT_TOPIC, 1, 0)
            .expect("created");
        topics.save().expect("writes");

        fs::write(config.join("topics.json"), "{").expect("writes");
        let topics = Topics::open(dir.path(), false, 8).expect("falls back");
        assert!(topics.get_or_create("T", "", 0, 0).is_ok());
        fs::write(config.join("topics.json.bak"), "").expect("writes");
        let error = Topics::open(dir.path(), false, 8)
            .expect_err("both damaged")
            .to_string();
        assert!(error.contains("topics.json"), "{error}");
    }
}
