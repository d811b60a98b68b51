//! What the machine asks of the loop around it.

use epochlog_engine::{EpochEntry, Offset};

use super::{Lookback, SlaveClose};
use crate::frame::HandshakeAnswer;

/// What the loop does next. Actions are carried out in the order they are handed out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SlaveAction {
    /// Connect to the master, then tell [`super::SlaveConnection::connected`] or
    /// [`super::SlaveConnection::closed`].
    Connect,
    /// Send the handshake in one piece.
    SendHandshake,
    /// Decide, cut if need be, make the list durable; then tell
    /// [`super::SlaveConnection::decided`] or
    /// [`super::SlaveConnection::failed`]. In durable mode the log is flushed before.
    Decide {
        /// What the master told.
        answer: HandshakeAnswer,
        /// From where the overlap check is to begin.
        lookback: Lookback,
    },
    /// Send a report.
    Report(Offset),
    /// Take `len` bytes of body off the stream and compare them with the own log at `at`; then tell
    /// [`super::SlaveConnection::compared`].
    Compare {
        /// Where in the own log.
        at: Offset,
        /// How many bytes.
        len: u32,
    },
    /// Begin the (empty) log at this offset, under the master's entries up to it.
    StartAt(Offset),
    /// Make an epoch entry durable.
    AdoptEpoch(EpochEntry),
    /// Receive `len` bytes of body into the log at the received end and publish whole records;
    /// then tell [`super::SlaveConnection::received`].
    Receive {
        /// How many bytes.
        len: u32,
    },
    /// Raise the confirm offset, at most to the published end.
    Confirm(Offset),
    /// End the connection; then tell [`super::SlaveConnection::closed`].
    Close(SlaveClose),
    /// Cut the log at the first record that differs from the master's.
    Cut(Offset),
}
