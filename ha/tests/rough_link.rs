//! A master and a slave joined by a link that delays, stalls, tears and is cut again and again, in
//! every way a connection can end: no ack is lost, none comes early, and both logs are equal.
//!
//! Stands in for `netem` where the kernel has none; `cut_link.rs` uses that where it is there. A failure
//! prints the seed; `ROUGH_LINK_SEED` repeats the choices, not the times. `ROUGH_LINK_MIB` and
//! `ROUGH_LINK_CUTS` make it longer.
#![expect(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

#[path = "link/proxy.rs"]
mod proxy;
#[path = "link/writes.rs"]
mod writes;

use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use epochlog_ha::TransportKind;
use proxy::{CUTS, Proxy, Random};
use writes::{BODY_LEN, Node, PATIENCE, assert_equal, begin, from_env, write_all};

fn loses_no_ack(kind: TransportKind, seed: u64) {
    println!("ROUGH_LINK_SEED={seed}");
    let mib = from_env("ROUGH_LINK_MIB", 24);
    let cuts = from_env("ROUGH_LINK_CUTS", 8) as u64;
    let node = |id| {
        let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        Node::new(id, listen, |config| {
            config.transport = kind;
            config.slave_transport = kind;
            config.reconnect_min_ms = 10;
        })
    };
    let (master, slave) = (node(1), node(2));
    let proxy = Proxy::to(master.ha.listen_addr(), seed);
    begin(&master, &slave, proxy.addr);
    let count = (mib << 20) / BODY_LEN;
    let mut random = Random(seed | 1);
    // Each way comes up, in an order of its own.
    let first = random.below(CUTS.len() as u64);
    let began = Instant::now();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| write_all(&master, &slave.store, count));
        let wait = |what: &str, holds: &dyn Fn() -> bool| {
            while !holds() {
                let all = master.store.end_offset() >= (mib << 20) as u64;
                assert!(all || !writer.is_finished(), "a write failed before {what}");
                assert!(began.elapsed() < PATIENCE, "waited in vain for {what}");
                std::thread::sleep(Duration::from_micros(200));
            }
        };
        let step = ((mib << 20) as u64) / (cuts + 1);
        for number in 0..cuts {
            // Not at a frame's end of all places: a little behind it, as it comes.
            let at = number * step + random.below(step);
            wait("the place of a cut", &|| slave.store.end_offset() >= at);
            let before = proxy.accepted();
            let how = CUTS[usize::try_from((first + number) % CUTS.len() as u64).unwrap()];
            wait("a connection to cut", &|| proxy.cut(how));
            wait("the next connection", &|| proxy.accepted() > before);
        }
        writer.join().unwrap();
    });
    let broken = assert_equal(&master, &slave);
    println!(
        "{kind:?}: {mib} MiB, {cuts} cuts, {} connections, {broken} given up by the slave, {} stalls, {:.1} s",
        proxy.accepted(),
        proxy.stalls(),
        began.elapsed().as_secs_f64()
    );
    assert!(proxy.accepted() > cuts, "a cut was not noticed");
    slave.ha.shutdown();
    master.ha.shutdown();
}

fn seed() -> u64 {
    match std::env::var("ROUGH_LINK_SEED") {
        Ok(seed) => seed.parse().unwrap(),
        Err(_) => {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
            u64::from(now.subsec_nanos())
        }
    }
}

#[test]
fn over_the_ring_a_rough_link_loses_no_ack() {
    loses_no_ack(TransportKind::Uring, seed());
}

#[test]
fn over_plain_sockets_a_rough_link_loses_no_ack() {
    loses_no_ack(TransportKind::Std, seed());
}

#[test]
fn over_tokio_uring_a_rough_link_loses_no_ack() {
    loses_no_ack(TransportKind::TokioUring, seed());
}

#[test]
fn a_rough_link_with_a_known_seed_loses_no_ack() {
    loses_no_ack(TransportKind::Auto, 42);
}
