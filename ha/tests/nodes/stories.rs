//! What two and three nodes do together, told for each transport.

use std::time::Duration;

use epochlog_ha::{AckPolicy, Outcome, TransportKind, UnknownReason};

use super::bed::{Node, acked, assert_equal, assert_holds, wait_until};
use super::link::Link;

pub(crate) fn slaves_get_every_byte_and_every_epoch(kind: TransportKind) {
    let nodes = [Node::new(1, kind), Node::new(2, kind), Node::new(3, kind)];
    nodes[0].lead(1, &[1, 2, 3]);
    nodes[1].follow(1, &nodes[0]);
    nodes[2].follow(1, &nodes[0]);
    let written = nodes[0].write_all(500, AckPolicy::AllInSync);
    for node in &nodes[1..] {
        assert!(
            node.store.end_offset() >= written.last().unwrap().end,
            "acked means there"
        );
    }
    assert_equal(&[&nodes[0], &nodes[1], &nodes[2]]);
    assert_holds(&nodes[2], &written);
    assert!(
        nodes[0].store.segments().len() >= 2,
        "the test crosses segments"
    );
    wait_until(
        || format!("confirm {}", nodes[1].store.confirm_offset()),
        || {
            nodes[0].write(b"tick", AckPolicy::AllInSync);
            nodes[1].store.confirm_offset() >= written.last().unwrap().end
        },
    );
}

pub(crate) fn a_link_cut_again_and_again_loses_no_ack(kind: TransportKind) {
    let (master, slave) = (Node::new(1, kind), Node::new(2, kind));
    master.lead(1, &[1, 2]);
    let link = Link::to(master.ha.listen_addr());
    slave.follow_at(1, 1, link.addr);
    let mut written = Vec::new();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| master.write_all(600, AckPolicy::AllInSync));
        for _ in 0..12 {
            std::thread::sleep(Duration::from_millis(40));
            link.cut();
        }
        written = writer.join().unwrap();
    });
    assert_eq!(written.len(), 600);
    assert_equal(&[&master, &slave]);
    assert_holds(&slave, &written);
}

pub(crate) fn divergent_tails_are_cut_after_a_fail_over(kind: TransportKind) {
    let (a, b, c) = (Node::new(1, kind), Node::new(2, kind), Node::new(3, kind));
    a.lead(1, &[1, 2, 3]);
    b.follow(1, &a);
    c.follow(1, &a);
    let kept = a.write_all(60, AckPolicy::AllInSync);
    // B is cut off, C gets a little more, A most of all.
    let nowhere = Link::to(a.ha.listen_addr());
    let dead = nowhere.addr;
    drop(nowhere);
    b.follow_at(1, 1, dead);
    a.write_all(20, AckPolicy::Replicas(2));
    c.follow_at(1, 1, dead);
    a.write_all(40, AckPolicy::Local);
    assert!(a.store.end_offset() > c.store.end_offset());
    assert!(c.store.end_offset() > b.store.end_offset());
    // An unclean election of the shortest.
    b.lead(2, &[2]);
    let kept_too = b.write_all(30, AckPolicy::AllInSync);
    a.follow(2, &b);
    c.follow(2, &b);
    assert_equal(&[&b, &a, &c]);
    for node in [&a, &b, &c] {
        assert_holds(node, &kept);
        assert_holds(node, &kept_too);
    }
    let join = a.ha.runtime_info().client.unwrap().last_join.unwrap();
    assert!(join.cut_bytes > 0, "{join:?}");
    assert_eq!(join.point, kept.last().unwrap().end);
    // And back again, with a tail that nobody else has.
    b.write_all(5, AckPolicy::Local);
    wait_until(
        || "A is level".to_owned(),
        || a.store.end_offset() == b.store.end_offset(),
    );
    a.follow_at(2, 2, dead);
    b.write_all(5, AckPolicy::Local);
    a.lead(3, &[1]);
    a.write_all(10, AckPolicy::AllInSync);
    b.follow(3, &a);
    c.follow(3, &a);
    assert_equal(&[&a, &b, &c]);
}

