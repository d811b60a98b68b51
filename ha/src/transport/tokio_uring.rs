//! tokio-uring on a thread of its own, behind the same promises.
//!
//! The owner's side sends commands and gets reports; the worker's side (`worker.rs`) runs one
//! task per operation. Receives and sends are plain reads and writes; tokio-uring has no
//! zero-copy for TCP.
//!
//! Invariants:
//! - No read, write or accept is ever dropped: the kernel would go on with it. To end one, its
//!   socket is shut down and its completion awaited.
//! - A connection ends in two steps: the worker reports that nothing is in flight any more, the
//!   owner's side answers, and only then the worker takes the connection apart. So a receive that
//!   was asked for in between finds it and comes back in [`Event::Closed`].

#![expect(
    unsafe_code,
    reason = "tokio-uring asks for buffers whose address does not change"
)]

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::{Wake, Waker};
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam::channel::{self, Receiver, RecvTimeoutError, Sender};
use socket2::Socket;
use tokio::sync::mpsc::UnboundedSender;

mod buffers;
mod worker;

use super::uring::RingRefused;
use super::{
    Body, Close, CloseReason, ConnId, Event, FrameBytes, RecvInto, Transport, TransportConfig,
    TransportStats, Window, socket,
};

/// Longest time `drop` waits for the worker.
const DROP_PATIENCE: Duration = Duration::from_millis(900);
/// Longest time asked of one sleep.
const MAX_SLEEP: Duration = Duration::from_secs(24 * 3600);

/// From the owner to the worker.
enum Command<W, B> {
    Listen(Socket, SocketAddr),
    Connect(u64, Socket, SocketAddr),
    Receive(u64, RecvInto<W>, usize),
    Send(u64, FrameBytes, Option<B>),
    Close(u64, Close),
    /// The owner's side has seen [`Report::Ended`].
    Bury(u64),
    Stop,
}

/// From the worker to the owner.
enum Report<W> {
    Event(Event<W>),
    /// Nothing is in flight for the connection and its socket is closed.
    Ended(u64),
    Wake,
}

/// Counted by the worker, read by the owner.
#[derive(Default)]
struct Counters {
    next_id: AtomicU64,
    connections: AtomicUsize,
    accepted: AtomicU64,
    refused: AtomicU64,
    sent_bytes: AtomicU64,
    received_bytes: AtomicU64,
    wakes: AtomicU64,
}

impl Counters {
    fn new_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Counts one more connection unless `limit` are open.
    fn admit(&self, limit: usize) -> bool {
        let add = |open: usize| (open < limit).then_some(open + 1);
        self.connections
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, add)
            .is_ok()
    }

    fn release(&self) {
        self.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Ends a wait by a report of its own; at most one is under way.
struct ReportWake<W> {
    pending: AtomicBool,
    reports: Sender<Report<W>>,
    counters: Arc<Counters>,
}

impl<W: Window> Wake for ReportWake<W> {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.pending.swap(true, Ordering::AcqRel) {
            self.counters.wakes.fetch_add(1, Ordering::Relaxed);
            // Without a receiver there is no wait to end.
            let _ = self.reports.send(Report::Wake);
        }
    }
}

/// What the owner's side knows of a connection.
#[derive(Default)]
struct Known {
    receiving: bool,
    sending: bool,
}

/// [`Transport`] over tokio-uring.
pub struct TokioUringTransport<W: Window, B: Body> {
    config: TransportConfig,
    commands: UnboundedSender<Command<W, B>>,
    reports: Receiver<Report<W>>,
    wake: Arc<ReportWake<W>>,
    counters: Arc<Counters>,
    known: HashMap<u64, Known>,
    worker: Option<JoinHandle<()>>,
    ended: Receiver<()>,
    waits: u64,
}

impl<W: Window, B: Body> TokioUringTransport<W, B> {
    /// Starts the thread and its ring, or says why this process may not have one.
    pub fn new(config: TransportConfig) -> Result<Self, RingRefused> {
        let (commands, commands_in) = tokio::sync::mpsc::unbounded_channel();
        let (reports_out, reports) = channel::unbounded();
        let (started_out, started) = channel::bounded(1);
        let (ended_out, ended) = channel::bounded::<()>(0);
        let counters = Arc::new(Counters::default());
        let wake = ReportWake {
            pending: AtomicBool::new(false),
            reports: reports_out.clone(),
            counters: Arc::clone(&counters),
        };
        let shared = (config.clone(), Arc::clone(&counters));
        let worker = std::thread::Builder::new()
            .name("epochlog-tokio-uring".to_owned())
            .spawn(move || {
                worker::run(shared.0, shared.1, commands_in, reports_out, &started_out);
                drop(ended_out);
            })
            .map_err(RingRefused::Other)?;
        match started.recv() {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return Err(RingRefused::from_setup(error)),
            Err(_) => return Err(RingRefused::Other(gone())),
        }
        Ok(Self {
            config,
            commands,
            reports,
            wake: Arc::new(wake),
            counters,
            known: HashMap::new(),
            worker: Some(worker),
            ended,
            waits: 0,
        })
    }

    /// A dead worker shows at the next wait.
    fn command(&self, command: Command<W, B>) {
        let _ = self.commands.send(command);
    }

