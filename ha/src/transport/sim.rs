//! A network in memory with a clock of its own: what happens is a function of the seed and of the
//! calls made.
//!
//! [`SimNet`] makes endpoints, one per host. All of them share one virtual clock: a `wait` that
//! finds nothing moves the clock on to whatever happens next, at most by its timeout; a `wait` of
//! zero never does, so that a scheduler can move the clock itself ([`SimNet::advance`]).
//!
//! Connections behave like TCP: bytes arrive in order, split anywhere, after a delay; a receiver
//! that does not read holds the sender up; a reset discards what is under way. Between two hosts
//! the wire can be stalled or every connection broken.
//!
//! Meant for one thread: waits on several threads would race for the clock.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

mod wire;
mod world;

use self::world::World;
use super::{
    Body, Close, ConnId, Event, FrameBytes, RecvInto, Transport, TransportConfig, TransportStats,
    Window,
};

/// How the simulated wire behaves. `Default` is a local network with short, uneven delays.
#[derive(Clone, Copy, Debug)]
pub struct SimConfig {
    /// Shortest time a piece is under way.
    pub min_delay: Duration,
    /// Longest time a piece is under way; not less than `min_delay`.
    pub max_delay: Duration,
    /// Longest piece in which bytes arrive; the length of each is random.
    pub max_piece_bytes: usize,
    /// Bytes of one direction that may be sent and not yet read.
    pub window_bytes: usize,
}

impl Default for SimConfig {
    fn default() -> Self {
        Self {
            min_delay: Duration::from_micros(20),
            max_delay: Duration::from_micros(500),
            max_piece_bytes: 64 * 1024,
            window_bytes: 256 * 1024,
        }
    }
}

/// A simulated network; clones are the same network.
pub struct SimNet<W, B> {
    world: Arc<Mutex<World<W, B>>>,
}

impl<W, B> Clone for SimNet<W, B> {
    fn clone(&self) -> Self {
        Self {
            world: Arc::clone(&self.world),
        }
    }
}

impl<W: Window, B: Body> SimNet<W, B> {
    /// An empty network at time zero. The same seed and the same calls give the same events.
    pub fn new(seed: u64, config: SimConfig) -> Self {
        Self {
            world: Arc::new(Mutex::new(World::new(seed, config))),
        }
    }

    /// The transport of a host that has this address and no other.
    pub fn endpoint(&self, host: IpAddr, config: TransportConfig) -> SimTransport<W, B> {
        let endpoint = self.world.lock().add_endpoint(host, config);
        let wake = Arc::new(WakeFlag(AtomicBool::new(false)));
        SimTransport {
            world: Arc::clone(&self.world),
            endpoint,
            wake,
        }
    }

    /// Virtual time since the network was made.
    pub fn elapsed(&self) -> Duration {
        self.world.lock().now()
    }

    /// Moves the clock and lets everything happen that is due until then.
    pub fn advance(&self, time: Duration) {
        let mut world = self.world.lock();
        let until = world.now() + time;
        world.run_until(until);
    }

    /// When something happens next, as time since the network was made; none: the network is
    /// idle until a call is made.
    pub fn next_happening(&self) -> Option<Duration> {
        self.world.lock().next_happening()
    }

    /// Nothing passes between two hosts, in either direction, until [`SimNet::resume`].
    pub fn stall(&self, one: IpAddr, other: IpAddr) {
        self.world.lock().stall(one, other);
    }

    /// What was held up goes on its way.
    pub fn resume(&self, one: IpAddr, other: IpAddr) {
        self.world.lock().resume(one, other);
    }

    /// Breaks every connection between two hosts at once; both ends see a reset.
    pub fn break_connections(&self, one: IpAddr, other: IpAddr) {
        self.world.lock().break_connections(one, other);
    }
}

struct WakeFlag(AtomicBool);

impl Wake for WakeFlag {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

/// [`Transport`] of one host of a [`SimNet`]. Its `wait` never sleeps; a wake only keeps the next
/// one from moving the clock.
pub struct SimTransport<W: Window, B: Body> {
    world: Arc<Mutex<World<W, B>>>,
    endpoint: usize,
    wake: Arc<WakeFlag>,
}

impl<W: Window, B: Body> Transport<W, B> for SimTransport<W, B> {
    fn listen(&mut self, addr: SocketAddr) -> io::Result<SocketAddr> {
        self.world.lock().listen(self.endpoint, addr)
    }

    fn connect(&mut self, addr: SocketAddr) -> io::Result<ConnId> {
        self.world.lock().connect(self.endpoint, addr)
    }

    fn recv(&mut self, conn: ConnId, mut into: RecvInto<W>, at_least: usize) {
        let room = into.room().len();
        assert!(
            0 < at_least && at_least <= room,
            "receive of {at_least} bytes into {room}"
        );
        self.world
            .lock()
            .recv(self.endpoint, conn.as_u64(), into, at_least);
    }

    fn send(&mut self, conn: ConnId, head: FrameBytes, body: Option<B>) {
        self.world
            .lock()
            .send(self.endpoint, conn.as_u64(), head, body);
    }

    fn close(&mut self, conn: ConnId, how: Close) {
        self.world.lock().close(self.endpoint, conn.as_u64(), how);
    }

    fn wait(&mut self, timeout: Duration, events: &mut Vec<Event<W>>) -> io::Result<()> {
        let mut world = self.world.lock();
        let now = world.now();
        world.run_until(now);
        let woken = self.wake.0.swap(false, Ordering::AcqRel);
        let deadline = if woken {
            now
        } else {
            now.saturating_add(timeout)
        };
        while !world.report(self.endpoint, events) {
            match world.next_happening() {
                Some(next) if next <= deadline => world.run_until(next),
                _ => {
                    world.run_until(deadline);
                    break;
                }
            }
        }
        Ok(())
    }

    fn waker(&self) -> Waker {
        Waker::from(Arc::clone(&self.wake))
    }

    fn now(&self) -> Instant {
        self.world.lock().instant()
    }

    fn stats(&self) -> TransportStats {
        self.world.lock().stats(self.endpoint)
    }

    fn name(&self) -> &'static str {
        "sim"
    }
}

impl<W: Window, B: Body> Drop for SimTransport<W, B> {
    fn drop(&mut self) {
        self.world.lock().remove_endpoint(self.endpoint);
    }
}
