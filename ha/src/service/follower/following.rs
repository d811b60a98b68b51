//! One attempt after the other to follow one master: the actions of the machine, carried out.

use epochlog_engine::{EpochEntry, EpochList, Offset, ReceiveWindow, Receiver};

use std::time::Duration;

use super::super::clock::{Rate, jitter, now_ms};
use super::super::runtime_info::{ClientInfo, JoinInfo};
use super::super::{Core, LONGEST_WAIT};
use super::reports::{Coming, REPORT_WAIT, Reports};
use super::{SlaveTransport, Target};
use crate::frame::{
    FrameChecksum, FrameFromMaster, FrameFromSlave, MasterFrameDecoder, SlaveHandshake,
};
use crate::slave::{SlaveAction, SlaveClose, SlaveConnection};
use crate::transport::{Close, CloseReason, ConnId, FrameBytes, RecvInto};

/// Most bytes of a header or table asked for at once.
const HEADER_LEN_MAX: usize = 64 << 10;

/// What the outstanding receive, or the wait for the connection's end, is for.
enum Busy {
    No,
    Header,
    Body {
        len: u32,
    },
    Compare {
        at: Offset,
    },
    /// The rest of a frame whose part differs from the own log: it is cut only if the frame is whole.
    Rest {
        record: Option<Offset>,
    },
    Closing,
}

/// One attempt after the other to follow one master.
pub(super) struct Following {
    pub(super) target: Target,
    pub(super) machine: SlaveConnection,
    conn: Option<ConnId>,
    decoder: MasterFrameDecoder,
    pub(super) receiver: Option<Receiver>,
    /// The master's list, as of the last handshake.
    pub(super) master_epochs: EpochList,
    pub(super) overlap_from: Offset,
    busy: Busy,
    /// Of the frame whose body is being taken, if the peers have agreed on checksums.
    checksum: Option<FrameChecksum>,
    /// Where that frame belongs.
    frame_at: Option<Offset>,
    /// The buffer of headers, while no receive has it.
    spare: Vec<u8>,
    /// The receive of a frame's rest is outstanding.
    resting: bool,
    reports: Reports,
    /// The controller is being told that this incarnation holds nothing.
    pub(super) resync_announced: bool,
    /// The log is to be discarded once the connection is over.
    pub(super) resync_due: bool,
    /// The newest end of the master's log that this connection told of.
    master_end: Option<Offset>,
    pub(super) last_join: Option<JoinInfo>,
    pub(super) last_close: Option<SlaveClose>,
    rate: Rate,
    read_ms: Option<u64>,
    write_ms: Option<u64>,
}

