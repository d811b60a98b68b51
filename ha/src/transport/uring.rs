//! The raw ring: one io_uring on the loop's thread, zero-copy sends, receives in place.
//!
//! [`Driver`] decides which operations to ask for and what their completions mean, in safe code
//! and without a ring, so that its tests can complete operations in any order. Here they are
//! handed to the kernel.
//!
//! Invariants:
//! - Whatever an entry points to is owned by a box in `driver` until its last completion, so it
//!   neither moves nor goes away; when the transport is dropped and the kernel does not let go in
//!   time, `driver` is leaked.
//! - Entries enter the submission queue in the order in which they were asked for, and a linked
//!   chain enters whole. A full queue is waited for.
//! - The ring is enabled by the first `wait`, whose thread becomes the only one that submits.

#![expect(
    unsafe_code,
    reason = "the kernel reads and writes the buffers of queued operations"
)]

use std::collections::VecDeque;
use std::io;
use std::mem::ManuallyDrop;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use io_uring::types::{CancelBuilder, Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, opcode, squeue};
use rustix::io::Errno;

mod ahead;
mod conn;
mod driver;
mod refused;
mod send;

pub use refused::RingRefused;

use super::wake::EventFdWake;
use super::{
    Body, Close, ConnId, Event, FrameBytes, RecvInto, Transport, TransportConfig, TransportStats,
    Window,
};
use driver::{Driver, Operation, Queue, operation_of};

/// Longest time `drop` waits for the kernel to let go of buffers.
const DROP_PATIENCE: Duration = Duration::from_millis(900);
/// Longest time asked of one enter.
const MAX_SLEEP: Duration = Duration::from_secs(24 * 3600);
/// Completions per submission entry: a zero-copy send makes two, and a burst may pile up.
const COMPLETIONS_PER_ENTRY: u32 = 4;
/// Smallest submission queue that holds a whole chain.
const MIN_ENTRIES: u32 = 16;
const MAX_ENTRIES: u32 = 4096;

/// [`Transport`] over a raw io_uring.
pub struct UringTransport<W: Window, B: Body> {
    ring: IoUring,
    enabled: bool,
    driver: ManuallyDrop<Box<Driver<W, B>>>,
    wake: Arc<EventFdWake>,
    /// Written by the read of the eventfd; never looked at.
    wake_count: ManuallyDrop<Box<[u8; 8]>>,
    wake_pending: bool,
    completed: Vec<(u64, i32, u32)>,
    enters: u64,
}

impl<W: Window, B: Body> UringTransport<W, B> {
    /// Sets up a ring, or says why this process may not have one.
    pub fn new(config: TransportConfig) -> Result<Self, RingRefused> {
        let entries = config
            .ring_entries
            .clamp(MIN_ENTRIES, MAX_ENTRIES)
            .next_power_of_two();
        let ring = set_up(entries).map_err(RingRefused::from_setup)?;
        let probed = refused::probe(&ring)?;
        let wake = EventFdWake::for_ring().map_err(RingRefused::Other)?;
        Ok(Self {
            ring,
            enabled: false,
            driver: ManuallyDrop::new(Box::new(Driver::new(config, probed))),
            wake: Arc::new(wake),
            wake_count: ManuallyDrop::new(Box::new([0; 8])),
            wake_pending: false,
            completed: Vec::new(),
            enters: 0,
        })
    }

    fn enable(&mut self) -> io::Result<()> {
        if !self.enabled {
            self.ring.submitter().register_enable_rings()?;
            self.enabled = true;
        }
        Ok(())
    }

    fn arm_wake(&mut self) {
        if !self.wake_pending {
            self.wake_pending = true;
            let fd = Fd(self.wake.as_fd().as_raw_fd());
            let entry = opcode::Read::new(fd, self.wake_count.as_mut_ptr(), 8).build();
            self.driver
                .queue
                .push(entry.user_data(Operation::Wake.user_data(0)));
        }
    }

