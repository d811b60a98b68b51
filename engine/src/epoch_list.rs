//! Which master wrote which bytes: the list of epochs, and its text in Java's epoch file. Pure.
//!
//! Invariants: epochs grow strictly from entry to entry, starts never fall. Several epochs may start
//! at the same offset (a master elected again before it wrote anything); all of them are kept and the
//! newest labels the bytes. An entry's end is the next larger start and is never stored, so no cut can
//! leave a wrong end behind (RocketMQ: EpochFileCache, CheckpointFile).

use std::fmt::Write as _;

use crate::position::{Epoch, EpochEntry, MAX_EPOCH, MAX_OFFSET, Offset};

/// The epochs of one log, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct EpochList {
    entries: Vec<EpochEntry>,
}

/// An entry and where its bytes end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpochSpan {
    /// The entry.
    pub entry: EpochEntry,
    /// The start of the next epoch with bytes of its own; `None` if this is the newest.
    pub end: Option<Offset>,
}

/// Why an entry cannot follow another in a list. The list is as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EpochListError {
    /// The epoch does not grow or the start falls.
    #[error(
        "epoch {} starting at {} cannot follow epoch {} starting at {}",
        next.epoch, next.start, last.epoch, last.start
    )]
    Order {
        /// The entry before.
        last: EpochEntry,
        /// The entry that cannot follow it.
        next: EpochEntry,
    },
    /// The epoch or the start does not fit the signed numbers Java holds them in.
    #[error("epoch {} starting at {} is beyond what a list can hold", .0.epoch, .0.start)]
    Range(EpochEntry),
}

/// What is wrong with the text of an epoch file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EpochTextError {
    /// A line is missing or is not what it should be.
    #[error("line {line} should be {expected}")]
    Line {
        /// Counted from 1.
        line: usize,
        /// What belongs there.
        expected: &'static str,
    },
    /// There are more or fewer entries than the first line says.
    #[error("the first line says {stated} entries, {found} follow")]
    Count {
        /// By the first line.
        stated: usize,
        /// Lines that follow the second.
        found: usize,
    },
    /// The entries do not match their CRC.
    #[error("the entries' CRC is {computed}, the second line says {stated}")]
    Crc {
        /// By the second line.
        stated: u32,
        /// From the bytes as they are.
        computed: u32,
    },
    /// The entries contradict each other.
    #[error("line {line}: {source}")]
    Entry {
        /// Counted from 1.
        line: usize,
        /// What is wrong with it.
        source: EpochListError,
    },
}

impl EpochList {
    /// An empty list: no bytes have an epoch.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A list of `entries`, oldest first.
    ///
    /// # Errors
    /// [`EpochListError`] at the first entry that cannot follow the one before it.
    pub fn from_entries(entries: Vec<EpochEntry>) -> Result<Self, EpochListError> {
        let mut last = None;
        for &next in &entries {
            check_follows(last, next)?;
            last = Some(next);
        }
        Ok(Self { entries })
    }

    /// All entries, oldest first.
    #[must_use]
    pub fn entries(&self) -> &[EpochEntry] {
        &self.entries
    }

    /// How many entries there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is no entry.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The newest entry.
    #[must_use]
    pub fn last(&self) -> Option<EpochEntry> {
        self.entries.last().copied()
    }

    /// The entry of `epoch`.
    #[must_use]
    pub fn find(&self, epoch: Epoch) -> Option<EpochEntry> {
        let at = self
            .entries
            .binary_search_by_key(&epoch, |entry| entry.epoch)
            .ok()?;
        Some(self.entries[at])
    }

    /// Which epoch the byte at `offset` belongs to: the newest entry that starts at or below it.
    ///
    /// The newest of several equal starts wins, so an epoch without bytes never labels any.
    #[must_use]
    pub fn covering(&self, offset: Offset) -> Option<EpochSpan> {
        let next = self.starting_by(offset);
        let entry = *self.entries[..next].last()?;
        Some(EpochSpan {
            entry,
            end: self.entries.get(next).map(|next| next.start),
        })
    }

    /// Adds a newer epoch. It may start where the last one starts, which then has no bytes.
    ///
    /// # Errors
    /// [`EpochListError`] if the epoch is not larger than the last one, or starts below it.
    pub fn append(&mut self, entry: EpochEntry) -> Result<(), EpochListError> {
        check_follows(self.last(), entry)?;
        self.entries.push(entry);
        Ok(())
    }

    /// Drops the entries that start after `end`: they label bytes the log does not have. One that
    /// starts at `end` claims nothing and stays. Says whether any went.
    pub fn drop_starting_after(&mut self, end: Offset) -> bool {
        self.truncate(self.starting_by(end))
    }

    /// Drops the entries that start at or after `from`; the last one left is open again. Says whether
    /// any went.
    pub fn cut_suffix(&mut self, from: Offset) -> bool {
        self.truncate(self.entries.partition_point(|entry| entry.start < from))
    }

    /// Drops the entries whose bytes all lie below `min`, never the one `min` belongs to. Says whether
    /// any went.
    ///
    /// An entry that ends exactly at `min` stays, as with Java: a slave whose log ends there can still
    /// be told that it agrees.
    pub fn cut_prefix(&mut self, min: Offset) -> bool {
        let ends = self.entries.iter().skip(1).map(|next| next.start);
        let gone = ends.take_while(|end| *end < min).count();
        self.entries.drain(..gone);
        gone > 0
    }