impl Following {
    pub(super) fn new(core: &Core, target: Target) -> Self {
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
            checksum: None,
            frame_at: None,
            spare: Vec::new(),
            resting: false,
            reports: Reports::default(),
            resync_announced: false,
            resync_due: false,
            master_end: None,
            last_join: None,
            last_close: None,
            rate: Rate::default(),
            read_ms: None,
            write_ms: None,
        }
    }

    pub(super) fn conn(&self) -> Option<ConnId> {
        self.conn
    }

    pub(super) fn next_due_ms(&self) -> u64 {
        self.machine.next_due_ms()
    }

    pub(super) fn tick(&mut self) {
        self.machine.tick(now_ms());
    }

    pub(super) fn connected(&mut self) {
        self.machine.connected(now_ms());
    }

    pub(super) fn flushed(&mut self, core: &Core) {
        self.machine.flushed(core.store.flushed_offset(), now_ms());
    }

    /// Carries out actions until one has to be waited for.
    pub(super) fn act(&mut self, core: &Core, transport: &mut SlaveTransport) {
        while matches!(self.busy, Busy::No | Busy::Header) || self.machine.must_close() {
            let Some(action) = self.machine.next_action(now_ms()) else {
                break;
            };
            if let Err(reason) = self.perform(action, core, transport) {
                self.machine.failed(reason);
            }
        }
        self.ask_rest(transport);
        self.ask_header(transport);
    }

    /// Takes the rest of a frame off the stream that is only looked at.
    fn ask_rest(&mut self, transport: &mut SlaveTransport) {
        if matches!(self.busy, Busy::Rest { .. }) && !self.resting {
            self.resting = true;
            let left = self.checksum.map_or(0, |checksum| checksum.left());
            self.recv(RecvInto::Bytes(vec![0; left as usize]), transport);
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
                self.send(FrameBytes::from(handshake(core).encode()), transport);
            }
            SlaveAction::Decide { answer, lookback } => self.join(answer, lookback, core)?,
            SlaveAction::Report(offset) => self.reports.due(offset, now_ms()),
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
            SlaveAction::Close(reason) => self.close(reason, core, transport),
            SlaveAction::Cut(at) => self.cut(at, core),
        }
        Ok(())
    }

    fn connect(&mut self, core: &Core, transport: &mut SlaveTransport) {
        self.decoder =
            MasterFrameDecoder::new(core.config.answer_form).asking(handshake(core).asked());
        self.checksum = None;
        self.resting = false;
        self.busy = Busy::No;
        self.reports = Reports::default();
        self.master_end = None;
        match transport.connect(self.target.master_addr) {
            Ok(conn) => self.conn = Some(conn),
            Err(error) => {
                let master = self.target.master_addr;
                tracing::warn!(%master, %error, "cannot connect to the master");
                self.machine.closed(now_ms(), jitter());
            }
        }
    }

    fn close(&mut self, reason: SlaveClose, core: &Core, transport: &mut SlaveTransport) {
        core.metrics.closed_by_slave(reason.reason());
        self.consider_resync(&reason, core);
        let master = self.target.master_addr;
        if reason.needs_operator() {
            let word = reason.reason();
            tracing::error!(%master, reason = word, "cannot follow the master: {reason}");
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
    pub(super) fn over(&mut self, reason: &CloseReason, core: &Core) {
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
        if std::mem::take(&mut self.resync_due) {
            self.resync(core);
        }
        self.machine.closed(now_ms(), jitter());
    }

    fn send(&mut self, bytes: FrameBytes, transport: &mut SlaveTransport) {
        let Some(conn) = self.conn else { return };
        self.reports.send_begins();
        self.write_ms = Some(now_ms());
        transport.send(conn, bytes, None);
    }

    /// The last send is done.
    pub(super) fn sent(&mut self) {
        self.reports.send_is_done();
    }

    /// Sends the report that waits, or holds it for more that is coming in; see [`Reports::may_wait`].
    /// Returns how long at most the loop may sleep.
    pub(super) fn report(
        &mut self,
        more_is_there: bool,
        silent: bool,
        core: &Core,
        transport: &mut SlaveTransport,
    ) -> Duration {
        let coming = match (more_is_there, &self.busy) {
            (true, _) => Coming::There,
            (false, Busy::Body { .. }) => Coming::Begun { silent },
            // A write whose ack is waited for lies behind all that the master has told of.
            _ if self.master_end > Some(core.store.end_offset()) => Coming::Known { silent },
            _ => Coming::Nothing,
        };
        if self.reports.may_wait(coming, now_ms()) {
            return REPORT_WAIT;
        }
        if let Some(offset) = self.reports.take() {
            let report = if self.machine.reports_both() {
                let flushed = core.store.flushed_offset();
                FrameBytes::new(&FrameFromSlave::encode_report_of_both(offset, flushed))
            } else {
                FrameBytes::new(&FrameFromSlave::encode_report(offset))
            };
            self.send(report, transport);
        }
        LONGEST_WAIT
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
        let mut bytes = std::mem::take(&mut self.spare);
        bytes.resize(self.decoder.wanted().min(HEADER_LEN_MAX), 0);
        self.recv(RecvInto::Bytes(bytes), transport);
    }

    /// The outstanding receive is done.
    pub(super) fn received(&mut self, into: RecvInto<ReceiveWindow>, len: usize, core: &Core) {
        let now = now_ms();
        self.rate.add(len as u64, now);
        self.read_ms = Some(now);
        self.machine.heard(now);
        if let Err(reason) = self.take(into, len, core) {
            self.machine.failed(reason);
        }
    }

    fn take(
        &mut self,
        into: RecvInto<ReceiveWindow>,
        len: usize,
        core: &Core,
    ) -> Result<(), SlaveClose> {
        match (std::mem::replace(&mut self.busy, Busy::No), into) {
            (Busy::Header, RecvInto::Bytes(bytes)) => {
                let decoded = self.decoder.push(&bytes[..len])?;
                if let Some(frame) = decoded.frame {
                    self.checksum = self.decoder.checksum();
                    if let FrameFromMaster::Transfer(header) = &frame {
                        self.frame_at = header.offset;
                    }
                    self.master_end = self.master_end.max(end_told(&frame));
                    self.machine.frame(frame);
                }
                self.spare = bytes;
                Ok(())
            }
            (Busy::Body { len }, RecvInto::Window(mut window)) => {
                // A window that is dropped counts as written to and as never received.
                self.check(&window.as_mut_slice()[..len as usize])?;
                let receiver = self.receiver.as_mut().ok_or_else(no_receiver)?;
                receiver.filled(window, len as usize);
                let end = receiver.publish().map_err(log_refuses)?;
                core.metrics.frames_received.add(1);
                core.metrics.body_bytes_received.add(u64::from(len));
                self.machine.received(end, now_ms());
                if core.config.report_flushed {
                    core.flusher.request();
                }
                Ok(())
            }
            (Busy::Compare { at }, RecvInto::Bytes(bytes)) => {
                self.check(&bytes[..len])?;
                self.compare(at, &bytes[..len], core)
            }
            (Busy::Rest { record }, RecvInto::Bytes(bytes)) => {
                self.check(&bytes[..len])?;
                self.machine.differs(record);
                Ok(())
            }
            (busy, _) => {
                // Bytes of a connection that is being closed.
                self.busy = busy;
                Ok(())
            }
        }
    }

    /// Takes bytes of a frame's body into its checksum; an error if it is whole and not as it was sent.
    fn check(&mut self, bytes: &[u8]) -> Result<(), SlaveClose> {
        let Some(checksum) = &mut self.checksum else {
            return Ok(());
        };
        checksum.add(bytes);
        let offset = self.frame_at;
        checksum
            .check()
            .map_err(|error| SlaveClose::Corrupt { offset, error })
    }

    /// The log differs from a frame's bytes. If only a part of the frame has come, the rest is taken
    /// first: a frame that is not as it was sent proves nothing.
    pub(super) fn differs(&mut self, record: Option<Offset>) {
        match self.checksum.map_or(0, |checksum| checksum.left()) {
            0 => self.machine.differs(record),
            _ => self.busy = Busy::Rest { record },
        }
    }

    pub(super) fn info(&mut self, core: &Core) -> ClientInfo {
        let now = now_ms();
        let state = self.machine.state_name();
        ClientInfo {
            master_addr: self.target.master_addr,
            state,
            transferred_byte_in_second: self.rate.per_second(now),
            max_offset: core.store.end_offset(),
            master_max_offset: self.master_end,
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

fn handshake(core: &Core) -> SlaveHandshake {
    core.config.slave(core.store.segment_size()).handshake
}

/// How far the master's log reaches at least, by this frame. A master that confirms as RocketMQ
/// does by default confirms its whole log.
fn end_told(frame: &FrameFromMaster) -> Option<Offset> {
    match frame {
        FrameFromMaster::Handshake(answer) => Some(answer.end),
        FrameFromMaster::Transfer(header) => {
            let sent = header.offset.map(|at| at + u64::from(header.body_len));
            sent.max(header.confirm)
        }
    }
}

fn no_receiver() -> SlaveClose {
    SlaveClose::LogRefuses {
        why: "no receiver is open".to_owned(),
        terminal: false,
    }
}

pub(super) fn log_refuses(error: epochlog_engine::Error) -> SlaveClose {
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
