//! What two peers of ours say to each other beyond RocketMQ's frames, and where they say it.
//!
//! A slave asks in a flag of its handshake that is off: `0xEC00` + capabilities, which Java takes for
//! off as well. A master that knows the extension, and was asked, answers `0x80EC0000` + the
//! capabilities both have where Java writes its last epoch, which a Java slave does not use, and puts
//! a block behind the epoch table. Nobody who did not ask ever receives either.

use std::fmt;

use epochlog_engine::Epoch;

use super::{FrameError, be_u32, put_epoch};

/// High byte of a flag that carries capabilities instead of 0 or 1.
const FLAG: u16 = 0xEC00;
/// High bits of the answer's last-epoch word, when the extension was agreed on.
const ANSWER: u32 = 0x80EC_0000;
/// Bytes of the block behind its length word.
const BLOCK_LEN: usize = 4 + 8 + 16 + 4;
/// The longest block accepted: a later version may say more.
const MAX_BLOCK_LEN: i32 = 256;
/// Bytes of the length word of the block.
pub(super) const BLOCK_PREFIX_LEN: usize = 4;

/// What a peer can do beyond RocketMQ's frames; a set of bits.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Capabilities(u8);

impl Capabilities {
    /// Nothing.
    pub const NONE: Self = Self(0);
    /// Bit 0: transfer headers of 40 bytes, with a CRC-32C over header and body.
    pub const CHECKSUM: Self = Self(1);
    /// Bit 1: reports of 24 bytes, with published and flushed offset and a CRC-32C.
    pub const BOTH_OFFSETS: Self = Self(1 << 1);
    /// Bit 2: bodies of up to [`super::MAX_EXTENDED_BODY_LEN`].
    pub const LARGE_BODIES: Self = Self(1 << 2);
    /// Bit 3: the slave syncs what it receives at once, and a write that is to be on disk waits for
    /// its flushed offset.
    pub const DURABLE: Self = Self(1 << 3);
    /// Everything known to this version.
    pub const ALL: Self = Self(0b1111);

    /// Whether all of `other` is in it.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// What is in both.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// What is in either.
    #[must_use]
    pub const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Without `other`.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// The flag of a slave's handshake that asks for these.
    pub(super) fn to_flag(self) -> u16 {
        FLAG | u16::from(self.0)
    }

    /// The capabilities in a flag, if it carries some; bits of later versions are left out.
    pub(super) fn from_flag(flag: u16) -> Option<Self> {
        let bits = u8::try_from(flag ^ FLAG).ok()?;
        Some(Self(bits).and(Self::ALL))
    }

    /// The answer's last-epoch word.
    pub(super) fn to_answer(self) -> u32 {
        ANSWER | u32::from(self.0)
    }

    pub(super) fn from_answer(word: u32) -> Option<Self> {
        let bits = u8::try_from(word ^ ANSWER).ok()?;
        Some(Self(bits).and(Self::ALL))
    }
}

impl fmt::Debug for Capabilities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Capabilities({:#06b})", self.0)
    }
}

/// Names the log of one broker set, so that a slave is not pointed at another's; all zero: not told.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct LogId(pub [u8; 16]);

impl LogId {
    /// Not told.
    pub const UNKNOWN: Self = Self([0; 16]);

    /// Whether both are told and are not the same.
    pub fn contradicts(self, other: Self) -> bool {
        self != Self::UNKNOWN && other != Self::UNKNOWN && self != other
    }
}

impl fmt::Display for LogId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for LogId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LogId({self})")
    }
}

/// What a master says in the answer to a handshake that asked for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extension {
    /// What both can do, and from now on do.
    pub capabilities: Capabilities,
    /// The epoch the master serves.
    pub role_epoch: Epoch,
    /// Bytes of its segments.
    pub segment_size: u64,
    /// Its log.
    pub log_id: LogId,
}

