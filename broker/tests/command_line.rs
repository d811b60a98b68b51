//! The command line: what it prints, its exit codes, and how its processes end.

mod common;

use std::io::Write;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use common::{Cluster, LIMIT, plan};

fn epochlog(arguments: &[&str], input: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_epochlog"))
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("starts");
    // It may end before it reads.
    let _ = child
        .stdin
        .take()
        .expect("piped")
        .write_all(input.as_bytes());
    child.wait_with_output().expect("ends")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn produce_sends_lines_and_counts_what_is_not_acknowledged() {
    let dir = tempfile::tempdir().expect("temp dir");
    let cluster = Cluster::start(&plan(dir.path(), 1));
    let master = cluster.in_sync(1, 0).await;
    let to = ["produce", "--addr", &master.address, "--topic"];
    let lines = epochlog(&[&to[..], &["lines", "--file", "-"]].concat(), "a\n\nb\nc");
    let out = text(&lines.stdout);
    assert!(lines.status.success(), "{out}{}", text(&lines.stderr));
    assert!(out.starts_with("3 of 3 messages acknowledged"), "{out}");
    assert!(out.contains("latency p50"), "{out}");
    let made = epochlog(
        &[&to[..], &["made", "--count", "200", "--size", "10"]].concat(),
        "",
    );
    assert!(
        text(&made.stdout).starts_with("200 of 200"),
        "{}",
        text(&made.stdout)
    );

    let bad = epochlog(&[&to[..], &["a.b", "--count", "2"]].concat(), "");
    assert_eq!(bad.status.code(), Some(1));
    let out = text(&bad.stdout);
    assert!(
        out.starts_with("0 of 2") && out.contains("2 not acknowledged, code 29"),
        "{out}"
    );
    let gone = [
        "produce",
        "--addr",
        "127.0.0.1:1",
        "--topic",
        "T",
        "--count",
        "1",
    ];
    assert_eq!(epochlog(&gone, "").status.code(), Some(1));
}

#[test]
fn a_wrong_configuration_ends_with_file_line_and_key() {
    let dir = tempfile::tempdir().expect("temp dir");
    let conf = dir.path().join("broker.conf");
    std::fs::write(&conf, "enableControllerMode=true\nlistenPort=x\n").expect("writes");
    let path = conf.to_string_lossy();
    let ended = epochlog(&["broker", "-c", &path], "");
    assert_eq!(ended.status.code(), Some(1));
    let error = text(&ended.stderr);
    assert!(
        error.contains(&format!("{path}:2: listenPort=x is not allowed")),
        "{error}"
    );

    std::fs::write(
        &conf,
        "enableControllerMode=true\ncontrollerAddr=127.0.0.1:9\n",
    )
    .expect("writes");
    let printed = epochlog(&["broker", "-c", &path, "-p"], "");
    assert!(printed.status.success());
    assert!(
        text(&printed.stdout).contains("slaveTimeout=3000\n"),
        "{}",
        text(&printed.stdout)
    );
}

#[test]
fn a_child_ends_with_the_process_that_started_it() {
    let dir = tempfile::tempdir().expect("temp dir");
    let conf = dir.path().join("broker.conf");
    let store = dir.path().join("store");
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = free.local_addr().expect("bound").port();
    drop(free);
    let settings = format!(
        "enableControllerMode=true\ncontrollerAddr=127.0.0.1:9\nbindAddress=127.0.0.1\n\
         listenPort={port}\nstorePathRootDir={}\nmappedFileSizeCommitLog=65536\n",
        store.display()
    );
    std::fs::write(&conf, settings).expect("writes");
    let mut child = Command::new(env!("CARGO_BIN_EXE_epochlog"))
        .args(["broker", "-c", &conf.to_string_lossy(), "--stop-with-stdin"])
        .stdin(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("starts");
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(
        child.try_wait().expect("known"),
        None,
        "it runs while its input is open"
    );
    drop(child.stdin.take());
    let end = Instant::now() + LIMIT;
    while child.try_wait().expect("known").is_none() {
        assert!(Instant::now() < end, "it outlives its parent");
        std::thread::sleep(Duration::from_millis(10));
    }
}
