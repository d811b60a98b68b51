//! A disk in memory for the simulated group: what was not synced may be lost at a crash, in whole or
//! in part, and any write may be the one that fails.

#![expect(
    clippy::cast_possible_truncation,
    reason = "memory of a test is counted in usize, disks in u64"
)]

use std::io;
use std::sync::Arc;

use parking_lot::Mutex;

/// A change since the last sync, and how it is undone.
#[derive(Debug)]
enum Change {
    /// Bytes written here; what was there before.
    Written(u64, Vec<u8>),
    /// The length before it grew.
    Grown(usize),
    /// What was cut off.
    Shrunk(Vec<u8>),
}

/// The same change, to be done again.
enum Again {
    Write(u64, Vec<u8>),
    Resize(usize),
}

#[derive(Debug, Default)]
struct DiskState {
    bytes: Vec<u8>,
    unsynced: Vec<Change>,
    /// Handles of former lives cannot write.
    life: u64,
    /// Writes until the disk fails.
    writes_left: Option<u64>,
}

impl DiskState {
    /// Takes the newest change back.
    fn undo(&mut self, change: Change) -> Again {
        match change {
            Change::Written(at, old) => {
                let range = at as usize..at as usize + old.len();
                let new = self.bytes[range.clone()].to_vec();
                self.bytes[range].copy_from_slice(&old);
                Again::Write(at, new)
            }
            Change::Grown(old_len) => {
                let len = self.bytes.len();
                self.bytes.truncate(old_len);
                Again::Resize(len)
            }
            Change::Shrunk(tail) => {
                let len = self.bytes.len();
                self.bytes.extend(tail);
                Again::Resize(len)
            }
        }
    }
}

/// What becomes of unsynced changes when the power goes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Loss {
    /// Only the process died: the system still writes everything.
    Nothing,
    /// Nothing had reached the disk.
    Everything,
    /// Some pages had; which ones is drawn by this number, for each place by itself.
    Some(u64),
}

/// A disk that outlives its user.
#[derive(Clone, Debug, Default)]
pub(super) struct Disk(Arc<Mutex<DiskState>>);

impl Disk {
    /// Whoever used the disk cannot any more, and unsynced changes go.
    pub(super) fn crash(&self, loss: Loss) {
        let mut disk = self.0.lock();
        disk.life += 1;
        disk.writes_left = None;
        let mut changes = std::mem::take(&mut disk.unsynced);
        if matches!(loss, Loss::Nothing) {
            return;
        }
        let mut again = Vec::new();
        while let Some(change) = changes.pop() {
            again.push(disk.undo(change));
        }
        let Loss::Some(number) = loss else {
            return;
        };
        for change in again.into_iter().rev() {
            match change {
                Again::Write(at, new) => {
                    let mixed = (at ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                    if mixed >> 63 == 1 {
                        disk.bytes[at as usize..at as usize + new.len()].copy_from_slice(&new);
                    }
                }
                // Lengths are kept, so that every later write has its place.
                Again::Resize(len) => disk.bytes.resize(len, 0),
            }
        }
    }

    /// The disk fails after this many more writes.
    pub(super) fn fail_after(&self, writes: u64) {
        self.0.lock().writes_left = Some(writes);
    }

    pub(super) fn handle(&self) -> Handle {
        Handle {
            life: self.0.lock().life,
            disk: self.clone(),
        }
    }
}

/// One user of a disk, until its next crash.
#[derive(Debug)]
pub(super) struct Handle {
    disk: Disk,
    life: u64,
}

impl Handle {
    fn with<R>(&self, act: impl FnOnce(&mut DiskState) -> R) -> io::Result<R> {
        let mut disk = self.disk.0.lock();
        if disk.life != self.life {
            return Err(io::Error::other("the power went"));
        }
        Ok(act(&mut disk))
    }

    fn change(&self, act: impl FnOnce(&mut DiskState)) -> io::Result<()> {
        self.with(|disk| {
            match &mut disk.writes_left {
                Some(0) => return Err(io::Error::other("the disk failed")),
                Some(left) => *left -= 1,
                None => {}
            }
            act(disk);
            Ok(())
        })?
    }
}

impl redb::StorageBackend for Handle {
    fn len(&self) -> io::Result<u64> {
        self.with(|disk| disk.bytes.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let at = offset as usize;
        self.with(|disk| out.copy_from_slice(&disk.bytes[at..at + out.len()]))
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let len = len as usize;
        self.change(|disk| {
            let change = match disk.bytes.get(len..) {
                Some(tail) if !tail.is_empty() => Change::Shrunk(tail.to_vec()),
                _ => Change::Grown(disk.bytes.len()),
            };
            disk.unsynced.push(change);
            disk.bytes.resize(len, 0);
        })
    }

    fn sync_data(&self) -> io::Result<()> {
        self.change(|disk| disk.unsynced.clear())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.change(|disk| {
            let range = offset as usize..offset as usize + data.len();
            let old = disk.bytes[range.clone()].to_vec();
            disk.unsynced.push(Change::Written(offset, old));
            disk.bytes[range].copy_from_slice(data);
        })
    }
}

#[cfg(test)]
mod tests {
    use redb::StorageBackend;

    use super::*;

    fn read(disk: &Disk) -> Vec<u8> {
        disk.0.lock().bytes.clone()
    }

    fn written() -> Disk {
        let disk = Disk::default();
        let handle = disk.handle();
        handle.set_len(4).unwrap();
        handle.write(0, b"abcd").unwrap();
        handle.sync_data().unwrap();
        handle.write(0, b"A").unwrap();
        handle.set_len(6).unwrap();
        handle.write(4, b"EF").unwrap();
        handle.write(0, b"X").unwrap();
        handle.set_len(5).unwrap();
        disk
    }

    #[test]
    fn a_crash_takes_unsynced_changes_back_and_ends_its_users() {
        let disk = written();
        let old = disk.handle();
        disk.crash(Loss::Everything);
        assert_eq!(read(&disk), b"abcd");
        assert!(old.write(0, b"Z").is_err() && old.sync_data().is_err());

        let disk = written();
        disk.crash(Loss::Nothing);
        assert_eq!(read(&disk), b"XbcdE");
    }

    #[test]
    fn part_of_what_was_not_synced_may_survive() {
        let mut seen = std::collections::BTreeSet::new();
        for number in 0..64 {
            let disk = written();
            disk.crash(Loss::Some(number << 40));
            seen.insert(read(&disk));
        }
        let expected = [&b"abcd\0"[..], b"abcdE", b"Xbcd\0", b"XbcdE"];
        assert_eq!(seen, expected.map(<[u8]>::to_vec).into());
    }

    #[test]
    fn the_write_named_is_the_one_that_fails() {
        let disk = written();
        disk.fail_after(1);
        let handle = disk.handle();
        handle.write(0, b"Y").unwrap();
        assert!(handle.sync_data().is_err() && handle.write(0, b"Z").is_err());
        assert_eq!(read(&disk), b"YbcdE");
    }
}
