//! Logs that can follow their master in no other way than by beginning anew; who may be a slave; and
//! what the counters say of it.

use std::net::{IpAddr, Ipv4Addr, TcpStream};

use epochlog_ha::{AckPolicy, HaConfig, LogId, TransportKind};

use crate::bed::{Node, SEGMENT, acked, assert_equal, assert_holds, wait_until};
use crate::fakes::FakeSlave;

const KIND: TransportKind = TransportKind::Auto;

fn allowed(config: &mut HaConfig) {
    config.resync_allowed = true;
}

/// A master in epoch 2, and a slave whose only epoch the master never had.
fn strangers(tune: fn(&mut HaConfig)) -> (Node, Node) {
    let (a, b) = (Node::new(1, KIND), Node::tuned(2, KIND, tune));
    a.lead(2, &[1]);
    a.write_all(300, AckPolicy::Local);
    b.lead(1, &[2]);
    b.write_all(200, AckPolicy::Local);
    assert!(b.store.end_offset() > SEGMENT, "more than one segment goes");
    (a, b)
}

#[test]
fn without_leave_a_resync_is_refused_and_named() {
    let (a, b) = strangers(|_| ());
    let (before, incarnation) = (b.bytes(), b.store.promises().incarnation);
    b.follow(2, &a);
    wait_until(
        || format!("{:#?}", b.ha.runtime_info()),
        || {
            let metrics = b.ha.runtime_info().metrics;
            metrics.closes_by_slave.get("no-common-epoch") >= Some(&3)
        },
    );
    let info = b.ha.runtime_info();
    let client = info.client.unwrap();
    assert!(client.needs_operator);
    assert!(
        client
            .last_close
            .unwrap()
            .contains("epochlog repair resync")
    );
    assert_eq!(info.metrics.resyncs, 0);
    assert!(b.bytes() == before);
    assert_eq!(b.store.promises().incarnation, incarnation);
}

#[test]
fn with_leave_the_log_is_announced_lost_and_then_begins_anew() {
    let (a, b) = strangers(allowed);
    let incarnation = b.store.promises().incarnation;
    b.follow(2, &a);
    assert_equal(&[&a, &b]);
    assert_eq!(b.store.promises().incarnation, incarnation + 1);
    let metrics = b.ha.runtime_info().metrics;
    assert_eq!(metrics.resyncs, 1);
    assert_eq!(metrics.closes_by_slave.get("no-common-epoch"), Some(&2));
    assert!(b.dir.path().join("truncated").exists());
    // It is a slave like any other, also after a restart.
    a.ha.set_sync_state_set(epochlog_ha::SyncStateSet::new([1, 2], 9));
    let written = a.write_all(20, AckPolicy::AllInSync);
    let b = b.restarted();
    b.follow(2, &a);
    let more = acked(a.write(b"again", AckPolicy::AllInSync));
    assert_equal(&[&a, &b]);
    assert_holds(&b, &written);
    assert_holds(&b, &[more]);
}

#[test]
fn another_sets_master_is_never_a_reason_to_discard_a_log() {
    let own = |config: &mut HaConfig| {
        config.resync_allowed = true;
        config.log_id = LogId([1; 16]);
    };
    let other = |config: &mut HaConfig| config.log_id = LogId([2; 16]);
    let (a, b) = (Node::tuned(1, KIND, other), Node::tuned(2, KIND, own));
    a.lead(2, &[1]);
    b.lead(1, &[2]);
    b.write_all(3, AckPolicy::Local);
    let before = b.bytes();
    b.follow(2, &a);
    wait_until(
        || format!("{:#?}", b.ha.runtime_info()),
        || b.ha.runtime_info().metrics.closes_by_slave.get("other-log") >= Some(&3),
    );
    assert!(b.bytes() == before);
}

