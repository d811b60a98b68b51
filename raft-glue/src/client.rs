//! What a broker calls: the controllers behind one setting, found and followed to their leader.
//!
//! Invariants: the list of addresses never becomes empty because a name did not resolve; an
//! address a controller advertises is used only if it can be meant for us; heartbeats go to every
//! known address and to the leader, and none waits for another.

mod addresses;
mod admin;

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::task::JoinSet;
use tracing::{debug, info, warn};

use crate::remoting::{
    AlterSyncStateSetRequest, ApplyBrokerIdRequest, BrokerHeartbeatRequest,
    BrokerHeartbeatResponse, BrokerReplicasInfo, Client, ClientConfig, ElectMasterBody,
    ElectMasterRequest, ElectMasterResponse, GetMetadataResponse, GetNextBrokerIdRequest,
    GetNextBrokerIdResponse, GetReplicaInfoRequest, GetReplicaInfoResponse, HeaderError,
    RegisterBrokerRequest, RegisterBrokerResponse, RemotingCommand, RemotingError,
    SyncStateSetBody, TypedHeader, from_json, request_code, response_code,
};

use addresses::meant_for_us;
pub use addresses::{AddressError, Addresses};

/// Calls that find no leader wait this long before they look again.
const LEADER_PAUSE: Duration = Duration::from_millis(100);

/// How to reach the controllers.
#[derive(Debug, Clone)]
pub struct ControllerClientConfig {
    /// `host:port;host:port` (RocketMQ: controllerAddr). A host name stands for all its addresses.
    pub addresses: String,
    /// How long one call to one controller may take (RocketMQ: 3000 ms).
    pub request_timeout: Duration,
    /// How often a call is tried when its controller does not lead or does not answer.
    pub attempts: u32,
}

impl ControllerClientConfig {
    /// Java's time-out, four attempts.
    #[must_use]
    pub fn new(addresses: impl Into<String>) -> Self {
        Self {
            addresses: addresses.into(),
            request_timeout: Duration::from_secs(3),
            attempts: 4,
        }
    }
}

/// Why a controller call failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ControllerError {
    /// No controller names a leader.
    #[error("no controller of {addresses} names a leader: {why}")]
    NoLeader {
        /// Who was asked.
        addresses: String,
        /// What the last one said.
        why: String,
    },
    /// The leader answered with an error code.
    #[error("controller {address} answers request {request} with code {code}: {remark}")]
    Refused {
        /// The leader.
        address: String,
        /// Request code.
        request: i32,
        /// Response code.
        code: i32,
        /// Its text.
        remark: String,
    },
    /// An answer lacks something.
    #[error("controller {address} answers request {request} unreadably: {why}")]
    Malformed {
        /// The leader.
        address: String,
        /// Request code.
        request: i32,
        /// What is wrong.
        why: String,
    },
    /// The call did not get through.
    #[error(transparent)]
    Remoting(#[from] RemotingError),
}

impl ControllerError {
    /// The response code, when there was an answer.
    #[must_use]
    pub fn code(&self) -> Option<i32> {
        match self {
            Self::Refused { code, .. } => Some(*code),
            _ => None,
        }
    }
}

/// Answer to a registration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registered {
    /// The master, if one exists and is alive.
    pub master: RegisterBrokerResponse,
    /// The SyncStateSet.
    pub set: SyncStateSetBody,
}

/// Answer to an election.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Elected {
    /// The master: a new one, or the old one that stays.
    pub master: ElectMasterResponse,
    /// The SyncStateSet, and the living members.
    pub body: ElectMasterBody,
}

/// Answer to the question who is master.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplicaInfo {
    /// The master, if there is one.
    pub master: GetReplicaInfoResponse,
    /// The SyncStateSet.
    pub set: SyncStateSetBody,
}

/// A broker's line to its controllers. Cheap to clone. Needs a tokio runtime.
#[derive(Debug, Clone)]
pub struct ControllerClient {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    config: ControllerClientConfig,
    client: Client,
    known: Mutex<Known>,
}

#[derive(Debug)]
struct Known {
    addresses: Addresses,
    leader: Option<String>,
}

