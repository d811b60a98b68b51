//! From bytes in the log to a checked, borrowed record.
//!
//! `parse` looks at nothing it has not measured first. It is stricter than Java's validator where Java
//! is blind: the record must lie where it says, a filler must end its segment, negative lengths are
//! refused (RocketMQ: CommitLog.checkMessageAndReturnSize).

use std::borrow::Cow;
use std::net::SocketAddr;

use zerocopy::FromBytes;

use crate::position::Offset;
use crate::properties::Properties;

use super::error::{BadRecord, RecordError};
use super::layout::{
    FILLER_MAGIC, FILLER_MIN_LEN, HEAD_LEN, Head, Host, MIN_RECORD_LEN, PROPERTY_CRC_LEN, Prefix,
    RECORD_MAGIC_V1, RECORD_MAGIC_V2, TAIL_LEN, Tail, V4_HOST_LEN, V6_HOST_LEN, crc_digits,
    looks_like_damaged_crc, masked_crc, trailing_crc,
};
use super::{Message, message_id, sys_flag};

/// What to do about the CRC that a record may carry as its last property.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PropertyCrc {
    /// Do not look.
    Ignore,
    /// Check it if it is there.
    #[default]
    IfPresent,
    /// As [`Self::IfPresent`], and refuse a record that ends in what was one before a bit of it changed.
    IfPresentOrDamaged,
    /// Refuse a record without one.
    Require,
}

/// Which checks `parse` makes beyond the structure, which is always checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckOptions {
    /// Compare the body with its CRC. An empty body has none to compare, as in Java.
    pub body_crc: bool,
    /// What to do about the property CRC.
    pub property_crc: PropertyCrc,
    /// Refuse zero bytes in topic and properties: for bytes that may lie on a page the disk never
    /// got, which the body's CRC does not cover.
    pub nul_bytes: bool,
}

impl CheckOptions {
    /// Structure only: for bytes that were checked when they came in.
    pub const STRUCTURE: Self = Self {
        body_crc: false,
        property_crc: PropertyCrc::Ignore,
        nul_bytes: false,
    };
    /// Structure and every CRC that is there: for bytes from disk or from a peer.
    pub const CHECKSUMS: Self = Self {
        body_crc: true,
        property_crc: PropertyCrc::IfPresent,
        nul_bytes: false,
    };
    /// As [`Self::CHECKSUMS`], and a property CRC that a changed bit hides is found: for a look at a whole log. A
    /// message whose own last property happens to look so would be refused too.
    pub const VERIFY: Self = Self {
        property_crc: PropertyCrc::IfPresentOrDamaged,
        ..Self::CHECKSUMS
    };
    /// As [`Self::CHECKSUMS`], and no zero bytes in text: for bytes above the flushed mark after the
    /// machine went down.
    pub const AFTER_POWER_LOSS: Self = Self {
        nul_bytes: true,
        ..Self::CHECKSUMS
    };
}

/// Which of the two record layouts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// One byte of topic length.
    V1,
    /// Two bytes of topic length.
    V2,
}

/// What stands at a place in the log, whole and checked.
#[derive(Clone, Copy, Debug)]
pub enum Parsed<'a> {
    /// A record.
    Message(Record<'a>),
    /// The filler that ends the segment. The bytes behind its first eight mean nothing.
    Filler {
        /// Bytes from here to the end of the segment.
        len: u32,
    },
}

/// One record in the log: a borrowed view whose structure was checked when it was made.
#[derive(Clone, Copy)]
pub struct Record<'a> {
    bytes: &'a [u8],
    head: &'a Head,
    tail: &'a Tail,
    version: Version,
    born_host: &'a [u8],
    store_timestamp: [u8; 8],
    store_host: &'a [u8],
    body: &'a [u8],
    topic: &'a str,
    properties: &'a [u8],
}

