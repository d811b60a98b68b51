//! One connection of the ring: receiving and the way to its end.
//!
//! Invariants:
//! - One operation receives at a time, or two that are linked: a body and the head behind it.
//! - A receive is never abandoned: its buffer leaves the connection only after its completion.
//! - The end: cancel what is in flight (shut down first, if it is to be graceful), wait for all
//!   completions, close the socket, wait for the notifications of zero-copy sends, report.

use std::io;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsRawFd, RawFd};

use io_uring::types::{CancelBuilder, Fd};
use io_uring::{opcode, squeue};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use socket2::{SockAddr, Socket};

use super::ahead::Ahead;
use super::driver::{Driver, Operation};
use super::result_of;
use super::send::Sending;
use crate::transport::{Body, Close, CloseReason, ConnId, Event, RecvInto, Window, socket};

/// Most bytes asked for in one operation; lengths are u32, results i32.
pub(super) const MAX_OPERATION_BYTES: usize = 1 << 30;
/// Operations in a row that may end without a byte moved and without a real error.
pub(super) const MAX_RETRIES: u32 = 100;

pub(super) struct Receiving<W> {
    pub(super) into: RecvInto<W>,
    pub(super) at_least: usize,
    pub(super) filled: usize,
}

pub(super) struct Conn<W, B> {
    /// None once closed: only notifications are waited for then.
    pub(super) socket: Option<Socket>,
    pub(super) peer: SocketAddr,
    /// The peer's address as the kernel reads it.
    pub(super) address: SockAddr,
    pub(super) connecting: bool,
    pub(super) receiving: Option<Receiving<W>>,
    pub(super) ahead: Ahead,
    pub(super) sending: Option<Sending<B>>,
    /// Room for a head and a short body, while no send has it.
    pub(super) small_frame: Vec<u8>,
    pub(super) closing: Option<(CloseReason, Close)>,
    /// Completions to come, notifications apart.
    pub(super) operations: u32,
    /// Notifications to come.
    pub(super) pins: u32,
    pub(super) retries: u32,
    /// Quanta to send plain before zero-copy is tried again.
    pub(super) plain_quanta: u32,
    /// Notifications in a row that said "copied".
    pub(super) copied_in_a_row: u32,
}

impl<W, B> Conn<W, B> {
    pub(super) fn new(socket: Socket, peer: SocketAddr, connecting: bool) -> Self {
        Self {
            socket: Some(socket),
            peer,
            address: peer.into(),
            connecting,
            receiving: None,
            ahead: Ahead::default(),
            sending: None,
            small_frame: Vec::new(),
            closing: None,
            operations: 0,
            pins: 0,
            retries: 0,
            plain_quanta: 0,
            copied_in_a_row: 0,
        }
    }

    pub(super) fn fd(&self) -> RawFd {
        self.socket.as_ref().map_or(-1, AsRawFd::as_raw_fd)
    }

    pub(super) fn is_open(&self) -> bool {
        !self.connecting && self.closing.is_none()
    }

    /// Counts an operation that moved nothing; false: too many of them.
    pub(super) fn may_retry(&mut self) -> bool {
        self.retries += 1;
        self.retries <= MAX_RETRIES
    }
}

impl<W: Window, B: Body> Driver<W, B> {
    pub(super) fn on_connect(&mut self, id: u64, result: i32) {
        let Some(conn) = self.conns.get_mut(id) else {
            return;
        };
        conn.operations -= 1;
        if conn.closing.is_some() {
            return self.finish_if_idle(id);
        }
        let reason = match (result_of(result), &conn.socket) {
            (Ok(_), Some(socket)) if !socket::is_self_connected(socket) => {
                conn.connecting = false;
                self.done.push_back(Event::Connected {
                    conn: ConnId::new(id),
                });
                self.go_on_receiving(id);
                return self.submit_chain(id);
            }
            (Ok(_), _) => socket::connected_to_itself(conn.peer),
            (Err(errno), _) => socket::failed(&errno.into(), "connect to", conn.peer),
        };
        self.begin_close(id, reason, Close::Reset);
    }

