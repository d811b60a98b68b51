//! Choosing an implementation, with a way out where the ring is refused.

use std::io;

use super::{
    Body, RingRefused, StdTransport, TokioUringTransport, Transport, TransportConfig,
    UringTransport, Window,
};

/// Which implementation to use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TransportKind {
    /// `Uring`, or `Std` with one warning when the ring is refused.
    #[default]
    Auto,
    /// The raw ring: zero-copy sends, receives in place.
    Uring,
    /// tokio-uring on a thread of its own: receives in place, plain sends.
    TokioUring,
    /// Nonblocking sockets and epoll; works where io_uring is refused.
    Std,
}

/// Why no transport could be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The ring asked for is refused; [`TransportKind::Auto`] and [`TransportKind::Std`] work.
    #[error("{0}; transport \"std\" works without")]
    Ring(#[from] RingRefused),
    /// The process is out of descriptors or memory.
    #[error("open a transport: {0}")]
    Io(#[from] io::Error),
}

impl TransportKind {
    /// Opens a transport without listeners or connections. Where `Auto` falls back, it says why
    /// in one warning.
    pub fn open<W: Window, B: Body>(
        self,
        config: TransportConfig,
    ) -> Result<Box<dyn Transport<W, B>>, OpenError> {
        match self {
            Self::Auto => match UringTransport::new(config.clone()) {
                Ok(transport) => Ok(Box::new(transport)),
                Err(refused) => {
                    tracing::warn!(%refused, "replicating over ordinary sockets");
                    Ok(Box::new(StdTransport::new(config)?))
                }
            },
            Self::Uring => Ok(Box::new(UringTransport::new(config)?)),
            Self::TokioUring => Ok(Box::new(TokioUringTransport::new(config)?)),
            Self::Std => Ok(Box::new(StdTransport::new(config)?)),
        }
    }
}
