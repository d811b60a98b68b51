//! Groups of controllers on loopback, and brokers that are nothing but their requests.

#![expect(clippy::unwrap_used, reason = "a test stops where it fails")]
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use epochlog_raft_glue::remoting::{
    AlterSyncStateSetRequest, ApplyBrokerIdRequest, BrokerHeartbeatRequest, Client, ClientConfig,
    ElectMasterRequest, ElectMasterResponse, GetReplicaInfoRequest, GetReplicaInfoResponse,
    Handler, Peer, RegisterBrokerRequest, RegisterBrokerResponse, RemotingCommand, Server,
    ServerConfig, SyncStateSetBody, from_json, request_code,
};
use epochlog_raft_glue::{Controller, ControllerConfig};
use tempfile::TempDir;
use tokio::sync::mpsc;

pub(crate) const CLUSTER: &str = "DefaultCluster";
pub(crate) const SET: &str = "broker-a";

const PATIENCE: Duration = Duration::from_secs(20);

/// Controllers `n0`, `n1`, … with a folder each.
pub(crate) struct Group {
    pub(crate) peers: String,
    pub(crate) addresses: Vec<String>,
    dirs: Vec<TempDir>,
    pub(crate) running: Vec<Option<Controller>>,
    change: fn(&mut ControllerConfig),
}

impl Group {
    pub(crate) async fn start(count: usize) -> Self {
        Self::start_with(count, |_| {}).await
    }

    pub(crate) async fn start_with(count: usize, change: fn(&mut ControllerConfig)) -> Self {
        // All are bound at once, so that no two are the same.
        let listeners: Vec<TcpListener> = (0..count)
            .map(|_| TcpListener::bind("127.0.0.1:0").unwrap())
            .collect();
        let addresses: Vec<String> = listeners
            .iter()
            .map(|l| l.local_addr().unwrap().to_string())
            .collect();
        drop(listeners);
        let peers: Vec<String> = addresses
            .iter()
            .enumerate()
            .map(|(n, a)| format!("n{n}-{a}"))
            .collect();
        let mut group = Self {
            peers: peers.join(";"),
            addresses,
            dirs: (0..count).map(|_| TempDir::new().unwrap()).collect(),
            running: (0..count).map(|_| None).collect(),
            change,
        };
        for at in 0..count {
            group.start_one(at).await;
        }
        group
    }

    pub(crate) fn config(&self, at: usize) -> ControllerConfig {
        let path = self.dirs[at].path();
        let mut config = ControllerConfig::new(format!("n{at}"), &self.peers, path).unwrap();
        (self.change)(&mut config);
        config
    }

    pub(crate) async fn start_one(&mut self, at: usize) {
        self.running[at] = Some(Controller::start(self.config(at)).await.unwrap());
    }

    /// A further controller that is no member yet; it knows the others and itself.
    pub(crate) async fn start_joining(&mut self) -> usize {
        let at = self.addresses.len();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        drop(listener);
        let peers = format!("{};n{at}-{address}", self.peers);
        self.addresses.push(address);
        self.dirs.push(TempDir::new().unwrap());
        let mut config =
            ControllerConfig::new(format!("n{at}"), &peers, self.dirs[at].path()).unwrap();
        config.join = true;
        self.running
            .push(Some(Controller::start(config).await.unwrap()));
        at
    }

    /// Stops one, politely.
    pub(crate) async fn stop_one(&mut self, at: usize) {
        self.running[at].take().unwrap().shutdown().await;
    }

    pub(crate) fn leader(&self) -> Option<usize> {
        self.running
            .iter()
            .position(|c| c.as_ref().is_some_and(Controller::is_leader))
    }

    /// Waits until one leads.
    pub(crate) async fn wait_leader(&self) -> usize {
        let leader = wait("a leader", || async { self.leader() }).await;
        assert!(leader < self.running.len());
        leader
    }

    pub(crate) fn leader_address(&self) -> String {
        self.addresses[self.leader().expect("a leader")].clone()
    }
}

