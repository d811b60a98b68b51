//! What a slave sends: one handshake per connection, then reports of how far its log reaches.
//!
//! RocketMQ: `AutoSwitchHAClient` (writer), `AutoSwitchHAConnection` (reader).

use epochlog_engine::{MAX_OFFSET, Offset};

use super::extension::{Capabilities, checked};
use super::{
    BOTH_OFFSETS_REPORT_LEN, Decoded, FrameError, MAX_ADDRESS_LEN, REPORT_LEN, SLAVE_HANDSHAKE_LEN,
    STATE_HANDSHAKE, STATE_TRANSFER, be_i32, be_i64, be_u16, be_u32, offset_at, put_offset, take,
};

/// Bytes of an old handshake before its address.
const ADDRESS_HEADER_LEN: usize = 12;

/// Who a slave says it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SlaveIdentity {
    /// The id the controller gave it (5.1.1 and later). Below 2^63.
    BrokerId(u64),
    /// Its `ip:port`, from a slave of 5.0.0 or 5.1.0.
    Address(String),
}

/// The first frame of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlaveHandshake {
    /// A new replica wants only the master's last file instead of everything (`syncFromLastFile`).
    pub sync_from_last_file: bool,
    /// The replica never wants to join the SyncStateSet (`asyncLearner`).
    pub async_learner: bool,
    /// Who is calling.
    pub identity: SlaveIdentity,
    /// What a slave of ours asks for beyond RocketMQ's frames; none: it does not ask. It travels in a
    /// flag that is off, so a slave with both flags on cannot ask.
    pub asks: Option<Capabilities>,
}

impl SlaveHandshake {
    fn may_ask(&self) -> bool {
        matches!(self.identity, SlaveIdentity::BrokerId(_))
    }

    /// What a master hears of [`SlaveHandshake::asks`].
    pub fn asked(&self) -> Option<Capabilities> {
        self.asks
            .filter(|_| self.may_ask() && !(self.sync_from_last_file && self.async_learner))
    }

    /// The bytes on the wire: 16 for a broker id, 12 and the address for an old slave. They are to
    /// be written in one piece: Java's master takes what is there for the whole.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(SLAVE_HANDSHAKE_LEN);
        out.extend_from_slice(&STATE_HANDSHAKE.to_be_bytes());
        let mut asks = self.asks.filter(|_| self.may_ask());
        for on in [self.sync_from_last_file, self.async_learner] {
            let flag = match (on, asks) {
                (false, Some(capabilities)) => {
                    asks = None;
                    capabilities.to_flag()
                }
                _ => u16::from(on),
            };
            out.extend_from_slice(&flag.to_be_bytes());
        }
        match &self.identity {
            SlaveIdentity::BrokerId(id) => {
                debug_assert!(
                    *id <= MAX_OFFSET,
                    "a broker id fits into Java's signed 64 bits"
                );
                out.extend_from_slice(&id.to_be_bytes());
            }
            SlaveIdentity::Address(address) => {
                let len = u32::try_from(address.len()).unwrap_or(u32::MAX);
                debug_assert!(len <= MAX_ADDRESS_LEN, "an address is at most 50 bytes");
                out.extend_from_slice(&len.to_be_bytes());
                out.extend_from_slice(address.as_bytes());
            }
        }
        out
    }
}

/// A frame of a slave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FrameFromSlave {
    /// The first one.
    Handshake(SlaveHandshake),
    /// How far the slave's log reaches; the first one says where to begin.
    Report(Offset),
    /// The same, with how far it is on disk; between peers of ours that have agreed on it.
    ReportBoth {
        /// How far the slave's log reaches.
        published: Offset,
        /// How far it is on disk; at most `published`.
        flushed: Offset,
    },
}

impl FrameFromSlave {
    /// The bytes of a report.
    pub fn encode_report(offset: Offset) -> [u8; REPORT_LEN] {
        let mut out = [0; REPORT_LEN];
        out[..4].copy_from_slice(&STATE_TRANSFER.to_be_bytes());
        put_offset(&mut out, 4, offset);
        out
    }

    /// The bytes of a report of both offsets.
    pub fn encode_report_of_both(
        published: Offset,
        flushed: Offset,
    ) -> [u8; BOTH_OFFSETS_REPORT_LEN] {
        let mut out = [0; BOTH_OFFSETS_REPORT_LEN];
        out[..4].copy_from_slice(&STATE_TRANSFER.to_be_bytes());
        put_offset(&mut out, 4, published);
        put_offset(&mut out, 12, flushed.min(published));
        let crc = crc32c::crc32c(&out[..20]);
        out[20..].copy_from_slice(&crc.to_be_bytes());
        out
    }
}

/// Takes a slave's frames out of the stream of one connection, however it is cut.
#[derive(Debug)]
pub struct SlaveFrameDecoder {
    accept_address: bool,
    agreed: Capabilities,
    held: Vec<u8>,
}