pub(crate) fn a08_elections_without_writes_leave_equal_lists(kind: TransportKind) {
    let (a, b) = (Node::new(1, kind), Node::new(2, kind));
    a.lead(1, &[1]);
    a.lead(2, &[1]);
    b.follow(2, &a);
    assert_equal(&[&a, &b]);
    // The slave is connected while an epoch with an equal start comes.
    a.lead(3, &[1, 2]);
    let written = a.write_all(10, AckPolicy::AllInSync);
    assert_equal(&[&a, &b]);
    // Two fail-overs without a write.
    b.lead(4, &[2]);
    a.follow(4, &b);
    assert_equal(&[&a, &b]);
    a.lead(5, &[1]);
    b.follow(5, &a);
    assert_equal(&[&a, &b]);
    assert_eq!(a.store.epochs().len(), 5);
    a.ha.set_sync_state_set(epochlog_ha::SyncStateSet::new([1, 2], 6));
    a.write_all(10, AckPolicy::AllInSync);
    assert_equal(&[&a, &b]);
    assert_holds(&b, &written);
}

pub(crate) fn a09_a_master_again_in_a_newer_epoch_keeps_its_slaves(kind: TransportKind) {
    let (a, b) = (Node::new(1, kind), Node::new(2, kind));
    a.lead(13, &[1, 2]);
    b.follow(13, &a);
    a.write_all(20, AckPolicy::AllInSync);
    let before = connection(&a);
    a.lead(17, &[1, 2]);
    a.write_all(20, AckPolicy::AllInSync);
    assert_eq!(connection(&a), before, "the connection stays");
    assert_equal(&[&a, &b]);
    assert_eq!(a.store.epochs().len(), 2);
}

fn connection(node: &Node) -> std::net::SocketAddr {
    let mut connections = node.ha.runtime_info().connections;
    assert_eq!(connections.len(), 1);
    connections.remove(0).addr
}

pub(crate) fn a_killed_slave_comes_back_and_catches_up(kind: TransportKind) {
    let (a, mut b) = (Node::new(1, kind), Node::new(2, kind));
    a.lead(1, &[1, 2]);
    b.follow(1, &a);
    let mut written = a.write_all(100, AckPolicy::AllInSync);
    for round in 0..3 {
        b.kill_and_restart();
        written.extend(a.write_all(50, AckPolicy::Local));
        b.follow(1, &a);
        let ack = acked(a.write(b"back", AckPolicy::AllInSync));
        assert!(b.store.end_offset() >= ack.end, "round {round}");
    }
    assert_equal(&[&a, &b]);
    assert_holds(&b, &written);
}

pub(crate) fn a_killed_master_serves_its_epoch_again_or_follows(kind: TransportKind) {
    let (mut a, b) = (Node::new(1, kind), Node::new(2, kind));
    a.lead(1, &[1, 2]);
    b.follow(1, &a);
    let written = a.write_all(50, AckPolicy::AllInSync);
    a.kill_and_restart();
    // Killed within the same boot: the log is what it was, the entry's start stays.
    a.lead(1, &[1, 2]);
    assert_eq!(a.store.epochs().len(), 1);
    b.follow_at(1, 1, a.ha.listen_addr());
    a.write_all(10, AckPolicy::AllInSync);
    assert_equal(&[&a, &b]);
    a.write_all(10, AckPolicy::Local);
    a.kill_and_restart();
    b.lead(2, &[2]);
    b.write_all(10, AckPolicy::AllInSync);
    a.follow(2, &b);
    assert_equal(&[&b, &a]);
    assert_holds(&a, &written);
}

pub(crate) fn writes_that_wait_end_as_unknown_when_the_role_ends(kind: TransportKind) {
    let (a, b) = (Node::new(1, kind), Node::new(2, kind));
    a.lead(1, &[1, 2]);
    b.follow(1, &a);
    a.write_all(3, AckPolicy::AllInSync);
    b.ha.shutdown();
    let b = b.restarted();
    let (tell, told) = std::sync::mpsc::channel();
    let ack = epochlog_ha::AckRequest::new(AckPolicy::AllInSync, Duration::from_secs(60));
    for _ in 0..3 {
        let tell = tell.clone();
        a.ha.append(&super::bed::message(b"waits"), ack, move |outcome| {
            tell.send(outcome).unwrap();
        });
    }
    assert!(told.try_recv().is_err());
    b.lead(2, &[2]);
    let outcome = a.ha.become_slave(2, 2, b.ha.listen_addr()).unwrap();
    assert_eq!(outcome.unknown_writes, 3);
    for _ in 0..3 {
        let outcome = told.recv_timeout(Duration::from_secs(5)).unwrap();
        assert!(
            matches!(outcome, Outcome::Unknown(_, UnknownReason::RoleChanged)),
            "{outcome:?}"
        );
    }
    assert!(matches!(
        a.write(b"late", AckPolicy::Local),
        Outcome::Refused(_)
    ));
    assert_equal(&[&b, &a]);
}
