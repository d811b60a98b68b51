//! One end of a connection: receiving, sending and its own end.

use crate::transport::{Body, Close, CloseReason, ConnId, Event, FrameBytes, RecvInto, Window};

use super::World;
use crate::transport::sim::wire::{Arrival, Sending};

impl<W: Window, B: Body> World<W, B> {
    pub(in crate::transport::sim) fn recv(
        &mut self,
        owner: usize,
        id: u64,
        into: RecvInto<W>,
        at_least: usize,
    ) {
        let Some(end) = self.ends.get_mut(&id).filter(|end| end.endpoint == owner) else {
            return;
        };
        assert!(
            end.receiving.is_none(),
            "{} has a receive outstanding",
            ConnId::new(id)
        );
        end.receiving = Some((into, at_least, 0));
        self.progress_recv(id);
    }

    pub(super) fn progress_recv(&mut self, id: u64) {
        let Some(end) = self.ends.get_mut(&id).filter(|end| end.closing.is_none()) else {
            return;
        };
        let Some((into, at_least, filled)) = &mut end.receiving else {
            return;
        };
        let room = &mut into.room()[*filled..];
        let len = room.len().min(end.inbox.len());
        let (front, back) = end.inbox.as_slices();
        let from_front = len.min(front.len());
        room[..from_front].copy_from_slice(&front[..from_front]);
        room[from_front..len].copy_from_slice(&back[..len - from_front]);
        end.inbox.drain(..len);
        *filled += len;
        let enough = *filled >= *at_least;
        let (endpoint, peer) = (end.endpoint, end.peer);
        if enough && let Some((into, _, len)) = end.receiving.take() {
            self.tell(
                endpoint,
                Event::Received {
                    conn: ConnId::new(id),
                    into,
                    len,
                },
            );
        } else if end.peer_has_ended && end.inbox.is_empty() {
            self.finish_sending(id);
            return self.end(id, CloseReason::PeerClosed);
        }
        self.count(endpoint, |stats| stats.received_bytes += len as u64);
        if len > 0
            && let Some(peer) = peer
        {
            self.progress_send(peer);
        }
    }

    pub(in crate::transport::sim) fn send(
        &mut self,
        owner: usize,
        id: u64,
        head: FrameBytes,
        body: Option<B>,
    ) {
        let Some(end) = self.ends.get_mut(&id).filter(|end| end.endpoint == owner) else {
            return;
        };
        if end.closing.is_some() {
            return;
        }
        assert!(
            end.sending.is_none(),
            "{} has a send outstanding",
            ConnId::new(id)
        );
        end.sending = Some(Sending {
            head,
            body,
            taken: 0,
        });
        self.progress_send(id);
    }

    pub(super) fn progress_send(&mut self, id: u64) {
        loop {
            let piece_limit = self.random.up_to(self.config.max_piece_bytes);
            let Some(end) = self.ends.get(&id) else {
                return;
            };
            let Some(peer) = end
                .peer
                .filter(|_| !end.connecting && end.closing.is_none())
            else {
                return;
            };
            let unread = self.ends.get(&peer).map_or(0, |peer| peer.inbox.len());
            let room = self
                .config
                .window_bytes
                .saturating_sub(end.under_way + unread);
            let Some(end) = self.ends.get_mut(&id) else {
                return;
            };
            let endpoint = end.endpoint;
            let Some(sending) = &mut end.sending else {
                return;
            };
            let piece = sending.take(piece_limit.min(room));
            let is_done = sending.taken == sending.len();
            let len = piece.len();
            end.under_way += len;
            if is_done {
                end.sending = None;
                self.tell(
                    endpoint,
                    Event::Sent {
                        conn: ConnId::new(id),
                    },
                );
            }
            if len > 0 {
                self.count(endpoint, |stats| stats.sent_bytes += len as u64);
                self.put_on_wire(
                    id,
                    Arrival::Bytes {
                        from: id,
                        bytes: piece,
                    },
                );
            }
            if is_done || len == 0 {
                return;
            }
        }
    }

    pub(in crate::transport::sim) fn close(&mut self, owner: usize, id: u64, how: Close) {
        let Some(end) = self.ends.get_mut(&id).filter(|end| end.endpoint == owner) else {
            return;
        };
        if how == Close::Reset {
            let peer = end.peer.take();
            self.reset(peer);
        } else {
            self.finish_sending(id);
        }
        self.end(id, CloseReason::Requested);
    }

    /// The other end learns that nothing more comes, after what is under way.
    fn finish_sending(&mut self, id: u64) {
        self.put_on_wire(id, Arrival::End);
        if let Some(end) = self.ends.get_mut(&id) {
            end.peer = None;
        }
    }

    /// Discards what is under way to an end and resets it.
    pub(super) fn reset(&mut self, to: Option<u64>) {
        let Some(to) = to else { return };
        self.happenings.retain(|_, happening| happening.to != to);
        self.held.retain(|happening| happening.to != to);
        if let Some(end) = self.ends.get(&to) {
            let (hosts, target) = (end.hosts, end.peer_addr);
            self.schedule(to, hosts, target, Arrival::Reset);
        }
    }

    pub(super) fn end(&mut self, id: u64, reason: CloseReason) {
        let Some(end) = self.ends.get_mut(&id).filter(|end| end.closing.is_none()) else {
            return;
        };
        end.closing = Some(reason);
        end.sending = None;
        end.inbox.clear();
        if let Some(Some(endpoint)) = self.endpoints.get_mut(end.endpoint) {
            endpoint.closed.push(id);
        }
    }
}
