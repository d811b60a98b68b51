//! From a message to its bytes in the log, written straight into the slot they will live in.
//!
//! The layout is chosen from the message alone, so `encoded_len` may run before the append lock and
//! `encode_into` under it (RocketMQ: MessageExtEncoder). Two deliberate differences from Java: V2 is
//! chosen by bytes, not by UTF-16 units, and a batch gets the same separator before its property CRC
//! as a single message. Readers take either.

use std::fmt::Write as _;
use std::net::SocketAddr;

use zerocopy::IntoBytes;
use zerocopy::byteorder::big_endian::{I32, I64};

use crate::position::{MAX_OFFSET, Offset};

use super::error::MessageError;
use super::layout::{
    FILLER_MAGIC, FILLER_MIN_LEN, HEAD_LEN, Head, Host, MAX_PROPERTIES_LEN, MAX_RECORD_LEN,
    MAX_TOPIC_LEN, MAX_V1_TOPIC_LEN, NAME_VALUE_SEPARATOR, PROPERTY_CRC_LEN, PROPERTY_CRC_NAME,
    PROPERTY_SEPARATOR, Prefix, RECORD_MAGIC_V1, RECORD_MAGIC_V2, TAIL_LEN, Tail, crc_digits,
    masked_crc, trailing_crc,
};
use super::sys_flag;

/// A message as its producer and its broker know it, before the log gives it a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    /// Topic name, 1 to [`MAX_TOPIC_LEN`] bytes; what a broker allows is less.
    pub topic: &'a str,
    /// Queue of the topic.
    pub queue_id: i32,
    /// The producer's own number; the log does not look at it.
    pub flag: i32,
    /// Bits of [`sys_flag`]; the two host bits are set from the addresses, whatever stands here.
    pub sys_flag: i32,
    /// When the producer made the message, in ms since 1970 by the producer's clock.
    pub born_timestamp_ms: i64,
    /// Where the producer was.
    pub born_host: SocketAddr,
    /// The broker that stores the message first.
    pub store_host: SocketAddr,
    /// How often a consumer has sent the message back.
    pub reconsume_times: i32,
    /// For a committed or rolled back message the offset of its half message, else 0.
    pub prepared_transaction_offset: i64,
    /// The body as it is stored, after compression.
    pub body: &'a [u8],
    /// Name and value pairs in RocketMQ's text form; see `PropertiesBuilder`. A property CRC at the
    /// end belongs to another record and is left out.
    pub properties: &'a [u8],
}

impl<'a> Message<'a> {
    /// A message for queue 0 of `topic`, made at `host` and stored there, with no properties.
    #[must_use]
    pub fn new(topic: &'a str, body: &'a [u8], host: SocketAddr, born_timestamp_ms: i64) -> Self {
        Self {
            topic,
            queue_id: 0,
            flag: 0,
            sys_flag: 0,
            born_timestamp_ms,
            born_host: host,
            store_host: host,
            reconsume_times: 0,
            prepared_transaction_offset: 0,
            body,
            properties: b"",
        }
    }
}

/// What the log adds to a message when it gives it a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Index of the message in its queue; 0 if it takes none (see [`sys_flag::takes_queue_offset`]).
    pub queue_offset: i64,
    /// Where the record's first byte lies in the log.
    pub physical_offset: Offset,
    /// When the message is stored, in ms since 1970.
    pub store_timestamp_ms: i64,
}

/// How records are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EncodeOptions {
    /// Append a CRC over the whole record as the last property (RocketMQ: enabledAppendPropCRC).
    pub append_property_crc: bool,
}

/// Where the parts of one record lie; made once per call, so that length and bytes cannot disagree.
#[derive(Clone)]
struct Plan {
    born_host: Host,
    store_host: Host,
    /// How many bytes of the message's properties are stored.
    kept_properties: usize,
    separator: bool,
    properties_len: usize,
    v2: bool,
    len: usize,
}

/// How many bytes the record of `message` takes.
///
/// # Errors
/// [`MessageError`] if a part is longer than the format can say. Whether the record fits a segment is
/// the log's question.
pub fn encoded_len(message: &Message<'_>, options: EncodeOptions) -> Result<usize, MessageError> {
    Plan::new(message, options).map(|plan| plan.len)
}

