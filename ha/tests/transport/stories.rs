//! What every transport must do, told once.

use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use epochlog_ha::{Close, CloseReason, RecvInto, TransportConfig};

use super::bed::{Bed, Lease, Maker, Random, Room, Side, pattern};

fn no_leases() -> Arc<AtomicUsize> {
    Arc::new(AtomicUsize::new(0))
}

pub(crate) fn echo_with_receives_of_one_byte(maker: &mut dyn Maker) {
    let mut bed = Bed::new(maker);
    let (server, client) = bed.connect();
    let text = pattern(7, 300);
    bed.client.send(client, &text, None);
    bed.server.recv(server, 1, 1);
    bed.client.recv(client, 300, 300);
    bed.run("the echo", |a, b| {
        if a.idle_receives.pop().is_some() {
            if a.received(server).len() == 300 {
                let echo = a.received(server).to_vec();
                a.send(server, &echo, None);
            } else {
                a.recv(server, 1, 1);
            }
        }
        b.received(client).len() == 300
    });
    assert_eq!(bed.server.received(server), text);
    assert_eq!(bed.client.received(client), text);
    assert_eq!(bed.server.rooms.len(), 300);
    assert_eq!(bed.client.sent(client), 1);
}

pub(crate) fn half_frames_fill_one_receive(maker: &mut dyn Maker) {
    let mut bed = Bed::new(maker);
    let (server, client) = bed.connect();
    let frame = pattern(8, 4096);
    bed.server.recv(server, 4096, 4096);
    for (count, part) in frame.chunks(1000).enumerate() {
        bed.client.send(client, part, None);
        bed.run("a part is sent", |_, b| b.sent(client) == count + 1);
        bed.run_for(Duration::from_millis(3));
    }
    bed.run("the whole frame", |a, _| !a.rooms.is_empty());
    assert_eq!(bed.server.received(server), frame);
    assert_eq!(bed.server.rooms.len(), 1);
}

pub(crate) fn a_receive_may_end_between_its_least_and_its_room(maker: &mut dyn Maker) {
    let mut bed = Bed::new(maker);
    let (server, client) = bed.connect();
    bed.client.send(client, &pattern(9, 100), None);
    bed.server.recv(server, 65536, 40);
    bed.run("a receive", |a, _| !a.rooms.is_empty());
    let len = bed.server.rooms[0].1;
    assert!((40..=100).contains(&len), "{len}");
}

pub(crate) fn a_window_is_filled_exactly(maker: &mut dyn Maker) {
    let mut bed = Bed::new(maker);
    let (server, client) = bed.connect();
    let body = Arc::new(pattern(10, 300_000));
    let leases = no_leases();
    bed.client
        .send(client, b"head", Some(Lease::new(&body, &leases)));
    bed.server.recv(server, 4, 4);
    bed.run("the head", |a, _| a.rooms.len() == 1);
    bed.server.recv(server, 200_000, 200_000);
    bed.run("the window", |a, _| a.rooms.len() == 2);
    assert_eq!(bed.server.rooms[1].1, 200_000);
    assert_eq!(bed.server.received(server)[4..], body[..200_000]);
    bed.server.recv(server, 100_000, 100_000);
    bed.run("the rest", |a, b| a.rooms.len() == 3 && b.sent(client) == 1);
    assert_eq!(bed.server.received(server)[4..], body[..]);
    bed.run("the lease is over", |_, _| {
        leases.load(Ordering::SeqCst) == 0
    });
}

pub(crate) fn a_peer_that_stalls_holds_the_send_up(maker: &mut dyn Maker) {
    let mut bed = Bed::new(maker);
    let (server, client) = bed.connect();
    let body = Arc::new(pattern(11, 24 << 20));
    let leases = no_leases();
    bed.client
        .send(client, b"h", Some(Lease::new(&body, &leases)));
    bed.run_for(Duration::from_millis(60));
    assert_eq!(
        bed.client.sent(client),
        0,
        "24 MiB do not fit into socket buffers"
    );
    assert_eq!(leases.load(Ordering::SeqCst), 1);
    bed.server.recv(server, 1 << 20, 1);
    let total = body.len() + 1;
    bed.run("everything", |a, b| {
        if a.idle_receives.pop().is_some() && a.received(server).len() < total {
            a.rooms.clear();
            a.recv(server, 1 << 20, 1);
        }
        a.received(server).len() == total && b.sent(client) == 1
    });
    assert!(
        bed.server.received(server)[1..] == body[..],
        "other bytes arrived"
    );
    bed.run("the lease is over", |_, _| {
        leases.load(Ordering::SeqCst) == 0
    });
}

