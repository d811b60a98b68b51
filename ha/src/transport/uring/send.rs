//! Sending: chains of linked operations, zero-copy where it pays, and the leases that go with it.
//!
//! Invariants:
//! - One chain per connection at a time, so that nothing overtakes. A chain that breaks (a short
//!   send, an error) is counted to its end, and the next one goes on at the first byte not taken.
//! - A zero-copy operation holds a share of the body until its notification, or until it completes
//!   without the promise of one. Both are matched by the operation's id; their order is free.
//! - Bytes pinned stay below half of RLIMIT_MEMLOCK.

use std::sync::Arc;

use io_uring::opcode;
use io_uring::squeue;
use io_uring::types::Fd;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use super::conn::{Conn, operation_len};
use super::driver::{Driver, Operation};
use super::refused::Probed;
use super::result_of;
use crate::transport::{Body, Close, ConnId, Event, FrameBytes, Window, socket};

/// Linked operations at most: head, and quanta of the body. Fits the smallest ring.
const MAX_CHAIN: usize = 15;
/// Shorter bodies are copied behind their head: one operation is cheaper than two.
const SMALL_BODY: usize = 4096;
/// Asks that the notification say whether the bytes were copied.
const REPORT_USAGE: u16 = 1 << 3;
/// Set in the result of a notification when they were.
const USAGE_COPIED: i32 = i32::MIN;
/// Quanta sent plain after the kernel had no memory to pin, before zero-copy is tried again.
const PLAIN_AFTER_ENOMEM: u32 = 64;
/// The same after the kernel copied time and again.
const PLAIN_AFTER_COPIES: u32 = 1024;

/// The frame being sent.
pub(super) struct Sending<B> {
    head: FrameBytes,
    body: Option<Arc<B>>,
    /// Head and body together, in bytes.
    total: usize,
    taken: usize,
    /// Operations of the chain whose result is still to come; 0: a chain can start.
    chain: usize,
    /// Bytes taken when the chain began.
    chain_began: usize,
    /// First error of the chain, and whether a zero-copy send had it.
    error: Option<(Errno, bool)>,
}

/// A zero-copy operation in flight.
pub(super) struct Pin<B> {
    conn: u64,
    len: usize,
    completed: bool,
    notified: bool,
    /// Keeps the bytes in place.
    _lease: Arc<B>,
}

/// What is known about zero-copy on this host, and what it pins.
pub(super) struct ZeroCopy {
    supported: bool,
    pinned_limit: u64,
    pub(super) pinned_bytes: u64,
    pub(super) pinned_peak_bytes: u64,
}

impl ZeroCopy {
    pub(super) fn new(probed: Probed) -> Self {
        Self {
            supported: probed.zero_copy,
            pinned_limit: probed.pinned_limit,
            pinned_bytes: 0,
            pinned_peak_bytes: 0,
        }
    }

    fn has_room(&self, len: usize) -> bool {
        self.pinned_bytes.saturating_add(len as u64) <= self.pinned_limit
    }

    fn pin(&mut self, len: usize) {
        self.pinned_bytes += len as u64;
        self.pinned_peak_bytes = self.pinned_peak_bytes.max(self.pinned_bytes);
    }
}

/// How the next part of a body goes out.
enum Part {
    ZeroCopy(usize),
    Plain(usize),
    /// Only when a notification has come in.
    Later,
}

impl<W: Window, B: Body> Driver<W, B> {
    pub(super) fn send(&mut self, conn: ConnId, head: FrameBytes, body: Option<B>) {
        let id = conn.as_u64();
        let Some(entry) = self.conns.get_mut(id) else {
            return;
        };
        if entry.closing.is_some() {
            return;
        }
        assert!(entry.sending.is_none(), "{conn} has a send outstanding");
        let (head, body) = match body {
            Some(body) if body.bytes().len() < self.config.zero_copy_min_bytes.min(SMALL_BODY) => {
                let mut whole = std::mem::take(&mut entry.small_frame);
                whole.clear();
                whole.extend_from_slice(head.as_slice());
                whole.extend_from_slice(body.bytes());
                (FrameBytes::from(whole), None)
            }
            body => (head, body.map(Arc::new)),
        };
        let total = head.as_slice().len() + body.as_ref().map_or(0, |body| body.bytes().len());
        if total == 0 {
            return self.done.push_back(Event::Sent { conn });
        }
        entry.sending = Some(Sending {
            head,
            body,
            total,
            taken: 0,
            chain: 0,
            chain_began: 0,
            error: None,
        });
        self.submit_chain(id);
    }

