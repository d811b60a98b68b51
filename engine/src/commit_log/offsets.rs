//! Questions about where records begin, answered by walking the published bytes of a segment.

use std::sync::Arc;

use crate::error::Error;
use crate::position::Offset;
use crate::queue_offsets::QueueOffsets;
use crate::record::CheckOptions;
use crate::segment::{Segment, to_len};
use crate::walk::{Item, Stop, walk};

use super::{CommitLog, Tail};

impl CommitLog {
    /// Whether a record, a filler or the log's end stands at `offset`.
    pub(crate) fn is_record_boundary(&self, offset: Offset) -> Result<bool, Error> {
        if offset == self.end() {
            return Ok(true);
        }
        let Some(segment) = self.segment_of(offset).filter(|_| offset < self.end()) else {
            return Ok(false);
        };
        let mut found = offset == segment.base();
        if !found {
            self.walk_segment(&segment, |item| {
                let at = match item {
                    Item::Record(record) => record.physical_offset(),
                    Item::Filler(at) => at,
                };
                found = at == offset;
                at < offset
            })?;
        }
        Ok(found)
    }

    /// The start of the last record that ends at or before `offset`.
    pub(crate) fn record_start_before(&self, offset: Offset) -> Result<Option<Offset>, Error> {
        let mut segments = self.segments();
        segments.retain(|segment| segment.base() < offset);
        for segment in segments.iter().rev() {
            let mut last = None;
            self.walk_segment(segment, |item| match item {
                Item::Record(record) if record.end() <= offset => {
                    last = Some(record.physical_offset());
                    true
                }
                _ => false,
            })?;
            if last.is_some() {
                return Ok(last);
            }
        }
        Ok(None)
    }

    /// The largest place at or before `offset`, in the log, where a record, a filler or the end stands.
    pub(crate) fn record_boundary_before(&self, offset: Offset) -> Result<Offset, Error> {
        let Some(segment) = self.segment_of(offset).filter(|_| offset < self.end()) else {
            return Ok(self.end());
        };
        let mut boundary = segment.base();
        self.walk_segment(&segment, |item| {
            let at = match item {
                Item::Record(record) => record.physical_offset(),
                Item::Filler(at) => at,
            };
            if at <= offset {
                boundary = at;
            }
            at < offset
        })?;
        Ok(boundary)
    }

    /// Length and CRC-32C of the last record or filler; `last_record` is the last record's start.
    pub(crate) fn last_item(&self, last_record: Offset) -> Result<(u32, u32), Error> {
        let slice = self.slice(last_record, usize::MAX)?;
        let size = self.settings.segment_size;
        let limit = last_record - last_record % size + size;
        let mut last = last_record;
        let (end, _) = walk(
            &slice,
            last_record,
            limit,
            |_| CheckOptions::STRUCTURE,
            |item| {
                last = match item {
                    Item::Record(record) => record.physical_offset(),
                    Item::Filler(at) => at,
                };
                true
            },
        );
        let bytes = slice.get(to_len(last - last_record)..to_len(end - last_record));
        let bytes = bytes.unwrap_or_default();
        let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        Ok((len, crc32c::crc32c(bytes)))
    }

    /// Makes the table of next queue offsets out of `known`, which holds them for the log below `from`, a
    /// record boundary, and a walk over what is behind.
    pub(crate) fn load_queue_offsets(
        &self,
        tail: &mut Tail,
        known: QueueOffsets,
        from: Offset,
    ) -> Result<(), Error> {
        let mut queues = known;
        for segment in self.segments() {
            if segment.limit() <= from {
                continue;
            }
            let from = from.max(segment.base());
            self.walk_segment_from(&segment, from, |item| {
                if let Item::Record(record) = item {
                    queues.put(&record);
                }
                true
            })?;
        }
        tail.queues = Some(queues);
        Ok(())
    }

    /// Walks what is published of `segment`; anything that is no record there is damage.
    fn walk_segment(
        &self,
        segment: &Arc<Segment>,
        visit: impl FnMut(Item<'_>) -> bool,
    ) -> Result<(), Error> {
        self.walk_segment_from(segment, segment.base(), visit)
    }

    fn walk_segment_from(
        &self,
        segment: &Arc<Segment>,
        from: Offset,
        visit: impl FnMut(Item<'_>) -> bool,
    ) -> Result<(), Error> {
        let Some(slice) = segment.slice(from, usize::MAX) else {
            return Ok(());
        };
        let structure = |_| CheckOptions::STRUCTURE;
        let (at, stop) = walk(&slice, slice.start(), segment.limit(), structure, visit);
        let why = match stop {
            Stop::Done | Stop::Asked => return Ok(()),
            Stop::Empty => "unwritten space below the end".to_owned(),
            Stop::Short => "the record reaches past the end".to_owned(),
            Stop::Bad(why) => why,
        };
        Err(Error::Damaged {
            file: segment.path().clone(),
            offset: at,
            why,
        })
    }
}
