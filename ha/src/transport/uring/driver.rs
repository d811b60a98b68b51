//! What the ring is asked for and what its completions mean; no ring, no unsafe, no clock but for
//! the pause of a listener.
//!
//! Invariants:
//! - `Conn::operations` counts the completions still to come for a connection, notifications of
//!   zero-copy sends apart; those are its `pins`. Its socket is closed when the first is 0, the
//!   connection is reported closed when both are.
//! - A connection lives in a box: the kernel holds addresses of its head, its room and its
//!   socket address.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use io_uring::types::Fd;
use io_uring::{opcode, squeue};
use socket2::Socket;

use super::conn::Conn;
use super::refused::Probed;
use super::send::{Pin, ZeroCopy};
use crate::transport::table::{ID_BITS, MAX_ENTRIES, Table};
use crate::transport::{Body, Close, CloseReason, ConnId, Event, TransportConfig, TransportStats};
use crate::transport::{Window, socket};

/// What a completion is about; in the low bits of its user data, above them an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Wake,
    Accept,
    Connect,
    Receive,
    /// Into the buffer of the connection's [`super::ahead::Ahead`].
    ReceiveAhead,
    Send,
    /// The id is of a [`Pin`].
    SendZeroCopy,
    Cancel,
}

const TAG_BITS: u32 = u64::BITS - ID_BITS;
const OPERATIONS: [Operation; 8] = [
    Operation::Wake,
    Operation::Accept,
    Operation::Connect,
    Operation::Receive,
    Operation::ReceiveAhead,
    Operation::Send,
    Operation::SendZeroCopy,
    Operation::Cancel,
];
const _: () = assert!(OPERATIONS.len() <= 1 << TAG_BITS);

impl Operation {
    pub(super) fn user_data(self, id: u64) -> u64 {
        (id << TAG_BITS) | self as u64
    }
}

pub(super) fn operation_of(user_data: u64) -> Option<(Operation, u64)> {
    let tag = user_data & ((1 << TAG_BITS) - 1);
    let operation = OPERATIONS
        .into_iter()
        .find(|operation| *operation as u64 == tag)?;
    Some((operation, user_data >> TAG_BITS))
}

/// Entries asked for and not yet in the submission queue, in order.
#[derive(Default)]
pub(super) struct Queue(VecDeque<(squeue::Entry, bool)>);

impl Queue {
    pub(super) fn push(&mut self, entry: squeue::Entry) {
        self.0.push_back((entry, false));
    }

    /// The next entry starts only when this one has fully succeeded.
    pub(super) fn push_linked(&mut self, entry: squeue::Entry) {
        self.0
            .push_back((entry.flags(squeue::Flags::IO_LINK), true));
    }

    /// How many of the first entries belong together.
    pub(super) fn next_chain(&self) -> Option<usize> {
        self.0
            .iter()
            .position(|(_, linked)| !linked)
            .map(|last| last + 1)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn entries_mut(&mut self) -> &mut VecDeque<(squeue::Entry, bool)> {
        &mut self.0
    }
}

struct Listener {
    socket: Socket,
    addr: SocketAddr,
    armed: bool,
    paused_until: Option<Instant>,
}

/// Connections, listeners and what they wait for.
pub(super) struct Driver<W, B> {
    pub(super) config: TransportConfig,
    pub(super) queue: Queue,
    pub(super) conns: Table<Box<Conn<W, B>>>,
    pub(super) pins: Table<Pin<B>>,
    pub(super) zero_copy: ZeroCopy,
    pub(super) done: VecDeque<Event<W>>,
    /// Connections whose last completion is in.
    pub(super) closed: Vec<u64>,
    pub(super) stats: TransportStats,
    /// The chain being made; kept for its room.
    pub(super) chain: Vec<squeue::Entry>,
    listeners: Vec<Listener>,
    shutting_down: bool,
}

impl<W: Window, B: Body> Driver<W, B> {
    pub(super) fn new(config: TransportConfig, probed: Probed) -> Self {
        Self {
            queue: Queue::default(),
            conns: Table::new(config.max_connections),
            pins: Table::new(MAX_ENTRIES),
            zero_copy: ZeroCopy::new(probed),
            done: VecDeque::new(),
            closed: Vec::new(),
            stats: TransportStats::default(),
            chain: Vec::new(),
            listeners: Vec::new(),
            shutting_down: false,
            config,
        }
    }

    pub(super) fn listen(&mut self, addr: SocketAddr) -> io::Result<SocketAddr> {
        let (socket, bound) = socket::listener(addr, &self.config)?;
        self.listeners.push(Listener {
            socket,
            addr: bound,
            armed: false,
            paused_until: None,
        });
        self.arm_accept(self.listeners.len() - 1);
        Ok(bound)
    }

    fn arm_accept(&mut self, index: usize) {
        let listener = &mut self.listeners[index];
        listener.armed = true;
        let fd = Fd(listener.socket.as_raw_fd());
        let entry = opcode::Accept::new(fd, std::ptr::null_mut(), std::ptr::null_mut())
            .flags(rustix::net::SocketFlags::CLOEXEC.bits().cast_signed())
            .build();
        self.queue
            .push(entry.user_data(Operation::Accept.user_data(index as u64)));
    }

