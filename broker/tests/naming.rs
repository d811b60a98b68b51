//! Brokers and name servers: what is told to whom and when, and what slaves copy from a master. The
//! name servers here only write down what they are told.

mod common;

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{Cluster, LIMIT, plan};
use epochlog_broker::group::{BROKER_NAME, CLUSTER_NAME};
use epochlog_broker::topics::DEFAULT_TOPIC;
use epochlog_raft_glue::remoting::{
    Client, ClientConfig, Handler, NameServerRegisterRequest, NameServerUnregisterRequest, Peer,
    RemotingCommand, SendMessageRequest, Server, ServerConfig, request_code, response_code,
};
use parking_lot::Mutex;
use serde_json::Value;

/// One thing a name server was told.
#[derive(Debug, Clone)]
enum Told {
    Register(u64, NameServerRegisterRequest, Value),
    Unregister(NameServerUnregisterRequest),
}

/// A name server that writes down what it is told; its first answer is a refusal, when asked for.
#[derive(Default)]
struct Names {
    told: Mutex<Vec<Told>>,
    refuse_first: Mutex<bool>,
}

impl Handler for Names {
    fn handle(
        &self,
        peer: &Peer,
        request: RemotingCommand,
    ) -> impl Future<Output = Option<RemotingCommand>> + Send + 'static {
        let told = match request.code {
            request_code::REGISTER_BROKER => {
                let header: NameServerRegisterRequest = request.header().expect("a header");
                let crc = crc32fast::hash(&request.body) & 0x7FFF_FFFF;
                assert_eq!(header.body_crc32, i32::try_from(crc).expect("31 bits"));
                let body = serde_json::from_slice(&request.body).expect("JSON");
                Told::Register(peer.id(), header, body)
            }
            _ => Told::Unregister(request.header().expect("a header")),
        };
        let refused = std::mem::take(&mut *self.refuse_first.lock());
        let answer = if refused {
            request.refuse(response_code::SYSTEM_ERROR, "register broker failed")
        } else {
            self.told.lock().push(told);
            request.answer(response_code::SUCCESS)
        };
        async move { Some(answer) }
    }
}

impl Names {
    async fn serve(self: &Arc<Self>, listen: SocketAddr) -> Server {
        let server = Server::start(ServerConfig::new(listen), Arc::clone(self)).await;
        server.expect("listens")
    }

