//! The log itself over each transport: slices of one mapped file into the mapped tail of another.
#![expect(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use epochlog_engine::{LogSlice, Message, ReceiveWindow, Receiver, Store, StoreConfig};
use epochlog_ha::{
    Close, ConnId, Event, FrameBytes, RecvInto, Transport, TransportConfig, TransportKind,
};
use tempfile::TempDir;

type Boxed = Box<dyn Transport<ReceiveWindow, LogSlice>>;

const SEGMENT: u64 = 1 << 20;
const LEN: u64 = 6 << 20;
/// No multiple of anything: slices end inside records.
const BATCH: usize = 200_003;
const HOST: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 10911);

fn open(dir: &TempDir) -> Store {
    let mut config = StoreConfig::new(dir.path());
    config.segment_size = SEGMENT;
    config.prefault_ahead_bytes = SEGMENT;
    Store::open(config).unwrap()
}

fn fill(store: &Store) {
    store.promote(1).unwrap();
    let mut number = 0usize;
    while store.end_offset() < LEN {
        let body: Vec<u8> = (0..(number * 7919) % 40_000)
            .map(|at| u8::try_from((at * 31 + number) % 251).unwrap())
            .collect();
        let message = Message {
            topic: "shipped",
            queue_id: 0,
            flag: 0,
            sys_flag: 0,
            born_timestamp_ms: 1_700_000_000_000,
            born_host: HOST,
            store_host: HOST,
            reconsume_times: 0,
            prepared_transaction_offset: 0,
            body: &body,
            properties: b"",
        };
        store.append(&message).unwrap();
        number += 1;
    }
}

/// The slave's end: asks for the next part, publishes what came.
struct Tail {
    receiver: Receiver,
    conn: Option<ConnId>,
}

impl Tail {
    fn ask(&mut self, transport: &mut Boxed) {
        let window = self.receiver.window(BATCH).unwrap();
        transport.recv(self.conn.unwrap(), RecvInto::Window(window), 1);
    }

    fn event(&mut self, event: Event<ReceiveWindow>, end: u64, transport: &mut Boxed) {
        match event {
            Event::Accepted { conn, .. } => self.conn = Some(conn),
            Event::Received {
                into: RecvInto::Window(window),
                len,
                ..
            } => {
                self.receiver.filled(window, len);
                self.receiver.publish().unwrap();
            }
            other => panic!("about {}", other.conn()),
        }
        if self.receiver.received_end() < end {
            self.ask(transport);
        }
    }
}

fn assert_same_bytes(master: &Store, slave: &Store, end: u64) {
    let mut at = 0;
    while at < end {
        let sent = master.slice(at, 1 << 20).unwrap();
        let received = slave.slice(at, 1 << 20).unwrap();
        assert!(sent[..] == received[..], "bytes differ after {at}");
        at += sent.len() as u64;
    }
}

/// Waits for the end of the connection and of every lease.
fn wind_down(client: &mut Boxed, deadline: Instant) {
    let mut events = Vec::new();
    while client.stats().pinned_bytes + client.stats().connections > 0 {
        assert!(Instant::now() < deadline, "{:?}", client.stats());
        client.wait(Duration::from_millis(1), &mut events).unwrap();
    }
}

fn ship(kind: TransportKind) {
    let dirs = [TempDir::new().unwrap(), TempDir::new().unwrap()];
    let (master, slave) = (open(&dirs[0]), open(&dirs[1]));
    fill(&master);
    let end = master.end_offset();
    let mut receiver = slave.receive().unwrap();
    receiver
        .adopt_epoch(master.epochs().last().unwrap())
        .unwrap();
    let mut tail = Tail {
        receiver,
        conn: None,
    };

    let open = || -> Boxed { kind.open(TransportConfig::default()).unwrap() };
    let (mut server, mut client) = (open(), open());
    let addr = server
        .listen(SocketAddr::from(([127, 0, 0, 1], 0)))
        .unwrap();
    let conn = client.connect(addr).unwrap();
    let (mut next, mut idle) = (0, false);
    let mut events = Vec::new();
    let deadline = Instant::now() + Duration::from_secs(30);
    while slave.end_offset() < end {
        assert!(
            Instant::now() < deadline,
            "{kind:?}: stands at {}",
            slave.end_offset()
        );
        client.wait(Duration::from_millis(1), &mut events).unwrap();
        for event in events.drain(..) {
            assert!(
                matches!(event, Event::Connected { .. } | Event::Sent { .. }),
                "about {}",
                event.conn()
            );
            idle = true;
        }
        if idle && next < end {
            let slice = master.slice(next, BATCH).unwrap();
            next += slice.len() as u64;
            client.send(conn, FrameBytes::new(b""), Some(slice));
            idle = false;
        }
        server.wait(Duration::from_millis(1), &mut events).unwrap();
        for event in events.drain(..) {
            tail.event(event, end, &mut server);
        }
    }
    assert_same_bytes(&master, &slave, end);
    let stats = client.stats();
    if kind == TransportKind::Uring {
        assert!(
            stats.zero_copy_quanta + stats.copied_quanta >= 20,
            "{stats:?}"
        );
    }
    client.close(conn, Close::Reset);
    wind_down(&mut client, deadline);
    drop(tail);
    slave.close().unwrap();
    master.close().unwrap();
}

#[test]
fn a_mapped_log_reaches_a_mapped_tail_over_the_raw_ring() {
    ship(TransportKind::Uring);
}

#[test]
fn a_mapped_log_reaches_a_mapped_tail_over_tokio_uring() {
    ship(TransportKind::TokioUring);
}

#[test]
fn a_mapped_log_reaches_a_mapped_tail_over_ordinary_sockets() {
    ship(TransportKind::Std);
}
