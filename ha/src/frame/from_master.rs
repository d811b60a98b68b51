//! What a master sends: the answer to the handshake with its epoch table, then transfer frames.
//!
//! RocketMQ: `AutoSwitchHAConnection` (writer), `AutoSwitchHAClient` (reader).

use epochlog_engine::{Epoch, EpochEntry, MAX_EPOCH, Offset};

use super::extension::{BLOCK_PREFIX_LEN, Capabilities, Extension, FrameChecksum, checksum_on};
use super::{
    CHECKED_HEADER_LEN, Decoded, ENTRY_LEN, FrameError, JAVA_SLAVE_BUFFER_LEN, MAX_BODY_LEN,
    MAX_EXTENDED_BODY_LEN, STATE_HANDSHAKE, STATE_TRANSFER, TRANSFER_HEADER_LEN, be_i32, be_u32,
    epoch_at, offset_at, offset_or_none, put_epoch, put_offset, put_offset_or_none, take,
};

/// State word and body size: what must be known before a length is trusted.
const PREFIX_LEN: usize = 8;

/// Which header an answer to the handshake has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HandshakeAnswerForm {
    /// 20 bytes: 5.1.0 and later.
    #[default]
    Short,
    /// 36 bytes, with two unused fields: 5.0.0.
    Long,
}

impl HandshakeAnswerForm {
    const fn header_len(self) -> usize {
        match self {
            Self::Short => 20,
            Self::Long => 36,
        }
    }

    /// The most bytes of entries that fit into a Java slave's buffer.
    const fn max_table_len(self) -> usize {
        let room = JAVA_SLAVE_BUFFER_LEN - self.header_len();
        room - room % ENTRY_LEN
    }
}

/// The master's answer: how far its log reaches and which epochs wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandshakeAnswer {
    /// The end of the master's log.
    pub end: Offset,
    /// Its epochs, ascending; starts never descend.
    pub entries: Vec<EpochEntry>,
    /// What a master of ours says if it was asked.
    pub extension: Option<Extension>,
}

impl HandshakeAnswer {
    /// The bytes on the wire to a slave that asked for the extension; always of the short form.
    ///
    /// # Errors
    /// As [`HandshakeAnswer::encode`].
    pub fn encode_extended(
        end: Offset,
        entries: &[EpochEntry],
        extension: &Extension,
    ) -> Result<Vec<u8>, FrameError> {
        let mut out = Self::encode(end, entries, HandshakeAnswerForm::Short)?;
        out[16..20].copy_from_slice(&extension.capabilities.to_answer().to_be_bytes());
        extension.append_to(&mut out);
        Ok(out)
    }

    /// The bytes on the wire.
    ///
    /// # Errors
    /// [`FrameError::TooLong`] when the table does not fit into a slave's buffer (some 349,000
    /// entries): prefix deletion shortens it.
    pub fn encode(
        end: Offset,
        entries: &[EpochEntry],
        form: HandshakeAnswerForm,
    ) -> Result<Vec<u8>, FrameError> {
        let table_len = entries.len().saturating_mul(ENTRY_LEN);
        let len = i32::try_from(table_len).unwrap_or(i32::MAX);
        if table_len > form.max_table_len() {
            return Err(too_long("epoch table", len, form.max_table_len()));
        }
        let header_len = form.header_len();
        let mut out = vec![0; header_len + table_len];
        out[..4].copy_from_slice(&STATE_HANDSHAKE.to_be_bytes());
        out[4..8].copy_from_slice(&len.to_be_bytes());
        put_offset(&mut out, 8, end);
        match entries.last() {
            Some(last) => put_epoch(&mut out, 16, last.epoch),
            None => out[16..20].copy_from_slice(&(-1i32).to_be_bytes()),
        }
        for (entry, to) in entries
            .iter()
            .zip(out[header_len..].chunks_exact_mut(ENTRY_LEN))
        {
            put_epoch(to, 0, entry.epoch);
            put_offset(to, 4, entry.start);
        }
        Ok(out)
    }
}

/// The header of a transfer frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransferHeader {
    /// Bytes of log that follow; 0 is a heartbeat.
    pub body_len: u32,
    /// Where the body belongs, or the master's next position; Java sends none while a log is empty.
    pub offset: Option<Offset>,
    /// The epoch of the body, or of the master's position.
    pub epoch: Epoch,
    /// Where that epoch begins. Java labels the last piece of an epoch with the next one, so this
    /// may lie beyond `offset`.
    pub epoch_start: Offset,
    /// The master's confirm offset; Java sends none before it has one.
    pub confirm: Option<Offset>,
}

impl TransferHeader {
    /// The bytes on the wire.
    pub fn encode(&self) -> [u8; TRANSFER_HEADER_LEN] {
        debug_assert!(
            self.body_len <= MAX_BODY_LEN,
            "a frame fits into a Java slave's buffer"
        );
        let mut out = [0; TRANSFER_HEADER_LEN];
        self.put(&mut out);
        out
    }

