//! The thread that runs tokio-uring: one task per operation, one `Link` per connection.
//!
//! Everything here is on one thread; a `RefCell` is never borrowed across an await.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;
use std::net::{Shutdown, SocketAddr, TcpStream as StdStream};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crossbeam::channel::Sender;
use socket2::{SockRef, Socket};
use tokio::net::TcpSocket;
use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio_uring::buf::BoundedBuf;
use tokio_uring::net::{TcpListener, TcpStream};

use super::buffers::{Frame, Part, Room};
use super::{
    Body, Close, CloseReason, Command, ConnId, Counters, Event, FrameBytes, RecvInto, Report,
    TransportConfig, Window, socket,
};

/// Longest time the worker waits for operations to end after it was told to stop.
const STOP_PATIENCE: Duration = Duration::from_millis(800);

struct Parked<W> {
    into: RecvInto<W>,
    at_least: usize,
    filled: usize,
}

struct Link<W, B> {
    id: u64,
    peer: SocketAddr,
    /// None while connecting and after the end.
    stream: RefCell<Option<Rc<TcpStream>>>,
    connecting: Cell<bool>,
    give_up: Notify,
    /// Operations in flight, connecting included.
    operations: Cell<u32>,
    closing: RefCell<Option<(CloseReason, Close)>>,
    ended: Cell<bool>,
    /// A receive that cannot run: not yet (connecting), or not any more (closing).
    parked: RefCell<Option<Parked<W>>>,
    parked_send: RefCell<Option<Frame<B>>>,
}

struct Worker<W, B> {
    config: TransportConfig,
    counters: Arc<Counters>,
    reports: Sender<Report<W>>,
    links: RefCell<HashMap<u64, Rc<Link<W, B>>>>,
    listeners: RefCell<Vec<Socket>>,
    accepting: Cell<usize>,
    stopping: Cell<bool>,
}

/// The body of the thread.
pub(super) fn run<W: Window, B: Body>(
    config: TransportConfig,
    counters: Arc<Counters>,
    commands: UnboundedReceiver<Command<W, B>>,
    reports: Sender<Report<W>>,
    started: &Sender<io::Result<()>>,
) {
    // A fork must not get the ring. No DEFER_TASKRUN: tokio-uring submits without taking events and
    // would hang.
    let mut ring = tokio_uring::uring_builder();
    ring.dontfork();
    let mut builder = tokio_uring::builder();
    builder.uring_builder(&ring);
    builder.entries(config.ring_entries.clamp(16, 4096).next_power_of_two());
    let runtime = match tokio_uring::Runtime::new(&builder) {
        Ok(runtime) => runtime,
        Err(error) => {
            // The receiver waits for this or for the end of the thread.
            let _ = started.send(Err(error));
            return;
        }
    };
    let _ = started.send(Ok(()));
    let worker = Rc::new(Worker {
        config,
        counters,
        reports,
        links: RefCell::default(),
        listeners: RefCell::default(),
        accepting: Cell::new(0),
        stopping: Cell::new(false),
    });
    runtime.block_on(worker.serve(commands));
}

impl<W: Window, B: Body> Worker<W, B> {
    async fn serve(self: Rc<Self>, mut commands: UnboundedReceiver<Command<W, B>>) {
        while let Some(command) = commands.recv().await {
            match command {
                Command::Listen(listener, addr) => self.listen(listener, addr),
                Command::Connect(id, socket, addr) => self.connect(id, socket, addr),
                Command::Receive(id, into, at_least) => {
                    self.receive(
                        id,
                        Parked {
                            into,
                            at_least,
                            filled: 0,
                        },
                    );
                }
                Command::Send(id, head, body) => self.send(id, head, body),
                Command::Close(id, how) => self.close(id, how),
                Command::Bury(id) => self.bury(id),
                Command::Stop => break,
            }
        }
        self.stop().await;
    }

    fn link(&self, id: u64) -> Option<Rc<Link<W, B>>> {
        self.links.borrow().get(&id).cloned()
    }

    fn event(&self, event: Event<W>) {
        // Without an owner there is nobody to tell.
        let _ = self.reports.send(Report::Event(event));
    }

    fn listen(self: &Rc<Self>, listener: Socket, addr: SocketAddr) {
        let second = match listener.try_clone() {
            Ok(second) => second,
            Err(error) => {
                return tracing::error!(%addr, %error, "cannot accept: out of descriptors");
            }
        };
        self.listeners.borrow_mut().push(second);
        self.accepting.set(self.accepting.get() + 1);
        let worker = Rc::clone(self);
        tokio_uring::spawn(async move {
            let listener = TcpListener::from_std(listener.into());
            while !worker.stopping.get() {
                match listener.accept().await {
                    Ok((stream, peer)) => worker.accepted(stream, peer),
                    Err(_) if worker.stopping.get() => break,
                    Err(error) if socket::is_about_one_peer(&error) => {}
                    Err(error) => {
                        tracing::warn!(listener = %addr, %error, "cannot accept; pausing");
                        tokio::time::sleep(socket::ACCEPT_PAUSE).await;
                    }
                }
            }
            worker.accepting.set(worker.accepting.get() - 1);
        });
    }

