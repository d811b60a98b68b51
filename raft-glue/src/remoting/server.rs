//! The answering side: a listener, and per connection one reader, one writer and a bounded number
//! of requests under way.
//!
//! Requests of one connection reach [`Handler::handle`] in the order they came; answers leave as
//! they are ready. A handler's future is polled once at once, so work it does before its first
//! await happens in that order too. A connection over a limit, idle, unreadable or too slow to take
//! its answers is closed.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use rustix::time::{ClockId, clock_gettime};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};
use tracing::{debug, warn};

use super::codes::response_code;
use super::command::{Coding, RemotingCommand};
use super::frame::{decode, encode_head};

/// Answers are gathered up to this many bytes before they are written.
const WRITE_GATHER_LEN: usize = 64 * 1024;
/// Longer bodies are written from where they lie.
const COPY_BODY_LEN: usize = 16 * 1024;
/// After an accept error the listener waits this long, lest it spin when descriptors run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Answers requests. One instance serves all connections.
pub trait Handler: Send + Sync + 'static {
    /// Answers one request; `None` for no answer. The answer to a one-way request is dropped. Must
    /// not block. The future must be cancel-safe: it is dropped on shutdown after a grace time.
    fn handle(
        &self,
        peer: &Peer,
        request: RemotingCommand,
    ) -> impl Future<Output = Option<RemotingCommand>> + Send + 'static;

    /// A connection is gone; the last call for this peer, after its last request was taken.
    fn disconnected(&self, peer: &Peer) {
        let _ = peer;
    }
}

/// Limits of a [`Server`].
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// Where to listen; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Most connections at a time.
    pub max_connections: usize,
    /// Most requests of one connection under way.
    pub max_pending: usize,
    /// A connection without traffic for this long is closed (RocketMQ: 120 s).
    pub idle_timeout: Duration,
    /// How long one write may be stuck.
    pub write_timeout: Duration,
    /// How long shutdown waits for requests under way.
    pub shutdown_grace: Duration,
}

impl ServerConfig {
    /// The defaults for this address.
    #[must_use]
    pub fn new(listen: SocketAddr) -> Self {
        Self {
            listen,
            max_connections: 4096,
            max_pending: 1024,
            idle_timeout: Duration::from_secs(120),
            write_timeout: Duration::from_secs(30),
            shutdown_grace: Duration::from_secs(3),
        }
    }
}

/// One connection, as a handler sees it. Cheap to clone; may be kept to push commands later.
#[derive(Debug, Clone)]
pub struct Peer {
    id: u64,
    address: SocketAddr,
    local_address: SocketAddr,
    out: mpsc::Sender<Head>,
}

/// A frame ready to be written: all but its body, and the body.
#[derive(Debug)]
struct Head {
    head: BytesMut,
    body: Bytes,
    send_by: Option<SendBy>,
}

/// An answer that must not leave late, and what its replacement needs.
#[derive(Debug, Clone, Copy)]
struct SendBy {
    at_ms: u64,
    opaque: i32,
    coding: Coding,
}

impl Head {
    /// The answer, or what takes its place when it is late.
    fn in_time(self, now_ms: u64) -> Self {
        let Some(send_by) = self.send_by.filter(|send_by| now_ms > send_by.at_ms) else {
            return self;
        };
        let request = RemotingCommand {
            opaque: send_by.opaque,
            coding: send_by.coding,
            ..RemotingCommand::request(0)
        };
        let why = "stored, but the answer would leave too late to be sure of its replicas";
        // A text this short fits a frame.
        head_of(request.refuse(response_code::FLUSH_SLAVE_TIMEOUT, why)).unwrap_or(Self {
            head: BytesMut::new(),
            body: Bytes::new(),
            send_by: None,
        })
    }
}

/// ms of CLOCK_BOOTTIME, which goes on while the machine sleeps.
fn boot_ms() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    seconds * 1000 + u64::try_from(now.tv_nsec / 1_000_000).unwrap_or(0)
}

impl Peer {
    /// A number no other connection of this server has or had.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The other end.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// This end.
    #[must_use]
    pub fn local_address(&self) -> SocketAddr {
        self.local_address
    }

    /// Whether the connection is known to have ended.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.out.is_closed()
    }

    /// Queues a one-way command; false when the connection is gone, its queue is full or the command
    /// does not fit a frame. Whether it arrives is not known.
    #[must_use]
    pub fn push(&self, command: RemotingCommand) -> bool {
        head_of(command.one_way()).is_some_and(|head| self.out.try_send(head).is_ok())
    }
}

