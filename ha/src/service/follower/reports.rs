//! When a slave's report goes out: at once, or with what is coming in already. Each report wakes the
//! master, so one for several frames is cheaper than one for each.
//!
//! Invariant: no report is held for longer than [`REPORT_WAIT`] while the master sends nothing, nor for
//! longer than [`HELD_MAX_MS`] whatever it sends, nor while [`UNREPORTED_MAX`] bytes or more wait for one.
//! The first report of a connection is not held: the master sends nothing before it.
//!
//! Pure: time is an argument.

use std::time::Duration;

use epochlog_engine::Offset;

/// A report waits for what is coming in as long as less than this was not reported, in bytes.
const UNREPORTED_MAX: u64 = 256 << 10;
/// It waits no longer than this for bytes that do not come.
pub(super) const REPORT_WAIT: Duration = Duration::from_millis(1);
/// It waits no longer than this for one frame after the other, by a clock of whole milliseconds.
const HELD_MAX_MS: u64 = 2;

/// What a report might wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Coming {
    /// Nothing is known to come.
    Nothing,
    /// A body has begun; `silent`: nothing of it came for [`REPORT_WAIT`].
    Begun { silent: bool },
    /// The master has told of bytes that have not begun to come; `silent` as above.
    Known { silent: bool },
    /// Bytes are here that were not looked at yet.
    There,
}

/// The reports of one connection.
#[derive(Debug, Default)]
pub(super) struct Reports {
    /// The one that waits, since when in ms; only the newest offset counts.
    unsent: Option<(Offset, u64)>,
    /// The offset that went out last; none before the first report, for which the master waits.
    sent: Option<Offset>,
    /// A send is under way: the next begins when it is done.
    sending: bool,
}

impl Reports {
    /// This offset is to be reported.
    pub(super) fn due(&mut self, offset: Offset, now_ms: u64) {
        let since_ms = self.unsent.map_or(now_ms, |(_, since_ms)| since_ms);
        self.unsent = Some((offset, since_ms));
    }

    /// Whether the report that is due may wait, so that it covers what is coming too.
    pub(super) fn may_wait(&self, coming: Coming, now_ms: u64) -> bool {
        let (Some((offset, since_ms)), Some(sent)) = (self.unsent, self.sent) else {
            return false;
        };
        let comes = match coming {
            Coming::Nothing => false,
            Coming::Begun { silent } | Coming::Known { silent } => !silent,
            Coming::There => true,
        };
        comes
            && offset.saturating_sub(sent) < UNREPORTED_MAX
            && now_ms.saturating_sub(since_ms) < HELD_MAX_MS
    }

    /// The report to send now, if there is one and no send is under way.
    pub(super) fn take(&mut self) -> Option<Offset> {
        if self.sending {
            return None;
        }
        let (offset, _) = self.unsent.take()?;
        self.sent = Some(offset);
        Some(offset)
    }

    /// A send begins: of a report, or of the handshake.
    pub(super) fn send_begins(&mut self) {
        self.sending = true;
    }

    /// The last send is done.
    pub(super) fn send_is_done(&mut self) {
        self.sending = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOES_ON: Coming = Coming::Begun { silent: false };
    const STALLS: Coming = Coming::Begun { silent: true };

    #[test]
    fn a_report_waits_for_what_has_begun_and_for_no_more() {
        let mut reports = Reports::default();
        let told = |silent| Coming::Known { silent };
        let all = [
            Coming::Nothing,
            GOES_ON,
            STALLS,
            Coming::There,
            told(false),
            told(true),
        ];
        for coming in all {
            assert!(!reports.may_wait(coming, 0), "nothing is due: {coming:?}");
        }
        assert_eq!(reports.take(), None);
        reports.due(900, 49);
        for coming in all {
            assert!(!reports.may_wait(coming, 49), "the first: {coming:?}");
        }
        assert_eq!(reports.take(), Some(900));
        reports.due(1000, 50);
        let may = all.map(|coming| reports.may_wait(coming, 50));
        assert_eq!(may, [false, true, false, true, true, false]);
        // A newer one takes its place and does not begin the wait anew.
        reports.due(2000, 51);
        assert!(reports.may_wait(GOES_ON, 51));
        assert!(!reports.may_wait(GOES_ON, 52), "held for too long");
        assert!(!reports.may_wait(Coming::There, 52), "held for too long");
        assert_eq!(reports.take(), Some(2000));
        assert_eq!(reports.take(), None, "sent twice");
        reports.due(3000, 60);
        assert!(reports.may_wait(GOES_ON, 61), "the next has its own time");
    }

    #[test]
    fn much_that_was_not_reported_is_reported_whatever_comes() {
        let mut reports = Reports::default();
        reports.due(5000, 0);
        assert_eq!(reports.take(), Some(5000));
        reports.due(5000 + UNREPORTED_MAX - 1, 0);
        assert!(reports.may_wait(Coming::There, 0));
        reports.due(5000 + UNREPORTED_MAX, 0);
        assert!(!reports.may_wait(Coming::There, 0));
        assert!(!reports.may_wait(GOES_ON, 0));
    }

    #[test]
    fn one_report_at_a_time_and_the_newest_goes_next() {
        let mut reports = Reports::default();
        reports.send_begins();
        reports.due(1, 0);
        reports.due(2, 0);
        assert_eq!(reports.take(), None, "the handshake is under way");
        reports.send_is_done();
        assert_eq!(reports.take(), Some(2));
    }
}
