//! The wire of RocketMQ's controller-mode replication (AutoSwitchHA), as values and as bytes.
//!
//! Every number is big-endian. Nothing on the stream says how long a frame is before its state word
//! is known, so each decoder checks the state word as soon as its four bytes are there, each length
//! before anything is reserved for it, and every other field before the frame is handed out. A body
//! never passes through a decoder: the header says how many bytes follow, and whoever drives the
//! decoder takes them off the stream itself, straight into the log.
//!
//! What is spoken is the form of RocketMQ 5.1.1 and later. Two older forms are options: the address
//! handshake of 5.0.0 and 5.1.0, and the 36-byte handshake answer of 5.0.0.
//!
//! Between peers of our own there is more: see `frame/extension.rs`. Java never sees it.

mod extension;
mod from_master;
mod from_slave;

pub use extension::{Capabilities, Extension, FrameChecksum, LogId};
pub use from_master::{
    FrameFromMaster, HandshakeAnswer, HandshakeAnswerForm, MasterFrameDecoder, TransferHeader,
};
pub use from_slave::{FrameFromSlave, SlaveFrameDecoder, SlaveHandshake, SlaveIdentity};

use epochlog_engine::{Epoch, MAX_EPOCH, MAX_OFFSET, Offset};

/// Bytes of a transfer header, either kind of body. RocketMQ: `AutoSwitchHAConnection`.
pub const TRANSFER_HEADER_LEN: usize = 36;
/// Bytes of the slave's handshake from 5.1.1 on. RocketMQ: `AutoSwitchHAClient`.
pub const SLAVE_HANDSHAKE_LEN: usize = 16;
/// The same with its checksum, between peers of our own.
pub const CHECKED_HEADER_LEN: usize = TRANSFER_HEADER_LEN + 4;
/// Bytes of the slave's report.
pub const REPORT_LEN: usize = 12;
/// Bytes of a report of both offsets, between peers of our own.
pub const BOTH_OFFSETS_REPORT_LEN: usize = 24;
/// What a Java slave can take in: header and body of one frame must fit into its read buffer.
pub const JAVA_SLAVE_BUFFER_LEN: usize = 4 << 20;
/// The largest body that may follow a transfer header.
pub const MAX_BODY_LEN: u32 = (4 << 20) - 36;
/// The same between peers of our own that have agreed on it.
pub const MAX_EXTENDED_BODY_LEN: u32 = 16 << 20;
/// Bytes of one epoch entry in the handshake answer.
const ENTRY_LEN: usize = 12;
/// The longest address a 5.0/5.1.0 slave sends: its own buffer has room for 50 bytes.
pub(crate) const MAX_ADDRESS_LEN: u32 = 50;

const STATE_HANDSHAKE: u32 = 1;
const STATE_TRANSFER: u32 = 2;

const _: () = assert!(MAX_BODY_LEN as usize + TRANSFER_HEADER_LEN == JAVA_SLAVE_BUFFER_LEN);

/// Why bytes of a peer are no frame. Each of them ends the connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// The state word is not one that may come now.
    #[error("state word {word} where {expected} was due; is the peer a RocketMQ HA port?")]
    State {
        /// The four bytes read.
        word: u32,
        /// What may come: `1`, `2`, or both.
        expected: &'static str,
    },
    /// A body or a table longer than any peer sends.
    #[error("{what} of {len} bytes, the limit is {limit}")]
    TooLong {
        /// Which length.
        what: &'static str,
        /// As read, sign and all.
        len: i32,
        /// The largest accepted.
        limit: u32,
    },
    /// A handshake answer whose body is not a whole number of epoch entries.
    #[error("epoch table of {len} bytes is not a multiple of 12")]
    TableLen {
        /// Bytes announced.
        len: u32,
    },
    /// A field with a value the protocol does not know.
    #[error("{what} is {value}, which the protocol does not allow")]
    Field {
        /// Which field.
        what: &'static str,
        /// As read, sign and all.
        value: i64,
    },
    /// The epochs of a table do not ascend, or their starts descend.
    #[error("epoch table does not ascend at entry {index} (epoch {epoch} start {start})")]
    TableOrder {
        /// Which entry, from 0.
        index: usize,
        /// Its epoch.
        epoch: Epoch,
        /// Its start.
        start: Offset,
    },
    /// The bytes are not what the peer sent: something on the way, or in memory, has changed them.
    #[error("checksum of a {what}: {told:#010x} was sent, the bytes have {own:#010x}")]
    Checksum {
        /// Which frame.
        what: &'static str,
        /// As the peer sent it.
        told: u32,
        /// Of the bytes that came.
        own: u32,
    },
    /// The address of an old slave's handshake is no text.
    #[error("address of the slave's handshake is not UTF-8")]
    AddressText,
}

/// What a decoder made of the bytes it was given.
#[derive(Debug, PartialEq, Eq)]
pub struct Decoded<F> {
    /// Bytes used; the rest was not looked at.
    pub consumed: usize,
    /// The frame, once its last byte (of the header, for a transfer frame) is there.
    pub frame: Option<F>,
}

fn be_u32(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_be_bytes(word)
}

fn be_i32(bytes: &[u8], at: usize) -> i32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    i32::from_be_bytes(word)
}

fn be_u16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn be_i64(bytes: &[u8], at: usize) -> i64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    i64::from_be_bytes(word)
}

fn offset_at(bytes: &[u8], at: usize, what: &'static str) -> Result<Offset, FrameError> {
    let value = be_i64(bytes, at);
    Offset::try_from(value).map_err(|_| FrameError::Field { what, value })
}

/// As [`offset_at`], with -1 for "none", which Java sends while a log is empty.
fn offset_or_none(
    bytes: &[u8],
    at: usize,
    what: &'static str,
) -> Result<Option<Offset>, FrameError> {
    match be_i64(bytes, at) {
        -1 => Ok(None),
        _ => offset_at(bytes, at, what).map(Some),
    }
}

fn epoch_at(bytes: &[u8], at: usize, what: &'static str) -> Result<Epoch, FrameError> {
    let value = be_i32(bytes, at);
    Epoch::try_from(value).map_err(|_| FrameError::Field {
        what,
        value: i64::from(value),
    })
}

fn put_offset(bytes: &mut [u8], at: usize, offset: Offset) {
    debug_assert!(
        offset <= MAX_OFFSET,
        "an offset fits into Java's signed 64 bits"
    );
    bytes[at..at + 8].copy_from_slice(&offset.to_be_bytes());
}

fn put_offset_or_none(bytes: &mut [u8], at: usize, offset: Option<Offset>) {
    match offset {
        Some(offset) => put_offset(bytes, at, offset),
        None => bytes[at..at + 8].copy_from_slice(&(-1i64).to_be_bytes()),
    }
}

fn put_epoch(bytes: &mut [u8], at: usize, epoch: Epoch) {
    debug_assert!(
        epoch <= MAX_EPOCH,
        "an epoch fits into Java's signed 32 bits"
    );
    bytes[at..at + 4].copy_from_slice(&epoch.to_be_bytes());
}

/// Moves bytes from the stream into `held` until it has `until` of them; returns how many it took.
fn take(held: &mut Vec<u8>, bytes: &[u8], until: usize) -> usize {
    let n = until.saturating_sub(held.len()).min(bytes.len());
    held.extend_from_slice(&bytes[..n]);
    n
}

#[cfg(test)]
mod tests;
