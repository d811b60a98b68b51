//! What a master makes of slaves that stall, lie, repeat themselves or talk nonsense.

use std::time::Duration;

use epochlog_ha::{
    AckPolicy, AckRequest, FrameFromMaster, HaService, Outcome, Refused, SyncStateSet,
    TransportKind, UnknownReason,
};

use crate::bed::{Node, acked, assert_equal, message, wait_until};
use crate::fakes::FakeSlave;

const KIND: TransportKind = TransportKind::Auto;

fn soon(policy: AckPolicy) -> AckRequest {
    AckRequest::new(policy, Duration::from_millis(150))
}

fn is_timeout(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Unknown(_, UnknownReason::ReplicasTimeout))
}

#[test]
fn a05_a_forged_ack_closes_and_releases_nothing() {
    let a = Node::new(1, KIND);
    a.lead(1, &[1, 2]);
    a.write(b"first", AckPolicy::Local);
    let end = a.store.end_offset();
    for forged in [end + 1, 1 << 40, i64::MAX as u64] {
        let mut slave = FakeSlave::joined(a.ha.listen_addr(), 2);
        slave.report(0);
        slave.read_to(end);
        slave.report(forged);
        slave.expect_end();
        assert_eq!(a.store.confirm_offset(), 0);
        assert!(is_timeout(
            &a.write_within(b"waits", soon(AckPolicy::AllInSync))
        ));
    }
    // So does one before the handshake, and one below the last.
    let mut slave = FakeSlave::connect(a.ha.listen_addr());
    slave.report(end);
    slave.expect_end();
    let mut slave = FakeSlave::joined(a.ha.listen_addr(), 2);
    slave.report(end);
    slave.report(end - 1);
    slave.expect_end();
}

#[test]
fn a05_an_ack_ahead_of_what_was_sent_does_not_count_for_later_writes() {
    let a = Node::new(1, KIND);
    a.lead(1, &[1, 2]);
    let first = acked(a.write(b"first", AckPolicy::Local));
    let mut slave = FakeSlave::joined(a.ha.listen_addr(), 2);
    // It claims bytes of this epoch that this master never sent it.
    slave.report(first.end);
    assert!(is_timeout(
        &a.write_within(b"second", soon(AckPolicy::AllInSync))
    ));
    let end = a.store.end_offset();
    slave.read_to(end);
    slave.report(end);
    assert!(is_timeout(
        &a.write_within(b"third", soon(AckPolicy::AllInSync))
    ));
    assert_eq!(
        a.store.confirm_offset(),
        0,
        "not even with what came from here"
    );
}

#[test]
fn a33_a_stalled_member_leaves_within_the_limit() {
    let a = Node::tuned(1, KIND, |config| {
        config.max_time_slave_not_catchup_ms = 400;
        config.heartbeat_interval_ms = 100;
    });
    a.lead(1, &[1, 2]);
    a.write(b"first", AckPolicy::Local);
    let mut slave = FakeSlave::joined(a.ha.listen_addr(), 2);
    slave.report(0);
    slave.read_to(a.store.end_offset());
    assert!(is_timeout(
        &a.write_within(b"waits", soon(AckPolicy::AllInSync))
    ));
    assert_eq!(a.ha.next_proposal(), None, "within the limit it stays");
    wait_until(
        || format!("{:#?}", a.ha.runtime_info()),
        || a.ha.next_proposal() == Some(SyncStateSet::new([1], 1)),
    );
    // While the proposal is open both sets count.
    assert!(is_timeout(
        &a.write_within(b"waits", soon(AckPolicy::AllInSync))
    ));
    assert!(a.ha.set_sync_state_set(SyncStateSet::new([1], 2)));
    acked(a.write_within(b"goes on", soon(AckPolicy::AllInSync)));
    // Level again, it is proposed again.
    let end = a.store.end_offset();
    slave.read_to(end);
    slave.report(end);
    wait_until(
        || format!("{:#?}", a.ha.runtime_info()),
        || a.ha.next_proposal() == Some(SyncStateSet::new([1, 2], 2)),
    );
}

#[test]
fn a02_a_lost_answer_to_an_expansion_loses_no_write() {
    let (a, b) = (Node::new(1, KIND), Node::new(2, KIND));
    a.lead(1, &[1]);
    a.write(b"first", AckPolicy::AllInSync);
    b.follow(1, &a);
    wait_until(
        || "2 is proposed".to_owned(),
        || a.ha.next_proposal() == Some(SyncStateSet::new([1, 2], 1)),
    );
    // The controller commits and its answer is lost; 2 stops taking bytes.
    b.ha.shutdown();
    a.ha.proposal_failed();
    assert!(is_timeout(
        &a.write_within(b"unsafe", soon(AckPolicy::AllInSync))
    ));
    // The leader tells that it never saw the proposal.
    a.ha.proposal_rejected();
    acked(a.write_within(b"safe", soon(AckPolicy::AllInSync)));
}