    /// Asks for the next operations of a frame, if none are in flight.
    pub(super) fn submit_chain(&mut self, id: u64) {
        let Some(conn) = self.conns.get_mut(id) else {
            return;
        };
        if !conn.is_open() {
            return;
        }
        let Some(sending) = conn.sending.as_mut().filter(|sending| sending.chain == 0) else {
            return;
        };
        let mut chain = std::mem::take(&mut self.chain);
        sending.chain_began = sending.taken;
        sending.error = None;
        let head = sending.head.as_slice();
        let body_len = sending.total - head.len();
        let fd = Fd(conn
            .socket
            .as_ref()
            .map_or(-1, std::os::fd::AsRawFd::as_raw_fd));
        if let Some(rest) = head.get(sending.taken..).filter(|rest| !rest.is_empty()) {
            let flags = flags(body_len > 0);
            let entry = opcode::Send::new(fd, rest.as_ptr(), operation_len(rest.len()));
            let user_data = Operation::Send.user_data(id);
            chain.push(entry.flags(flags).build().user_data(user_data));
        }
        let mut at = sending.taken.saturating_sub(head.len());
        while at < body_len && chain.len() < MAX_CHAIN {
            let Some(conn) = self.conns.get_mut(id) else {
                break;
            };
            let part = match self.zero_copy.supported {
                true => next_part(&self.config, &self.zero_copy, conn, body_len, at),
                false => Part::Plain(body_len - at),
            };
            let Some((entry, len)) = self.body_entry(id, at, part) else {
                break;
            };
            chain.push(entry);
            at += len;
        }
        if let Some(conn) = self.conns.get_mut(id) {
            conn.operations += u32::try_from(chain.len()).unwrap_or(0);
            if let Some(sending) = &mut conn.sending {
                sending.chain = chain.len();
            }
        }
        let last = chain.pop();
        chain
            .drain(..)
            .for_each(|entry| self.queue.push_linked(entry));
        last.into_iter().for_each(|entry| self.queue.push(entry));
        self.chain = chain;
    }

    /// The operation that sends a part of the body from `at`; none: not now.
    fn body_entry(&mut self, id: u64, at: usize, part: Part) -> Option<(squeue::Entry, usize)> {
        let conn = self.conns.get_mut(id)?;
        let fd = Fd(conn.fd());
        let body = Arc::clone(conn.sending.as_ref()?.body.as_ref()?);
        let bytes = body.bytes();
        let (len, pin) = match part {
            Part::Later => return None,
            Part::Plain(len) => (len, None),
            Part::ZeroCopy(len) => {
                let lease = Arc::clone(&body);
                let pin = Pin {
                    conn: id,
                    len,
                    completed: false,
                    notified: false,
                    _lease: lease,
                };
                (len, self.pins.insert(pin).ok())
            }
        };
        let part = &bytes[at..at + len];
        let flags = flags(at + len < bytes.len());
        let (pointer, operation_len) = (part.as_ptr(), operation_len(len));
        let entry = match pin {
            Some(pin) => {
                conn.pins += 1;
                self.zero_copy.pin(len);
                opcode::SendZc::new(fd, pointer, operation_len)
                    .flags(flags)
                    .zc_flags(REPORT_USAGE)
                    .build()
                    .user_data(Operation::SendZeroCopy.user_data(pin))
            }
            None => {
                if bytes.len() >= self.config.zero_copy_min_bytes {
                    let quanta = len.div_ceil(self.config.zero_copy_quantum_bytes.max(1));
                    self.stats.fallback_quanta += quanta as u64;
                    conn.plain_quanta = conn
                        .plain_quanta
                        .saturating_sub(u32::try_from(quanta).unwrap_or(u32::MAX));
                }
                opcode::Send::new(fd, pointer, operation_len)
                    .flags(flags)
                    .build()
                    .user_data(Operation::Send.user_data(id))
            }
        };
        Some((entry, len))
    }

    pub(super) fn on_send(&mut self, id: u64, result: i32) {
        self.on_chain_result(id, result, false);
    }

    pub(super) fn on_send_zero_copy(&mut self, pin_id: u64, result: i32, more: bool) {
        let Some(pin) = self.pins.get_mut(pin_id) else {
            return;
        };
        let id = pin.conn;
        pin.completed = true;
        // Without a promise of a notification the kernel is through with the bytes.
        pin.notified |= !more;
        self.release_pin(pin_id);
        self.on_chain_result(id, result, true);
    }

