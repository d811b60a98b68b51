//! What only the simulated transport promises: runs that repeat, faults on demand, no real time.
#![expect(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

use std::fmt::Write;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use epochlog_ha::{
    ConnId, Event, FrameBytes, RecvInto, SimConfig, SimNet, SimTransport, Transport,
    TransportConfig,
};

type Net = SimNet<Vec<u8>, Vec<u8>>;
type Host = SimTransport<Vec<u8>, Vec<u8>>;

const SERVER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
const CLIENT: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));
const SECOND: Duration = Duration::from_secs(1);

struct Pair {
    net: Net,
    server: Host,
    client: Host,
    accepted: ConnId,
    connected: ConnId,
}

fn pair(seed: u64) -> Pair {
    let net = Net::new(seed, SimConfig::default());
    let mut server = net.endpoint(SERVER, TransportConfig::default());
    let mut client = net.endpoint(CLIENT, TransportConfig::default());
    let addr = server.listen(SocketAddr::new(SERVER, 10912)).unwrap();
    let connected = client.connect(addr).unwrap();
    let accepted = events(&mut server, SECOND)[0].conn();
    assert_eq!(events(&mut client, SECOND)[0].conn(), connected);
    Pair {
        net,
        server,
        client,
        accepted,
        connected,
    }
}

fn events(host: &mut Host, timeout: Duration) -> Vec<Event<Vec<u8>>> {
    let mut events = Vec::new();
    host.wait(timeout, &mut events).unwrap();
    events
}

/// Everything that happens in a transfer of 300 KiB, with its virtual time.
fn transcript(seed: u64) -> String {
    let mut pair = pair(seed);
    let mut text = String::new();
    let body = vec![5; 300 * 1024];
    pair.client
        .send(pair.connected, FrameBytes::new(b"head"), Some(body));
    let mut left = 300 * 1024 + 4;
    while left > 0 {
        pair.server
            .recv(pair.accepted, RecvInto::Bytes(vec![0; 100_000]), 1);
        for event in events(&mut pair.server, SECOND) {
            let Event::Received { len, .. } = event else {
                panic!("{event:?}")
            };
            left -= len;
            writeln!(text, "{:?} received {len}", pair.net.elapsed()).unwrap();
        }
        for event in events(&mut pair.client, Duration::ZERO) {
            writeln!(text, "{:?} {event:?}", pair.net.elapsed()).unwrap();
        }
    }
    text
}

#[test]
fn the_same_seed_gives_the_same_run_and_another_seed_another() {
    let first = transcript(1);
    assert_eq!(first, transcript(1));
    assert_ne!(first, transcript(2));
    assert!(
        first.lines().count() > 5,
        "one piece is no split delivery:\n{first}"
    );
    assert!(first.contains("Sent"), "{first}");
}

#[test]
fn hours_pass_in_no_time_and_only_by_waiting() {
    let began = Instant::now();
    let mut pair = pair(3);
    let before = pair.net.elapsed();
    let clock = pair.server.now();
    assert!(events(&mut pair.server, Duration::ZERO).is_empty());
    assert_eq!(pair.net.elapsed(), before);
    assert!(events(&mut pair.server, 3600 * SECOND).is_empty());
    assert_eq!(pair.net.elapsed(), before + 3600 * SECOND);
    pair.net.advance(SECOND);
    assert_eq!(pair.server.now() - clock, 3601 * SECOND);
    assert_eq!(pair.net.next_happening(), None);
    assert!(began.elapsed() < 20 * SECOND);
}

#[test]
fn a_stalled_wire_loses_nothing_and_keeps_the_order() {
    let mut pair = pair(4);
    pair.net.stall(SERVER, CLIENT);
    for number in 0..50u8 {
        pair.client
            .send(pair.connected, FrameBytes::new(&[number; 100]), None);
        assert!(matches!(
            events(&mut pair.client, SECOND)[..],
            [Event::Sent { .. }]
        ));
    }
    pair.server
        .recv(pair.accepted, RecvInto::Bytes(vec![0; 5000]), 5000);
    assert!(events(&mut pair.server, 60 * SECOND).is_empty());
    pair.net.resume(CLIENT, SERVER);
    let arrived = events(&mut pair.server, SECOND);
    let [
        Event::Received {
            into: RecvInto::Bytes(bytes),
            len: 5000,
            ..
        },
    ] = &arrived[..]
    else {
        panic!("{arrived:?}")
    };
    let expected: Vec<u8> = (0..50u8).flat_map(|number| [number; 100]).collect();
    assert_eq!(bytes, &expected);
}

#[test]
fn a_broken_connection_ends_at_both_ends_and_a_new_one_works() {
    let mut pair = pair(5);
    pair.server
        .recv(pair.accepted, RecvInto::Bytes(vec![0; 10]), 10);
    pair.client
        .send(pair.connected, FrameBytes::new(b"under way"), None);
    assert!(matches!(
        events(&mut pair.client, Duration::ZERO)[..],
        [Event::Sent { .. }]
    ));
    pair.net.break_connections(SERVER, CLIENT);
    let server = events(&mut pair.server, Duration::ZERO);
    assert!(
        matches!(
            server[..],
            [Event::Closed {
                received: Some((_, 0)),
                ..
            }]
        ),
        "{server:?}"
    );
    assert!(matches!(
        events(&mut pair.client, Duration::ZERO)[..],
        [Event::Closed { .. }]
    ));
    pair.client.connect(SocketAddr::new(SERVER, 10912)).unwrap();
    assert!(matches!(
        events(&mut pair.server, SECOND)[..],
        [Event::Accepted { .. }]
    ));
    assert!(matches!(
        events(&mut pair.client, SECOND)[..],
        [Event::Connected { .. }]
    ));
}

#[test]
fn a_host_that_is_gone_resets_its_connections() {
    let mut pair = pair(6);
    pair.client
        .recv(pair.connected, RecvInto::Bytes(vec![0; 10]), 10);
    drop(pair.server);
    let closed = events(&mut pair.client, SECOND);
    assert!(
        matches!(
            closed[..],
            [Event::Closed {
                received: Some((_, 0)),
                ..
            }]
        ),
        "{closed:?}"
    );
    let conn = pair.client.connect(SocketAddr::new(SERVER, 10912)).unwrap();
    let refused = events(&mut pair.client, SECOND);
    assert!(
        matches!(&refused[..], [Event::Closed { conn: id, .. }] if *id == conn),
        "{refused:?}"
    );
}