#[test]
fn a27_a_disconnected_member_is_proposed_out_and_comes_back() {
    let (a, mut b) = (
        Node::tuned(1, KIND, |c| c.disconnected_member_ms = 100),
        Node::new(2, KIND),
    );
    a.lead(1, &[1, 2]);
    b.follow(1, &a);
    a.write_all(5, AckPolicy::AllInSync);
    b.kill_and_restart();
    wait_until(
        || "2 is proposed out".to_owned(),
        || a.ha.next_proposal() == Some(SyncStateSet::new([1], 1)),
    );
    assert!(a.ha.set_sync_state_set(SyncStateSet::new([1], 2)));
    a.write_all(5, AckPolicy::AllInSync);
    b.follow(1, &a);
    wait_until(
        || "2 is proposed in".to_owned(),
        || a.ha.next_proposal() == Some(SyncStateSet::new([1, 2], 2)),
    );
    assert!(a.ha.set_sync_state_set(SyncStateSet::new([1, 2], 3)));
    a.write_all(5, AckPolicy::AllInSync);
    assert_equal(&[&a, &b]);
}

#[test]
fn a_handshake_waits_for_the_role_and_is_answered_once() {
    let a = Node::new(1, KIND);
    let mut slave = FakeSlave::connect(a.ha.listen_addr());
    slave.hello(2);
    slave.quiet_for(Duration::from_millis(150));
    // A Java slave repeats it.
    slave.hello(2);
    a.lead(1, &[1]);
    assert!(matches!(
        slave.frame(),
        Some((FrameFromMaster::Handshake(_), _))
    ));
    slave.quiet_for(Duration::from_millis(100));
    slave.report(0);
    let put = acked(a.write(b"x", AckPolicy::Local));
    slave.read_to(put.end);
    slave.hello(2);
    slave.expect_end();
}

#[test]
fn nonsense_on_the_port_ends_the_connection_and_nothing_else() {
    let a = Node::new(1, KIND);
    a.lead(1, &[1]);
    let answered: &[&[u8]] = &[b"GET / HTTP/1.1\r\n\r\n", &[0xff; 64], &[0; 16]];
    for bytes in answered {
        let mut peer = FakeSlave::connect(a.ha.listen_addr());
        peer.say(bytes);
        peer.expect_end();
    }
    let mut own = FakeSlave::joined(a.ha.listen_addr(), 1);
    own.report(0);
    own.expect_end();
    acked(a.write(b"alive", AckPolicy::AllInSync));
    // The newer connection of an id replaces the older one.
    let mut older = FakeSlave::joined(a.ha.listen_addr(), 2);
    older.report(0);
    older.read_to(a.store.end_offset());
    let mut newer = FakeSlave::joined(a.ha.listen_addr(), 2);
    newer.report(0);
    older.expect_end();
    newer.read_to(a.store.end_offset());
}

#[test]
fn a_slave_that_reconnects_before_its_older_connection_ended_still_counts() {
    let a = Node::new(1, KIND);
    a.lead(1, &[1, 2]);
    a.write(b"first", AckPolicy::Local);
    let end = a.store.end_offset();
    let mut older = FakeSlave::joined(a.ha.listen_addr(), 2);
    older.report(0);
    older.read_to(end);
    let mut newer = FakeSlave::joined(a.ha.listen_addr(), 2);
    // It has these bytes from this master, over the older connection.
    newer.report(end);
    older.expect_end();
    let put = acked(a.write(b"second", AckPolicy::Local));
    newer.read_to(put.end);
    newer.report(put.end);
    wait_until(
        || "confirm follows".to_owned(),
        || a.store.confirm_offset() == put.end,
    );
}

#[test]
fn a08_an_equal_start_drops_connections_and_another_keeps_them() {
    let a = Node::new(1, KIND);
    a.lead(1, &[1]);
    let end = acked(a.write(b"first", AckPolicy::Local)).end;
    let mut slave = FakeSlave::joined(a.ha.listen_addr(), 2);
    slave.report(end);
    a.lead(2, &[1]);
    let end = acked(a.write(b"second", AckPolicy::Local)).end;
    slave.read_to(end);
    a.lead(3, &[1]);
    let end = acked(a.write(b"third", AckPolicy::Local)).end;
    slave.read_to(end);
    a.lead(4, &[1]);
    slave.quiet_for(Duration::from_millis(50));
    // Nothing was written in epoch 4: a Java slave would refuse the label of epoch 5.
    a.lead(5, &[1]);
    slave.expect_end();
}