    pub(super) fn on_notification(&mut self, pin_id: u64, result: i32) {
        let Some(pin) = self.pins.get_mut(pin_id) else {
            return;
        };
        let id = pin.conn;
        pin.notified = true;
        let copied = result & USAGE_COPIED != 0;
        if copied {
            self.stats.copied_quanta += 1;
        } else {
            self.stats.zero_copy_quanta += 1;
        }
        if let Some(conn) = self.conns.get_mut(id) {
            conn.copied_in_a_row = if copied { conn.copied_in_a_row + 1 } else { 0 };
            let give_up = self.config.zero_copy_give_up_after;
            if give_up > 0 && conn.copied_in_a_row >= give_up {
                conn.copied_in_a_row = 0;
                conn.plain_quanta = PLAIN_AFTER_COPIES;
            }
        }
        self.release_pin(pin_id);
        self.submit_chain(id);
        self.finish_if_idle(id);
    }

    fn release_pin(&mut self, pin_id: u64) {
        if self
            .pins
            .get_mut(pin_id)
            .is_some_and(|pin| pin.completed && pin.notified)
            && let Some(pin) = self.pins.remove(pin_id)
        {
            self.zero_copy.pinned_bytes -= pin.len as u64;
            if let Some(conn) = self.conns.get_mut(pin.conn) {
                conn.pins -= 1;
            }
        }
    }

    fn on_chain_result(&mut self, id: u64, result: i32, zero_copy: bool) {
        let Some(conn) = self.conns.get_mut(id) else {
            return;
        };
        conn.operations -= 1;
        let Some(sending) = &mut conn.sending else {
            return self.finish_if_idle(id);
        };
        sending.chain -= 1;
        match result_of(result) {
            Ok(len) => {
                sending.taken += len as usize;
                self.stats.sent_bytes += u64::from(len);
            }
            // The rest of a broken chain; what broke it says why.
            Err(Errno::CANCELED) => {}
            Err(errno) => {
                sending.error.get_or_insert((errno, zero_copy));
            }
        }
        if conn.closing.is_some() {
            return self.finish_if_idle(id);
        }
        if sending.chain == 0 {
            self.on_chain_end(id);
        }
    }

    fn on_chain_end(&mut self, id: u64) {
        let Some(conn) = self.conns.get_mut(id) else {
            return;
        };
        let Some(sending) = &conn.sending else { return };
        if sending.taken > sending.chain_began {
            conn.retries = 0;
        }
        if sending.taken == sending.total {
            if let Some(sent) = conn.sending.take()
                && (1..=2 * SMALL_BODY).contains(&sent.head.heap.capacity())
            {
                conn.small_frame = sent.head.heap;
            }
            return self.done.push_back(Event::Sent {
                conn: ConnId::new(id),
            });
        }
        let error = sending.error;
        match error {
            Some((Errno::NOMEM | Errno::NOBUFS, true)) => {
                self.stats.zero_copy_refusals += 1;
                conn.plain_quanta = PLAIN_AFTER_ENOMEM;
            }
            Some((errno @ (Errno::OPNOTSUPP | Errno::INVAL), true)) => {
                self.stats.zero_copy_refusals += 1;
                if std::mem::replace(&mut self.zero_copy.supported, false) {
                    tracing::warn!(peer = %conn.peer, error = %errno, "no zero-copy sends here");
                }
            }
            None | Some((Errno::AGAIN | Errno::INTR, _)) => {}
            Some((errno, _)) => {
                let reason = socket::failed(&errno.into(), "send to", conn.peer);
                return self.begin_close(id, reason, Close::Graceful);
            }
        }
        if conn.may_retry() {
            return self.submit_chain(id);
        }
        let error = error.map_or(std::io::ErrorKind::WriteZero.into(), |(errno, _)| {
            errno.into()
        });
        let reason = socket::failed(&error, "send to", conn.peer);
        self.begin_close(id, reason, Close::Graceful);
    }
}

/// Everything is to be taken, and nothing waits for more unless there is more.
fn flags(more: bool) -> i32 {
    let all = RecvFlags::WAITALL.bits() | SendFlags::NOSIGNAL.bits();
    (if more {
        all | SendFlags::MORE.bits()
    } else {
        all
    })
    .cast_signed()
}

fn next_part<W, B>(
    config: &crate::transport::TransportConfig,
    zero_copy: &ZeroCopy,
    conn: &Conn<W, B>,
    body_len: usize,
    at: usize,
) -> Part {
    let rest = body_len - at;
    if body_len < config.zero_copy_min_bytes {
        return Part::Plain(rest);
    }
    let quantum = config.zero_copy_quantum_bytes.clamp(4096, 1 << 20);
    // A tail of less than a quarter goes with the quantum before it.
    let len = if rest <= quantum + quantum / 4 {
        rest
    } else {
        quantum
    };
    if conn.plain_quanta > 0 || !zero_copy.has_room(len) {
        return Part::Plain(len);
    }
    if conn.pins as usize >= config.zero_copy_in_flight.max(1) {
        Part::Later
    } else {
        Part::ZeroCopy(len)
    }
}

#[cfg(test)]
mod tests;
