//! One slave's connection as its master sees it: frames in, the next thing to send out.
//!
//! Invariants:
//! - A handshake is answered once, and only while the role as master is durable; until then the
//!   connection waits.
//! - The first report says where to begin. A position outside `[min, end]` ends the connection.
//! - A report never falls, and never passes what was sent to this connection or the log's own end:
//!   such an ack was not given for these bytes. Nothing is counted before the handshake.
//! - Frames are contiguous, and something goes out at least once per heartbeat interval.
//!
//! Pure: time is an argument in milliseconds of any monotonic clock. One send is in flight at a
//! time. RocketMQ: `AutoSwitchHAConnection`.

use epochlog_engine::{Epoch, EpochList, Offset};

use crate::batch::{Batch, CursorError, LogBounds, TransferCursor};
use crate::frame::{
    Capabilities, Extension, FrameError, FrameFromSlave, HandshakeAnswer, HandshakeAnswerForm,
    LogId, MAX_BODY_LEN, MAX_EXTENDED_BODY_LEN, SlaveHandshake, SlaveIdentity, TransferHeader,
};

/// Times and sizes of a master's connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MasterConnectionConfig {
    /// Most bytes of log in one frame to a peer of Java's, and the least that a peer of ours is given
    /// while it lags. RocketMQ: `haTransferBatchSize`.
    pub transfer_batch_size: u32,
    /// Most bytes of log in one frame to a peer of ours, which grow with its lag.
    pub extended_batch_size: u32,
    /// What this master agrees to when a slave of ours asks; none: it does not know the extension.
    pub extension: Option<Capabilities>,
    /// Frames with a body wait while so many bytes were sent and not acked: more than the longest
    /// record, whose parts cannot be acked.
    pub max_unacked_bytes: u64,
    /// Its log, as told to a slave that asks.
    pub log_id: LogId,
    /// Something goes out at least so often. RocketMQ: `haSendHeartbeatInterval`.
    pub heartbeat_interval_ms: u64,
    /// A connection that says nothing for longer ends. RocketMQ: `haHousekeepingInterval`.
    pub housekeeping_interval_ms: u64,
    /// How long a handshake may wait for the role to become durable.
    pub handshake_wait_ms: u64,
    /// The form of the handshake's answer.
    pub answer_form: HandshakeAnswerForm,
}

/// The master's log at the moment of an event.
#[derive(Clone, Copy, Debug)]
pub struct MasterLog<'a> {
    /// Its epochs.
    pub epochs: &'a EpochList,
    /// How far it reaches.
    pub bounds: LogBounds,
    /// The confirm offset to tell.
    pub confirm: Offset,
    /// The epoch this node durably is master of; none while it is not.
    pub serving: Option<Epoch>,
}