fn head_of(command: RemotingCommand) -> Option<Head> {
    let mut head = BytesMut::with_capacity(256);
    let (opaque, coding) = (command.opaque, command.coding);
    let send_by = command.send_by_ms.map(|at_ms| SendBy {
        at_ms,
        opaque,
        coding,
    });
    match encode_head(&command, &mut head) {
        Ok(()) => Some(Head {
            head,
            body: command.body,
            send_by,
        }),
        Err(error) => {
            warn!(code = command.code, %error, "a command does not fit a frame");
            None
        }
    }
}

/// A running listener. Dropping it stops it without waiting.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    stop: watch::Sender<bool>,
    accepting: JoinHandle<()>,
    connections: Arc<Semaphore>,
    max_connections: u32,
}

impl Server {
    /// Binds and starts to answer.
    ///
    /// # Errors
    /// The address cannot be bound.
    pub async fn start<H: Handler>(config: ServerConfig, handler: Arc<H>) -> io::Result<Self> {
        let listener = TcpListener::bind(config.listen).await.map_err(|error| {
            io::Error::new(
                error.kind(),
                format!("cannot listen on {}: {error}", config.listen),
            )
        })?;
        let address = listener.local_addr()?;
        let max_connections = u32::try_from(config.max_connections).unwrap_or(u32::MAX >> 4);
        let connections = Arc::new(Semaphore::new(max_connections as usize));
        let (stop, stopped) = watch::channel(false);
        let accept = Accept {
            listener,
            config,
            handler,
            connections: Arc::clone(&connections),
            stopped,
        };
        let accepting = tokio::spawn(accept.run());
        Ok(Self {
            address,
            stop,
            accepting,
            connections,
            max_connections,
        })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Takes no new connection or request, lets requests under way end within the grace time, and
    /// returns when every connection is closed.
    pub async fn shutdown(self) {
        self.stop.send_replace(true);
        // Both only fail when their tasks panicked, and then there is nothing left to wait for.
        let _ = self.accepting.await;
        let _ = self.connections.acquire_many(self.max_connections).await;
    }
}

struct Accept<H> {
    listener: TcpListener,
    config: ServerConfig,
    handler: Arc<H>,
    connections: Arc<Semaphore>,
    stopped: watch::Receiver<bool>,
}

impl<H: Handler> Accept<H> {
    async fn run(self) {
        let next_id = AtomicU64::new(1);
        let mut stopped = self.stopped.clone();
        loop {
            let accepted = tokio::select! {
                accepted = self.listener.accept() => accepted,
                _ = stopped.wait_for(|stopped| *stopped) => return,
            };
            let (stream, address) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let Ok(permit) = Arc::clone(&self.connections).try_acquire_owned() else {
                warn!(%address, limit = self.config.max_connections, "too many connections");
                continue;
            };
            let id = next_id.fetch_add(1, Ordering::Relaxed);
            let connection = Connection {
                config: self.config.clone(),
                handler: Arc::clone(&self.handler),
                stopped: self.stopped.clone(),
            };
            tokio::spawn(async move {
                if let Err(error) = connection.run(id, stream, address).await {
                    debug!(%address, %error, "connection ended");
                }
                drop(permit);
            });
        }
    }
}

struct Connection<H> {
    config: ServerConfig,
    handler: Arc<H>,
    stopped: watch::Receiver<bool>,
}

impl<H: Handler> Connection<H> {
    async fn run(self, id: u64, stream: TcpStream, address: SocketAddr) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let local_address = stream.local_addr()?;
        let (reading, writing) = stream.into_split();
        let (out, answers) = mpsc::channel(self.config.max_pending.max(1));
        let last_write = Arc::new(LastWrite::new());
        let writer = Writer {
            writing,
            answers,
            limit: self.config.write_timeout,
            last: Arc::clone(&last_write),
        };
        let peer = Peer {
            id,
            address,
            local_address,
            out,
        };
        let mut writer = tokio::spawn(writer.run());
        let pending = Arc::new(Semaphore::new(self.config.max_pending.max(1)));
        let ended = tokio::select! {
            ended = self.read(reading, &peer, &pending, &last_write) => ended,
            _ = &mut writer => Ok(()),
        };
        if *self.stopped.borrow() {
            let all = u32::try_from(self.config.max_pending.max(1)).unwrap_or(u32::MAX >> 4);
            // Past the grace time, what is under way stays unanswered.
            let _ = timeout(self.config.shutdown_grace, pending.acquire_many(all)).await;
        }
        self.handler.disconnected(&peer);
        drop(peer);
        // The writer ends with the last sender; handlers and kept peers may hold one for longer.
        if timeout(Duration::from_millis(100), &mut writer)
            .await
            .is_err()
        {
            writer.abort();
        }
        ended
    }