#[test]
fn brokers_and_addresses_that_are_not_allowed_are_turned_away() {
    let by_id = |config: &mut HaConfig| config.allowed_brokers = vec![2, 5];
    let a = Node::tuned(1, KIND, by_id);
    a.lead(1, &[1]);
    let mut slave = FakeSlave::connect(a.ha.listen_addr());
    slave.hello(3);
    slave.expect_end();
    FakeSlave::joined(a.ha.listen_addr(), 5);
    let metrics = a.ha.runtime_info().metrics;
    assert_eq!(metrics.closes_by_master.get("not-allowed"), Some(&1));

    let by_addr = |config: &mut HaConfig| {
        config.allowed_peers = vec![IpAddr::V4(Ipv4Addr::new(127, 0, 0, 9))];
    };
    let a = Node::tuned(1, KIND, by_addr);
    a.lead(1, &[1]);
    let mut slave = FakeSlave::connect(a.ha.listen_addr());
    slave.expect_end();
    assert_eq!(a.ha.runtime_info().metrics.turned_away, 1);
}

#[test]
fn connections_that_do_not_shake_hands_are_limited() {
    let two = |config: &mut HaConfig| config.max_half_open = 2;
    let a = Node::tuned(1, KIND, two);
    a.lead(1, &[1]);
    let silent: Vec<_> = (0..2)
        .map(|_| TcpStream::connect(a.ha.listen_addr()).unwrap())
        .collect();
    wait_until(
        || "two connections".to_owned(),
        || a.ha.runtime_info().connections.len() == 2,
    );
    FakeSlave::connect(a.ha.listen_addr()).expect_end();
    drop(silent);
    wait_until(
        || "their end".to_owned(),
        || a.ha.runtime_info().connections.is_empty(),
    );
    // A slave that has shaken hands does not count.
    let _slaves: Vec<_> = (2..6)
        .map(|id| FakeSlave::joined(a.ha.listen_addr(), id))
        .collect();
    assert_eq!(a.ha.runtime_info().connections.len(), 4);
}

#[test]
fn the_counters_tell_what_was_sent_received_and_cut() {
    let (a, b) = (Node::new(1, KIND), Node::new(2, KIND));
    a.lead(1, &[1, 2]);
    b.follow(1, &a);
    a.write_all(50, AckPolicy::AllInSync);
    assert_equal(&[&a, &b]);
    let end = a.store.end_offset();
    let (of_a, of_b) = (a.ha.runtime_info(), b.ha.runtime_info());
    assert_eq!(of_a.metrics.body_bytes_sent, end);
    assert_eq!(of_b.metrics.body_bytes_received, end);
    assert!(of_a.metrics.frames_sent > 0);
    assert_eq!(of_a.metrics.frames_sent, of_b.metrics.frames_received);
    assert!(of_a.metrics.master_transport.sent_bytes > end);
    assert!(of_b.metrics.slave_transport.received_bytes > end);
    wait_until(
        || format!("{:#?}", a.ha.runtime_info()),
        || a.ha.runtime_info().connections[0].lag_ms.is_some(),
    );
    let shown = of_a.metrics.to_string();
    assert!(
        shown.contains(&format!("ha_body_bytes_sent {end}\n")),
        "{shown}"
    );
    assert!(
        shown.contains("ha_transport_copied_quanta{side=\"master\"} "),
        "{shown}"
    );
    // A tail that is cut.
    b.ha.shutdown();
    let b = b.restarted();
    a.write_all(3, AckPolicy::Local);
    let tail = a.store.end_offset() - end;
    b.lead(2, &[2]);
    a.follow(2, &b);
    assert_equal(&[&b, &a]);
    let metrics = a.ha.runtime_info().metrics;
    assert_eq!((metrics.truncations, metrics.truncated_bytes), (1, tail));
}

#[test]
fn a_limit_below_a_record_is_no_setting() {
    let dir = tempfile::tempdir().unwrap();
    let store = epochlog_engine::Store::open(epochlog_engine::StoreConfig::new(dir.path()));
    let mut config = HaConfig::on_loopback(1);
    config.max_unacked_bytes = 1 << 20;
    let refused = epochlog_ha::HaService::start(store.unwrap().into(), config);
    let refused = refused.err().unwrap().to_string();
    assert!(refused.contains("max_unacked_bytes"), "{refused}");
}
