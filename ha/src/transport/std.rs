//! Nonblocking sockets and epoll, for hosts and containers that refuse io_uring.
//!
//! Bodies are copied by the kernel (`sendmsg` of head and body together), never `sendfile`d: a
//! page handed over by reference could still be read after the log was cut. Receives go straight
//! into the room. No kernel operation outlives its system call, so a connection ends at once.
//!
//! epoll is edge-triggered for connections: `readable` and `writable` remember what it said until
//! the kernel answers EAGAIN. Listeners are level-triggered.

use std::collections::VecDeque;
use std::io;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use rustix::event::epoll;
use rustix::io::Errno;
use socket2::Socket;

#[path = "std/conn.rs"]
mod conn;

use self::conn::{Conn, Receiving, Sending};
use super::socket;
use super::table::Table;
use super::wake::EventFdWake;
use super::{
    Body, Close, CloseReason, ConnId, Event, FrameBytes, RecvInto, Transport, TransportConfig,
    TransportStats, Window,
};

/// epoll data of the eventfd.
const WAKE_DATA: u64 = u64::MAX;
/// Set in the epoll data of listeners; ids of connections are below it.
const LISTENER_BIT: u64 = 1 << 62;
/// Peers accepted from one listener per wait, so that a flood of them starves nobody.
const ACCEPTS_PER_WAIT: usize = 64;
/// Events taken from epoll per wait.
const EVENTS_PER_WAIT: usize = 256;
/// epoll counts in milliseconds of an i32.
const MAX_TIMEOUT: Duration = Duration::from_secs(24 * 3600);

struct Listener {
    socket: Socket,
    addr: SocketAddr,
    /// Set after a failure that is not about one peer; out of epoll until then.
    paused_until: Option<Instant>,
}

/// [`Transport`] over nonblocking sockets and epoll.
pub struct StdTransport<W, B> {
    config: TransportConfig,
    epoll: OwnedFd,
    wake: Arc<EventFdWake>,
    conns: Table<Conn<W, B>>,
    listeners: Vec<Listener>,
    done: VecDeque<Event<W>>,
    closing: Vec<u64>,
    ready: Vec<(u64, epoll::EventFlags)>,
    stats: TransportStats,
}