impl ControllerClient {
    /// A client that knows its addresses and no leader yet. Names are resolved by
    /// [`refresh_addresses`](Self::refresh_addresses), and on connecting until then.
    ///
    /// # Errors
    /// The text holds no address, or one without a port.
    pub fn new(config: ControllerClientConfig) -> Result<Self, AddressError> {
        let addresses = Addresses::parse(&config.addresses)?;
        // Heartbeats are worth nothing when they are old: few may wait.
        let client = ClientConfig {
            connect_timeout: config.request_timeout,
            queue_len: 16,
            max_in_flight: 64,
            ..ClientConfig::default()
        };
        let known = Known {
            addresses,
            leader: None,
        };
        let client = Client::new(client);
        Ok(Self {
            shared: Arc::new(Shared {
                config,
                client,
                known: Mutex::new(known),
            }),
        })
    }

    /// All addresses heartbeats go to: the configured ones as last resolved, and the leader.
    #[must_use]
    pub fn addresses(&self) -> Vec<String> {
        let known = self.shared.known.lock();
        let mut all = known.addresses.all();
        if let Some(leader) = known.leader.as_ref().filter(|leader| !all.contains(leader)) {
            all.push(leader.clone());
        }
        all
    }

    /// The leader as last seen.
    #[must_use]
    pub fn leader(&self) -> Option<String> {
        self.shared.known.lock().leader.clone()
    }

    /// Resolves host names again. A name that does not resolve keeps its last addresses.
    pub async fn refresh_addresses(&self) {
        let hosts = self.shared.known.lock().addresses.hosts();
        for host in hosts {
            let resolved = tokio::net::lookup_host(&host).await;
            let resolved = resolved.map(|found| found.map(|a| a.to_string()).collect());
            self.shared.known.lock().addresses.resolved(&host, resolved);
        }
    }

    /// Sends a heartbeat to every controller, one-way; returns at once. A controller that does not
    /// take it is logged and delays nobody.
    pub fn heartbeat(&self, heartbeat: &BrokerHeartbeatRequest) {
        let command = RemotingCommand::request_with(request_code::BROKER_HEARTBEAT, heartbeat);
        for address in self.addresses() {
            if let Err(error) = self.shared.client.one_way(&address, command.clone()) {
                debug!(%error, "heartbeat not sent");
            }
        }
    }

    /// Sends a heartbeat to one controller and waits for its answer, at most `limit`. Only the
    /// leader of this project's controllers grants a lease; a Java one sends none of the fields.
    ///
    /// # Errors
    /// See [`ControllerError`].
    pub async fn heartbeat_to(
        &self,
        address: &str,
        heartbeat: &BrokerHeartbeatRequest,
        limit: Duration,
    ) -> Result<BrokerHeartbeatResponse, ControllerError> {
        let request = RemotingCommand::request_with(request_code::BROKER_HEARTBEAT, heartbeat);
        let answer = self.shared.client.request(address, request, limit).await?;
        let answer = Answer {
            request: request_code::BROKER_HEARTBEAT,
            answer,
        };
        answer.success(address)?.header(address)
    }

    /// Asks every controller who leads, all at once, and remembers the first usable answer.
    ///
    /// # Errors
    /// None names a leader.
    pub async fn find_leader(&self) -> Result<String, ControllerError> {
        let addresses = self.addresses();
        let mut asked = JoinSet::new();
        for address in &addresses {
            let (this, address) = (self.clone(), address.clone());
            asked.spawn(async move { this.leader_by(&address).await });
        }
        let mut why = String::from("no answer");
        while let Some(answer) = asked.join_next().await {
            match answer {
                Ok(Ok(leader)) => {
                    let mut known = self.shared.known.lock();
                    if known.leader.as_deref() != Some(&leader) {
                        info!(%leader, "controller leader found");
                    }
                    known.leader = Some(leader.clone());
                    return Ok(leader);
                }
                Ok(Err(text)) => why = text,
                Err(error) => why = error.to_string(),
            }
        }
        Err(ControllerError::NoLeader {
            addresses: addresses.join(";"),
            why,
        })
    }

