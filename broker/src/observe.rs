//! Asks the processes of a replica group how they are: who is master, who is in sync, how far each
//! log reaches. Tests and the demo wait by it.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use epochlog_raft_glue::client::{
    AddressError, ControllerClient, ControllerClientConfig, ControllerError,
};
use epochlog_raft_glue::remoting::{
    BrokerEpochCache, Client, ClientConfig, HaRuntimeInfoBody, RemotingCommand, from_json,
    request_code,
};

const ASK_TIMEOUT: Duration = Duration::from_millis(500);
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Something did not come about in time.
#[derive(Debug, thiserror::Error)]
#[error("{what} did not happen within {} ms; last seen: {seen}", .limit.as_millis())]
pub struct Late {
    what: String,
    limit: Duration,
    seen: String,
}

/// What a broker says about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrokerStatus {
    /// `MASTER`, `SLAVE` or `FENCED`.
    pub role: String,
    /// Controller id, once it has one.
    pub id: Option<u64>,
    /// Epoch of the role.
    pub epoch: Option<u32>,
    /// It is master and may acknowledge just now.
    pub authority: bool,
    /// End of its log.
    pub end: u64,
    /// Its confirm offset.
    pub confirm: u64,
    /// As master: how far each connected slave has acknowledged.
    pub slave_acks: Vec<u64>,
}

/// Who is master, by the controllers and by the master itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MasterView {
    /// Its controller id.
    pub id: u64,
    /// Its `host:port`.
    pub address: String,
    /// Master epoch.
    pub epoch: u32,
    /// Members of the SyncStateSet.
    pub in_sync: BTreeSet<u64>,
}

/// Asks the brokers of one broker set and its controllers. Needs a tokio runtime.
#[derive(Debug, Clone)]
pub struct Observer {
    broker_name: String,
    client: Client,
    controller: ControllerClient,
}

impl Observer {
    /// Looks at broker set `broker_name` through the controllers at `controller_addr`.
    ///
    /// # Errors
    /// `controller_addr` is no list of addresses.
    pub fn new(broker_name: &str, controller_addr: &str) -> Result<Self, AddressError> {
        let mut config = ControllerClientConfig::new(controller_addr);
        config.request_timeout = ASK_TIMEOUT;
        config.attempts = 1;
        Ok(Self {
            broker_name: broker_name.to_owned(),
            client: Client::new(ClientConfig::default()),
            controller: ControllerClient::new(config)?,
        })
    }

    /// The client of the controllers.
    #[must_use]
    pub fn controller(&self) -> &ControllerClient {
        &self.controller
    }

    /// Asks the broker at `address` how it is (907); `None` when it does not answer.
    pub async fn status(&self, address: &str) -> Option<BrokerStatus> {
        let request = RemotingCommand::request(request_code::GET_BROKER_HA_STATUS);
        let answer = self
            .client
            .request(address, request, ASK_TIMEOUT)
            .await
            .ok()?;
        let body: HaRuntimeInfoBody = from_json(&answer.body).ok()?;
        let number = |name| answer.field(name).and_then(|text: &str| text.parse().ok());
        let acks = body
            .ha_connection_info
            .iter()
            .map(|slave| unsigned(slave.slave_ack_offset));
        Some(BrokerStatus {
            role: answer.field("role")?.to_owned(),
            id: number("brokerId"),
            epoch: answer
                .field("masterEpoch")
                .and_then(|text| text.parse().ok()),
            authority: answer.field("authority") == Some("true"),
            end: unsigned(body.master_commit_log_max_offset),
            confirm: number("confirmOffset").unwrap_or(0),
            slave_acks: acks.collect(),
        })
    }

    /// Asks the broker at `address` for its epochs (1007), as (epoch, start).
    pub async fn epochs(&self, address: &str) -> Option<Vec<(i32, i64)>> {
        let request = RemotingCommand::request(request_code::GET_BROKER_EPOCH_CACHE);
        let answer = self
            .client
            .request(address, request, ASK_TIMEOUT)
            .await
            .ok()?;
        let body: BrokerEpochCache = from_json(&answer.body).ok()?;
        Some(
            body.epoch_list
                .iter()
                .map(|span| (span.epoch, span.start_offset))
                .collect(),
        )
    }

    /// The master, if the controllers name one, and it says so itself and may acknowledge.
    ///
    /// # Errors
    /// The controllers do not answer.
    pub async fn master(&self) -> Result<Option<MasterView>, ControllerError> {
        let info = self.controller.replica_info(&self.broker_name).await?;
        let master = info.master;
        let (Some(id), Some(address), Some(epoch)) = (
            master.master_broker_id,
            master.master_address,
            master.master_epoch,
        ) else {
            return Ok(None);
        };
        let epoch = u32::try_from(epoch).unwrap_or(0);
        let status = self.status(&address).await;
        if !status.is_some_and(|it| it.authority && it.epoch == Some(epoch)) {
            return Ok(None);
        }
        let in_sync = info
            .set
            .sync_state_set
            .iter()
            .map(|id| unsigned(*id))
            .collect();
        Ok(Some(MasterView {
            id: unsigned(id),
            address,
            epoch,
            in_sync,
        }))
    }

    /// Waits for a master of an epoch above `epoch` whose SyncStateSet has at least `members`.
    ///
    /// # Errors
    /// Not within `limit`.
    pub async fn wait_in_sync(
        &self,
        members: usize,
        above_epoch: u32,
        limit: Duration,
    ) -> Result<MasterView, Late> {
        let end = Instant::now() + limit;
        loop {
            let seen = self.master().await;
            if let Ok(Some(master)) = &seen
                && master.epoch > above_epoch
                && master.in_sync.len() >= members
            {
                return Ok(master.clone());
            }
            if Instant::now() >= end {
                let what = format!("a master above epoch {above_epoch} with {members} in sync");
                return Err(Late {
                    what,
                    limit,
                    seen: format!("{seen:?}"),
                });
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    /// Waits until the logs of the brokers at these addresses end at the same offset, and gives it.
    /// Nothing may be sent meanwhile.
    ///
    /// # Errors
    /// Not within `limit`.
    pub async fn wait_level(&self, addresses: &[&str], limit: Duration) -> Result<u64, Late> {
        let end = Instant::now() + limit;
        loop {
            let mut ends = Vec::new();
            for address in addresses {
                ends.push(self.status(address).await.map(|status| status.end));
            }
            if let Some(Some(first)) = ends.first()
                && ends.iter().all(|end| *end == Some(*first))
            {
                return Ok(*first);
            }
            if Instant::now() >= end {
                let what = format!("{} brokers reaching the same end", addresses.len());
                return Err(Late {
                    what,
                    limit,
                    seen: format!("ends {ends:?}"),
                });
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }
}

fn unsigned(value: i64) -> u64 {
    u64::try_from(value).unwrap_or(0)
}
