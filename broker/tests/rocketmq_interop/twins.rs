//! What goes wrong where an epoch has no record that both sides hold: RocketMQ then has different bytes under one
//! label. By the epoch lists alone a slave would keep what it has; ours compares bytes, cuts, and is equal again.

use std::path::Path;

use epochlog_ha::AckPolicy;

use crate::generation;
use crate::java::Replica;
use crate::replication::{JAVA, OURS, Ours, assert_equal_logs, folders};

/// Something was cut at `fork`, and its bytes were kept.
fn assert_cut_at(dir: &Path, fork: u64) {
    let saved = std::fs::read_dir(dir.join("truncated")).expect("what was cut");
    let names = saved.map(|it| it.expect("an entry").file_name());
    let names: Vec<_> = names.map(|it| it.to_string_lossy().into_owned()).collect();
    let at = format!("-{fork}");
    assert!(names.iter().any(|name| name.ends_with(&at)), "{names:?}");
}

/// Trap E-5: elected where its last epoch began, RocketMQ opens no epoch and writes under the older label.
#[test]
#[ignore = "needs a JVM; .ci/interop runs it"]
fn a_java_master_elected_without_records_between_writes_under_our_label_and_we_find_out() {
    let (java_dir, our_dir) = folders();
    let mut java = Replica::start(java_dir.path(), JAVA, &[]);
    let ours = Ours::start(our_dir.path(), OURS);
    ours.lead(1);
    java.follow(1, OURS, ours.ha.listen_addr());
    ours.put(60, AckPolicy::Local);
    let fork = ours.store.end_offset();
    java.wait_for(fork);
    // Java hears of epoch 2 before there is a record of it.
    ours.lead(2);
    java.follow(2, OURS, ours.ha.listen_addr());
    ours.wait_until("Java knows epoch 2", || {
        java.order("status").epochs == [(1, 0), (2, fork)]
    });
    java.order("slave 2 99 127.0.0.1:1");
    ours.put(10, AckPolicy::Local);
    let status = java.order("master 3");
    assert_eq!(
        (status.end, &status.epochs[..]),
        (fork, &[(1, 0), (2, fork)][..]),
        "RocketMQ has changed; so may this test"
    );
    java.put(40);
    ours.follow(3, &java);
    let end = java.order("status").end;
    ours.wait_for(end);
    assert_cut_at(our_dir.path(), fork);
    java.stop();
    assert_eq!(ours.stop(), end);
    assert_equal_logs(java_dir.path(), our_dir.path(), end);
}

/// apache/rocketmq #10666: bytes that a RocketMQ slave has cut are back after a restart, under the label of the
/// epoch that should have replaced them.
#[test]
#[ignore = "needs a JVM; .ci/interop runs it"]
fn a_tail_that_java_had_cut_comes_back_under_our_label_and_we_find_out() {
    let (java_dir, our_dir) = folders();
    let mut java = Replica::start(java_dir.path(), JAVA, &[]);
    let ours = Ours::start(our_dir.path(), OURS);
    java.order("master 1");
    ours.follow(1, &java);
    let fork = java.put(60).end;
    ours.wait_for(fork);
    ours.cut_off(2);
    let lost = java.put(20).end;
    ours.lead(3);
    java.follow(3, OURS, ours.ha.listen_addr());
    ours.wait_until("Java has cut its tail", || {
        let status = java.order("status");
        status.end == fork && status.epochs.last() == Some(&(3, fork))
    });
    java.stop();
    // Less than what comes back. With more, the end of Java's tail lies inside a record of ours: that is refused,
    // and an operator has our log discarded (`epochlog repair resync`).
    ours.put(5, AckPolicy::Local);
    assert!(ours.store.end_offset() < lost, "{lost}");
    java = Replica::start(java_dir.path(), JAVA, &[]);
    let status = java.order("master 4");
    assert_eq!(status.end, lost, "RocketMQ has changed; so may this test");
    java.put(20);
    ours.follow(4, &java);
    let end = java.order("status").end;
    ours.wait_for(end);
    assert_cut_at(our_dir.path(), fork);
    java.stop();
    assert_eq!(ours.stop(), end, "{}", generation::release());
    assert_equal_logs(java_dir.path(), our_dir.path(), end);
}
