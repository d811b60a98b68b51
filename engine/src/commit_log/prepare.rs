//! The next segments, made before they are needed, and pages faulted in before they are written.
//!
//! A thread keeps a few empty segments ready in `commitlog/`, made together because the journal's commit is
//! what takes time, and faults pages in ahead of the writer, in steps small enough that a stop is quick. An
//! appender that finds one ready changes no file to roll; one that finds none makes it itself: it never
//! writes to a page without a block.

use crate::sync::atomic::Ordering;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::durable::calls;
use crate::error::Error;
use crate::position::Offset;
use crate::region::background::give_way;
use crate::segment::{Segment, to_len};
use crate::steps::{roll_steps, run_segment_steps, unlink_steps};

use super::CommitLog;

/// Bytes faulted in at a time.
const PREFAULT_STEP: u64 = 4 * 1024 * 1024;

/// After a refusal (a full disk) the thread tries again this much later.
const RETRY: Duration = Duration::from_secs(1);

/// Runs until [`CommitLog::stop_prepare`].
pub(crate) fn prepare_loop(log: &CommitLog) {
    // An appender that rolls wakes this thread: without this, one of a hundred lost its core to it for some ms.
    if let Err(error) = give_way() {
        tracing::debug!(%error, "segments are made ready at the expense of whoever writes");
    }
    let mut faulted: Offset = log.end();
    let mut refused = false;
    while log.wait_prepare(refused.then_some(RETRY)) {
        refused = !log.prepare(&mut faulted);
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

    /// The writer has come to `end`, and holds no lock; wakes the thread when it should fault further pages
    /// in, or has to replace a segment that was ready.
    pub(super) fn written_to(&self, end: Offset) {
        if end >= self.prefault_from.load(Ordering::Relaxed) && self.settings.prefault_ahead > 0 {
            self.prefault_from
                .store(end + PREFAULT_STEP, Ordering::Relaxed);
            self.wake_prepare();
        }
    }

    /// The segment that starts at `base`: the one that is ready, or one made now.
    pub(super) fn next_segment(&self, base: Offset) -> Result<Arc<Segment>, Error> {
        if let Some(segment) = self.take_ready(base) {
            return Ok(segment);
        }
        let _layout = self.layout.lock();
        // The thread may have finished it while this one waited.
        if let Some(segment) = self.take_ready(base) {
            return Ok(segment);
        }
        // One, which is the least that an append can wait for; the thread makes the others.
        let mut made = self.make_segments(vec![base])?;
        let segment = made.pop().expect("one was asked for");
        self.ready.lock().restart(segment.limit());
        Ok(segment)
    }

    fn take_ready(&self, base: Offset) -> Option<Arc<Segment>> {
        let segment = self.ready.lock().take(base)?;
        // The wake comes with the next `written_to`: the append lock is held here. Whoever overwrites this mark
        // wakes the thread after that.
        self.prefault_from.store(0, Ordering::Relaxed);
        Some(segment)
    }

    /// Takes what is ready beyond `most` segments off the disk, newest first. For a store that is being
    /// closed: the thread has ended.
    pub(crate) fn remove_ready_beyond(&self, most: usize) -> Result<(), Error> {
        let _layout = self.layout.lock();
        let settings = &self.settings;
        loop {
            // Its file goes after its mapping.
            let Some(base) = self.ready.lock().pop_beyond(most) else {
                return Ok(());
            };
            let steps = unlink_steps(&settings.folder, base);
            let size = settings.segment_size;
            run_segment_steps(&steps, &settings.folder, size, &settings.hook)?;
        }
    }

    /// Makes the segments that begin at `bases`; all of them or none. Needs `layout`.
    fn make_segments(&self, bases: Vec<Offset>) -> Result<Vec<Arc<Segment>>, Error> {
        let settings = &self.settings;
        let (folder, size) = (&settings.folder, settings.segment_size);
        let paths: Vec<_> = bases.iter().map(|base| folder.segment(*base)).collect();
        let open = |(base, path): (&Offset, &PathBuf)| Segment::open(path.clone(), *base, size, 0);
        run_segment_steps(&roll_steps(bases.clone()), folder, size, &settings.hook)?;
        let opened = bases.iter().zip(&paths).map(open).collect();
        if Result::is_err(&opened) {
            for path in paths.iter().rev() {
                // They would stand in the way of the next attempt.
                let _ = calls::remove_file(path);
            }
        }
        opened
    }

    /// Faults pages in and makes segments until there is enough of both; false if that was refused.
    fn prepare(&self, faulted: &mut Offset) -> bool {
        loop {
            self.prefault(faulted);
            if self.stopping.load(Ordering::SeqCst) {
                return true;
            }
            match self.prepare_next() {
                Ok(true) => {}
                Ok(false) => return true,
                Err(error) => {
                    // The appender that needs the segment gets the same answer as an error of its own.
                    tracing::warn!(%error, "the next segment could not be prepared");
                    return false;
                }
            }
        }
    }

    /// Makes segments until enough are ready, as the thread does.
    #[cfg(test)]
    pub(crate) fn make_ready(&self) -> Result<(), Error> {
        while self.prepare_next()? {}
        Ok(())
    }

    /// Makes what is missing; false if enough are ready.
    fn prepare_next(&self) -> Result<bool, Error> {
        let _layout = self.layout.lock();
        let size = self.settings.segment_size;
        let nothing_yet = self.segments.read().is_empty();
        let (first, missing) = {
            let mut ready = self.ready.lock();
            let missing = match self.settings.ready.saturating_sub(ready.len()) {
                0 => {
                    ready.one_by_one = false;
                    return Ok(false);
                }
                // The oldest name says where the log begins: it is durable before there is another.
                _ if nothing_yet && ready.len() == 0 => 1,
                _ if ready.one_by_one => 1,
                missing => missing,
            };
            (ready.end(), missing as u64)
        };
        let bases = (0..missing).map(|n| first + n * size).collect();
        // An appender that finds nothing ready waits for `layout`, so these stay wanted.
        let made = match self.make_segments(bases) {
            Err(Error::NoSpace { .. }) => {
                // Room for fewer is room for some, and the disk is not filled again and again for more.
                self.ready.lock().one_by_one = true;
                self.make_segments(vec![first])?
            }
            made => made?,
        };
        let mut ready = self.ready.lock();
        for segment in made {
            ready.push(segment);
        }
        Ok(true)
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
            // Looked for where it was first: an appender moves it the other way.
            let ready = self.ready.lock().segment_of(*faulted);
            let Some(segment) = ready.or_else(|| self.segment_of(*faulted)) else {
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