impl Extension {
    /// Appends the block to an answer whose last-epoch word is written; its checksum covers all of it.
    pub(super) fn append_to(&self, answer: &mut Vec<u8>) {
        #[expect(clippy::cast_possible_truncation, reason = "32")]
        answer.extend_from_slice(&(BLOCK_LEN as u32).to_be_bytes());
        let mut epoch = [0; 4];
        put_epoch(&mut epoch, 0, self.role_epoch);
        answer.extend_from_slice(&epoch);
        answer.extend_from_slice(&self.segment_size.to_be_bytes());
        answer.extend_from_slice(&self.log_id.0);
        answer.extend_from_slice(&crc32c::crc32c(answer).to_be_bytes());
    }

    /// Bytes of the block whose length word is at `at`, the word included.
    pub(super) fn block_len(answer: &[u8], at: usize) -> Result<usize, FrameError> {
        let len = super::be_i32(answer, at);
        match usize::try_from(len) {
            Ok(n) if n >= BLOCK_LEN && len <= MAX_BLOCK_LEN => Ok(BLOCK_PREFIX_LEN + n),
            _ => Err(FrameError::TooLong {
                what: "extension block of the handshake",
                len,
                limit: MAX_BLOCK_LEN.unsigned_abs(),
            }),
        }
    }

    /// Reads the block at `at` to the end of the answer.
    pub(super) fn decode(
        answer: &[u8],
        at: usize,
        capabilities: Capabilities,
    ) -> Result<Self, FrameError> {
        let end = answer.len() - 4;
        checked(
            "handshake answer",
            be_u32(answer, end),
            crc32c::crc32c(&answer[..end]),
        )?;
        let at = at + BLOCK_PREFIX_LEN;
        let size = super::be_i64(answer, at + 4);
        let segment_size = u64::try_from(size).ok().filter(|size| *size > 0);
        let segment_size = segment_size.ok_or(FrameError::Field {
            what: "master's segment size",
            value: size,
        })?;
        let mut log_id = LogId::UNKNOWN;
        log_id.0.copy_from_slice(&answer[at + 12..at + 28]);
        Ok(Self {
            capabilities,
            role_epoch: super::epoch_at(answer, at, "master's role epoch")?,
            segment_size,
            log_id,
        })
    }
}

/// The checksum of one transfer frame, as far as its bytes have come in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameChecksum {
    told: u32,
    so_far: u32,
    /// Bytes of body still to come.
    left: u32,
}

impl FrameChecksum {
    pub(super) fn of_header(header: &[u8], told: u32, body_len: u32) -> Self {
        Self {
            told,
            so_far: crc32c::crc32c(header),
            left: body_len,
        }
    }

    /// The next bytes of the body.
    pub fn add(&mut self, bytes: &[u8]) {
        self.so_far = checksum_on(self.so_far, bytes);
        self.left = self
            .left
            .saturating_sub(u32::try_from(bytes.len()).unwrap_or(u32::MAX));
    }

    /// Bytes of the body still to be added.
    pub fn left(&self) -> u32 {
        self.left
    }

    /// Whether all of the frame is there and as it was sent.
    ///
    /// # Errors
    /// [`FrameError::Checksum`] once every byte is there and they are not what was sent.
    pub fn check(&self) -> Result<(), FrameError> {
        if self.left > 0 {
            return Ok(());
        }
        checked("transfer frame", self.told, self.so_far)
    }
}

/// Bytes summed in one go. Over many KiB the library reads three places far apart at once, which the processor
/// does not read ahead of: bytes that come from memory take 1.7 times as long then.
const SUMMED_AT_ONCE: usize = 4 << 10;

/// The CRC-32C of what gave `crc` and these bytes behind it.
pub(super) fn checksum_on(crc: u32, bytes: &[u8]) -> u32 {
    let pieces = bytes.chunks(SUMMED_AT_ONCE);
    pieces.fold(crc, crc32c::crc32c_append)
}

pub(super) fn checked(what: &'static str, told: u32, own: u32) -> Result<(), FrameError> {
    if told == own {
        return Ok(());
    }
    Err(FrameError::Checksum { what, told, own })
}

#[cfg(test)]
mod tests;