    pub(super) fn recv(&mut self, conn: ConnId, mut into: RecvInto<W>, at_least: usize) {
        let Some(entry) = self.conns.get_mut(conn.as_u64()) else {
            return;
        };
        assert!(
            entry.receiving.is_none(),
            "{conn} has a receive outstanding"
        );
        let whole = into.room().len() == at_least;
        match into {
            RecvInto::Bytes(_) => entry
                .ahead
                .wants_head(if whole { at_least } else { usize::MAX }),
            RecvInto::Window(_) => entry.ahead.wants_body(at_least),
        }
        entry.receiving = Some(Receiving {
            into,
            at_least,
            filled: 0,
        });
        self.go_on_receiving(conn.as_u64());
    }

    /// Hands out what has come, or asks for more.
    fn go_on_receiving(&mut self, id: u64) {
        let Some(conn) = self.conns.get_mut(id) else {
            return;
        };
        if !conn.is_open() {
            return;
        }
        let fd = Fd(conn.fd());
        let (Some(receiving), ahead) = (&mut conn.receiving, &mut conn.ahead) else {
            return;
        };
        let filled = receiving.filled;
        receiving.filled += ahead.take(&mut receiving.into.room()[filled..]);
        if receiving.filled >= receiving.at_least {
            return self.hand_out(id);
        }
        if ahead.pending {
            return;
        }
        let filled = receiving.filled;
        let is_window = matches!(receiving.into, RecvInto::Window(_));
        let room = &mut receiving.into.room()[filled..];
        // A full room is waited for in the kernel, so that a body costs one wake-up.
        let whole = receiving.at_least - filled == room.len();
        conn.operations += 1;
        if whole && !is_window {
            let rest = room.len();
            if let Some((place, all)) = ahead.place_of_head(rest) {
                let entry = receive(fd, place, all);
                let user_data = Operation::ReceiveAhead.user_data(id);
                return self.queue.push(entry.user_data(user_data));
            }
        }
        let (rest, entry) = (room.len(), receive(fd, room, whole));
        let entry = entry.user_data(Operation::Receive.user_data(id));
        match ahead.place_behind(rest).filter(|_| whole && is_window) {
            Some(place) => {
                conn.operations += 1;
                let head = receive(fd, place, true);
                self.queue.push_linked(entry);
                self.queue
                    .push(head.user_data(Operation::ReceiveAhead.user_data(id)));
            }
            None => self.queue.push(entry),
        }
    }

    fn hand_out(&mut self, id: u64) {
        let taken = self
            .conns
            .get_mut(id)
            .and_then(|conn| conn.receiving.take());
        if let Some(Receiving { into, filled, .. }) = taken {
            self.done.push_back(Event::Received {
                conn: ConnId::new(id),
                into,
                len: filled,
            });
        }
    }

    pub(super) fn on_receive(&mut self, id: u64, result: i32) {
        let Some(conn) = self.conns.get_mut(id) else {
            return;
        };
        let result = result_of(result);
        if let (Ok(len), Some(receiving)) = (result, &mut conn.receiving) {
            receiving.filled += len as usize;
        }
        self.on_received(id, result);
    }

    pub(super) fn on_receive_ahead(&mut self, id: u64, result: i32) {
        let Some(conn) = self.conns.get_mut(id) else {
            return;
        };
        let result = result_of(result);
        conn.ahead.filled(result.map_or(0, |len| len as usize));
        self.on_received(id, result);
    }