    /// The event of a report, if it is one; false: the loop was woken.
    fn take(&mut self, report: Report<W>, events: &mut Vec<Event<W>>) -> bool {
        let event = match report {
            Report::Wake => {
                self.wake.pending.store(false, Ordering::Release);
                return false;
            }
            Report::Ended(id) => {
                self.command(Command::Bury(id));
                return true;
            }
            Report::Event(event) => event,
        };
        let id = event.conn().as_u64();
        match &event {
            Event::Accepted { .. } => {
                self.known.insert(id, Known::default());
            }
            Event::Connected { .. } => {}
            Event::Received { .. } => {
                self.known
                    .entry(id)
                    .and_modify(|known| known.receiving = false);
            }
            Event::Sent { .. } => {
                self.known
                    .entry(id)
                    .and_modify(|known| known.sending = false);
            }
            Event::Closed { .. } => {
                self.known.remove(&id);
            }
        }
        events.push(event);
        true
    }
}

fn gone() -> io::Error {
    io::Error::other("the tokio-uring thread has ended; see the log for its panic")
}

impl<W: Window, B: Body> Transport<W, B> for TokioUringTransport<W, B> {
    fn listen(&mut self, addr: SocketAddr) -> io::Result<SocketAddr> {
        let (listener, bound) = socket::listener(addr, &self.config)?;
        self.command(Command::Listen(listener, bound));
        Ok(bound)
    }

    fn connect(&mut self, addr: SocketAddr) -> io::Result<ConnId> {
        let limit = self.config.max_connections;
        if !self.counters.admit(limit) {
            return Err(socket::too_many_connections(addr, limit));
        }
        let prepared = socket::outgoing(addr, &self.config)
            .and_then(|socket| socket.set_nonblocking(true).map(|()| socket));
        match prepared {
            Ok(socket) => {
                let id = self.counters.new_id();
                self.known.insert(id, Known::default());
                self.command(Command::Connect(id, socket, addr));
                Ok(ConnId::new(id))
            }
            Err(error) => {
                self.counters.release();
                Err(error)
            }
        }
    }

    fn recv(&mut self, conn: ConnId, mut into: RecvInto<W>, at_least: usize) {
        let room = into.room().len();
        assert!(
            0 < at_least && at_least <= room,
            "receive of {at_least} bytes into {room}"
        );
        let Some(known) = self.known.get_mut(&conn.as_u64()) else {
            return;
        };
        assert!(!known.receiving, "{conn} has a receive outstanding");
        known.receiving = true;
        self.command(Command::Receive(conn.as_u64(), into, at_least));
    }

    fn send(&mut self, conn: ConnId, head: FrameBytes, body: Option<B>) {
        let Some(known) = self.known.get_mut(&conn.as_u64()) else {
            return;
        };
        assert!(!known.sending, "{conn} has a send outstanding");
        known.sending = true;
        self.command(Command::Send(conn.as_u64(), head, body));
    }

    fn close(&mut self, conn: ConnId, how: Close) {
        if self.known.contains_key(&conn.as_u64()) {
            self.command(Command::Close(conn.as_u64(), how));
        }
    }

    fn wait(&mut self, timeout: Duration, events: &mut Vec<Event<W>>) -> io::Result<()> {
        self.waits += 1;
        let before = events.len();
        let first = match self.reports.try_recv() {
            Ok(report) => report,
            Err(_) if timeout.is_zero() => return Ok(()),
            Err(_) => match self.reports.recv_timeout(timeout.min(MAX_SLEEP)) {
                Ok(report) => report,
                Err(RecvTimeoutError::Timeout) => return Ok(()),
                Err(RecvTimeoutError::Disconnected) => return Err(gone()),
            },
        };
        self.take(first, events);
        while let Ok(report) = self.reports.try_recv() {
            self.take(report, events);
        }
        let worker_is_gone = self.worker.as_ref().is_none_or(JoinHandle::is_finished);
        if events.len() == before && worker_is_gone {
            Err(gone())
        } else {
            Ok(())
        }
    }

    fn waker(&self) -> Waker {
        Waker::from(Arc::clone(&self.wake))
    }

    fn stats(&self) -> TransportStats {
        let counters = &self.counters;
        TransportStats {
            connections: counters.connections.load(Ordering::Relaxed) as u64,
            accepted: counters.accepted.load(Ordering::Relaxed),
            refused: counters.refused.load(Ordering::Relaxed),
            sent_bytes: counters.sent_bytes.load(Ordering::Relaxed),
            received_bytes: counters.received_bytes.load(Ordering::Relaxed),
            wakes: counters.wakes.load(Ordering::Relaxed),
            enters: self.waits,
            ..TransportStats::default()
        }
    }

    fn name(&self) -> &'static str {
        "tokio-uring"
    }
}

impl<W: Window, B: Body> Drop for TokioUringTransport<W, B> {
    fn drop(&mut self) {
        self.command(Command::Stop);
        let ended = self.ended.recv_timeout(DROP_PATIENCE);
        match self.worker.take() {
            Some(worker) if ended == Err(RecvTimeoutError::Disconnected) => {
                if worker.join().is_err() {
                    tracing::error!("the tokio-uring thread panicked");
                }
            }
            // It keeps what the kernel still holds, for as long as it runs.
            _ => tracing::error!("the tokio-uring thread does not end; leaving it behind"),
        }
    }
}
