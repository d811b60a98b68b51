//! Looks every few seconds whether old segments have had their time (RocketMQ: CleanCommitLogService).

use std::sync::Arc;

use epochlog_engine::{Error, Offset, RetentionTick, Store};
use epochlog_ha::{ConnectionInfo, HaService};
use jiff::{Timestamp, tz::TimeZone};
use tokio::time::{MissedTickBehavior, interval};
use tracing::{debug, warn};

use super::{BrokerError, blocking};
use crate::clock;
use crate::conf::RetentionConf;
use crate::node::Node;

/// Runs for ever.
pub(super) async fn run(node: Arc<Node>) -> BrokerError {
    let mut look = interval(node.conf.retention.clean_resource_interval);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // The first one is due at once; there is time until the store is warm.
    look.tick().await;
    let mut last_error = String::new();
    loop {
        look.tick().await;
        let looking = Arc::clone(&node);
        let due = is_due(&node.conf.retention.delete_when, hour_now());
        let done = blocking(move || {
            let slaves_need = looking.ha().and_then(slaves_need);
            tick(&looking.store, &looking.conf.retention, due, slaves_need)
        });
        let error = match done.await {
            Ok(Ok(())) => String::new(),
            Ok(Err(error)) => error.to_string(),
            Err(error) => return error,
        };
        // What goes on is told once.
        if !error.is_empty() && error != last_error {
            warn!(%error, "old segments could not be removed; tried again");
        }
        last_error = error;
    }
}

fn tick(
    store: &Store,
    conf: &RetentionConf,
    due: bool,
    slaves_need: Option<Offset>,
) -> Result<(), Error> {
    let retained = store.retain(
        &conf.policy,
        &RetentionTick {
            now_ms: clock::now_since_1970_ms(),
            due,
            disk: store.disk_use()?,
            slaves_need,
        },
    )?;
    if let Some(held_back) = retained.held_back {
        debug!(?held_back, "an old segment is still needed");
    }
    Ok(())
}

fn is_due(delete_when: &[u8], hour: u8) -> bool {
    delete_when.contains(&hour)
}

/// The hour of the day where this machine stands.
fn hour_now() -> u8 {
    let now = TimeZone::system().to_datetime(Timestamp::now());
    u8::try_from(now.hour()).unwrap_or(0)
}

fn slaves_need(ha: &HaService) -> Option<Offset> {
    needed(&ha.runtime_info().connections)
}

/// The smallest offset that a connected slave still has to be sent, or has not reported yet.
fn needed(connections: &[ConnectionInfo]) -> Option<Offset> {
    let each = connections
        .iter()
        .flat_map(|it| [it.slave_ack_offset, it.transfer_from_where]);
    each.flatten().min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_go_in_the_hours_that_are_named() {
        assert!(is_due(&[4, 16], 16));
        assert!(!is_due(&[4, 16], 5));
        assert!(hour_now() < 24);
    }

    #[test]
    fn the_slave_that_is_furthest_behind_says_what_is_needed() {
        let connection = |ack, from| ConnectionInfo {
            addr: ([127, 0, 0, 1], 1).into(),
            broker_id: None,
            slave_ack_offset: ack,
            slave_flushed_offset: None,
            lag_ms: None,
            extended: false,
            diff: 0,
            in_sync: false,
            transferred_byte_in_second: 0,
            transfer_from_where: from,
        };
        assert_eq!(needed(&[]), None);
        assert_eq!(needed(&[connection(None, None)]), None);
        let both = [
            connection(Some(500), Some(900)),
            connection(None, Some(700)),
        ];
        assert_eq!(needed(&both), Some(500));
        assert_eq!(needed(&both[1..]), Some(700));
    }
}
