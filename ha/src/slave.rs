//! The slave's side of its one connection: what came in, and what to do next, in order.
//!
//! States: READY (no connection), HANDSHAKE (asked, then deciding and cutting), TRANSFER. The loop
//! around it carries out the actions one by one and tells the outcome of those that have one.
//!
//! Invariants:
//! - The handshake goes out once per connection, whole.
//! - An epoch entry is made durable before the first byte of that epoch is received. An entry that
//!   starts past the received end is kept aside until the log gets there.
//! - Bytes below the consistent point are compared with the own log before the point is acked, and
//!   never written.
//! - A report says the published end (or in durable mode the flushed one), never more.
//! - Anything unexpected ends the connection; nothing is skipped.
//! - Pauses between attempts grow until one brings the log further or lasts: a master that sends what
//!   this log cannot take is not asked again and again without a pause.
//!
//! Pure: time and randomness are arguments. RocketMQ: `AutoSwitchHAClient`.

mod action;
mod close;
mod lookback;
mod transfer;

pub use action::SlaveAction;
pub use close::SlaveClose;
pub use lookback::Lookback;

use std::collections::VecDeque;
use std::mem::take;

use epochlog_engine::{EpochEntry, Offset};

use crate::frame::{
    FrameError, FrameFromMaster, HandshakeAnswer, LogId, SlaveHandshake, TransferHeader,
};
use crate::handshake::Refusal;
use transfer::Transfer;

/// Times and identity of a slave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlaveConnectionConfig {
    /// What the slave says of itself.
    pub handshake: SlaveHandshake,
    /// This log, if it has a name.
    pub log_id: LogId,
    /// Bytes of a segment; the master's must be the same.
    pub segment_size: u64,
    /// A report goes out at least so often. RocketMQ: `haSendHeartbeatInterval`.
    pub heartbeat_interval_ms: u64,
    /// A master that says nothing for longer is left. RocketMQ: `haHousekeepingInterval`.
    pub housekeeping_interval_ms: u64,
    /// First pause before a new attempt; doubles up to `reconnect_max_ms`.
    pub reconnect_min_ms: u64,
    /// Longest pause before a new attempt, and the pause after a refusal.
    pub reconnect_max_ms: u64,
    /// Report what is on disk instead of what is published.
    pub report_flushed: bool,
}

/// What deciding ended in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Joined {
    /// The end of the log, published and received, after any cut.
    pub end: Offset,
    /// Whether the log holds nothing.
    pub is_empty: bool,
    /// The last entry of the list as it is now.
    pub last_epoch: Option<EpochEntry>,
    /// Where the overlap check begins; none skips it. Never 0, which a master reads as "new
    /// replica", unless the whole log is compared.
    pub overlap_from: Option<Offset>,
    /// The overlap check can go no further back: the start of the last record before the common
    /// epoch, or the log's first offset if there is none.
    pub overlap_floor: Offset,
}

#[derive(Debug)]
enum State {
    /// No connection until then.
    Ready {
        retry_ms: u64,
    },
    Connecting,
    Handshake,
    /// The answer is there; the loop decides and cuts.
    Deciding {
        answer: HandshakeAnswer,
    },
    Transfer(Transfer),
    /// A close was handed out and is being carried out.
    Closing {
        operator: bool,
    },
}

/// The machine of the slave's connection, over all its attempts.
#[derive(Debug)]
pub struct SlaveConnection {
    config: SlaveConnectionConfig,
    state: State,
    actions: VecDeque<SlaveAction>,
    lookback: Lookback,
    attempts: u32,
    /// The furthest published end that any attempt came to: coming further is success.
    furthest: Offset,
    /// Since when the present connection is in TRANSFER.
    joined_ms: u64,
    heard_ms: u64,
    sent_ms: u64,
}

impl SlaveConnection {
    /// A slave that may connect at once.
    pub fn new(config: SlaveConnectionConfig, now_ms: u64) -> Self {
        Self {
            config,
            state: State::Ready { retry_ms: now_ms },
            actions: VecDeque::with_capacity(8),
            lookback: Lookback::LastRecord,
            attempts: 0,
            furthest: 0,
            joined_ms: now_ms,
            heard_ms: now_ms,
            sent_ms: now_ms,
        }
    }

