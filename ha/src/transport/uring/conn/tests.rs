//! Receives completed by hand, in orders and with results that a real socket rarely gives.

use std::net::{TcpListener, TcpStream};

use super::super::ahead::SHORT_BODY;
use super::super::driver::operation_of;
use super::super::refused::Probed;
use super::*;
use crate::transport::TransportConfig;

const HEAD: usize = 36;
const HEAD_RESULT: i32 = 36;
const LONG: usize = SHORT_BODY + 1;
const LONG_RESULT: i32 = 4097;

/// A driver with one connection whose operations reach no kernel.
struct Bench {
    driver: Driver<Vec<u8>, Vec<u8>>,
    conn: ConnId,
    _peer: TcpStream,
}

impl Bench {
    /// A connection that has received a head and a body of `body` bytes.
    fn behind_a_body_of(body: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let peer = listener.accept().unwrap().0;
        let addr = peer.local_addr().unwrap();
        let probed = Probed {
            zero_copy: true,
            pinned_limit: u64::MAX,
        };
        let mut driver = Driver::new(TransportConfig::default(), probed);
        let conn = Box::new(Conn::new(socket.into(), addr, false));
        let conn = ConnId::new(driver.conns.insert(conn).ok().unwrap());
        let mut bench = Self {
            driver,
            conn,
            _peer: peer,
        };
        bench.head();
        assert_eq!(bench.asked(), [(Operation::Receive, false)]);
        bench.complete(Operation::Receive, HEAD_RESULT);
        assert_eq!(bench.received(), Some(HEAD));
        bench.body(body);
        bench
    }

    fn head(&mut self) {
        let into = RecvInto::Bytes(vec![0; HEAD]);
        self.driver.recv(self.conn, into, HEAD);
    }

    fn body(&mut self, len: usize) {
        let into = RecvInto::Window(vec![0; len]);
        self.driver.recv(self.conn, into, len);
    }

    /// The operations asked for since the last call, and whether the next one is linked to each.
    fn asked(&mut self) -> Vec<(Operation, bool)> {
        let entries = self.driver.queue.entries_mut().drain(..);
        entries
            .map(|(entry, linked)| (operation_of(entry.get_user_data()).unwrap().0, linked))
            .collect()
    }

    fn complete(&mut self, operation: Operation, result: i32) {
        let id = self.conn.as_u64();
        self.driver
            .on_completion(operation, id, result, false, false);
    }

    /// The length of the receive that is done; none: nothing has happened.
    fn received(&mut self) -> Option<usize> {
        let mut events = Vec::new();
        self.driver.report(&mut events);
        match events.pop()? {
            Event::Received { len, .. } => Some(len),
            other => panic!("{other:?}"),
        }
    }
}

fn errno(errno: Errno) -> i32 {
    -errno.raw_os_error()
}

#[test]
fn a_long_body_brings_the_head_behind_it() {
    let mut bench = Bench::behind_a_body_of(LONG);
    let both = [(Operation::Receive, true), (Operation::ReceiveAhead, false)];
    assert_eq!(bench.asked(), both);
    bench.complete(Operation::Receive, LONG_RESULT);
    assert_eq!(bench.received(), Some(LONG));
    bench.head();
    assert_eq!(bench.asked(), [], "it is on its way");
    bench.complete(Operation::ReceiveAhead, HEAD_RESULT);
    assert_eq!(bench.received(), Some(HEAD));
    // The other way round: the head is there before it is asked for.
    bench.body(LONG);
    assert_eq!(bench.asked(), both);
    bench.complete(Operation::Receive, LONG_RESULT);
    bench.complete(Operation::ReceiveAhead, HEAD_RESULT);
    assert_eq!(bench.received(), Some(LONG));
    bench.head();
    assert_eq!(bench.received(), Some(HEAD));
    assert_eq!(bench.asked(), []);
}

#[test]
fn g13_a_body_that_comes_in_parts_is_asked_for_again_once_its_link_is_known_to_be_broken() {
    let mut bench = Bench::behind_a_body_of(LONG);
    bench.asked();
    bench.complete(Operation::Receive, 1);
    assert_eq!(bench.asked(), [], "the linked one may still read");
    bench.complete(Operation::ReceiveAhead, errno(Errno::CANCELED));
    assert_eq!(bench.asked(), [(Operation::Receive, false)], "a short rest");
    bench.complete(Operation::Receive, LONG_RESULT - 1);
    assert_eq!(bench.received(), Some(LONG));
}

#[test]
fn short_bodies_come_with_their_heads_and_cost_no_operation() {
    let mut bench = Bench::behind_a_body_of(10);
    assert_eq!(bench.asked(), [(Operation::Receive, false)]);
    bench.complete(Operation::Receive, 10);
    assert_eq!(bench.received(), Some(10));
    bench.head();
    assert_eq!(bench.asked(), [(Operation::ReceiveAhead, false)]);
    // Two frames with bodies of 10, and 5 bytes of the body of a third.
    bench.complete(Operation::ReceiveAhead, 3 * HEAD_RESULT + 25);
    for _ in 0..2 {
        assert_eq!(bench.received(), Some(HEAD));
        bench.body(10);
        assert_eq!(bench.received(), Some(10));
        bench.head();
    }
    assert_eq!(bench.received(), Some(HEAD));
    assert_eq!(bench.asked(), []);
    bench.body(10);
    assert_eq!(bench.received(), None);
    assert_eq!(bench.asked(), [(Operation::Receive, false)]);
    bench.complete(Operation::Receive, 5);
    assert_eq!(bench.received(), Some(10));
}

#[test]
fn a_connection_that_ends_waits_for_the_head_being_read_ahead() {
    let mut bench = Bench::behind_a_body_of(LONG);
    bench.asked();
    bench.driver.close(bench.conn, Close::Reset);
    assert_eq!(bench.asked(), [(Operation::Cancel, false)]);
    bench.complete(Operation::Receive, errno(Errno::CANCELED));
    bench.complete(Operation::Cancel, 2);
    assert_eq!(bench.received(), None);
    bench.complete(Operation::ReceiveAhead, errno(Errno::CANCELED));
    let mut events = Vec::new();
    bench.driver.report(&mut events);
    assert!(
        matches!(
            &events[..],
            [Event::Closed {
                received: Some((_, 0)),
                ..
            }]
        ),
        "{events:?}"
    );
}

#[test]
fn the_end_of_the_stream_behind_a_body_comes_after_the_body() {
    let mut bench = Bench::behind_a_body_of(LONG);
    bench.asked();
    bench.complete(Operation::Receive, LONG_RESULT);
    bench.complete(Operation::ReceiveAhead, 0);
    let mut events = Vec::new();
    bench.driver.report(&mut events);
    assert!(
        matches!(
            &events[..],
            [
                Event::Received { .. },
                Event::Closed {
                    reason: CloseReason::PeerClosed,
                    ..
                }
            ]
        ),
        "{events:?}"
    );
}
