//! The fixed parts of a record and the numbers of its format (docs/format.md draws them).
//!
//! All integers are big-endian and signed, as Java writes them. The structs are unaligned, so a view
//! may lie at any byte of a mapping.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use zerocopy::byteorder::big_endian::{I32, I64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Magic number of a record whose topic length takes one byte.
pub const RECORD_MAGIC_V1: i32 = -626_843_481;
/// Magic number of a record whose topic length takes two bytes.
pub const RECORD_MAGIC_V2: i32 = -626_843_477;
/// Magic number of the filler that ends a segment (RocketMQ: BLANK).
pub const FILLER_MAGIC: i32 = -875_286_124;

/// Bytes of the smallest filler: its size and its magic. Every record leaves at least this much
/// room behind it, so that a filler always fits.
pub const FILLER_MIN_LEN: usize = 8;
/// Bytes of the smallest record the format can hold: V1, IPv4 hosts, nothing else.
pub const MIN_RECORD_LEN: usize = HEAD_LEN + 2 * V4_HOST_LEN + 8 + TAIL_LEN + 1 + 2;
/// The largest record the format can hold, in bytes; a log allows less (its segment size).
pub const MAX_RECORD_LEN: usize = i32::MAX as usize;
/// The longest topic, in bytes of UTF-8, that a V1 record can hold.
pub const MAX_V1_TOPIC_LEN: usize = i8::MAX as usize;
/// The longest topic, in bytes of UTF-8, that the format can hold. What a broker allows is less.
pub const MAX_TOPIC_LEN: usize = i16::MAX as usize;
/// The longest properties, in bytes, a property CRC and its separator included.
pub const MAX_PROPERTIES_LEN: usize = i16::MAX as usize;

/// Bytes the property CRC takes at the end of the properties: name, 0x01, ten digits, 0x02.
pub const PROPERTY_CRC_LEN: usize = PROPERTY_CRC_NAME.len() + 1 + PROPERTY_CRC_DIGITS + 1;
pub(super) const PROPERTY_CRC_NAME: &[u8] = b"__CRC32#";
pub(super) const PROPERTY_CRC_DIGITS: usize = 10;
pub(super) const NAME_VALUE_SEPARATOR: u8 = 0x01;
pub(super) const PROPERTY_SEPARATOR: u8 = 0x02;

pub(super) const HEAD_LEN: usize = 48;
pub(super) const TAIL_LEN: usize = 16;
pub(super) const V4_HOST_LEN: usize = 8;
pub(super) const V6_HOST_LEN: usize = 20;

const _: () = assert!(size_of::<Head>() == HEAD_LEN);
const _: () = assert!(size_of::<Tail>() == TAIL_LEN);
const _: () = assert!(MIN_RECORD_LEN == 91);
const _: () = assert!(PROPERTY_CRC_LEN == 20);
const _: () = assert!(RECORD_MAGIC_V1.to_be_bytes()[3] == 0xA7);

/// The fields before the born host.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct Head {
    pub(super) total_size: I32,
    pub(super) magic: I32,
    pub(super) body_crc: I32,
    pub(super) queue_id: I32,
    pub(super) flag: I32,
    pub(super) queue_offset: I64,
    pub(super) physical_offset: I64,
    pub(super) sys_flag: I32,
    pub(super) born_timestamp_ms: I64,
}

/// The fields between the store host and the body.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct Tail {
    pub(super) reconsume_times: I32,
    pub(super) prepared_transaction_offset: I64,
    pub(super) body_len: I32,
}

/// A size and a magic: how a record, a filler and unwritten space are told apart.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct Prefix {
    pub(super) total_size: I32,
    pub(super) magic: I32,
}

/// An address as records and message ids hold it. An IPv4 address mapped into IPv6 counts as IPv4,
/// as Java's `InetAddress` has it.
#[derive(Clone, Copy)]
pub(super) struct Host {
    /// As in a record, and zeros behind.
    bytes: [u8; V6_HOST_LEN],
    is_v6: bool,
}

impl Host {
    #[inline]
    pub(super) fn new(address: SocketAddr) -> Self {
        let mut bytes = [0; V6_HOST_LEN];
        let port = i32::from(address.port()).to_be_bytes();
        let v4 = match address {
            SocketAddr::V4(address) => Some(*address.ip()),
            SocketAddr::V6(address) => match address.ip().to_ipv4_mapped() {
                Some(v4) => Some(v4),
                None => {
                    bytes[..16].copy_from_slice(&address.ip().octets());
                    bytes[16..].copy_from_slice(&port);
                    None
                }
            },
        };
        if let Some(v4) = v4 {
            bytes[..4].copy_from_slice(&v4.octets());
            bytes[4..8].copy_from_slice(&port);
        }
        Self {
            bytes,
            is_v6: v4.is_none(),
        }
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        if self.is_v6 { V6_HOST_LEN } else { V4_HOST_LEN }
    }