/// Reads what stands at offset `at`.
///
/// `bytes` begin at `at` and may reach further than the record; `room_to_segment_end` counts from `at`
/// to the end of the segment and must not be less than what the segment really has.
///
/// # Errors
/// [`RecordError::NeedMore`] if `bytes` stop inside a record or filler that looks right so far,
/// [`RecordError::Empty`] on unwritten space, [`RecordError::Bad`] on anything else.
pub fn parse(
    bytes: &[u8],
    at: Offset,
    room_to_segment_end: u64,
    check: CheckOptions,
) -> Result<Parsed<'_>, RecordError> {
    let room = room_to_segment_end;
    let bad = |why| RecordError::Bad { at, why };
    if room < FILLER_MIN_LEN as u64 {
        return Err(bad(BadRecord::NoRoom { room }));
    }
    let Ok((prefix, _)) = Prefix::ref_from_prefix(bytes) else {
        return Err(RecordError::NeedMore {
            at,
            len: FILLER_MIN_LEN,
        });
    };
    let size = prefix.total_size.get();
    let version = match prefix.magic.get() {
        0 if size == 0 => return Err(RecordError::Empty { at }),
        RECORD_MAGIC_V1 => Version::V1,
        RECORD_MAGIC_V2 => Version::V2,
        FILLER_MAGIC => return parse_filler(bytes, at, size, room),
        magic => {
            return Err(bad(BadRecord::Magic {
                magic: magic.cast_unsigned(),
            }));
        }
    };
    let len = usize::try_from(size).unwrap_or(0);
    if len < MIN_RECORD_LEN || len as u64 > room - FILLER_MIN_LEN as u64 {
        return Err(bad(BadRecord::Size { size, room }));
    }
    // Tested before the record is whole, so that garbage is not waited for.
    if let Ok((head, _)) = Head::ref_from_prefix(bytes) {
        let found = head.physical_offset.get();
        if u64::try_from(found) != Ok(at) {
            return Err(bad(BadRecord::PhysicalOffset { found }));
        }
    }
    let bytes = bytes.get(..len).ok_or(RecordError::NeedMore { at, len })?;
    let record = Record::new(bytes, version).map_err(bad)?;
    record.check(check).map_err(bad)?;
    Ok(Parsed::Message(record))
}

fn parse_filler(bytes: &[u8], at: Offset, size: i32, room: u64) -> Result<Parsed<'_>, RecordError> {
    let len = u32::try_from(size).unwrap_or(0);
    if u64::from(len) != room {
        return Err(RecordError::Bad {
            at,
            why: BadRecord::FillerSize { size, room },
        });
    }
    if (bytes.len() as u64) < room {
        return Err(RecordError::NeedMore {
            at,
            len: len as usize,
        });
    }
    Ok(Parsed::Filler { len })
}

impl<'a> Record<'a> {
    /// Takes `bytes`, a whole record by its size field, apart.
    fn new(bytes: &'a [u8], version: Version) -> Result<Self, BadRecord> {
        // Every `None` below means that the fixed fields alone reach past the end.
        let short = || BadRecord::Sum {
            sum: MIN_RECORD_LEN,
            size: int(bytes.len()),
        };
        let (head, rest) = Head::ref_from_prefix(bytes).map_err(|_| short())?;
        let sys_flag = head.sys_flag.get();
        let host_len = |bit| {
            if sys_flag & bit == 0 {
                V4_HOST_LEN
            } else {
                V6_HOST_LEN
            }
        };
        let (born_host, rest) = rest
            .split_at_checked(host_len(sys_flag::BORN_HOST_V6))
            .ok_or_else(short)?;
        let (store_timestamp, rest) = rest.split_first_chunk::<8>().ok_or_else(short)?;
        let (store_host, rest) = rest
            .split_at_checked(host_len(sys_flag::STORE_HOST_V6))
            .ok_or_else(short)?;
        let (tail, rest) = Tail::ref_from_prefix(rest).map_err(|_| short())?;
        let (body, rest) = part("body", tail.body_len.get(), rest, bytes)?;
        let (topic_len, rest) = match version {
            Version::V1 => {
                let (len, rest) = rest.split_first_chunk::<1>().ok_or_else(short)?;
                (i32::from(i8::from_be_bytes(*len)), rest)
            }
            Version::V2 => {
                let (len, rest) = rest.split_first_chunk::<2>().ok_or_else(short)?;
                (i32::from(i16::from_be_bytes(*len)), rest)
            }
        };
        let (topic, rest) = part("topic", topic_len, rest, bytes)?;
        let (properties_len, rest) = rest.split_first_chunk::<2>().ok_or_else(short)?;
        let properties_len = i32::from(i16::from_be_bytes(*properties_len));
        let (properties, rest) = part("properties", properties_len, rest, bytes)?;
        if !rest.is_empty() {
            let sum = bytes.len() - rest.len();
            return Err(BadRecord::Sum {
                sum,
                size: int(bytes.len()),
            });
        }
        let topic = std::str::from_utf8(topic).map_err(|_| BadRecord::TopicText)?;
        Ok(Self {
            bytes,
            head,
            tail,
            version,
            born_host,
            store_timestamp: *store_timestamp,
            store_host,
            body,
            topic,
            properties,
        })
    }