    /// RocketMQ's name of the state.
    pub fn state_name(&self) -> &'static str {
        match self.state {
            State::Ready { .. } | State::Connecting | State::Closing { .. } => "READY",
            State::Handshake | State::Deciding { .. } => "HANDSHAKE",
            State::Transfer(_) => "TRANSFER",
        }
    }

    /// Whether the next action is to end the connection, whatever is under way on it.
    pub fn must_close(&self) -> bool {
        matches!(self.actions.front(), Some(SlaveAction::Close(_)))
    }

    /// Whether the next bytes of the stream are a frame's header.
    pub fn wants_frames(&self) -> bool {
        self.actions.is_empty() && matches!(self.state, State::Handshake | State::Transfer(_))
    }

    /// The newest report of this connection.
    pub fn reported(&self) -> Option<Offset> {
        match &self.state {
            State::Transfer(transfer) => transfer.reported,
            _ => None,
        }
    }

    /// The next action, after those handed out before have been carried out.
    pub fn next_action(&mut self, now_ms: u64) -> Option<SlaveAction> {
        // What follows a close waits until the connection is over.
        let closing = matches!(self.state, State::Closing { .. });
        let waits = closing && !matches!(self.actions.front(), Some(SlaveAction::Close(_)));
        if !waits && let Some(action) = self.actions.pop_front() {
            return Some(action);
        }
        if let State::Ready { retry_ms } = self.state
            && now_ms >= retry_ms
        {
            self.state = State::Connecting;
            // What was heard on the connection before says nothing of this one.
            self.heard_ms = now_ms;
            return Some(SlaveAction::Connect);
        }
        None
    }

    /// When [`SlaveConnection::tick`] or a new attempt is due if nothing happens meanwhile.
    pub fn next_due_ms(&self) -> u64 {
        let silent = self.heard_ms + self.config.housekeeping_interval_ms + 1;
        match self.state {
            State::Ready { retry_ms } => retry_ms,
            State::Connecting | State::Handshake => silent,
            State::Deciding { .. } | State::Closing { .. } => u64::MAX,
            State::Transfer(_) => silent.min(self.sent_ms + self.config.heartbeat_interval_ms),
        }
    }

    /// The connection is up.
    pub fn connected(&mut self, now_ms: u64) {
        self.state = State::Handshake;
        self.heard_ms = now_ms;
        self.sent_ms = now_ms;
        self.actions.clear();
        self.actions.push_back(SlaveAction::SendHandshake);
    }

    /// The connection (or the attempt at one) is over and every byte of it that was not published
    /// is erased. `jitter` is any random number: it spreads the attempts of many slaves.
    pub fn closed(&mut self, now_ms: u64, jitter: u64) {
        let operator = matches!(self.state, State::Closing { operator: true });
        self.actions
            .retain(|action| matches!(action, SlaveAction::Cut(_)));
        let (min, max) = (
            self.config.reconnect_min_ms.max(1),
            self.config.reconnect_max_ms,
        );
        let doubled = min
            .saturating_mul(1 << self.attempts.min(20))
            .min(max.max(1));
        let pause = if operator { max.max(1) } else { doubled };
        self.attempts = self.attempts.saturating_add(1);
        // Half of the pause is fixed, the other half at random.
        let pause = pause / 2 + jitter % (pause / 2 + 1);
        self.state = State::Ready {
            retry_ms: now_ms + pause,
        };
    }

    /// Connect at once: the master's address, or its being master, is news.
    pub fn hurry(&mut self, now_ms: u64) {
        self.attempts = 0;
        if let State::Ready { retry_ms } = &mut self.state {
            *retry_ms = now_ms;
        }
    }

    /// Bytes came in, whole frame or not.
    pub fn heard(&mut self, now_ms: u64) {
        self.heard_ms = now_ms;
    }

    /// A frame (without its body) came in.
    pub fn frame(&mut self, frame: FrameFromMaster) {
        match (frame, &mut self.state) {
            (FrameFromMaster::Handshake(answer), State::Handshake) => {
                if let Err(refusal) = self.check(&answer) {
                    return self.close(refusal.into());
                }
                self.state = State::Deciding {
                    answer: answer.clone(),
                };
                let lookback = self.lookback;
                self.actions
                    .push_back(SlaveAction::Decide { answer, lookback });
            }
            (FrameFromMaster::Transfer(header), State::Transfer(_)) => self.on_transfer(&header),
            // The decoder lets no other frame through in order; this one came out of it.
            (FrameFromMaster::Handshake(_), _) => {
                self.close(
                    FrameError::State {
                        word: 1,
                        expected: "2 (transfer)",
                    }
                    .into(),
                );
            }
            (FrameFromMaster::Transfer(_), _) => {
                self.close(
                    FrameError::State {
                        word: 2,
                        expected: "1 (handshake)",
                    }
                    .into(),
                );
            }
        }
    }

    /// What a master of ours tells of its log must fit this one.
    fn check(&self, answer: &HandshakeAnswer) -> Result<(), Refusal> {
        let Some(told) = answer.extension else {
            return Ok(());
        };
        if self.config.log_id.contradicts(told.log_id) {
            return Err(Refusal::OtherLog {
                own: self.config.log_id,
                master: told.log_id,
            });
        }
        if told.segment_size != self.config.segment_size {
            return Err(Refusal::SegmentSize {
                own: self.config.segment_size,
                master: told.segment_size,
            });
        }
        Ok(())
    }

    /// Whether reports tell both offsets on this connection.
    pub fn reports_both(&self) -> bool {
        matches!(&self.state, State::Transfer(transfer) if transfer.reports_both())
    }

    fn on_transfer(&mut self, header: &TransferHeader) {
        let State::Transfer(transfer) = &mut self.state else {
            return;
        };
        if let Err(reason) = transfer.frame(header, self.config.segment_size, &mut self.actions) {
            self.close(reason);
        }
    }

    /// The log is cut, the list durable. The first report goes out at once.
    pub fn decided(&mut self, joined: Joined, now_ms: u64) {
        let State::Deciding { answer } = &mut self.state else {
            return;
        };
        let answer = HandshakeAnswer {
            end: answer.end,
            entries: take(&mut answer.entries),
            extension: answer.extension,
        };
        let mut transfer = Transfer::new(joined, answer);
        transfer.first_report(&mut self.actions);
        self.sent_ms = now_ms;
        self.joined_ms = now_ms;
        self.furthest = self.furthest.max(joined.end);
        self.state = State::Transfer(transfer);
    }

    /// The bytes of a [`SlaveAction::Compare`] equal the own log's.
    pub fn compared(&mut self, now_ms: u64) {
        let State::Transfer(transfer) = &mut self.state else {
            return;
        };
        match transfer.compared(&mut self.actions) {
            Ok(false) => (),
            Ok(true) => {
                self.lookback = Lookback::LastRecord;
                self.sent_ms = now_ms;
            }
            Err(reason) => self.close(reason),
        }
    }

    /// They differ, first inside the record that starts at `record`; none when that is the first
    /// one compared, so that an earlier one may differ too.
    pub fn differs(&mut self, record: Option<Offset>) {
        let State::Transfer(transfer) = &self.state else {
            return;
        };
        let (point, from) = (transfer.point(), transfer.overlap_from());
        match (record, self.lookback.further()) {
            (Some(at), _) => {
                self.lookback = Lookback::LastRecord;
                self.close(SlaveClose::Differs { point, record });
                self.actions.push_back(SlaveAction::Cut(at));
            }
            (None, Some(further)) if from > transfer.overlap_floor() => {
                self.lookback = further;
                self.close(SlaveClose::Differs { point, record });
            }
            (None, _) => {
                self.lookback = Lookback::LastRecord;
                self.close(SlaveClose::DiffersThroughout { from });
            }
        }
    }

    /// A body is in the log, whole records of it published up to `published_end`.
    pub fn received(&mut self, published_end: Offset, now_ms: u64) {
        let State::Transfer(transfer) = &mut self.state else {
            return;
        };
        if published_end > self.furthest {
            self.furthest = published_end;
            self.attempts = 0;
        }
        // One offset can only be the one that counts.
        let report = !self.config.report_flushed || transfer.reports_both();
        match transfer.received(published_end, report, &mut self.actions) {
            Ok(reported) => {
                if reported {
                    self.sent_ms = now_ms;
                }
            }
            Err(reason) => self.close(reason),
        }
    }

    /// The log is on disk up to `offset`. Counts in durable mode only.
    pub fn flushed(&mut self, offset: Offset, now_ms: u64) {
        if !self.config.report_flushed {
            return;
        }
        if let State::Transfer(transfer) = &mut self.state
            && transfer.flushed(offset, &mut self.actions)
        {
            self.sent_ms = now_ms;
        }
    }

    /// An action failed, or bytes are no frame: the connection ends.
    pub fn failed(&mut self, reason: SlaveClose) {
        self.close(reason);
    }

    /// Time has passed: repeats the report, or gives the master up.
    pub fn tick(&mut self, now_ms: u64) {
        let silent_ms = now_ms.saturating_sub(self.heard_ms);
        let waits = matches!(
            self.state,
            State::Connecting | State::Handshake | State::Transfer(_)
        );
        if waits && silent_ms > self.config.housekeeping_interval_ms {
            self.close(SlaveClose::Silent { silent_ms });
            return;
        }
        if matches!(self.state, State::Transfer(_))
            && now_ms.saturating_sub(self.joined_ms) >= self.config.reconnect_max_ms
        {
            // It lasts: the next one begins with the shortest pause, however many failed before.
            self.attempts = 0;
        }
        if let State::Transfer(transfer) = &self.state
            && now_ms.saturating_sub(self.sent_ms) >= self.config.heartbeat_interval_ms
            && let Some(reported) = transfer.reported
        {
            self.sent_ms = now_ms;
            self.actions.push_back(SlaveAction::Report(reported));
        }
    }

    fn close(&mut self, reason: SlaveClose) {
        if matches!(self.state, State::Closing { .. } | State::Ready { .. }) {
            return;
        }
        self.state = State::Closing {
            operator: reason.needs_operator(),
        };
        self.actions.clear();
        self.actions.push_back(SlaveAction::Close(reason));
    }
}

#[cfg(test)]
mod attempt_tests;
#[cfg(test)]
mod tests;
