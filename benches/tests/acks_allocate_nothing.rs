//! Counts what an acknowledged write allocates, in every thread that has a part in it, once everything
//! has been used before: nothing for a write, nor for a frame of few.
#![allow(
    unsafe_code,
    clippy::unwrap_used,
    reason = "only an allocator can count allocations, and a test ends where it fails"
)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use epochlog_benches::stores::{Scratch, body, message};
use epochlog_engine::Message;
use epochlog_ha::{
    AckPolicy, AckRequest, HaConfig, HaService, Outcome, SyncStateSet, TransportKind,
};

struct Counting;

/// Counted for the whole process: a write passes through threads of both nodes.
static COUNT: AtomicUsize = AtomicUsize::new(0);
static BYTES: AtomicUsize = AtomicUsize::new(0);
static COUNTS: AtomicBool = AtomicBool::new(false);

fn count(bytes: usize) {
    if COUNTS.load(Ordering::Relaxed) {
        COUNT.fetch_add(1, Ordering::Relaxed);
        BYTES.fetch_add(bytes, Ordering::Relaxed);
    }
}

// SAFETY: every call goes to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, len: usize) -> *mut u8 {
        count(len);
        // SAFETY: `at` came from `System` with this layout.
        unsafe { System.realloc(at, layout, len) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: `at` came from `System` with this layout.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Allocations of the process while `work` runs, and their bytes.
fn counted(work: impl FnOnce()) -> (usize, usize) {
    COUNT.store(0, Ordering::SeqCst);
    BYTES.store(0, Ordering::SeqCst);
    COUNTS.store(true, Ordering::SeqCst);
    work();
    COUNTS.store(false, Ordering::SeqCst);
    (COUNT.load(Ordering::SeqCst), BYTES.load(Ordering::SeqCst))
}

const SEGMENT: u64 = 64 << 20;
const PATIENCE: Duration = Duration::from_secs(60);
const WRITES: usize = 2000;
const IN_FLIGHT: usize = 100;
const MASTER: u64 = 1;
const SLAVE: u64 = 2;

fn serve(id: u64, scratch: &Scratch, kind: TransportKind) -> HaService {
    let mut config = HaConfig::on_loopback(id);
    config.transport = kind;
    config.slave_transport = kind;
    HaService::start(scratch.store.clone(), config).unwrap()
}

fn ack() -> AckRequest {
    AckRequest::new(AckPolicy::AllInSync, PATIENCE)
}

fn one_by_one(master: &HaService, message: &Message<'_>) {
    for _ in 0..WRITES {
        let outcome = master.append_and_wait(message, ack());
        assert!(matches!(outcome, Outcome::Acked(_)), "{outcome:?}");
    }
}

/// With a closure for each, [`IN_FLIGHT`] of them waiting.
fn many_at_once(master: &HaService, message: &Message<'_>, acked: &Arc<AtomicUsize>) {
    acked.store(0, Ordering::SeqCst);
    let began = Instant::now();
    for sent in 0..WRITES {
        while sent >= acked.load(Ordering::Acquire) + IN_FLIGHT {
            assert!(began.elapsed() < PATIENCE);
            std::thread::yield_now();
        }
        let done = Arc::clone(acked);
        master.append(message, ack(), move |outcome| {
            assert!(matches!(outcome, Outcome::Acked(_)));
            done.fetch_add(1, Ordering::AcqRel);
        });
    }
    while acked.load(Ordering::Acquire) < WRITES {
        assert!(began.elapsed() < PATIENCE);
        std::thread::yield_now();
    }
}

#[test]
fn an_acknowledged_write_allocates_nothing_anywhere() {
    assert_eq!(counted(|| drop(std::hint::black_box(Box::new(1)))).0, 1);
    for kind in [TransportKind::Std, TransportKind::Uring] {
        a_pair_allocates_nothing(kind);
    }
}

fn a_pair_allocates_nothing(kind: TransportKind) {
    let stores = [(); 2].map(|()| Scratch::log_only(SEGMENT).unwrap());
    let master = serve(MASTER, &stores[0], kind);
    let slave = serve(SLAVE, &stores[1], kind);
    let set = SyncStateSet::new([MASTER, SLAVE], 1);
    master.become_master(1, set).unwrap();
    let addr = master.listen_addr();
    slave.become_slave(1, MASTER, addr).unwrap();
    let body = body(1 << 10);
    let message = message(&body);
    let acked = Arc::new(AtomicUsize::new(0));
    for _ in 0..2 {
        one_by_one(&master, &message);
        many_at_once(&master, &message, &acked);
    }
    // What the kernel still reads of a frame of 4 KiB or more is kept in one, and such a frame has three
    // messages at least; how many it has is a matter of who gets a core when.
    let long_frames = match kind {
        TransportKind::Uring => WRITES / 3,
        _ => 0,
    };
    let check = |what: &str, long_frames: usize, work: &dyn Fn()| {
        let (calls, bytes) = counted(work);
        println!("{kind:?}, {what}: {calls} allocations, {bytes} bytes, {WRITES} writes");
        // Queues may meet more at once than before, and a thread of the store may look after its
        // segments meanwhile.
        assert!(
            calls <= WRITES / 20 + long_frames,
            "{kind:?}, {what}: {calls} for {WRITES} writes"
        );
    };
    check("one by one", 0, &|| one_by_one(&master, &message));
    check("many at once", long_frames, &|| {
        many_at_once(&master, &message, &acked);
    });
    slave.shutdown();
    master.shutdown();
}