    fn accepted(self: &Rc<Self>, stream: TcpStream, peer: SocketAddr) {
        if self.stopping.get() || !self.counters.admit(self.config.max_connections) {
            self.counters.refused.fetch_add(1, Ordering::Relaxed);
            return reset_on_close(&stream);
        }
        if let Err(error) = on_socket(&stream, |socket| socket::set_options(socket, &self.config)) {
            // It went away between its handshake and here.
            tracing::debug!(%peer, %error, "accepted peer is gone");
            return self.counters.release();
        }
        let id = self.counters.new_id();
        self.insert(id, peer, Some(stream));
        self.counters.accepted.fetch_add(1, Ordering::Relaxed);
        self.event(Event::Accepted {
            conn: ConnId::new(id),
            peer,
        });
    }

    fn insert(&self, id: u64, peer: SocketAddr, stream: Option<TcpStream>) -> Rc<Link<W, B>> {
        let link = Rc::new(Link {
            id,
            peer,
            connecting: Cell::new(stream.is_none()),
            stream: RefCell::new(stream.map(Rc::new)),
            give_up: Notify::new(),
            operations: Cell::new(0),
            closing: RefCell::new(None),
            ended: Cell::new(false),
            parked: RefCell::new(None),
            parked_send: RefCell::new(None),
        });
        self.links.borrow_mut().insert(id, Rc::clone(&link));
        link
    }

    fn connect(self: &Rc<Self>, id: u64, socket: Socket, addr: SocketAddr) {
        let link = self.insert(id, addr, None);
        link.operations.set(1);
        let worker = Rc::clone(self);
        tokio_uring::spawn(async move {
            let connected = tokio::select! {
                connected = connect(socket, addr) => Some(connected),
                () = link.give_up.notified() => None,
            };
            link.operations.set(link.operations.get() - 1);
            match connected {
                Some(Ok(stream)) if link.closing.borrow().is_none() => {
                    link.connecting.set(false);
                    *link.stream.borrow_mut() = Some(Rc::new(stream));
                    worker.event(Event::Connected {
                        conn: ConnId::new(id),
                    });
                    let parked = link.parked.borrow_mut().take();
                    parked
                        .into_iter()
                        .for_each(|parked| worker.receive(id, parked));
                    let frame = link.parked_send.borrow_mut().take();
                    frame
                        .into_iter()
                        .for_each(|frame| worker.send(id, frame.head, frame.body));
                }
                Some(Err(reason)) => worker.begin_close(&link, reason, Close::Reset),
                Some(Ok(_)) | None => {}
            }
            worker.finish_if_idle(&link);
        });
    }

    fn receive(self: &Rc<Self>, id: u64, parked: Parked<W>) {
        let Some(link) = self.link(id) else { return };
        let stream = link.stream.borrow().clone();
        let (Some(stream), None) = (stream, &*link.closing.borrow()) else {
            *link.parked.borrow_mut() = Some(parked);
            return;
        };
        let link = Rc::clone(&link);
        let worker = Rc::clone(self);
        link.operations.set(link.operations.get() + 1);
        tokio_uring::spawn(async move {
            let Parked {
                into,
                at_least,
                mut filled,
            } = parked;
            let mut room = Room::new(into);
            let mut end = None;
            while filled < at_least && end.is_none() {
                debug_assert!(filled < room.len());
                let (result, slice) = stream.read(room.slice(filled..)).await;
                room = slice.into_inner();
                match result {
                    Ok(0) => end = Some(CloseReason::PeerClosed),
                    Ok(len) => {
                        filled += len;
                        worker
                            .counters
                            .received_bytes
                            .fetch_add(len as u64, Ordering::Relaxed);
                    }
                    Err(error) if is_passing(&error) => tokio::task::yield_now().await,
                    Err(error) => {
                        end = Some(socket::failed(&error, "receive from", link.peer));
                    }
                }
            }
            drop(stream);
            let into = room.into_inner();
            link.operations.set(link.operations.get() - 1);
            if end.is_none() && link.closing.borrow().is_none() {
                let conn = ConnId::new(link.id);
                worker.event(Event::Received {
                    conn,
                    into,
                    len: filled,
                });
            } else {
                *link.parked.borrow_mut() = Some(Parked {
                    into,
                    at_least,
                    filled,
                });
            }
            end.into_iter()
                .for_each(|end| worker.begin_close(&link, end, Close::Graceful));
            worker.finish_if_idle(&link);
        });
    }

