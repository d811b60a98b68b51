//! One unit of a consume queue: where a message lies in the commit log. Pure.
//!
//! docs/format.md draws the layout (RocketMQ: ConsumeQueue).

use zerocopy::byteorder::big_endian::{I32, I64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::position::{MAX_OFFSET, Offset};

/// Bytes of a unit.
pub const QUEUE_UNIT_LEN: usize = 20;

/// What stands in front of the first message in its file when that is not the file's first unit.
pub const QUEUE_PRE_FILL: [u8; QUEUE_UNIT_LEN] = QueueUnit::raw(0, i32::MAX, 0);

const _: () = assert!(size_of::<Layout>() == QUEUE_UNIT_LEN);

/// Where one message of a queue lies in the commit log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueUnit {
    /// Where its record begins.
    pub offset: Offset,
    /// Bytes of its record.
    pub size: u32,
    /// Java's hash of its tags; 0 without tags. For delayed messages the time of delivery in ms since
    /// 1970; in a folder of Java's perhaps an address in `consumequeue_ext/` instead.
    pub tags_code: i64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Layout {
    offset: I64,
    size: I32,
    tags_code: I64,
}

impl QueueUnit {
    const fn raw(offset: i64, size: i32, tags_code: i64) -> [u8; QUEUE_UNIT_LEN] {
        let (offset, size, tags_code) = (
            offset.to_be_bytes(),
            size.to_be_bytes(),
            tags_code.to_be_bytes(),
        );
        let mut bytes = [0; QUEUE_UNIT_LEN];
        let mut at = 0;
        while at < QUEUE_UNIT_LEN {
            bytes[at] = match at {
                0..8 => offset[at],
                8..12 => size[at - 8],
                _ => tags_code[at - 12],
            };
            at += 1;
        }
        bytes
    }

    /// The unit's bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; QUEUE_UNIT_LEN] {
        // Offsets are below 2^63 and records shorter than 2^31 bytes.
        zerocopy::transmute!(Layout {
            offset: I64::new(self.offset.cast_signed()),
            size: I32::new(self.size.cast_signed()),
            tags_code: I64::new(self.tags_code),
        })
    }

    /// The message `bytes` speak of; `None` for pre-fill, unwritten space and what no queue can hold.
    #[must_use]
    pub fn decode(bytes: &[u8; QUEUE_UNIT_LEN]) -> Option<Self> {
        let layout: &Layout = zerocopy::transmute_ref!(bytes);
        let offset = u64::try_from(layout.offset.get()).ok()?;
        let size = u32::try_from(layout.size.get()).ok()?;
        // No record is as long as pre-fill says.
        if size == 0 || size == i32::MAX.unsigned_abs() || offset > MAX_OFFSET - u64::from(size) {
            return None;
        }
        Some(Self {
            offset,
            size,
            tags_code: layout.tags_code.get(),
        })
    }

    /// Where its record ends.
    #[must_use]
    pub fn end(&self) -> Offset {
        self.offset + u64::from(self.size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The unit of RocketMQ's record with topic `T`, body `hello` and tags `A` at offset 0.
    const GOLDEN: [u8; QUEUE_UNIT_LEN] = [
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x68, 0, 0, 0, 0, 0, 0, 0, 0x41,
    ];

    #[test]
    fn a_unit_is_javas() {
        let unit = QueueUnit {
            offset: 0,
            size: 104,
            tags_code: 65,
        };
        assert_eq!(unit.encode(), GOLDEN);
        assert_eq!(QueueUnit::decode(&GOLDEN), Some(unit));
        let far = QueueUnit {
            offset: 0x0102_0304_0506_0708,
            size: 0x1112_1314,
            tags_code: -2,
        };
        let bytes = far.encode();
        assert_eq!(
            bytes[..12],
            [1, 2, 3, 4, 5, 6, 7, 8, 0x11, 0x12, 0x13, 0x14]
        );
        assert_eq!(bytes[12..], (-2_i64).to_be_bytes());
        assert_eq!(QueueUnit::decode(&bytes), Some(far));
    }

    #[test]
    fn e36_pre_fill_zeros_and_nonsense_are_no_messages() {
        assert_eq!(
            QUEUE_PRE_FILL,
            [
                0, 0, 0, 0, 0, 0, 0, 0, 0x7F, 0xFF, 0xFF, 0xFF, 0, 0, 0, 0, 0, 0, 0, 0
            ]
        );
        for (offset, size) in [
            (0, 0),
            (0, i32::MAX),
            (100, 0),
            (100, -1),
            (100, i32::MIN),
            (-1, 100),
            (i64::MIN, 100),
            (i64::MAX, 100),
            (i64::MAX - 99, 100),
        ] {
            let bytes = QueueUnit::raw(offset, size, 7);
            assert_eq!(QueueUnit::decode(&bytes), None, "{offset} {size}");
        }
        assert!(QueueUnit::decode(&QueueUnit::raw(i64::MAX - 100, 100, 7)).is_some());
    }
}