    /// Moves what was asked for into the submission queue; enters the kernel only to make room.
    fn fill_submission_queue(&mut self) -> io::Result<()> {
        while let Some(chain) = self.driver.queue.next_chain() {
            let mut submission = self.ring.submission();
            if submission.capacity() - submission.len() < chain {
                drop(submission);
                if !self.make_room()? {
                    return Ok(());
                }
                continue;
            }
            for entry in self.driver.queue.take(chain) {
                // SAFETY: buffers behind entries made by `Driver` and `arm_wake` live in boxes
                // that stay until the last completion (first invariant of this file).
                let pushed = unsafe { submission.push(&entry) };
                assert!(pushed.is_ok(), "there is room for the chain");
            }
        }
        Ok(())
    }

    /// Submits to make room; false: the kernel wants its completions taken first.
    fn make_room(&mut self) -> io::Result<bool> {
        self.enters += 1;
        match self.ring.submit() {
            Ok(submitted) => Ok(submitted > 0),
            Err(error) if is_passing(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// One enter: submits, runs the kernel's deferred work, sleeps at most `timeout`.
    fn enter(&mut self, timeout: Duration) -> io::Result<()> {
        self.enters += 1;
        let time = Timespec::from(timeout.min(MAX_SLEEP));
        let args = SubmitArgs::new().timespec(&time);
        match self.ring.submitter().submit_with_args(1, &args) {
            Ok(_) => Ok(()),
            Err(error) if is_passing(&error) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn take_completions(&mut self) {
        self.completed.clear();
        let completion = self.ring.completion();
        self.completed
            .extend(completion.map(|entry| (entry.user_data(), entry.result(), entry.flags())));
        for index in 0..self.completed.len() {
            let (user_data, result, flags) = self.completed[index];
            match operation_of(user_data) {
                Some((Operation::Wake, _)) => self.wake_pending = false,
                Some((Operation::Accept, listener)) => {
                    self.driver.on_accept(listener, accepted_socket(result));
                }
                Some((operation, id)) => {
                    let more = cqueue::more(flags);
                    self.driver
                        .on_completion(operation, id, result, more, cqueue::notif(flags));
                }
                None => debug_assert!(false, "user_data {user_data:#x} is not ours"),
            }
        }
    }

    /// Waits until something can be reported, the loop is woken, or `timeout` is over.
    fn wait_inner(&mut self, timeout: Duration) -> io::Result<()> {
        self.enable()?;
        if self.driver.has_events() && self.driver.queue.is_empty() {
            // What was read ahead is there already.
            return Ok(());
        }
        let deadline = Instant::now().checked_add(timeout);
        loop {
            self.arm_wake();
            let rest = self.driver.resume_listeners();
            self.fill_submission_queue()?;
            let may_sleep = self.wake.may_sleep();
            let left = match deadline {
                Some(deadline) => deadline.saturating_duration_since(Instant::now()),
                None => timeout,
            };
            let idle = may_sleep && !self.driver.has_events() && self.driver.queue.is_empty();
            let sleep = if idle {
                rest.map_or(left, |rest| rest.min(left))
            } else {
                Duration::ZERO
            };
            let entered = self.enter(sleep);
            let woken = self.wake.awake();
            entered?;
            self.take_completions();
            if woken || self.driver.has_events() || left.is_zero() {
                return Ok(());
            }
        }
    }

    /// Cancels everything and waits a while; whether the kernel has let go of all buffers.
    fn wind_down(&mut self) -> bool {
        if !self.enabled {
            return true;
        }
        self.driver.shut_down();
        let cancel = opcode::AsyncCancel2::new(CancelBuilder::any()).build();
        self.driver
            .queue
            .push(cancel.user_data(Operation::Cancel.user_data(0)));
        let deadline = Instant::now() + DROP_PATIENCE;
        while self.wake_pending || !self.driver.is_done() {
            let left = deadline.saturating_duration_since(Instant::now());
            let step = left.min(Duration::from_millis(20));
            if left.is_zero() || self.fill_submission_queue().is_err() || self.enter(step).is_err()
            {
                return false;
            }
            self.take_completions();
        }
        true
    }
}

impl<W: Window, B: Body> Transport<W, B> for UringTransport<W, B> {
    fn listen(&mut self, addr: SocketAddr) -> io::Result<SocketAddr> {
        self.driver.listen(addr)
    }

    fn connect(&mut self, addr: SocketAddr) -> io::Result<ConnId> {
        self.driver.connect(addr)
    }

    fn recv(&mut self, conn: ConnId, mut into: RecvInto<W>, at_least: usize) {
        let room = into.room().len();
        assert!(
            0 < at_least && at_least <= room,
            "receive of {at_least} bytes into {room}"
        );
        self.driver.recv(conn, into, at_least);
    }

    fn send(&mut self, conn: ConnId, head: FrameBytes, body: Option<B>) {
        self.driver.send(conn, head, body);
    }

    fn close(&mut self, conn: ConnId, how: Close) {
        self.driver.close(conn, how);
    }

    fn wait(&mut self, timeout: Duration, events: &mut Vec<Event<W>>) -> io::Result<()> {
        self.wait_inner(timeout)?;
        self.driver.report(events);
        Ok(())
    }

    fn is_ready(&self) -> bool {
        self.driver.has_events()
    }

    fn waker(&self) -> Waker {
        Waker::from(Arc::clone(&self.wake))
    }

    fn stats(&self) -> TransportStats {
        TransportStats {
            enters: self.enters,
            wakes: self.wake.writes(),
            ..self.driver.stats()
        }
    }

    fn name(&self) -> &'static str {
        "uring"
    }
}

impl<W: Window, B: Body> Drop for UringTransport<W, B> {
    fn drop(&mut self) {
        if self.wind_down() {
            // SAFETY: nothing uses `driver` after this; the kernel has completed all operations.
            unsafe { ManuallyDrop::drop(&mut self.driver) };
            // SAFETY: the same for the read of the eventfd.
            unsafe { ManuallyDrop::drop(&mut self.wake_count) };
        } else {
            tracing::error!(
                "the kernel still holds buffers of a dropped io_uring transport; leaking them"
            );
        }
    }
}

fn set_up(entries: u32) -> io::Result<IoUring> {
    let mut builder = IoUring::builder();
    builder
        .dontfork()
        .setup_clamp()
        .setup_cqsize(entries * COMPLETIONS_PER_ENTRY)
        .setup_r_disabled();
    let plain = builder.clone();
    builder
        .setup_submit_all()
        .setup_single_issuer()
        .setup_defer_taskrun();
    match builder.build(entries) {
        // Older than 6.1.
        Err(error) if Errno::from_io_error(&error) == Some(Errno::INVAL) => plain.build(entries),
        built => built,
    }
}

/// Errors of an enter after which it is right to take completions and enter again: a timeout, a
/// signal, or the completion queue being full.
fn is_passing(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::TIME | Errno::INTR | Errno::BUSY | Errno::AGAIN)
    )
}

/// The result of an accept; a descriptor is owned from here on, also if nobody wants it any more.
fn accepted_socket(result: i32) -> io::Result<OwnedFd> {
    let fd: RawFd = result_of(result)?.cast_signed();
    // SAFETY: an accept that completes with a non-negative result has made a descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A completion's result: a count, or the negative errno.
fn result_of(result: i32) -> Result<u32, Errno> {
    u32::try_from(result).map_err(|_| Errno::from_raw_os_error(result.saturating_neg()))
}

impl Queue {
    fn take(&mut self, chain: usize) -> impl Iterator<Item = squeue::Entry> + '_ {
        let entries: &mut VecDeque<_> = self.entries_mut();
        entries.drain(..chain).map(|(entry, _)| entry)
    }
}