    /// Waits until something told fits, and gives it.
    async fn wait<T>(&self, what: &str, cluster: &Cluster, fits: impl Fn(&Told) -> Option<T>) -> T {
        let give_up = Instant::now() + LIMIT;
        loop {
            if let Some(found) = self.told.lock().iter().find_map(&fits) {
                return found;
            }
            if Instant::now() > give_up {
                panic!("{what}: {:?}\n{}", self.told.lock(), cluster.logs());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn registered(&self, cluster: &Cluster, address: &str, id: i64, epoch: u32) -> Value {
        let what = format!("{address} as {id} in epoch {epoch}");
        self.wait(&what, cluster, |told| match told {
            Told::Register(_, header, body) => {
                let body = &body["topicConfigSerializeWrapper"];
                let same = header.broker_addr == address && header.broker_id == id;
                let fits = same && body["dataVersion"]["stateVersion"] == epoch;
                fits.then(|| body.clone())
            }
            Told::Unregister(_) => None,
        })
        .await
    }
}

fn any() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

async fn ask(client: &Client, address: &str, code: i32) -> RemotingCommand {
    let request = RemotingCommand::request(code);
    let answer = client.request(address, request, LIMIT).await;
    answer.expect("answered")
}

/// The port Java slaves ask at.
fn two_below(address: &str) -> String {
    let address: SocketAddr = address.parse().expect("an address");
    SocketAddr::new(address.ip(), address.port() - 2).to_string()
}

/// Sends one message to a topic that is to be made with three queues.
async fn make_topic(client: &Client, master: &str, topic: &str) {
    let header = SendMessageRequest {
        producer_group: "g".into(),
        topic: topic.into(),
        default_topic: Some(DEFAULT_TOPIC.into()),
        default_topic_queue_nums: Some(3),
        queue_id: -1,
        properties: Some("ATTEMPT\u{1}one\u{2}".into()),
        ..SendMessageRequest::default()
    };
    let give_up = Instant::now() + LIMIT;
    loop {
        let request = RemotingCommand::request_with(request_code::SEND_MESSAGE_V2, &header);
        let request = request.with_body(&b"body"[..]);
        let answer = client.request(master, request, LIMIT).await;
        let answer = answer.expect("answered");
        if answer.code == 0 {
            return;
        }
        assert!(Instant::now() < give_up, "{:?}", answer.remark);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn name_servers_are_told_of_roles_topics_and_the_end() {
    let [first, late] = [(); 2].map(|()| Arc::new(Names::default()));
    // A refusal is not the last word.
    *first.refuse_first.lock() = true;
    let first_server = first.serve(any()).await;
    // The second one is not up yet, and is called by name.
    let not_up = late.serve(any()).await;
    let late_address = not_up.address();
    not_up.shutdown().await;
    let dir = tempfile::tempdir().expect("temp dir");
    let mut plan = plan(dir.path(), 2);
    plan.broker_extra = format!(
        "namesrvAddr={};localhost:{}\n",
        first_server.address(),
        late_address.port()
    );
    let mut cluster = Cluster::start(&plan);
    let master = cluster.in_sync(2, 0).await;
    let of = cluster.group.broker_at(&master.address).expect("ours");
    let other = cluster.group.brokers[1 - of].address.clone();
    let shown = first
        .registered(&cluster, &master.address, 0, master.epoch)
        .await;
    assert_eq!(shown["topicConfigTable"][DEFAULT_TOPIC]["perm"], 7);
    first.registered(&cluster, &other, 2, master.epoch).await;
    let late_server = late.serve(late_address).await;
    late.registered(&cluster, &master.address, 0, master.epoch)
        .await;

    let client = Client::new(ClientConfig::default());
    make_topic(&client, &master.address, "MADE").await;
    for names in [&first, &late] {
        let with_topic = |told: &Told| match told {
            Told::Register(_, header, body) => {
                let topic = &body["topicConfigSerializeWrapper"]["topicConfigTable"]["MADE"];
                let fits = header.broker_addr == master.address && topic["writeQueueNums"] == 3;
                fits.then_some(())
            }
            Told::Unregister(_) => None,
        };
        names.wait("the topic", &cluster, with_topic).await;
    }

    // The one that stays leads next and says so; the one that left, when its name server is asked.
    let stopped = cluster.group.brokers[of].process.stop(LIMIT);
    assert!(stopped.expect("a signal"), "{}", cluster.logs());
    let next = cluster.in_sync(1, master.epoch).await;
    assert_eq!(next.address, other);
    for names in [&first, &late] {
        let left = |told: &Told| match told {
            Told::Unregister(header) if header.broker_addr == master.address => {
                Some(header.clone())
            }
            _ => None,
        };
        let left = names.wait("a goodbye", &cluster, left).await;
        let set = (left.cluster_name.as_str(), left.broker_name.as_str());
        assert_eq!(set, (CLUSTER_NAME, BROKER_NAME));
        assert_eq!(left.broker_id, 0);
        names.registered(&cluster, &other, 0, next.epoch).await;
    }
    // All of one broker's registrations came over one connection: its end is its removal.
    let mut connections: Vec<u64> = Vec::new();
    for told in &*late.told.lock() {
        if let Told::Register(connection, header, _) = told
            && header.broker_addr == other
        {
            connections.push(*connection);
        }
    }
    connections.dedup();
    assert_eq!(connections.len(), 1, "{connections:?}");
    drop((first_server, late_server));
}

#[tokio::test]
async fn a_slave_copies_topics_and_tables_and_leads_with_them() {
    let names = Arc::new(Names::default());
    let server = names.serve(any()).await;
    let dir = tempfile::tempdir().expect("temp dir");
    let mut plan = plan(dir.path(), 2);
    plan.broker_extra = format!("namesrvAddr={}\n", server.address());
    let mut cluster = Cluster::start(&plan);
    let master = cluster.in_sync(2, 0).await;
    let of = cluster.group.broker_at(&master.address).expect("ours");
    let other = cluster.group.brokers[1 - of].address.clone();
    let client = Client::new(ClientConfig::default());
    make_topic(&client, &master.address, "MADE").await;
    // Where Java slaves ask, and with the codes they ask by.
    let topics = two_below(&master.address);
    let mut of_master = Vec::new();
    for code in [43, 45, 60, 61, 201, 402] {
        let answer = ask(&client, &topics, code).await;
        assert_eq!(answer.code, 0, "{code}: {:?}", answer.remark);
        of_master.push((code, answer.body));
    }
    let made = |answer: &RemotingCommand| {
        let body: Value = serde_json::from_slice(&answer.body).expect("JSON");
        body["topicConfigTable"]["MADE"]["readQueueNums"] == 3
    };
    assert!(made(&ask(&client, &topics, 21).await));
    let give_up = Instant::now() + LIMIT;
    while !made(&ask(&client, &other, 21).await) {
        assert!(Instant::now() < give_up, "{}", cluster.logs());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    cluster.group.brokers[of].process.kill().expect("it runs");
    let next = cluster.in_sync(1, master.epoch).await;
    assert_eq!(next.address, other);
    assert!(made(&ask(&client, &two_below(&other), 21).await));
    for (code, body) in of_master {
        let answer = ask(&client, &other, code).await;
        assert_eq!((answer.code, answer.body), (0, body), "{code}");
    }
    drop(server);
}
