//! The confirm offset tells of copies; what a node shows its own consumers, and what it writes down,
//! also depends on its own disk.

use std::sync::Arc;
use std::time::Duration;

use epochlog_engine::{Store, StoreConfig};
use epochlog_ha::{
    AckPolicy, AckRequest, FrameFromMaster, HaConfig, HaService, Outcome, SyncStateSet,
};

use crate::bed::{acked, message, wait_until};
use crate::fakes::FakeSlave;

/// A store of a broker with flushDiskType=SYNC_FLUSH, where nothing is synced unless somebody asks.
fn open(dir: &std::path::Path) -> Arc<Store> {
    let mut config = StoreConfig::new(dir);
    config.segment_size = 256 << 10;
    config.flush_interval_ms = 60_000;
    config.queues_hold_flushed_only = true;
    Arc::new(Store::open(config).unwrap())
}

fn messages_shown(store: &Store) -> i64 {
    let queue = store.queue("replicated", 0);
    queue.map_or(0, |queue| queue.max_offset().unwrap())
}

/// The confirm offset of the next frame to the slave.
fn told(slave: &mut FakeSlave) -> Option<u64> {
    match slave.frame() {
        Some((FrameFromMaster::Transfer(header), _)) => header.confirm,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_confirm_offset_tells_of_copies_and_a_queue_of_those_on_disk() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let mut config = HaConfig::on_loopback(1);
    config.report_flushed = true;
    let ha = HaService::start(Arc::clone(&store), config).unwrap();
    ha.become_master(1, SyncStateSet::new([1, 2], 1)).unwrap();
    let patience = Duration::from_secs(20);
    let in_memory = AckRequest::new(AckPolicy::Local, patience);
    let first = acked(ha.append_and_wait(&message(b"first"), in_memory));
    let mut slave = FakeSlave::joined(ha.listen_addr(), 2);
    slave.report(0);
    slave.read_to(first.end);
    // What waits for both disks is let go neither by the slave's memory nor by a sync here alone.
    let on_disk = AckRequest::new(AckPolicy::AllInSync, patience).flushed();
    slave.report(first.end);
    wait_until(
        || format!("confirm {}", store.confirm_offset()),
        || store.confirm_offset() == first.end,
    );
    assert_eq!(store.flushed_offset(), 0, "somebody asked for a sync");
    assert_eq!(messages_shown(&store), 0, "shown before it is on disk");
    // The slave is told at once that every member has it.
    let second = acked(ha.append_and_wait(&message(b"second"), in_memory));
    assert_eq!(told(&mut slave), Some(first.end));
    store.flush().unwrap();
    wait_until(
        || format!("{} shown", messages_shown(&store)),
        || messages_shown(&store) == 1,
    );
    assert!(store.flushed_offset() >= second.end, "both are on disk");
    assert_eq!(messages_shown(&store), 1, "the second has no copy yet");
    let third = ha.submit(&message(b"third"), on_disk);
    slave.read_to(store.end_offset());
    slave.report(store.end_offset());
    let third = third.wait();
    assert!(matches!(third, Outcome::Acked(_)), "{third:?}");
    wait_until(
        || format!("{} shown", messages_shown(&store)),
        || messages_shown(&store) == 3,
    );
}

#[test]
fn a_kill_leaves_no_confirm_offset_above_what_is_on_disk() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let ha = HaService::start(Arc::clone(&store), HaConfig::on_loopback(1)).unwrap();
    ha.become_master(1, SyncStateSet::new([1], 1)).unwrap();
    let ack = AckRequest::new(AckPolicy::AllInSync, Duration::from_secs(20));
    let first = acked(ha.append_and_wait(&message(b"first"), ack.flushed()));
    acked(ha.append_and_wait(&message(b"second"), ack));
    assert!(store.confirm_offset() > first.end, "its one member has it");
    assert_eq!(store.flushed_offset(), first.end);
    ha.shutdown();
    store.abandon();
    let again = open(dir.path());
    assert!(
        again.end_offset() > first.end,
        "a kill leaves the page cache"
    );
    assert!(
        again.confirm_offset() <= first.end,
        "confirm {} was written down before the disk had it",
        again.confirm_offset()
    );
}