/// Why a master ends a connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MasterClose {
    /// Bytes that are no frame.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// A report before the handshake was answered.
    #[error("a report of {offset} before the handshake was answered")]
    ReportTooEarly {
        /// As reported.
        offset: Offset,
    },
    /// A second handshake with other content, or after the first report.
    #[error("a second handshake on the same connection")]
    SecondHandshake,
    /// The slave's log is longer than this one.
    #[error(
        "the slave wants to go on at {offset}, past this log's end {end}: its log has a tail this \
         one lacks; it must shake hands with this log's epochs, or be discarded with \
         `epochlog repair resync STORE_DIR` there"
    )]
    StartsPastEnd {
        /// As reported.
        offset: Offset,
        /// The log's end.
        end: Offset,
    },
    /// The bytes the slave needs next are deleted here.
    #[error(
        "the slave wants to go on at {offset}, below this log's first offset {min}: the bytes \
         between are deleted here; discard that replica's log with `epochlog repair resync \
         STORE_DIR` there"
    )]
    StartsBelowMin {
        /// As reported.
        offset: Offset,
        /// The log's first offset.
        min: Offset,
    },
    /// An ack of bytes this connection was never sent.
    #[error("an ack of {offset}, but only bytes up to {sent} were sent on this connection")]
    AckNotSent {
        /// As reported.
        offset: Offset,
        /// What was sent.
        sent: Offset,
    },
    /// An ack lower than the one before.
    #[error("an ack of {offset} after one of {before}")]
    AckFell {
        /// As reported.
        offset: Offset,
        /// The one before.
        before: Offset,
    },
    /// Nothing was heard for too long.
    #[error("nothing heard for {silent_ms} ms")]
    Silent {
        /// For how long.
        silent_ms: u64,
    },
    /// The role did not become durable in time.
    #[error("the handshake waited {waited_ms} ms for this node to become master")]
    NotMaster {
        /// For how long.
        waited_ms: u64,
    },
    /// The peer connected and did not say who it is.
    #[error("no handshake within {waited_ms} ms")]
    NoHandshake {
        /// How long it had.
        waited_ms: u64,
    },
    /// This master does not serve the broker.
    #[error("broker {broker_id:?} is not among the allowed ones (haAllowedBrokerIds)")]
    NotAllowed {
        /// Its id; none from a slave older than 5.1.1.
        broker_id: Option<u64>,
    },
    /// The cursor cannot go on.
    #[error(transparent)]
    Cursor(#[from] CursorError),
    /// The same replica has connected anew.
    #[error("replica {broker_id} has connected anew")]
    Replaced {
        /// Its id.
        broker_id: u64,
    },
    /// The slave bears this broker's own id.
    #[error("a slave with this broker's own id {broker_id}: give each broker its own")]
    OwnId {
        /// The id.
        broker_id: u64,
    },
}

impl MasterClose {
    /// A short fixed word for metrics.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Frame(FrameError::Checksum { .. }) => "checksum",
            Self::Frame(_) => "illegal-frame",
            Self::ReportTooEarly { .. } => "report-too-early",
            Self::SecondHandshake => "second-handshake",
            Self::StartsPastEnd { .. } => "starts-past-end",
            Self::StartsBelowMin { .. } => "starts-below-min",
            Self::AckNotSent { .. } => "ack-not-sent",
            Self::AckFell { .. } => "ack-fell",
            Self::Silent { .. } => "silent",
            Self::NotMaster { .. } => "not-master",
            Self::NoHandshake { .. } => "no-handshake",
            Self::NotAllowed { .. } => "not-allowed",
            Self::Cursor(_) => "position-lost",
            Self::Replaced { .. } => "replaced",
            Self::OwnId { .. } => "own-id",
        }
    }
}

/// What a frame of the slave meant for the replica behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// Nothing to count.
    Nothing,
    /// The first report: it begins here.
    Started {
        /// What it reported; 0 from a new replica.
        offset: Offset,
        /// How far it is on disk, if acks for the disk wait for that.
        flushed: Option<Offset>,
    },
    /// A later report.
    Acked {
        /// How far its log reaches.
        offset: Offset,
        /// How far it is on disk, if acks for the disk wait for that.
        flushed: Option<Offset>,
    },
}

/// The next thing to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MasterSend {
    /// The answer to the handshake, encoded.
    Handshake(Vec<u8>),
    /// A frame with log bytes behind its header.
    Transfer(TransferHeader, Batch),
    /// A frame without a body.
    Heartbeat(TransferHeader),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// No handshake yet.
    Fresh,
    /// Handshake there, answer due.
    Asked,
    /// Answer sent, first report due.
    Answered,
    /// Frames go out.
    Transfer(TransferCursor),
}

/// The machine of one connection.
#[derive(Clone, Debug)]
pub struct MasterConnection {
    config: MasterConnectionConfig,
    phase: Phase,
    handshake: Option<SlaveHandshake>,
    ack: Option<Offset>,
    flushed: Option<Offset>,
    agreed: Capabilities,
    batch_size: u32,
    opened_ms: u64,
    heard_ms: u64,
    sent_ms: u64,
    in_flight: bool,
    /// When the slave was last known to be level.
    level_ms: Option<u64>,
    /// The log's end at some moment and that moment: an ack of the one proves the slave level at
    /// the other, however much has been written since.
    probe: Option<(Offset, u64)>,
}

