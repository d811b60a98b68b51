//! The raw limit of one acknowledged write: as many hand-overs between threads as replication has,
//! by the same means, and nothing else.
//!
//! The caller writes to an eventfd and waits on a channel; the first thread, asleep in its ring on the
//! eventfd and the socket, sends a request; the second, asleep in its own ring, answers; the first
//! one puts the answer into the channel.

#![expect(
    unsafe_code,
    reason = "the kernel reads and writes the buffers of queued operations"
)]

use std::io;
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use crossbeam::channel::{Receiver, Sender, bounded};
use io_uring::types::Fd;
use io_uring::{IoUring, opcode, squeue};
use rustix::event::{EventfdFlags, eventfd};

use crate::cores::on_core;
use crate::raw::{push, ring, sockets, wait_all};

const WAKE: u64 = 0;
const ANSWER: u64 = 1;
const REQUEST: u64 = 2;

/// A caller and two threads, the first on the first core, the second on the second; they end when this
/// is dropped.
pub struct HandOver {
    wake: Arc<OwnedFd>,
    answers: Receiver<()>,
    sockets: [TcpStream; 2],
    threads: Vec<JoinHandle<io::Result<()>>>,
}

impl HandOver {
    /// Requests of `request_len` bytes, answers of `answer_len`.
    ///
    /// # Errors
    /// The ring being refused, or those of the sockets.
    pub fn new(request_len: usize, answer_len: usize) -> io::Result<Self> {
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        let (near, far) = sockets()?;
        let kept = [near.try_clone()?, far.try_clone()?];
        let (tell, answers) = bounded(1);
        let fd = Arc::clone(&wake);
        let first = on_core(0, || {
            thread::spawn(move || ask(&near, &fd, request_len, answer_len, &tell))
        });
        let second = on_core(1, || {
            thread::spawn(move || answer(&far, request_len, answer_len))
        });
        Ok(Self {
            wake,
            answers,
            sockets: kept,
            threads: vec![first, second],
        })
    }

    /// One request and its answer.
    ///
    /// # Errors
    /// A thread that has ended.
    pub fn round_trip(&self) -> io::Result<()> {
        rustix::io::write(&*self.wake, &1u64.to_le_bytes())?;
        self.answers.recv().map_err(io::Error::other)
    }
}

impl Drop for HandOver {
    fn drop(&mut self) {
        for socket in &self.sockets {
            // A socket that is not connected any more needs no end.
            let _ = socket.shutdown(Shutdown::Both);
        }
        for thread in self.threads.drain(..) {
            // How it ended says no more than that the sockets did.
            let _ = thread.join();
        }
    }
}

fn ask(
    socket: &TcpStream,
    wake: &OwnedFd,
    request_len: usize,
    answer_len: usize,
    tell: &Sender<()>,
) -> io::Result<()> {
    let request = vec![1; request_len];
    let (mut answer, mut count) = (vec![0; answer_len], [0; 8]);
    let mut ring = ring(8)?;
    let fd = Fd(socket.as_raw_fd());
    let read = opcode::Read::new(Fd(wake.as_raw_fd()), count.as_mut_ptr(), 8);
    let read = read.build().user_data(WAKE);
    let receive = opcode::Recv::new(fd, answer.as_mut_ptr(), len(answer_len)).flags(wait_all());
    let receive = receive.build().user_data(ANSWER);
    let send = opcode::Send::new(fd, request.as_ptr(), len(request_len)).flags(wait_all());
    let send = send.build().user_data(REQUEST);
    queue(&mut ring, &[&read, &receive])?;
    loop {
        for what in done(&mut ring)? {
            match what {
                WAKE => queue(&mut ring, &[&send, &read])?,
                ANSWER => {
                    tell.send(()).map_err(io::Error::other)?;
                    queue(&mut ring, &[&receive])?;
                }
                _ => (),
            }
        }
    }
}

fn answer(socket: &TcpStream, request_len: usize, answer_len: usize) -> io::Result<()> {
    let (mut request, answer) = (vec![0; request_len], vec![1; answer_len]);
    let mut ring = ring(8)?;
    let fd = Fd(socket.as_raw_fd());
    let receive = opcode::Recv::new(fd, request.as_mut_ptr(), len(request_len)).flags(wait_all());
    let receive = receive.build().user_data(REQUEST);
    let send = opcode::Send::new(fd, answer.as_ptr(), len(answer_len)).flags(wait_all());
    let send = send.build().user_data(ANSWER);
    queue(&mut ring, &[&receive])?;
    loop {
        for what in done(&mut ring)? {
            if what == REQUEST {
                queue(&mut ring, &[&send, &receive])?;
            }
        }
    }
}

/// Waits for operations to end; what they were, if none failed.
fn done(ring: &mut IoUring) -> io::Result<Vec<u64>> {
    ring.submit_and_wait(1)?;
    let ended = ring.completion().map(|entry| match entry.result() {
        1.. => Ok(entry.user_data()),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    });
    ended.collect()
}

fn queue(ring: &mut IoUring, entries: &[&squeue::Entry]) -> io::Result<()> {
    for entry in entries {
        // SAFETY: the buffers of `ask` and `answer` are declared before the ring there, so the ring is
        // dropped first, which ends its operations.
        unsafe { push(ring, entry) }?;
    }
    Ok(())
}

fn len(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}
