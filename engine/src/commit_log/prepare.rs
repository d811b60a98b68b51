//! The next segment, made before it is needed, and pages faulted in before they are written.
//!
//! A thread keeps one empty segment ready in `commitlog/` and faults pages in ahead of the writer, in
//! steps small enough that a stop is quick. An appender that finds no segment ready makes it itself:
//! it never writes to a page without a block.

use crate::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;

use crate::durable::calls;
use crate::error::Error;
use crate::position::Offset;
use crate::segment::{Segment, to_len};
use crate::steps::{roll_steps, run_segment_steps};

use super::CommitLog;

/// Bytes faulted in at a time.
const PREFAULT_STEP: u64 = 4 * 1024 * 1024;

/// After a refusal (a full disk) the thread tries again this much later.
const RETRY: Duration = Duration::from_secs(1);

/// Runs until [`CommitLog::stop_prepare`].
pub(crate) fn prepare_loop(log: &CommitLog) {
    let mut faulted: Offset = log.end();
    let mut refused = false;
    while log.wait_prepare(refused.then_some(RETRY)) {
        refused = false;
        if let Err(error) = log.prepare_next() {
            // The appender that needs the segment gets the same answer as an error of its own.
            tracing::warn!(%error, "the next segment could not be prepared");
            refused = true;
        }
        log.prefault(&mut faulted);
    }
}

impl CommitLog {
    pub(super) fn wake_prepare(&self) {
        *self.prepare_wanted.lock() = true;
        self.prepare_signal.notify_one();
    }

    pub(crate) fn stop_prepare(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        self.wake_prepare();
    }

    /// Waits for something to do; false when the thread must end.
    fn wait_prepare(&self, at_most: Option<Duration>) -> bool {
        let mut wanted = self.prepare_wanted.lock();
        while !*wanted {
            match at_most {
                Some(time) if self.prepare_signal.wait_for(&mut wanted, time).timed_out() => break,
                Some(_) => {}
                None => self.prepare_signal.wait(&mut wanted),
            }
        }
        *wanted = false;
        !self.stopping.load(Ordering::SeqCst)
    }

    /// The writer has come to `end`; wakes the thread when it should fault further pages in.
    pub(super) fn written_to(&self, end: Offset) {
        if end >= self.prefault_from.load(Ordering::Relaxed) && self.settings.prefault_ahead > 0 {
            self.prefault_from
                .store(end + PREFAULT_STEP, Ordering::Relaxed);
            self.wake_prepare();
        }
    }

    /// The segment that starts at `base`: the prepared one, or one made now.
    pub(super) fn next_segment(&self, base: Offset) -> Result<Arc<Segment>, Error> {
        if let Some(segment) = self.take_prepared(base) {
            return Ok(segment);
        }
        let _layout = self.layout.lock();
        // The thread may have finished it while this one waited.
        if let Some(segment) = self.take_prepared(base) {
            return Ok(segment);
        }
        let segment = self.make_segment(base)?;
        self.set_next_base(segment.limit());
        Ok(segment)
    }

    fn take_prepared(&self, base: Offset) -> Option<Arc<Segment>> {
        let mut prepared = self.prepared.lock();
        let segment = prepared.take_if(|segment| segment.base() == base)?;
        self.next_base.store(segment.limit(), Ordering::SeqCst);
        drop(prepared);
        self.wake_prepare();
        Some(segment)
    }

    pub(super) fn set_next_base(&self, base: Offset) {
        let _prepared = self.prepared.lock();
        self.next_base.store(base, Ordering::SeqCst);
    }

    /// Drops the prepared segment's object; its file is the caller's business. Needs `layout`.
    pub(super) fn forget_prepared(&self) -> Option<Offset> {
        self.prepared.lock().take().map(|segment| segment.base())
    }

    fn make_segment(&self, base: Offset) -> Result<Arc<Segment>, Error> {
        let settings = &self.settings;
        let steps = roll_steps(base);
        run_segment_steps(
            &steps,
            &settings.folder,
            settings.segment_size,
            &settings.hook,
        )?;
        let path = settings.folder.segment(base);
        let opened = Segment::open(path.clone(), base, settings.segment_size, 0);
        if opened.is_err() {
            // It would stand in the way of the next attempt.
            let _ = calls::remove_file(&path);
        }
        opened
    }

    fn prepare_next(&self) -> Result<(), Error> {
        let _layout = self.layout.lock();
        let prepared = self.prepared.lock();
        let base = self.next_base.load(Ordering::SeqCst);
        if prepared
            .as_ref()
            .is_some_and(|segment| segment.base() == base)
        {
            return Ok(());
        }
        drop(prepared);
        // An appender that finds nothing prepared waits for `layout`, so `base` stays wanted.
        let segment = self.make_segment(base)?;
        *self.prepared.lock() = Some(segment);
        Ok(())
    }

    /// Faults pages in from `faulted` to as far ahead of the end as is set.
    fn prefault(&self, faulted: &mut Offset) {
        while !self.stopping.load(Ordering::SeqCst) {
            let end = self.end();
            let goal = end + self.settings.prefault_ahead;
            // A truncation takes the end back; pages behind it are fresh again.
            if *faulted > goal {
                *faulted = end;
            }
            *faulted = end.max(*faulted);
            let prepared = self.prepared.lock().clone();
            let Some(segment) = self
                .segment_of(*faulted)
                .or_else(|| prepared.filter(|it| (it.base()..it.limit()).contains(faulted)))
            else {
                return;
            };
            let to = goal.min(segment.limit()).min(*faulted + PREFAULT_STEP);
            if *faulted >= to {
                return;
            }
            let range = to_len(*faulted - segment.base())..to_len(to - segment.base());
            if let Err(error) = segment.populate(range) {
                // Kernels before 5.14 do not know how; the writer then faults the pages itself.
                tracing::debug!(%error, "pages could not be faulted in ahead");
                return;
            }
            *faulted = to;
        }
    }
}
