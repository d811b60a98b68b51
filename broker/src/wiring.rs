//! A broker's life: opens the store, serves its port, carries the controllers' decisions into the
//! HA service and its proposals back, and stops in order.
//!
//! One task asks [`Replicas`] for the next step and does it; a second one sends heartbeats on time;
//! a third one carries SyncStateSet proposals, one at a time; others tell the name servers and copy a
//! master's topics. What blocks runs on threads of its own.

mod authority;
mod copying;
mod decide;
mod hand_over;
mod heartbeat;
mod naming;
mod proposals;
mod retention;

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;

use epochlog_engine::{EncodeOptions, Store, StoreConfig};
use epochlog_raft_glue::client::{AddressError, ControllerClient, ControllerClientConfig};
use epochlog_raft_glue::remoting::{Server, ServerConfig};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;
use tracing::{error, info, warn};

use crate::conf::{BrokerConf, FlushDiskType};
use crate::endpoint::Endpoint;
use crate::identity::{IdentityError, IdentityFiles};
use crate::node::{Node, NodeParts};
use crate::replicas::Replicas;
use crate::stop::Stop;
use crate::tables::{TableError, Tables};
use crate::topics::{Topics, TopicsError};
pub use authority::Authority;
pub(crate) use decide::decision;
pub(crate) use hand_over::hand_over;
pub(crate) use heartbeat::has_authority;

/// Decisions that may wait to be taken in; more are dropped and polled for.
const NEWS_LEN: usize = 16;

