//! A broker whose files are taken away, or may not grow: it says which file, and loses nothing it
//! acknowledged.

mod common;

use std::fs::File;
use std::time::{Duration, Instant};

use bytes::Bytes;
use common::{Cluster, LIMIT, plan};
use epochlog_broker::producer::{Producer, SendError};
use epochlog_engine::signals::BUS_ERROR_EXIT_CODE;

fn body() -> Bytes {
    Bytes::from(vec![b'x'; 4000])
}

fn attempt(id: &str) -> String {
    format!("ATTEMPT\u{1}{id}\u{2}")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c20_h02_a_shortened_segment_ends_the_broker_with_the_name_of_the_file() {
    let dir = tempfile::tempdir().expect("temp dir");
    let mut cluster = Cluster::start(&plan(dir.path(), 1));
    let master = cluster.in_sync(1, 0).await;
    cluster.produce(&master, "first", 3).await;
    // Started anew it has nothing to put into queues any more: the send is the first to touch the file.
    let broker = &mut cluster.group.brokers[0].process;
    assert!(broker.stop(LIMIT).expect("a signal"), "a clean stop");
    broker.start().expect("starts");
    let master = cluster.in_sync(1, 0).await;
    let store = cluster.group.brokers[0].store.canonicalize().expect("made");
    let segment = store.join("commitlog/00000000000000000000");
    let file = File::options().write(true).open(&segment).expect("there");
    file.set_len(0).expect("shortened");
    let producer = Producer::new("orders", 1, LIMIT);
    let sent = producer.send(&master.address, body(), "").await;
    let error = sent.expect_err("there is nothing to write to");
    assert!(error.may_be_stored(), "nobody answered: {error}");
    let began = Instant::now();
    let status = loop {
        let broker = &mut cluster.group.brokers[0].process;
        if let Some(status) = broker.ended().expect("a child") {
            break status;
        }
        assert!(began.elapsed() < LIMIT, "{}", cluster.logs());
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    let log = cluster.logs();
    assert_eq!(status.code(), Some(BUS_ERROR_EXIT_CODE), "{log}");
    let line = format!("epochlog: {}: cannot reach byte", segment.display());
    assert!(log.contains(&line), "{log}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn h12_a_broker_that_may_not_grow_its_files_refuses_and_goes_on_once_it_may() {
    let dir = tempfile::tempdir().expect("temp dir");
    let mut cluster = Cluster::start(&plan(dir.path(), 1));
    let master = cluster.in_sync(1, 0).await;
    cluster.produce(&master, "first", 3).await;
    let broker = &cluster.group.brokers[0].process;
    // Below the length of a segment and above that of every other file.
    broker.limit_file_len(Some(48 * 1024)).expect("runs");
    let producer = Producer::new("orders", 1, LIMIT);
    let mut grown = 0;
    let refused: SendError = loop {
        let id = format!("limited-{grown}");
        match producer.send(&master.address, body(), &attempt(&id)).await {
            Ok(receipt) => assert!(cluster.acked.insert(id, receipt).is_none()),
            Err(error) => break error,
        }
        grown += 1;
        assert!(grown < 1000, "it grew all the same");
    };
    assert!(!refused.may_be_stored(), "{refused}");
    assert!(refused.code().is_some(), "the broker answers: {refused}");
    broker.limit_file_len(None).expect("runs");
    let began = Instant::now();
    let again = attempt("again");
    while let Err(error) = producer.send(&master.address, body(), &again).await {
        assert!(!error.may_be_stored() && began.elapsed() < LIMIT, "{error}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    cluster.produce(&master, "second", 100).await;
    let logs = cluster.logs();
    assert!(
        logs.contains("no space for a segment of 65536 bytes"),
        "{logs}"
    );
    cluster.stop_and_compare(&master).await;
}
