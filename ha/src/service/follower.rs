//! The slave's side: one thread, one transport, one connection to the master.
//!
//! The loop carries out what the connection machine asks for, one action after the other. At any
//! time at most one receive is outstanding: of a header into a small buffer, of a body straight into
//! the mapped log, or of bytes to be compared. The receiver of the store is open exactly while the
//! connection is in TRANSFER; it is finished, and so what was not published erased, before anything
//! else happens to the log.

mod join;

use std::net::SocketAddr;
use std::sync::Arc;

use crossbeam::channel::Sender;
use epochlog_engine::{Epoch, EpochEntry, EpochList, Offset, ReceiveWindow, Receiver};

use super::clock::{Rate, jitter, now_ms, until};
use super::runtime_info::{ClientInfo, JoinInfo};
use super::{Core, LONGEST_WAIT};
use crate::frame::{FrameFromSlave, MasterFrameDecoder};
use crate::slave::{SlaveAction, SlaveClose, SlaveConnection};
use crate::transport::{
    Close, CloseReason, ConnId, Event, FrameBytes, RecvInto, Transport, Window,
};

/// Most bytes of a header or table asked for at once.
const HEADER_LEN_MAX: usize = 64 << 10;

impl Window for ReceiveWindow {
    fn room(&mut self) -> &mut [u8] {
        self.as_mut_slice()
    }
}

/// Orders to the thread.
pub(super) enum Order {
    /// Follow this master; the answer comes when an older connection is over.
    Follow(Target, Sender<()>),
    /// Follow nobody; the answer comes when the connection is over and what it left is erased.
    Stop(Sender<()>),
    /// The log has been flushed further.
    Flushed,
    /// Tell about the connection.
    Info(Sender<Option<ClientInfo>>),
    /// End the thread.
    End,
}

/// Whom to follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) epoch: Epoch,
    pub(super) master_addr: SocketAddr,
}

pub(super) type SlaveTransport = Box<dyn Transport<ReceiveWindow, Vec<u8>>>;

/// What the outstanding receive, or the wait for the connection's end, is for.
enum Busy {
    No,
    Header,
    Body { len: u32 },
    Compare { at: Offset },
    Closing,
}

/// One attempt after the other to follow one master.
struct Following {
    target: Target,
    machine: SlaveConnection,
    conn: Option<ConnId>,
    decoder: MasterFrameDecoder,
    receiver: Option<Receiver>,
    /// The master's list, as of the last handshake.
    master_epochs: EpochList,
    overlap_from: Offset,
    busy: Busy,
    sending: bool,
    /// A report that waits for the send before it; only the newest counts.
    unsent: Option<Offset>,
    last_join: Option<JoinInfo>,
    last_close: Option<SlaveClose>,
    rate: Rate,
    read_ms: Option<u64>,
    write_ms: Option<u64>,
}

pub(super) struct Follower {
    core: Arc<Core>,
    transport: SlaveTransport,
    following: Option<Following>,
    /// Orders that wait for the connection to be over.
    stopping: Option<(Option<Target>, Sender<()>)>,
    ending: bool,
}

impl Follower {
    pub(super) fn new(core: Arc<Core>, transport: SlaveTransport) -> Self {
        Self {
            core,
            transport,
            following: None,
            stopping: None,
            ending: false,
        }
    }

    /// The body of the thread.
    pub(super) fn run(mut self) {
        let mut events = Vec::new();
        loop {
            self.orders();
            if self.ending {
                return self.finish();
            }
            self.act();
            let now = now_ms();
            let due = self
                .following
                .as_ref()
                .map_or(u64::MAX, |it| it.machine.next_due_ms());
            if let Err(error) = self
                .transport
                .wait(until(due, now, LONGEST_WAIT), &mut events)
            {
                tracing::error!(%error, "the transport of the slave has failed");
                return;
            }
            for event in events.drain(..) {
                self.event(event);
            }
            if let Some(following) = &mut self.following {
                following.machine.tick(now_ms());
            }
        }
    }