/// Writes the record of `message` into `out`, which must have exactly [`encoded_len`] bytes.
///
/// Nothing is durable: the bytes are where `out` lies.
///
/// # Errors
/// [`MessageError`] if a part is longer than the format can say; `out` is untouched then.
///
/// # Panics
/// If `out` has another length, or the stamp's offset does not fit Java's signed 64 bits.
pub fn encode_into(
    out: &mut [u8],
    message: &Message<'_>,
    stamp: Stamp,
    options: EncodeOptions,
) -> Result<(), MessageError> {
    Prepared::new(message, options)?.write(out, message, stamp, options);
    Ok(())
}

/// All that is worked out about a message without knowing its place: what may be done before the append
/// lock. It belongs to that message and those options.
#[derive(Clone)]
pub(crate) struct Prepared {
    plan: Plan,
    body_crc: i32,
}

impl Prepared {
    /// Measures `message` and computes the CRC of its body; fails as [`encoded_len`] does.
    #[inline(always)]
    pub(crate) fn new(message: &Message<'_>, options: EncodeOptions) -> Result<Self, MessageError> {
        Ok(Self {
            plan: Plan::new(message, options)?,
            body_crc: masked_crc(message.body),
        })
    }

    /// Bytes of the record.
    pub(crate) fn len(&self) -> usize {
        self.plan.len
    }

    /// Writes the record into `out`, which must have exactly [`Self::len`] bytes; panics as
    /// [`encode_into`] does.
    #[inline]
    pub(crate) fn write(
        &self,
        out: &mut [u8],
        message: &Message<'_>,
        stamp: Stamp,
        options: EncodeOptions,
    ) {
        assert_eq!(
            out.len(),
            self.plan.len,
            "the slot was not made for this record"
        );
        assert!(
            stamp.physical_offset <= MAX_OFFSET,
            "no such offset: {}",
            stamp.physical_offset
        );
        self.plan.write(out, message, self.body_crc, stamp, options);
    }
}

/// Fills `out`, the rest of a segment, with a filler: size, magic, zeros.
///
/// Java leaves the bytes behind the magic as they are; zeros keep the files of two nodes equal.
///
/// # Panics
/// If `out` has less than [`FILLER_MIN_LEN`] bytes or more than a size field can say.
pub fn write_filler(out: &mut [u8]) {
    let size = int(out.len());
    let (prefix, rest) = out.split_at_mut(FILLER_MIN_LEN);
    let filler = Prefix {
        total_size: I32::new(size),
        magic: I32::new(FILLER_MAGIC),
    };
    rest.fill(0);
    prefix.copy_from_slice(filler.as_bytes());
}

/// The id a producer gets for a record at `offset` stored by `store_host`: upper-case hex of address,
/// port and offset, 32 characters for IPv4 and 56 for IPv6.
#[must_use]
pub fn message_id(store_host: SocketAddr, offset: Offset) -> String {
    let host = Host::new(store_host);
    let mut id = String::with_capacity(2 * (host.len() + 8));
    for byte in host.as_bytes().iter().chain(&offset.to_be_bytes()) {
        // Writing to a String cannot fail.
        let _ = write!(id, "{byte:02X}");
    }
    id
}

impl Plan {
    #[inline(always)]
    fn new(message: &Message<'_>, options: EncodeOptions) -> Result<Self, MessageError> {
        let topic_len = message.topic.len();
        if topic_len == 0 || topic_len > MAX_TOPIC_LEN {
            return Err(MessageError::TopicLen { len: topic_len });
        }
        let mut properties = message.properties;
        while trailing_crc(properties).is_some() {
            properties = &properties[..properties.len() - PROPERTY_CRC_LEN];
        }
        let mut properties_len = properties.len();
        let mut separator = false;
        if options.append_property_crc {
            separator = properties
                .last()
                .is_some_and(|&last| last != PROPERTY_SEPARATOR);
            properties_len += usize::from(separator) + PROPERTY_CRC_LEN;
        }
        if properties_len > MAX_PROPERTIES_LEN {
            return Err(MessageError::PropertiesLen {
                len: properties_len,
            });
        }
        let v2 = topic_len > MAX_V1_TOPIC_LEN;
        let born_host = Host::new(message.born_host);
        let store_host = Host::new(message.store_host);
        let without_body = HEAD_LEN
            + born_host.len()
            + 8
            + store_host.len()
            + TAIL_LEN
            + if v2 { 2 } else { 1 }
            + topic_len
            + 2
            + properties_len;
        let body_len = message.body.len();
        match without_body.checked_add(body_len) {
            Some(len) if len <= MAX_RECORD_LEN => Ok(Self {
                born_host,
                store_host,
                kept_properties: properties.len(),
                separator,
                properties_len,
                v2,
                len,
            }),
            _ => Err(MessageError::RecordLen { body_len }),
        }
    }

