//! What a transport promises to the loop that owns it, and the four ways to keep the promise.
//!
//! A transport is a proactor: the loop asks for one receive and one send per connection, calls
//! [`Transport::wait`], and gets back what has completed. It moves bytes and holds no policy.
//!
//! Invariants, held by every implementation and checked by one suite:
//! - Buffers belong to the transport from the call until the event that gives them back. Nothing
//!   the kernel may still read or write is ever freed, moved or given back.
//! - [`Event::Closed`] comes exactly once per connection, is the last event with its id, and
//!   comes only after the last completion of every operation on it: the receive buffer is inside,
//!   and the bodies handed to `send` have been dropped.
//! - The bytes of a connection arrive in the order of its sends, head before body.
//! - A peer's error is an event, never a panic and never an error of [`Transport::wait`].

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::task::Waker;
use std::time::{Duration, Instant};

mod kind;
mod sim;
mod socket;
#[path = "transport/std.rs"]
mod std_sockets;
mod table;
mod tokio_uring;
mod uring;
mod wake;

pub use self::tokio_uring::TokioUringTransport;
pub use kind::{OpenError, TransportKind};
pub use sim::{SimConfig, SimNet, SimTransport};
pub use std_sockets::StdTransport;
pub use uring::{RingRefused, UringTransport};

/// Names one connection of one transport for the life of the process; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnId(u64);

impl ConnId {
    pub(crate) fn new(id: u64) -> Self {
        Self(id)
    }

    /// The number, for logs.
    pub fn as_u64(self) -> u64 {
        self.0
    }
}

impl fmt::Display for ConnId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "conn-{}", self.0)
    }
}

/// Bytes to send after a frame's head without copying them: the value keeps them alive.
///
/// The transport asks for the bytes once per operation, after it has put the value where it
/// will stay, and drops the value when the kernel can no longer read them.
pub trait Body: Send + Sync + 'static {
    /// The same bytes at the same address on every call, unchanged as long as `self` is alive
    /// and not moved.
    fn bytes(&self) -> &[u8];
}

/// Room to receive into in place; exclusive until it is dropped.
pub trait Window: Send + 'static {
    /// The same room at the same address on every call, as long as `self` is not moved.
    fn room(&mut self) -> &mut [u8];
}

impl Body for Vec<u8> {
    fn bytes(&self) -> &[u8] {
        self
    }
}

impl Window for Vec<u8> {
    fn room(&mut self) -> &mut [u8] {
        self
    }
}

/// Where received bytes go.
#[derive(Debug)]
pub enum RecvInto<W> {
    /// A heap buffer; its length (not its capacity) is the room.
    Bytes(Vec<u8>),
    /// A place in the log past its published end.
    Window(W),
}

impl<W: Window> RecvInto<W> {
    /// All of the room.
    pub fn room(&mut self) -> &mut [u8] {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Window(window) => window.room(),
        }
    }
}

/// The head of a frame, or a whole small frame: up to [`FrameBytes::INLINE`] bytes without an
/// allocation.
#[derive(Clone)]
pub struct FrameBytes {
    inline: [u8; Self::INLINE],
    inline_len: u8,
    heap: Vec<u8>,
}

impl FrameBytes {
    /// Longest head that costs no allocation, in bytes; a transfer header has 36.
    pub const INLINE: usize = 64;

    /// Copies `bytes`.
    pub fn new(bytes: &[u8]) -> Self {
        let mut inline = [0; Self::INLINE];
        match inline.get_mut(..bytes.len()) {
            Some(room) => {
                room.copy_from_slice(bytes);
                #[expect(
                    clippy::cast_possible_truncation,
                    reason = "at most INLINE, which is 64"
                )]
                let inline_len = bytes.len() as u8;
                Self {
                    inline,
                    inline_len,
                    heap: Vec::new(),
                }
            }
            None => Self {
                inline,
                inline_len: 0,
                heap: bytes.to_vec(),
            },
        }
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        if self.heap.is_empty() {
            &self.inline[..usize::from(self.inline_len)]
        } else {
            &self.heap
        }
    }
}

impl From<&[u8]> for FrameBytes {
    fn from(bytes: &[u8]) -> Self {
        Self::new(bytes)
    }
}