    fn orders(&mut self) {
        for order in self.core.follower.take() {
            match order {
                Order::Follow(target, done) => self.change(Some(target), done),
                Order::Stop(done) => self.change(None, done),
                Order::Flushed => {
                    let flushed = self.core.store.flushed_offset();
                    if let Some(following) = &mut self.following {
                        following.machine.flushed(flushed, now_ms());
                    }
                }
                Order::Info(tell) => {
                    let info = self.following.as_mut().map(|it| it.info(&self.core));
                    // Whoever asked may have given up.
                    let _ = tell.send(info);
                }
                Order::End => self.ending = true,
            }
        }
    }

    /// Follows `target` (or nobody) once the present connection is over.
    fn change(&mut self, target: Option<Target>, done: Sender<()>) {
        match self.following.as_ref().and_then(|following| following.conn) {
            Some(conn) => {
                self.transport.close(conn, Close::Reset);
                self.stopping = Some((target, done));
            }
            None => self.changed(target, &done),
        }
    }

    fn changed(&mut self, target: Option<Target>, done: &Sender<()>) {
        self.following = target.map(|target| Following::new(&self.core, target));
        let _ = done.send(());
    }

    /// Carries out actions until one has to be waited for.
    fn act(&mut self) {
        if self.stopping.is_some() {
            return;
        }
        let Some(following) = &mut self.following else {
            return;
        };
        while matches!(following.busy, Busy::No | Busy::Header) || following.machine.must_close() {
            let Some(action) = following.machine.next_action(now_ms()) else {
                break;
            };
            if let Err(reason) = following.perform(action, &self.core, &mut self.transport) {
                following.machine.failed(reason);
            }
        }
        following.ask_header(&mut self.transport);
    }

    fn event(&mut self, event: Event<ReceiveWindow>) {
        let now = now_ms();
        let Some(following) = &mut self.following else {
            return;
        };
        if following.conn != Some(event.conn()) {
            return;
        }
        match event {
            Event::Connected { .. } => following.machine.connected(now),
            Event::Sent { conn } => {
                following.sending = false;
                if let Some(offset) = following.unsent.take() {
                    following.report(conn, offset, &mut self.transport);
                }
            }
            Event::Received { into, len, .. } => {
                following.rate.add(len as u64, now);
                following.read_ms = Some(now);
                following.machine.heard(now);
                if let Err(reason) = following.received(into, len, &self.core) {
                    following.machine.failed(reason);
                }
                self.act();
            }
            Event::Closed {
                reason, received, ..
            } => {
                // The window goes back to the log first: it counts as written to.
                drop(received);
                following.over(&reason);
                if let Some((target, done)) = self.stopping.take() {
                    self.changed(target, &done);
                }
            }
            Event::Accepted { conn, .. } => self.transport.close(conn, Close::Reset),
        }
    }

    /// Ends the connection, waits for its end, and erases what it left.
    fn finish(&mut self) {
        let conn = self.following.as_ref().and_then(|following| following.conn);
        if let Some(conn) = conn {
            self.transport.close(conn, Close::Reset);
        }
        let mut events = Vec::new();
        let give_up = now_ms() + 5000;
        while self.following.as_ref().is_some_and(|it| it.conn.is_some()) && now_ms() < give_up {
            if self.transport.wait(LONGEST_WAIT, &mut events).is_err() {
                break;
            }
            for event in events.drain(..) {
                self.event(event);
            }
        }
        self.following = None;
    }
}

impl Following {
    fn new(core: &Core, target: Target) -> Self {
        let config = core.config.slave(core.store.segment_size());
        Self {
            target,
            machine: SlaveConnection::new(config, now_ms()),
            conn: None,
            decoder: MasterFrameDecoder::new(core.config.answer_form),
            receiver: None,
            master_epochs: EpochList::new(),
            overlap_from: 0,
            busy: Busy::No,
            sending: false,
            unsent: None,
            last_join: None,
            last_close: None,
            rate: Rate::default(),
            read_ms: None,
            write_ms: None,
        }
    }

