//! Java's `checkpoint` file: six numbers in 4096 bytes.
//!
//! Java maps the file; here it is written in place with one positioned write, by the one process that
//! holds the store's lock. The numbers lie in one sector, so a write of them is old or new.
//! docs/format.md draws the layout (RocketMQ: StoreCheckpoint).

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use zerocopy::byteorder::big_endian::I64;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::durable::{self, FileError, SystemDisk, calls};

/// The file's name in a store folder.
pub const CHECKPOINT_FILE_NAME: &str = "checkpoint";

/// Bytes of the file; what follows the fields is zero.
pub const CHECKPOINT_FILE_LEN: usize = 4096;

/// Bytes of the six fields.
pub const CHECKPOINT_FIELDS_LEN: usize = 48;

/// How far Java's recovery goes back behind the oldest timestamp, in ms.
const RECOVERY_MARGIN_MS: i64 = 3000;

/// A file that long or shorter is read; anything larger is not a checkpoint.
const MAX_FILE_LEN: u64 = 1024 * 1024;

const _: () = assert!(size_of::<Fields>() == CHECKPOINT_FIELDS_LEN);

/// The six numbers. Java writes them as they come; nothing here says that they make sense together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checkpoint {
    /// Store time of the last record that was synced, in ms since 1970.
    pub physic_msg_timestamp_ms: i64,
    /// Store time up to which the consume queues are on disk, in ms since 1970.
    pub logics_msg_timestamp_ms: i64,
    /// Store time up to which the key index is on disk, in ms since 1970.
    pub index_msg_timestamp_ms: i64,
    /// Offset the master had flushed, kept for acting masters.
    pub master_flushed_offset: i64,
    /// Confirm offset; 0 in files of releases before 5.1.1.
    pub confirm_offset: i64,
    /// Offset of the last record whose place in a consume queue is on disk; 0 in files of releases
    /// before 5.5.0. Above 0 it decides, instead of `logics_msg_timestamp_ms`, how far back Java looks
    /// after an unclean stop: it must never be above what the consume queues hold, nor above a cut.
    pub logics_physical_offset: i64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Fields {
    physic_msg_timestamp: I64,
    logics_msg_timestamp: I64,
    index_msg_timestamp: I64,
    master_flushed_offset: I64,
    confirm_offset: I64,
    logics_physical_offset: I64,
}

impl Checkpoint {
    /// Reads the fields from the front of a checkpoint file. What is missing reads as 0, as it would
    /// in Java, which makes the file longer before it looks.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Self {
        let mut fields = Fields::new_zeroed();
        let there = bytes.len().min(CHECKPOINT_FIELDS_LEN);
        fields.as_mut_bytes()[..there].copy_from_slice(&bytes[..there]);
        Self {
            physic_msg_timestamp_ms: fields.physic_msg_timestamp.get(),
            logics_msg_timestamp_ms: fields.logics_msg_timestamp.get(),
            index_msg_timestamp_ms: fields.index_msg_timestamp.get(),
            master_flushed_offset: fields.master_flushed_offset.get(),
            confirm_offset: fields.confirm_offset.get(),
            logics_physical_offset: fields.logics_physical_offset.get(),
        }
    }

    /// The fields as they stand at the front of the file.
    #[must_use]
    pub fn encode(&self) -> [u8; CHECKPOINT_FIELDS_LEN] {
        zerocopy::transmute!(Fields {
            physic_msg_timestamp: I64::new(self.physic_msg_timestamp_ms),
            logics_msg_timestamp: I64::new(self.logics_msg_timestamp_ms),
            index_msg_timestamp: I64::new(self.index_msg_timestamp_ms),
            master_flushed_offset: I64::new(self.master_flushed_offset),
            confirm_offset: I64::new(self.confirm_offset),
            logics_physical_offset: I64::new(self.logics_physical_offset),
        })
    }

    /// Records stored before this time, in ms since 1970, were on disk with their consume queues: where
    /// the recovery of Java before 5.5.0 may begin after an unclean stop.
    #[must_use]
    pub fn min_timestamp_ms(&self) -> i64 {
        let min = self
            .physic_msg_timestamp_ms
            .min(self.logics_msg_timestamp_ms);
        min.saturating_sub(RECOVERY_MARGIN_MS).max(0)
    }

    /// A CRC-32C of the fields, for the proof that they did not change since a clean stop.
    #[must_use]
    pub fn fingerprint(&self) -> u32 {
        crc32c::crc32c(&self.encode())
    }
}

