//! The publication protocol of a region, and how those who wait for the end are woken, under loom: every
//! order of steps, and every value that the memory model lets a load see.
//!
//! `src/region.rs` and `src/growth.rs` themselves are compiled here, with loom's locks and atomics in place
//! of their own. A region's bytes are watched: loom is told of each read and write of each byte, and refuses
//! a read that nothing orders behind the write. LOOM_MAX_PREEMPTIONS and LOOM_LOG are loom's own settings.
#![allow(
    dead_code,
    unused_imports,
    unreachable_pub,
    reason = "a test uses a part of what a region offers"
)]

#[path = "../src/region.rs"]
mod region;

#[path = "../src/growth.rs"]
mod growth;

mod position {
    pub(crate) type Offset = u64;
}

/// What `src/sync.rs` is to the engine. No wait times out.
mod sync {
    pub(crate) use loom::sync::atomic;
    use loom::sync::{self, RwLockReadGuard, RwLockWriteGuard};
    use std::ops::{Deref, DerefMut};
    use std::time::Instant;

    const WHOLE: &str = "no thread panicked with it";

    #[derive(Default)]
    pub(crate) struct Mutex<T>(sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            MutexGuard(Some(self.0.lock().expect(WHOLE)))
        }

        pub(crate) fn try_lock_until(&self, _deadline: Instant) -> Option<MutexGuard<'_, T>> {
            Some(self.lock())
        }
    }

    /// Holds nothing only inside a wait.
    pub(crate) struct MutexGuard<'a, T>(Option<sync::MutexGuard<'a, T>>);

    impl<T> Deref for MutexGuard<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            self.0.as_ref().expect("held")
        }
    }

    impl<T> DerefMut for MutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            self.0.as_mut().expect("held")
        }
    }

    #[derive(Default)]
    pub(crate) struct Condvar(sync::Condvar);

    pub(crate) struct WaitTimeoutResult;

    impl WaitTimeoutResult {
        pub(crate) fn timed_out(&self) -> bool {
            false
        }
    }

    impl Condvar {
        pub(crate) fn wait_until<T>(
            &self,
            guard: &mut MutexGuard<'_, T>,
            _deadline: Instant,
        ) -> WaitTimeoutResult {
            let held = guard.0.take().expect("held");
            guard.0 = Some(self.0.wait(held).expect(WHOLE));
            WaitTimeoutResult
        }

        pub(crate) fn notify_all(&self) {
            self.0.notify_all();
        }
    }

    #[derive(Default)]
    pub(crate) struct RwLock<T>(sync::RwLock<T>);

    impl<T> RwLock<T> {
        pub(crate) fn read(&self) -> RwLockReadGuard<'_, T> {
            self.0.read().expect(WHOLE)
        }

        pub(crate) fn write(&self) -> RwLockWriteGuard<'_, T> {
            self.0.write().expect(WHOLE)
        }
    }
}

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use loom::cell::UnsafeCell;
use loom::thread;

use growth::Growth;
use region::heap::{Heap, Watch, watched};
use region::{Region, Writer};
use sync::atomic::Ordering;

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
fn a_part_in_place_of_its_view_frees_what_is_behind_it_once_nobody_reads_there() {
    loom::model(|| {
        let region = region(4);
        let mut writer = region.claim().expect("the first");
        write(&mut writer, b"abcd");
        let whole = region.view(0, 4).expect("inside");
        let clone = whole.clone();
        let readers = [
            thread::spawn(move || {
                let part = whole.into_part(0..2).expect("inside");
                assert_eq!(&*part, b"ab");
            }),
            thread::spawn(move || assert_eq!(&*clone, b"abcd")),
        ];
        if let Some(mut writer) = writer.retract(2) {
            write(&mut writer, b"X");
        }
        for reader in readers {
            reader.join().expect("no panic");
        }
    });
}

/// An end that is moved under a lock, as the log's is.
#[derive(Default)]
struct Moving {
    lock: sync::Mutex<()>,
    end: sync::atomic::AtomicU64,
    growth: Growth,
}

impl Moving {
    fn move_to(&self, end: u64) {
        let lock = self.lock.lock();
        self.end.store(end, Ordering::Release);
        drop(lock);
        self.growth.announce();
    }

    fn end(&self) -> u64 {
        self.end.load(Ordering::Acquire)
    }
}

#[test]
fn whoever_waits_for_the_end_is_woken_without_a_fence_of_the_publisher() {
    loom::model(|| {
        let moving = Arc::new(Moving::default());
        let publisher = thread::spawn({
            let moving = Arc::clone(&moving);
            move || moving.move_to(1)
        });
        let Moving { lock, growth, .. } = &*moving;
        // A wake-up that is lost is a deadlock, which loom finds.
        let end = growth.wait(0, Duration::from_secs(1), lock, || moving.end());
        assert_eq!(end, 1);
        publisher.join().expect("no panic");
    });
}

#[test]
fn a_listener_hears_of_every_end_that_it_did_not_find() {
    loom::model(|| {
        let moving = Arc::new(Moving::default());
        let publisher = thread::spawn({
            let moving = Arc::clone(&moving);
            move || moving.move_to(1)
        });
        let heard = Arc::new(sync::atomic::AtomicU64::new(0));
        let told = Arc::clone(&heard);
        let listening = moving.lock.lock();
        moving.growth.listen(Arc::new(move || {
            told.fetch_add(1, Ordering::Relaxed);
        }));
        drop(listening);
        let found = moving.end();
        publisher.join().expect("no panic");
        assert!(found == 1 || heard.load(Ordering::Relaxed) == 1, "missed");
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