impl MasterConnection {
    /// A connection accepted at `now_ms`.
    pub fn new(config: MasterConnectionConfig, now_ms: u64) -> Self {
        Self {
            config,
            phase: Phase::Fresh,
            handshake: None,
            ack: None,
            flushed: None,
            agreed: Capabilities::NONE,
            batch_size: config.transfer_batch_size,
            opened_ms: now_ms,
            heard_ms: now_ms,
            sent_ms: now_ms,
            in_flight: false,
            level_ms: None,
            probe: None,
        }
    }

    /// The id the slave gave; none before its handshake, and for slaves older than 5.1.1.
    pub fn broker_id(&self) -> Option<u64> {
        match self.handshake.as_ref()?.identity {
            SlaveIdentity::BrokerId(id) => Some(id),
            SlaveIdentity::Address(_) => None,
        }
    }

    /// Whether the slave asked never to join the SyncStateSet.
    pub fn is_learner(&self) -> bool {
        self.handshake
            .as_ref()
            .is_some_and(|handshake| handshake.async_learner)
    }

    /// Whether the peer's handshake has come.
    pub fn has_shaken_hands(&self) -> bool {
        self.handshake.is_some()
    }

    /// Whether the handshake was answered, so that the slave acts on what this log was.
    pub fn is_answered(&self) -> bool {
        matches!(self.phase, Phase::Answered | Phase::Transfer(_))
    }

    /// What both peers do beyond RocketMQ's frames; nothing before the handshake is answered.
    pub fn agreed(&self) -> Capabilities {
        self.agreed
    }

    /// How far the slave's log is on disk, if it says.
    pub fn flushed(&self) -> Option<Offset> {
        self.flushed
    }

    /// The newest report.
    pub fn ack(&self) -> Option<Offset> {
        self.ack
    }

    /// Where the connection stands, once the slave has said where to begin.
    pub fn cursor(&self) -> Option<&TransferCursor> {
        match &self.phase {
            Phase::Transfer(cursor) => Some(cursor),
            _ => None,
        }
    }

    /// Bytes came in, whole frame or not.
    pub fn heard(&mut self, now_ms: u64) {
        self.heard_ms = now_ms;
    }

    /// A frame came in.
    ///
    /// # Errors
    /// [`MasterClose`]: the connection is to be ended, and nothing of the frame counts.
    pub fn frame(
        &mut self,
        frame: FrameFromSlave,
        log: &MasterLog<'_>,
    ) -> Result<Heard, MasterClose> {
        match frame {
            FrameFromSlave::Handshake(handshake) => self.on_handshake(handshake),
            FrameFromSlave::Report(offset) => self.on_report(offset, None, log),
            FrameFromSlave::ReportBoth { published, flushed } => {
                self.on_report(published, Some(flushed), log)
            }
        }
    }

    fn on_handshake(&mut self, handshake: SlaveHandshake) -> Result<Heard, MasterClose> {
        match (&self.phase, &self.handshake) {
            (Phase::Fresh, _) => {
                self.phase = Phase::Asked;
                self.handshake = Some(handshake);
                Ok(Heard::Nothing)
            }
            // A Java slave repeats it until the answer is there.
            (Phase::Asked | Phase::Answered, Some(first)) if *first == handshake => {
                Ok(Heard::Nothing)
            }
            _ => Err(MasterClose::SecondHandshake),
        }
    }

    fn on_report(
        &mut self,
        offset: Offset,
        on_disk: Option<Offset>,
        log: &MasterLog<'_>,
    ) -> Result<Heard, MasterClose> {
        let flushed = on_disk.filter(|_| self.agreed.contains(Capabilities::DURABLE));
        let cursor = match &self.phase {
            Phase::Fresh | Phase::Asked => return Err(MasterClose::ReportTooEarly { offset }),
            Phase::Answered => {
                let start = self.start_of(offset, log.bounds)?;
                self.phase = Phase::Transfer(TransferCursor::at(start));
                self.ack = Some(offset);
                self.flushed = on_disk;
                return Ok(Heard::Started { offset, flushed });
            }
            Phase::Transfer(cursor) => cursor,
        };
        let sent = cursor.next().min(log.bounds.end);
        if offset > sent {
            return Err(MasterClose::AckNotSent { offset, sent });
        }
        match self.ack {
            Some(before) if offset < before => Err(MasterClose::AckFell { offset, before }),
            _ => {
                self.ack = Some(offset);
                self.flushed = on_disk.or(self.flushed);
                Ok(Heard::Acked { offset, flushed })
            }
        }
    }

