//! What a log holds, in two numbers: two sides wrote the same messages to the same offsets if these
//! are equal. Master and slave must agree in the store times too.

use std::error::Error;
use std::fs::File;
use std::io::{BufReader, Read};
use std::ops::Range;
use std::path::Path;

use epochlog_engine::{FILLER_MAGIC, FILLER_MIN_LEN, MAX_RECORD_LEN, RECORD_MAGIC_V1};

/// The store time in a record whose born host is an IPv4 address (docs/format.md).
const STORE_TIME: Range<usize> = 56..64;
const PREFIX_LEN: usize = 8;
const BUFFER: usize = 1 << 20;

/// A log from its first byte to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Digest {
    end: u64,
    records: u64,
    /// CRC-32 of all records without their store times.
    content: u32,
    /// CRC-32 of the store times; of master and slave only.
    times: u32,
}

impl Digest {
    /// Reads the log in the store folder `dir`, which begins at 0 and ends at `end`.
    ///
    /// # Errors
    /// What cannot be read, with file and offset.
    pub(crate) fn of_log(dir: &Path, segment_size: u64, end: u64) -> Result<Self, Box<dyn Error>> {
        let mut content = crc32fast::Hasher::new();
        let mut times = crc32fast::Hasher::new();
        let mut record = Vec::new();
        let mut records = 0;
        for base in (0..end).step_by(usize::try_from(segment_size)?) {
            let path = dir.join("commitlog").join(format!("{base:020}"));
            let shown = path.display();
            let file = File::open(&path).map_err(|error| format!("{shown}: {error}"))?;
            let mut file = BufReader::with_capacity(BUFFER, file);
            let mut at = base;
            while at < end.min(base + segment_size) {
                let read = next(&mut file, &mut record);
                let magic = read.map_err(|error| format!("{shown} at offset {at}: {error}"))?;
                if magic == FILLER_MAGIC {
                    break;
                }
                times.update(&record[STORE_TIME]);
                record[STORE_TIME].fill(0);
                content.update(&record);
                records += 1;
                at += record.len() as u64;
            }
        }
        Ok(Self {
            end,
            records,
            content: content.finalize(),
            times: times.finalize(),
        })
    }

    /// Whether both hold the same messages at the same offsets, whenever they were stored.
    pub(crate) fn holds_the_same(&self, other: &Self) -> bool {
        (self.end, self.records, self.content) == (other.end, other.records, other.content)
    }
}

/// Reads a record, or only its head if it is a filler, and answers its magic.
fn next(file: &mut impl Read, record: &mut Vec<u8>) -> Result<i32, Box<dyn Error>> {
    record.resize(PREFIX_LEN, 0);
    file.read_exact(record)?;
    let number = |at: usize| i32::from_be_bytes([0, 1, 2, 3].map(|i| record[at + i]));
    let (len, magic) = (usize::try_from(number(0))?, number(4));
    if magic == FILLER_MAGIC && len >= FILLER_MIN_LEN {
        return Ok(magic);
    }
    if magic != RECORD_MAGIC_V1 || !(STORE_TIME.end..=MAX_RECORD_LEN).contains(&len) {
        return Err(format!("no record of this bench: length {len}, magic {magic:#x}").into());
    }
    record.resize(len, 0);
    file.read_exact(&mut record[PREFIX_LEN..])?;
    Ok(magic)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use epochlog_engine::{Store, StoreConfig};

    use super::*;
    use crate::messages::Messages;

    const SEGMENT: u64 = 64 << 10;

    /// A log of `count` messages in segments of 64 KiB, and its end.
    fn log(count: usize) -> (tempfile::TempDir, u64) {
        let dir = tempfile::tempdir().unwrap();
        let mut config = StoreConfig::new(dir.path());
        config.segment_size = SEGMENT;
        let store = Store::open(config).unwrap();
        store.promote(1).unwrap();
        let messages = Messages::new();
        for n in 0..count {
            store.append(&messages.single(n)).unwrap();
        }
        let end = store.end_offset();
        store.close().unwrap();
        (dir, end)
    }

    fn change(dir: &Path, at: usize) {
        let path = dir.join("commitlog/00000000000000065536");
        let mut bytes = fs::read(&path).unwrap();
        bytes[at] ^= 1;
        fs::write(&path, bytes).unwrap();
    }

    #[test]
    fn two_logs_are_equal_but_for_their_times_until_a_bit_is_changed() {
        let ((one, end), (two, same_end)) = (log(200), log(200));
        assert_eq!(end, same_end);
        let of = |dir: &Path| Digest::of_log(dir, SEGMENT, end).unwrap();
        let (left, right) = (of(one.path()), of(two.path()));
        assert_eq!(left.records, 200);
        assert!(left.holds_the_same(&right));

        change(two.path(), STORE_TIME.end - 1);
        let later = of(two.path());
        assert!(later.holds_the_same(&left));
        assert_ne!(later, right, "the time of one record was changed");

        change(two.path(), 500);
        assert!(!of(two.path()).holds_the_same(&left));
    }

    #[test]
    fn a_log_that_is_cut_short_or_damaged_is_an_error_with_its_offset() {
        let (dir, end) = log(100);
        let longer = Digest::of_log(dir.path(), SEGMENT, end + 4096).unwrap_err();
        assert!(
            longer.to_string().contains(&format!("offset {end}")),
            "{longer}"
        );
        change(dir.path(), 5);
        let damaged = Digest::of_log(dir.path(), SEGMENT, end).unwrap_err();
        assert!(damaged.to_string().contains("offset 65536"), "{damaged}");
    }
}
