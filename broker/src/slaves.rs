//! What a Java slave asks its master for besides the log (RocketMQ: AdminBrokerProcessor,
//! SlaveSynchronize), and what producers ask that has no effect here.

use epochlog_raft_glue::remoting::{
    RemotingCommand, from_json, request_code, response_code as code,
};
use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::node::Node;
use crate::replicas::Role;
use crate::tables::Table;

/// Whether the request asks for a table, which may take a while to be written out.
pub(crate) fn asks_for_a_table(request_code: i32) -> bool {
    request_code == request_code::GET_ALL_TOPIC_CONFIG || Table::asked_by(request_code).is_some()
}

/// The table asked for. May block for the time it takes to write out all topics.
pub(crate) fn table(node: &Node, request: &RemotingCommand) -> RemotingCommand {
    let Some(table) = Table::asked_by(request.code) else {
        let epoch = node.role().map(|role| match role {
            Role::Master { epoch } | Role::Slave { epoch, .. } => epoch,
        });
        return match node.topics.all(epoch) {
            Ok(body) => request.answer(code::SUCCESS).with_body(body),
            Err(error) => request.refuse(code::SYSTEM_ERROR, error.to_string()),
        };
    };
    match node.tables.get(table) {
        Some(body) => request.answer(code::SUCCESS).with_body(body),
        // A slave keeps its own then; an empty answer would make it drop it.
        None => request.refuse(
            code::SYSTEM_ERROR,
            format!("{table:?} of this group's earlier master was never copied to this broker"),
        ),
    }
}

/// Who a client says it is. Only whether it consumes counts here.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Client {
    consumer_data_set: Vec<IgnoredAny>,
}

/// 34: producers need nothing but the answer; consumers are not served and learn it at once.
pub(crate) fn heart_beat(request: &RemotingCommand) -> RemotingCommand {
    match from_json::<Client>(&request.body) {
        Ok(client) if client.consumer_data_set.is_empty() => request.answer(code::SUCCESS),
        Ok(_) => request.refuse(
            code::REQUEST_CODE_NOT_SUPPORTED,
            "this broker serves producers and replicas, no consumers",
        ),
        Err(error) => request.refuse(code::SYSTEM_ERROR, format!("the body: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn producers_are_welcome_and_consumers_are_told() {
        let beat = |body: &'static str| {
            let request = RemotingCommand::request(request_code::HEART_BEAT);
            heart_beat(&request.with_body(body)).code
        };
        let producer =
            r#"{"clientID":"c","consumerDataSet":[],"producerDataSet":[{"groupName":"g"}]}"#;
        assert_eq!(beat(producer), code::SUCCESS);
        let consumer = r#"{"clientID":"c","consumerDataSet":[{"groupName":"g"}]}"#;
        assert_eq!(beat(consumer), code::REQUEST_CODE_NOT_SUPPORTED);
        assert_eq!(beat("["), code::SYSTEM_ERROR);
    }

    #[test]
    fn a_slave_asks_for_seven_tables() {
        let asked = (0..500).filter(|code| asks_for_a_table(*code));
        assert_eq!(asked.collect::<Vec<_>>(), [21, 43, 45, 60, 61, 201, 402]);
    }
}