/// Why a broker does not start, or ends.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BrokerError {
    /// The log.
    #[error(transparent)]
    Store(#[from] epochlog_engine::Error),
    /// Replication.
    #[error(transparent)]
    Ha(#[from] epochlog_ha::Error),
    /// The identity files.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The topic table.
    #[error(transparent)]
    Topics(#[from] TopicsError),
    /// What is kept for Java's brokers.
    #[error(transparent)]
    Tables(#[from] TableError),
    /// `controllerAddr`.
    #[error("controllerAddr: {0}")]
    Controllers(#[from] AddressError),
    /// The system.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// What the system says.
        source: io::Error,
    },
    /// A task of this process ended that must not.
    #[error("a part of the broker ended: {0}")]
    Task(String),
}

/// What the tasks of one broker share.
pub(crate) struct Wires {
    pub(crate) node: Arc<Node>,
    pub(crate) controllers: ControllerClient,
    /// `None`: this broker registers with none.
    pub(crate) name_servers: Option<naming::NameServers>,
    pub(crate) identity: IdentityFiles,
    /// Heartbeats begin with the registration.
    pub(crate) registered: Notify,
    /// Ask who is master, now.
    pub(crate) poll: Notify,
    /// Send a heartbeat out of turn.
    pub(crate) beat: Notify,
}

/// Runs a broker until SIGTERM or SIGINT, then stops it: writes are refused, open answers leave, the
/// store is closed clean.
///
/// # Errors
/// It cannot start, cannot go on, or cannot stop clean.
pub async fn run(conf: BrokerConf) -> Result<(), BrokerError> {
    run_beside(conf, std::future::pending()).await
}

/// The same beside another part of the process: when `other` ends, it gives the reason why the process
/// cannot go on, and the broker stops too.
///
/// # Errors
/// As [`run`], or what `other` said.
pub async fn run_beside(
    conf: BrokerConf,
    other: impl Future<Output = String>,
) -> Result<(), BrokerError> {
    let mut stop = Stop::new().map_err(|source| BrokerError::Io {
        what: "signals".into(),
        source,
    })?;
    for warning in &conf.warnings {
        warn!("{warning}");
    }
    let Started {
        wires,
        servers,
        mut tasks,
    } = start(conf).await?;
    let ended = tokio::select! {
        name = stop.wait() => {
            info!(signal = name, "stopping");
            Ok(())
        }
        ended = tasks.join_next() => Err(match ended {
            Some(Ok(error)) => error,
            Some(Err(error)) => BrokerError::Task(error.to_string()),
            None => BrokerError::Task("none is left".into()),
        }),
        why = other => Err(BrokerError::Task(why)),
    };
    if let Err(error) = &ended {
        error!(%error, "stopping");
    }
    tasks.shutdown().await;
    ended.and(close(&wires, servers).await)
}

/// A broker at work. A task that ends says why.
struct Started {
    wires: Arc<Wires>,
    servers: Vec<Server>,
    tasks: JoinSet<BrokerError>,
}

async fn start(conf: BrokerConf) -> Result<Started, BrokerError> {
    let identity = IdentityFiles::new(&conf.identity_path, &conf.cluster_name, &conf.broker_name);
    let stored = identity.load()?;
    let (address, ha_address) = own_addresses(&conf)?;
    let controllers =
        ControllerClient::new(ControllerClientConfig::new(conf.controller_addr.as_str()))?;
    let topics = Topics::open(
        &conf.store_dir,
        conf.auto_create_topic,
        conf.default_topic_queue_nums,
    )?
    .with_system_topics(&conf.cluster_name, &conf.broker_name);
    let tables = Tables::open(&conf.store_dir)?;
    let store = Arc::new(open_store(&conf).await?);
    let promises = store.promises();
    info!(
        end = store.end_offset(),
        clean = store.opened().clean,
        max_epoch = promises.max_epoch,
        incarnation = promises.incarnation,
        "store opened, fenced until the controllers decide"
    );
    let poll_ms = crate::clock::ms(conf.metadata_period);
    let max_epoch = promises.max_epoch.unwrap_or(0);
    let replicas = Replicas::new(stored, &address.to_string(), max_epoch, poll_ms);
    let listen = listen_addresses(&conf);
    let name_servers = conf.name_servers.clone().map(naming::NameServers::new);
    let (news, pushed) = mpsc::channel(NEWS_LEN);
    let node = Node::new(
        NodeParts {
            conf,
            store,
            topics,
            tables,
            address,
            ha_address,
        },
        news,
    );
    let endpoint = Arc::new(Endpoint::new(Arc::clone(&node)));
    let servers = serve(listen, &endpoint).await?;
    info!(%address, "broker listens");
    let wires = Arc::new(Wires {
        node: Arc::clone(&node),
        controllers,
        name_servers,
        identity,
        registered: Notify::new(),
        poll: Notify::new(),
        beat: Notify::new(),
    });
    let mut tasks = JoinSet::new();
    tasks.spawn(decide::run(Arc::clone(&wires), replicas, pushed));
    tasks.spawn(heartbeat::run(Arc::clone(&wires)));
    tasks.spawn(proposals::run(Arc::clone(&wires)));
    tasks.spawn(retention::run(Arc::clone(&node)));
    tasks.spawn(save_topics(Arc::clone(&node)));
    tasks.spawn(naming::run(Arc::clone(&wires)));
    tasks.spawn(copying::run(Arc::clone(&wires)));
    Ok(Started {
        wires,
        servers,
        tasks,
    })
}

/// Where requests are answered, by the key each comes from. Java slaves ask for topics two ports below
/// `listenPort`; without a name server they do not find a master, and nobody needs that port.
fn listen_addresses(conf: &BrokerConf) -> Vec<(&'static str, SocketAddr)> {
    let mut all = vec![("listenPort", conf.listen)];
    if conf.name_servers.is_some() {
        let port = conf.listen.port().saturating_sub(2);
        all.push(("listenPort - 2", SocketAddr::new(conf.listen.ip(), port)));
    }
    all
}

async fn serve(
    listen: Vec<(&'static str, SocketAddr)>,
    endpoint: &Arc<Endpoint>,
) -> Result<Vec<Server>, BrokerError> {
    let mut servers = Vec::new();
    for (key, listen) in listen {
        let server = Server::start(ServerConfig::new(listen), Arc::clone(endpoint)).await;
        let server = server.map_err(|source| BrokerError::Io {
            what: key.into(),
            source,
        })?;
        info!(key, listen = %server.address(), "port opened");
        servers.push(server);
    }
    Ok(servers)
}

/// Stops in the order in which nothing is promised that is not kept: no new writes, then the answers
/// to those under way, then replication, then the marks of a clean stop.
async fn close(wires: &Arc<Wires>, servers: Vec<Server>) -> Result<(), BrokerError> {
    let node = &wires.node;
    node.set_role(None);
    node.authority.end(node.ha());
    let fenced = Arc::clone(node);
    blocking(move || {
        if let Some(ha) = fenced.ha()
            && let Err(error) = ha.fence()
        {
            warn!(%error, "fencing");
        }
    })
    .await?;
    // Nothing is acknowledged any more: another master need not wait for the lease.
    heartbeat::leave(wires).await;
    naming::leave(wires).await;
    for server in servers {
        server.shutdown().await;
    }
    let node = Arc::clone(node);
    blocking(move || {
        if let Some(ha) = node.ha() {
            ha.shutdown();
        }
        if let Err(error) = node.topics.save() {
            warn!(%error, "the topic table could not be saved");
        }
        node.store.close()
    })
    .await??;
    info!("stopped clean");
    Ok(())
}

/// Runs what may block on a thread for it.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, BrokerError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| BrokerError::Task(error.to_string()))
}

async fn open_store(conf: &BrokerConf) -> Result<Store, BrokerError> {
    let mut config = StoreConfig::new(&conf.store_dir);
    config.segment_size = conf.segment_size;
    config.queue_file_size = conf.queue_file_size;
    config.queues_hold_flushed_only = conf.flush_disk_type == FlushDiskType::Sync;
    config.encode = EncodeOptions {
        append_property_crc: conf.append_property_crc,
    };
    Ok(blocking(move || Store::open(config)).await??)
}

/// What others are told: `brokerIP1` and `brokerIP2`, or the address this machine reaches the first
/// controller from.
fn own_addresses(conf: &BrokerConf) -> Result<(SocketAddr, SocketAddr), BrokerError> {
    let ip = match conf.broker_ip {
        Some(ip) => ip,
        None => local_ip(conf)?,
    };
    let ha_ip = conf.ha_ip.unwrap_or(ip);
    Ok((
        SocketAddr::new(ip, conf.listen.port()),
        SocketAddr::new(ha_ip, conf.ha_listen.port()),
    ))
}

fn local_ip(conf: &BrokerConf) -> Result<IpAddr, BrokerError> {
    let first = conf
        .controller_addr
        .split(';')
        .map(str::trim)
        .find(|entry| !entry.is_empty());
    let first = first.unwrap_or_default();
    let failed = |source| BrokerError::Io {
        what: format!(
            "cannot tell the own address from the way to controller {first}; set brokerIP1"
        ),
        source,
    };
    let any: IpAddr = if first.starts_with('[') {
        std::net::Ipv6Addr::UNSPECIFIED.into()
    } else {
        std::net::Ipv4Addr::UNSPECIFIED.into()
    };
    // Connecting a datagram socket sends nothing; it only looks up the route.
    let socket = UdpSocket::bind((any, 0)).map_err(failed)?;
    socket.connect(first).map_err(failed)?;
    Ok(socket.local_addr().map_err(failed)?.ip())
}

/// Writes the topic table soon after it changed; one that cannot be written is tried again.
async fn save_topics(node: Arc<Node>) -> BrokerError {
    loop {
        node.topics.changed().await;
        let saving = Arc::clone(&node);
        match blocking(move || saving.topics.save()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => warn!(%error, "the topic table could not be saved"),
            Err(error) => return error,
        }
        node.tell_change();
    }
}
