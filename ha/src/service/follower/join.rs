//! Joining a master: decide, cut, look back; and what follows when bytes differ after all.

use epochlog_engine::{EpochList, Offset};

use super::super::Core;
use super::super::clock::now_ms;
use super::super::runtime_info::JoinInfo;
use super::following::{Following, log_refuses};
use crate::frame::HandshakeAnswer;
use crate::handshake::{Decision, MasterSide, SlaveSide, Why, decide};
use crate::slave::{Joined, Lookback, SlaveClose};

impl Following {
    /// Carries out the handshake's decision. The cut and the list are durable on return.
    pub(super) fn join(
        &mut self,
        answer: HandshakeAnswer,
        lookback: Lookback,
        core: &Core,
    ) -> Result<(), SlaveClose> {
        let store = &core.store;
        if core.config.report_flushed {
            store.flush().map_err(log_refuses)?;
        }
        let master_epochs =
            EpochList::from_entries(answer.entries).map_err(|error| SlaveClose::LogRefuses {
                why: error.to_string(),
                terminal: false,
            })?;
        let own = store.epochs();
        let (min, end) = (store.min_offset(), store.end_offset());
        let slave = SlaveSide {
            epochs: &own,
            min,
            end,
            role_epoch: Some(self.target.epoch),
        };
        let master = MasterSide {
            epochs: &master_epochs,
            end: answer.end,
            role_epoch: answer.extension.map(|told| told.role_epoch),
        };
        let mut unreadable = None;
        let decision = decide(slave, master, |point| {
            store.is_record_boundary(point).unwrap_or_else(|error| {
                unreadable = Some(error);
                false
            })
        });
        if let Some(error) = unreadable {
            return Err(log_refuses(error));
        }
        let decision = decision?;
        let why = decision.why.to_string();
        let cut = store.truncate(decision.point, decision.epochs.clone(), &why);
        let cut = cut.map_err(log_refuses)?;
        let info = JoinInfo {
            point: decision.point,
            cut_bytes: cut.cut_bytes,
            why,
            last_epoch: decision.epochs.last(),
        };
        tracing::info!(
            master = %self.target.master_addr, point = info.point, cut_bytes = info.cut_bytes,
            saved_to = ?cut.saved_to, "joining the master: {}", info.why
        );
        if info.cut_bytes > 0 {
            core.metrics.truncations.add(1);
            core.metrics.truncated_bytes.add(info.cut_bytes);
        }
        self.resync_announced = false;
        self.last_join = Some(info);
        self.last_close = None;
        self.master_epochs = master_epochs;
        self.receiver = Some(store.receive().map_err(log_refuses)?);
        let joined = joined(&decision, lookback, core)?;
        self.overlap_from = joined.overlap_from.unwrap_or(decision.point);
        self.machine.decided(joined, now_ms());
        Ok(())
    }

    /// Compares what the master holds at `at` with the own log.
    pub(super) fn compare(
        &mut self,
        at: Offset,
        bytes: &[u8],
        core: &Core,
    ) -> Result<(), SlaveClose> {
        let own = core.store.slice(at, bytes.len()).map_err(log_refuses)?;
        let differs = own
            .iter()
            .zip(bytes)
            .position(|(own, master)| own != master);
        if differs.is_none() && own.len() == bytes.len() {
            self.machine.compared(now_ms());
            return Ok(());
        }
        let first = at + differs.unwrap_or(own.len()) as u64;
        let record = record_around(first, core)?;
        tracing::error!(
            master = %self.target.master_addr, first, record,
            "bytes below the consistent point differ from the master's"
        );
        let record = Some(record).filter(|record| *record > self.overlap_from);
        self.differs(record);
        Ok(())
    }

