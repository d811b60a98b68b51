//! As a slave: copies the master's topics and tables, so that they outlive it (RocketMQ:
//! SlaveSynchronize). A master that does not give one is asked again; replication does not depend
//! on it.

use std::sync::Arc;
use std::time::Duration;

use epochlog_raft_glue::remoting::{
    Client, ClientConfig, RemotingCommand, request_code, response_code,
};
use tokio::time::timeout;
use tracing::{debug, info, warn};

use super::{BrokerError, Wires, blocking};
use crate::replicas::Role;
use crate::tables::Table;

/// RocketMQ: a round is due 10 s after the last one.
const PERIOD: Duration = Duration::from_secs(10);
/// After a round in which something was not given.
const RETRY: Duration = Duration::from_secs(2);
/// How long one answer may take; all topics may be megabytes.
const LIMIT: Duration = Duration::from_secs(5);

/// Runs for ever.
pub(super) async fn run(wires: Arc<Wires>) -> BrokerError {
    let client = Client::new(ClientConfig::default());
    let mut changes = wires.node.changes();
    let mut of = None;
    let mut failures = 0_u32;
    loop {
        changes.mark_unchanged();
        let role = wires.node.role();
        if of != role {
            failures = 0;
            of.clone_from(&role);
        }
        let master = wires.node.master_address();
        let master = master.filter(|_| matches!(role, Some(Role::Slave { .. })));
        let mut wait = PERIOD;
        if let Some(master) = master {
            match round(&wires, &client, &master).await {
                Ok(()) => failures = 0,
                Err(error @ BrokerError::Task(_)) => return error,
                Err(error) => {
                    if failures == 0 {
                        warn!(master, %error, "a table of the master is not copied, trying on");
                    }
                    failures = failures.saturating_add(1);
                    // A master that has no such table will have none in a moment either.
                    wait = if failures < 5 { RETRY } else { PERIOD };
                }
            }
        }
        // Only a change of the role matters; one of the topics is seen in the next round.
        let same_role =
            async { while changes.changed().await.is_ok() && wires.node.role() == role {} };
        // Whether it was the time or a change, there is a new round.
        let _ = timeout(wait, same_role).await;
    }
}

/// Asks for everything once. The first failure is told at the end.
async fn round(wires: &Arc<Wires>, client: &Client, master: &str) -> Result<(), BrokerError> {
    let mut failed = None;
    for code in std::iter::once(request_code::GET_ALL_TOPIC_CONFIG)
        .chain(Table::ALL.map(Table::request_code))
    {
        let request = RemotingCommand::request(code);
        let answer = match client.request(master, request, LIMIT).await {
            Ok(answer) if answer.code == response_code::SUCCESS => answer,
            // A broker without that service, or older than the request.
            Ok(answer) => {
                debug!(master, code, answer = answer.code, remark = ?answer.remark, "not given");
                continue;
            }
            Err(error) => {
                let source = std::io::Error::other(error);
                let what = format!("request {code}");
                return Err(BrokerError::Io { what, source });
            }
        };
        let adopting = Arc::clone(&wires.node);
        let adopted = blocking(move || match Table::asked_by(code) {
            Some(table) => {
                let adopted = adopting.tables.adopt(table, answer.body);
                adopted.map_err(|error| error.to_string())
            }
            None => {
                let adopted = adopting.topics.adopt(&answer.body);
                adopted.map_err(|error| error.to_string())
            }
        });
        match adopted.await? {
            Ok(true) if code == request_code::GET_ALL_TOPIC_CONFIG => {
                info!(master, "copied the master's topics");
            }
            Ok(_) => {}
            Err(why) => failed = failed.or(Some((code, why))),
        }
    }
    failed.map_or(Ok(()), |(code, why)| {
        Err(BrokerError::Io {
            what: format!("request {code}"),
            source: std::io::Error::other(why),
        })
    })
}
