//! The table as name servers and slaves are shown it, and as a slave takes it over (RocketMQ:
//! RegisterBrokerBody, TopicConfigAndMappingSerializeWrapper, SlaveSynchronize).
//!
//! Invariant: what is shown carries the epoch of the role in force, so that a name server and a slave
//! know it from what an older master showed.

use std::collections::BTreeMap;

use bytes::Bytes;
use epochlog_raft_glue::remoting::from_json;
use serde::Serialize;

use super::{DataVersion, MAX_TOPICS, Table, TopicConfig, Topics};

/// Topics in one registration. With the longest names and RocketMQ's attributes a body stays far
/// below the limit of a frame.
const TOPICS_PER_BODY: usize = 4000;

/// Static topics: RocketMQ's own mapping of queues, which this broker does not have.
#[derive(Debug, Default, Serialize)]
struct NoMapping {}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Shown<'a> {
    data_version: DataVersion,
    mapping_data_version: DataVersion,
    topic_config_table: BTreeMap<&'a str, &'a TopicConfig>,
    topic_queue_mapping_detail_map: NoMapping,
    topic_queue_mapping_info_map: NoMapping,
}

impl<'a> Shown<'a> {
    fn new(version: DataVersion, topics: BTreeMap<&'a str, &'a TopicConfig>) -> Self {
        Self {
            data_version: version,
            mapping_data_version: DataVersion::default(),
            topic_config_table: topics,
            topic_queue_mapping_detail_map: NoMapping {},
            topic_queue_mapping_info_map: NoMapping {},
        }
    }
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Registered<'a> {
    filter_server_list: [&'a str; 0],
    topic_config_serialize_wrapper: Shown<'a>,
}

/// A master's table cannot be taken over.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the master's topics cannot be taken over: {0}")]
pub struct AdoptError(String);

impl Topics {
    /// The bodies that tell a name server of all topics, in the order in which they are to be sent:
    /// what several bring adds up there. `epoch` is that of the role in force.
    ///
    /// # Errors
    /// The table does not become JSON, which no table read from JSON does.
    pub fn registration_bodies(&self, epoch: u32) -> Result<Vec<Bytes>, serde_json::Error> {
        let table = self.table.lock();
        let topics: Vec<_> = table.topic_config_table.iter().collect();
        let mut version = table.data_version.shown(epoch);
        let mut bodies = Vec::new();
        for part in topics.chunks(TOPICS_PER_BODY) {
            let part = part.iter().map(|(name, topic)| (name.as_str(), *topic));
            let body = Registered {
                filter_server_list: [],
                topic_config_serialize_wrapper: Shown::new(version.clone(), part.collect()),
            };
            bodies.push(Bytes::from(serde_json::to_vec(&body)?));
            // With the version it has, a name server takes only topics that are new to it.
            version.counter += 1;
        }
        Ok(bodies)
    }

    /// The body a slave gets: all topics. `epoch` is that of the role in force, if there is one.
    ///
    /// # Errors
    /// As [`registration_bodies`](Self::registration_bodies).
    pub fn all(&self, epoch: Option<u32>) -> Result<Bytes, serde_json::Error> {
        let table = self.table.lock();
        let version = match epoch {
            Some(epoch) => table.data_version.shown(epoch),
            None => table.data_version.clone(),
        };
        let topics = table.topic_config_table.iter();
        let topics = topics.map(|(name, topic)| (name.as_str(), topic)).collect();
        Ok(serde_json::to_vec(&Shown::new(version, topics))?.into())
    }