pub(crate) fn a_reset_in_the_middle_of_a_body_gives_the_buffers_back(maker: &mut dyn Maker) {
    let mut bed = Bed::new(maker);
    let (server, client) = bed.connect();
    let body = Arc::new(pattern(12, 24 << 20));
    let leases = no_leases();
    bed.server.recv(server, 32 << 20, 32 << 20);
    bed.client
        .send(client, b"", Some(Lease::new(&body, &leases)));
    bed.run_for(Duration::from_millis(5));
    bed.client.close(client, Close::Reset);
    bed.run("both ends", |a, b| {
        !a.closed.is_empty() && !b.closed.is_empty()
    });
    let (reason, filled) = &bed.server.closed[&server];
    assert!(!matches!(reason, CloseReason::Requested), "{reason}");
    let filled = filled.expect("the receive was outstanding");
    assert!(filled <= body.len());
    assert!(bed.server.received(server) == &body[..filled]);
    assert!(matches!(
        bed.client.closed[&client],
        (CloseReason::Requested, None)
    ));
    assert_eq!(
        leases.load(Ordering::SeqCst),
        0,
        "Closed came before the lease was over"
    );
}

pub(crate) fn closing_one_side_gives_its_own_buffers_back(maker: &mut dyn Maker) {
    for how in [Close::Graceful, Close::Reset] {
        let mut bed = Bed::new(maker);
        let (server, client) = bed.connect();
        let body = Arc::new(pattern(13, 24 << 20));
        let leases = no_leases();
        bed.client.recv(client, 1000, 1000);
        bed.client
            .send(client, b"head", Some(Lease::new(&body, &leases)));
        bed.run_for(Duration::from_millis(5));
        bed.client.close(client, how);
        // Nobody reads on the server, so a graceful end needs the second, harder request.
        bed.run_for(Duration::from_millis(5));
        bed.client.close(client, Close::Reset);
        bed.run("closed", |_, b| !b.closed.is_empty());
        assert!(matches!(
            bed.client.closed[&client],
            (CloseReason::Requested, Some(0))
        ));
        assert_eq!(
            leases.load(Ordering::SeqCst),
            0,
            "{how:?}: lease after Closed"
        );
        bed.server.recv(server, 32 << 20, 32 << 20);
        bed.run("the other end", |a, _| !a.closed.is_empty());
        let filled = bed.server.received(server).len();
        assert!(filled < body.len(), "a cut send was finished");
        bed.client.close(client, Close::Reset);
        bed.run_for(Duration::from_millis(2));
        assert_eq!(bed.client.closed.len(), 1);
    }
}

pub(crate) fn what_was_sent_before_a_graceful_close_arrives(maker: &mut dyn Maker) {
    let mut bed = Bed::new(maker);
    let (server, client) = bed.connect();
    let body = Arc::new(pattern(14, 20_000));
    let leases = no_leases();
    bed.client
        .send(client, b"last words ", Some(Lease::new(&body, &leases)));
    bed.run("sent", |_, b| b.sent(client) == 1);
    bed.client.close(client, Close::Graceful);
    bed.server.recv(server, 30_000, 30_000);
    bed.run("the end", |a, b| {
        !a.closed.is_empty() && !b.closed.is_empty()
    });
    let (reason, filled) = &bed.server.closed[&server];
    assert!(matches!(reason, CloseReason::PeerClosed), "{reason}");
    assert_eq!(*filled, Some(20_011));
    assert!(bed.server.received(server)[11..] == body[..]);
}

pub(crate) fn a_flood_of_small_frames_keeps_its_order(maker: &mut dyn Maker) {
    const FRAMES: usize = 3000;
    let mut bed = Bed::new(maker);
    let (server, client) = bed.connect();
    let frame = |number: usize| (number as u64).to_be_bytes();
    bed.server.recv(server, 37, 1);
    let mut asked = 0;
    bed.run("the flood", |a, b| {
        while asked < FRAMES && b.sent(client) == asked {
            b.send(client, &frame(asked), None);
            asked += 1;
            b.step(Duration::ZERO);
        }
        if a.idle_receives.pop().is_some() && a.received(server).len() < 8 * FRAMES {
            a.recv(server, 37, 1);
        }
        a.received(server).len() == 8 * FRAMES
    });
    for (number, bytes) in bed.server.received(server).chunks(8).enumerate() {
        assert_eq!(bytes, frame(number));
    }
}