    /// The list a slave has once its log agrees with its master's up to `point`: the master's entries
    /// that start at or below `point`, and before them the slave's own from below the master's first
    /// (the master has cut those off with its oldest segments).
    ///
    /// # Errors
    /// [`EpochListError`] if the two do not fit together: then the logs do not agree at `point`.
    pub fn adopt(&self, master: &Self, point: Offset) -> Result<Self, EpochListError> {
        let first = master
            .entries
            .first()
            .map_or(Offset::MAX, |entry| entry.start);
        let own = self.entries.iter().filter(|entry| entry.start < first);
        let all = own
            .chain(&master.entries)
            .filter(|entry| entry.start <= point);
        Self::from_entries(all.copied().collect())
    }

    /// The list without the epochs that have no bytes, as a Java node would hold it.
    #[must_use]
    pub fn without_zero_length(&self) -> Self {
        let mut entries = self.entries.clone();
        entries.reverse();
        entries.dedup_by_key(|entry| entry.start);
        entries.reverse();
        Self { entries }
    }

    /// The text of Java's epoch file: count, CRC, then a line `epoch-start` for each entry.
    #[must_use]
    pub fn encode(&self) -> String {
        let mut lines = String::new();
        for entry in &self.entries {
            // Writing to a String cannot fail.
            let _ = writeln!(lines, "{}-{}", entry.epoch, entry.start);
        }
        format!(
            "{}\n{}\n{lines}",
            self.entries.len(),
            masked_crc(lines.as_bytes())
        )
    }

    /// Reads the text of an epoch file, with line ends of Unix or of Windows. A CRC of 0 is not
    /// checked, as in Java.
    ///
    /// # Errors
    /// [`EpochTextError`] with the line that is wrong.
    pub fn decode(bytes: &[u8]) -> Result<Self, EpochTextError> {
        let (count, rest) = number_line(bytes, 1, "the number of entries")?;
        let (crc, body) = number_line(rest, 2, "the CRC of the entries")?;
        let stated = usize::try_from(count).unwrap_or(usize::MAX);
        let found = body.split_inclusive(|byte| *byte == b'\n').count();
        if stated != found {
            return Err(EpochTextError::Count { stated, found });
        }
        check_crc(u32::try_from(crc).unwrap_or(u32::MAX), body)?;
        let mut list = Self::new();
        for (line, text) in (3..).zip(body.split_inclusive(|byte| *byte == b'\n')) {
            let entry = parse_entry(without_line_end(text)).ok_or(EpochTextError::Line {
                line,
                expected: "epoch-start in decimal digits",
            })?;
            list.append(entry)
                .map_err(|source| EpochTextError::Entry { line, source })?;
        }
        Ok(list)
    }

    /// A CRC-32C of the list's text, for the proof that it did not change since a clean stop.
    #[must_use]
    pub fn fingerprint(&self) -> u32 {
        crc32c::crc32c(self.encode().as_bytes())
    }

    /// How many entries start at or below `offset`.
    fn starting_by(&self, offset: Offset) -> usize {
        self.entries.partition_point(|entry| entry.start <= offset)
    }

    fn truncate(&mut self, len: usize) -> bool {
        let before = self.entries.len();
        self.entries.truncate(len);
        self.entries.len() < before
    }
}

fn check_follows(last: Option<EpochEntry>, next: EpochEntry) -> Result<(), EpochListError> {
    if next.epoch > MAX_EPOCH || next.start > MAX_OFFSET {
        return Err(EpochListError::Range(next));
    }
    match last {
        Some(last) if next.epoch <= last.epoch || next.start < last.start => {
            Err(EpochListError::Order { last, next })
        }
        _ => Ok(()),
    }
}

/// Takes a line that holds one number off the front of `text`.
fn number_line<'a>(
    text: &'a [u8],
    line: usize,
    expected: &'static str,
) -> Result<(u64, &'a [u8]), EpochTextError> {
    let wrong = EpochTextError::Line { line, expected };
    let Some(end) = text.iter().position(|byte| *byte == b'\n') else {
        return Err(wrong);
    };
    let (number, rest) = text.split_at(end + 1);
    parse_number(without_line_end(number))
        .map(|number| (number, rest))
        .ok_or(wrong)
}

fn without_line_end(line: &[u8]) -> &[u8] {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    line.strip_suffix(b"\r").unwrap_or(line)
}

fn parse_entry(text: &[u8]) -> Option<EpochEntry> {
    let hyphen = text.iter().position(|byte| *byte == b'-')?;
    let epoch = Epoch::try_from(parse_number(&text[..hyphen])?).ok()?;
    Some(EpochEntry {
        epoch,
        start: parse_number(&text[hyphen + 1..])?,
    })
}

/// Decimal digits only: no sign, no spaces, at least one.
fn parse_number(text: &[u8]) -> Option<u64> {
    if !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// Java makes the CRC over the lines with its platform's line ends, and a file may have changed
/// platforms since: either form is right.
fn check_crc(stated: u32, body: &[u8]) -> Result<(), EpochTextError> {
    let computed = masked_crc(body);
    if stated == 0 || stated == computed {
        return Ok(());
    }
    let joined = |line_end: &[u8]| {
        let mut crc = crc32fast::Hasher::new();
        for line in body.split_inclusive(|byte| *byte == b'\n') {
            crc.update(without_line_end(line));
            crc.update(line_end);
        }
        crc.finalize() & 0x7FFF_FFFF
    };
    if stated == joined(b"\n") || stated == joined(b"\r\n") {
        return Ok(());
    }
    Err(EpochTextError::Crc { stated, computed })
}

fn masked_crc(bytes: &[u8]) -> u32 {
    crc32fast::hash(bytes) & 0x7FFF_FFFF
}