    fn check(&self, options: CheckOptions) -> Result<(), BadRecord> {
        if options.body_crc && !self.body.is_empty() {
            let (computed, stored) = (masked_crc(self.body), self.body_crc());
            if computed != stored {
                return Err(BadRecord::BodyCrc { computed, stored });
            }
        }
        if options.property_crc != PropertyCrc::Ignore {
            match trailing_crc(self.properties) {
                Some(digits) => {
                    let covered = self.bytes.len() - PROPERTY_CRC_LEN;
                    let computed = masked_crc(&self.bytes[..covered]);
                    if digits != crc_digits(computed) {
                        return Err(BadRecord::PropertyCrc { computed });
                    }
                }
                None if options.property_crc == PropertyCrc::Require => {
                    return Err(BadRecord::NoPropertyCrc);
                }
                None if options.property_crc == PropertyCrc::IfPresentOrDamaged
                    && looks_like_damaged_crc(self.properties) =>
                {
                    return Err(BadRecord::PropertyCrcChanged);
                }
                None => {}
            }
        }
        if options.nul_bytes {
            for (field, text) in [
                ("topic", self.topic.as_bytes()),
                ("properties", self.properties),
            ] {
                if text.contains(&0) {
                    return Err(BadRecord::NulByte { field });
                }
            }
        }
        Ok(())
    }

    /// The whole record as it lies in the log.
    #[must_use]
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Bytes of the whole record.
    #[must_use]
    pub fn total_size(&self) -> usize {
        self.bytes.len()
    }

    /// Which of the two layouts the record has.
    #[must_use]
    pub fn version(&self) -> Version {
        self.version
    }

    /// The BODYCRC field; 0 for an empty body.
    #[must_use]
    pub fn body_crc(&self) -> i32 {
        self.head.body_crc.get()
    }

    /// Queue of the topic.
    #[must_use]
    pub fn queue_id(&self) -> i32 {
        self.head.queue_id.get()
    }

    /// The producer's own number.
    #[must_use]
    pub fn flag(&self) -> i32 {
        self.head.flag.get()
    }

    /// Index of the message in its queue; 0 if it takes none.
    #[must_use]
    pub fn queue_offset(&self) -> i64 {
        self.head.queue_offset.get()
    }

    /// Where the record's first byte lies in the log.
    #[must_use]
    pub fn physical_offset(&self) -> Offset {
        self.head.physical_offset.get().cast_unsigned()
    }

    /// Where the next record or filler begins.
    #[must_use]
    pub fn end(&self) -> Offset {
        self.physical_offset() + self.bytes.len() as u64
    }

    /// Bits of [`sys_flag`].
    #[must_use]
    pub fn sys_flag(&self) -> i32 {
        self.head.sys_flag.get()
    }

    /// Whether the record holds several logical messages (topics of queue type BatchCQ).
    #[must_use]
    pub fn is_inner_batch(&self) -> bool {
        self.sys_flag() & sys_flag::INNER_BATCH != 0
    }

    /// Whether a client must unwrap the body.
    #[must_use]
    pub fn needs_unwrap(&self) -> bool {
        self.sys_flag() & sys_flag::NEED_UNWRAP != 0
    }