    /// Asks one controller who leads.
    async fn leader_by(&self, address: &str) -> Result<String, String> {
        let request = RemotingCommand::request(request_code::CONTROLLER_GET_METADATA_INFO);
        let limit = self.shared.config.request_timeout;
        let answer = self.shared.client.request(address, request, limit).await;
        let answer = answer.map_err(|error| error.to_string())?;
        let metadata: GetMetadataResponse = answer
            .header()
            .map_err(|error| format!("{address}: {error}"))?;
        let leads = metadata.is_leader == Some(true);
        match metadata.controller_leader_address {
            Some(leader) if meant_for_us(&leader, address) => Ok(leader),
            Some(leader) => {
                warn!(
                    controller = address,
                    advertised = %leader,
                    "a controller advertises a leader address that cannot be reached from here; \
                     correct the address in its peers setting"
                );
                if leads {
                    Ok(address.to_owned())
                } else {
                    Err(format!(
                        "{address} advertises {leader}, which means itself only there"
                    ))
                }
            }
            None if leads => Ok(address.to_owned()),
            None => Err(format!("{address} knows no leader")),
        }
    }

    /// Calls the leader; looks for it again when it is another or does not answer.
    async fn call(&self, request: RemotingCommand) -> Result<(String, Answer), ControllerError> {
        let mut last = None;
        for attempt in 0..self.shared.config.attempts.max(1) {
            if attempt > 0 {
                tokio::time::sleep(LEADER_PAUSE).await;
            }
            let leader = match self.leader() {
                Some(leader) => leader,
                None => match self.find_leader().await {
                    Ok(leader) => leader,
                    Err(error) => {
                        last = Some(error);
                        continue;
                    }
                },
            };
            let limit = self.shared.config.request_timeout;
            match self
                .shared
                .client
                .request(&leader, request.clone(), limit)
                .await
            {
                Ok(answer) if answer.code == response_code::CONTROLLER_NOT_LEADER => {
                    self.forget(&leader);
                    last = Some(refused(&leader, request.code, &answer));
                }
                Ok(answer) => {
                    return Ok((
                        leader,
                        Answer {
                            request: request.code,
                            answer,
                        },
                    ));
                }
                Err(error) => {
                    self.forget(&leader);
                    last = Some(error.into());
                }
            }
        }
        Err(last.unwrap_or_else(|| ControllerError::NoLeader {
            addresses: self.addresses().join(";"),
            why: "no attempt was made".into(),
        }))
    }

    fn forget(&self, leader: &str) {
        let mut known = self.shared.known.lock();
        if known.leader.as_deref() == Some(leader) {
            known.leader = None;
        }
    }

    /// 1012: the id a new broker may apply for.
    ///
    /// # Errors
    /// See [`ControllerError`].
    pub async fn next_broker_id(
        &self,
        cluster_name: &str,
        broker_name: &str,
    ) -> Result<i64, ControllerError> {
        let header = GetNextBrokerIdRequest {
            cluster_name: cluster_name.to_owned(),
            broker_name: broker_name.to_owned(),
        };
        let request = request_code::CONTROLLER_GET_NEXT_BROKER_ID;
        let (leader, answer) = self
            .call(RemotingCommand::request_with(request, &header))
            .await?;
        let header: GetNextBrokerIdResponse = answer.success(&leader)?.header(&leader)?;
        Ok(header.next_broker_id)
    }

    /// 1013: takes an id. Repeating it with the same check code is the same request.
    ///
    /// # Errors
    /// See [`ControllerError`]; code 2014: the id belongs to another broker.
    pub async fn apply_broker_id(
        &self,
        header: &ApplyBrokerIdRequest,
    ) -> Result<(), ControllerError> {
        let request = request_code::CONTROLLER_APPLY_BROKER_ID;
        let (leader, answer) = self
            .call(RemotingCommand::request_with(request, header))
            .await?;
        answer.success(&leader).map(|_| ())
    }

    /// 1003: registers this broker's address under its id.
    ///
    /// # Errors
    /// See [`ControllerError`]; code 2010: set or id unknown.
    pub async fn register_broker(
        &self,
        header: &RegisterBrokerRequest,
    ) -> Result<Registered, ControllerError> {
        let request = request_code::CONTROLLER_REGISTER_BROKER;
        let (leader, answer) = self
            .call(RemotingCommand::request_with(request, header))
            .await?;
        let answer = answer.success(&leader)?;
        Ok(Registered {
            master: answer.header(&leader)?,
            set: answer.body(&leader)?,
        })
    }

