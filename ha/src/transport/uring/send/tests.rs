//! Completions made by hand, in orders and with results that a real socket rarely gives.

use std::net::{TcpListener, TcpStream};
use std::sync::Weak;

use super::super::conn::MAX_RETRIES;
use super::super::driver::operation_of;
use super::*;
use crate::transport::{CloseReason, RecvInto, TransportConfig, TransportStats};

type Events = Vec<Event<Vec<u8>>>;

const QUANTUM: usize = 4096;
/// The result of a whole quantum.
const QUANTUM_RESULT: i32 = 4096;

struct Bytes(Vec<u8>);

impl Body for Bytes {
    fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// A driver with one connection whose operations reach no kernel.
struct Bench {
    driver: Driver<Vec<u8>, Bytes>,
    conn: ConnId,
    _peer: TcpStream,
}

impl Bench {
    fn new(change: impl FnOnce(&mut TransportConfig, &mut Probed)) -> Self {
        let mut config = TransportConfig {
            zero_copy_min_bytes: QUANTUM,
            zero_copy_quantum_bytes: QUANTUM,
            ..TransportConfig::default()
        };
        let mut probed = Probed {
            zero_copy: true,
            pinned_limit: u64::MAX,
        };
        change(&mut config, &mut probed);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let peer = listener.accept().unwrap().0;
        let addr = peer.local_addr().unwrap();
        let mut driver = Driver::new(config, probed);
        let inserted = driver
            .conns
            .insert(Box::new(Conn::new(socket.into(), addr, false)));
        let conn = ConnId::new(inserted.ok().unwrap());
        Self {
            driver,
            conn,
            _peer: peer,
        }
    }

    fn plain() -> Self {
        Self::new(|_, _| ())
    }

    fn send(&mut self, head: usize, body: usize) {
        let body = (body > 0).then(|| Bytes(vec![7; body]));
        self.driver
            .send(self.conn, FrameBytes::new(&vec![1; head]), body);
    }

    /// The operations asked for since the last call.
    fn asked(&mut self) -> Vec<(Operation, u64)> {
        let entries = self.driver.queue.entries_mut().drain(..);
        entries
            .map(|(entry, _)| operation_of(entry.get_user_data()).unwrap())
            .collect()
    }

    fn complete(&mut self, (operation, id): (Operation, u64), result: i32, more: bool) {
        self.driver
            .on_completion(operation, id, result, more, false);
    }

    fn notify(&mut self, (operation, id): (Operation, u64)) {
        self.driver.on_completion(operation, id, 0, false, true);
    }

    fn events(&mut self) -> Events {
        let mut events = Vec::new();
        self.driver.report(&mut events);
        events
    }

    fn lease(&mut self) -> Weak<Bytes> {
        let conn = self.driver.conns.get_mut(self.conn.as_u64()).unwrap();
        Arc::downgrade(conn.sending.as_ref().unwrap().body.as_ref().unwrap())
    }