#[test]
fn peers_that_are_not_allowed_are_turned_away() {
    let a = Node::tuned(1, KIND, |config| {
        config.allowed_peers = vec!["10.0.0.1".parse().unwrap()];
    });
    a.lead(1, &[1]);
    FakeSlave::connect(a.ha.listen_addr()).expect_end();
}

#[test]
fn writes_are_refused_below_min_in_sync_and_without_a_role() {
    let a = Node::tuned(1, KIND, |config| config.min_in_sync_replicas = 2);
    let refused = |outcome| match outcome {
        Outcome::Refused(refused) => refused,
        other => panic!("{other:?}"),
    };
    assert!(matches!(
        refused(a.write(b"x", AckPolicy::Local)),
        Refused::NotMaster
    ));
    a.lead(1, &[1]);
    let few = refused(a.write(b"x", AckPolicy::Local));
    assert!(
        matches!(few, Refused::NotEnoughInSync { have: 1, need: 2 }),
        "{few}"
    );
    assert_eq!(a.store.end_offset(), 0, "nothing was written");
    // The set shrinks while a write waits: it is not acknowledged any more.
    assert!(a.ha.set_sync_state_set(SyncStateSet::new([1, 2], 2)));
    let (tell, told) = std::sync::mpsc::channel();
    let ack = AckRequest::new(AckPolicy::AllInSync, Duration::from_millis(300));
    a.ha.append(&message(b"waits"), ack, move |outcome| {
        tell.send(outcome).unwrap()
    });
    assert!(a.ha.set_sync_state_set(SyncStateSet::new([1], 3)));
    assert!(is_timeout(&told.recv().unwrap()));
    a.ha.fence().unwrap();
    assert!(matches!(
        refused(a.write(b"x", AckPolicy::Local)),
        Refused::NotMaster
    ));
}

#[test]
fn a04_without_authority_nothing_is_written_or_acknowledged() {
    let (a, b) = (Node::new(1, KIND), Node::new(2, KIND));
    a.lead(1, &[1, 2]);
    b.follow(1, &a);
    a.ha.set_authority(Some(HaService::now_ms() + 60_000));
    a.write_all(3, AckPolicy::AllInSync);
    a.ha.set_authority(Some(HaService::now_ms()));
    let end = a.store.end_offset();
    let late = a.write(b"late", AckPolicy::Local);
    assert!(
        matches!(late, Outcome::Refused(Refused::NoAuthority)),
        "{late:?}"
    );
    assert_eq!(a.store.end_offset(), end);
    // Lost while a write waits for its slave: held back, and given when authority returns.
    b.ha.shutdown();
    a.ha.set_authority(Some(HaService::now_ms() + 60_000));
    let (tell, told) = std::sync::mpsc::channel();
    let ack = AckRequest::new(AckPolicy::AllInSync, Duration::from_secs(20));
    a.ha.append(&message(b"held"), ack, move |outcome| {
        tell.send(outcome).unwrap()
    });
    a.ha.set_authority(Some(HaService::now_ms()));
    let mut b = b;
    b.kill_and_restart();
    b.follow(1, &a);
    wait_until(
        || "b catches up".to_owned(),
        || b.store.end_offset() == a.store.end_offset(),
    );
    assert!(told.recv_timeout(Duration::from_millis(300)).is_err());
    let confirm = a.store.confirm_offset();
    assert!(confirm < a.store.end_offset(), "confirm is frozen");
    a.ha.set_authority(None);
    acked(told.recv_timeout(Duration::from_secs(5)).unwrap());
}

#[test]
fn flushed_means_on_disk_here_and_there() {
    let (a, b) = (
        Node::new(1, KIND),
        Node::tuned(2, KIND, |config| config.report_flushed = true),
    );
    a.lead(1, &[1, 2]);
    b.follow(1, &a);
    let wait = Duration::from_secs(10);
    for _ in 0..20 {
        let ack = AckRequest::new(AckPolicy::AllInSync, wait).flushed();
        let put = acked(a.write_within(b"durable", ack));
        assert!(a.store.flushed_offset() >= put.end);
        assert!(b.store.flushed_offset() >= put.end);
    }
    let put = acked(a.write_within(b"here", AckRequest::new(AckPolicy::Local, wait).flushed()));
    assert!(a.store.flushed_offset() >= put.end);
}