impl SlaveFrameDecoder {
    /// A decoder at the start of a connection. With `accept_address` a handshake whose second half
    /// begins with a number above 0 is that of a 5.0/5.1.0 slave; broker ids are then limited to
    /// 32 bits, which is how the two are told apart.
    pub fn new(accept_address: bool) -> Self {
        let longest = ADDRESS_HEADER_LEN + MAX_ADDRESS_LEN as usize;
        Self {
            accept_address,
            agreed: Capabilities::NONE,
            held: Vec::with_capacity(longest),
        }
    }

    /// Takes bytes up to the end of one frame. After an error the connection is of no more use.
    pub fn push(&mut self, bytes: &[u8]) -> Result<Decoded<FrameFromSlave>, FrameError> {
        let mut consumed = 0;
        loop {
            let until = self.until()?;
            if self.held.len() == until {
                let frame = self.frame()?;
                self.held.clear();
                return Ok(Decoded {
                    consumed,
                    frame: Some(frame),
                });
            }
            let n = take(&mut self.held, &bytes[consumed..], until);
            if n == 0 {
                return Ok(Decoded {
                    consumed,
                    frame: None,
                });
            }
            consumed += n;
        }
    }

    /// The handshake was answered with these capabilities: reports come in their form from now on.
    pub fn agree(&mut self, agreed: Capabilities) {
        self.agreed = agreed;
    }

    fn report_len(&self) -> usize {
        match self.agreed.contains(Capabilities::BOTH_OFFSETS) {
            true => BOTH_OFFSETS_REPORT_LEN,
            false => REPORT_LEN,
        }
    }

    /// How many bytes to hold before something more is known; equal to what is held when whole.
    fn until(&self) -> Result<usize, FrameError> {
        let held = self.held.as_slice();
        if held.len() < 4 {
            return Ok(4);
        }
        match be_u32(held, 0) {
            STATE_TRANSFER => Ok(self.report_len()),
            STATE_HANDSHAKE if held.len() < ADDRESS_HEADER_LEN => Ok(ADDRESS_HEADER_LEN),
            STATE_HANDSHAKE => match be_i32(held, 8) {
                0 => Ok(SLAVE_HANDSHAKE_LEN),
                _ if !self.accept_address => Ok(SLAVE_HANDSHAKE_LEN),
                len => match u32::try_from(len) {
                    Ok(n) if n <= MAX_ADDRESS_LEN => Ok(ADDRESS_HEADER_LEN + n as usize),
                    _ => Err(FrameError::TooLong {
                        what: "address in the slave's handshake",
                        len,
                        limit: MAX_ADDRESS_LEN,
                    }),
                },
            },
            word => Err(FrameError::State {
                word,
                expected: "1 (handshake) or 2 (report)",
            }),
        }
    }

    fn frame(&self) -> Result<FrameFromSlave, FrameError> {
        let held = self.held.as_slice();
        if be_u32(held, 0) == STATE_TRANSFER {
            return report(held);
        }
        let (sync_from_last_file, first) = flag(held, 4, "isSyncFromLastFile")?;
        let (async_learner, second) = flag(held, 6, "isAsyncLearner")?;
        let identity = if self.accept_address && be_u32(held, 8) != 0 {
            let text = std::str::from_utf8(&held[ADDRESS_HEADER_LEN..]);
            SlaveIdentity::Address(text.map_err(|_| FrameError::AddressText)?.to_owned())
        } else {
            let value = be_i64(held, 8);
            let id = u64::try_from(value).map_err(|_| FrameError::Field {
                what: "slave's broker id",
                value,
            })?;
            SlaveIdentity::BrokerId(id)
        };
        Ok(FrameFromSlave::Handshake(SlaveHandshake {
            sync_from_last_file,
            async_learner,
            identity,
            asks: first.or(second),
        }))
    }
}

fn report(held: &[u8]) -> Result<FrameFromSlave, FrameError> {
    let published = offset_at(held, 4, "reported offset")?;
    if held.len() == REPORT_LEN {
        return Ok(FrameFromSlave::Report(published));
    }
    checked("report", be_u32(held, 20), crc32c::crc32c(&held[..20]))?;
    let flushed = offset_at(held, 12, "reported flushed offset")?;
    if flushed > published {
        return Err(FrameError::Field {
            what: "reported flushed offset past the published one",
            value: be_i64(held, 12),
        });
    }
    Ok(FrameFromSlave::ReportBoth { published, flushed })
}

/// Whether a flag is on, and what it asks for if it is off.
fn flag(
    held: &[u8],
    at: usize,
    what: &'static str,
) -> Result<(bool, Option<Capabilities>), FrameError> {
    match be_u16(held, at) {
        0 => Ok((false, None)),
        1 => Ok((true, None)),
        word => match Capabilities::from_flag(word) {
            Some(asks) => Ok((false, Some(asks))),
            None => Err(FrameError::Field {
                what,
                value: i64::from(word),
            }),
        },
    }
}
