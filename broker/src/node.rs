//! What the parts of one broker process share: settings, store, replication once there is an id, and
//! the role in force.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use epochlog_engine::{Epoch, Store};
use epochlog_ha::HaService;
use parking_lot::{Mutex, RwLock};
use tokio::sync::{mpsc, watch};

use crate::conf::BrokerConf;
use crate::replicas::{Decision, Role};
use crate::send::OpenAnswers;
use crate::tables::Tables;
use crate::topics::Topics;
use crate::wiring::Authority;

/// One broker. Shared as `Arc<Node>`.
pub struct Node {
    /// Settings.
    pub conf: BrokerConf,
    /// The commit log.
    pub store: Arc<Store>,
    /// The topics.
    pub topics: Topics,
    /// What is kept for Java's brokers.
    pub tables: Tables,
    /// `brokerIP1:listenPort`: where clients and controllers reach this broker.
    pub address: SocketAddr,
    /// `brokerIP2:haListenPort`: where slaves reach it.
    pub ha_address: SocketAddr,
    /// The authority to acknowledge.
    pub(crate) authority: Authority,
    /// Writes whose answers are not made yet.
    pub(crate) answers: OpenAnswers,
    ha: OnceLock<Replication>,
    role: RwLock<Option<Role>>,
    /// The listener of the newest decision's master.
    master_address: Mutex<Option<String>>,
    /// Counts what name servers and a slave's copying have to know: roles and topics.
    changes: watch::Sender<u64>,
    news: mpsc::Sender<Decision>,
}

/// The HA service and the id it speaks under.
struct Replication {
    id: u64,
    service: HaService,
}

/// What a broker is when it starts.
pub struct NodeParts {
    /// Settings.
    pub conf: BrokerConf,
    /// The opened store.
    pub store: Arc<Store>,
    /// The topics.
    pub topics: Topics,
    /// See [`Node::tables`].
    pub tables: Tables,
    /// See [`Node::address`].
    pub address: SocketAddr,
    /// See [`Node::ha_address`].
    pub ha_address: SocketAddr,
}

impl Node {
    /// A fenced broker. Decisions that controllers push go to `news`.
    #[must_use]
    pub fn new(parts: NodeParts, news: mpsc::Sender<Decision>) -> Arc<Self> {
        let NodeParts {
            conf,
            store,
            topics,
            tables,
            address,
            ha_address,
        } = parts;
        let authority = Authority::new(&conf);
        Arc::new(Self {
            authority,
            answers: OpenAnswers::default(),
            conf,
            store,
            topics,
            tables,
            address,
            ha_address,
            ha: OnceLock::new(),
            role: RwLock::new(None),
            master_address: Mutex::new(None),
            changes: watch::Sender::new(0),
            news,
        })
    }

    /// Replication; `None` until the broker has an id.
    pub fn ha(&self) -> Option<&HaService> {
        self.ha.get().map(|replication| &replication.service)
    }

    /// The controller id, once replication runs under it.
    pub fn id(&self) -> Option<u64> {
        self.ha.get().map(|replication| replication.id)
    }

    /// Hands replication over, once.
    pub(crate) fn set_ha(&self, id: u64, service: HaService) {
        // Without an answer of the controllers there is no authority.
        service.set_authority(Some(0));
        // A second one would mean a second id, which is never granted to a running broker.
        let _ = self.ha.set(Replication { id, service });
    }

    /// The role in force; `None` while fenced.
    pub fn role(&self) -> Option<Role> {
        self.role.read().clone()
    }

    pub(crate) fn set_role(&self, role: Option<Role>) {
        let before = std::mem::replace(&mut *self.role.write(), role.clone());
        if before != role {
            self.tell_change();
        }
    }

    /// Where the master of the newest decision listens.
    pub(crate) fn master_address(&self) -> Option<String> {
        self.master_address.lock().clone()
    }

    pub(crate) fn set_master_address(&self, address: Option<&str>) {
        *self.master_address.lock() = address.map(str::to_owned);
    }

    /// Changes of the role and of topics, from now on.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    pub(crate) fn tell_change(&self) {
        self.changes
            .send_modify(|count| *count = count.wrapping_add(1));
    }

    /// Passes a pushed decision on. One that does not fit is dropped: the next poll brings it.
    pub(crate) fn push_news(&self, decision: Decision) {
        if self.news.try_send(decision).is_err() {
            tracing::debug!("a pushed decision is dropped, the next poll brings it");
        }
    }

    /// The newest epoch of the log; 0 without one.
    pub fn log_epoch(&self) -> Epoch {
        self.store.epochs().last().map_or(0, |entry| entry.epoch)
    }
}