    #[inline]
    pub(super) fn is_v6(&self) -> bool {
        self.is_v6
    }

    /// What stands in a record, if the address is IPv4.
    #[inline]
    pub(super) fn as_v4(&self) -> Option<&[u8; V4_HOST_LEN]> {
        self.bytes.first_chunk().filter(|_| !self.is_v6)
    }

    /// What stands in a record if the address is IPv6.
    #[inline]
    pub(super) fn as_v6(&self) -> &[u8; V6_HOST_LEN] {
        &self.bytes
    }

    /// What stands in a record.
    #[inline]
    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len()]
    }

    /// Reads the 8 or 20 bytes of a host; `None` if they are not of that length or hold a port that
    /// no socket has.
    pub(super) fn read(bytes: &[u8]) -> Option<SocketAddr> {
        let (address, port) = bytes.split_last_chunk::<4>()?;
        let port = u16::try_from(i32::from_be_bytes(*port)).ok()?;
        let ip = if let Ok(octets) = <[u8; 4]>::try_from(address) {
            IpAddr::V4(Ipv4Addr::from(octets))
        } else {
            IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(address).ok()?))
        };
        Some(SocketAddr::new(ip, port))
    }
}

/// RocketMQ's CRC: CRC-32/ISO-HDLC with the top bit cleared.
pub(super) fn masked_crc(bytes: &[u8]) -> i32 {
    (crc32fast::hash(bytes) & 0x7FFF_FFFF).cast_signed()
}

/// The property CRC at the end of a record: what the digits of `crc` look like there.
pub(super) fn crc_digits(crc: i32) -> [u8; PROPERTY_CRC_DIGITS] {
    let mut rest = crc.unsigned_abs();
    std::array::from_fn(|_| {
        let digit = u8::try_from(rest % 10).unwrap_or(0);
        rest /= 10;
        b'0' + digit
    })
}

/// The ten digits of a property CRC, least significant first, if `properties` end in one.
pub(super) fn trailing_crc(properties: &[u8]) -> Option<[u8; PROPERTY_CRC_DIGITS]> {
    let crc = properties.last_chunk::<PROPERTY_CRC_LEN>()?;
    let value = crc
        .strip_prefix(PROPERTY_CRC_NAME)?
        .strip_prefix(&[NAME_VALUE_SEPARATOR])?;
    let digits = value.strip_suffix(&[PROPERTY_SEPARATOR])?;
    let digits = <[u8; PROPERTY_CRC_DIGITS]>::try_from(digits).ok()?;
    digits.iter().all(u8::is_ascii_digit).then_some(digits)
}

/// Whether `properties` end in a property CRC with exactly one bit wrong, so that [`trailing_crc`] does
/// not see it.
pub(super) fn looks_like_damaged_crc(properties: &[u8]) -> bool {
    let Some(found) = properties.last_chunk::<PROPERTY_CRC_LEN>() else {
        return false;
    };
    // Nearly every record without a CRC ends here.
    if found[PROPERTY_CRC_NAME.len() - 1] != PROPERTY_CRC_NAME[PROPERTY_CRC_NAME.len() - 1]
        && found[0] != PROPERTY_CRC_NAME[0]
    {
        return false;
    }
    let (name, rest) = found.split_at(PROPERTY_CRC_NAME.len());
    let (digits, last) = rest[1..].split_at(PROPERTY_CRC_DIGITS);
    let fixed = [
        (name, PROPERTY_CRC_NAME),
        (&rest[..1], &[NAME_VALUE_SEPARATOR][..]),
        (last, &[PROPERTY_SEPARATOR][..]),
    ];
    let wrong_bits = |(found, meant): (&[u8], &[u8])| -> u32 {
        let pairs = found.iter().zip(meant);
        pairs
            .map(|(found, meant)| (found ^ meant).count_ones())
            .sum()
    };
    let no_digits = digits.iter().filter(|byte| !byte.is_ascii_digit()).count();
    let wrong = fixed.into_iter().map(wrong_bits).sum::<u32>();
    (wrong == 1 && no_digits == 0) || (wrong == 0 && no_digits == 1)
}
