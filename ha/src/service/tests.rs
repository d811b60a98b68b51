//! What the service says of itself when a thread ends that should not.

use std::io;
use std::task::Waker;

use epochlog_engine::{Message, StoreConfig};

use super::*;
use crate::acks::AckPolicy;
use crate::transport::{
    Body, Close, ConnId, Event, FrameBytes, RecvInto, StdTransport, Transport, TransportConfig,
    TransportStats, Window,
};

/// Fails as a ring does whose descriptor is gone, once it is told to.
struct Breaks<W, B> {
    inner: StdTransport<W, B>,
    broken: Arc<AtomicBool>,
    panics: bool,
}

impl<W: Window, B: Body> Transport<W, B> for Breaks<W, B> {
    fn listen(&mut self, addr: SocketAddr) -> io::Result<SocketAddr> {
        self.inner.listen(addr)
    }

    fn connect(&mut self, addr: SocketAddr) -> io::Result<ConnId> {
        self.inner.connect(addr)
    }

    fn recv(&mut self, conn: ConnId, into: RecvInto<W>, at_least: usize) {
        self.inner.recv(conn, into, at_least);
    }

    fn send(&mut self, conn: ConnId, head: FrameBytes, body: Option<B>) {
        self.inner.send(conn, head, body);
    }

    fn close(&mut self, conn: ConnId, how: Close) {
        self.inner.close(conn, how);
    }

    fn wait(&mut self, timeout: Duration, events: &mut Vec<Event<W>>) -> io::Result<()> {
        if self.broken.load(Ordering::SeqCst) {
            assert!(!self.panics, "told to panic");
            return Err(io::Error::other("the ring is gone"));
        }
        self.inner
            .wait(timeout.min(Duration::from_millis(10)), events)
    }

    fn waker(&self) -> Waker {
        self.inner.waker()
    }

    fn stats(&self) -> TransportStats {
        self.inner.stats()
    }

    fn name(&self) -> &'static str {
        "breaks"
    }
}

fn breaks<W: Window, B: Body>(broken: &Arc<AtomicBool>, panics: bool) -> Box<Breaks<W, B>> {
    Box::new(Breaks {
        inner: StdTransport::new(TransportConfig::default()).unwrap(),
        broken: Arc::clone(broken),
        panics,
    })
}

fn stops(master: bool, panics: bool) -> String {
    let dir = tempfile::tempdir().unwrap();
    let mut config = StoreConfig::new(dir.path());
    config.segment_size = 64 << 10;
    let store = Arc::new(Store::open(config).unwrap());
    let (first, second) = (Arc::default(), Arc::default());
    let service = HaService::start_on(
        Arc::clone(&store),
        HaConfig::on_loopback(1),
        breaks(&first, panics),
        breaks(&second, panics),
    )
    .unwrap();
    service.become_master(1, SyncStateSet::new([1], 1)).unwrap();
    assert!(service.is_running());
    assert_eq!(service.stopped_because(), None);
    if master { first } else { second }.store(true, Ordering::SeqCst);
    let began = std::time::Instant::now();
    while service.is_running() {
        assert!(began.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(1));
    }
    let message = Message {
        topic: "t",
        queue_id: 0,
        flag: 0,
        sys_flag: 0,
        born_timestamp_ms: 0,
        born_host: "127.0.0.1:1".parse().unwrap(),
        store_host: "127.0.0.1:1".parse().unwrap(),
        reconsume_times: 0,
        prepared_transaction_offset: 0,
        body: b"late",
        properties: b"",
    };
    // The fence comes right after the word of it.
    let ack = AckRequest::new(AckPolicy::Local, Duration::from_secs(20));
    while !matches!(service.append_and_wait(&message, ack), Outcome::Refused(_)) {
        assert!(began.elapsed() < Duration::from_secs(20));
    }
    let why = service.stopped_because().unwrap();
    service.shutdown();
    assert_eq!(service.stopped_because(), Some(why.clone()));
    why
}

#[test]
fn a_thread_that_ends_by_itself_fences_the_node_and_says_why() {
    for (master, name) in [(true, MASTER_THREAD), (false, SLAVE_THREAD)] {
        let why = stops(master, false);
        assert!(
            why.contains(name) && why.contains("the ring is gone"),
            "{why}"
        );
        let why = stops(master, true);
        assert!(why.contains(name) && why.contains("panicked"), "{why}");
    }
}

#[test]
fn a_service_that_is_shut_down_does_not_run() {
    let dir = tempfile::tempdir().unwrap();
    let store = Arc::new(Store::open(StoreConfig::new(dir.path())).unwrap());
    let service = HaService::start(store, HaConfig::on_loopback(1)).unwrap();
    service.shutdown();
    assert!(!service.is_running());
    assert!(service.stopped_because().unwrap().contains("shut down"));
}
