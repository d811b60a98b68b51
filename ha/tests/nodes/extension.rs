//! What two nodes of ours say beyond RocketMQ's frames, and that nobody else hears of it.

use std::time::Duration;

use epochlog_ha::{
    AckPolicy, AckRequest, Capabilities, Extension, HaConfig, LogId, Outcome, TransportKind,
    UnknownReason,
};

use crate::bed::{Node, SEGMENT, acked, assert_equal, wait_until};
use crate::fakes::{FakeMaster, FakeSlave};

const KIND: TransportKind = TransportKind::Auto;

fn says(capabilities: Capabilities) -> Extension {
    Extension {
        capabilities,
        role_epoch: 1,
        segment_size: SEGMENT,
        log_id: LogId::UNKNOWN,
    }
}

/// What a slave that is not in durable mode asks for.
fn memory() -> Capabilities {
    Capabilities::ALL.without(Capabilities::DURABLE)
}

/// The bytes of a log of whole records, all of epoch 1.
fn some_log() -> Vec<u8> {
    let a = Node::new(1, KIND);
    a.lead(1, &[1]);
    a.write_all(5, AckPolicy::Local);
    a.bytes()
}

fn speaks_plainly(config: &mut HaConfig) {
    config.extension = false;
}

#[test]
fn nodes_with_and_without_the_extension_replicate_both_ways() {
    for (first, second, spoken) in [
        (true, true, true),
        (true, false, false),
        (false, true, false),
    ] {
        let node = |id, extended: bool| match extended {
            true => Node::new(id, KIND),
            false => Node::tuned(id, KIND, speaks_plainly),
        };
        let (a, b) = (node(1, first), node(2, second));
        a.lead(1, &[1, 2]);
        b.follow(1, &a);
        a.write_all(50, AckPolicy::AllInSync);
        assert_equal(&[&a, &b]);
        let connection = a.ha.runtime_info().connections.remove(0);
        assert_eq!(connection.extended, spoken);
        assert_eq!(connection.slave_flushed_offset.is_some(), spoken);
        b.lead(2, &[2]);
        a.follow(2, &b);
        b.ha.set_sync_state_set(epochlog_ha::SyncStateSet::new([1, 2], 3));
        b.write_all(50, AckPolicy::AllInSync);
        assert_equal(&[&b, &a]);
    }
}

#[test]
fn a_slave_that_does_not_ask_gets_javas_bytes() {
    let a = Node::new(1, KIND);
    a.lead(1, &[1]);
    let end = acked(a.write(b"one", AckPolicy::Local)).end;
    // Its decoder refuses whatever Java would not send.
    let mut slave = FakeSlave::joined(a.ha.listen_addr(), 2);
    slave.report(0);
    slave.read_to(end);
    slave.report(end);
    wait_until(
        || format!("{:#?}", a.ha.runtime_info()),
        || a.ha.runtime_info().connections[0].slave_ack_offset == Some(end),
    );
}

#[test]
fn a_frame_that_was_changed_on_its_way_is_never_published() {
    let bytes = some_log();
    let len = bytes.len() as u64;
    let b = Node::new(2, KIND);
    let fake = FakeMaster::listen();
    b.follow_at(1, 1, fake.addr());
    for at in [0, 100, bytes.len() - 1] {
        let mut conn = fake.join_as(len, &[(1, 0)], Some(says(memory())));
        assert_eq!(conn.report(), Some(0));
        conn.transfer_changed(0, (1, 0), &bytes, at);
        assert_eq!(conn.report(), None, "the connection ends");
        assert_eq!(b.store.end_offset(), 0, "byte {at}");
    }
    let client = b.ha.runtime_info().client.unwrap();
    let why = client.last_close.unwrap();
    assert!(why.contains("checksum"), "{why}");
    assert!(!client.needs_operator);
    // The same bytes, as they were sent.
    let mut conn = fake.join_as(len, &[(1, 0)], Some(says(memory())));
    assert_eq!(conn.report(), Some(0));
    conn.transfer(0, (1, 0), &bytes);
    while conn.report().unwrap() < len {}
    assert!(b.bytes() == bytes);
}

