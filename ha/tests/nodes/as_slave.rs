//! What a slave makes of masters that differ from what their epochs say, or break the protocol.

use std::time::Duration;

use epochlog_engine::Error as EngineError;
use epochlog_ha::{AckPolicy, Error, Outcome, Refused, SyncStateSet, TransportKind};

use crate::bed::{Node, SEGMENT, assert_equal, assert_holds, wait_until};
use crate::fakes::{FakeMaster, FakeMasterConnection};

const KIND: TransportKind = TransportKind::Auto;

#[test]
fn a_log_that_differs_under_equal_epochs_is_cut_at_the_first_difference() {
    let mut a = Node::new(1, KIND);
    a.lead(1, &[1]);
    a.write_all(20, AckPolicy::Local);
    // Two nodes believe to be the one that served epoch 1.
    let b = a.copy(2);
    a.lead(1, &[1]);
    b.lead(1, &[2]);
    for _ in 0..3 {
        a.write(b"here", AckPolicy::Local);
        b.write(b"gone", AckPolicy::Local);
    }
    assert_eq!(a.store.epochs(), b.store.epochs());
    assert_eq!(a.store.end_offset(), b.store.end_offset());
    let agree = first_difference(&a, &b);
    a.write_all(10, AckPolicy::Local);
    b.follow(1, &a);
    assert_equal(&[&a, &b]);
    let saved = std::fs::read_dir(b.dir.path().join("truncated"))
        .unwrap()
        .count();
    assert_eq!(saved, 1, "what was cut at {agree} is kept");
}

#[test]
fn a_log_that_differs_from_an_epochs_first_byte_on_is_cut_at_the_epochs_start() {
    let (a, b) = (Node::new(1, KIND), Node::new(2, KIND));
    a.lead(1, &[1, 2]);
    b.follow(1, &a);
    let kept = a.write_all(20, AckPolicy::AllInSync);
    let fork = a.store.end_offset();
    b.ha.shutdown();
    let b = b.restarted();
    // Both wrote epoch 2 from the same place, as after a list that a master told wrongly.
    a.lead(2, &[1]);
    b.lead(2, &[2]);
    for _ in 0..3 {
        b.write(b"gone", AckPolicy::Local);
        a.write(b"here", AckPolicy::Local);
    }
    a.write_all(10, AckPolicy::Local);
    assert_eq!(a.store.epochs(), b.store.epochs());
    let first = first_difference(&a, &b) as u64;
    assert!((fork..fork + 91).contains(&first), "{first}, {fork}");
    b.follow(2, &a);
    assert_equal(&[&a, &b]);
    assert_holds(&b, &kept);
    let saved = std::fs::read_dir(b.dir.path().join("truncated")).unwrap();
    let names: Vec<_> = saved.map(|it| it.unwrap().file_name()).collect();
    assert_eq!(names.len(), 1);
    let name = names[0].to_string_lossy().into_owned();
    assert!(name.ends_with(&format!("-{fork}")), "{name}");
}

#[test]
fn a_log_that_differs_from_its_first_byte_on_is_refused() {
    let (a, b) = (Node::new(1, KIND), Node::new(2, KIND));
    for node in [&a, &b] {
        node.lead(1, &[node.id]);
    }
    for _ in 0..3 {
        b.write(b"ours", AckPolicy::Local);
        a.write(b"anothers", AckPolicy::Local);
    }
    a.write_all(10, AckPolicy::Local);
    b.follow(1, &a);
    let before = b.bytes();
    wait_until(
        || format!("{:#?}", b.ha.runtime_info()),
        || {
            let client = b.ha.runtime_info().client;
            client.is_some_and(|client| {
                client
                    .last_close
                    .is_some_and(|why| why.contains("differs from the master's already"))
            })
        },
    );
    assert_eq!(b.bytes(), before);
}

fn first_difference(a: &Node, b: &Node) -> usize {
    let (a, b) = (a.bytes(), b.bytes());
    a.iter().zip(&b).position(|(a, b)| a != b).unwrap()
}

