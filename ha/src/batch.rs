//! The epoch-bounded cursor: where a connection stands in the log, and what its next frame carries.
//!
//! Invariants of every frame: its body lies inside one epoch and inside one segment, its label is
//! the newest epoch that starts at or before its first byte (so never one without bytes), and it
//! begins where the frame before it ended.
//!
//! The end of the current epoch is looked up again for each frame: a master that stays master in a
//! newer epoch closes its old one while connections stand.
//!
//! Pure. RocketMQ: `AutoSwitchHAConnection`, with `currentTransferEpoch` and
//! `currentTransferEpochEndOffset`.

use epochlog_engine::{Epoch, EpochEntry, EpochList, Offset};

use crate::frame::MAX_EXTENDED_BODY_LEN;

/// How far a log reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogBounds {
    /// The first offset it holds.
    pub min: Offset,
    /// Its published end.
    pub end: Offset,
    /// Bytes of a segment; segments begin at multiples of it.
    pub segment_size: u64,
}

impl LogBounds {
    /// The end of the segment that holds `offset`.
    pub fn segment_end(&self, offset: Offset) -> Offset {
        offset - offset % self.segment_size + self.segment_size
    }

    /// The start of the segment that holds `offset`.
    pub fn segment_start(&self, offset: Offset) -> Offset {
        offset - offset % self.segment_size
    }
}

/// One frame's worth of log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Its first byte.
    pub offset: Offset,
    /// Its length in bytes, 1 to [`MAX_EXTENDED_BODY_LEN`].
    pub len: u32,
    /// The epoch all of it belongs to.
    pub epoch: EpochEntry,
}

impl Batch {
    /// The offset after its last byte.
    pub fn end(&self) -> Offset {
        self.offset + u64::from(self.len)
    }
}

/// Why there can be no next frame. The connection ends; the slave shakes hands anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CursorError {
    /// The position was deleted from the front of the log.
    #[error("position {next} is below the log's first offset {min}")]
    BelowMin {
        /// The position.
        next: Offset,
        /// The log's first offset.
        min: Offset,
    },
    /// The log was cut below the position.
    #[error("position {next} is past the log's end {end}")]
    PastEnd {
        /// The position.
        next: Offset,
        /// The log's end.
        end: Offset,
    },
    /// The epoch list has no entry at or before the position.
    #[error("no epoch covers position {next}; the epoch file lacks its beginning")]
    NoEpoch {
        /// The position.
        next: Offset,
    },
}

/// Where a connection stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransferCursor {
    next: Offset,
    current_transfer_epoch: Option<Epoch>,
    current_transfer_epoch_end_offset: Option<Offset>,
}

impl TransferCursor {
    /// A cursor whose first frame begins at `start`.
    pub fn at(start: Offset) -> Self {
        Self {
            next: start,
            current_transfer_epoch: None,
            current_transfer_epoch_end_offset: None,
        }
    }

    /// Where the next frame begins.
    pub fn next(&self) -> Offset {
        self.next
    }

    /// The epoch last looked up.
    pub fn current_transfer_epoch(&self) -> Option<Epoch> {
        self.current_transfer_epoch
    }

    /// Where that epoch ended when it was looked up; none while it is the newest.
    pub fn current_transfer_epoch_end_offset(&self) -> Option<Offset> {
        self.current_transfer_epoch_end_offset
    }

    /// The epoch of the cursor's position, for a heartbeat.
    ///
    /// # Errors
    /// [`CursorError::NoEpoch`].
    pub fn label(&mut self, epochs: &EpochList) -> Result<EpochEntry, CursorError> {
        let span = epochs
            .covering(self.next)
            .ok_or(CursorError::NoEpoch { next: self.next })?;
        self.current_transfer_epoch = Some(span.entry.epoch);
        self.current_transfer_epoch_end_offset = span.end;
        Ok(span.entry)
    }

    /// The next frame, of at most `max_len` bytes; none when everything published has been taken.
    /// The cursor stays where it is until [`TransferCursor::advance`].
    ///
    /// # Errors
    /// [`CursorError`] when the position is not (or no longer) inside the log and its epochs.
    pub fn batch(
        &mut self,
        epochs: &EpochList,
        bounds: LogBounds,
        max_len: u32,
    ) -> Result<Option<Batch>, CursorError> {
        let (next, LogBounds { min, end, .. }) = (self.next, bounds);
        if next < min {
            return Err(CursorError::BelowMin { next, min });
        }
        if next > end {
            return Err(CursorError::PastEnd { next, end });
        }
        let epoch = self.label(epochs)?;
        let epoch_end = self
            .current_transfer_epoch_end_offset
            .unwrap_or(Offset::MAX);
        let until = end.min(epoch_end).min(bounds.segment_end(next));
        let max_len = max_len.clamp(1, MAX_EXTENDED_BODY_LEN);
        let len = u32::try_from(until - next).map_or(max_len, |len| len.min(max_len));
        Ok((len > 0).then_some(Batch {
            offset: next,
            len,
            epoch,
        }))
    }