/// The checkpoint of a store folder, open for writing.
#[derive(Debug)]
pub struct CheckpointFile {
    path: PathBuf,
    file: File,
    current: Checkpoint,
}

impl CheckpointFile {
    /// Reads the checkpoint at `path`; writes nothing. `None` if there is no file.
    ///
    /// # Errors
    /// [`FileError`] if the file cannot be read or is far too large to be a checkpoint.
    pub fn read(path: &Path) -> Result<Option<Checkpoint>, FileError> {
        let bytes = durable::read_limited(path, MAX_FILE_LEN)?;
        Ok(bytes.map(|bytes| Checkpoint::decode(&bytes)))
    }

    /// Opens the checkpoint at `path` for writing. A missing file is made, all zero, and is durable on
    /// return; a shorter one is made as long as Java expects it.
    ///
    /// # Errors
    /// [`FileError`] if the system refuses, or the file is far too large to be a checkpoint.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, FileError> {
        let path = path.into();
        let current = if let Some(found) = Self::read(&path)? {
            found
        } else {
            durable::replace(&SystemDisk, &path, &[0; CHECKPOINT_FILE_LEN])?;
            Checkpoint::default()
        };
        let file = File::options()
            .read(true)
            .write(true)
            .open(&path)
            .map_err(FileError::new("open", &path))?;
        let len = file
            .metadata()
            .map_err(FileError::new("look at", &path))?
            .len();
        if len < CHECKPOINT_FILE_LEN as u64 {
            calls::changing(&path)
                .and_then(|()| file.set_len(CHECKPOINT_FILE_LEN as u64))
                .map_err(FileError::new("extend", &path))?;
            calls::sync_all(&file, &path).map_err(FileError::new("sync", &path))?;
        }
        Ok(Self {
            path,
            file,
            current,
        })
    }

    /// What the file holds.
    #[must_use]
    pub fn current(&self) -> Checkpoint {
        self.current
    }

    /// Writes all six fields. On return they are durable.
    ///
    /// # Errors
    /// [`FileError`]; the file then holds the old fields or the new ones.
    pub fn store(&mut self, checkpoint: Checkpoint) -> Result<(), FileError> {
        let bytes = checkpoint.encode();
        calls::changing(&self.path)
            .and_then(|()| self.file.write_all_at(&bytes, 0))
            .map_err(FileError::new("write", &self.path))?;
        calls::sync_data(&self.file, &self.path).map_err(FileError::new("sync", &self.path))?;
        self.current = checkpoint;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOME: Checkpoint = Checkpoint {
        physic_msg_timestamp_ms: 1_700_000_000_123,
        logics_msg_timestamp_ms: 1_700_000_000_001,
        index_msg_timestamp_ms: 7,
        master_flushed_offset: -1,
        confirm_offset: 1 << 40,
        logics_physical_offset: 99,
    };

    #[test]
    fn the_fields_stand_in_javas_order_big_endian() {
        let bytes = SOME.encode();
        let fields: Vec<i64> = bytes
            .chunks(8)
            .map(|field| i64::from_be_bytes(field.try_into().unwrap()))
            .collect();
        assert_eq!(
            fields,
            [1_700_000_000_123, 1_700_000_000_001, 7, -1, 1 << 40, 99]
        );
        assert_eq!(Checkpoint::decode(&bytes), SOME);
    }

    #[test]
    fn a_file_of_java_5_5_has_these_fields_and_no_others() {
        let store =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/java-clean-three-epochs");
        let file = std::fs::read(store.join(CHECKPOINT_FILE_NAME)).unwrap();
        let read = CheckpointFile::read(&store.join(CHECKPOINT_FILE_NAME))
            .unwrap()
            .unwrap();
        assert_eq!(file.len(), CHECKPOINT_FILE_LEN);
        assert_eq!(file[..CHECKPOINT_FIELDS_LEN], read.encode());
        assert!(file[CHECKPOINT_FIELDS_LEN..].iter().all(|byte| *byte == 0));
        let manifest = std::fs::read_to_string(store.join("manifest.jsonl")).unwrap();
        let record = format!("{{\"offset\":{},", read.logics_physical_offset);
        assert!(manifest.contains(&record), "not a record: {read:?}");
        let confirm = read.confirm_offset;
        let starts_there = manifest.contains(&format!("{{\"offset\":{confirm},"));
        let ends_there = manifest.contains(&format!("\"end_offset\":{confirm},"));
        assert!(
            starts_there || ends_there,
            "not a record boundary: {read:?}"
        );
    }

    #[test]
    fn a_short_file_reads_as_if_zeros_followed() {
        let bytes = SOME.encode();
        for len in 0..bytes.len() {
            let mut padded = bytes;
            padded[len..].fill(0);
            assert_eq!(
                Checkpoint::decode(&bytes[..len]),
                Checkpoint::decode(&padded),
                "{len}"
            );
        }
    }

    #[test]
    fn the_minimum_goes_three_seconds_back_and_not_below_zero() {
        assert_eq!(SOME.min_timestamp_ms(), 1_699_999_997_001);
        assert_eq!(Checkpoint::default().min_timestamp_ms(), 0);
        let odd = Checkpoint {
            physic_msg_timestamp_ms: i64::MIN,
            ..SOME
        };
        assert_eq!(odd.min_timestamp_ms(), 0);
    }

    #[test]
    fn a_new_file_is_as_long_as_java_expects_and_keeps_what_is_stored() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(CHECKPOINT_FILE_NAME);
        assert_eq!(CheckpointFile::read(&path).unwrap(), None);
        let mut file = CheckpointFile::open(&path).unwrap();
        assert_eq!(file.current(), Checkpoint::default());
        file.store(SOME).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(bytes.len(), CHECKPOINT_FILE_LEN);
        assert_eq!(bytes[..CHECKPOINT_FIELDS_LEN], SOME.encode());
        assert!(bytes[CHECKPOINT_FIELDS_LEN..].iter().all(|&byte| byte == 0));
        assert_eq!(CheckpointFile::read(&path).unwrap(), Some(SOME));
        assert_eq!(CheckpointFile::open(&path).unwrap().current(), SOME);
    }

    #[test]
    fn a_short_or_longer_file_keeps_its_fields() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(CHECKPOINT_FILE_NAME);
        std::fs::write(&path, &SOME.encode()[..24]).unwrap();
        let mut file = CheckpointFile::open(&path).unwrap();
        let read = Checkpoint {
            master_flushed_offset: 0,
            confirm_offset: 0,
            logics_physical_offset: 0,
            ..SOME
        };
        assert_eq!(file.current(), read);
        assert_eq!(
            std::fs::metadata(&path).unwrap().len(),
            CHECKPOINT_FILE_LEN as u64
        );
        file.store(SOME).unwrap();
        std::fs::write(&path, [&SOME.encode()[..], &[9; 8192]].concat()).unwrap();
        assert_eq!(CheckpointFile::open(&path).unwrap().current(), SOME);
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 8240);
    }

    #[test]
    fn what_is_far_too_large_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(CHECKPOINT_FILE_NAME);
        File::create(&path)
            .unwrap()
            .set_len(MAX_FILE_LEN + 1)
            .unwrap();
        let error = CheckpointFile::open(&path).unwrap_err();
        assert!(
            error.to_string().contains("checkpoint: cannot read"),
            "{error}"
        );
    }
}