#[test]
fn a_changed_frame_never_cuts_a_log_it_is_compared_with() {
    let bytes = some_log();
    let len = bytes.len() as u64;
    let b = Node::new(2, KIND);
    let fake = FakeMaster::listen();
    b.follow_at(1, 1, fake.addr());
    let mut conn = fake.join_as(len, &[(1, 0)], Some(says(memory())));
    assert_eq!(conn.report(), Some(0));
    conn.transfer(0, (1, 0), &bytes);
    while conn.report().unwrap() < len {}
    // In two frames: one across the point, changed in its part below it and in the one above.
    let more = [&bytes[..], &bytes].concat();
    for at in [10, 150] {
        drop(conn);
        conn = fake.join_as(2 * len, &[(1, 0)], Some(says(memory())));
        let from = conn.report().unwrap();
        assert!(from > 0 && from < len, "{from}");
        let part = &more[usize::try_from(from).unwrap()..][..200];
        conn.transfer_changed(from, (1, 0), part, at);
        while conn.report().is_some() {}
        assert_eq!(b.store.end_offset(), len, "nothing is cut or published");
    }
    wait_until(
        || format!("{:#?}", b.ha.runtime_info()),
        || {
            let client = b.ha.runtime_info().client.unwrap();
            client
                .last_close
                .is_some_and(|why| why.contains("checksum"))
        },
    );
    assert!(!b.dir.path().join("truncated").exists());
}

#[test]
fn a_master_of_another_set_or_of_other_segments_is_refused_by_name() {
    let named = |config: &mut HaConfig| config.log_id = LogId([7; 16]);
    let b = Node::tuned(2, KIND, named);
    let fake = FakeMaster::listen();
    b.follow_at(1, 1, fake.addr());
    let cases = [
        (
            Extension {
                log_id: LogId([8; 16]),
                ..says(memory())
            },
            "different broker sets",
        ),
        (
            Extension {
                segment_size: 2 * SEGMENT,
                ..says(memory())
            },
            "mappedFileSizeCommitLog",
        ),
    ];
    for (extension, word) in cases {
        let mut conn = fake.join_as(100, &[(1, 0)], Some(extension));
        assert_eq!(conn.report(), None);
        let client = b.ha.runtime_info().client.unwrap();
        assert!(client.needs_operator);
        let why = client.last_close.unwrap();
        assert!(why.contains(word), "{why}");
    }
    // A master that serves an older epoch than the controller named is only too early.
    b.follow_at(5, 1, fake.addr());
    let mut conn = fake.join_as(100, &[(1, 0)], Some(says(memory())));
    assert_eq!(conn.report(), None);
    let client = b.ha.runtime_info().client.unwrap();
    assert!(client.last_close.unwrap().contains("serves epoch 1"));
    assert!(!client.needs_operator);
    // One that does not say who it is is followed, as Java's is.
    let extension = Extension {
        role_epoch: 5,
        ..says(memory())
    };
    let mut conn = fake.join_as(0, &[(1, 0)], Some(extension));
    assert_eq!(conn.report(), Some(0));
}

#[test]
fn a_write_to_disk_waits_for_the_disk_of_a_slave_that_syncs_at_once() {
    let durable = |config: &mut HaConfig| config.report_flushed = true;
    let (a, b) = (Node::new(1, KIND), Node::tuned(2, KIND, durable));
    a.lead(1, &[1, 2]);
    b.follow(1, &a);
    let ack = AckRequest::new(AckPolicy::AllInSync, Duration::from_secs(20)).flushed();
    for _ in 0..20 {
        let end = acked(a.write_within(b"to disk", ack)).end;
        assert!(a.store.flushed_offset() >= end && b.store.flushed_offset() >= end);
    }
    // A slave in durable mode that has it in memory only is not enough.
    a.ha.set_sync_state_set(epochlog_ha::SyncStateSet::new([1, 3], 9));
    let mut slave = FakeSlave::joined_extended(a.ha.listen_addr(), 3, Capabilities::ALL);
    slave.report_both(0, 0);
    slave.read_to(a.store.end_offset());
    slave.report_both(a.store.end_offset(), 0);
    let short = AckRequest::new(AckPolicy::AllInSync, Duration::from_millis(300));
    let answer = std::thread::scope(|scope| {
        let write = scope.spawn(|| a.write_within(b"in memory there", short.flushed()));
        let before = a.store.end_offset();
        wait_until(
            || "the write".to_owned(),
            || a.store.end_offset() > before || write.is_finished(),
        );
        slave.read_to(a.store.end_offset());
        slave.report_both(a.store.end_offset(), 0);
        write.join().unwrap()
    });
    assert!(
        matches!(
            answer,
            Outcome::Unknown(
                _,
                UnknownReason::ReplicasTimeout | UnknownReason::FlushTimeout
            )
        ),
        "{answer:?}"
    );
    let end = a.store.end_offset();
    slave.report_both(end, end);
    let memory = std::thread::scope(|scope| {
        let write = scope.spawn(|| a.write_within(b"on disk there", ack));
        wait_until(|| "the write".to_owned(), || a.store.end_offset() > end);
        slave.read_to(a.store.end_offset());
        slave.report_both(a.store.end_offset(), a.store.end_offset());
        write.join().unwrap()
    });
    acked(memory);
}