#[test]
fn a_new_replica_may_begin_with_the_last_file() {
    let a = Node::new(1, KIND);
    let b = Node::tuned(2, KIND, |config| config.sync_from_last_file = true);
    a.lead(1, &[1]);
    a.write_all(200, AckPolicy::Local);
    a.lead(2, &[1]);
    a.write_all(100, AckPolicy::Local);
    b.follow(2, &a);
    wait_until(
        || format!("{:#?}", b.ha.runtime_info()),
        || b.store.end_offset() == a.store.end_offset(),
    );
    let start = a.store.end_offset() - a.store.end_offset() % SEGMENT;
    assert_eq!(b.store.min_offset(), start);
    assert_eq!(b.store.epochs(), a.store.epochs());
    let tail = usize::try_from(start).unwrap();
    assert_eq!(b.bytes(), a.bytes()[tail..]);
    // It goes on as any other slave, also after a restart.
    let b = b.restarted();
    b.follow(2, &a);
    a.write_all(20, AckPolicy::Local);
    wait_until(
        || format!("{:#?}", b.ha.runtime_info()),
        || b.store.end_offset() == a.store.end_offset(),
    );
}

#[test]
fn e08_a_master_that_breaks_the_protocol_is_left_and_tried_again() {
    let b = Node::new(2, KIND);
    let fake = FakeMaster::listen();
    b.follow_at(1, 1, fake.addr());
    // Not the offset that is due.
    let mut conn = fake.join(100, &[(1, 0)]);
    assert_eq!(conn.report(), Some(0));
    conn.transfer(50, (1, 0), &[0; 10]);
    assert_eq!(conn.report(), None);
    // A body longer than a frame may be.
    let mut conn = fake.join(100, &[(1, 0)]);
    assert_eq!(conn.report(), Some(0));
    let mut header = [0u8; 36];
    header[..4].copy_from_slice(&2u32.to_be_bytes());
    header[4..8].copy_from_slice(&(8u32 << 20).to_be_bytes());
    conn.say(&header);
    assert_eq!(conn.report(), None);
    // Bytes that are no record.
    let mut conn = fake.join(100, &[(1, 0)]);
    assert_eq!(conn.report(), Some(0));
    conn.transfer(0, (1, 0), &[0xAB; 100]);
    assert_eq!(conn.report(), None);
    // A handshake where a frame is due.
    let mut conn = fake.join(100, &[(1, 0)]);
    assert_eq!(conn.report(), Some(0));
    conn.say(&[&1u32.to_be_bytes()[..], &[0; 32]].concat());
    assert_eq!(conn.report(), None);
    assert_eq!(b.store.end_offset(), 0);
    // A right one is followed all the same.
    let a = Node::new(1, KIND);
    a.lead(1, &[1, 2]);
    b.follow(1, &a);
    let written = a.write_all(10, AckPolicy::AllInSync);
    assert_equal(&[&a, &b]);
    assert_holds(&b, &written);
}

#[test]
fn an_epoch_kept_aside_is_durable_before_its_first_byte() {
    // As a Java master sends it: the last piece of epoch 1 under the label of epoch 2.
    let (a, b) = (Node::new(1, KIND), Node::new(2, KIND));
    a.lead(1, &[1]);
    a.write_all(3, AckPolicy::Local);
    let boundary = a.store.end_offset();
    a.lead(2, &[1]);
    a.write_all(3, AckPolicy::Local);
    let (bytes, cut) = (a.bytes(), usize::try_from(boundary).unwrap());
    let fake = FakeMaster::listen();
    b.follow_at(2, 1, fake.addr());
    let mut conn = fake.join(bytes.len() as u64, &[(1, 0), (2, boundary)]);
    assert_eq!(conn.report(), Some(0));
    conn.transfer(0, (1, 0), &bytes[..50]);
    conn.transfer(50, (2, boundary), &bytes[50..cut]);
    while conn.report().unwrap() < boundary {}
    wait_until(
        || "the entry".to_owned(),
        || b.epoch_file() == a.epoch_file(),
    );
    conn.transfer(boundary, (2, boundary), &bytes[cut..]);
    while conn.report().unwrap() < bytes.len() as u64 {}
    assert_equal(&[&a, &b]);
}

#[test]
fn a_master_without_a_common_epoch_is_refused_and_nothing_is_cut() {
    let (a, b) = (Node::new(1, KIND), Node::new(2, KIND));
    a.lead(2, &[1]);
    a.write_all(3, AckPolicy::Local);
    b.lead(1, &[2]);
    b.write_all(3, AckPolicy::Local);
    let before = b.bytes();
    b.follow(2, &a);
    wait_until(
        || format!("{:#?}", b.ha.runtime_info()),
        || {
            b.ha.runtime_info()
                .client
                .is_some_and(|client| client.needs_operator)
        },
    );
    let client = b.ha.runtime_info().client.unwrap();
    assert!(client.last_close.unwrap().contains("repair resync"));
    assert_eq!(b.bytes(), before);
}