    fn stats(&self) -> TransportStats {
        self.driver.stats()
    }
}

fn errno(errno: Errno) -> i32 {
    -errno.raw_os_error()
}

fn is_sent(events: &Events) -> bool {
    matches!(events[..], [Event::Sent { .. }])
}

#[test]
fn g04_the_lease_ends_with_the_last_notification_in_any_order() {
    let mut bench = Bench::plain();
    bench.send(36, 3 * QUANTUM);
    let lease = bench.lease();
    let asked = bench.asked();
    let [head, first, second, third] = asked[..] else {
        panic!("{asked:?}")
    };
    assert_eq!(head.0, Operation::Send);
    assert_eq!(bench.stats().pinned_bytes, 3 * QUANTUM as u64);
    bench.complete(head, 36, false);
    bench.complete(first, QUANTUM_RESULT, true);
    bench.complete(second, QUANTUM_RESULT, true);
    // A notification before the result of its own operation, and before those of earlier ones.
    bench.notify(third);
    assert!(bench.events().is_empty());
    bench.complete(third, QUANTUM_RESULT, true);
    assert!(is_sent(&bench.events()));
    bench.notify(second);
    assert!(lease.upgrade().is_some());
    bench.notify(first);
    assert!(lease.upgrade().is_none());
    assert_eq!(bench.stats().pinned_bytes, 0);
    assert_eq!(bench.stats().zero_copy_quanta, 3);
}

#[test]
fn g04_a_failure_without_the_promise_of_a_notification_ends_the_lease() {
    let mut bench = Bench::plain();
    bench.send(0, QUANTUM);
    let lease = bench.lease();
    let asked = bench.asked();
    bench.complete(asked[0], errno(Errno::PIPE), false);
    assert!(matches!(
        &bench.events()[..],
        [Event::Closed {
            reason: CloseReason::Failed(_),
            received: None,
            ..
        }]
    ));
    assert!(lease.upgrade().is_none());
    assert_eq!(bench.stats().pinned_bytes, 0);
}

#[test]
fn g04_a_cancelled_send_with_a_notification_to_come_keeps_its_lease_and_holds_closed_back() {
    let mut bench = Bench::plain();
    bench.send(0, QUANTUM);
    let lease = bench.lease();
    let asked = bench.asked();
    bench.driver.close(bench.conn, Close::Reset);
    let cancel = bench.asked();
    assert_eq!(cancel[0].0, Operation::Cancel);
    bench.complete(asked[0], errno(Errno::CANCELED), true);
    bench.complete(cancel[0], 1, false);
    assert!(bench.events().is_empty(), "closed before the notification");
    assert!(lease.upgrade().is_some());
    bench.notify(asked[0]);
    assert!(matches!(
        bench.events()[..],
        [Event::Closed {
            reason: CloseReason::Requested,
            ..
        }]
    ));
    assert!(lease.upgrade().is_none());
}

#[test]
fn g04_a_short_send_goes_on_behind_its_last_byte_while_the_first_part_is_pinned() {
    let mut bench = Bench::plain();
    bench.send(10, 2 * QUANTUM);
    let lease = bench.lease();
    let asked = bench.asked();
    bench.complete(asked[0], 10, false);
    bench.complete(asked[1], 1000, true);
    bench.complete(asked[2], errno(Errno::CANCELED), false);
    let rest = bench.asked();
    assert_eq!(rest.len(), 2, "{rest:?}");
    assert_eq!(bench.stats().pinned_bytes, 3 * QUANTUM as u64 - 1000);
    bench.complete(rest[0], QUANTUM_RESULT, true);
    bench.complete(rest[1], QUANTUM_RESULT - 1000, true);
    assert!(is_sent(&bench.events()));
    assert_eq!(bench.stats().sent_bytes, 10 + 2 * QUANTUM as u64);
    bench.notify(rest[0]);
    bench.notify(rest[1]);
    assert!(lease.upgrade().is_some(), "the first part is still pinned");
    bench.notify(asked[1]);
    assert!(lease.upgrade().is_none());
}

#[test]
fn g14_a_second_chain_waits_for_the_whole_of_the_first() {
    let mut bench = Bench::new(|config, _| config.zero_copy_in_flight = 100);
    bench.send(10, 40 * QUANTUM);
    let asked = bench.asked();
    assert_eq!(asked.len(), MAX_CHAIN);
    for (index, operation) in asked.iter().enumerate() {
        assert!(bench.asked().is_empty());
        bench.complete(
            *operation,
            if index == 0 { 10 } else { QUANTUM_RESULT },
            true,
        );
    }
    assert_eq!(bench.asked().len(), MAX_CHAIN);
}

#[test]
fn pins_of_a_connection_are_bounded_and_a_notification_lets_it_go_on() {
    let mut bench = Bench::new(|config, _| config.zero_copy_in_flight = 2);
    bench.send(0, 4 * QUANTUM);
    let asked = bench.asked();
    assert_eq!(asked.len(), 2);
    bench.complete(asked[0], QUANTUM_RESULT, true);
    bench.complete(asked[1], QUANTUM_RESULT, true);
    assert!(bench.asked().is_empty(), "both are pinned");
    bench.notify(asked[1]);
    assert_eq!(bench.asked().len(), 1);
}

#[test]
fn g10_bytes_above_half_of_the_limit_are_sent_plain() {
    let mut bench = Bench::new(|_, probed| probed.pinned_limit = 2 * QUANTUM as u64);
    bench.send(0, 4 * QUANTUM);
    let operations: Vec<_> = bench
        .asked()
        .into_iter()
        .map(|(operation, _)| operation)
        .collect();
    use Operation::{Send, SendZeroCopy};
    assert_eq!(operations, [SendZeroCopy, SendZeroCopy, Send, Send]);
    assert_eq!(bench.stats().fallback_quanta, 2);
    assert_eq!(bench.stats().pinned_peak_bytes, 2 * QUANTUM as u64);
}

#[test]
fn g10_no_memory_to_pin_falls_back_for_a_while() {
    let mut bench = Bench::plain();
    bench.send(0, QUANTUM);
    let asked = bench.asked();
    bench.complete(asked[0], errno(Errno::NOMEM), false);
    for _ in 0..PLAIN_AFTER_ENOMEM {
        let plain = bench.asked();
        assert_eq!(plain[0].0, Operation::Send);
        bench.complete(plain[0], QUANTUM_RESULT, false);
        assert!(is_sent(&bench.events()));
        bench.send(0, QUANTUM);
    }
    assert_eq!(bench.asked()[0].0, Operation::SendZeroCopy);
    assert_eq!(bench.stats().zero_copy_refusals, 1);
}

#[test]
fn g18_the_first_refusal_of_zero_copy_turns_it_off_and_loses_nothing() {
    for refusal in [Errno::OPNOTSUPP, Errno::INVAL] {
        let mut bench = Bench::plain();
        bench.send(5, 2 * QUANTUM);
        let asked = bench.asked();
        bench.complete(asked[0], 5, false);
        bench.complete(asked[1], errno(refusal), false);
        bench.complete(asked[2], errno(Errno::CANCELED), false);
        let rest = bench.asked();
        assert_eq!(
            rest.iter()
                .map(|(operation, _)| *operation)
                .collect::<Vec<_>>(),
            [Operation::Send]
        );
        bench.complete(rest[0], 2 * QUANTUM_RESULT, false);
        assert!(is_sent(&bench.events()));
        bench.send(0, 10 * QUANTUM);
        assert_eq!(bench.asked().len(), 1);
        assert_eq!(bench.stats().zero_copy_refusals, 1);
    }
}

#[test]
fn g18_without_the_operation_everything_is_sent_plain() {
    let mut bench = Bench::new(|_, probed| probed.zero_copy = false);
    bench.send(5, 10 * QUANTUM);
    let asked = bench.asked();
    assert!(
        asked
            .iter()
            .all(|(operation, _)| *operation == Operation::Send),
        "{asked:?}"
    );
    assert_eq!(bench.stats().fallback_quanta, 10);
}

#[test]
fn repeated_copies_turn_zero_copy_off_for_a_while_if_asked_to() {
    let mut bench = Bench::new(|config, _| config.zero_copy_give_up_after = 3);
    for _ in 0..3 {
        bench.send(0, QUANTUM);
        let asked = bench.asked();
        assert_eq!(asked[0].0, Operation::SendZeroCopy);
        bench.complete(asked[0], QUANTUM_RESULT, true);
        let (operation, id) = asked[0];
        bench
            .driver
            .on_completion(operation, id, USAGE_COPIED, false, true);
        assert!(is_sent(&bench.events()));
    }
    bench.send(0, QUANTUM);
    assert_eq!(bench.asked()[0].0, Operation::Send);
    assert_eq!(
        (bench.stats().copied_quanta, bench.stats().zero_copy_quanta),
        (3, 0)
    );
}

#[test]
fn a_short_body_goes_out_with_its_head_and_is_not_held() {
    let mut bench = Bench::plain();
    for round in 0..3 {
        bench.send(10, SMALL_BODY - 1);
        let asked = bench.asked();
        assert_eq!(asked.len(), 1, "round {round}");
        let conn = bench.driver.conns.get_mut(bench.conn.as_u64()).unwrap();
        let sending = conn.sending.as_ref().unwrap();
        assert!(sending.body.is_none());
        let bytes = sending.head.as_slice();
        assert_eq!(
            (&bytes[..10], &bytes[10..]),
            (&[1; 10][..], &[7; SMALL_BODY - 1][..])
        );
        let len = i32::try_from(bytes.len()).unwrap();
        bench.complete(asked[0], len, false);
        assert!(is_sent(&bench.events()));
    }
    bench.send(10, SMALL_BODY);
    assert_eq!(bench.asked().len(), 2);
}

#[test]
fn g12_again_and_interrupted_are_retried_in_order_and_not_for_ever() {
    let mut bench = Bench::new(|config, _| config.zero_copy_min_bytes = usize::MAX);
    bench.send(10, 2 * SMALL_BODY);
    for round in 0..MAX_RETRIES {
        let asked = bench.asked();
        assert_eq!(asked.len(), 2, "round {round}");
        let passing = if round % 2 == 0 {
            Errno::AGAIN
        } else {
            Errno::INTR
        };
        bench.complete(asked[0], errno(passing), false);
        bench.complete(asked[1], errno(Errno::CANCELED), false);
        assert!(bench.events().is_empty());
    }
    let asked = bench.asked();
    bench.complete(asked[0], 10, false);
    bench.complete(asked[1], errno(Errno::AGAIN), false);
    // Bytes moved, so counting began anew; only the rest of the body is asked for.
    for _ in 1..MAX_RETRIES {
        let asked = bench.asked();
        assert_eq!(asked.len(), 1);
        bench.complete(asked[0], errno(Errno::AGAIN), false);
    }
    let asked = bench.asked();
    bench.complete(asked[0], errno(Errno::AGAIN), false);
    let closed = bench.events();
    let [
        Event::Closed {
            reason: CloseReason::Failed(error),
            ..
        },
    ] = &closed[..]
    else {
        panic!("{closed:?}")
    };
    assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
}

#[test]
fn g12_a_receive_is_retried_and_keeps_what_it_has() {
    let mut bench = Bench::plain();
    bench
        .driver
        .recv(bench.conn, RecvInto::Bytes(vec![0; 100]), 100);
    for result in [30, errno(Errno::INTR), 69, errno(Errno::AGAIN)] {
        let asked = bench.asked();
        bench.complete(asked[0], result, false);
        assert!(bench.events().is_empty());
    }
    let asked = bench.asked();
    bench.complete(asked[0], 1, false);
    assert!(matches!(
        bench.events()[..],
        [Event::Received { len: 100, .. }]
    ));
}

#[test]
fn g06_a_cancelled_receive_reports_what_the_kernel_had_written() {
    let mut bench = Bench::plain();
    bench
        .driver
        .recv(bench.conn, RecvInto::Bytes(vec![0; 100]), 100);
    let receive = bench.asked()[0];
    bench.driver.close(bench.conn, Close::Reset);
    let cancel = bench.asked()[0];
    bench.complete(cancel, 1, false);
    assert!(
        bench.events().is_empty(),
        "closed while the kernel may write"
    );
    bench.complete(receive, 40, false);
    let events = bench.events();
    let [
        Event::Closed {
            received: Some((RecvInto::Bytes(bytes), 40)),
            ..
        },
    ] = &events[..]
    else {
        panic!("{events:?}")
    };
    assert_eq!(bytes.len(), 100);
}

#[test]
fn g08_a_completion_for_a_connection_that_is_gone_changes_nothing() {
    let mut bench = Bench::plain();
    bench
        .driver
        .recv(bench.conn, RecvInto::Bytes(vec![0; 100]), 1);
    let receive = bench.asked()[0];
    bench.complete(receive, 0, false);
    assert!(matches!(
        bench.events()[..],
        [Event::Closed {
            reason: CloseReason::PeerClosed,
            ..
        }]
    ));
    bench.complete(receive, 50, false);
    bench.complete((Operation::Send, receive.1), 50, false);
    bench.notify((Operation::SendZeroCopy, 1 << 20));
    assert!(bench.events().is_empty());
}

#[test]
fn user_data_carries_operation_and_id() {
    let id = (1 << 59) | 0x1234_5678_9abc;
    for operation in [Operation::Wake, Operation::SendZeroCopy, Operation::Cancel] {
        assert_eq!(operation_of(operation.user_data(id)), Some((operation, id)));
    }
    assert_eq!(operation_of(0xf), None);
}