    /// The bytes on the wire to a peer that has agreed on [`Capabilities::CHECKSUM`], for a frame
    /// with this body.
    pub fn encode_checked(&self, body: &[u8]) -> [u8; CHECKED_HEADER_LEN] {
        debug_assert_eq!(self.body_len as usize, body.len());
        let mut out = [0; CHECKED_HEADER_LEN];
        self.put(&mut out[..TRANSFER_HEADER_LEN]);
        let crc = checksum_on(crc32c::crc32c(&out[..TRANSFER_HEADER_LEN]), body);
        out[TRANSFER_HEADER_LEN..].copy_from_slice(&crc.to_be_bytes());
        out
    }

    fn put(&self, out: &mut [u8]) {
        out[..4].copy_from_slice(&STATE_TRANSFER.to_be_bytes());
        out[4..8].copy_from_slice(&self.body_len.to_be_bytes());
        put_offset_or_none(out, 8, self.offset);
        put_epoch(out, 16, self.epoch);
        put_offset(out, 20, self.epoch_start);
        put_offset_or_none(out, 28, self.confirm);
    }

    fn decode(held: &[u8]) -> Result<Self, FrameError> {
        let body_len = be_u32(held, 4);
        let offset = offset_or_none(held, 8, "offset of a transfer frame")?;
        if body_len > 0 && offset.is_none() {
            return Err(FrameError::Field {
                what: "offset of a transfer frame",
                value: -1,
            });
        }
        Ok(Self {
            body_len,
            offset,
            epoch: epoch_at(held, 16, "epoch of a transfer frame")?,
            epoch_start: offset_at(held, 20, "epoch start of a transfer frame")?,
            confirm: offset_or_none(held, 28, "confirm offset of a transfer frame")?,
        })
    }
}

/// A frame of a master, without its body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FrameFromMaster {
    /// The answer to the handshake.
    Handshake(HandshakeAnswer),
    /// Log bytes follow, or it is a heartbeat.
    Transfer(TransferHeader),
}

/// Takes a master's frames out of the stream of one connection, however it is cut.
///
/// The first frame is the handshake's answer, every later one a transfer frame; anything else is
/// refused. After a transfer header the caller takes `body_len` bytes off the stream itself, and
/// shows them to [`MasterFrameDecoder::checksum`] if there is one.
#[derive(Debug)]
pub struct MasterFrameDecoder {
    form: HandshakeAnswerForm,
    /// The slave's handshake asked for the extension.
    asked: Capabilities,
    has_asked: bool,
    /// What both have agreed on, once the answer is there.
    agreed: Capabilities,
    checksum: Option<FrameChecksum>,
    transfer: bool,
    held: Vec<u8>,
}

impl MasterFrameDecoder {
    /// A decoder at the start of a connection whose handshake asks for nothing.
    pub fn new(form: HandshakeAnswerForm) -> Self {
        Self {
            form,
            asked: Capabilities::NONE,
            has_asked: false,
            agreed: Capabilities::NONE,
            checksum: None,
            transfer: false,
            held: Vec::with_capacity(CHECKED_HEADER_LEN),
        }
    }

    /// The same, if the handshake asks for the extension and these capabilities.
    #[must_use]
    pub fn asking(mut self, asked: Option<Capabilities>) -> Self {
        self.has_asked = asked.is_some() && self.form == HandshakeAnswerForm::Short;
        self.asked = asked.unwrap_or_default();
        self
    }

    /// What the peers have agreed on.
    pub fn agreed(&self) -> Capabilities {
        self.agreed
    }

    /// The checksum of the transfer frame whose header came last; none if the peers have not agreed
    /// on one. To be fed with the body before anything of it is used.
    pub fn checksum(&self) -> Option<FrameChecksum> {
        self.checksum
    }

    /// How many bytes are missing before something more is known; never 0. Reading exactly so many
    /// never takes a byte of a body.
    pub fn wanted(&self) -> usize {
        let least = if self.transfer {
            self.transfer_len()
        } else {
            self.form.header_len()
        };
        // An illegal frame was refused by the push that brought it.
        let until = self.until().unwrap_or(least);
        until.max(least) - self.held.len()
    }