/// Asks again and again until there is an answer.
pub(crate) async fn wait<T, F: Future<Output = Option<T>>>(what: &str, ask: impl Fn() -> F) -> T {
    let begin = Instant::now();
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(begin.elapsed() < PATIENCE, "waited too long for {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A broker as controllers see it.
pub(crate) struct Broker {
    pub(crate) id: i64,
    pub(crate) client: Client,
    pub(crate) address: String,
    pub(crate) notices: mpsc::UnboundedReceiver<RemotingCommand>,
    pub(crate) heartbeat: BrokerHeartbeatRequest,
    _server: Server,
}

struct Notices(mpsc::UnboundedSender<RemotingCommand>);

impl Handler for Notices {
    fn handle(
        &self,
        _peer: &Peer,
        request: RemotingCommand,
    ) -> impl Future<Output = Option<RemotingCommand>> + Send + 'static {
        let _ = self.0.send(request);
        async { None }
    }
}

impl Broker {
    /// A broker that has an id already; it listens for notices.
    pub(crate) async fn new(id: i64) -> Self {
        let (sender, notices) = mpsc::unbounded_channel();
        let config = ServerConfig::new("127.0.0.1:0".parse().unwrap());
        let server = Server::start(config, Arc::new(Notices(sender)))
            .await
            .unwrap();
        let address = server.address().to_string();
        let heartbeat = BrokerHeartbeatRequest {
            cluster_name: CLUSTER.to_owned(),
            broker_name: SET.to_owned(),
            broker_addr: address.clone(),
            broker_id: Some(id),
            epoch: Some(0),
            max_offset: Some(0),
            confirm_offset: Some(0),
            heartbeat_timeout_mills: Some(5_000),
            election_priority: None,
            incarnation: Some(1),
            unclean: Some(true),
            ..BrokerHeartbeatRequest::default()
        };
        let client = Client::new(ClientConfig::default());
        Self {
            id,
            client,
            address,
            notices,
            heartbeat,
            _server: server,
        }
    }

    pub(crate) async fn call(&self, to: &str, request: RemotingCommand) -> RemotingCommand {
        self.client
            .request(to, request, Duration::from_secs(5))
            .await
            .unwrap()
    }

    pub(crate) async fn apply_id(&self, to: &str) -> i32 {
        let header = ApplyBrokerIdRequest {
            cluster_name: CLUSTER.to_owned(),
            broker_name: SET.to_owned(),
            applied_broker_id: self.id,
            register_check_code: format!("{};{}", self.address, self.id),
        };
        let code = request_code::CONTROLLER_APPLY_BROKER_ID;
        self.call(to, RemotingCommand::request_with(code, &header))
            .await
            .code
    }

    pub(crate) async fn register(&self, to: &str) -> (i32, RegisterBrokerResponse) {
        let header = RegisterBrokerRequest {
            cluster_name: CLUSTER.to_owned(),
            broker_name: SET.to_owned(),
            broker_id: self.id,
            broker_address: self.address.clone(),
            invoke_time: Some(0),
            incarnation: self.heartbeat.incarnation,
            unclean: self.heartbeat.unclean,
        };
        let code = request_code::CONTROLLER_REGISTER_BROKER;
        let answer = self
            .call(to, RemotingCommand::request_with(code, &header))
            .await;
        (answer.code, answer.header().unwrap())
    }

    /// A heartbeat that waits for its answer.
    pub(crate) async fn beat(&self, to: &str) -> RemotingCommand {
        let code = request_code::BROKER_HEARTBEAT;
        self.call(to, RemotingCommand::request_with(code, &self.heartbeat))
            .await
    }

    pub(crate) async fn beat_all(&self, group: &Group) {
        for (at, address) in group.addresses.iter().enumerate() {
            if group.running[at].is_some() {
                assert_eq!(self.beat(address).await.code, 0);
            }
        }
    }

    pub(crate) async fn elect(
        &self,
        to: &str,
        id: Option<i64>,
        designate: bool,
    ) -> RemotingCommand {
        let header = ElectMasterRequest {
            cluster_name: Some(CLUSTER.to_owned()),
            broker_name: SET.to_owned(),
            broker_id: id,
            designate_elect: Some(designate),
            invoke_time: Some(0),
        };
        let code = request_code::CONTROLLER_ELECT_MASTER;
        self.call(to, RemotingCommand::request_with(code, &header))
            .await
    }

    pub(crate) async fn alter(
        &self,
        to: &str,
        epoch: i32,
        set_epoch: i32,
        set: &[i64],
    ) -> RemotingCommand {
        let header = AlterSyncStateSetRequest {
            broker_name: SET.to_owned(),
            master_broker_id: self.id,
            master_epoch: epoch,
            invoke_time: Some(0),
            incarnations: None,
        };
        let body = SyncStateSetBody {
            sync_state_set: set.iter().copied().collect(),
            sync_state_set_epoch: set_epoch,
        };
        let code = request_code::CONTROLLER_ALTER_SYNC_STATE_SET;
        let request = RemotingCommand::request_with(code, &header).with_body(&body);
        self.call(to, request).await
    }

    pub(crate) async fn replica_info(&self, to: &str) -> (GetReplicaInfoResponse, BTreeSet<i64>) {
        let header = GetReplicaInfoRequest {
            broker_name: SET.to_owned(),
        };
        let code = request_code::CONTROLLER_GET_REPLICA_INFO;
        let answer = self
            .call(to, RemotingCommand::request_with(code, &header))
            .await;
        assert_eq!(answer.code, 0, "{answer:?}");
        let body: SyncStateSetBody = from_json(&answer.body).unwrap();
        (answer.header().unwrap(), body.sync_state_set)
    }

    /// Takes an id, registers and sends a first heartbeat.
    pub(crate) async fn join(&self, group: &Group) {
        let leader = group.leader_address();
        assert_eq!(self.apply_id(&leader).await, 0);
        assert_eq!(self.register(&leader).await.0, 0);
        self.beat_all(group).await;
    }
}

/// Brokers 1 to `count`; 1 is master in epoch 1, all are in the set.
pub(crate) async fn brokers(group: &Group, count: i64) -> Vec<Broker> {
    let leader = group.leader_address();
    let mut brokers = Vec::new();
    for id in 1..=count {
        brokers.push(Broker::new(id).await);
        brokers.last().unwrap().join(group).await;
    }
    let answer = brokers[0].elect(&leader, Some(1), false).await;
    assert_eq!(answer.code, 0, "{answer:?}");
    let header: ElectMasterResponse = answer.header().unwrap();
    assert_eq!(
        (header.master_broker_id, header.master_epoch),
        (Some(1), Some(1))
    );
    if count > 1 {
        let all: Vec<i64> = (1..=count).collect();
        assert_eq!(brokers[0].alter(&leader, 1, 1, &all).await.code, 0);
    }
    brokers
}