    /// Where frames begin for a slave whose log ends at `offset`.
    fn start_of(&self, offset: Offset, bounds: LogBounds) -> Result<Offset, MasterClose> {
        let LogBounds { min, end, .. } = bounds;
        if offset == 0 {
            let from_last = self
                .handshake
                .as_ref()
                .is_some_and(|h| h.sync_from_last_file);
            return Ok(if from_last {
                bounds.segment_start(end).max(min)
            } else {
                min
            });
        }
        if offset > end {
            return Err(MasterClose::StartsPastEnd { offset, end });
        }
        if offset < min {
            return Err(MasterClose::StartsBelowMin { offset, min });
        }
        Ok(offset)
    }

    /// When the slave was last level with the log, if that has become known or newer: to be asked
    /// after each report and now and then.
    pub fn level_at(&mut self, end: Offset, now_ms: u64) -> Option<u64> {
        let at = self.find_level(end, now_ms)?;
        self.level_ms = Some(at);
        Some(at)
    }

    /// When the slave was last known to be level with the log.
    pub fn level_ms(&self) -> Option<u64> {
        self.level_ms
    }

    fn find_level(&mut self, end: Offset, now_ms: u64) -> Option<u64> {
        let ack = self.ack?;
        if !matches!(self.phase, Phase::Transfer(_)) {
            return None;
        }
        if ack >= end {
            self.probe = None;
            return Some(now_ms);
        }
        match self.probe {
            Some((reached, _)) if ack < reached => None,
            Some((_, at)) => {
                self.probe = Some((end, now_ms));
                Some(at)
            }
            None => {
                self.probe = Some((end, now_ms));
                None
            }
        }
    }

    /// The transport has taken the last send whole.
    pub fn sent(&mut self) {
        self.in_flight = false;
    }

    /// Whether the connection has to end for want of time.
    ///
    /// # Errors
    /// [`MasterClose`] if so.
    pub fn tick(&self, now_ms: u64) -> Result<(), MasterClose> {
        let silent_ms = now_ms.saturating_sub(self.heard_ms);
        if silent_ms > self.config.housekeeping_interval_ms {
            return Err(MasterClose::Silent { silent_ms });
        }
        let waited_ms = now_ms.saturating_sub(self.opened_ms);
        match self.phase {
            Phase::Asked if waited_ms > self.config.handshake_wait_ms => {
                Err(MasterClose::NotMaster { waited_ms })
            }
            Phase::Fresh if waited_ms > self.config.handshake_wait_ms => {
                Err(MasterClose::NoHandshake { waited_ms })
            }
            _ => Ok(()),
        }
    }

    /// What to send now, if the last send is done and something is due. The caller sends it.
    ///
    /// # Errors
    /// [`MasterClose`] when the position is no longer inside the log, or the epoch table is longer
    /// than a frame can be.
    pub fn next_send(
        &mut self,
        log: &MasterLog<'_>,
        now_ms: u64,
    ) -> Result<Option<MasterSend>, MasterClose> {
        if self.in_flight || log.serving.is_none() {
            return Ok(None);
        }
        let send = match &mut self.phase {
            Phase::Fresh | Phase::Answered => None,
            Phase::Asked => {
                let (bytes, agreed) = answer(&self.config, self.handshake.as_ref(), log)?;
                self.agreed = agreed;
                self.phase = Phase::Answered;
                Some(MasterSend::Handshake(bytes))
            }
            Phase::Transfer(cursor) => {
                let behind = log.bounds.end.saturating_sub(cursor.next());
                self.batch_size =
                    next_batch_size(&self.config, self.agreed, self.batch_size, behind);
                // A slave of ours that takes bytes and does not ack them gets no more of them. Java's
                // slave is held by the socket alone: heartbeats without bytes would mean something else
                // to a slave that does not know of the limit.
                let unacked = cursor.next().saturating_sub(self.ack.unwrap_or(0));
                let held =
                    self.agreed != Capabilities::NONE && unacked >= self.config.max_unacked_bytes;
                let batch = cursor.batch(log.epochs, log.bounds, self.batch_size)?;
                match batch.filter(|_| !held) {
                    Some(batch) => {
                        cursor.advance(&batch);
                        let head = header(batch.offset, batch.len, batch.epoch, log.confirm);
                        Some(MasterSend::Transfer(head, batch))
                    }
                    None if now_ms - self.sent_ms.min(now_ms)
                        >= self.config.heartbeat_interval_ms =>
                    {
                        let epoch = cursor.label(log.epochs)?;
                        let head = header(cursor.next(), 0, epoch, log.confirm);
                        Some(MasterSend::Heartbeat(head))
                    }
                    None => None,
                }
            }
        };
        if send.is_some() {
            self.in_flight = true;
            self.sent_ms = now_ms;
        }
        Ok(send)
    }