#[test]
fn roles_are_idempotent_and_never_go_back() {
    let a = Node::new(1, KIND);
    let set = || SyncStateSet::new([1], 1);
    assert!(a.ha.become_master(5, set()).unwrap().changed);
    let entry = a.ha.become_master(5, set()).unwrap();
    assert!(!entry.changed && entry.entry.unwrap().epoch == 5);
    let stale = a.ha.become_master(4, set()).unwrap_err();
    assert!(
        matches!(stale, Error::StaleEpoch { asked: 4, told: 5 }),
        "{stale}"
    );
    let peer = "127.0.0.1:9".parse().unwrap();
    let stale = a.ha.become_slave(4, 2, peer).unwrap_err();
    assert!(matches!(stale, Error::StaleEpoch { .. }), "{stale}");
    let own = a.ha.become_slave(6, 1, peer).unwrap_err();
    assert!(matches!(own, Error::OwnMaster { broker_id: 1 }), "{own}");
    assert!(matches!(
        a.write(b"still master", AckPolicy::Local),
        Outcome::Acked(_)
    ));
    assert!(a.ha.become_slave(6, 2, peer).unwrap().changed);
    assert!(!a.ha.become_slave(6, 2, peer).unwrap().changed);
    // Told of 6 as slave, it may not be master of 6.
    let refused = a.ha.become_master(6, set()).unwrap_err();
    let refused = matches!(
        refused,
        Error::Store(EngineError::StaleEpoch { asked: 6, .. })
    );
    assert!(refused);
    a.ha.become_master(7, set()).unwrap();
    a.ha.shutdown();
    a.ha.shutdown();
    assert!(matches!(
        a.ha.become_master(8, set()).unwrap_err(),
        Error::ShutDown
    ));
}

#[test]
fn a_role_asked_for_while_the_service_ends_is_not_left_behind() {
    for delay_us in (0..40).map(|round| round * 25) {
        let node = Node::new(1, TransportKind::Std);
        std::thread::scope(|scope| {
            let asked = scope.spawn(|| node.ha.become_master(1, SyncStateSet::new([1], 1)));
            std::thread::sleep(Duration::from_micros(delay_us));
            node.ha.shutdown();
            // It came in time, or it was refused.
            let _ = asked.join().unwrap();
        });
        assert_eq!(node.store.master_epoch(), None, "after {delay_us} us");
        let refused = node.write(b"late", AckPolicy::Local);
        assert!(
            matches!(refused, Outcome::Refused(Refused::NotMaster)),
            "{refused:?} after {delay_us} us"
        );
    }
}

#[test]
fn g02_a_sync_covers_no_byte_whose_receive_is_under_way() {
    let (a, b) = (Node::new(1, KIND), Node::new(2, KIND));
    a.lead(1, &[1]);
    a.write_all(8, AckPolicy::Local);
    let (bytes, ends) = (a.bytes(), record_ends(&a));
    let fake = FakeMaster::listen();
    b.follow_at(1, 1, fake.addr());
    let mut conn = fake.join(bytes.len() as u64, &[(1, 0)]);
    assert_eq!(conn.report(), Some(0));
    // One frame whole, and of the next one, with several records, all but the last byte.
    let first = usize::try_from(ends[0]).unwrap();
    let second = FakeMasterConnection::frame(ends[0], (1, 0), &bytes[first..]);
    let (shown, last) = second.split_at(second.len() - 1);
    conn.transfer(0, (1, 0), &bytes[..first]);
    conn.say(shown);
    assert_eq!(conn.report(), Some(ends[0]));
    for _ in 0..20 {
        // Most of the second body is in the mapping by now, where the sync finds it.
        let flushed = b.store.flush().unwrap();
        assert_eq!((flushed, b.store.end_offset()), (ends[0], ends[0]));
        std::thread::sleep(Duration::from_millis(5));
    }
    conn.say(last);
    let end = bytes.len() as u64;
    while conn.report().unwrap() < end {}
    assert_eq!(b.store.flushed_offset(), ends[0], "nobody asked since");
    assert_eq!(b.store.flush().unwrap(), end);
}

fn record_ends(node: &Node) -> Vec<u64> {
    let records = node.store.records(0..node.store.end_offset());
    let end = |view: epochlog_engine::RecordView| {
        view.record().physical_offset() + view.record().total_size() as u64
    };
    records.map(|view| end(view.unwrap())).collect()
}
