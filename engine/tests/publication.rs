//! The publication protocol of a region under loom: every order of steps, and every value that the memory
//! model lets a load see.
//!
//! `src/region.rs` itself is compiled here, with loom's lock and atomics in place of its own. Its bytes are
//! watched: loom is told of each read and write of each byte, and refuses a read that nothing orders behind
//! the write. LOOM_MAX_PREEMPTIONS and LOOM_LOG are loom's own settings.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "a test uses a part of what a region offers"
)]

#[path = "../src/region.rs"]
mod region;

/// What `src/sync.rs` is to the engine.
mod sync {
    pub(crate) use loom::sync::atomic;

    pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(loom::sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> loom::sync::MutexGuard<'_, T> {
            self.0.lock().expect("no thread panicked with it")
        }
    }
}

use std::ops::Range;
use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::thread;

use region::heap::{Heap, Watch, watched};
use region::{Region, Writer};

/// One of loom's cells for each byte.
struct Cells(Vec<UnsafeCell<()>>);

impl Watch for Cells {
    fn reads(&self, range: Range<usize>) {
        for cell in &self.0[range] {
            cell.with(|_| ());
        }
    }

    fn writes(&self, range: Range<usize>) {
        for cell in &self.0[range] {
            cell.with_mut(|_| ());
        }
    }
}

type Loomed = Arc<Region<Heap<Cells>>>;

fn region(len: usize) -> Loomed {
    watched(len, Cells((0..len).map(|_| UnsafeCell::new(())).collect()))
}

fn write(writer: &mut Writer<Heap<Cells>>, bytes: &[u8]) {
    writer.tail_mut()[..bytes.len()].copy_from_slice(bytes);
    writer.publish(bytes.len());
}

#[test]
fn whoever_sees_the_end_sees_the_bytes_below_it() {
    loom::model(|| {
        let region = region(4);
        let mut writer = region.claim().expect("the first");
        let reader = thread::spawn({
            let region = Arc::clone(&region);
            move || {
                let mut last = 0;
                for _ in 0..2 {
                    let view = region.view(0, 4).expect("inside");
                    assert!([&b""[..], b"ab", b"abcd"].contains(&&*view), "{:?}", &*view);
                    assert!(view.len() >= last, "the end went back");
                    last = view.len();
                }
            }
        });
        write(&mut writer, b"ab");
        write(&mut writer, b"cd");
        reader.join().expect("no panic");
        assert_eq!(&*region.view(0, 4).expect("inside"), b"abcd");
    });
}

#[test]
fn a_view_keeps_its_bytes_or_the_writer_keeps_its_region_and_never_both() {
    loom::model(|| {
        let region = region(4);
        let mut writer = region.claim().expect("the first");
        write(&mut writer, b"abcd");
        let reader = thread::spawn({
            let region = Arc::clone(&region);
            move || {
                let view = region.view(0, 4).expect("inside");
                let seen = view.to_vec();
                assert!([&b"ab"[..], b"abcd", b"abX"].contains(&&*seen), "{seen:?}");
                let part = view.narrow(0..2).expect("inside");
                thread::yield_now();
                assert_eq!(&*view, seen, "a view changed");
                drop(view);
                assert_eq!(&*part, b"ab");
            }
        });
        if let Some(mut writer) = writer.retract(2) {
            write(&mut writer, b"X");
            assert_eq!(&*region.view(0, 4).expect("inside"), b"abX");
        } else {
            assert!(region.claim().is_none(), "retired for good");
        }
        reader.join().expect("no panic");
    });
}

#[test]
fn two_claims_give_one_writer() {
    loom::model(|| {
        let region = region(2);
        let claims = [(), ()].map(|()| {
            let region = Arc::clone(&region);
            thread::spawn(move || {
                if let Some(mut writer) = region.claim() {
                    write(&mut writer, b"a");
                    return true;
                }
                false
            })
        });
        let won = claims.map(|claim| claim.join().expect("no panic"));
        assert!(won[0] || won[1]);
        let len = region.view(0, 2).expect("inside").len();
        assert_eq!(len, usize::from(won[0]) + usize::from(won[1]));
    });
}

#[test]
fn a_view_is_made_before_the_seal_and_counts_or_not_at_all() {
    loom::model(|| {
        let region = region(2);
        let mut writer = region.claim().expect("the first");
        write(&mut writer, b"ab");
        let reader = thread::spawn({
            let region = Arc::clone(&region);
            move || {
                let view = region.view(0, 2);
                view.is_some_and(|view| &*view == b"ab")
            }
        });
        region.seal();
        assert!(region.view(0, 2).is_none());
        // What a later owner of the file asks, to know whether it may write there.
        if let Some(mut writer) = writer.retract(0) {
            writer.tail_mut().fill(b'X');
        }
        reader.join().expect("no panic");
    });
}