pub(crate) fn heads_and_bodies_of_all_sizes_arrive_in_order(maker: &mut dyn Maker, seed: u64) {
    const FRAMES: usize = 250;
    println!("seed {seed}");
    let mut random = Random(seed);
    let mut bed = Bed::new(maker);
    let (server, client) = bed.connect();
    let leases = no_leases();
    let mut expected = Vec::new();
    let mut frames = Vec::new();
    for number in 0..FRAMES as u64 {
        let head = pattern(seed ^ number, 1 + random.below(80));
        let limit = [1, 1000, 17_000, 70_000, 400_000][random.below(5)];
        let body = Arc::new(pattern(!seed ^ number, random.below(limit)));
        expected.extend_from_slice(&head);
        expected.extend_from_slice(&body);
        frames.push((
            head,
            (random.below(8) > 0 || !body.is_empty()).then_some(body),
        ));
    }
    let mut next = 0;
    bed.server.recv(server, 1, 1);
    bed.run("all frames", |a, b| {
        if next < FRAMES && b.sent(client) == next {
            let (head, body) = &frames[next];
            b.send(
                client,
                head,
                body.as_ref().map(|body| Lease::new(body, &leases)),
            );
            next += 1;
        }
        let left = expected.len() - a.received(server).len();
        if left > 0 && a.idle_receives.pop().is_some() {
            a.rooms.clear();
            let room = (1 + random.below(300_000)).min(left);
            a.recv(server, room, 1 + random.below(room));
        }
        left == 0 && b.sent(client) == FRAMES
    });
    assert!(
        bed.server.received(server) == expected,
        "seed {seed}: other bytes arrived"
    );
    bed.run("the leases are over", |_, _| {
        leases.load(Ordering::SeqCst) == 0
    });
    let stats = bed.client.transport.stats();
    assert_eq!(stats.sent_bytes, expected.len() as u64);
    assert_eq!(stats.pinned_bytes, 0);
    assert_eq!(
        bed.server.transport.stats().received_bytes,
        expected.len() as u64
    );
}

pub(crate) fn many_connections_do_not_mix(maker: &mut dyn Maker) {
    const CONNS: usize = 120;
    let mut bed = Bed::new(maker);
    let pairs: Vec<_> = (0..CONNS).map(|_| bed.connect()).collect();
    for (number, (server, client)) in pairs.iter().enumerate() {
        bed.server.recv(*server, 5000, 5000);
        bed.client
            .send(*client, &pattern(number as u64 + 1, 5000), None);
    }
    bed.run("all of them", |a, _| a.rooms.len() == CONNS);
    for (number, (server, _)) in pairs.iter().enumerate() {
        assert_eq!(
            bed.server.received(*server),
            pattern(number as u64 + 1, 5000)
        );
    }
    assert_eq!(bed.server.transport.stats().connections, CONNS as u64);
    for (_, client) in &pairs {
        bed.client.close(*client, Close::Graceful);
    }
    for (server, _) in &pairs {
        bed.server.recv(*server, 1, 1);
    }
    bed.run("all closed", |a, b| {
        a.closed.len() == CONNS && b.closed.len() == CONNS
    });
    assert_eq!(bed.server.transport.stats().connections, 0);
}

pub(crate) fn connections_above_the_limit_are_refused(maker: &mut dyn Maker) {
    let config = TransportConfig {
        max_connections: 2,
        ..TransportConfig::default()
    };
    let mut bed = Bed::with_config(maker, config.clone());
    bed.connect();
    bed.connect();
    let error = bed.client.transport.connect(bed.addr).unwrap_err();
    assert!(error.to_string().contains("max_connections"), "{error}");
    let mut third = Side::new(maker.make(config));
    let conn = third.transport.connect(bed.addr).unwrap();
    third.recv(conn, 1, 1);
    bed.run("refused", |a, _| {
        third.step(Duration::from_millis(1));
        third.closed.contains_key(&conn) && a.transport.stats().refused == 1
    });
    assert_eq!(bed.server.transport.stats().connections, 2);
}

pub(crate) fn a_refused_connection_is_an_event_that_names_the_peer(maker: &mut dyn Maker) {
    let mut bed = Bed::new(maker);
    let addr = bed.addr;
    let (server, client) = bed.connect();
    bed.server = Side::new(maker.make(TransportConfig::default()));
    bed.client.recv(client, 10, 10);
    bed.run("reset", |_, b| b.closed.contains_key(&client));
    assert_eq!(bed.client.closed[&client].1, Some(0));
    let conn = bed.client.transport.connect(addr).unwrap();
    bed.run("refused", |_, b| b.closed.contains_key(&conn));
    let CloseReason::Failed(error) = &bed.client.closed[&conn].0 else {
        panic!("not an error")
    };
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    assert!(error.to_string().contains(&addr.to_string()), "{error}");
    assert!(bed.client.connected.len() == 1 && server != conn);
}

