//! Counts what the hot paths allocate: nothing for a message.
#![allow(
    unsafe_code,
    clippy::unwrap_used,
    reason = "only an allocator can count allocations, and a test ends where it fails"
)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use epochlog_benches::stores::{Scratch, body, message};

struct Counting;

thread_local! {
    static COUNT: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every call goes to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // A thread that is ending has no counter any more, and is none of those that count.
        let _ = COUNT.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: `at` came from `System` with this layout.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Allocations of this thread while `work` runs.
fn counted(work: impl FnOnce()) -> usize {
    let before = COUNT.get();
    work();
    COUNT.get() - before
}

const COUNT_OF_MESSAGES: usize = 1000;

#[test]
fn appends_and_iteration_allocate_nothing_per_message() {
    assert_eq!(counted(|| drop(std::hint::black_box(Box::new(1)))), 1);
    let scratch = Scratch::filled(8 << 20, 1, 1024).unwrap();
    let store = &scratch.store;
    let body = body(1024);
    let message = message(&body);
    let appends = counted(|| {
        for _ in 0..COUNT_OF_MESSAGES {
            store.append(&message).unwrap();
        }
    });
    assert_eq!(appends, 0);

    let batch = vec![message; COUNT_OF_MESSAGES / 2];
    // The first one gets the thread its memory for batches.
    store.append_batch(&batch).unwrap();
    let batches = counted(|| drop(store.append_batch(&batch).unwrap()));
    assert_eq!(batches, 1, "the list of places and no more");

    // Each a view of its own, with others alive.
    let held: Vec<_> = (0..10).map(|_| store.record(0).unwrap()).collect();
    let mut at = 0;
    let single = counted(|| {
        while at < store.end_offset() {
            let view = store.record(at).unwrap();
            at = view.bytes().end();
            let again = view.clone();
            drop(view);
            std::hint::black_box(again.record().body());
        }
    });
    assert_eq!(single, 0, "for {} records", 2 * COUNT_OF_MESSAGES + 1);
    drop(held);

    let (few, all) = (store.min_offset()..10_000, 0..store.end_offset());
    let mut records = 0;
    let few = counted(|| store.records(few).for_each(|view| drop(view.unwrap())));
    let all = counted(|| {
        for view in store.records(all) {
            records += usize::from(view.unwrap().record().body() == body);
        }
    });
    assert_eq!(records, 2 * COUNT_OF_MESSAGES + 1);
    assert_eq!((few, all), (0, 0), "for few records, and for all");
}
