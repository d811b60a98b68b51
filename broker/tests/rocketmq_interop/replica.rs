//! `epochlog replica` on a RocketMQ master.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::generation;
use crate::java::Replica;
use crate::{QUEUE_FILE_SIZE, SEGMENT_SIZE};

/// Copies until level, and gives what was printed last.
fn copy(master: &Replica, dir: &Path) -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_epochlog"))
        .args(["replica", "--until-level", "--json", "--master"])
        .arg(master.ha_addr.to_string())
        .args(["--segment-size", &SEGMENT_SIZE.to_string(), "--dir"])
        .arg(dir)
        .args(generation::replica_options())
        .output()
        .expect("starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let lines = String::from_utf8(output.stdout).expect("text");
    serde_json::from_str(lines.lines().last().expect("a line")).expect("JSON")
}

#[test]
#[ignore = "needs a JVM; .ci/interop runs it"]
fn epochlog_replica_copies_a_java_master_and_goes_on_after_its_election() {
    let (java_dir, copied) = (
        tempfile::tempdir().expect("a folder"),
        tempfile::tempdir().expect("a folder"),
    );
    let mut java = Replica::start(java_dir.path(), 1, &[]);
    java.order("master 1");
    let end = java.put(500).end;
    assert_eq!(copy(&java, copied.path())["end_offset"], end);
    java.order("master 2");
    let end = java.put(200).end;
    let last = copy(&java, copied.path());
    assert_eq!(
        (&last["end_offset"], &last["lag"]),
        (&end.into(), &0.into())
    );
    let set = java.order("status").sync_state_set;
    assert_eq!(set, [1], "a learner is in no set");
    java.stop();
    let mut config = epochlog_engine::StoreConfig::new(copied.path());
    config.segment_size = SEGMENT_SIZE;
    config.queue_file_size = QUEUE_FILE_SIZE;
    let store = epochlog_engine::Store::open(config).expect("opens");
    assert!(store.opened().clean);
    assert_eq!(store.end_offset(), end);
    let epochs = std::fs::read(java_dir.path().join("epochFileCheckpoint"));
    let ours = std::fs::read(copied.path().join("epochFileCheckpoint"));
    assert_eq!(epochs.expect("a list"), ours.expect("a list"));
    for base in (0..end).step_by(usize::try_from(SEGMENT_SIZE).expect("small")) {
        let name = format!("commitlog/{base:020}");
        let read = |dir: &Path| std::fs::read(dir.join(&name)).expect("a segment");
        let held = usize::try_from(SEGMENT_SIZE.min(end - base)).expect("small");
        let (java, ours) = (read(java_dir.path()), read(copied.path()));
        assert!(java[..held] == ours[..held], "{name} differs");
    }
}