pub(crate) fn closing_a_connection_that_is_not_up_yet_is_allowed(maker: &mut dyn Maker) {
    let mut bed = Bed::new(maker);
    let conn = bed.client.transport.connect(bed.addr).unwrap();
    bed.client.recv(conn, 10, 10);
    bed.client.close(conn, Close::Reset);
    bed.run("closed", |_, b| b.closed.contains_key(&conn));
    assert!(matches!(
        bed.client.closed[&conn],
        (CloseReason::Requested, Some(0))
    ));
    bed.connect();
}

pub(crate) fn calls_for_an_id_that_is_gone_are_ignored(maker: &mut dyn Maker) {
    let mut bed = Bed::new(maker);
    let (server, client) = bed.connect();
    bed.client.close(client, Close::Reset);
    bed.server.recv(server, 1, 1);
    bed.run("closed", |a, b| {
        !a.closed.is_empty() && !b.closed.is_empty()
    });
    let leases = no_leases();
    let body = Arc::new(vec![1]);
    bed.client.recv(client, 10, 10);
    bed.client
        .send(client, b"x", Some(Lease::new(&body, &leases)));
    bed.client.close(client, Close::Graceful);
    assert_eq!(leases.load(Ordering::SeqCst), 0);
    let (server, client) = bed.connect();
    bed.client.send(client, b"x", None);
    bed.server.recv(server, 1, 1);
    bed.run("still works", |a, _| a.received(server) == b"x");
}

pub(crate) fn a_wake_before_the_wait_is_not_lost(maker: &mut dyn Maker) {
    let mut side = Side::new(maker.make(TransportConfig::default()));
    side.step(Duration::ZERO);
    side.transport.waker().wake();
    let begin = Instant::now();
    side.step(Duration::from_secs(10));
    assert!(
        begin.elapsed() < Duration::from_secs(5),
        "{:?}",
        begin.elapsed()
    );
}

pub(crate) fn a_wake_from_another_thread_ends_the_wait_soon(maker: &mut dyn Maker) {
    let mut side = Side::new(maker.make(TransportConfig::default()));
    side.step(Duration::ZERO);
    let mut late = Vec::new();
    for _ in 0..10 {
        let waker = side.transport.waker();
        let thread = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(15));
            let called = Instant::now();
            waker.wake_by_ref();
            called
        });
        side.step(Duration::from_secs(10));
        let woken = Instant::now();
        late.push(woken.saturating_duration_since(thread.join().unwrap()));
    }
    late.sort();
    // The median: two busy cores may hold one of them up.
    assert!(late[5] < Duration::from_millis(20), "{late:?}");
}

pub(crate) fn a_wait_ends_after_its_timeout(maker: &mut dyn Maker) {
    let mut side = Side::new(maker.make(TransportConfig::default()));
    side.transport.listen(maker.addr()).unwrap();
    let begin = side.transport.now();
    // A wait may end early with nothing.
    while side.transport.now() - begin < Duration::from_millis(30) {
        side.step(Duration::from_millis(30));
    }
    assert!(side.transport.now() - begin < Duration::from_secs(5));
}

pub(crate) fn dropping_with_everything_pending_is_quick_and_complete(maker: &mut dyn Maker) {
    let mut bed = Bed::new(maker);
    let leases = no_leases();
    let body = Arc::new(pattern(15, 24 << 20));
    for _ in 0..5 {
        let (_, client) = bed.connect();
        bed.client.recv(client, 100_000, 100_000);
        bed.client
            .send(client, b"head", Some(Lease::new(&body, &leases)));
    }
    bed.run_for(Duration::from_millis(10));
    bed.client.transport.connect(bed.addr).unwrap();
    let begin = Instant::now();
    drop(bed.client);
    drop(bed.server);
    assert!(
        begin.elapsed() < Duration::from_secs(1),
        "{:?}",
        begin.elapsed()
    );
    assert_eq!(leases.load(Ordering::SeqCst), 0);
}

pub(crate) fn a_second_receive_is_our_own_mistake(maker: &mut dyn Maker) {
    let mut bed = Bed::new(maker);
    let (server, _) = bed.connect();
    bed.server.recv(server, 10, 10);
    let second = std::panic::AssertUnwindSafe(|| {
        bed.server
            .transport
            .recv(server, RecvInto::Window(Room::new(1)), 1);
    });
    assert!(std::panic::catch_unwind(second).is_err());
}
