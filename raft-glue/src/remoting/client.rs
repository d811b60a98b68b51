//! The calling side: pipelined requests and one-way sends over one connection per address.
//!
//! Each address has a link: a task with a bounded queue that connects when there is something to
//! send, so a peer that is slow or gone delays nobody but those who wait for it. Requests in flight
//! are bounded per address; an answer finds its request by `opaque`. A connection that fails ends
//! the requests that were sent over it; the next one connects again.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use bytes::BytesMut;
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::timeout;
use tracing::debug;

use super::command::{Coding, RemotingCommand};
use super::frame::{FrameError, decode, encode};

/// Frames are gathered up to this many bytes before they are written.
const WRITE_GATHER_LEN: usize = 64 * 1024;
/// Most links one client keeps; beyond, those without traffic are dropped.
const MAX_LINKS: usize = 1024;

/// Why a call did not come back with an answer. None of these says that the peer did nothing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RemotingError {
    /// No connection.
    #[error("{address}: cannot connect: {source}")]
    Connect {
        /// Who was called.
        address: String,
        /// What the system says.
        source: io::Error,
    },
    /// The connection ended before the answer came.
    #[error("{address}: the connection ended before the answer")]
    Closed {
        /// Who was called.
        address: String,
    },
    /// No answer in time.
    #[error("{address}: no answer to request {code} within {} ms", .limit.as_millis())]
    Timeout {
        /// Who was called.
        address: String,
        /// Request code.
        code: i32,
        /// What was allowed.
        limit: Duration,
    },
    /// The queue to this address is full.
    #[error("{address}: too much waits to be sent already")]
    Busy {
        /// Who was called.
        address: String,
    },
    /// The command does not fit a frame.
    #[error("{address}: {source}")]
    Frame {
        /// Who was called.
        address: String,
        /// What does not fit.
        source: FrameError,
    },
}

/// Limits of a [`Client`].
#[derive(Debug, Clone)]
pub struct ClientConfig {
    /// How long a connection attempt may take.
    pub connect_timeout: Duration,
    /// How long one write may be stuck before the connection is given up.
    pub write_timeout: Duration,
    /// How long a failed address is left alone before the next attempt.
    pub reconnect_pause: Duration,
    /// Requests in flight per address.
    pub max_in_flight: usize,
    /// Frames that wait to be written per address.
    pub queue_len: usize,
    /// How headers are written.
    pub coding: Coding,
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(3),
            write_timeout: Duration::from_secs(3),
            reconnect_pause: Duration::from_millis(50),
            max_in_flight: 256,
            queue_len: 256,
            coding: Coding::Json,
        }
    }
}

/// Calls remoting servers. Cheap to clone; all clones share the connections. Needs a tokio runtime.
/// Dropping the last clone ends its connections.
#[derive(Debug, Clone)]
pub struct Client {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    config: ClientConfig,
    next_opaque: AtomicI32,
    links: Mutex<HashMap<String, Link>>,
}

#[derive(Debug, Clone)]
struct Link {
    queue: mpsc::Sender<Outgoing>,
    in_flight: Arc<Semaphore>,
    pending: Arc<Pending>,
}

#[derive(Debug)]
struct Outgoing {
    frame: BytesMut,
    /// The request this frame is; `None` for one-way sends.
    opaque: Option<i32>,
}

type Answer = Result<RemotingCommand, LinkError>;

/// Requests that wait for an answer, by opaque.
#[derive(Debug, Default)]
struct Pending(Mutex<HashMap<i32, Waiter>>);

#[derive(Debug)]
struct Waiter {
    answer: oneshot::Sender<Answer>,
    /// The connection it was sent over; 0 while it waits to be sent.
    connection: u64,
}

/// Takes a request out of the table when its caller stops waiting.
struct Waiting<'a> {
    pending: &'a Pending,
    opaque: i32,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.pending.0.lock().remove(&self.opaque);
    }
}

#[derive(Debug)]
enum LinkError {
    Connect(io::ErrorKind, String),
    Closed,
}