    fn perform(
        &mut self,
        action: SlaveAction,
        core: &Core,
        transport: &mut SlaveTransport,
    ) -> Result<(), SlaveClose> {
        match action {
            SlaveAction::Connect => self.connect(core, transport),
            SlaveAction::SendHandshake => {
                let handshake = core
                    .config
                    .slave(core.store.segment_size())
                    .handshake
                    .encode();
                self.send(FrameBytes::from(handshake), transport);
            }
            SlaveAction::Decide { answer, lookback } => self.join(answer, lookback, core)?,
            SlaveAction::Report(offset) => {
                if let Some(conn) = self.conn {
                    self.report(conn, offset, transport);
                }
            }
            SlaveAction::Compare { at, len } => {
                self.busy = Busy::Compare { at };
                self.recv(RecvInto::Bytes(vec![0; len as usize]), transport);
            }
            SlaveAction::StartAt(offset) => self.start_at(offset)?,
            SlaveAction::AdoptEpoch(entry) => self.adopt(entry)?,
            SlaveAction::Receive { len } => {
                let receiver = self.receiver.as_mut().ok_or_else(no_receiver)?;
                let window = receiver.window(len as usize).map_err(log_refuses)?;
                if window.len() != len as usize {
                    let why = format!("room for {} of {len} bytes of a body", window.len());
                    return Err(SlaveClose::LogRefuses {
                        why,
                        terminal: false,
                    });
                }
                self.busy = Busy::Body { len };
                self.recv(RecvInto::Window(window), transport);
            }
            SlaveAction::Confirm(offset) => {
                if offset > core.store.confirm_offset() {
                    core.store.set_confirm(offset);
                }
            }
            SlaveAction::Close(reason) => self.close(reason, transport),
            SlaveAction::Cut(at) => self.cut(at, core),
        }
        Ok(())
    }

    fn connect(&mut self, core: &Core, transport: &mut SlaveTransport) {
        self.decoder = MasterFrameDecoder::new(core.config.answer_form);
        self.busy = Busy::No;
        self.sending = false;
        self.unsent = None;
        match transport.connect(self.target.master_addr) {
            Ok(conn) => self.conn = Some(conn),
            Err(error) => {
                tracing::warn!(master = %self.target.master_addr, %error, "cannot connect to the master");
                self.machine.closed(now_ms(), jitter());
            }
        }
    }

    fn close(&mut self, reason: SlaveClose, transport: &mut SlaveTransport) {
        let master = self.target.master_addr;
        if reason.needs_operator() {
            tracing::error!(%master, reason = reason.reason(), "cannot follow the master: {reason}");
        } else {
            tracing::warn!(%master, reason = reason.reason(), "left the master: {reason}");
        }
        self.last_close = Some(reason);
        self.busy = Busy::Closing;
        match self.conn {
            Some(conn) => transport.close(conn, Close::Reset),
            None => self.machine.closed(now_ms(), jitter()),
        }
    }

    /// The connection is over and its window is back: what was not published is erased.
    fn over(&mut self, reason: &CloseReason) {
        self.conn = None;
        if !matches!(self.busy, Busy::Closing) {
            tracing::info!(master = %self.target.master_addr, "connection to the master: {reason}");
        }
        self.busy = Busy::No;
        if let Some(receiver) = self.receiver.take()
            && let Err(error) = receiver.finish()
        {
            tracing::error!(%error, "bytes received and not published could not be erased");
        }
        self.machine.closed(now_ms(), jitter());
    }

    fn send(&mut self, bytes: FrameBytes, transport: &mut SlaveTransport) {
        let Some(conn) = self.conn else { return };
        self.sending = true;
        self.write_ms = Some(now_ms());
        transport.send(conn, bytes, None);
    }

    fn report(&mut self, conn: ConnId, offset: Offset, transport: &mut SlaveTransport) {
        if self.conn != Some(conn) {
            return;
        }
        if self.sending {
            self.unsent = Some(offset);
        } else {
            self.send(
                FrameBytes::new(&FrameFromSlave::encode_report(offset)),
                transport,
            );
        }
    }

