//! The state of the simulated network and the one queue of things to happen.
//!
//! Invariants:
//! - Maps are ordered and randomness comes from the seed alone, so runs repeat.
//! - Pieces of one direction arrive in the order in which they were sent: the arrival of a piece
//!   is never before that of the one before it.
//! - `under_way + inbox.len() <= window_bytes` for each direction.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

mod ends;

use super::SimConfig;
use super::wire::{Arrival, Happening, Random, Sending, pair};
use crate::transport::{
    Body, Close, CloseReason, ConnId, Event, RecvInto, TransportConfig, TransportStats, Window,
    socket,
};

/// First port given to whoever asks for port 0.
const FIRST_FREE_PORT: u16 = 30_000;

/// One end of a connection.
struct End<W, B> {
    endpoint: usize,
    peer_addr: SocketAddr,
    hosts: (IpAddr, IpAddr),
    /// The other end; none while connecting and after a reset.
    peer: Option<u64>,
    connecting: bool,
    inbox: VecDeque<u8>,
    peer_has_ended: bool,
    /// Bytes sent from here and not yet arrived.
    under_way: usize,
    /// When the newest piece from here arrives.
    last_arrival: Duration,
    receiving: Option<(RecvInto<W>, usize, usize)>,
    sending: Option<Sending<B>>,
    closing: Option<CloseReason>,
}

struct Endpoint<W> {
    host: IpAddr,
    config: TransportConfig,
    done: VecDeque<Event<W>>,
    closed: Vec<u64>,
    stats: TransportStats,
}

pub(super) struct World<W, B> {
    config: SimConfig,
    random: Random,
    began: Instant,
    now: Duration,
    next_id: u64,
    next_port: u16,
    endpoints: Vec<Option<Endpoint<W>>>,
    listeners: BTreeMap<SocketAddr, usize>,
    ends: BTreeMap<u64, End<W, B>>,
    stalled: BTreeSet<(IpAddr, IpAddr)>,
    held: Vec<Happening>,
    order: BinaryHeap<Reverse<(Duration, u64)>>,
    happenings: BTreeMap<u64, Happening>,
    next_happening: u64,
}

impl<W: Window, B: Body> World<W, B> {
    pub(super) fn new(seed: u64, config: SimConfig) -> Self {
        Self {
            config,
            random: Random::new(seed),
            began: Instant::now(),
            now: Duration::ZERO,
            next_id: 1,
            next_port: FIRST_FREE_PORT,
            endpoints: Vec::new(),
            listeners: BTreeMap::new(),
            ends: BTreeMap::new(),
            stalled: BTreeSet::new(),
            held: Vec::new(),
            order: BinaryHeap::new(),
            happenings: BTreeMap::new(),
            next_happening: 0,
        }
    }

    pub(super) fn add_endpoint(&mut self, host: IpAddr, config: TransportConfig) -> usize {
        let (done, closed) = (VecDeque::new(), Vec::new());
        let stats = TransportStats::default();
        self.endpoints.push(Some(Endpoint {
            host,
            config,
            done,
            closed,
            stats,
        }));
        self.endpoints.len() - 1
    }

    pub(super) fn remove_endpoint(&mut self, endpoint: usize) {
        self.listeners.retain(|_, owner| *owner != endpoint);
        for id in self.ids_of(|end| end.endpoint == endpoint) {
            self.close(endpoint, id, Close::Reset);
            self.ends.remove(&id);
        }
        self.endpoints[endpoint] = None;
    }

    pub(super) fn now(&self) -> Duration {
        self.now
    }

    pub(super) fn instant(&self) -> Instant {
        self.began + self.now
    }

    fn delay(&mut self) -> Duration {
        self.random
            .between(self.config.min_delay, self.config.max_delay)
    }

    fn host(&self, endpoint: usize) -> IpAddr {
        let host = self.endpoints[endpoint]
            .as_ref()
            .map(|endpoint| endpoint.host);
        host.unwrap_or(IpAddr::from([0, 0, 0, 0]))
    }

    fn ids_of(&self, wanted: impl Fn(&End<W, B>) -> bool) -> Vec<u64> {
        self.ends
            .iter()
            .filter(|(_, end)| wanted(end))
            .map(|(id, _)| *id)
            .collect()
    }

    fn has_room(&self, endpoint: usize) -> bool {
        let open = self
            .ends
            .values()
            .filter(|end| end.endpoint == endpoint)
            .count();
        let slot = self.endpoints.get(endpoint).and_then(Option::as_ref);
        slot.is_some_and(|endpoint| open < endpoint.config.max_connections)
    }

    fn tell(&mut self, endpoint: usize, event: Event<W>) {
        if let Some(Some(endpoint)) = self.endpoints.get_mut(endpoint) {
            endpoint.done.push_back(event);
        }
    }