    /// Takes bytes up to the end of one frame's header (and table). After an error the connection
    /// is of no more use.
    pub fn push(&mut self, bytes: &[u8]) -> Result<Decoded<FrameFromMaster>, FrameError> {
        let mut consumed = 0;
        loop {
            let until = self.until()?;
            if self.held.len() == until {
                let frame = self.frame()?;
                self.transfer = true;
                self.held.clear();
                self.held.shrink_to(CHECKED_HEADER_LEN);
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

    fn transfer_len(&self) -> usize {
        match self.agreed.contains(Capabilities::CHECKSUM) {
            true => CHECKED_HEADER_LEN,
            false => TRANSFER_HEADER_LEN,
        }
    }

    fn max_body_len(&self) -> u32 {
        match self.agreed.contains(Capabilities::LARGE_BODIES) {
            true => MAX_EXTENDED_BODY_LEN,
            false => MAX_BODY_LEN,
        }
    }

    /// How many bytes to hold before something more is known; equal to what is held when whole.
    fn until(&self) -> Result<usize, FrameError> {
        if self.held.len() < 4 {
            return Ok(4);
        }
        let (due, expected) = match self.transfer {
            true => (STATE_TRANSFER, "2 (transfer)"),
            false => (STATE_HANDSHAKE, "1 (handshake)"),
        };
        match be_u32(&self.held, 0) {
            word if word == due => (),
            word => return Err(FrameError::State { word, expected }),
        }
        if self.held.len() < PREFIX_LEN {
            return Ok(PREFIX_LEN);
        }
        let (what, limit) = match self.transfer {
            true => ("body of a transfer frame", self.max_body_len() as usize),
            false => ("epoch table", self.form.max_table_len()),
        };
        let len = be_i32(&self.held, 4);
        let len = match usize::try_from(len) {
            Ok(n) if n <= limit => n,
            _ => return Err(too_long(what, len, limit)),
        };
        if self.transfer {
            return Ok(self.transfer_len());
        }
        if len % ENTRY_LEN != 0 {
            let len = be_u32(&self.held, 4);
            return Err(FrameError::TableLen { len });
        }
        self.until_of_answer(self.form.header_len() + len)
    }

    fn until_of_answer(&self, table_end: usize) -> Result<usize, FrameError> {
        let held = self.held.as_slice();
        if held.len() < self.form.header_len() || self.extended()?.is_none() {
            return Ok(table_end);
        }
        match held.len() {
            n if n < table_end + BLOCK_PREFIX_LEN => Ok(table_end + BLOCK_PREFIX_LEN),
            _ => Extension::block_len(held, table_end).map(|len| table_end + len),
        }
    }

    /// What the answer agrees to, if it is an extended one.
    fn extended(&self) -> Result<Option<Capabilities>, FrameError> {
        let word = be_u32(&self.held, 16);
        if word.cast_signed() >= -1 {
            return Ok(None);
        }
        let answered = Capabilities::from_answer(word).filter(|_| self.has_asked);
        match answered {
            Some(agreed) if self.asked.contains(agreed) => Ok(Some(agreed)),
            _ => Err(FrameError::Field {
                what: "master's last epoch",
                value: i64::from(word.cast_signed()),
            }),
        }
    }

    fn frame(&mut self) -> Result<FrameFromMaster, FrameError> {
        if self.transfer {
            let header = TransferHeader::decode(&self.held)?;
            self.checksum = None;
            if self.held.len() == CHECKED_HEADER_LEN {
                let told = be_u32(&self.held, TRANSFER_HEADER_LEN);
                let fields = &self.held[..TRANSFER_HEADER_LEN];
                let checksum = FrameChecksum::of_header(fields, told, header.body_len);
                checksum.check()?;
                self.checksum = Some(checksum);
            }
            return Ok(FrameFromMaster::Transfer(header));
        }
        let end = offset_at(&self.held, 8, "master's log end")?;
        let extended = self.extended()?;
        let table_end = self.form.header_len() + be_u32(&self.held, 4) as usize;
        let extension = match extended {
            Some(agreed) => Some(Extension::decode(&self.held, table_end, agreed)?),
            None => None,
        };
        self.agreed = extended.unwrap_or_default();
        let table = &self.held[self.form.header_len()..table_end];
        Ok(FrameFromMaster::Handshake(HandshakeAnswer {
            end,
            entries: entries(table)?,
            extension,
        }))
    }
}

fn entries(table: &[u8]) -> Result<Vec<EpochEntry>, FrameError> {
    let mut entries: Vec<EpochEntry> = Vec::with_capacity(table.len() / ENTRY_LEN);
    for (index, bytes) in table.chunks_exact(ENTRY_LEN).enumerate() {
        let epoch = epoch_at(bytes, 0, "epoch in the table")?;
        let start = offset_at(bytes, 4, "epoch start in the table")?;
        match entries.last() {
            Some(last) if last.epoch >= epoch || last.start > start => {
                return Err(FrameError::TableOrder {
                    index,
                    epoch,
                    start,
                });
            }
            _ => entries.push(EpochEntry { epoch, start }),
        }
    }
    Ok(entries)
}

fn too_long(what: &'static str, len: i32, limit: usize) -> FrameError {
    FrameError::TooLong {
        what,
        len,
        limit: u32::try_from(limit).unwrap_or(u32::MAX),
    }
}

const _: () = assert!(MAX_EPOCH <= i32::MAX as Epoch);