    /// 1002: asks for an election. Both "a new master" and "the old one stays" are successes.
    ///
    /// # Errors
    /// See [`ControllerError`]; codes 2004 and 2012: nobody is electable.
    pub async fn elect_master(
        &self,
        header: &ElectMasterRequest,
    ) -> Result<Elected, ControllerError> {
        let request = request_code::CONTROLLER_ELECT_MASTER;
        let (leader, answer) = self
            .call(RemotingCommand::request_with(request, header))
            .await?;
        let answer = if answer.answer.code == response_code::CONTROLLER_MASTER_STILL_EXIST {
            answer
        } else {
            answer.success(&leader)?
        };
        Ok(Elected {
            master: answer.header(&leader)?,
            body: answer.body(&leader)?,
        })
    }

    /// 1004: who is master of a broker set.
    ///
    /// # Errors
    /// See [`ControllerError`]; code 2008: unknown set.
    pub async fn replica_info(&self, broker_name: &str) -> Result<ReplicaInfo, ControllerError> {
        let header = GetReplicaInfoRequest {
            broker_name: broker_name.to_owned(),
        };
        let request = request_code::CONTROLLER_GET_REPLICA_INFO;
        let (leader, answer) = self
            .call(RemotingCommand::request_with(request, &header))
            .await?;
        let answer = answer.success(&leader)?;
        Ok(ReplicaInfo {
            master: answer.header(&leader)?,
            set: answer.body(&leader)?,
        })
    }

    /// 1001: proposes another SyncStateSet; `set` carries the **current** epoch. Gives the new set.
    ///
    /// # Errors
    /// See [`ControllerError`]; codes 2000 to 2003, 2006, 2013.
    pub async fn alter_sync_state_set(
        &self,
        header: &AlterSyncStateSetRequest,
        set: &SyncStateSetBody,
    ) -> Result<SyncStateSetBody, ControllerError> {
        let request = request_code::CONTROLLER_ALTER_SYNC_STATE_SET;
        let request = RemotingCommand::request_with(request, header).with_body(set);
        let (leader, answer) = self.call(request).await?;
        answer.success(&leader)?.body(&leader)
    }

    /// 1006: the replicas of these broker sets.
    ///
    /// # Errors
    /// See [`ControllerError`].
    pub async fn sync_state_data(
        &self,
        broker_names: &[String],
    ) -> Result<BrokerReplicasInfo, ControllerError> {
        // A list of texts always serializes.
        let names = serde_json::to_vec(broker_names).unwrap_or_default();
        let request = RemotingCommand::request(request_code::CONTROLLER_GET_SYNC_STATE_DATA);
        let (leader, answer) = self.call(request.with_body(names)).await?;
        answer.success(&leader)?.body(&leader)
    }
}

/// An answer and the request code it belongs to.
struct Answer {
    request: i32,
    answer: RemotingCommand,
}

impl Answer {
    fn success(self, address: &str) -> Result<Self, ControllerError> {
        if self.answer.code == response_code::SUCCESS {
            Ok(self)
        } else {
            Err(refused(address, self.request, &self.answer))
        }
    }

    fn header<H: TypedHeader>(&self, address: &str) -> Result<H, ControllerError> {
        self.answer
            .header()
            .map_err(|error: HeaderError| self.malformed(address, &error))
    }

    fn body<T: serde::de::DeserializeOwned>(&self, address: &str) -> Result<T, ControllerError> {
        from_json(&self.answer.body).map_err(|error| self.malformed(address, &error))
    }

    fn malformed(&self, address: &str, why: &dyn std::fmt::Display) -> ControllerError {
        ControllerError::Malformed {
            address: address.to_owned(),
            request: self.request,
            why: why.to_string(),
        }
    }
}

fn refused(address: &str, request: i32, answer: &RemotingCommand) -> ControllerError {
    ControllerError::Refused {
        address: address.to_owned(),
        request,
        code: answer.code,
        remark: answer.remark.clone().unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests;