    /// When [`MasterConnection::next_send`] or [`MasterConnection::tick`] is due next if nothing
    /// happens meanwhile.
    pub fn next_due_ms(&self) -> u64 {
        let silent = self.heard_ms + self.config.housekeeping_interval_ms + 1;
        let other = match self.phase {
            Phase::Fresh | Phase::Asked => self.opened_ms + self.config.handshake_wait_ms + 1,
            Phase::Transfer(_) if !self.in_flight => {
                self.sent_ms + self.config.heartbeat_interval_ms
            }
            _ => u64::MAX,
        };
        silent.min(other)
    }
}

/// The answer to a handshake, and what it agrees to.
fn answer(
    config: &MasterConnectionConfig,
    handshake: Option<&SlaveHandshake>,
    log: &MasterLog<'_>,
) -> Result<(Vec<u8>, Capabilities), FrameError> {
    let (end, entries) = (log.bounds.end, log.epochs.entries());
    let asked = handshake.and_then(|handshake| handshake.asks);
    let short = config.answer_form == HandshakeAnswerForm::Short;
    if let (Some(asked), Some(own), Some(role_epoch), true) =
        (asked, config.extension, log.serving, short)
    {
        let extension = Extension {
            capabilities: asked.and(own),
            role_epoch,
            segment_size: log.bounds.segment_size,
            log_id: config.log_id,
        };
        let bytes = HandshakeAnswer::encode_extended(end, entries, &extension)?;
        return Ok((bytes, extension.capabilities));
    }
    let bytes = HandshakeAnswer::encode(end, entries, config.answer_form)?;
    Ok((bytes, Capabilities::NONE))
}

/// How much the next frame may hold: a slave of Java's is given what its buffer is sized for; one of
/// ours twice as much as before while it is further behind than that, and small frames, which are
/// published sooner, once it is nearly level.
fn next_batch_size(
    config: &MasterConnectionConfig,
    agreed: Capabilities,
    before: u32,
    behind: u64,
) -> u32 {
    let least = config.transfer_batch_size.clamp(1, MAX_BODY_LEN);
    let limit = match agreed {
        agreed if agreed == Capabilities::NONE => return least,
        agreed if agreed.contains(Capabilities::LARGE_BODIES) => MAX_EXTENDED_BODY_LEN,
        _ => MAX_BODY_LEN,
    };
    let most = config.extended_batch_size.clamp(least, limit.max(least));
    if behind > 2 * u64::from(before) {
        before.saturating_mul(2).clamp(least, most)
    } else if behind < u64::from(before / 2) {
        (before / 2).clamp(least, most)
    } else {
        before.clamp(least, most)
    }
}

fn header(
    offset: Offset,
    body_len: u32,
    epoch: epochlog_engine::EpochEntry,
    confirm: Offset,
) -> TransferHeader {
    TransferHeader {
        body_len,
        offset: Some(offset),
        epoch: epoch.epoch,
        epoch_start: epoch.start,
        confirm: Some(confirm),
    }
}

#[cfg(test)]
mod tests;
