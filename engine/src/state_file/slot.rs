//! One slot of the state file: its bytes, and how they are told from torn or foreign ones. Pure.
//!
//! Magic, version and the place of the CRC stay as they are in every version, so that an older program
//! can tell "newer" from "damaged".

use zerocopy::byteorder::big_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{CleanStop, QueuesMark, State};

/// Bytes of a slot; one disk sector.
pub const STATE_SLOT_LEN: usize = 512;

/// Bytes from the beginning of one slot to the next, so that no disk writes both at once.
pub const STATE_SLOT_STRIDE: usize = 4096;

/// The version of the layout this program writes; it refuses a larger one.
pub const STATE_VERSION: u32 = 1;

pub(super) const MAGIC: [u8; 8] = *b"EPOCHLOG";

const CLEAN: u32 = 1 << 0;
const SYNC_FAILED: u32 = 1 << 1;
const HAS_MAX_EPOCH: u32 = 1 << 2;
const HAS_SERVED_EPOCH: u32 = 1 << 3;
const HAS_QUEUES: u32 = 1 << 4;
const QUEUES_COMPLETE: u32 = 1 << 5;

const CRC_AT: usize = STATE_SLOT_LEN - 4;
const UNUSED_LEN: usize = CRC_AT - 120;

const _: () = assert!(size_of::<Slot>() == STATE_SLOT_LEN);

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Slot {
    magic: [u8; 8],
    version: U32,
    flags: U32,
    sequence: U64,
    boot_id: [u8; 16],
    incarnation: U64,
    max_epoch: U32,
    served_epoch: U32,
    flushed: U64,
    scan_from: U64,
    generation: U64,
    clean_end: U64,
    clean_bases_crc: U32,
    clean_last_record_len: U32,
    clean_last_record_crc: U32,
    clean_epoch_file_crc: U32,
    clean_checkpoint_crc: U32,
    queues_through: U64,
    queues_ends_crc: U32,
    unused: [u8; UNUSED_LEN],
    crc: U32,
}

/// A whole slot and where it was.
pub(super) struct Found {
    pub(super) state: State,
    pub(super) sequence: u64,
    pub(super) slot: usize,
}

/// Why a slot holds no state for this program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unusable {
    Short,
    Empty,
    Magic,
    Crc,
    Newer(u32),
    Contradiction(&'static str),
}

impl Unusable {
    pub(super) fn why(self) -> &'static str {
        match self {
            Self::Short => "the file ends inside the slot",
            Self::Empty => "never written",
            Self::Magic => "not a slot of a state file",
            Self::Crc => "torn or damaged: its CRC does not match",
            Self::Newer(_) => "of a newer version",
            Self::Contradiction(why) => why,
        }
    }
}

/// The bytes of a slot that holds `state`.
pub(super) fn encode(state: &State, sequence: u64) -> [u8; STATE_SLOT_LEN] {
    let clean = state.clean.unwrap_or_default();
    let queues = state.queues.unwrap_or_default();
    let flag = |bit, set| if set { bit } else { 0 };
    let flags = flag(CLEAN, state.clean.is_some())
        | flag(SYNC_FAILED, state.sync_failed)
        | flag(HAS_MAX_EPOCH, state.max_epoch.is_some())
        | flag(HAS_SERVED_EPOCH, state.served_epoch.is_some())
        | flag(HAS_QUEUES, state.queues.is_some())
        | flag(QUEUES_COMPLETE, queues.complete);
    let mut slot = Slot {
        magic: MAGIC,
        version: U32::new(STATE_VERSION),
        flags: U32::new(flags),
        sequence: U64::new(sequence),
        boot_id: state.boot_id,
        incarnation: U64::new(state.incarnation),
        max_epoch: U32::new(state.max_epoch.unwrap_or_default()),
        served_epoch: U32::new(state.served_epoch.unwrap_or_default()),
        flushed: U64::new(state.flushed),
        scan_from: U64::new(state.scan_from),
        generation: U64::new(state.generation),
        clean_end: U64::new(clean.end),
        clean_bases_crc: U32::new(clean.bases_crc),
        clean_last_record_len: U32::new(clean.last_record_len),
        clean_last_record_crc: U32::new(clean.last_record_crc),
        clean_epoch_file_crc: U32::new(clean.epoch_file_crc),
        clean_checkpoint_crc: U32::new(clean.checkpoint_crc),
        queues_through: U64::new(queues.through),
        queues_ends_crc: U32::new(queues.ends_crc),
        unused: [0; UNUSED_LEN],
        crc: U32::new(0),
    };
    slot.crc = U32::new(crc32c::crc32c(&slot.as_bytes()[..CRC_AT]));
    zerocopy::transmute!(slot)
}

/// The state in `bytes`, a slot's worth, and its sequence.
pub(super) fn decode(bytes: &[u8]) -> Result<(State, u64), Unusable> {
    let mut slot = Slot::new_zeroed();
    if bytes.len() != STATE_SLOT_LEN {
        return Err(Unusable::Short);
    }
    slot.as_mut_bytes().copy_from_slice(bytes);
    if bytes.iter().all(|byte| *byte == 0) {
        return Err(Unusable::Empty);
    }
    if slot.magic != MAGIC {
        return Err(Unusable::Magic);
    }
    if slot.crc.get() != crc32c::crc32c(&bytes[..CRC_AT]) {
        return Err(Unusable::Crc);
    }
    let version = slot.version.get();
    if version > STATE_VERSION {
        return Err(Unusable::Newer(version));
    }
    let flags = slot.flags.get();
    let has = |bit: u32| flags & bit != 0;
    let state = State {
        clean: has(CLEAN).then(|| CleanStop {
            end: slot.clean_end.get(),
            bases_crc: slot.clean_bases_crc.get(),
            last_record_len: slot.clean_last_record_len.get(),
            last_record_crc: slot.clean_last_record_crc.get(),
            epoch_file_crc: slot.clean_epoch_file_crc.get(),
            checkpoint_crc: slot.clean_checkpoint_crc.get(),
        }),
        boot_id: slot.boot_id,
        incarnation: slot.incarnation.get(),
        max_epoch: has(HAS_MAX_EPOCH).then(|| slot.max_epoch.get()),
        served_epoch: has(HAS_SERVED_EPOCH).then(|| slot.served_epoch.get()),
        flushed: slot.flushed.get(),
        scan_from: slot.scan_from.get(),
        generation: slot.generation.get(),
        sync_failed: has(SYNC_FAILED),
        queues: has(HAS_QUEUES).then(|| QueuesMark {
            through: slot.queues_through.get(),
            ends_crc: slot.queues_ends_crc.get(),
            complete: has(QUEUES_COMPLETE),
        }),
    };
    Ok((state, slot.sequence.get()))
}