    fn on_received(&mut self, id: u64, result: Result<u32, Errno>) {
        let Some(conn) = self.conns.get_mut(id) else {
            return;
        };
        conn.operations -= 1;
        self.stats.received_bytes += u64::from(result.unwrap_or(0));
        if conn.closing.is_some() {
            return self.finish_if_idle(id);
        }
        match result {
            Ok(0) => self.begin_close(id, CloseReason::PeerClosed, Close::Graceful),
            Ok(_) => {
                conn.retries = 0;
                self.go_on_receiving(id);
            }
            // Canceled: it was linked to a body that came in parts; the rest of that is asked for.
            Err(Errno::AGAIN | Errno::INTR | Errno::CANCELED) if conn.may_retry() => {
                self.go_on_receiving(id);
            }
            Err(errno) => {
                let reason = socket::failed(&errno.into(), "receive from", conn.peer);
                self.begin_close(id, reason, Close::Graceful);
            }
        }
    }

    pub(super) fn close(&mut self, conn: ConnId, how: Close) {
        self.begin_close(conn.as_u64(), CloseReason::Requested, how);
    }

    pub(super) fn begin_close(&mut self, id: u64, reason: CloseReason, how: Close) {
        let Some(conn) = self.conns.get_mut(id) else {
            return;
        };
        if let Some((_, chosen)) = &mut conn.closing {
            if how == Close::Reset && *chosen != how {
                *chosen = how;
                self.finish_if_idle(id);
            }
            return;
        }
        conn.closing = Some((reason, how));
        if how == Close::Graceful {
            // FIN goes out behind what the kernel has; receive and send end with it. A socket
            // that is not connected says so, which is no matter.
            shut_down(conn.socket.as_ref());
        }
        if conn.operations > 0 {
            conn.operations += 1;
            let builder = CancelBuilder::fd(Fd(conn.fd())).all();
            let entry = opcode::AsyncCancel2::new(builder).build();
            self.queue
                .push(entry.user_data(Operation::Cancel.user_data(id)));
        }
        self.finish_if_idle(id);
    }

    pub(super) fn on_cancel(&mut self, id: u64) {
        let Some(conn) = self.conns.get_mut(id) else {
            return;
        };
        conn.operations -= 1;
        if conn.operations > 0 {
            // Something was not found or is being run just now: this ends it for certain.
            shut_down(conn.socket.as_ref());
        }
        self.finish_if_idle(id);
    }

    /// Takes the next step of a closing connection if nothing is in flight for this one.
    pub(super) fn finish_if_idle(&mut self, id: u64) {
        let Some(conn) = self.conns.get_mut(id) else {
            return;
        };
        let Some((_, how)) = &conn.closing else {
            return;
        };
        if conn.operations > 0 {
            return;
        }
        conn.sending = None;
        // A graceful end keeps the socket until the peer has acknowledged what is pinned, so
        // that it can still be turned into a reset.
        if (*how == Close::Reset || conn.pins == 0)
            && let Some(socket) = conn.socket.take()
        {
            socket::close(socket, *how);
        }
        if conn.pins == 0 && !self.closed.contains(&id) {
            self.closed.push(id);
        }
    }
}

/// Receives into `room`; `all`: until it is full.
fn receive(fd: Fd, room: &mut [u8], all: bool) -> squeue::Entry {
    let flags = if all {
        RecvFlags::WAITALL
    } else {
        RecvFlags::empty()
    };
    opcode::Recv::new(fd, room.as_mut_ptr(), operation_len(room.len()))
        .flags(flags.bits().cast_signed())
        .build()
}

fn shut_down(socket: Option<&Socket>) {
    if let Some(Err(error)) = socket.map(|socket| socket.shutdown(Shutdown::Both))
        && error.kind() != io::ErrorKind::NotConnected
    {
        tracing::debug!(%error, "shutdown");
    }
}

/// The length of an operation on `len` bytes.
pub(super) fn operation_len(len: usize) -> u32 {
    #[expect(clippy::cast_possible_truncation, reason = "at most 2^30")]
    let len = len.min(MAX_OPERATION_BYTES) as u32;
    len
}

#[cfg(test)]
mod tests;
