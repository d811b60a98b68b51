//! The raw limit of shipping a log: two rings, two threads, one socket, and nothing else.
//!
//! The same bytes as replication (a head of [`HEAD_LEN`] bytes before each body), the same socket
//! options, one mapping to the other, in quanta of 64 KiB, several zero-copy sends in flight. No
//! frame is encoded, decoded, checked or reported; the receiver knows every length beforehand and
//! asks for a head and its body in one system call. One core for each thread.

#![expect(
    unsafe_code,
    reason = "the kernel reads and writes the buffers of queued operations"
)]

use std::io;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::thread;
use std::time::{Duration, Instant};

use io_uring::types::Fd;
use io_uring::{IoUring, cqueue, opcode, squeue};
use rustix::net::{RecvFlags, SendFlags};

use crate::cores::on_core;

/// Bytes before each body, as in a transfer header between two nodes of ours.
pub const HEAD_LEN: usize = 40;
/// Bytes of one send at most.
const QUANTUM: usize = 64 << 10;
/// Quanta sent zero-copy and not yet given back.
const IN_FLIGHT: usize = 8;
/// A chain of linked operations is no longer than this.
const CHAIN: usize = 15;

/// How bodies are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// SEND: copied by the caller.
    Copying,
    /// SEND_ZC.
    ZeroCopy,
}

/// A ring for the calling thread.
pub(crate) fn ring(entries: u32) -> io::Result<IoUring> {
    IoUring::builder()
        .setup_cqsize(entries * 4)
        .setup_submit_all()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .build(entries)
}

/// Puts `entry` into the submission queue.
///
/// # Safety
/// What the entry points to must stay in place until its last completion.
pub(crate) unsafe fn push(ring: &mut IoUring, entry: &squeue::Entry) -> io::Result<()> {
    // SAFETY: what the caller promises.
    let pushed = unsafe { ring.submission().push(entry) };
    pushed.map_err(|_| io::Error::other("the submission queue is full"))
}

/// A pair of connected sockets with the options of replication.
pub(crate) fn sockets() -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let near = TcpStream::connect(listener.local_addr()?)?;
    let (far, _) = listener.accept()?;
    near.set_nodelay(true)?;
    far.set_nodelay(true)?;
    Ok((near, far))
}

/// Ships all of `from` into the start of `into`, in bodies of `batch` bytes; the time from the end of
/// the first body until that of the last at the receiver, scaled to all of them.
///
/// # Errors
/// The ring being refused, or those of the sockets.
///
/// # Panics
/// If `into` is shorter than `from`, or that shorter than two bodies.
pub fn ship(from: &[u8], into: &mut [u8], batch: usize, mode: Mode) -> io::Result<Duration> {
    assert!(into.len() >= from.len() && from.len() > batch);
    let (near, far) = sockets()?;
    thread::scope(|scope| {
        let into = &mut into[..from.len()];
        let receiver = on_core(1, || scope.spawn(move || receive(&far, into, batch)));
        on_core(0, || send(&near, from, batch, mode))?;
        let received = receiver.join();
        let elapsed =
            received.unwrap_or_else(|_| Err(io::Error::other("the receiver panicked")))?;
        Ok(elapsed.mul_f64(from.len() as f64 / (from.len() - batch) as f64))
    })
}

struct Sender {
    ring: IoUring,
    /// Results to come of the chain under way.
    pending: usize,
    /// Notifications to come.
    pins: usize,
    error: Option<i32>,
}

impl Sender {
    fn wait(&mut self, count: usize) -> io::Result<()> {
        match self.ring.submit_and_wait(count) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
            _ => {}
        }
        for entry in self.ring.completion() {
            if cqueue::notif(entry.flags()) {
                self.pins -= 1;
                continue;
            }
            self.pending -= 1;
            if entry.user_data() == ZERO_COPY && !cqueue::more(entry.flags()) {
                self.pins -= 1;
            }
            if entry.result() < 0 {
                self.error = Some(entry.result());
            }
        }
        match self.error {
            Some(error) => Err(io::Error::from_raw_os_error(-error)),
            None => Ok(()),
        }
    }
}

const PLAIN: u64 = 0;
const ZERO_COPY: u64 = 1;