    /// Whether the message takes a place in its consume queue.
    #[must_use]
    pub fn takes_queue_offset(&self) -> bool {
        sys_flag::takes_queue_offset(self.sys_flag())
    }

    /// When the producer made the message, in ms since 1970 by the producer's clock.
    #[must_use]
    pub fn born_timestamp_ms(&self) -> i64 {
        self.head.born_timestamp_ms.get()
    }

    /// Where the producer was; `None` if the stored port is none.
    #[must_use]
    pub fn born_host(&self) -> Option<SocketAddr> {
        Host::read(self.born_host)
    }

    /// When the message was stored first, in ms since 1970.
    #[must_use]
    pub fn store_timestamp_ms(&self) -> i64 {
        i64::from_be_bytes(self.store_timestamp)
    }

    /// The broker that stored the message first; `None` if the stored port is none.
    #[must_use]
    pub fn store_host(&self) -> Option<SocketAddr> {
        Host::read(self.store_host)
    }

    /// How often a consumer has sent the message back.
    #[must_use]
    pub fn reconsume_times(&self) -> i32 {
        self.tail.reconsume_times.get()
    }

    /// For a committed or rolled back message the offset of its half message, else 0.
    #[must_use]
    pub fn prepared_transaction_offset(&self) -> i64 {
        self.tail.prepared_transaction_offset.get()
    }

    /// The body as it is stored.
    #[must_use]
    pub fn body(&self) -> &'a [u8] {
        self.body
    }

    /// The topic; empty only in records that RocketMQ's own checks would not let in.
    #[must_use]
    pub fn topic(&self) -> &'a str {
        self.topic
    }

    /// The properties as they are stored, a property CRC included.
    #[must_use]
    pub fn properties_bytes(&self) -> &'a [u8] {
        self.properties
    }

    /// The properties by the rules of Java's parser.
    #[must_use]
    pub fn properties(&self) -> Properties<'a> {
        Properties::new(self.properties)
    }

    /// The value of the property `name`; the last one if there are several.
    #[must_use]
    pub fn property(&self, name: &str) -> Option<Cow<'a, str>> {
        self.properties().get(name)
    }

    /// The id the producer got; `None` if the stored port is none.
    #[must_use]
    pub fn message_id(&self) -> Option<String> {
        Some(message_id(self.store_host()?, self.physical_offset()))
    }

    /// The message this record was made from, a property CRC left in its properties; `None` if a
    /// stored port is none.
    #[must_use]
    pub fn message(&self) -> Option<Message<'a>> {
        Some(Message {
            topic: self.topic,
            queue_id: self.queue_id(),
            flag: self.flag(),
            sys_flag: self.sys_flag(),
            born_timestamp_ms: self.born_timestamp_ms(),
            born_host: self.born_host()?,
            store_host: self.store_host()?,
            reconsume_times: self.reconsume_times(),
            prepared_transaction_offset: self.prepared_transaction_offset(),
            body: self.body,
            properties: self.properties,
        })
    }
}

impl std::fmt::Debug for Record<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Record")
            .field("physical_offset", &self.physical_offset())
            .field("total_size", &self.total_size())
            .field("topic", &self.topic)
            .field("queue_id", &self.queue_id())
            .field("queue_offset", &self.queue_offset())
            .finish_non_exhaustive()
    }
}

/// Splits a part of `len` bytes off `rest`; `whole` is the record it belongs to.
fn part<'a>(
    field: &'static str,
    len: i32,
    rest: &'a [u8],
    whole: &[u8],
) -> Result<(&'a [u8], &'a [u8]), BadRecord> {
    usize::try_from(len)
        .ok()
        .and_then(|len| rest.split_at_checked(len))
        .ok_or(BadRecord::Length {
            field,
            len,
            size: int(whole.len()),
        })
}

/// The length of a record whose size field was read as a non-negative number.
fn int(len: usize) -> i32 {
    i32::try_from(len).unwrap_or(i32::MAX)
}

const _: () = assert!(HEAD_LEN + TAIL_LEN < MIN_RECORD_LEN);