impl From<Vec<u8>> for FrameBytes {
    /// Keeps the allocation.
    fn from(heap: Vec<u8>) -> Self {
        Self {
            inline: [0; Self::INLINE],
            inline_len: 0,
            heap,
        }
    }
}

impl fmt::Debug for FrameBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("FrameBytes").field(&self.as_slice()).finish()
    }
}

/// How a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Close {
    /// An unfinished send is cut off; what the kernel has taken is still delivered, then FIN.
    /// With zero-copy bytes unacknowledged by a stalled peer, [`Event::Closed`] may take up to
    /// [`TransportConfig::user_timeout`]; a second `close` with [`Close::Reset`] ends it at once.
    Graceful,
    /// RST: queued bytes are discarded (SO_LINGER 0). For role changes and truncation.
    Reset,
}

/// Why a connection ended.
#[derive(Debug)]
pub enum CloseReason {
    /// The owner called [`Transport::close`].
    Requested,
    /// The peer closed its side in order.
    PeerClosed,
    /// The connection could not be made or broke; the error names the peer and the operation.
    Failed(io::Error),
}

impl fmt::Display for CloseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Requested => f.write_str("closed by this side"),
            Self::PeerClosed => f.write_str("closed by the peer"),
            Self::Failed(error) => write!(f, "{error}"),
        }
    }
}

/// What [`Transport::wait`] reports.
#[derive(Debug)]
pub enum Event<W> {
    /// A peer connected to a listener; from now on the id takes receives and sends.
    Accepted {
        /// The new connection.
        conn: ConnId,
        /// Its address.
        peer: SocketAddr,
    },
    /// A connection asked for with [`Transport::connect`] is up.
    Connected {
        /// The id `connect` gave.
        conn: ConnId,
    },
    /// The outstanding receive is done; the next may be asked for.
    Received {
        /// The connection.
        conn: ConnId,
        /// The buffer, back in the owner's hands.
        into: RecvInto<W>,
        /// Bytes written from its start: `at_least ..= room`.
        len: usize,
    },
    /// The kernel has taken every byte of the outstanding send; the next may be asked for. The
    /// body may stay leased until the peer's kernel has acknowledged it.
    Sent {
        /// The connection.
        conn: ConnId,
    },
    /// The end of a connection; see the invariants of the module. An outstanding send was cut
    /// off at an unknown place.
    Closed {
        /// The connection, unknown to the transport from now on.
        conn: ConnId,
        /// Why.
        reason: CloseReason,
        /// The buffer of the outstanding receive and how many bytes are known to be in it. Any
        /// byte of the room may have been written to.
        received: Option<(RecvInto<W>, usize)>,
    },
}

impl<W> Event<W> {
    /// The connection the event is about.
    pub fn conn(&self) -> ConnId {
        match self {
            Self::Accepted { conn, .. }
            | Self::Connected { conn }
            | Self::Received { conn, .. }
            | Self::Sent { conn }
            | Self::Closed { conn, .. } => *conn,
        }
    }
}

/// Counters since the transport was opened, except where a field says "now".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransportStats {
    /// Connections open now, connecting and closing ones included.
    pub connections: u64,
    /// Connections accepted.
    pub accepted: u64,
    /// Connections closed at once because [`TransportConfig::max_connections`] were open.
    pub refused: u64,
    /// Bytes the kernel took.
    pub sent_bytes: u64,
    /// Bytes received.
    pub received_bytes: u64,
    /// Quanta sent zero-copy whose notification said that nothing was copied.
    pub zero_copy_quanta: u64,
    /// Quanta sent zero-copy that the kernel copied after all (loopback, veth, TLS).
    pub copied_quanta: u64,
    /// Quanta long enough for zero-copy but sent plain: refused by the kernel, over the pinned
    /// limit, or because recent ones were all copied.
    pub fallback_quanta: u64,
    /// Zero-copy sends the kernel refused with ENOMEM, EOPNOTSUPP or EINVAL.
    pub zero_copy_refusals: u64,
    /// Bytes pinned by zero-copy sends now.
    pub pinned_bytes: u64,
    /// Most bytes ever pinned at once.
    pub pinned_peak_bytes: u64,
    /// System calls made to wait or submit.
    pub enters: u64,
    /// Times the waker had to make a system call.
    pub wakes: u64,
}