impl<W: Window, B: Body> StdTransport<W, B> {
    /// Opens a transport without listeners or connections. Fails when the process is out of
    /// descriptors.
    pub fn new(config: TransportConfig) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let wake = Arc::new(EventFdWake::new()?);
        epoll::add(
            &epoll,
            &*wake,
            epoll::EventData::new_u64(WAKE_DATA),
            epoll::EventFlags::IN,
        )?;
        Ok(Self {
            conns: Table::new(config.max_connections),
            config,
            epoll,
            wake,
            listeners: Vec::new(),
            done: VecDeque::new(),
            closing: Vec::new(),
            ready: Vec::with_capacity(EVENTS_PER_WAIT),
            stats: TransportStats::default(),
        })
    }

    fn insert(&mut self, socket: Socket, peer: SocketAddr, connecting: bool) -> io::Result<u64> {
        let conn = Conn {
            socket,
            peer,
            connecting,
            readable: false,
            writable: false,
            receiving: None,
            sending: None,
            closing: None,
        };
        let limit = self.config.max_connections;
        let id = self
            .conns
            .insert(conn)
            .map_err(|conn| socket::too_many_connections(conn.peer, limit))?;
        let flags = epoll::EventFlags::IN
            | epoll::EventFlags::OUT
            | epoll::EventFlags::RDHUP
            | epoll::EventFlags::ET;
        if let Some(conn) = self.conns.get_mut(id)
            && let Err(error) = epoll::add(
                &self.epoll,
                &conn.socket,
                epoll::EventData::new_u64(id),
                flags,
            )
        {
            self.conns.remove(id);
            return Err(error.into());
        }
        Ok(id)
    }

    fn accept(&mut self, index: usize) {
        for _ in 0..ACCEPTS_PER_WAIT {
            let Some(listener) = self.listeners.get_mut(index) else {
                return;
            };
            match listener.socket.accept() {
                Ok((socket, addr)) => self.accepted(socket, &addr),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if socket::is_about_one_peer(&error) => {}
                Err(error) => {
                    tracing::warn!(
                        listener = %listener.addr, %error, pause_ms = socket::ACCEPT_PAUSE.as_millis(),
                        "cannot accept; trying again after a pause"
                    );
                    listener.paused_until = Some(Instant::now() + socket::ACCEPT_PAUSE);
                    // It is registered; if removing it fails, the pause is only less quiet.
                    let _ = epoll::delete(&self.epoll, &listener.socket);
                    return;
                }
            }
        }
    }

    fn accepted(&mut self, socket: Socket, addr: &socket2::SockAddr) {
        if self.conns.is_full() {
            self.stats.refused += 1;
            return socket::close(socket, Close::Reset);
        }
        let register = socket::inet(addr).and_then(|peer| {
            socket.set_nonblocking(true)?;
            socket::set_options(&socket, &self.config)?;
            Ok((self.insert(socket, peer, false)?, peer))
        });
        match register {
            Ok((id, peer)) => {
                self.stats.accepted += 1;
                self.done.push_back(Event::Accepted {
                    conn: ConnId::new(id),
                    peer,
                });
            }
            // The peer went away between the handshake and here, or memory is short.
            Err(error) => {
                tracing::debug!(peer = ?addr.as_socket(), %error, "accepted peer is gone")
            }
        }
    }

    /// Puts rested listeners back; returns how long the next one still rests.
    fn resume_listeners(&mut self) -> Option<Duration> {
        let mut next = None;
        let now = Instant::now();
        for (index, listener) in self.listeners.iter_mut().enumerate() {
            let Some(until) = listener.paused_until else {
                continue;
            };
            let left = until.saturating_duration_since(now);
            if left.is_zero() && watch_listener(&self.epoll, index, &listener.socket).is_ok() {
                listener.paused_until = None;
            } else {
                let left = left.max(Duration::from_millis(1));
                next = Some(next.map_or(left, |next: Duration| next.min(left)));
            }
        }
        next
    }

    fn poll(&mut self, timeout: Duration) -> io::Result<()> {
        let may_sleep = self.wake.may_sleep();
        let timeout = if may_sleep {
            timeout.min(MAX_TIMEOUT)
        } else {
            Duration::ZERO
        };
        let timeout = rustix::time::Timespec::try_from(timeout).map_err(io::Error::other)?;
        let mut room = [const { MaybeUninit::uninit() }; EVENTS_PER_WAIT];
        let result = epoll::wait(&self.epoll, &mut room, Some(&timeout));
        self.stats.enters += 1;
        self.wake.awake();
        self.ready.clear();
        match result {
            Ok((events, _)) => {
                self.ready
                    .extend(events.iter().map(|event| (event.data.u64(), event.flags)));
                Ok(())
            }
            Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    fn finish_closes(&mut self, events: &mut Vec<Event<W>>) {
        for id in self.closing.drain(..) {
            let Some(conn) = self.conns.remove(id) else {
                continue;
            };
            let Some((reason, how)) = conn.closing else {
                continue;
            };
            socket::close(conn.socket, how);
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
}

fn watch_listener(epoll: &OwnedFd, index: usize, socket: &Socket) -> rustix::io::Result<()> {
    let data = epoll::EventData::new_u64(LISTENER_BIT | index as u64);
    epoll::add(epoll, socket, data, epoll::EventFlags::IN)
}

impl<W: Window, B: Body> Transport<W, B> for StdTransport<W, B> {
    fn listen(&mut self, addr: SocketAddr) -> io::Result<SocketAddr> {
        let (socket, bound) = socket::listener(addr, &self.config)?;
        socket.set_nonblocking(true)?;
        watch_listener(&self.epoll, self.listeners.len(), &socket)?;
        self.listeners.push(Listener {
            socket,
            addr: bound,
            paused_until: None,
        });
        Ok(bound)
    }

    fn connect(&mut self, addr: SocketAddr) -> io::Result<ConnId> {
        if self.conns.is_full() {
            return Err(socket::too_many_connections(
                addr,
                self.config.max_connections,
            ));
        }
        let socket = socket::outgoing(addr, &self.config)?;
        socket.set_nonblocking(true)?;
        let begun = socket.connect(&addr.into());
        let id = self.insert(socket, addr, true)?;
        if let Err(error) = begun
            && Errno::from_io_error(&error) != Some(Errno::INPROGRESS)
        {
            let reason = socket::failed(&error, "connect to", addr);
            self.begin_close(id, reason, Close::Reset);
        }
        Ok(ConnId::new(id))
    }

    fn recv(&mut self, conn: ConnId, mut into: RecvInto<W>, at_least: usize) {
        let room = into.room().len();
        assert!(
            0 < at_least && at_least <= room,
            "receive of {at_least} bytes into {room}"
        );
        let Some(entry) = self.conns.get_mut(conn.0) else {
            return;
        };
        assert!(
            entry.receiving.is_none(),
            "{conn} has a receive outstanding"
        );
        entry.receiving = Some(Receiving {
            into,
            at_least,
            filled: 0,
        });
        self.progress_recv(conn.0);
    }

    fn send(&mut self, conn: ConnId, head: FrameBytes, body: Option<B>) {
        let Some(entry) = self.conns.get_mut(conn.0) else {
            return;
        };
        if entry.closing.is_some() {
            return;
        }
        assert!(entry.sending.is_none(), "{conn} has a send outstanding");
        let sending = Sending {
            head,
            body,
            sent: 0,
        };
        if sending.is_done() {
            return self.done.push_back(Event::Sent { conn });
        }
        entry.sending = Some(sending);
        self.progress_send(conn.0);
    }

    fn close(&mut self, conn: ConnId, how: Close) {
        self.begin_close(conn.0, CloseReason::Requested, how);
    }

    fn wait(&mut self, timeout: Duration, events: &mut Vec<Event<W>>) -> io::Result<()> {
        let rest = self.resume_listeners();
        let idle = self.done.is_empty() && self.closing.is_empty();
        let timeout = if idle {
            rest.map_or(timeout, |r| r.min(timeout))
        } else {
            Duration::ZERO
        };
        self.poll(timeout)?;
        for index in 0..self.ready.len() {
            let (data, flags) = self.ready[index];
            match data {
                WAKE_DATA => self.wake.drain(),
                #[expect(clippy::cast_possible_truncation, reason = "an index made by listen")]
                data if data & LISTENER_BIT != 0 => self.accept((data & !LISTENER_BIT) as usize),
                id => self.on_ready(id, flags),
            }
        }
        events.extend(self.done.drain(..));
        self.finish_closes(events);
        Ok(())
    }

    fn waker(&self) -> Waker {
        Waker::from(Arc::clone(&self.wake))
    }

    fn stats(&self) -> TransportStats {
        let connections = self.conns.len() as u64;
        TransportStats {
            connections,
            wakes: self.wake.writes(),
            ..self.stats
        }
    }

    fn name(&self) -> &'static str {
        "std"
    }
}

impl<W, B> Drop for StdTransport<W, B> {
    fn drop(&mut self) {
        for id in self.conns.ids() {
            if let Some(conn) = self.conns.remove(id) {
                socket::close(conn.socket, Close::Reset);
            }
        }
    }
}
