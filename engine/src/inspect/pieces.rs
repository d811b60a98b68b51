//! A segment file read piece by piece into one buffer, which the processor's cache holds.
//!
//! Read and not mapped: a page of a new mapping costs a fault, which takes longer than to copy it; and a file
//! that is made shorter meanwhile is an error here and not a signal.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crate::error::Error;
use crate::folder::SegmentFile;

/// Bytes read at a time. A record that is longer makes the buffer longer.
const PIECE: usize = 256 << 10;

/// The bytes of one file in order, from its first to the length it had when it was listed.
pub(super) struct Pieces<'a> {
    listed: &'a SegmentFile,
    file: File,
    /// Where the next piece begins in the file.
    next: u64,
    buffer: &'a mut Vec<u8>,
    /// What of the buffer was read and not taken yet.
    from: usize,
    to: usize,
}

impl<'a> Pieces<'a> {
    /// `buffer` is used again for the next file; what is in it does not matter.
    pub(super) fn open(listed: &'a SegmentFile, buffer: &'a mut Vec<u8>) -> Result<Self, Error> {
        let path = &listed.path;
        let file = File::open(path).map_err(Error::io("open", path))?;
        Ok(Self {
            listed,
            file,
            next: 0,
            buffer,
            from: 0,
            to: 0,
        })
    }

    /// What was read and not taken.
    pub(super) fn rest(&self) -> &[u8] {
        &self.buffer[self.from..self.to]
    }

    pub(super) fn take(&mut self, len: usize) {
        assert!(len <= self.to - self.from, "only what was read is taken");
        self.from += len;
    }

    /// Reads on; false at the end of the file.
    pub(super) fn read_more(&mut self) -> Result<bool, Error> {
        self.buffer.copy_within(self.from..self.to, 0);
        (self.from, self.to) = (0, self.to - self.from);
        let left = self.listed.len - self.next;
        if left == 0 {
            return Ok(false);
        }
        if self.to + PIECE > self.buffer.len() {
            // Doubled, so that a long record is looked at a few times only.
            self.buffer.resize(self.to * 2 + PIECE, 0);
        }
        let room = &mut self.buffer[self.to..];
        let most = usize::try_from(left).map_or(room.len(), |left| left.min(room.len()));
        let read = self.read_at(most)?;
        self.next += read as u64;
        self.to += read;
        Ok(true)
    }

    fn read_at(&mut self, most: usize) -> Result<usize, Error> {
        let path = &self.listed.path;
        loop {
            let room = &mut self.buffer[self.to..self.to + most];
            match self.file.read_at(room, self.next) {
                Ok(0) => {
                    let (end, len) = (self.next, self.listed.len);
                    let why = format!("it ends at {end} and had {len} bytes a moment ago");
                    let error = io::Error::new(io::ErrorKind::UnexpectedEof, why);
                    return Err(Error::io("read", path)(error));
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                read => return read.map_err(Error::io("read", path)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn file(len: usize) -> (tempfile::TempDir, SegmentFile, Vec<u8>) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("segment");
        let bytes: Vec<u8> = (0..=250).flat_map(|at| [at; 7]).cycle().take(len).collect();
        fs::write(&path, &bytes).unwrap();
        let len = len as u64;
        (dir, SegmentFile { base: 0, len, path }, bytes)
    }

    #[test]
    fn every_byte_comes_once_and_in_order_whatever_is_taken() {
        let (_dir, listed, bytes) = file(3 * PIECE + 5);
        for step in [1, 1000, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE] {
            let mut buffer = Vec::new();
            let mut pieces = Pieces::open(&listed, &mut buffer).unwrap();
            let mut seen = Vec::new();
            while pieces.read_more().unwrap() {
                while pieces.rest().len() >= step {
                    // A byte alone would take its time.
                    let len = if step == 1 { pieces.rest().len() } else { step };
                    seen.extend_from_slice(&pieces.rest()[..len]);
                    pieces.take(len);
                }
            }
            seen.extend_from_slice(pieces.rest());
            assert!(seen == bytes, "steps of {step}");
        }
    }

    #[test]
    fn h02_a_file_that_was_made_shorter_is_an_error_that_names_it() {
        let (_dir, listed, _) = file(3 * PIECE);
        let mut buffer = Vec::new();
        let mut pieces = Pieces::open(&listed, &mut buffer).unwrap();
        assert!(pieces.read_more().unwrap());
        let short = File::options().write(true).open(&listed.path).unwrap();
        short.set_len(PIECE as u64 + 100).unwrap();
        let error = loop {
            match pieces.read_more() {
                Ok(more) => assert!(more, "the end was not reached"),
                Err(error) => break error.to_string(),
            }
        };
        assert!(error.contains("segment"), "{error}");
        assert!(error.contains(&(PIECE + 100).to_string()), "{error}");
    }
}
