//! The master's side: one thread, one transport, all slaves.
//!
//! The loop feeds the connection machines and sends what they ask for, straight from the mapped
//! log. It holds no policy of its own. Every turn reads the log's end before its epochs: an end
//! read later could lie in an epoch the list does not have yet, and be sent under the old one.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;

use crossbeam::channel::Sender;
use epochlog_engine::{LogSlice, Offset};

use super::clock::{Rate, now_ms, until};
use super::runtime_info::ConnectionInfo;
use super::{Core, LONGEST_WAIT, MASTER_THREAD};
use crate::batch::{CursorError, LogBounds};
use crate::frame::{Capabilities, FrameFromSlave, SlaveFrameDecoder, TransferHeader};
use crate::master::{Heard, MasterClose, MasterConnection, MasterLog, MasterSend};
use crate::sync_state::{AckCounted, Joining};
use crate::transport::{
    Body, Close, CloseReason, ConnId, Event, FrameBytes, RecvInto, Transport, TransportStats,
};

/// Reports of a slave that may come in one read.
const RECV_LEN: usize = 1024;

impl Body for LogSlice {
    fn bytes(&self) -> &[u8] {
        self
    }
}

/// Orders to the thread.
pub(super) enum Order {
    /// Reset every connection whose handshake was answered, and answer when all have ended: after
    /// that no byte of the log is on its way to anybody.
    Reset(Sender<()>),
    /// Tell about the connections.
    Info(Sender<(&'static str, Vec<ConnectionInfo>, TransportStats)>),
    /// End.
    Stop,
}

pub(super) type MasterTransport = Box<dyn Transport<Vec<u8>, LogSlice>>;

struct Peer {
    addr: SocketAddr,
    machine: MasterConnection,
    decoder: SlaveFrameDecoder,
    closing: bool,
    /// It counts in the SyncStateSet under this id.
    counted: Option<u64>,
    rate: Rate,
}

pub(super) struct Fanout {
    core: Arc<Core>,
    transport: MasterTransport,
    peers: HashMap<ConnId, Peer>,
    resetting: Vec<(HashSet<ConnId>, Sender<()>)>,
    stopping: bool,
}

impl Fanout {
    pub(super) fn new(core: Arc<Core>, transport: MasterTransport) -> Self {
        Self {
            core,
            transport,
            peers: HashMap::new(),
            resetting: Vec::new(),
            stopping: false,
        }
    }

    /// The body of the thread.
    pub(super) fn run(mut self) {
        let mut events = Vec::new();
        loop {
            self.orders();
            if self.stopping {
                return;
            }
            let now = now_ms();
            let due = self.pump(now);
            let due = self.core.terms.settle_and_plan(&self.core.store, now, due);
            if let Err(error) = self
                .transport
                .wait(until(due, now, LONGEST_WAIT), &mut events)
            {
                tracing::error!(%error, "the transport of the master has failed");
                self.core.lost_thread(MASTER_THREAD, &error.to_string());
                return;
            }
            let now = now_ms();
            let mut acked = false;
            for event in events.drain(..) {
                acked |= self.event(event, now);
            }
            if acked {
                self.core.terms.settle(&self.core.store, now);
            }
        }
    }

    fn orders(&mut self) {
        for order in self.core.fanout.take() {
            match order {
                Order::Reset(done) => self.reset(done),
                Order::Info(tell) => {
                    let stats = self.transport.stats();
                    let info = (self.transport.name(), self.info(), stats);
                    // Whoever asked may have given up.
                    let _ = tell.send(info);
                }
                Order::Stop => self.stopping = true,
            }
        }
    }

    fn reset(&mut self, done: Sender<()>) {
        let answered = |peer: &Peer| peer.machine.is_answered();
        let ids: HashSet<ConnId> = self
            .peers
            .iter()
            .filter(|(_, peer)| answered(peer))
            .map(|(id, _)| *id)
            .collect();
        for id in &ids {
            if let Some(peer) = self.peers.get_mut(id) {
                peer.closing = true;
            }
            self.transport.close(*id, Close::Reset);
        }
        if ids.is_empty() {
            let _ = done.send(());
        } else {
            self.resetting.push((ids, done));
        }
    }

    /// Sends what is due; returns when something will be.
    fn pump(&mut self, now: u64) -> u64 {
        let serving = self.core.terms.serving();
        let store = &self.core.store;
        let bounds = LogBounds {
            min: store.min_offset(),
            end: store.end_offset(),
            segment_size: store.segment_size(),
        };
        let epochs = store.epochs();
        let confirm = store.confirm_offset();
        let log = MasterLog {
            epochs: &epochs,
            bounds,
            confirm,
            serving,
        };
        let mut due = u64::MAX;
        let mut over = Vec::new();
        for (id, peer) in self.peers.iter_mut().filter(|(_, peer)| !peer.closing) {
            let next = peer
                .machine
                .tick(now)
                .and_then(|()| peer.machine.next_send(&log, now));
            match next.and_then(|send| {
                let agreed = peer.machine.agreed();
                // Reports come in the agreed form once the answer is there.
                peer.decoder.agree(agreed);
                send.map(|send| frame(&self.core, agreed, send)).transpose()
            }) {
                Ok(None) => (),
                Ok(Some((head, body))) => {
                    let metrics = &self.core.metrics;
                    match &body {
                        Some(body) => {
                            metrics.frames_sent.add(1);
                            metrics.body_bytes_sent.add(body.len() as u64);
                        }
                        None => metrics.heartbeats_sent.add(1),
                    }
                    let len = head.as_slice().len() + body.as_ref().map_or(0, |b| b.len());
                    peer.rate.add(len as u64, now);
                    self.transport.send(*id, head, body);
                }
                Err(reason) => over.push((*id, reason)),
            }
            due = due.min(peer.machine.next_due_ms());
        }
        for (id, reason) in over {
            self.close(id, &reason);
        }
        due
    }

    fn close(&mut self, id: ConnId, reason: &MasterClose) {
        let Some(peer) = self.peers.get_mut(&id).filter(|peer| !peer.closing) else {
            return;
        };
        peer.closing = true;
        self.core.metrics.closed_by_master(reason.reason());
        let (addr, broker_id) = (peer.addr, peer.machine.broker_id());
        tracing::warn!(%addr, broker_id, reason = reason.reason(), "slave left: {reason}");
        self.transport.close(id, Close::Reset);
    }

    /// Returns whether an ack was counted.
    fn event(&mut self, event: Event<Vec<u8>>, now: u64) -> bool {
        match event {
            Event::Accepted { conn, peer } => self.accepted(conn, peer, now),
            Event::Received { conn, into, len } => return self.received(conn, into, len, now),
            Event::Sent { conn } => {
                if let Some(peer) = self.peers.get_mut(&conn) {
                    peer.machine.sent();
                }
            }
            Event::Closed { conn, reason, .. } => self.closed(conn, &reason, now),
            // The master connects to nobody.
            Event::Connected { conn } => self.transport.close(conn, Close::Reset),
        }
        false
    }

    fn accepted(&mut self, conn: ConnId, addr: SocketAddr, now: u64) {
        let config = &self.core.config;
        let half_open = |peer: &&Peer| !peer.closing && !peer.machine.has_shaken_hands();
        let refused = if !config.allows_addr(addr.ip()) {
            Some("it is not among the allowed ones (haAllowedPeers)")
        } else if self.peers.values().filter(half_open).count() >= config.max_half_open {
            Some("too many connections have not shaken hands yet")
        } else {
            None
        };
        if let Some(why) = refused {
            self.core.metrics.turned_away.add(1);
            tracing::warn!(%addr, why, "a peer was turned away");
            self.transport.close(conn, Close::Reset);
            return;
        }
        let peer = Peer {
            addr,
            machine: MasterConnection::new(config.master(), now),
            decoder: SlaveFrameDecoder::new(config.accept_address_handshake),
            closing: false,
            counted: None,
            rate: Rate::default(),
        };
        self.peers.insert(conn, peer);
        self.transport
            .recv(conn, RecvInto::Bytes(vec![0; RECV_LEN]), 1);
    }

    fn received(
        &mut self,
        conn: ConnId,
        mut into: RecvInto<Vec<u8>>,
        len: usize,
        now: u64,
    ) -> bool {
        let mut counted = false;
        match self.frames(conn, &into.room()[..len], now, &mut counted) {
            Ok(()) => self.transport.recv(conn, into, 1),
            Err(reason) => self.close(conn, &reason),
        }
        counted
    }

    fn frames(
        &mut self,
        conn: ConnId,
        mut bytes: &[u8],
        now: u64,
        counted: &mut bool,
    ) -> Result<(), MasterClose> {
        while !bytes.is_empty() {
            let Some(peer) = self.peers.get_mut(&conn).filter(|peer| !peer.closing) else {
                return Ok(());
            };
            peer.machine.heard(now);
            let decoded = peer.decoder.push(bytes)?;
            bytes = &bytes[decoded.consumed..];
            let Some(mut frame) = decoded.frame else {
                continue;
            };
            if let FrameFromSlave::Handshake(hello) = &mut frame {
                self.core.config.name(hello);
                self.core.config.check_broker(hello)?;
            }
            let store = &self.core.store;
            let bounds = LogBounds {
                min: store.min_offset(),
                end: store.end_offset(),
                segment_size: store.segment_size(),
            };
            let epochs = store.epochs();
            let log = MasterLog {
                epochs: &epochs,
                bounds,
                confirm: 0,
                serving: None,
            };
            match peer.machine.frame(frame, &log)? {
                Heard::Nothing => (),
                Heard::Started { offset, flushed } => {
                    self.started(conn, offset, bounds.end, now)?;
                    self.on_disk(conn, flushed);
                    *counted = true;
                }
                Heard::Acked { offset, flushed } => {
                    self.count(conn, offset, bounds.end, now);
                    self.on_disk(conn, flushed);
                    *counted = true;
                }
            }
        }
        Ok(())
    }

    /// A slave has said where it begins: from now on it counts.
    fn started(
        &mut self,
        conn: ConnId,
        offset: Offset,
        end: Offset,
        now: u64,
    ) -> Result<(), MasterClose> {
        let Some(peer) = self.peers.get_mut(&conn) else {
            return Ok(());
        };
        let (addr, learner) = (peer.addr, peer.machine.is_learner());
        let broker_id = peer.machine.broker_id();
        tracing::info!(%addr, broker_id, offset, end, learner, "slave joined");
        let Some(broker_id) = peer.machine.broker_id() else {
            return Ok(());
        };
        peer.counted = Some(broker_id);
        // What an older connection of it was sent must be known before its first report is judged.
        let peers = &self.peers;
        let joined = self.core.terms.with(|term| {
            let older =
                |(id, peer): &(&ConnId, &Peer)| **id != conn && peer.counted == Some(broker_id);
            // Several may still be closing; only the newest is taken.
            for (id, peer) in peers.iter().filter(older) {
                let sent = peer.machine.cursor().map_or(0, |cursor| cursor.next());
                term.sync.sent(broker_id, *id, sent);
            }
            term.sync.joined(broker_id, conn, learner, now)
        });
        match joined {
            Some(Joining::OwnId) => return Err(MasterClose::OwnId { broker_id }),
            Some(Joining::Replaces(older)) => {
                self.close(older, &MasterClose::Replaced { broker_id });
            }
            Some(Joining::First) | None => (),
        }
        self.count(conn, offset, end, now);
        Ok(())
    }

    fn count(&mut self, conn: ConnId, offset: Offset, end: Offset, now: u64) {
        let Some(peer) = self.peers.get_mut(&conn) else {
            return;
        };
        let level = peer.machine.level_at(end, now);
        let Some(broker_id) = peer.counted else {
            return;
        };
        let counted = self.core.terms.with(|term| {
            term.sync.reported(broker_id, conn, now);
            let counted = term.sync.acked(broker_id, conn, offset);
            if let Some(at) = level {
                term.sync.caught_up(broker_id, conn, at);
            }
            counted
        });
        if counted == Some(AckCounted::NeverSent) {
            tracing::error!(
                addr = %peer.addr, broker_id, offset,
                "this slave holds bytes of the present epoch that this master never sent it: a \
                 tail it had cut has come back; it counts for nothing until it joins anew. Discard its \
                 log with `epochlog repair resync STORE_DIR` there"
            );
        }
    }

    /// A slave that syncs at once has told how far it is on disk.
    fn on_disk(&self, conn: ConnId, flushed: Option<Offset>) {
        let broker_id = self.peers.get(&conn).and_then(|peer| peer.counted);
        if let (Some(broker_id), Some(flushed)) = (broker_id, flushed) {
            self.core
                .terms
                .with(|term| term.sync.flushed(broker_id, conn, flushed));
        }
    }

    fn closed(&mut self, conn: ConnId, reason: &CloseReason, now: u64) {
        if let Some(peer) = self.peers.remove(&conn) {
            if !peer.closing {
                tracing::info!(addr = %peer.addr, broker_id = peer.machine.broker_id(),
                    "slave's connection ended: {reason}");
            }
            if let Some(broker_id) = peer.counted {
                let sent = peer.machine.cursor().map_or(0, |cursor| cursor.next());
                self.core.terms.with(|term| {
                    term.sync.sent(broker_id, conn, sent);
                    term.sync.left(broker_id, conn, now);
                });
            }
        }
        for (ids, _) in &mut self.resetting {
            ids.remove(&conn);
        }
        self.resetting.retain(|(ids, done)| {
            if ids.is_empty() {
                let _ = done.send(());
            }
            !ids.is_empty()
        });
    }

    fn info(&mut self) -> Vec<ConnectionInfo> {
        let (end, now) = (self.core.store.end_offset(), now_ms());
        let members = self.core.terms.with(|term| term.sync.members().clone());
        let members = members.unwrap_or_default();
        let open = self.peers.values_mut().filter(|peer| !peer.closing);
        open.map(|peer| ConnectionInfo {
            addr: peer.addr,
            broker_id: peer.machine.broker_id(),
            slave_ack_offset: peer.machine.ack(),
            lag_ms: peer.machine.level_ms().map(|at| now.saturating_sub(at)),
            slave_flushed_offset: peer.machine.flushed(),
            extended: peer.machine.agreed() != Capabilities::NONE,
            diff: end.saturating_sub(peer.machine.ack().unwrap_or(0)),
            in_sync: peer.counted.is_some_and(|id| members.contains(&id)),
            transferred_byte_in_second: peer.rate.per_second(now),
            transfer_from_where: peer.machine.cursor().map(|cursor| cursor.next()),
        })
        .collect()
    }
}

/// The bytes of a send.
fn frame(
    core: &Core,
    agreed: Capabilities,
    send: MasterSend,
) -> Result<(FrameBytes, Option<LogSlice>), MasterClose> {
    let encoded = |head: TransferHeader, body: &[u8]| match agreed.contains(Capabilities::CHECKSUM)
    {
        true => FrameBytes::new(&head.encode_checked(body)),
        false => FrameBytes::new(&head.encode()),
    };
    match send {
        MasterSend::Handshake(bytes) => Ok((FrameBytes::from(bytes), None)),
        MasterSend::Heartbeat(head) => Ok((encoded(head, &[]), None)),
        MasterSend::Transfer(head, batch) => {
            let body = core.store.slice(batch.offset, batch.len as usize);
            match body {
                Ok(body) if body.len() == batch.len as usize => {
                    Ok((encoded(head, &body), Some(body)))
                }
                // A cut or a deletion came between.
                _ => {
                    let end = core.store.end_offset();
                    Err(CursorError::PastEnd {
                        next: batch.end(),
                        end,
                    }
                    .into())
                }
            }
        }
    }
}
