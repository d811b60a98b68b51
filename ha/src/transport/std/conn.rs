//! One connection of the epoll transport: what readiness lets it do.

use std::io::{self, IoSlice};
use std::net::SocketAddr;

use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use socket2::Socket;

use super::StdTransport;
use crate::transport::{
    Body, Close, CloseReason, ConnId, Event, FrameBytes, RecvInto, Window, socket,
};

pub(super) struct Receiving<W> {
    pub(super) into: RecvInto<W>,
    pub(super) at_least: usize,
    pub(super) filled: usize,
}

pub(super) struct Sending<B> {
    pub(super) head: FrameBytes,
    pub(super) body: Option<B>,
    pub(super) sent: usize,
}

pub(super) struct Conn<W, B> {
    pub(super) socket: Socket,
    pub(super) peer: SocketAddr,
    pub(super) connecting: bool,
    pub(super) readable: bool,
    pub(super) writable: bool,
    pub(super) receiving: Option<Receiving<W>>,
    pub(super) sending: Option<Sending<B>>,
    pub(super) closing: Option<(CloseReason, Close)>,
}

impl<W: Window, B: Body> StdTransport<W, B> {
    pub(super) fn begin_close(&mut self, id: u64, reason: CloseReason, how: Close) {
        let Some(conn) = self.conns.get_mut(id) else {
            return;
        };
        match &mut conn.closing {
            Some((_, chosen)) if how == Close::Reset => *chosen = how,
            Some(_) => {}
            None => {
                conn.closing = Some((reason, how));
                conn.sending = None;
                self.closing.push(id);
            }
        }
    }

    fn progress(&mut self, id: u64) {
        self.progress_recv(id);
        self.progress_send(id);
    }

    pub(super) fn progress_recv(&mut self, id: u64) {
        let Some(conn) = self.conns.get_mut(id) else {
            return;
        };
        if conn.closing.is_some() || conn.connecting {
            return;
        }
        while conn.readable
            && let Some(receiving) = &mut conn.receiving
        {
            let room = &mut receiving.into.room()[receiving.filled..];
            match rustix::net::recv(&conn.socket, room, RecvFlags::empty()) {
                Ok((0, _)) => {
                    return self.begin_close(id, CloseReason::PeerClosed, Close::Graceful);
                }
                Ok((len, _)) => {
                    receiving.filled += len;
                    self.stats.received_bytes += len as u64;
                    if receiving.filled >= receiving.at_least
                        && let Some(Receiving { into, filled, .. }) = conn.receiving.take()
                    {
                        let conn = ConnId::new(id);
                        self.done.push_back(Event::Received {
                            conn,
                            into,
                            len: filled,
                        });
                    }
                }
                Err(Errno::AGAIN) => conn.readable = false,
                Err(Errno::INTR) => {}
                Err(errno) => {
                    let reason = socket::failed(&errno.into(), "receive from", conn.peer);
                    return self.begin_close(id, reason, Close::Graceful);
                }
            }
        }
    }

    pub(super) fn progress_send(&mut self, id: u64) {
        let Some(conn) = self.conns.get_mut(id) else {
            return;
        };
        if conn.closing.is_some() || conn.connecting {
            return;
        }
        while conn.writable
            && let Some(sending) = &mut conn.sending
        {
            match send_rest(&conn.socket, sending) {
                Ok(len) => {
                    sending.sent += len;
                    self.stats.sent_bytes += len as u64;
                    if sending.is_done() {
                        conn.sending = None;
                        self.done.push_back(Event::Sent {
                            conn: ConnId::new(id),
                        });
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => conn.writable = false,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    let reason = socket::failed(&error, "send to", conn.peer);
                    return self.begin_close(id, reason, Close::Graceful);
                }
            }
        }
    }

    /// What epoll said about a connection.
    pub(super) fn on_ready(&mut self, id: u64, flags: epoll::EventFlags) {
        let Some(conn) = self.conns.get_mut(id) else {
            return;
        };
        let broken = flags.intersects(epoll::EventFlags::ERR | epoll::EventFlags::HUP);
        conn.readable |=
            broken || flags.intersects(epoll::EventFlags::IN | epoll::EventFlags::RDHUP);
        conn.writable |= broken || flags.contains(epoll::EventFlags::OUT);
        if conn.connecting && conn.writable {
            return self.on_connected(id);
        }
        self.progress(id);
        // Neither a receive nor a send met the error: there is none outstanding.
        if let Some(conn) = self.conns.get_mut(id)
            && broken
            && conn.closing.is_none()
            && let Ok(Some(error)) = conn.socket.take_error()
        {
            let reason = socket::failed(&error, "connection with", conn.peer);
            self.begin_close(id, reason, Close::Graceful);
        }
    }

    fn on_connected(&mut self, id: u64) {
        let Some(conn) = self.conns.get_mut(id) else {
            return;
        };
        let reason = match conn.socket.take_error() {
            Ok(None) if socket::is_self_connected(&conn.socket) => {
                socket::connected_to_itself(conn.peer)
            }
            Ok(None) => {
                conn.connecting = false;
                self.done.push_back(Event::Connected {
                    conn: ConnId::new(id),
                });
                return self.progress(id);
            }
            Ok(Some(error)) | Err(error) => socket::failed(&error, "connect to", conn.peer),
        };
        self.begin_close(id, reason, Close::Reset);
    }
}

impl<B: Body> Sending<B> {
    pub(super) fn is_done(&self) -> bool {
        self.sent == self.head.as_slice().len() + self.body.as_ref().map_or(0, |b| b.bytes().len())
    }
}

fn send_rest<B: Body>(socket: &Socket, sending: &Sending<B>) -> io::Result<usize> {
    let head = sending.head.as_slice();
    let body = sending.body.as_ref().map_or(&[][..], Body::bytes);
    let in_body = sending.sent.saturating_sub(head.len());
    let rest = [
        IoSlice::new(&head[sending.sent.min(head.len())..]),
        IoSlice::new(&body[in_body..]),
    ];
    let rest = if rest[0].is_empty() {
        &rest[1..]
    } else {
        &rest[..]
    };
    let flags = SendFlags::NOSIGNAL.bits().cast_signed();
    match socket.send_vectored_with_flags(rest, flags)? {
        0 if rest.iter().any(|part| !part.is_empty()) => Err(io::ErrorKind::WriteZero.into()),
        len => Ok(len),
    }
}