    async fn read(
        &self,
        mut reading: OwnedReadHalf,
        peer: &Peer,
        pending: &Arc<Semaphore>,
        last_write: &LastWrite,
    ) -> io::Result<()> {
        let mut buffer = BytesMut::with_capacity(16 * 1024);
        let mut stopped = self.stopped.clone();
        loop {
            let bad = |error| io::Error::new(io::ErrorKind::InvalidData, error);
            while let Some(request) = decode(&mut buffer).map_err(bad)? {
                let permit = Arc::clone(pending)
                    .acquire_owned()
                    .await
                    .map_err(io::Error::other)?;
                self.take(peer, request, permit).await;
            }
            buffer.reserve(4 * 1024);
            let read = timeout(self.config.idle_timeout, reading.read_buf(&mut buffer));
            let read = tokio::select! {
                read = read => read,
                _ = stopped.wait_for(|stopped| *stopped) => return Ok(()),
            };
            match read {
                Ok(Ok(0)) => return Ok(()),
                Ok(read) => {
                    read?;
                }
                Err(_) if last_write.within(self.config.idle_timeout) => {}
                Err(_) => return Err(io::Error::from(io::ErrorKind::TimedOut)),
            }
        }
    }

    /// Starts one request; answers at once when its handler does not wait.
    async fn take(&self, peer: &Peer, request: RemotingCommand, permit: OwnedSemaphorePermit) {
        if request.is_response() {
            debug!(peer = %peer.address, code = request.code, "an answer nobody asked for");
            return;
        }
        let one_way = request.is_one_way();
        let out = peer.out.clone();
        let future = self.handler.handle(peer, request);
        let mut future = Box::pin(future);
        let first = future
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()));
        match first {
            Poll::Ready(answer) => send(&out, answer, one_way).await,
            // The task polls again, with a waker of its own.
            Poll::Pending => {
                let grace = self.config.shutdown_grace;
                let mut stopped = self.stopped.clone();
                tokio::spawn(async move {
                    let late = async move {
                        // An error means that the server was dropped.
                        let _ = stopped.wait_for(|stopped| *stopped).await;
                        tokio::time::sleep(grace).await;
                    };
                    let mut late = pin!(late);
                    tokio::select! {
                        answer = future => send(&out, answer, one_way).await,
                        () = &mut late => {}
                    }
                    drop(permit);
                });
            }
        }
    }
}

async fn send(out: &mpsc::Sender<Head>, answer: Option<RemotingCommand>, one_way: bool) {
    if one_way {
        return;
    }
    if let Some(head) = answer.and_then(head_of) {
        // The connection may be gone by now.
        let _ = out.send(head).await;
    }
}

/// When bytes last left, as ms since the connection began.
struct LastWrite {
    start: Instant,
    ms: AtomicU64,
}

impl LastWrite {
    fn new() -> Self {
        Self {
            start: Instant::now(),
            ms: AtomicU64::new(0),
        }
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn mark(&self) {
        self.ms.store(self.now_ms(), Ordering::Relaxed);
    }

    fn within(&self, limit: Duration) -> bool {
        let since = self
            .now_ms()
            .saturating_sub(self.ms.load(Ordering::Relaxed));
        u128::from(since) < limit.as_millis()
    }
}

fn earlier(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

struct Writer {
    writing: OwnedWriteHalf,
    answers: mpsc::Receiver<Head>,
    limit: Duration,
    last: Arc<LastWrite>,
}

impl Writer {
    /// Writes until every sender is gone or a write fails.
    async fn run(mut self) {
        let mut out = BytesMut::new();
        while let Some(first) = self.answers.recv().await {
            out.clear();
            let mut next = Some(first);
            let mut by_ms = None;
            while let Some(head) = next {
                let head = match head.send_by {
                    Some(_) => head.in_time(boot_ms()),
                    None => head,
                };
                by_ms = earlier(by_ms, head.send_by.map(|send_by| send_by.at_ms));
                let Head { head, body, .. } = head;
                out.extend_from_slice(&head);
                if body.len() <= COPY_BODY_LEN {
                    out.extend_from_slice(&body);
                } else {
                    if !self.write(&out, by_ms).await || !self.write(&body, by_ms).await {
                        return;
                    }
                    out.clear();
                }
                next = if out.len() < WRITE_GATHER_LEN {
                    self.answers.try_recv().ok()
                } else {
                    None
                };
            }
            if !self.write(&out, by_ms).await {
                return;
            }
        }
        // The peer may have closed already.
        let _ = self.writing.shutdown().await;
    }

    /// False when the connection is to end: also when an answer could not be handed over in time.
    async fn write(&mut self, bytes: &[u8], by_ms: Option<u64>) -> bool {
        let limit = by_ms.map_or(self.limit, |by_ms| {
            let left = Duration::from_millis(by_ms.saturating_sub(boot_ms()));
            self.limit.min(left)
        });
        let written = timeout(limit, self.writing.write_all(bytes)).await;
        self.last.mark();
        matches!(written, Ok(Ok(())))
    }
}