    fn sys_flag(&self, message: &Message<'_>) -> i32 {
        let mut bits = message.sys_flag & !(sys_flag::BORN_HOST_V6 | sys_flag::STORE_HOST_V6);
        if self.born_host.is_v6() {
            bits |= sys_flag::BORN_HOST_V6;
        }
        if self.store_host.is_v6() {
            bits |= sys_flag::STORE_HOST_V6;
        }
        bits
    }

    #[inline]
    fn write(
        &self,
        out: &mut [u8],
        message: &Message<'_>,
        body_crc: i32,
        stamp: Stamp,
        options: EncodeOptions,
    ) {
        let magic = if self.v2 {
            RECORD_MAGIC_V2
        } else {
            RECORD_MAGIC_V1
        };
        let head = Head {
            total_size: I32::new(int(self.len)),
            magic: I32::new(magic),
            body_crc: I32::new(body_crc),
            queue_id: I32::new(message.queue_id),
            flag: I32::new(message.flag),
            queue_offset: I64::new(stamp.queue_offset),
            physical_offset: I64::new(stamp.physical_offset.cast_signed()),
            sys_flag: I32::new(self.sys_flag(message)),
            born_timestamp_ms: I64::new(message.born_timestamp_ms),
        };
        let tail = Tail {
            reconsume_times: I32::new(message.reconsume_times),
            prepared_transaction_offset: I64::new(message.prepared_transaction_offset),
            body_len: I32::new(int(message.body.len())),
        };
        let mut slot = Slot { out, at: 0 };
        slot.put(head.as_bytes());
        slot.put_host(&self.born_host);
        slot.put(&stamp.store_timestamp_ms.to_be_bytes());
        slot.put_host(&self.store_host);
        slot.put(tail.as_bytes());
        slot.put(message.body);
        let topic_len = short(message.topic.len()).to_be_bytes();
        if self.v2 {
            slot.put(&topic_len);
        } else {
            slot.put(&[topic_len[1]]);
        }
        slot.put(message.topic.as_bytes());
        slot.put(&short(self.properties_len).to_be_bytes());
        slot.put(&message.properties[..self.kept_properties]);
        if options.append_property_crc {
            if self.separator {
                slot.put(&[PROPERTY_SEPARATOR]);
            }
            let crc = masked_crc(slot.written());
            slot.put(PROPERTY_CRC_NAME);
            slot.put(&[NAME_VALUE_SEPARATOR]);
            slot.put(&crc_digits(crc));
            slot.put(&[PROPERTY_SEPARATOR]);
        }
        assert_eq!(slot.at, self.len, "the parts do not add up to the record");
    }
}

/// The bytes of one record while they are being written, front to back.
struct Slot<'a> {
    out: &'a mut [u8],
    at: usize,
}

impl Slot<'_> {
    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        let end = self.at + bytes.len();
        self.out[self.at..end].copy_from_slice(bytes);
        self.at = end;
    }

    /// Two copies of known length: a copy of any length is a call.
    #[inline]
    fn put_host(&mut self, host: &Host) {
        match host.as_v4() {
            Some(bytes) => self.put(bytes),
            None => self.put(host.as_v6()),
        }
    }

    fn written(&self) -> &[u8] {
        &self.out[..self.at]
    }
}

/// A length that was already held against [`MAX_RECORD_LEN`].
fn int(len: usize) -> i32 {
    i32::try_from(len).expect("lengths are checked before a record or a filler is written")
}

/// A length that was already held against [`MAX_TOPIC_LEN`] or [`MAX_PROPERTIES_LEN`].
fn short(len: usize) -> i16 {
    i16::try_from(len).expect("lengths are checked before a record is written")
}
