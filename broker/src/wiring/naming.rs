//! Registration with the name servers: each is told on its own, at the start, when the role or a
//! topic changes, and every 30 s (RocketMQ: REGISTER_BROKER, UNREGISTER_BROKER).
//!
//! A name server that is down or slow delays nobody. It binds a registration to the connection it
//! came over, so there is one connection to each, kept open. A fenced broker says nothing: what it
//! said before runs out after 120 s, or another master takes its place.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use epochlog_raft_glue::client::Addresses;
use epochlog_raft_glue::remoting::{
    Client, ClientConfig, NameServerRegisterRequest, NameServerUnregisterRequest, RemotingCommand,
    request_code, response_code,
};
use parking_lot::Mutex;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep_until, timeout};
use tracing::{debug, info, warn};

use super::{BrokerError, Wires, blocking};
use crate::endpoint::signed;
use crate::node::Node;
use crate::replicas::Role;

/// RocketMQ: registerNameServerPeriod.
const PERIOD: Duration = Duration::from_secs(30);
/// Pause after a failure; doubles up to [`PERIOD`].
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// How long one request may take; a body may be megabytes.
const LIMIT: Duration = Duration::from_secs(6);
/// Changes that come faster are told together.
const SPACING: Duration = Duration::from_millis(200);
/// Names are resolved again this often (RocketMQ: 120 s).
const RESOLVE_PERIOD: Duration = Duration::from_secs(120);
/// How long a stopping broker waits for its last word to arrive.
const GOODBYE_LIMIT: Duration = Duration::from_millis(500);

/// The name servers of one broker.
pub(crate) struct NameServers {
    client: Client,
    addresses: Mutex<Addresses>,
    /// The id each address was last told.
    told: Mutex<HashMap<String, i64>>,
}

impl NameServers {
    pub(crate) fn new(addresses: Addresses) -> Self {
        let config = ClientConfig {
            queue_len: 16,
            max_in_flight: 16,
            ..ClientConfig::default()
        };
        Self {
            client: Client::new(config),
            addresses: Mutex::new(addresses),
            told: Mutex::new(HashMap::new()),
        }
    }

    async fn resolve(&self) -> Vec<String> {
        let hosts = self.addresses.lock().hosts();
        for host in hosts {
            let found = tokio::net::lookup_host(&host).await;
            let found = found.map(|found| found.map(|address| address.to_string()).collect());
            self.addresses.lock().resolved(&host, found);
        }
        self.addresses.lock().all()
    }

    async fn ask(&self, address: &str, request: RemotingCommand) -> Result<(), String> {
        let answer = self.client.request(address, request, LIMIT).await;
        let answer = answer.map_err(|error| error.to_string())?;
        if answer.code == response_code::SUCCESS {
            return Ok(());
        }
        let remark = answer.remark.unwrap_or_default();
        Err(format!("refused with code {}: {remark}", answer.code))
    }
}

/// As whom a broker registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Standing {
    /// 0 as master.
    id: i64,
    epoch: u32,
}

/// `None` while fenced.
fn standing(role: Option<&Role>, id: Option<u64>) -> Option<Standing> {
    match role? {
        Role::Master { epoch } => Some(Standing {
            id: 0,
            epoch: *epoch,
        }),
        Role::Slave { epoch, .. } => id.map(|id| Standing {
            id: signed(id),
            epoch: *epoch,
        }),
    }
}

/// Keeps one task for each address. Runs for ever; without name servers it does nothing.
pub(super) async fn run(wires: Arc<Wires>) -> BrokerError {
    let Some(servers) = &wires.name_servers else {
        return std::future::pending().await;
    };
    let mut tasks: JoinSet<BrokerError> = JoinSet::new();
    let mut running: HashMap<String, AbortHandle> = HashMap::new();
    loop {
        let addresses = servers.resolve().await;
        running.retain(|address, task| {
            let stays = addresses.contains(address);
            if !stays {
                task.abort();
                servers.client.forget(address);
                servers.told.lock().remove(address);
            }
            stays
        });
        for address in addresses {
            running.entry(address.clone()).or_insert_with(|| {
                let wires = Arc::clone(&wires);
                tasks.spawn(async move { keep_told(&wires, &address).await })
            });
        }
        let again = Instant::now() + RESOLVE_PERIOD;
        loop {
            tokio::select! {
                () = sleep_until(again) => break,
                Some(ended) = tasks.join_next() => match ended {
                    Ok(error) => return error,
                    // Its address is no longer one of a name server's.
                    Err(error) if error.is_cancelled() => {}
                    Err(error) => return BrokerError::Task(error.to_string()),
                },
            }
        }
    }
}