#[test]
fn a28_a_write_for_three_replicas_ends_with_the_second_ack() {
    let (a, b, c) = (Node::new(1, KIND), Node::new(2, KIND), Node::new(3, KIND));
    a.lead(1, &[1, 2, 3]);
    b.follow(1, &a);
    acked(a.write(b"one other", AckPolicy::Replicas(2)));
    assert!(is_timeout(
        &a.write_within(b"two others", soon(AckPolicy::Replicas(3)))
    ));
    c.follow(1, &a);
    acked(a.write(b"two others", AckPolicy::Replicas(3)));
    assert!(is_timeout(
        &a.write_within(b"too many", soon(AckPolicy::Replicas(4)))
    ));
}

#[test]
fn a_batch_is_acknowledged_as_one() {
    let (a, b) = (Node::new(1, KIND), Node::new(2, KIND));
    a.lead(1, &[1, 2]);
    b.follow(1, &a);
    let bodies = [b"one".as_slice(), b"two", b"three"];
    let messages = bodies.map(message);
    let (tell, told) = std::sync::mpsc::channel();
    let ack = AckRequest::new(AckPolicy::AllInSync, Duration::from_secs(10));
    a.ha.append_batch(&messages, ack, move |outcome| tell.send(outcome).unwrap());
    let Outcome::Acked(appended) = told.recv().unwrap() else {
        panic!("not acked")
    };
    assert_eq!(appended.len(), 3);
    assert_eq!(appended[2].queue_offset, 2);
    assert_eq!(
        b.store.record(appended[1].offset).unwrap().record().body(),
        b"two"
    );
}

#[test]
fn a_write_nobody_waits_for_any_more_is_replicated_and_ends_no_other() {
    let a = Node::new(1, KIND);
    a.lead(1, &[1, 2]);
    let ack = AckRequest::new(AckPolicy::AllInSync, Duration::from_secs(20));
    let cancelled = a.ha.submit(&message(b"cancelled"), ack);
    drop(cancelled);
    // Whatever room the first left is this one's now.
    let kept = a.ha.submit(&message(b"kept"), ack);
    let both = a.ha.submit_batch(&[message(b"x"), message(b"y")], ack);
    let at_once = a.ha.submit(&message(b"local"), soon(AckPolicy::Local));
    acked(at_once.wait());
    let mut slave = FakeSlave::joined(a.ha.listen_addr(), 2);
    slave.report(0);
    let end = a.store.end_offset();
    slave.read_to(end);
    let records: Vec<_> = a.store.records(0..end).map(|view| view.unwrap()).collect();
    assert_eq!(records.len(), 5, "a cancelled write stays in the log");
    let ends: Vec<_> = records
        .iter()
        .map(|view| view.record().physical_offset() + view.record().total_size() as u64)
        .collect();
    // The end of the cancelled write is acked, and of no other.
    slave.report(ends[0]);
    let waits = std::thread::spawn(move || kept.wait());
    std::thread::sleep(Duration::from_millis(100));
    assert!(!waits.is_finished(), "ended by the ack of another write");
    slave.report(ends[3]);
    assert_eq!(acked(waits.join().unwrap()).end, ends[1]);
    let Outcome::Acked(both) = both.wait() else {
        panic!("the batch is acked")
    };
    assert_eq!(both.last().unwrap().end, ends[3]);
    let refused = Node::new(3, KIND)
        .ha
        .submit(&message(b"fenced"), ack)
        .wait();
    assert!(
        matches!(refused, Outcome::Refused(Refused::NotMaster)),
        "{refused:?}"
    );
}

#[test]
fn a_hand_over_refuses_new_writes_lets_older_ones_end_and_tells_who_is_level() {
    let (a, b) = (Node::new(1, KIND), Node::new(2, KIND));
    a.lead(1, &[1, 2]);
    let ack = AckRequest::new(AckPolicy::AllInSync, Duration::from_secs(20));
    let older = a.ha.submit(&message(b"older"), ack);
    let end = a.store.end_offset();
    a.ha.pause_writes(true);
    let refused = a.write(b"new", AckPolicy::Local);
    assert!(
        matches!(refused, Outcome::Refused(Refused::HandingOver)),
        "{refused:?}"
    );
    assert_eq!(a.store.end_offset(), end);
    assert!(!a.ha.is_level(2), "it never came");
    b.follow(1, &a);
    acked(older.wait());
    wait_until(
        || format!("{:#?}", a.ha.runtime_info()),
        || a.ha.is_level(2),
    );
    assert!(!a.ha.is_level(3), "no member");
    a.ha.pause_writes(false);
    acked(a.write(b"goes on", AckPolicy::AllInSync));
    // A role change ends it too.
    a.ha.pause_writes(true);
    a.lead(2, &[1, 2]);
    acked(a.write(b"the next term", AckPolicy::AllInSync));
}
