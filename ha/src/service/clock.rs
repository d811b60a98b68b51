//! The one clock of the service: it goes on while the machine sleeps, so that a lease runs out.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Milliseconds of CLOCK_BOOTTIME.
pub(super) fn now_ms() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    seconds * 1000 + u64::try_from(now.tv_nsec / 1_000_000).unwrap_or(0)
}

/// The time from `now_ms` to `due_ms`, at most `most`.
pub(super) fn until(due_ms: u64, now_ms: u64, most: Duration) -> Duration {
    Duration::from_millis(due_ms.saturating_sub(now_ms)).min(most)
}

/// A random number, for jitter only.
pub(super) fn jitter() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// Bytes per second, counted in whole seconds. RocketMQ: `FlowMonitor`.
#[derive(Debug, Default)]
pub(super) struct Rate {
    second: u64,
    bytes: u64,
    before: u64,
}

impl Rate {
    pub(super) fn add(&mut self, bytes: u64, now_ms: u64) {
        self.roll(now_ms);
        self.bytes += bytes;
    }

    /// Bytes of the last full second.
    pub(super) fn per_second(&mut self, now_ms: u64) -> u64 {
        self.roll(now_ms);
        self.before
    }

    fn roll(&mut self, now_ms: u64) {
        let second = now_ms / 1000;
        if second != self.second {
            self.before = if second == self.second + 1 {
                self.bytes
            } else {
                0
            };
            self.bytes = 0;
            self.second = second;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_moves_and_waits_are_bounded() {
        let before = now_ms();
        std::thread::sleep(Duration::from_millis(5));
        assert!(now_ms() >= before + 4);
        assert_eq!(
            until(150, 100, Duration::from_secs(1)),
            Duration::from_millis(50)
        );
        assert_eq!(until(100, 150, Duration::from_secs(1)), Duration::ZERO);
        assert_eq!(
            until(u64::MAX, 0, Duration::from_secs(1)),
            Duration::from_secs(1)
        );
    }

    #[test]
    fn a_rate_is_that_of_the_last_full_second() {
        let mut rate = Rate::default();
        rate.add(10, 1000);
        rate.add(5, 1999);
        assert_eq!(rate.per_second(1999), 0);
        assert_eq!(rate.per_second(2000), 15);
        assert_eq!(rate.per_second(3100), 0);
        rate.add(7, 3500);
        assert_eq!(rate.per_second(9000), 0, "long ago");
    }
}