    /// Where the operator allowed it, a log that can follow this master in no other way is discarded:
    /// first the controller is told, by a new incarnation that heartbeats carry, that what this node
    /// had is not to be counted on; a pause and one more refusal later the log goes.
    pub(super) fn consider_resync(&mut self, reason: &SlaveClose, core: &Core) {
        if !core.config.resync_allowed || !reason.resync_helps() {
            return;
        }
        if self.resync_announced {
            self.resync_due = true;
            return;
        }
        match core.store.renew_incarnation() {
            Ok(incarnation) => {
                self.resync_announced = true;
                tracing::warn!(
                    incarnation,
                    "this log will be discarded if the master refuses it again"
                );
            }
            Err(error) => tracing::error!(%error, "a resync cannot be announced"),
        }
    }

    /// Discards the log; the next handshake is that of a new replica.
    pub(super) fn resync(&mut self, core: &Core) {
        self.resync_announced = false;
        let store = &core.store;
        let (min, end) = (store.min_offset(), store.end_offset());
        let discard = || {
            let reason = "automatic resync: the master can be followed in no other way";
            let cut = store.truncate(min, EpochList::new(), reason)?;
            let mut receiver = store.receive()?;
            receiver.start_at(0)?;
            receiver.finish()?;
            Ok::<_, epochlog_engine::Error>(cut)
        };
        match discard() {
            Ok(cut) => {
                core.metrics.resyncs.add(1);
                core.metrics.truncated_bytes.add(cut.cut_bytes);
                tracing::error!(min, end, saved_to = ?cut.saved_to, "the log was discarded");
            }
            Err(error) => tracing::error!(%error, "the log could not be discarded"),
        }
    }

    /// Cuts the log at the first record that differs from the master's.
    pub(super) fn cut(&mut self, at: Offset, core: &Core) {
        let epochs = core.store.epochs().adopt(&self.master_epochs, at);
        let Ok(epochs) = epochs else {
            tracing::error!(
                at,
                "the master's epochs do not fit this log; nothing was cut"
            );
            return;
        };
        let reason = "the record differs from the master's although the epochs agree";
        match core.store.truncate(at, epochs, reason) {
            Ok(cut) => {
                let cut_bytes = cut.cut_bytes;
                core.metrics.truncations.add(1);
                core.metrics.truncated_bytes.add(cut_bytes);
                tracing::warn!(at, cut_bytes, saved_to = ?cut.saved_to, "cut: {reason}");
            }
            Err(error) => tracing::error!(at, %error, "could not be cut: {reason}"),
        }
    }
}

fn joined(decision: &Decision, lookback: Lookback, core: &Core) -> Result<Joined, SlaveClose> {
    let (store, point) = (&core.store, decision.point);
    let min = store.min_offset();
    let epoch_start = match decision.why {
        Why::EmptyLog => point,
        Why::CommonEpoch(found) => found.entry.start,
    };
    let epoch_start = epoch_start.max(min);
    let before = |offset| store.record_start_before(offset).map_err(log_refuses);
    let overlap_floor = match lookback {
        // It is far away in most logs, and not asked for unless something differs.
        Lookback::LastRecord => min,
        _ => before(epoch_start)?.unwrap_or(epoch_start),
    };
    let last_record = match lookback {
        Lookback::LastRecord => before(point)?,
        _ => None,
    };
    Ok(Joined {
        end: point,
        is_empty: point == min,
        last_epoch: decision.epochs.last(),
        overlap_from: lookback.begin(point, overlap_floor, || last_record),
        overlap_floor,
    })
}

/// The start of the record (or filler) that holds the byte at `offset`.
fn record_around(offset: Offset, core: &Core) -> Result<Offset, SlaveClose> {
    let store = &core.store;
    if store.is_record_boundary(offset).map_err(log_refuses)? {
        return Ok(offset);
    }
    match store.record_start_before(offset).map_err(log_refuses)? {
        Some(before) => Ok(store.record(before).map_err(log_refuses)?.bytes().end()),
        None => Ok(store.min_offset()),
    }
}