/// Tells one name server again and again. Ends only when this process cannot go on.
async fn keep_told(wires: &Wires, address: &str) -> BrokerError {
    let mut changes = wires.node.changes();
    let mut pause = FIRST_PAUSE;
    let mut fails = false;
    loop {
        changes.mark_unchanged();
        let began = Instant::now();
        let done = match standing(wires.node.role().as_ref(), wires.node.id()) {
            Some(standing) => Some(tell(wires, address, standing).await),
            None => None,
        };
        let wait = match done {
            None => PERIOD,
            Some(Ok(())) => {
                if std::mem::take(&mut fails) {
                    info!(address, "the name server answers again");
                }
                pause = FIRST_PAUSE;
                PERIOD
            }
            Some(Err(why)) => {
                if std::mem::replace(&mut fails, true) {
                    debug!(address, why, "still not registered with a name server");
                } else {
                    warn!(address, why, "not registered with a name server, trying on");
                }
                let wait = pause;
                pause = (2 * pause).min(PERIOD);
                wait
            }
        };
        sleep_until(began + SPACING).await;
        if let Ok(Err(_)) = timeout(wait, changes.changed()).await {
            return BrokerError::Task("the role is not told any more".into());
        }
    }
}

async fn tell(wires: &Wires, address: &str, standing: Standing) -> Result<(), String> {
    let Some(servers) = &wires.name_servers else {
        return Ok(());
    };
    let node = Arc::clone(&wires.node);
    let bodies = blocking(move || node.topics.registration_bodies(standing.epoch)).await;
    let bodies = bodies.map_err(|error| error.to_string())?;
    for body in bodies.map_err(|error| error.to_string())? {
        servers
            .ask(address, registration(&wires.node, standing, body))
            .await?;
    }
    let before = servers.told.lock().insert(address.to_owned(), standing.id);
    if before != Some(standing.id) {
        info!(address, id = standing.id, "registered with a name server");
    }
    Ok(())
}

fn registration(node: &Node, standing: Standing, body: Bytes) -> RemotingCommand {
    // Java's numbers have a sign, which it leaves off here.
    let crc = crc32fast::hash(&body) & 0x7FFF_FFFF;
    let header = NameServerRegisterRequest {
        cluster_name: node.conf.cluster_name.clone(),
        broker_name: node.conf.broker_name.clone(),
        broker_addr: node.address.to_string(),
        broker_id: standing.id,
        ha_server_addr: node.ha_address.to_string(),
        enable_acting_master: Some(false),
        compressed: false,
        body_crc32: i32::try_from(crc).unwrap_or(0),
    };
    RemotingCommand::request_with(request_code::REGISTER_BROKER, &header).with_body(body)
}

/// Leaves every name server that knows this broker; waits a little for their answers.
pub(super) async fn leave(wires: &Arc<Wires>) {
    let Some(servers) = &wires.name_servers else {
        return;
    };
    let told: Vec<_> = servers.told.lock().drain().collect();
    let mut leaving = JoinSet::new();
    for (address, id) in told {
        let header = NameServerUnregisterRequest {
            cluster_name: wires.node.conf.cluster_name.clone(),
            broker_name: wires.node.conf.broker_name.clone(),
            broker_addr: wires.node.address.to_string(),
            broker_id: id,
        };
        let request = RemotingCommand::request_with(request_code::UNREGISTER_BROKER, &header);
        let wires = Arc::clone(wires);
        leaving.spawn(async move {
            if let Some(servers) = &wires.name_servers {
                // Who does not answer finds out when the connection closes.
                let _ = timeout(GOODBYE_LIMIT, servers.ask(&address, request)).await;
            }
        });
    }
    while leaving.join_next().await.is_some() {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_master_is_0_a_slave_its_id_and_a_fenced_broker_nobody() {
        let master = Role::Master { epoch: 3 };
        let slave = Role::Slave {
            epoch: 4,
            master_id: 1,
        };
        let of = |role, id| standing(role, id).map(|it| (it.id, it.epoch));
        assert_eq!(of(Some(&master), Some(2)), Some((0, 3)));
        assert_eq!(of(Some(&slave), Some(2)), Some((2, 4)));
        assert_eq!(of(Some(&slave), None), None);
        assert_eq!(of(None, Some(2)), None);
    }
}
