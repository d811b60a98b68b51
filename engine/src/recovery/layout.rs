//! Which files under `commitlog/` form a log: equal lengths, no gap. Pure.

use std::path::PathBuf;

use crate::error::Error;
use crate::folder::{Folder, Listing, SegmentFile};
use crate::position::Offset;
use crate::store::MIN_SEGMENT_SIZE;

use super::Examination;

/// The segments that form a log, and the rest.
pub(crate) struct Layout {
    pub(crate) segments: Vec<SegmentFile>,
    /// Named as segments, but behind a gap or of another length; oldest first.
    pub(crate) leftovers: Vec<PathBuf>,
    /// Why the first of them is none of the log.
    pub(crate) irregular: Option<String>,
    pub(crate) segment_size: u64,
}

/// The length segments have, or are to have.
pub(super) fn segment_size(listing: &Listing, examination: &Examination<'_>) -> Result<u64, Error> {
    let configured = examination.segment_size;
    let Some(found) = listing.common_len() else {
        return Ok(configured);
    };
    if found == configured {
        return Ok(configured);
    }
    let usable = (MIN_SEGMENT_SIZE..=u64::from(i32::MAX.unsigned_abs())).contains(&found);
    if examination.adopt_segment_size && usable {
        return Ok(found);
    }
    let path = listing.segments.iter().find(|segment| segment.len == found);
    Err(Error::SegmentSize {
        path: path.map(|segment| segment.path.clone()).unwrap_or_default(),
        len: found,
        segment_size: configured,
    })
}

impl Layout {
    /// Sorts the files of a folder. `flushed` is the durable mark; without one (a folder that Java
    /// wrote) only an empty file behind all others is a leftover, and anything else is refused.
    pub(crate) fn of(
        listing: &Listing,
        segment_size: u64,
        flushed: Option<Offset>,
        folder: &Folder,
    ) -> Result<Self, Error> {
        let mut segments: Vec<SegmentFile> = Vec::new();
        let mut found_irregular = None;
        let mut rest = &listing.segments[..];
        while let [file, behind @ ..] = rest {
            let Some(why) = irregular(segments.last(), file, segment_size) else {
                segments.push(file.clone());
                rest = behind;
                continue;
            };
            let durable_to = segments.last().map_or(0, |last| last.base + segment_size);
            let leftover = match flushed {
                Some(flushed) => flushed <= durable_to,
                None => file.len == 0 && behind.is_empty(),
            };
            if !leftover {
                let (file, offset) = (file.path.clone(), durable_to);
                return Err(Error::Damaged { file, offset, why });
            }
            found_irregular = Some(why);
            break;
        }
        if let (None, Some(flushed @ 1..)) = (segments.first(), flushed) {
            let why = format!("no segment is there, but the log was durable up to {flushed}");
            return Err(Error::Damaged {
                file: folder.commit_log(),
                offset: 0,
                why,
            });
        }
        let leftovers = rest.iter().map(|file| file.path.clone()).collect();
        Ok(Self {
            segments,
            leftovers,
            irregular: found_irregular,
            segment_size,
        })
    }

    /// The log's first offset.
    pub(crate) fn min(&self) -> Offset {
        self.segments.first().map_or(0, |first| first.base)
    }

    /// Where the segments end.
    pub(crate) fn limit(&self) -> Offset {
        self.segments
            .last()
            .map_or(0, |last| last.base + self.segment_size)
    }
}

/// Why `file` cannot follow `last` in a log; nothing if it can.
fn irregular(last: Option<&SegmentFile>, file: &SegmentFile, segment_size: u64) -> Option<String> {
    if file.len != segment_size {
        return Some(format!(
            "the file has {} bytes instead of {segment_size}",
            file.len
        ));
    }
    match last {
        None if !file.base.is_multiple_of(segment_size) => Some(format!(
            "its name is no multiple of the segment length {segment_size}"
        )),
        Some(last) if last.base + segment_size != file.base => {
            let expected = last.base + segment_size;
            Some(format!(
                "a segment is missing before it: the log goes on at {expected}"
            ))
        }
        _ => None,
    }
}
