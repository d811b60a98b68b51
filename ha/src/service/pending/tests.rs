use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::*;

const FAILED: Ended = Ended::Unknown(UnknownReason::LogFailed);

#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn poll(write: &mut PendingWrite<u32>, waker: &Waker) -> Poll<Outcome<u32>> {
    Pin::new(write).poll(&mut Context::from_waker(waker))
}

fn is_acked(outcome: &Poll<Outcome<u32>>, place: u32) -> bool {
    matches!(outcome, Poll::Ready(Outcome::Acked(at)) if *at == place)
}

#[test]
fn an_end_wakes_the_last_that_asked_and_is_told_once() {
    let slots = Arc::new(Slots::default());
    let (first, last) = (Arc::new(Count::default()), Arc::new(Count::default()));
    let (mut write, tell) = slots.pending(7);
    let wakers = [&first, &last].map(|count| Waker::from(Arc::clone(count)));
    for waker in &wakers {
        assert!(poll(&mut write, waker).is_pending());
    }
    tell.ended(Ended::Acked);
    let woken = [&first, &last].map(|count| count.0.load(Ordering::SeqCst));
    assert_eq!(woken, [0, 1]);
    assert!(is_acked(&poll(&mut write, &wakers[0]), 7));
    assert!(poll(&mut write, &wakers[0]).is_pending(), "told twice");
}

#[test]
fn slots_are_used_again_and_a_late_end_does_not_reach_the_next_write() {
    let slots = Arc::new(Slots::default());
    let (cancelled, late) = slots.pending(1);
    drop(cancelled);
    let (mut write, tell) = slots.pending(2);
    assert_eq!(slots.slab.lock().slots.len(), 1, "one slot for both");
    late.ended(FAILED);
    let waker = Waker::noop();
    assert!(poll(&mut write, waker).is_pending(), "another write's end");
    tell.ended(Ended::Acked);
    // One that has ended and is dropped before anybody asked.
    let (ended, tell) = slots.pending(3);
    tell.ended(FAILED);
    drop(ended);
    assert!(is_acked(&poll(&mut write, waker), 2));
    drop(write);
    let mut all: Vec<_> = (0..10).map(|place| slots.pending(place)).collect();
    assert_eq!(
        slots.slab.lock().slots.len(),
        10,
        "a slot was lost or given twice"
    );
    for (_, tell) in all.drain(..).rev() {
        tell.ended(Ended::Acked);
    }
    assert_eq!(slots.slab.lock().free.len(), 10);
}

#[test]
fn whoever_waits_is_told_also_when_nobody_is_left_to_tell() {
    let slots = Arc::new(Slots::default());
    let (write, tell) = slots.pending(1);
    let waits = std::thread::spawn(move || write.wait());
    std::thread::sleep(Duration::from_millis(30));
    drop(tell);
    let outcome = waits.join().unwrap();
    let expect = UnknownReason::ShutDown;
    assert!(
        matches!(&outcome, Outcome::Unknown(1, why) if *why == expect),
        "{outcome:?}"
    );
    let refused = PendingWrite::<u32>::over(Outcome::Refused(super::super::Refused::NotMaster));
    assert!(matches!(refused.wait(), Outcome::Refused(_)));
}

#[test]
fn many_threads_wait_and_cancel_and_each_gets_its_own_end() {
    let slots = Arc::new(Slots::default());
    let (tell, told) = crossbeam::channel::bounded::<(u32, Tell)>(64);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for (place, tell) in told {
                let even = place.is_multiple_of(2);
                tell.ended(if even { Ended::Acked } else { FAILED });
            }
        });
        for thread in 0..4 {
            let (slots, tell) = (&slots, tell.clone());
            scope.spawn(move || {
                for place in (thread..20_000).step_by(4) {
                    let (write, teller) = slots.pending(place);
                    tell.send((place, teller)).unwrap();
                    if place % 5 == 3 {
                        continue;
                    }
                    match write.wait() {
                        Outcome::Acked(at) => assert!(at == place && at.is_multiple_of(2)),
                        Outcome::Unknown(at, _) => assert!(at == place && at % 2 == 1),
                        other => panic!("{other:?}"),
                    }
                }
            });
        }
        drop(tell);
    });
    let slab = slots.slab.lock();
    assert_eq!(slab.free.len(), slab.slots.len());
    assert!(slab.slots.len() <= 4 + 64 + 1, "{}", slab.slots.len());
}
