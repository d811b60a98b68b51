//! What a client sends as the body of SEND_BATCH_MESSAGE: many messages of one topic and queue.
//!
//! The whole body is measured when a [`MessageBatch`] is made, so that a batch is taken or refused as
//! one and walking it cannot fail. Each item becomes one record of its own (RocketMQ:
//! MessageDecoder.encodeMessage; the layout is in docs/format.md).

use zerocopy::byteorder::big_endian::I32;
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

/// The most messages one batch may hold: above what fits Java's default of 4 MiB for a batch, below
/// what a list of them could cost.
pub const MAX_BATCH_MESSAGES: usize = 1 << 18;

const ITEM_HEAD_LEN: usize = 20;
const ITEM_MIN_LEN: usize = ITEM_HEAD_LEN + 2;

const _: () = assert!(size_of::<ItemHead>() == ITEM_HEAD_LEN);
const _: () = assert!(MAX_BATCH_MESSAGES > 4 * 1024 * 1024 / ITEM_MIN_LEN);

/// One message of a batch: what is its own; the rest comes from the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchItem<'a> {
    /// The producer's own number.
    pub flag: i32,
    /// The body as it is stored.
    pub body: &'a [u8],
    /// Name and value pairs in RocketMQ's text form.
    pub properties: &'a [u8],
}

/// The body of a SEND_BATCH_MESSAGE request, measured: iterate over it for the messages.
#[derive(Clone, Copy, Debug)]
pub struct MessageBatch<'a> {
    rest: &'a [u8],
    left: usize,
}

/// Why a body is not a batch. Nothing of it may be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BatchError {
    /// The body holds no message.
    #[error("the batch is empty")]
    Empty,
    /// The body holds more than [`MAX_BATCH_MESSAGES`].
    #[error("the batch holds more than {MAX_BATCH_MESSAGES} messages")]
    TooMany,
    /// A message is cut off, or its lengths do not add up to its size.
    #[error("message {index} of the batch, at byte {at}, does not match its size field {size}")]
    Item {
        /// Which message, from 0.
        index: usize,
        /// Where it begins in the body.
        at: usize,
        /// Its size field; 0 if even that is cut off.
        size: i32,
    },
}

/// The fixed front of an item. Magic and CRC are sent as 0 and not looked at, as in Java.
#[derive(FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct ItemHead {
    total_size: I32,
    magic: I32,
    body_crc: I32,
    flag: I32,
    body_len: I32,
}

impl<'a> MessageBatch<'a> {
    /// Measures every message of `body`.
    ///
    /// # Errors
    /// [`BatchError`] if the body is empty, holds too many messages, or one of them does not match
    /// its size.
    pub fn new(body: &'a [u8]) -> Result<Self, BatchError> {
        let mut rest = body;
        let mut count = 0;
        while !rest.is_empty() {
            if count == MAX_BATCH_MESSAGES {
                return Err(BatchError::TooMany);
            }
            let (_, behind) = split_item(rest).ok_or_else(|| BatchError::Item {
                index: count,
                at: body.len() - rest.len(),
                size: rest
                    .first_chunk()
                    .map_or(0, |size| i32::from_be_bytes(*size)),
            })?;
            rest = behind;
            count += 1;
        }
        if count == 0 {
            return Err(BatchError::Empty);
        }
        Ok(Self {
            rest: body,
            left: count,
        })
    }
}

impl<'a> Iterator for MessageBatch<'a> {
    type Item = BatchItem<'a>;

    fn next(&mut self) -> Option<BatchItem<'a>> {
        let (item, rest) = split_item(self.rest)?;
        self.rest = rest;
        self.left -= 1;
        Some(item)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for MessageBatch<'_> {}

/// Splits the first item off; `None` if there is none or it does not match its size.
fn split_item(bytes: &[u8]) -> Option<(BatchItem<'_>, &[u8])> {
    let (head, _) = ItemHead::ref_from_prefix(bytes).ok()?;
    let size = usize::try_from(head.total_size.get()).ok()?;
    let (item, rest) = bytes.split_at_checked(size)?;
    let parts = item.get(ITEM_HEAD_LEN..)?;
    let body_len = usize::try_from(head.body_len.get()).ok()?;
    let (body, parts) = parts.split_at_checked(body_len)?;
    let (properties_len, properties) = parts.split_first_chunk::<2>()?;
    let properties_len = usize::try_from(i16::from_be_bytes(*properties_len)).ok()?;
    if properties.len() != properties_len {
        return None;
    }
    Some((
        BatchItem {
            flag: head.flag.get(),
            body,
            properties,
        },
        rest,
    ))
}