    /// Replaces the table by the one in `body`, a master's [`all`](Self::all) or Java's; what every
    /// broker has stays. False when it is the one taken over last. Not durable before
    /// [`save`](Self::save).
    ///
    /// # Errors
    /// The body is no table, or an empty or too large one; nothing changes then.
    pub fn adopt(&self, body: &[u8]) -> Result<bool, AdoptError> {
        let taken: Table = from_json(body).map_err(|error| AdoptError(error.to_string()))?;
        let Table {
            data_version,
            topic_config_table: mut topics,
        } = taken;
        if topics.is_empty() {
            return Err(AdoptError("there are none, and a master has some".into()));
        }
        if topics.len() > MAX_TOPICS {
            let many = topics.len();
            return Err(AdoptError(format!(
                "{many}; {MAX_TOPICS} are the most here"
            )));
        }
        for topic in &self.own {
            let name = topic.topic_name.clone();
            topics.entry(name).or_insert_with(|| topic.clone());
        }
        let mut table = self.table.lock();
        let mut copied = self.copied.lock();
        if copied.as_ref() == Some(&data_version) {
            return Ok(false);
        }
        *copied = Some(data_version.clone());
        if table.topic_config_table == topics && table.data_version == data_version {
            return Ok(false);
        }
        *table = Table {
            data_version,
            topic_config_table: topics,
        };
        drop(copied);
        drop(table);
        self.touch();
        Ok(true)
    }
}

impl DataVersion {
    fn shown(&self, epoch: u32) -> Self {
        Self {
            state_version: i64::from(epoch),
            ..self.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use epochlog_raft_glue::remoting::MAX_FRAME_LEN;
    use serde_json::Value;

    use super::super::DEFAULT_TOPIC;
    use super::*;

    fn topics(dir: &tempfile::TempDir) -> Topics {
        let topics = Topics::open(dir.path(), true, 8).expect("opens");
        topics.with_system_topics("cluster", "broker-a")
    }

    fn table(body: &[u8]) -> Value {
        let body: Value = serde_json::from_slice(body).expect("JSON");
        body["topicConfigSerializeWrapper"].clone()
    }

    /// A name server refuses a first registration with exactly one topic (spec H.1).
    #[test]
    fn a_new_broker_shows_more_than_one_topic_and_the_epoch() {
        let dir = tempfile::tempdir().expect("temp dir");
        let topics = topics(&dir);
        topics
            .get_or_create("T", DEFAULT_TOPIC, 4, 5)
            .expect("created");
        let bodies = topics.registration_bodies(7).expect("JSON");
        assert_eq!(bodies.len(), 1);
        let shown = table(&bodies[0]);
        let version = &shown["dataVersion"];
        assert_eq!(
            (&version["stateVersion"], &version["counter"]),
            (&7.into(), &1.into())
        );
        let names = shown["topicConfigTable"].as_object().expect("a map");
        assert!(names.len() > 10 && names.contains_key("RMQ_SYS_TRANS_HALF_TOPIC"));
        assert_eq!(names["T"]["writeQueueNums"], 4);
        assert_eq!(names["TBW102"]["perm"], 7);
        assert!(shown["mappingDataVersion"].is_object());
        assert!(shown["topicQueueMappingDetailMap"].is_object());
        let all: Value = serde_json::from_slice(&topics.all(Some(7)).expect("JSON")).expect("JSON");
        assert_eq!(all["topicConfigTable"], shown["topicConfigTable"]);
        assert_eq!(all["dataVersion"], shown["dataVersion"]);
    }

    #[test]
    fn many_topics_are_shown_in_parts_that_fit_a_frame_and_differ_in_version() {
        let dir = tempfile::tempdir().expect("temp dir");
        let topics = topics(&dir);
        for n in 0..2 * TOPICS_PER_BODY {
            let name = format!("{n:0>127}");
            topics
                .get_or_create(&name, DEFAULT_TOPIC, 4, 5)
                .expect("created");
        }
        let bodies = topics.registration_bodies(1).expect("JSON");
        let parts: Vec<Value> = bodies.iter().map(|body| table(body)).collect();
        assert_eq!(parts.len(), 3);
        let count = |part: &Value| {
            part["topicConfigTable"]
                .as_object()
                .map_or(0, |it| it.len())
        };
        let known = topics.table.lock().topic_config_table.len();
        assert_eq!(parts.iter().map(count).sum::<usize>(), known);
        assert!(bodies.iter().all(|body| body.len() < MAX_FRAME_LEN / 4));
        let counter = |part: &Value| part["dataVersion"]["counter"].as_i64();
        assert!(counter(&parts[0]) < counter(&parts[1]) && counter(&parts[1]) < counter(&parts[2]));
    }

    #[test]
    fn a_slave_takes_its_masters_table_over_once() {
        let dirs = [0, 1].map(|_| tempfile::tempdir().expect("temp dir"));
        let (master, slave) = (topics(&dirs[0]), topics(&dirs[1]));
        master
            .get_or_create("T", DEFAULT_TOPIC, 3, 5)
            .expect("created");
        slave
            .get_or_create("OLD", DEFAULT_TOPIC, 3, 5)
            .expect("created");
        let body = master.all(Some(2)).expect("JSON");
        assert_eq!(slave.adopt(&body), Ok(true));
        assert_eq!(slave.adopt(&body), Ok(false));
        assert_eq!(
            slave.get_or_create("T", "", 0, 0),
            master.get_or_create("T", "", 0, 0)
        );
        assert!(
            slave.get_or_create("OLD", "", 0, 0).is_err(),
            "it was not the master's"
        );
        slave.save().expect("writes");
        let again = Topics::open(dirs[1].path(), true, 8).expect("opens");
        assert!(again.get_or_create("T", "", 0, 0).is_ok());
        // As master of a later epoch it shows what it took over, and what it makes itself counts on.
        slave
            .get_or_create("NEW", DEFAULT_TOPIC, 3, 9)
            .expect("created");
        let shown: Value =
            serde_json::from_slice(&slave.all(Some(3)).expect("JSON")).expect("JSON");
        assert_eq!(shown["dataVersion"]["stateVersion"], 3);
        assert!(shown["topicConfigTable"]["NEW"].is_object());
        assert_eq!(slave.adopt(&body), Ok(true), "the master never saw NEW");
    }

    #[test]
    fn what_is_no_table_of_a_master_changes_nothing() {
        let dir = tempfile::tempdir().expect("temp dir");
        let slave = topics(&dir);
        let before = slave.all(None).expect("JSON");
        for bad in [
            "",
            "{",
            "[]",
            "{}",
            r#"{"topicConfigTable":{}}"#,
            r#"{"topicConfigTable":{"T":3}}"#,
        ] {
            assert!(slave.adopt(bad.as_bytes()).is_err(), "{bad}");
        }
        let many: BTreeMap<String, TopicConfig> = (0..=MAX_TOPICS)
            .map(|n| (n.to_string(), TopicConfig::default()))
            .collect();
        let many = serde_json::json!({ "topicConfigTable": many }).to_string();
        assert!(slave.adopt(many.as_bytes()).is_err());
        assert_eq!(slave.all(None).expect("JSON"), before);
    }
}