    fn send(self: &Rc<Self>, id: u64, head: FrameBytes, body: Option<B>) {
        let Some(link) = self.link(id) else { return };
        if link.closing.borrow().is_some() {
            return;
        }
        let frame = Frame { head, body };
        let stream = link.stream.borrow().clone();
        let Some(stream) = stream else {
            *link.parked_send.borrow_mut() = Some(frame);
            return;
        };
        let worker = Rc::clone(self);
        link.operations.set(link.operations.get() + 1);
        tokio_uring::spawn(async move {
            let sent = worker.write_all(&stream, frame).await;
            drop(stream);
            link.operations.set(link.operations.get() - 1);
            match sent {
                Ok(()) if link.closing.borrow().is_none() => {
                    worker.event(Event::Sent {
                        conn: ConnId::new(link.id),
                    });
                }
                Ok(()) => {}
                Err(error) => {
                    let reason = socket::failed(&error, "send to", link.peer);
                    worker.begin_close(&link, reason, Close::Graceful);
                }
            }
            worker.finish_if_idle(&link);
        });
    }

    async fn write_all(&self, stream: &TcpStream, frame: Frame<B>) -> io::Result<()> {
        let total = frame.len();
        let frame = Rc::new(frame);
        let mut taken = 0;
        while taken < total {
            let (result, _) = stream.writev(Part::rest_of(&frame, taken)).await;
            match result {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(len) => {
                    taken += len;
                    self.counters
                        .sent_bytes
                        .fetch_add(len as u64, Ordering::Relaxed);
                }
                Err(error) if is_passing(&error) => tokio::task::yield_now().await,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn close(&self, id: u64, how: Close) {
        if let Some(link) = self.link(id) {
            self.begin_close(&link, CloseReason::Requested, how);
        }
    }

    fn begin_close(&self, link: &Link<W, B>, reason: CloseReason, how: Close) {
        match &mut *link.closing.borrow_mut() {
            Some((_, chosen)) => {
                if how == Close::Reset {
                    *chosen = how;
                }
                return;
            }
            closing => *closing = Some((reason, how)),
        }
        link.parked_send.borrow_mut().take();
        if link.connecting.get() {
            link.give_up.notify_one();
        }
        if let Some(stream) = &*link.stream.borrow() {
            // Ends the pending read and write. Not connected any more: they have ended.
            let _ = stream.shutdown(Shutdown::Both);
        }
        self.finish_if_idle(link);
    }

    /// Closes the socket of a closing connection once nothing is in flight.
    fn finish_if_idle(&self, link: &Link<W, B>) {
        let how = match &*link.closing.borrow() {
            Some((_, how)) if link.operations.get() == 0 && !link.ended.get() => *how,
            _ => return,
        };
        link.ended.set(true);
        if let Some(stream) = link.stream.borrow_mut().take()
            && how == Close::Reset
        {
            reset_on_close(&stream);
        }
        // Without an owner there is nobody to answer.
        let _ = self.reports.send(Report::Ended(link.id));
    }

    fn bury(&self, id: u64) {
        let Some(link) = self.links.borrow_mut().remove(&id) else {
            return;
        };
        self.counters.release();
        let closing = link.closing.borrow_mut().take();
        let reason = closing.map_or(CloseReason::Requested, |(reason, _)| reason);
        let parked = link.parked.borrow_mut().take();
        let received = parked.map(|parked| (parked.into, parked.filled));
        self.event(Event::Closed {
            conn: ConnId::new(id),
            reason,
            received,
        });
    }

    /// Ends everything in flight; tokio-uring's own end would wait for it without a bound.
    async fn stop(&self) {
        self.stopping.set(true);
        for listener in self.listeners.borrow_mut().drain(..) {
            // Ends the pending accept.
            let _ = listener.shutdown(Shutdown::Both);
        }
        let links: Vec<_> = self.links.borrow().values().cloned().collect();
        for link in &links {
            self.begin_close(link, CloseReason::Requested, Close::Reset);
        }
        let idle = async {
            while self.accepting.get() > 0 || links.iter().any(|link| link.operations.get() > 0) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        if tokio::time::timeout(STOP_PATIENCE, idle).await.is_err() {
            tracing::error!("operations of tokio-uring do not end after their sockets were shut");
        }
    }
}

/// Waits until the socket is connected. Nothing of this is in the ring, so it may be dropped.
async fn connect(socket: Socket, addr: SocketAddr) -> Result<TcpStream, CloseReason> {
    let attempt = async {
        let socket = TcpSocket::from_std_stream(StdStream::from(socket));
        let stream = socket.connect(addr).await?.into_std()?;
        stream.set_nonblocking(false)?;
        Ok(Socket::from(stream))
    };
    let socket = attempt
        .await
        .map_err(|error| socket::failed(&error, "connect to", addr))?;
    if socket::is_self_connected(&socket) {
        return Err(socket::connected_to_itself(addr));
    }
    Ok(TcpStream::from_std(StdStream::from(socket)))
}

fn reset_on_close(stream: &TcpStream) {
    // Fails only for a socket that is not connected, which has nothing to discard.
    let _ = on_socket(stream, |socket| socket.set_linger(Some(Duration::ZERO)));
}

fn on_socket<T>(stream: &TcpStream, act: impl FnOnce(&Socket) -> T) -> T {
    // SAFETY: the stream is borrowed until the end of this function and keeps its descriptor open.
    let fd = unsafe { BorrowedFd::borrow_raw(stream.as_raw_fd()) };
    act(&SockRef::from(&fd))
}

/// The operation is to be asked for again.
fn is_passing(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}