    /// Accepts again where a pause is over; how long the next pause still lasts.
    pub(super) fn resume_listeners(&mut self) -> Option<Duration> {
        let mut next: Option<Duration> = None;
        for index in 0..self.listeners.len() {
            let Some(until) = self.listeners[index].paused_until else {
                continue;
            };
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                self.listeners[index].paused_until = None;
                self.arm_accept(index);
            } else {
                next = Some(next.map_or(left, |next| next.min(left)));
            }
        }
        next
    }

    pub(super) fn on_accept(&mut self, listener: u64, accepted: io::Result<OwnedFd>) {
        let shutting_down = self.shutting_down;
        let Ok(index) = usize::try_from(listener) else {
            return;
        };
        let Some(listener) = self.listeners.get_mut(index) else {
            return;
        };
        listener.armed = false;
        if shutting_down {
            return;
        }
        match accepted {
            Ok(fd) => self.adopt(fd.into()),
            Err(error) if socket::is_about_one_peer(&error) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => {
                tracing::warn!(
                    listener = %listener.addr, %error,
                    pause_ms = socket::ACCEPT_PAUSE.as_millis(),
                    "cannot accept; trying again after a pause"
                );
                listener.paused_until = Some(Instant::now() + socket::ACCEPT_PAUSE);
                return;
            }
        }
        self.arm_accept(index);
    }

    fn adopt(&mut self, accepted: Socket) {
        if self.conns.is_full() {
            self.stats.refused += 1;
            return socket::close(accepted, Close::Reset);
        }
        let peer = accepted.peer_addr().and_then(|addr| {
            socket::set_options(&accepted, &self.config)?;
            socket::inet(&addr)
        });
        match peer {
            Ok(peer) => {
                let inserted = self
                    .conns
                    .insert(Box::new(Conn::new(accepted, peer, false)));
                let Ok(id) = inserted else { return };
                self.stats.accepted += 1;
                self.done.push_back(Event::Accepted {
                    conn: ConnId::new(id),
                    peer,
                });
            }
            // It went away between its handshake and here.
            Err(error) => tracing::debug!(%error, "accepted peer is gone"),
        }
    }

    pub(super) fn connect(&mut self, addr: SocketAddr) -> io::Result<ConnId> {
        let limit = self.config.max_connections;
        let full = || socket::too_many_connections(addr, limit);
        if self.conns.is_full() {
            return Err(full());
        }
        let socket = socket::outgoing(addr, &self.config)?;
        let inserted = self.conns.insert(Box::new(Conn::new(socket, addr, true)));
        let id = inserted.map_err(|_| full())?;
        if let Some(conn) = self.conns.get_mut(id) {
            conn.operations += 1;
            let fd = Fd(conn.fd());
            let (addr, len) = (conn.address.as_ptr().cast(), conn.address.len());
            let entry = opcode::Connect::new(fd, addr, len).build();
            self.queue
                .push(entry.user_data(Operation::Connect.user_data(id)));
        }
        Ok(ConnId::new(id))
    }

    /// One completion; `more`: a notification for the same operation will follow;
    /// `notification`: this is it.
    pub(super) fn on_completion(
        &mut self,
        operation: Operation,
        id: u64,
        result: i32,
        more: bool,
        notification: bool,
    ) {
        match operation {
            Operation::Wake | Operation::Accept => {}
            Operation::Connect => self.on_connect(id, result),
            Operation::Receive => self.on_receive(id, result),
            Operation::ReceiveAhead => self.on_receive_ahead(id, result),
            Operation::Send => self.on_send(id, result),
            Operation::SendZeroCopy if notification => self.on_notification(id, result),
            Operation::SendZeroCopy => self.on_send_zero_copy(id, result, more),
            Operation::Cancel => self.on_cancel(id),
        }
    }

    pub(super) fn has_events(&self) -> bool {
        !self.done.is_empty() || !self.closed.is_empty()
    }

    /// Hands out what has happened; ends of connections come last.
    pub(super) fn report(&mut self, events: &mut Vec<Event<W>>) {
        events.extend(self.done.drain(..));
        for id in self.closed.drain(..) {
            let Some(conn) = self.conns.remove(id) else {
                continue;
            };
            let reason = conn
                .closing
                .map_or(CloseReason::Requested, |(reason, _)| reason);
            let received = conn
                .receiving
                .map(|receiving| (receiving.into, receiving.filled));
            events.push(Event::Closed {
                conn: ConnId::new(id),
                reason,
                received,
            });
        }
    }

    /// Resets every connection and accepts no more.
    pub(super) fn shut_down(&mut self) {
        self.shutting_down = true;
        for id in self.conns.ids() {
            self.close(ConnId::new(id), Close::Reset);
        }
        for listener in &mut self.listeners {
            listener.paused_until = None;
        }
    }

    /// Whether the kernel holds nothing of ours.
    pub(super) fn is_done(&mut self) -> bool {
        let idle = |conn: &Conn<W, B>| conn.operations == 0 && conn.pins == 0;
        self.queue.is_empty()
            && self.listeners.iter().all(|listener| !listener.armed)
            && self.pins.len() == 0
            && self
                .conns
                .ids()
                .into_iter()
                .all(|id| self.conns.get_mut(id).is_none_or(|c| idle(c)))
    }

    pub(super) fn stats(&self) -> TransportStats {
        TransportStats {
            connections: self.conns.len() as u64,
            pinned_bytes: self.zero_copy.pinned_bytes,
            pinned_peak_bytes: self.zero_copy.pinned_peak_bytes,
            ..self.stats
        }
    }
}
