//! A slave in TRANSFER: continuity, epochs before bytes, the overlap check, reports.

use std::collections::VecDeque;

use epochlog_engine::{EpochEntry, Offset};

use super::{Joined, SlaveAction, SlaveClose};
use crate::frame::{Capabilities, HandshakeAnswer, TransferHeader};

/// Heartbeats in a row without a body, while the master has more, that mean it will not serve.
const HEARTBEATS_UNSERVED: u32 = 3;

#[derive(Debug)]
pub(super) struct Transfer {
    point: Offset,
    overlap_from: Offset,
    overlap_floor: Offset,
    /// Compared up to here; equal to `point` when the check is over.
    compared_end: Offset,
    received_end: Offset,
    published_end: Offset,
    flushed_end: Offset,
    is_empty: bool,
    last_epoch: Option<EpochEntry>,
    /// An entry that starts past the received end.
    aside: Option<EpochEntry>,
    /// What follows the compared part of the frame at hand.
    after_compare: Option<(TransferHeader, u32)>,
    pub(super) reported: Option<Offset>,
    /// What the master told at the handshake.
    master: HandshakeAnswer,
    unserved: u32,
}

type Actions = VecDeque<SlaveAction>;

impl Transfer {
    pub(super) fn new(joined: Joined, master: HandshakeAnswer) -> Self {
        let Joined {
            end,
            is_empty,
            last_epoch,
            overlap_from,
            overlap_floor,
        } = joined;
        let overlap_from = overlap_from.unwrap_or(end);
        Self {
            point: end,
            overlap_from,
            overlap_floor,
            compared_end: overlap_from,
            received_end: end,
            published_end: end,
            flushed_end: end,
            is_empty,
            last_epoch,
            aside: None,
            after_compare: None,
            reported: None,
            master,
            unserved: 0,
        }
    }

    pub(super) fn point(&self) -> Offset {
        self.point
    }

    pub(super) fn overlap_from(&self) -> Offset {
        self.overlap_from
    }

    pub(super) fn overlap_floor(&self) -> Offset {
        self.overlap_floor
    }

    /// Whether the peers have agreed on reports of both offsets.
    pub(super) fn reports_both(&self) -> bool {
        self.master
            .extension
            .is_some_and(|it| it.capabilities.contains(Capabilities::BOTH_OFFSETS))
    }

    /// Says where to begin, at once.
    pub(super) fn first_report(&mut self, actions: &mut Actions) {
        self.report(self.overlap_from, actions);
    }

    fn report(&mut self, offset: Offset, actions: &mut Actions) {
        self.reported = Some(offset);
        actions.push_back(SlaveAction::Report(offset));
    }

    /// Where the next frame must begin.
    fn due(&self) -> Offset {
        if self.compared_end < self.point {
            self.compared_end
        } else {
            self.received_end
        }
    }

    pub(super) fn frame(
        &mut self,
        header: &TransferHeader,
        segment_size: u64,
        actions: &mut Actions,
    ) -> Result<(), SlaveClose> {
        let due = self.due();
        if header.body_len == 0 {
            if header
                .offset
                .is_some_and(|offset| offset != due && !self.may_start_anywhere())
            {
                return Err(SlaveClose::OffsetMismatch {
                    got: header.offset,
                    expected: due,
                });
            }
            return self.heartbeat(header, actions);
        }
        let Some(offset) = header.offset else {
            return Err(SlaveClose::OffsetMismatch {
                got: None,
                expected: due,
            });
        };
        if offset != due && !self.may_start_anywhere() {
            return Err(SlaveClose::OffsetMismatch {
                got: header.offset,
                expected: due,
            });
        }
        let room = segment_size - offset % segment_size;
        if u64::from(header.body_len) > room {
            let len = header.body_len;
            return Err(SlaveClose::SegmentSize {
                offset,
                len,
                segment_size,
            });
        }
        self.unserved = 0;
        if self.compared_end < self.point {
            let left = u32::try_from(self.point - self.compared_end).unwrap_or(u32::MAX);
            let len = header.body_len.min(left);
            self.after_compare = Some((*header, len));
            actions.push_back(SlaveAction::Compare { at: offset, len });
            return Ok(());
        }
        if offset != self.received_end {
            self.start_at(offset, segment_size, actions)?;
        }
        self.body(header, header.body_len, actions)
    }

    /// A new replica takes whatever the master begins with.
    fn may_start_anywhere(&self) -> bool {
        self.is_empty && self.received_end == 0
    }

    fn start_at(
        &mut self,
        offset: Offset,
        segment_size: u64,
        actions: &mut Actions,
    ) -> Result<(), SlaveClose> {
        if !offset.is_multiple_of(segment_size) {
            return Err(SlaveClose::StartsInsideSegment {
                offset,
                segment_size,
            });
        }
        actions.push_back(SlaveAction::StartAt(offset));
        self.received_end = offset;
        self.published_end = offset;
        self.point = offset;
        self.compared_end = offset;
        // The master's entries up to here are adopted with the start.
        let known = self.master.entries.iter().rev();
        self.last_epoch = known.copied().find(|entry| entry.start <= offset);
        Ok(())
    }

