//! What travels on the simulated wire, and the randomness behind it.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use crate::transport::{Body, FrameBytes};

/// What arrives at one end of a connection.
pub(super) enum Arrival {
    Bytes {
        from: u64,
        bytes: Vec<u8>,
    },
    /// The peer will send no more.
    End,
    Reset,
    /// A request to connect from this end of a connection.
    Request {
        from: u64,
    },
    /// The answer: the other end, or nobody listens.
    Answer(Option<u64>),
}

pub(super) struct Happening {
    /// The end it happens to; of a request, 0.
    pub(super) to: u64,
    pub(super) hosts: (IpAddr, IpAddr),
    pub(super) target: SocketAddr,
    pub(super) arrival: Arrival,
}

pub(super) struct Sending<B> {
    pub(super) head: FrameBytes,
    pub(super) body: Option<B>,
    pub(super) taken: usize,
}

impl<B: Body> Sending<B> {
    pub(super) fn len(&self) -> usize {
        self.head.as_slice().len() + self.body.as_ref().map_or(0, |body| body.bytes().len())
    }

    pub(super) fn take(&mut self, most: usize) -> Vec<u8> {
        let head = self.head.as_slice();
        let body = self.body.as_ref().map_or(&[][..], Body::bytes);
        let head_rest = &head[self.taken.min(head.len())..];
        let body_rest = &body[self.taken.saturating_sub(head.len())..];
        let from_head = most.min(head_rest.len());
        let mut piece = head_rest[..from_head].to_vec();
        piece.extend_from_slice(&body_rest[..body_rest.len().min(most - from_head)]);
        self.taken += piece.len();
        piece
    }
}

/// Random numbers from a seed.
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        // Seeds close to each other must not give runs close to each other; zero would stay.
        Self(seed.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    fn next(&mut self) -> u64 {
        // xorshift64*
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// 1 ..= most.
    pub(super) fn up_to(&mut self, most: usize) -> usize {
        #[expect(clippy::cast_possible_truncation, reason = "not more than `most`")]
        let below = (self.next() % most.max(1) as u64) as usize;
        1 + below
    }

    pub(super) fn between(&mut self, least: Duration, most: Duration) -> Duration {
        let spread = u64::try_from(most.saturating_sub(least).as_nanos()).unwrap_or(u64::MAX);
        least + Duration::from_nanos(self.next() % spread.max(1))
    }
}

/// Two hosts without direction.
pub(super) fn pair(one: IpAddr, other: IpAddr) -> (IpAddr, IpAddr) {
    (one.min(other), one.max(other))
}