    fn count(&mut self, endpoint: usize, count: impl FnOnce(&mut TransportStats)) {
        if let Some(Some(endpoint)) = self.endpoints.get_mut(endpoint) {
            count(&mut endpoint.stats);
        }
    }

    pub(super) fn listen(&mut self, endpoint: usize, addr: SocketAddr) -> io::Result<SocketAddr> {
        let host = self.host(endpoint);
        let mut bound = SocketAddr::new(host, addr.port());
        if addr.port() == 0 {
            bound.set_port(self.next_port);
            self.next_port += 1;
        }
        let refuse = |kind: io::ErrorKind| Err(socket::in_context(&kind.into(), "listen on", addr));
        if addr.ip() != host && !addr.ip().is_unspecified() {
            return refuse(io::ErrorKind::AddrNotAvailable);
        }
        if self.listeners.contains_key(&bound) {
            return refuse(io::ErrorKind::AddrInUse);
        }
        self.listeners.insert(bound, endpoint);
        Ok(bound)
    }

    fn insert(&mut self, endpoint: usize, peer_addr: SocketAddr, peer: Option<u64>) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        let end = End {
            endpoint,
            peer_addr,
            hosts: pair(self.host(endpoint), peer_addr.ip()),
            peer,
            connecting: peer.is_none(),
            inbox: VecDeque::new(),
            peer_has_ended: false,
            under_way: 0,
            last_arrival: Duration::ZERO,
            receiving: None,
            sending: None,
            closing: None,
        };
        self.ends.insert(id, end);
        id
    }

    pub(super) fn connect(&mut self, endpoint: usize, addr: SocketAddr) -> io::Result<ConnId> {
        if !self.has_room(endpoint) {
            let config = self.endpoints[endpoint]
                .as_ref()
                .map(|endpoint| &endpoint.config);
            let limit = config.map_or(0, |config| config.max_connections);
            return Err(socket::too_many_connections(addr, limit));
        }
        let id = self.insert(endpoint, addr, None);
        self.schedule(
            0,
            pair(self.host(endpoint), addr.ip()),
            addr,
            Arrival::Request { from: id },
        );
        Ok(ConnId::new(id))
    }

    /// Lets something happen after a random delay.
    fn schedule(&mut self, to: u64, hosts: (IpAddr, IpAddr), target: SocketAddr, what: Arrival) {
        let at = self.now + self.delay();
        self.schedule_at(
            at,
            Happening {
                to,
                hosts,
                target,
                arrival: what,
            },
        );
    }

    fn schedule_at(&mut self, at: Duration, happening: Happening) {
        self.next_happening += 1;
        self.order.push(Reverse((at, self.next_happening)));
        self.happenings.insert(self.next_happening, happening);
    }

    /// Puts something on the wire behind what an end has sent before.
    fn put_on_wire(&mut self, from: u64, arrival: Arrival) {
        let delay = self.delay();
        let Some(end) = self.ends.get_mut(&from) else {
            return;
        };
        let Some(to) = end.peer else { return };
        end.last_arrival = end.last_arrival.max(self.now + delay);
        let at = end.last_arrival;
        let (hosts, target) = (end.hosts, end.peer_addr);
        self.schedule_at(
            at,
            Happening {
                to,
                hosts,
                target,
                arrival,
            },
        );
    }

    pub(super) fn next_happening(&self) -> Option<Duration> {
        self.order
            .peek()
            .map(|Reverse((at, _))| (*at).max(self.now))
    }

    pub(super) fn run_until(&mut self, until: Duration) {
        while let Some(Reverse((at, number))) = self.order.peek().copied()
            && at <= until
        {
            self.order.pop();
            self.now = self.now.max(at);
            let Some(happening) = self.happenings.remove(&number) else {
                continue;
            };
            if self.stalled.contains(&happening.hosts) {
                self.held.push(happening);
            } else {
                self.happen(happening);
            }
        }
        self.now = self.now.max(until);
    }

    fn happen(&mut self, happening: Happening) {
        let Happening {
            to,
            hosts,
            target,
            arrival,
        } = happening;
        match arrival {
            Arrival::Request { from } => self.on_request(from, hosts, target),
            Arrival::Answer(peer) => self.on_answer(to, peer),
            Arrival::Bytes { from, bytes } => self.on_bytes(from, to, bytes),
            Arrival::End => {
                if let Some(end) = self.ends.get_mut(&to) {
                    end.peer_has_ended = true;
                    self.progress_recv(to);
                }
            }
            Arrival::Reset => {
                if let Some(end) = self.ends.get_mut(&to) {
                    end.peer = None;
                    end.inbox.clear();
                    let error = io::ErrorKind::ConnectionReset.into();
                    let reason = socket::failed(&error, "connection with", end.peer_addr);
                    self.end(to, reason);
                }
            }
        }
    }

    fn on_request(&mut self, from: u64, hosts: (IpAddr, IpAddr), target: SocketAddr) {
        let Some(client) = self.ends.get(&from).filter(|end| end.closing.is_none()) else {
            return;
        };
        let client_host = self.host(client.endpoint);
        let answer = match self.listeners.get(&target).copied() {
            Some(server) if self.has_room(server) => {
                let port = 1024 + u16::try_from(from % 60_000).unwrap_or(0);
                let peer = SocketAddr::new(client_host, port);
                let id = self.insert(server, peer, Some(from));
                self.count(server, |stats| stats.accepted += 1);
                self.tell(
                    server,
                    Event::Accepted {
                        conn: ConnId::new(id),
                        peer,
                    },
                );
                Some(id)
            }
            Some(server) => {
                self.count(server, |stats| stats.refused += 1);
                None
            }
            None => None,
        };
        let at = self.now + self.delay();
        let arrival = Arrival::Answer(answer);
        self.schedule_at(
            at,
            Happening {
                to: from,
                hosts,
                target,
                arrival,
            },
        );
        // What the accepted end sends must not overtake the answer.
        if let Some(end) = answer.and_then(|id| self.ends.get_mut(&id)) {
            end.last_arrival = at;
        }
    }

    fn on_answer(&mut self, id: u64, answer: Option<u64>) {
        let Some(end) = self.ends.get_mut(&id).filter(|end| end.closing.is_none()) else {
            // Given up meanwhile: the accepted end is left alone.
            return self.reset(answer);
        };
        end.connecting = false;
        match answer.filter(|peer| self.ends.contains_key(peer)) {
            Some(peer) => {
                let Some(end) = self.ends.get_mut(&id) else {
                    return;
                };
                end.peer = Some(peer);
                let endpoint = end.endpoint;
                self.tell(
                    endpoint,
                    Event::Connected {
                        conn: ConnId::new(id),
                    },
                );
                self.progress_recv(id);
                self.progress_send(id);
            }
            None => {
                let Some(end) = self.ends.get(&id) else {
                    return;
                };
                let error = io::ErrorKind::ConnectionRefused.into();
                let reason = socket::failed(&error, "connect to", end.peer_addr);
                self.end(id, reason);
            }
        }
    }

    fn on_bytes(&mut self, from: u64, to: u64, bytes: Vec<u8>) {
        if let Some(sender) = self.ends.get_mut(&from) {
            sender.under_way -= bytes.len();
        }
        match self.ends.get_mut(&to).filter(|end| end.closing.is_none()) {
            Some(end) => {
                end.inbox.extend(bytes);
                self.progress_recv(to);
            }
            // Nobody is there to read it any more.
            None => self.reset(Some(from)),
        }
    }

    /// Hands out what has happened to an endpoint; false: nothing.
    pub(super) fn report(&mut self, endpoint: usize, events: &mut Vec<Event<W>>) -> bool {
        let Some(Some(owner)) = self.endpoints.get_mut(endpoint) else {
            return false;
        };
        let any = !owner.done.is_empty() || !owner.closed.is_empty();
        events.extend(owner.done.drain(..));
        for id in owner.closed.drain(..) {
            let Some(end) = self.ends.remove(&id) else {
                continue;
            };
            let reason = end.closing.unwrap_or(CloseReason::Requested);
            let received = end.receiving.map(|(into, _, filled)| (into, filled));
            events.push(Event::Closed {
                conn: ConnId::new(id),
                reason,
                received,
            });
        }
        any
    }

    pub(super) fn stats(&self, endpoint: usize) -> TransportStats {
        let connections = self
            .ends
            .values()
            .filter(|end| end.endpoint == endpoint)
            .count() as u64;
        let stats = self.endpoints[endpoint]
            .as_ref()
            .map(|endpoint| endpoint.stats);
        TransportStats {
            connections,
            ..stats.unwrap_or_default()
        }
    }

    pub(super) fn stall(&mut self, one: IpAddr, other: IpAddr) {
        self.stalled.insert(pair(one, other));
    }

    pub(super) fn resume(&mut self, one: IpAddr, other: IpAddr) {
        // What is due now belongs behind what was held up before.
        self.run_until(self.now);
        self.stalled.remove(&pair(one, other));
        let (go, stay) = self
            .held
            .drain(..)
            .partition(|held| held.hosts == pair(one, other));
        self.held = stay;
        let go: Vec<Happening> = go;
        go.into_iter()
            .for_each(|happening| self.schedule_at(self.now, happening));
    }

    pub(super) fn break_connections(&mut self, one: IpAddr, other: IpAddr) {
        let hosts = pair(one, other);
        for id in self.ids_of(|end| end.hosts == hosts && end.closing.is_none()) {
            self.happenings.retain(|_, happening| happening.to != id);
            self.held.retain(|happening| happening.to != id);
            if let Some(end) = self.ends.get(&id) {
                let target = end.peer_addr;
                self.happen(Happening {
                    to: id,
                    hosts,
                    target,
                    arrival: Arrival::Reset,
                });
            }
        }
    }
}
