//! The bits of a record's SYSFLAG field (RocketMQ: MessageSysFlag).
//!
//! The two host bits are part of the layout: encoding sets them from the address families, whatever
//! the caller passed. All other bits are the caller's.

/// The body is compressed.
pub const COMPRESSED: i32 = 0x001;
/// The message carries several tags.
pub const MULTI_TAGS: i32 = 0x002;
/// The two transaction bits; the values below are what they can hold.
pub const TRANSACTION_MASK: i32 = 0x00C;
/// Transaction bits of a half message that is not decided yet.
pub const TRANSACTION_PREPARED: i32 = 0x004;
/// Transaction bits of a committed message.
pub const TRANSACTION_COMMIT: i32 = 0x008;
/// Transaction bits of a rolled back message.
pub const TRANSACTION_ROLLBACK: i32 = 0x00C;
/// The born host takes 16 address bytes instead of 4.
pub const BORN_HOST_V6: i32 = 0x010;
/// The store host takes 16 address bytes instead of 4.
pub const STORE_HOST_V6: i32 = 0x020;
/// The client must unwrap the inner batch.
pub const NEED_UNWRAP: i32 = 0x040;
/// The record holds several logical messages (topics of queue type BatchCQ).
pub const INNER_BATCH: i32 = 0x080;
/// The bits that name the compression; 0 with [`COMPRESSED`] means zlib, as old clients wrote it.
pub const COMPRESSION_TYPE_MASK: i32 = 0x700;

/// Whether a message with these flags takes a place in its consume queue.
///
/// Prepared and rolled back messages do not: they are stored with queue offset 0 and the queue's
/// next offset stays as it is.
#[must_use]
pub fn takes_queue_offset(sys_flag: i32) -> bool {
    !matches!(
        sys_flag & TRANSACTION_MASK,
        TRANSACTION_PREPARED | TRANSACTION_ROLLBACK
    )
}