    fn recv(&mut self, mut into: RecvInto<ReceiveWindow>, transport: &mut SlaveTransport) {
        if let Some(conn) = self.conn {
            let at_least = into.room().len();
            transport.recv(conn, into, at_least);
        }
    }

    /// Asks for the next header when nothing else is to be done first.
    fn ask_header(&mut self, transport: &mut SlaveTransport) {
        if !matches!(self.busy, Busy::No) || !self.machine.wants_frames() {
            return;
        }
        self.busy = Busy::Header;
        let len = self.decoder.wanted().min(HEADER_LEN_MAX);
        self.recv(RecvInto::Bytes(vec![0; len]), transport);
    }

    fn received(
        &mut self,
        into: RecvInto<ReceiveWindow>,
        len: usize,
        core: &Core,
    ) -> Result<(), SlaveClose> {
        match (std::mem::replace(&mut self.busy, Busy::No), into) {
            (Busy::Header, RecvInto::Bytes(bytes)) => {
                let decoded = self.decoder.push(&bytes[..len])?;
                if let Some(frame) = decoded.frame {
                    self.machine.frame(frame);
                }
                Ok(())
            }
            (Busy::Body { len }, RecvInto::Window(window)) => {
                let receiver = self.receiver.as_mut().ok_or_else(no_receiver)?;
                receiver.filled(window, len as usize);
                let end = receiver.publish().map_err(log_refuses)?;
                self.machine.received(end, now_ms());
                if core.config.report_flushed {
                    core.flusher.request();
                }
                Ok(())
            }
            (Busy::Compare { at }, RecvInto::Bytes(bytes)) => self.compare(at, &bytes[..len], core),
            (busy, _) => {
                // Bytes of a connection that is being closed.
                self.busy = busy;
                Ok(())
            }
        }
    }

    fn info(&mut self, core: &Core) -> ClientInfo {
        let now = now_ms();
        let state = self.machine.state_name();
        ClientInfo {
            master_addr: self.target.master_addr,
            state,
            transferred_byte_in_second: self.rate.per_second(now),
            max_offset: core.store.end_offset(),
            reported_offset: self.machine.reported(),
            last_read_age_ms: self.read_ms.map(|at| now.saturating_sub(at)),
            last_write_age_ms: self.write_ms.map(|at| now.saturating_sub(at)),
            is_activated: self.conn.is_some() && state == "TRANSFER",
            last_join: self.last_join.clone(),
            last_close: self.last_close.as_ref().map(ToString::to_string),
            needs_operator: self
                .last_close
                .as_ref()
                .is_some_and(SlaveClose::needs_operator),
        }
    }

    fn adopt(&mut self, entry: EpochEntry) -> Result<(), SlaveClose> {
        let receiver = self.receiver.as_mut().ok_or_else(no_receiver)?;
        receiver.adopt_epoch(entry).map_err(log_refuses)
    }

    /// A new replica begins where the master does, under the master's entries up to there.
    fn start_at(&mut self, offset: Offset) -> Result<(), SlaveClose> {
        let receiver = self.receiver.as_mut().ok_or_else(no_receiver)?;
        receiver.start_at(offset).map_err(log_refuses)?;
        let list = EpochList::new().adopt(&self.master_epochs, offset);
        let list = list.map_err(|error| SlaveClose::LogRefuses {
            why: error.to_string(),
            terminal: false,
        })?;
        receiver.adopt_epochs(&list).map_err(log_refuses)
    }
}

fn no_receiver() -> SlaveClose {
    SlaveClose::LogRefuses {
        why: "no receiver is open".to_owned(),
        terminal: false,
    }
}

fn log_refuses(error: epochlog_engine::Error) -> SlaveClose {
    use epochlog_engine::Error;
    let terminal = matches!(
        error,
        Error::Failed { .. } | Error::Closed | Error::Io { .. }
    );
    SlaveClose::LogRefuses {
        why: error.to_string(),
        terminal,
    }
}