/// Limits and thresholds. `Default` suits replication between brokers.
#[derive(Clone, Debug)]
pub struct TransportConfig {
    /// Connections open at once, accepted and made ones together; further ones are refused.
    pub max_connections: usize,
    /// Connections the kernel queues before they are accepted.
    pub backlog: i32,
    /// Shortest body sent zero-copy, in bytes; `usize::MAX` turns zero-copy off.
    pub zero_copy_min_bytes: usize,
    /// Bytes per zero-copy send; longer bodies go in several. 64 to 128 KiB are fastest.
    pub zero_copy_quantum_bytes: usize,
    /// Zero-copy sends of one connection without a notification yet.
    pub zero_copy_in_flight: usize,
    /// Send the next 1024 quanta of a connection plain after so many notifications in a row that
    /// said "copied" (loopback, veth, a network card that cannot gather), then try again; 0: keep
    /// sending zero-copy.
    pub zero_copy_give_up_after: u32,
    /// Submission queue entries of a ring, a power of two. Small ones only wait more often.
    pub ring_entries: u32,
    /// How long sent bytes may stay unacknowledged before the kernel ends the connection.
    pub user_timeout: Duration,
    /// Silence before the kernel probes an idle connection.
    pub keepalive: Duration,
}

impl Default for TransportConfig {
    fn default() -> Self {
        Self {
            max_connections: 1024,
            backlog: 128,
            zero_copy_min_bytes: 16 * 1024,
            zero_copy_quantum_bytes: 64 * 1024,
            zero_copy_in_flight: 8,
            zero_copy_give_up_after: 32,
            ring_entries: 256,
            user_timeout: Duration::from_secs(20),
            keepalive: Duration::from_secs(10),
        }
    }
}

/// Moves bytes for one loop. Made on any thread; after the first [`Transport::wait`] it stays on
/// the thread that called it, and is dropped there.
///
/// Dropping it resets every connection and returns within a second; a buffer the kernel still
/// holds by then is leaked, not freed.
pub trait Transport<W: Window, B: Body>: Send {
    /// Listens on `addr` and returns the address bound (port 0 picks one). Peers are accepted in
    /// the background and announced by [`Event::Accepted`].
    fn listen(&mut self, addr: SocketAddr) -> io::Result<SocketAddr>;

    /// Starts to connect; [`Event::Connected`] or [`Event::Closed`] follows. There is no time
    /// limit but the kernel's: `close` the id to give up.
    fn connect(&mut self, addr: SocketAddr) -> io::Result<ConnId>;

    /// Asks for `at_least` (1 ..= room) bytes into the start of `into`, up to its whole room.
    /// One outstanding per connection; a second is our own mistake and panics. For a connection
    /// that is closing the buffer comes back in [`Event::Closed`]; for an unknown id it is
    /// dropped.
    fn recv(&mut self, conn: ConnId, into: RecvInto<W>, at_least: usize);

    /// Sends `head`, then `body`. One outstanding per connection (until [`Event::Sent`]); a
    /// second panics. For a connection that is closing or unknown both are dropped.
    fn send(&mut self, conn: ConnId, head: FrameBytes, body: Option<B>);

    /// Ends a connection, also one that is still connecting; [`Event::Closed`] follows. Asking
    /// again is allowed, and [`Close::Reset`] overrules [`Close::Graceful`]. Unknown ids are
    /// ignored.
    fn close(&mut self, conn: ConnId, how: Close);

    /// Submits what was asked for and appends what has completed to `events`. Returns at the
    /// first completion, at a wake, or after `timeout` (zero: only looks). Errors are of the
    /// transport itself and final.
    fn wait(&mut self, timeout: Duration, events: &mut Vec<Event<W>>) -> io::Result<()>;

    /// Whether the next [`Transport::wait`] has something to report without asking the kernel.
    fn is_ready(&self) -> bool {
        false
    }

    /// Ends a running [`Transport::wait`], or the next one if none is running, from any thread.
    /// Costs a system call only when the loop sleeps.
    fn waker(&self) -> Waker;

    /// The clock that timeouts of `wait` follow; virtual in the simulated transport.
    fn now(&self) -> Instant {
        Instant::now()
    }

    /// Counters.
    fn stats(&self) -> TransportStats;

    /// `"uring"`, `"tokio-uring"`, `"std"` or `"sim"`.
    fn name(&self) -> &'static str;
}
