//! The two clocks: since 1970 for what is written down, and one that never goes back for waiting.

use std::sync::LazyLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// ms since 1970 by this machine's clock.
#[must_use]
pub fn now_since_1970_ms() -> i64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or(Duration::ZERO);
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// ms since the process first asked; never goes back.
#[must_use]
pub fn now_ms() -> u64 {
    ms(START.elapsed())
}

/// A span in whole ms.
#[must_use]
pub fn ms(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}
