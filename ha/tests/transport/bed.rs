//! A test bed: sides that own a transport and sort its events, and buffers that can tell what
//! happened to them.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use epochlog_ha::{
    Body, Close, CloseReason, ConnId, Event, FrameBytes, RecvInto, Transport, TransportConfig,
    Window,
};

use super::peers::{Peer, SocketPeer};

pub(crate) type Boxed = Box<dyn Transport<Room, Lease>>;

/// Makes the two ends of a test; for sockets the second call is like the first.
pub(crate) trait Maker {
    fn make(&mut self, config: TransportConfig) -> Boxed;

    /// An address to listen on.
    fn addr(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], 0))
    }

    /// A bare connection to `addr`.
    fn peer(&mut self, addr: SocketAddr) -> Box<dyn Peer> {
        Box::new(SocketPeer::connect(addr))
    }
}

/// Longest time a test may wait for anything.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// A body that counts how many of its kind are alive.
pub(crate) struct Lease {
    bytes: Arc<Vec<u8>>,
    alive: Arc<AtomicUsize>,
}

impl Lease {
    pub(crate) fn new(bytes: &Arc<Vec<u8>>, alive: &Arc<AtomicUsize>) -> Self {
        alive.fetch_add(1, Ordering::SeqCst);
        Self {
            bytes: Arc::clone(bytes),
            alive: Arc::clone(alive),
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.alive.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Body for Lease {
    fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

const CANARY: u8 = 0xA5;
const GUARD: usize = 64;

/// A window between two guards that nobody may write to.
#[derive(Debug)]
pub(crate) struct Room(Vec<u8>);

impl Room {
    pub(crate) fn new(len: usize) -> Self {
        Self(vec![CANARY; len + 2 * GUARD])
    }

    pub(crate) fn guards_are_whole(&self) -> bool {
        let end = self.0.len() - GUARD;
        self.0[..GUARD]
            .iter()
            .chain(&self.0[end..])
            .all(|byte| *byte == CANARY)
    }
}

impl Window for Room {
    fn room(&mut self) -> &mut [u8] {
        let end = self.0.len() - GUARD;
        &mut self.0[GUARD..end]
    }
}

/// One end: a transport and what it has reported so far.
pub(crate) struct Side {
    pub(crate) transport: Boxed,
    pub(crate) accepted: Vec<ConnId>,
    pub(crate) accepted_from: Vec<SocketAddr>,
    pub(crate) connected: Vec<ConnId>,
    pub(crate) received: HashMap<ConnId, Vec<u8>>,
    /// Rooms given back by receives that are done, newest last.
    pub(crate) rooms: Vec<(Room, usize)>,
    pub(crate) idle_receives: Vec<ConnId>,
    pub(crate) sent: HashMap<ConnId, usize>,
    pub(crate) closed: HashMap<ConnId, (CloseReason, Option<usize>)>,
    events: Vec<Event<Room>>,
}

impl Side {
    pub(crate) fn new(transport: Boxed) -> Self {
        Self {
            transport,
            accepted: Vec::new(),
            accepted_from: Vec::new(),
            connected: Vec::new(),
            received: HashMap::new(),
            rooms: Vec::new(),
            idle_receives: Vec::new(),
            sent: HashMap::new(),
            closed: HashMap::new(),
            events: Vec::new(),
        }
    }

    /// Waits and sorts; whether there was anything.
    pub(crate) fn step(&mut self, timeout: Duration) -> bool {
        self.transport.wait(timeout, &mut self.events).unwrap();
        let any = !self.events.is_empty();
        for event in std::mem::take(&mut self.events) {
            assert!(
                !self.closed.contains_key(&event.conn()),
                "{event:?} after Closed"
            );
            self.sort(event);
        }
        any
    }

    fn sort(&mut self, event: Event<Room>) {
        match event {
            Event::Accepted { conn, peer } => {
                self.accepted.push(conn);
                self.accepted_from.push(peer);
            }
            Event::Connected { conn } => self.connected.push(conn),
            Event::Received { conn, into, len } => {
                assert!(len >= 1);
                self.idle_receives.push(conn);
                self.take(conn, into, len);
            }
            Event::Sent { conn } => *self.sent.entry(conn).or_default() += 1,
            Event::Closed {
                conn,
                reason,
                received,
            } => {
                let filled = received.map(|(into, len)| {
                    self.take(conn, into, len);
                    len
                });
                self.closed.insert(conn, (reason, filled));
            }
        }
    }

    fn take(&mut self, conn: ConnId, mut into: RecvInto<Room>, len: usize) {
        let bytes = &into.room()[..len];
        self.received
            .entry(conn)
            .or_default()
            .extend_from_slice(bytes);
        if let RecvInto::Window(room) = into {
            assert!(room.guards_are_whole(), "written outside of the window");
            self.rooms.push((room, len));
        }
    }

    pub(crate) fn recv(&mut self, conn: ConnId, room: usize, at_least: usize) {
        self.transport
            .recv(conn, RecvInto::Window(Room::new(room)), at_least);
    }

    pub(crate) fn send(&mut self, conn: ConnId, head: &[u8], body: Option<Lease>) {
        self.transport.send(conn, FrameBytes::new(head), body);
    }

    pub(crate) fn close(&mut self, conn: ConnId, how: Close) {
        self.transport.close(conn, how);
    }

    pub(crate) fn received(&self, conn: ConnId) -> &[u8] {
        self.received.get(&conn).map_or(&[], Vec::as_slice)
    }

    pub(crate) fn sent(&self, conn: ConnId) -> usize {
        self.sent.get(&conn).copied().unwrap_or(0)
    }
}

/// A listening side, a connecting side.
pub(crate) struct Bed {
    pub(crate) server: Side,
    pub(crate) client: Side,
    pub(crate) addr: SocketAddr,
}

impl Bed {
    pub(crate) fn new(maker: &mut dyn Maker) -> Self {
        Self::with_config(maker, TransportConfig::default())
    }

    pub(crate) fn with_config(maker: &mut dyn Maker, config: TransportConfig) -> Self {
        let mut server = Side::new(maker.make(config.clone()));
        let addr = server.transport.listen(maker.addr()).unwrap();
        Self {
            server,
            client: Side::new(maker.make(config)),
            addr,
        }
    }

    /// Runs both sides until `until` holds; fails the test after [`PATIENCE`].
    pub(crate) fn run(&mut self, what: &str, mut until: impl FnMut(&mut Side, &mut Side) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !until(&mut self.server, &mut self.client) {
            assert!(Instant::now() < deadline, "waited in vain for: {what}");
            let busy = self.server.step(Duration::ZERO) | self.client.step(Duration::ZERO);
            if !busy {
                self.server.step(Duration::from_millis(1));
                self.client.step(Duration::from_millis(1));
            }
        }
    }

    /// Runs both sides for a while, whatever happens.
    pub(crate) fn run_for(&mut self, time: Duration) {
        let end = Instant::now() + time;
        while Instant::now() < end {
            self.server.step(Duration::from_millis(1));
            self.client.step(Duration::from_millis(1));
        }
    }

    /// One more connection: its id on the server and on the client.
    pub(crate) fn connect(&mut self) -> (ConnId, ConnId) {
        let before = self.server.accepted.len();
        let client = self.client.transport.connect(self.addr).unwrap();
        self.run("accepted and connected", |server, other| {
            server.accepted.len() > before && other.connected.contains(&client)
        });
        (self.server.accepted[before], client)
    }
}

/// Bytes that depend on the seed, for content checks.
pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut random = Random(seed | 1);
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        bytes.extend_from_slice(&random.next().to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// xorshift64*; good enough to choose sizes.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
}
