//! The topics every RocketMQ broker has from its start (RocketMQ: TopicConfigManager.init; as of
//! 5.5.0).
//!
//! A Java slave replaces its table by its master's; one without these would leave it without them.

use super::{PERM_INHERIT, PERM_READ_WRITE, TopicConfig, Topics};

impl Topics {
    /// Adds the topics of RocketMQ's own services for this cluster and broker set, where they are
    /// missing. Nothing is written.
    #[must_use]
    pub fn with_system_topics(mut self, cluster: &str, set: &str) -> Self {
        self.own.extend(system_topics(cluster, set));
        let table = &mut self.table.get_mut().topic_config_table;
        for topic in &self.own {
            let name = topic.topic_name.clone();
            table.entry(name).or_insert_with(|| topic.clone());
        }
        self
    }
}

fn system_topics(cluster: &str, set: &str) -> Vec<TopicConfig> {
    const ALL: i32 = PERM_READ_WRITE | PERM_INHERIT;
    let topic = TopicConfig::new;
    vec![
        topic("SELF_TEST_TOPIC", 1, PERM_READ_WRITE),
        topic("BenchmarkTest", 1024, PERM_READ_WRITE),
        topic(cluster, 16, ALL),
        topic(set, 1, ALL),
        topic("OFFSET_MOVED_EVENT", 1, PERM_READ_WRITE),
        topic("SCHEDULE_TOPIC_XXXX", 18, PERM_READ_WRITE),
        topic(&format!("{cluster}_REPLY_TOPIC"), 1, PERM_READ_WRITE),
        topic(&format!("rmq_sys_REVIVE_LOG_{cluster}"), 8, PERM_READ_WRITE),
        topic(
            &format!("rmq_sys_SYNC_BROKER_MEMBER_{set}"),
            1,
            PERM_INHERIT,
        ),
        topic("RMQ_SYS_TRANS_HALF_TOPIC", 1, PERM_READ_WRITE),
        topic("RMQ_SYS_TRANS_OP_HALF_TOPIC", 1, PERM_READ_WRITE),
        topic("RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC", 1, PERM_READ_WRITE),
        topic("RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC", 1, PERM_READ_WRITE),
        topic("rmq_sys_wheel_timer", 1, PERM_READ_WRITE),
    ]
}