    /// The batch was handed to the connection.
    pub fn advance(&mut self, batch: &Batch) {
        debug_assert_eq!(batch.offset, self.next, "frames are contiguous");
        self.next = batch.end();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn list(entries: &[(Epoch, Offset)]) -> EpochList {
        let entries = entries.iter().map(|(epoch, start)| EpochEntry {
            epoch: *epoch,
            start: *start,
        });
        EpochList::from_entries(entries.collect()).unwrap()
    }

    fn bounds(end: Offset) -> LogBounds {
        LogBounds {
            min: 0,
            end,
            segment_size: 1 << 20,
        }
    }

    /// (offset, len, epoch, start) of every frame from `cursor` to the end.
    fn frames(
        cursor: &mut TransferCursor,
        epochs: &EpochList,
        bounds: LogBounds,
        max: u32,
    ) -> Vec<(Offset, u32, Epoch, Offset)> {
        let mut out = Vec::new();
        while let Some(batch) = cursor.batch(epochs, bounds, max).unwrap() {
            out.push((
                batch.offset,
                batch.len,
                batch.epoch.epoch,
                batch.epoch.start,
            ));
            cursor.advance(&batch);
        }
        out
    }

    #[test]
    fn a09_the_end_of_an_epoch_is_looked_up_again_for_each_frame() {
        let mut epochs = list(&[(1, 0)]);
        let mut cursor = TransferCursor::at(0);
        assert_eq!(
            frames(&mut cursor, &epochs, bounds(100), 32768),
            [(0, 100, 1, 0)]
        );
        assert_eq!(cursor.current_transfer_epoch_end_offset(), None);
        epochs
            .append(EpochEntry {
                epoch: 2,
                start: 150,
            })
            .unwrap();
        let got = frames(&mut cursor, &epochs, bounds(300), 32768);
        assert_eq!(got, [(100, 50, 1, 0), (150, 150, 2, 150)]);
        // The old epoch is deleted with its segments: nothing stalls.
        assert!(epochs.cut_prefix(200));
        assert_eq!(
            frames(&mut cursor, &epochs, bounds(310), 32768),
            [(300, 10, 2, 150)]
        );
    }

    #[test]
    fn a08_of_equal_starts_the_newest_labels_the_data() {
        let epochs = list(&[(1, 0), (2, 0), (3, 0), (4, 100), (5, 100), (6, 200)]);
        let mut cursor = TransferCursor::at(0);
        let got = frames(&mut cursor, &epochs, bounds(250), 32768);
        assert_eq!(got, [(0, 100, 3, 0), (100, 100, 5, 100), (200, 50, 6, 200)]);
        assert_eq!(cursor.label(&epochs).unwrap().epoch, 6);
    }

    #[test]
    fn a_heartbeat_at_the_end_carries_the_epoch_that_starts_there() {
        let epochs = list(&[(1, 0), (2, 100)]);
        let mut cursor = TransferCursor::at(100);
        assert_eq!(cursor.batch(&epochs, bounds(100), 10), Ok(None));
        assert_eq!(
            cursor.label(&epochs).unwrap(),
            EpochEntry {
                epoch: 2,
                start: 100
            }
        );
    }

    #[test]
    fn a_position_outside_log_or_epochs_ends_the_connection() {
        let epochs = list(&[(1, 50)]);
        let at = |next| TransferCursor::at(next).batch(&epochs, bounds(100), 10);
        assert_eq!(at(49), Err(CursorError::NoEpoch { next: 49 }));
        assert_eq!(
            at(101),
            Err(CursorError::PastEnd {
                next: 101,
                end: 100
            })
        );
        assert!(at(50).unwrap().is_some());
        let cut = LogBounds {
            min: 60,
            ..bounds(100)
        };
        let below = TransferCursor::at(50).batch(&epochs, cut, 10);
        assert_eq!(below, Err(CursorError::BelowMin { next: 50, min: 60 }));
        let none = TransferCursor::at(0).batch(&EpochList::new(), bounds(0), 10);
        assert_eq!(none, Err(CursorError::NoEpoch { next: 0 }));
    }

    #[test]
    fn a_batch_is_never_larger_than_a_frame_may_be() {
        let epochs = list(&[(0, 0)]);
        let wide = LogBounds {
            min: 0,
            end: 1 << 40,
            segment_size: 1 << 33,
        };
        for (max, expect) in [(0, 1), (1, 1), (u32::MAX, MAX_EXTENDED_BODY_LEN)] {
            let batch = TransferCursor::at(0)
                .batch(&epochs, wide, max)
                .unwrap()
                .unwrap();
            assert_eq!(batch.len, expect);
        }
    }

    /// Gaps between epoch starts (0: equal starts), where the log is read from, how it grows.
    type Case = (Vec<u64>, u64, Vec<u64>, u64, u32);

    fn case() -> impl Strategy<Value = Case> {
        (
            proptest::collection::vec(0u64..60, 1..8),
            0u64..200,
            proptest::collection::vec(0u64..120, 1..5),
            16u64..200,
            1u32..80,
        )
    }

    proptest! {
        /// Concatenated bodies equal the log, no body crosses an epoch or a segment, and each label
        /// is the newest epoch at or before its first byte. A failure prints its seed.
        #[test]
        fn bodies_equal_the_log_and_cross_no_bound(
            (gaps, start, grows, segment_size, max) in case()
        ) {
            let mut at = 0;
            let all: Vec<_> = gaps.iter().enumerate().map(|(i, gap)| {
                at += if i == 0 { 0 } else { *gap };
                EpochEntry { epoch: u32::try_from(i).unwrap() * 2, start: at }
            }).collect();
            let mut end = start;
            let mut cursor = TransferCursor::at(start);
            let mut taken = start;
            for grow in grows {
                end += grow;
                // A master knows the epochs that begin at or before its end.
                let known = all.iter().copied().filter(|e| e.start <= end).collect();
                let epochs = EpochList::from_entries(known).unwrap();
                let bounds = LogBounds { min: 0, end, segment_size };
                while let Some(batch) = cursor.batch(&epochs, bounds, max).unwrap() {
                    prop_assert_eq!(batch.offset, taken);
                    prop_assert!(batch.len >= 1 && batch.len <= max);
                    prop_assert!(batch.end() <= end);
                    prop_assert_eq!(batch.offset / segment_size, (batch.end() - 1) / segment_size);
                    for offset in [batch.offset, batch.end() - 1] {
                        let newest = all.iter().rev().find(|e| e.start <= offset).unwrap();
                        prop_assert_eq!(batch.epoch, *newest);
                    }
                    cursor.advance(&batch);
                    taken = batch.end();
                }
                prop_assert_eq!(taken, end);
            }
        }

        /// The same over larger tables, with old segments and their epochs going meanwhile and a batch size
        /// that changes from frame to frame; the bytes themselves are put together.
        #[test]
        fn bodies_put_together_are_the_log_while_its_beginning_goes(
            gaps in proptest::collection::vec((0u64..4000, 1u32..1000), 1..12),
            steps in proptest::collection::vec((0u64..6000, 0u64..=100), 1..12),
            sizes in proptest::collection::vec(1u32..5000, 1..6),
            segment_size in 64u64..5000,
        ) {
            let (mut at, mut epoch) = (0, 0);
            let all: Vec<_> = gaps.iter().enumerate().map(|(i, (gap, step))| {
                (at, epoch) = if i == 0 { (0, 0) } else { (at + *gap, epoch + *step) };
                EpochEntry { epoch, start: at }
            }).collect();
            let byte = |at: u64| (at.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56).to_le_bytes()[0];
            let (mut min, mut end, mut together) = (0, 0, Vec::new());
            let mut cursor = TransferCursor::at(0);
            let mut sizes = sizes.iter().cycle();
            for (grow, kept) in steps {
                end += grow;
                let known = all.iter().copied().filter(|e| e.start <= end).collect();
                let mut epochs = EpochList::from_entries(known).unwrap();
                epochs.cut_prefix(min);
                let bounds = LogBounds { min, end, segment_size };
                // Not always to the end: the log may grow while a slave is behind.
                for _ in 0..20 {
                    let max = *sizes.next().unwrap();
                    let Some(batch) = cursor.batch(&epochs, bounds, max).unwrap() else { break };
                    prop_assert_eq!(batch.offset, together.len() as u64);
                    prop_assert!(1 <= batch.len && batch.len <= max && batch.end() <= end);
                    prop_assert_eq!(batch.offset / segment_size, (batch.end() - 1) / segment_size);
                    let within = all.iter().filter(|e| {
                        batch.offset < e.start && e.start < batch.end()
                    }).count();
                    prop_assert_eq!(within, 0, "an epoch begins inside of a body");
                    let newest = all.iter().rev().find(|e| e.start <= batch.offset).unwrap();
                    prop_assert_eq!(batch.epoch, *newest);
                    together.extend((batch.offset..batch.end()).map(byte));
                    cursor.advance(&batch);
                }
                // Whole segments go, of what this slave has.
                let goes = cursor.next() * (100 - kept) / 100;
                min = min.max(goes - goes % segment_size);
            }
            let expect: Vec<u8> = (0..cursor.next()).map(byte).collect();
            prop_assert!(together == expect);
        }
    }
}
