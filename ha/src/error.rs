//! What the service can answer with instead of doing what was asked.

use std::io;
use std::net::SocketAddr;

use epochlog_engine::Epoch;

use crate::transport::OpenError;

/// What went wrong in replication.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The store refused.
    #[error(transparent)]
    Store(#[from] epochlog_engine::Error),
    /// No transport could be opened.
    #[error(transparent)]
    Transport(#[from] OpenError),
    /// The port for slaves cannot be listened on.
    #[error("listen on {addr} (haListenPort): {source}")]
    Listen {
        /// The address asked for.
        addr: SocketAddr,
        /// The system's answer.
        source: io::Error,
    },
    /// A thread could not be started.
    #[error("start thread {name}: {source}")]
    Thread {
        /// Its name.
        name: &'static str,
        /// The system's answer.
        source: io::Error,
    },
    /// A setting cannot be used.
    #[error("setting {name}: {why}")]
    Setting {
        /// The field of `HaConfig`.
        name: &'static str,
        /// Why not.
        why: String,
    },
    /// A newer epoch was told before; nothing has changed.
    #[error("epoch {asked} is older than epoch {told}, which this node was told before")]
    StaleEpoch {
        /// The epoch asked for.
        asked: Epoch,
        /// The newest one told.
        told: Epoch,
    },
    /// A broker cannot follow itself.
    #[error("broker {broker_id} cannot be its own slave")]
    OwnMaster {
        /// The id of both.
        broker_id: u64,
    },
    /// A replication thread has ended; the node is fenced until the process is started again.
    #[error("the replication thread {name} has ended; restart this broker")]
    ThreadGone {
        /// Its name.
        name: &'static str,
    },
    /// The service was shut down.
    #[error("the replication service is shut down")]
    ShutDown,
}
