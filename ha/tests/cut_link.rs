//! A master and a slave in two network namespaces, joined by a pair of virtual interfaces with delay
//! and loss where `tc` offers them. The link is taken down in the middle of the transfer, again and
//! again: every write is acknowledged in the end, none before the slave has it, and both logs are equal.
//!
//! Needs root, `ip`, and the right to make namespaces; elsewhere it says that it was left out.
//! `EPOCHLOG_LINK_MIB` and `EPOCHLOG_LINK_CUTS` make it longer.
#![expect(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

#[path = "link/writes.rs"]
mod writes;

use std::fs::File;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use writes::{BODY_LEN, Node, PATIENCE, assert_equal, begin, from_env, write_all};

/// Longer than a silent peer is waited for.
const DOWN: Duration = Duration::from_millis(900);

/// Two namespaces and the link between them; gone when dropped.
struct Link {
    near: String,
    far: String,
    device: String,
    netem: bool,
}

/// Runs a program and returns whether it could do what it was asked for.
fn does(line: &str) -> bool {
    let mut words = line.split(' ');
    let output = Command::new(words.next().unwrap()).args(words).output();
    output.is_ok_and(|output| output.status.success())
}

impl Link {
    /// None where namespaces or interfaces are not to be had.
    fn new() -> Option<Self> {
        let id = std::process::id();
        let mut link = Self {
            near: format!("epochlog-near-{id}"),
            far: format!("epochlog-far-{id}"),
            device: format!("eln{id}"),
            netem: false,
        };
        let (near, far, device) = (&link.near, &link.far, &link.device);
        let peer = format!("elf{id}");
        let lines = [
            format!("ip netns add {near}"),
            format!("ip netns add {far}"),
            format!("ip link add {device} type veth peer name {peer}"),
            format!("ip link set {device} netns {near}"),
            format!("ip link set {peer} netns {far}"),
            format!("ip -n {near} addr add 10.99.0.1/24 dev {device}"),
            format!("ip -n {far} addr add 10.99.0.2/24 dev {peer}"),
            format!("ip -n {near} link set {device} up"),
            format!("ip -n {far} link set {peer} up"),
        ];
        if let Some(line) = lines.iter().find(|line| !does(line)) {
            eprintln!("left out: `{line}` does not work here");
            return None;
        }
        let netem = "root netem delay 1ms 500us loss 0.1% reorder 1%";
        link.netem = does(&format!(
            "ip netns exec {near} tc qdisc add dev {device} {netem}"
        ));
        eprintln!("netem (delay, loss, reordering): {}", link.netem);
        Some(link)
    }

    fn set(&self, state: &str) {
        let (near, device) = (&self.near, &self.device);
        assert!(does(&format!("ip -n {near} link set {device} {state}")));
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // What is not there need not go.
        let _ = does(&format!("ip netns del {}", self.near));
        let _ = does(&format!("ip netns del {}", self.far));
    }
}

/// A node whose sockets are in the namespace: those of a thread are where it was started.
fn node(namespace: &str, id: u64, addr: &str) -> Node {
    let path = Path::new("/run/netns").join(namespace);
    let listen: SocketAddr = format!("{addr}:10912").parse().unwrap();
    let start = move || {
        let namespace = File::open(path).unwrap();
        let kind = Some(LinkNameSpaceType::Network);
        move_into_link_name_space(namespace.as_fd(), kind).unwrap();
        Node::new(id, listen, |_| ())
    };
    std::thread::spawn(start).join().unwrap()
}

#[test]
fn a_link_that_is_taken_down_again_and_again_loses_no_ack() {
    let Some(link) = Link::new() else { return };
    let mib = from_env("EPOCHLOG_LINK_MIB", 64);
    let cuts = from_env("EPOCHLOG_LINK_CUTS", 5);
    let count = (mib << 20) / BODY_LEN;
    let master = node(&link.near, 1, "10.99.0.1");
    let slave = node(&link.far, 2, "10.99.0.2");
    begin(&master, &slave, master.ha.listen_addr());
    let step = ((mib << 20) / (cuts + 1)) as u64;
    let began = Instant::now();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| write_all(&master, &slave.store, count));
        for cut in 1..=cuts as u64 {
            while slave.store.end_offset() < cut * step {
                assert!(!writer.is_finished() && began.elapsed() < PATIENCE);
                std::thread::sleep(Duration::from_millis(1));
            }
            link.set("down");
            std::thread::sleep(DOWN);
            link.set("up");
        }
        writer.join().unwrap();
    });
    let broken = assert_equal(&master, &slave);
    eprintln!(
        "{mib} MiB, {cuts} cuts, {broken} connections given up, {:.1} s",
        began.elapsed().as_secs_f64()
    );
    assert!(broken > 0, "no cut was long enough to be noticed");
    slave.ha.shutdown();
    master.ha.shutdown();
}