impl Client {
    /// A client without connections yet.
    #[must_use]
    pub fn new(config: ClientConfig) -> Self {
        let shared = Shared {
            config,
            next_opaque: AtomicI32::new(1),
            links: Mutex::new(HashMap::new()),
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// Sends a request to `address` (`host:port`) and waits for its answer, at most `limit`,
    /// connecting and queueing included. The command's opaque and coding are set here.
    ///
    /// # Errors
    /// No connection, a connection that ended, no answer in time, or a command that does not fit a
    /// frame. An answer with an error code is not an error here.
    pub async fn request(
        &self,
        address: &str,
        mut command: RemotingCommand,
        limit: Duration,
    ) -> Result<RemotingCommand, RemotingError> {
        let code = command.code;
        command.opaque = self.shared.next_opaque.fetch_add(1, Ordering::Relaxed);
        command.coding = self.shared.config.coding;
        let frame = framed(address, &command)?;
        let link = self.link(address);
        let call = call(&link, address, frame, command.opaque);
        timeout(limit, call).await.unwrap_or_else(|_| {
            Err(RemotingError::Timeout {
                address: address.to_owned(),
                code,
                limit,
            })
        })
    }

    /// Queues a one-way command for `address` and returns at once. Whether it arrives is not known;
    /// what waits when a connection fails is dropped.
    ///
    /// # Errors
    /// The queue is full, or the command does not fit a frame.
    pub fn one_way(&self, address: &str, command: RemotingCommand) -> Result<(), RemotingError> {
        let mut command = command.one_way();
        command.opaque = self.shared.next_opaque.fetch_add(1, Ordering::Relaxed);
        command.coding = self.shared.config.coding;
        let frame = framed(address, &command)?;
        let link = self.link(address);
        link.queue
            .try_send(Outgoing {
                frame,
                opaque: None,
            })
            .map_err(|_| RemotingError::Busy {
                address: address.to_owned(),
            })
    }

    /// Forgets the connection to `address`; requests in flight end as closed.
    pub fn forget(&self, address: &str) {
        self.shared.links.lock().remove(address);
    }

    fn link(&self, address: &str) -> Link {
        let mut links = self.shared.links.lock();
        if let Some(link) = links.get(address).filter(|link| !link.queue.is_closed()) {
            return link.clone();
        }
        if links.len() >= MAX_LINKS {
            links.retain(|_, link| !link.pending.0.lock().is_empty());
        }
        let config = &self.shared.config;
        let (queue, waiting) = mpsc::channel(config.queue_len.max(1));
        let link = Link {
            queue,
            in_flight: Arc::new(Semaphore::new(config.max_in_flight.max(1))),
            pending: Arc::new(Pending::default()),
        };
        let run = LinkLoop {
            address: address.to_owned(),
            config: config.clone(),
            queue: waiting,
            pending: Arc::clone(&link.pending),
            connection: 0,
        };
        tokio::spawn(run.run());
        links.insert(address.to_owned(), link.clone());
        link
    }
}

fn framed(address: &str, command: &RemotingCommand) -> Result<BytesMut, RemotingError> {
    let mut frame = BytesMut::with_capacity(256 + command.body.len());
    encode(command, &mut frame).map_err(|source| RemotingError::Frame {
        address: address.to_owned(),
        source,
    })?;
    Ok(frame)
}

async fn call(
    link: &Link,
    address: &str,
    frame: BytesMut,
    opaque: i32,
) -> Result<RemotingCommand, RemotingError> {
    let closed = || RemotingError::Closed {
        address: address.to_owned(),
    };
    let _permit = link.in_flight.acquire().await.map_err(|_| closed())?;
    let (answer, answered) = oneshot::channel();
    link.pending.0.lock().insert(
        opaque,
        Waiter {
            answer,
            connection: 0,
        },
    );
    let _waiting = Waiting {
        pending: &link.pending,
        opaque,
    };
    let outgoing = Outgoing {
        frame,
        opaque: Some(opaque),
    };
    link.queue.send(outgoing).await.map_err(|_| closed())?;
    match answered.await {
        Ok(Ok(command)) => Ok(command),
        Ok(Err(LinkError::Connect(kind, text))) => Err(RemotingError::Connect {
            address: address.to_owned(),
            source: io::Error::new(kind, text),
        }),
        Ok(Err(LinkError::Closed)) | Err(_) => Err(closed()),
    }
}

impl Pending {
    fn finish(&self, opaque: i32, answer: Answer) {
        if let Some(waiter) = self.0.lock().remove(&opaque) {
            // A caller that stopped waiting needs no answer.
            let _ = waiter.answer.send(answer);
        }
    }

    /// Notes over which connection a request goes; false when its caller stopped waiting.
    fn sent(&self, opaque: i32, connection: u64) -> bool {
        let mut table = self.0.lock();
        table
            .get_mut(&opaque)
            .map(|waiter| waiter.connection = connection)
            .is_some()
    }

    /// Ends what went over a connection that is no more.
    fn fail_connection(&self, connection: u64) {
        let mut table = self.0.lock();
        for (_, waiter) in table.extract_if(|_, waiter| waiter.connection == connection) {
            // As above.
            let _ = waiter.answer.send(Err(LinkError::Closed));
        }
    }
}

struct LinkLoop {
    address: String,
    config: ClientConfig,
    queue: mpsc::Receiver<Outgoing>,
    pending: Arc<Pending>,
    /// Number of the present connection, from 1.
    connection: u64,
}

impl LinkLoop {
    /// Runs until the client and all callers are gone.
    async fn run(mut self) {
        while let Some(first) = self.queue.recv().await {
            match self.connect().await {
                Ok(stream) => self.serve(stream, first).await,
                Err(error) => {
                    debug!(address = %self.address, %error, "cannot connect");
                    self.refuse(first, &error);
                    tokio::time::sleep(self.config.reconnect_pause).await;
                }
            }
        }
    }

    async fn connect(&self) -> io::Result<TcpStream> {
        let connecting = TcpStream::connect(self.address.as_str());
        let stream = timeout(self.config.connect_timeout, connecting)
            .await
            .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    /// Ends everything that waits: it is older than the failure.
    fn refuse(&mut self, first: Outgoing, error: &io::Error) {
        let mut next = Some(first);
        while let Some(outgoing) = next {
            if let Some(opaque) = outgoing.opaque {
                let why = LinkError::Connect(error.kind(), error.to_string());
                self.pending.finish(opaque, Err(why));
            }
            next = self.queue.try_recv().ok();
        }
    }

    async fn serve(&mut self, stream: TcpStream, first: Outgoing) {
        self.connection += 1;
        let (reading, writing) = stream.into_split();
        let address = self.address.clone();
        let reader = Reader {
            address,
            reading,
            pending: Arc::clone(&self.pending),
        };
        let mut reader = tokio::spawn(reader.run());
        tokio::select! {
            () = self.write_all(writing, first) => reader.abort(),
            _ = &mut reader => {}
        }
        self.pending.fail_connection(self.connection);
    }

    /// Writes what is queued until the queue or the connection ends.
    async fn write_all(&mut self, mut writing: OwnedWriteHalf, first: Outgoing) {
        let mut next = Some(first);
        let mut out = BytesMut::new();
        while let Some(outgoing) = next {
            out.clear();
            let mut gathered = Some(outgoing);
            while let Some(outgoing) = gathered {
                let wanted = outgoing
                    .opaque
                    .is_none_or(|opaque| self.pending.sent(opaque, self.connection));
                if wanted {
                    out.extend_from_slice(&outgoing.frame);
                }
                gathered = if out.len() < WRITE_GATHER_LEN {
                    self.queue.try_recv().ok()
                } else {
                    None
                };
            }
            let write = timeout(self.config.write_timeout, writing.write_all(&out));
            match write.await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => {
                    debug!(address = %self.address, %error, "write failed");
                    return;
                }
                Err(_) => {
                    debug!(address = %self.address, "write is stuck, closing");
                    return;
                }
            }
            next = self.queue.recv().await;
        }
    }
}

struct Reader {
    address: String,
    reading: OwnedReadHalf,
    pending: Arc<Pending>,
}

impl Reader {
    /// Hands answers to their callers until the connection ends.
    async fn run(mut self) {
        let mut buffer = BytesMut::with_capacity(16 * 1024);
        loop {
            match decode(&mut buffer) {
                Ok(Some(command)) => self.deliver(command),
                Ok(None) => match self.reading.read_buf(&mut buffer).await {
                    Ok(0) => return,
                    Ok(_) => {}
                    Err(error) => {
                        debug!(address = %self.address, %error, "read failed");
                        return;
                    }
                },
                Err(error) => {
                    tracing::warn!(address = %self.address, %error, "unreadable answer, closing");
                    return;
                }
            }
        }
    }

    fn deliver(&self, command: RemotingCommand) {
        if !command.is_response() {
            debug!(address = %self.address, code = command.code, "a request on a client's line");
            return;
        }
        self.pending.finish(command.opaque, Ok(command));
    }
}