    /// A frame without a body: a sign of life, perhaps a new epoch, a confirm offset.
    fn heartbeat(
        &mut self,
        header: &TransferHeader,
        actions: &mut Actions,
    ) -> Result<(), SlaveClose> {
        let comparing = self.compared_end < self.point;
        let here = header.offset == Some(self.received_end);
        if here
            && !comparing
            && self
                .last_epoch
                .is_some_and(|last| header.epoch > last.epoch)
        {
            self.new_epoch(entry_of(header), actions)?;
        }
        self.confirm(header, actions);
        // A Java master serves a slave that lies below its first offset heartbeats for ever; one of
        // ours tells it, and holds bytes back while acks are missing.
        let behind = self.master.extension.is_none() && self.master.end > self.received_end;
        self.unserved = if behind { self.unserved + 1 } else { 0 };
        if self.unserved >= HEARTBEATS_UNSERVED {
            let (master_end, end) = (self.master.end, self.received_end);
            return Err(SlaveClose::NotServed { master_end, end });
        }
        Ok(())
    }

    /// `len` bytes at the received end, labelled by `header`.
    fn body(
        &mut self,
        header: &TransferHeader,
        len: u32,
        actions: &mut Actions,
    ) -> Result<(), SlaveClose> {
        let entry = entry_of(header);
        match self.last_epoch {
            Some(last) if entry.epoch < last.epoch => {
                return Err(SlaveClose::EpochFell {
                    got: entry.epoch,
                    last: last.epoch,
                });
            }
            Some(last) if entry.epoch == last.epoch && entry.start != last.start => {
                let received_end = self.received_end;
                return Err(SlaveClose::EpochStart {
                    entry,
                    received_end,
                });
            }
            Some(last) if entry.epoch == last.epoch => (),
            _ => self.new_epoch(entry, actions)?,
        }
        let end = self.received_end + u64::from(len);
        if let Some(aside) = self.aside
            && (aside.start < end || aside.epoch != entry.epoch)
        {
            let received_end = self.received_end;
            return Err(SlaveClose::EpochStart {
                entry: aside,
                received_end,
            });
        }
        self.received_end = end;
        self.is_empty = false;
        actions.push_back(SlaveAction::Receive { len });
        self.confirm(header, actions);
        Ok(())
    }

    /// An epoch newer than the list's last: durable before its bytes, or kept aside.
    fn new_epoch(&mut self, entry: EpochEntry, actions: &mut Actions) -> Result<(), SlaveClose> {
        let received_end = self.received_end;
        if entry.start > received_end {
            match self.aside {
                Some(aside) if aside != entry => {
                    return Err(SlaveClose::EpochStart {
                        entry,
                        received_end,
                    });
                }
                _ => self.aside = Some(entry),
            }
            return Ok(());
        }
        if entry.start < received_end && self.last_epoch.is_some() {
            return Err(SlaveClose::EpochStart {
                entry,
                received_end,
            });
        }
        self.adopt(entry, actions)
    }

    fn adopt(&mut self, entry: EpochEntry, actions: &mut Actions) -> Result<(), SlaveClose> {
        if self.published_end < self.received_end {
            let published_end = self.published_end;
            return Err(SlaveClose::PartialRecord {
                entry,
                published_end,
            });
        }
        // Epochs without bytes never label a frame: those of the master's table that start at the
        // same place come along, or the lists would differ until the next handshake.
        let newer_than = self.last_epoch.map(|last| last.epoch);
        let empty = self.master.entries.iter().filter(|other| {
            other.start == entry.start
                && other.epoch < entry.epoch
                && newer_than.is_none_or(|last| other.epoch > last)
        });
        actions.extend(empty.map(|other| SlaveAction::AdoptEpoch(*other)));
        self.aside = None;
        self.last_epoch = Some(entry);
        actions.push_back(SlaveAction::AdoptEpoch(entry));
        Ok(())
    }

    fn confirm(&self, header: &TransferHeader, actions: &mut Actions) {
        if let Some(confirm) = header.confirm
            && self.compared_end >= self.point
        {
            actions.push_back(SlaveAction::Confirm(confirm));
        }
    }

    /// Returns whether the check is over, so that the point has been reported.
    pub(super) fn compared(&mut self, actions: &mut Actions) -> Result<bool, SlaveClose> {
        let Some((header, len)) = self.after_compare.take() else {
            return Ok(false);
        };
        self.compared_end += u64::from(len);
        if self.compared_end < self.point {
            return Ok(false);
        }
        self.report(self.point, actions);
        match header.body_len - len {
            0 => self.confirm(&header, actions),
            rest => self.body(&header, rest, actions)?,
        }
        Ok(true)
    }

    /// Returns whether a report went out.
    pub(super) fn received(
        &mut self,
        published_end: Offset,
        report: bool,
        actions: &mut Actions,
    ) -> Result<bool, SlaveClose> {
        self.published_end = published_end;
        if let Some(aside) = self.aside
            && aside.start == self.received_end
        {
            self.adopt(aside, actions)?;
        }
        if !report
            || self
                .reported
                .is_some_and(|reported| published_end <= reported)
        {
            return Ok(false);
        }
        self.report(published_end, actions);
        Ok(true)
    }

    /// Returns whether a report went out.
    pub(super) fn flushed(&mut self, offset: Offset, actions: &mut Actions) -> bool {
        let (before, comparing) = (self.flushed_end, self.compared_end < self.point);
        self.flushed_end = offset.min(self.published_end);
        if self.reports_both() {
            // The published end was reported when it grew; only the other offset is news.
            let news = self.flushed_end > before && !comparing;
            if let Some(reported) = self.reported.filter(|_| news) {
                self.report(reported, actions);
            }
            return news;
        }
        if comparing
            || self
                .reported
                .is_some_and(|reported| self.flushed_end <= reported)
        {
            return false;
        }
        self.report(self.flushed_end, actions);
        true
    }
}

fn entry_of(header: &TransferHeader) -> EpochEntry {
    EpochEntry {
        epoch: header.epoch,
        start: header.epoch_start,
    }
}
