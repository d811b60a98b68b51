//! A group whose old segments go while it is written to.

mod common;

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use common::{Cluster, LIMIT, SEGMENT_SIZE, content, plan};

/// Segments go while the log has more bytes than this.
const KEPT: u64 = 4 * SEGMENT_SIZE;

/// Bases of the segments in a store folder.
fn segments(store: &Path) -> Vec<u64> {
    let names = fs::read_dir(store.join("commitlog")).expect("listed");
    let base = |entry: std::io::Result<fs::DirEntry>| {
        let name = entry.expect("entry").file_name();
        name.to_string_lossy().parse().expect("a segment")
    };
    let mut bases: Vec<u64> = names.map(base).collect();
    bases.sort_unstable();
    bases
}

/// Waits until every store begins where it stays as long as the log ends at `end`: at the same segment,
/// and with no more than is kept. Answers its base.
async fn settled(cluster: &Cluster, end: u64) -> u64 {
    let deadline = Instant::now() + LIMIT;
    loop {
        let brokers = cluster.group.brokers.iter();
        let mut begins: Vec<u64> = brokers.map(|it| segments(&it.store)[0]).collect();
        begins.dedup();
        if let [begin] = begins[..]
            && end - begin <= KEPT
        {
            return begin;
        }
        assert!(Instant::now() < deadline, "{begins:?}\n{}", cluster.logs());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn old_segments_go_on_every_member_and_a_member_that_was_away_comes_back() {
    let dir = tempfile::tempdir().expect("temp dir");
    let mut plan = plan(dir.path(), 2);
    plan.min_in_sync = 1;
    plan.broker_extra = format!("commitLogMaxSize={KEPT}\ncleanResourceInterval=100");
    let mut cluster = Cluster::start(&plan);
    let master = cluster.in_sync(2, 0).await;
    cluster.produce(&master, "first", 1500).await;
    let end = cluster.level().await;
    let first_begin = settled(&cluster, end).await;
    assert!(first_begin > 0, "too short a log: {end}");

    let at = cluster
        .group
        .broker_at(&master.address)
        .expect("one of ours");
    cluster.group.brokers[1 - at]
        .process
        .kill()
        .expect("killed");
    cluster.group.brokers[1 - at]
        .process
        .start()
        .expect("starts");
    cluster.in_sync(2, 0).await;
    cluster.produce(&master, "second", 600).await;
    let end = cluster.level().await;
    let begin = settled(&cluster, end).await;
    assert!(begin > first_begin, "too short a log: {end}");

    let unclean = cluster.group.stop(&[1 - at, at], LIMIT).expect("signals");
    assert_eq!(unclean, Vec::<String>::new(), "{}", cluster.logs());
    let stores: Vec<_> = cluster.group.brokers.iter().collect();
    let stores: Vec<_> = stores.iter().map(|it| content(&it.store)).collect();
    assert_eq!(stores[0].bytes.len() as u64, end - begin);
    assert!(stores[0] == stores[1], "the stores differ");
    let mut attempts = stores[0].attempts.iter();
    let newest = attempts.find(|(attempt, _)| attempt.starts_with("second-599."));
    assert!(newest.is_some_and(|(_, offset)| *offset >= begin));
    for (attempt, offset) in &stores[0].attempts {
        let receipt = &cluster.acked[attempt];
        assert!(receipt.msg_id.ends_with(&format!("{offset:016X}")));
    }
}