fn send(socket: &TcpStream, from: &[u8], batch: usize, mode: Mode) -> io::Result<()> {
    let head = [1; HEAD_LEN];
    let fd = Fd(socket.as_raw_fd());
    let mut sender = Sender {
        ring: ring(64)?,
        pending: 0,
        pins: 0,
        error: None,
    };
    for body in from.chunks(batch) {
        let all = wait_all() | SendFlags::NOSIGNAL.bits().cast_signed();
        let more = all | SendFlags::MORE.bits().cast_signed();
        let mut chain = vec![
            opcode::Send::new(fd, head.as_ptr(), u32::try_from(HEAD_LEN).unwrap_or(0))
                .flags(more)
                .build(),
        ];
        let quanta = body.len().div_ceil(QUANTUM);
        for (index, quantum) in body.chunks(QUANTUM).enumerate() {
            if mode == Mode::ZeroCopy && sender.pins >= IN_FLIGHT || chain.len() == CHAIN {
                submit(&mut sender, &mut chain)?;
                while sender.pins >= IN_FLIGHT {
                    sender.wait(1)?;
                }
            }
            let flags = if index + 1 < quanta { more } else { all };
            let (pointer, len) = (quantum.as_ptr(), u32::try_from(quantum.len()).unwrap_or(0));
            chain.push(match mode {
                Mode::Copying => opcode::Send::new(fd, pointer, len)
                    .flags(flags)
                    .build()
                    .user_data(PLAIN),
                Mode::ZeroCopy => {
                    sender.pins += 1;
                    opcode::SendZc::new(fd, pointer, len)
                        .flags(flags)
                        .build()
                        .user_data(ZERO_COPY)
                }
            });
        }
        submit(&mut sender, &mut chain)?;
    }
    while sender.pins > 0 {
        sender.wait(1)?;
    }
    Ok(())
}

/// Sends the operations of `chain` one after the other and waits for their results.
fn submit(sender: &mut Sender, chain: &mut Vec<squeue::Entry>) -> io::Result<()> {
    sender.pending = chain.len();
    let last = chain.len().saturating_sub(1);
    for (index, entry) in chain.drain(..).enumerate() {
        let entry = if index < last {
            entry.flags(squeue::Flags::IO_LINK)
        } else {
            entry
        };
        // SAFETY: the head and the log outlive `send`, which waits for all completions.
        unsafe { push(&mut sender.ring, &entry) }?;
    }
    while sender.pending > 0 {
        let pending = sender.pending;
        sender.wait(pending)?;
    }
    Ok(())
}

/// The time from the end of the first body.
fn receive(socket: &TcpStream, into: &mut [u8], batch: usize) -> io::Result<Duration> {
    let mut began = None;
    let mut ring = ring(8)?;
    let mut head = [0; HEAD_LEN];
    let fd = Fd(socket.as_raw_fd());
    for body in into.chunks_mut(batch) {
        let body_len = u32::try_from(body.len()).unwrap_or(u32::MAX);
        let head_len = u32::try_from(HEAD_LEN).unwrap_or(0);
        let first = opcode::Recv::new(fd, head.as_mut_ptr(), head_len)
            .flags(wait_all())
            .build()
            .flags(squeue::Flags::IO_LINK);
        let second = opcode::Recv::new(fd, body.as_mut_ptr(), body_len)
            .flags(wait_all())
            .build();
        for entry in [first, second] {
            // SAFETY: head and body outlive this round, which waits for both completions.
            unsafe { push(&mut ring, &entry) }?;
        }
        let mut pending = 2;
        let mut received = 0;
        while pending > 0 {
            ring.submit_and_wait(pending)?;
            for entry in ring.completion() {
                pending -= 1;
                received += usize::try_from(entry.result())
                    .map_err(|_| io::Error::from_raw_os_error(-entry.result()))?;
            }
        }
        if received != HEAD_LEN + body.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        began.get_or_insert_with(Instant::now);
    }
    Ok(began.map_or(Duration::ZERO, |began| began.elapsed()))
}

/// Everything that was asked for is taken or filled.
pub(crate) fn wait_all() -> i32 {
    RecvFlags::WAITALL.bits().cast_signed()
}
