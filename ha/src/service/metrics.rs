//! What replication has done since it was started, as numbers.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::transport::TransportStats;

/// A count that any thread may raise.
#[derive(Debug, Default)]
pub(super) struct Count(AtomicU64);

impl Count {
    pub(super) fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What the threads count.
#[derive(Debug, Default)]
pub(super) struct Metrics {
    pub(super) frames_sent: Count,
    pub(super) body_bytes_sent: Count,
    pub(super) heartbeats_sent: Count,
    pub(super) frames_received: Count,
    pub(super) body_bytes_received: Count,
    pub(super) turned_away: Count,
    pub(super) checksum_mismatches: Count,
    pub(super) truncations: Count,
    pub(super) truncated_bytes: Count,
    pub(super) resyncs: Count,
    closes_by_master: Mutex<BTreeMap<&'static str, u64>>,
    closes_by_slave: Mutex<BTreeMap<&'static str, u64>>,
}

impl Metrics {
    pub(super) fn closed_by_master(&self, reason: &'static str) {
        self.closed(&self.closes_by_master, reason);
    }

    pub(super) fn closed_by_slave(&self, reason: &'static str) {
        self.closed(&self.closes_by_slave, reason);
    }

    fn closed(&self, closes: &Mutex<BTreeMap<&'static str, u64>>, reason: &'static str) {
        if reason == "checksum" {
            self.checksum_mismatches.add(1);
        }
        *closes.lock().entry(reason).or_default() += 1;
    }

    pub(super) fn snapshot(&self, master: TransportStats, slave: TransportStats) -> HaMetrics {
        HaMetrics {
            frames_sent: self.frames_sent.get(),
            body_bytes_sent: self.body_bytes_sent.get(),
            heartbeats_sent: self.heartbeats_sent.get(),
            frames_received: self.frames_received.get(),
            body_bytes_received: self.body_bytes_received.get(),
            turned_away: self.turned_away.get(),
            checksum_mismatches: self.checksum_mismatches.get(),
            truncations: self.truncations.get(),
            truncated_bytes: self.truncated_bytes.get(),
            resyncs: self.resyncs.get(),
            closes_by_master: self.closes_by_master.lock().clone(),
            closes_by_slave: self.closes_by_slave.lock().clone(),
            master_transport: master,
            slave_transport: slave,
        }
    }
}

/// Counters since the service was started. Shown, they are one `name value` per line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HaMetrics {
    /// Frames with a body handed to the transport, as master.
    pub frames_sent: u64,
    /// Bytes of log in them.
    pub body_bytes_sent: u64,
    /// Frames without a body handed to the transport, as master.
    pub heartbeats_sent: u64,
    /// Frames with a body received and published or compared, as slave.
    pub frames_received: u64,
    /// Bytes of log in them.
    pub body_bytes_received: u64,
    /// Peers turned away: not allowed, or too many before their handshake.
    pub turned_away: u64,
    /// Frames whose checksum did not fit, either way.
    pub checksum_mismatches: u64,
    /// Cuts of this log, as slave.
    pub truncations: u64,
    /// Bytes cut.
    pub truncated_bytes: u64,
    /// Times this log was discarded to begin anew.
    pub resyncs: u64,
    /// Slaves' connections ended by this master, by reason.
    pub closes_by_master: BTreeMap<&'static str, u64>,
    /// Connections to a master ended by this slave, by reason.
    pub closes_by_slave: BTreeMap<&'static str, u64>,
    /// The master's transport: copied and zero-copy sends, pinned bytes, system calls.
    pub master_transport: TransportStats,
    /// The slave's transport.
    pub slave_transport: TransportStats,
}

impl fmt::Display for HaMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let own = [
            ("frames_sent", self.frames_sent),
            ("body_bytes_sent", self.body_bytes_sent),
            ("heartbeats_sent", self.heartbeats_sent),
            ("frames_received", self.frames_received),
            ("body_bytes_received", self.body_bytes_received),
            ("turned_away", self.turned_away),
            ("checksum_mismatches", self.checksum_mismatches),
            ("truncations", self.truncations),
            ("truncated_bytes", self.truncated_bytes),
            ("resyncs", self.resyncs),
        ];
        for (name, value) in own {
            writeln!(f, "ha_{name} {value}")?;
        }
        let closes = [
            ("master", &self.closes_by_master),
            ("slave", &self.closes_by_slave),
        ];
        for (side, closes) in closes {
            for (reason, count) in closes {
                writeln!(f, "ha_closes{{by=\"{side}\",reason=\"{reason}\"}} {count}")?;
            }
        }
        let transports = [
            ("master", &self.master_transport),
            ("slave", &self.slave_transport),
        ];
        for (side, stats) in transports {
            let counts = [
                ("connections", stats.connections),
                ("refused", stats.refused),
                ("sent_bytes", stats.sent_bytes),
                ("received_bytes", stats.received_bytes),
                ("zero_copy_quanta", stats.zero_copy_quanta),
                ("copied_quanta", stats.copied_quanta),
                ("fallback_quanta", stats.fallback_quanta),
                ("zero_copy_refusals", stats.zero_copy_refusals),
                ("pinned_bytes", stats.pinned_bytes),
                ("pinned_peak_bytes", stats.pinned_peak_bytes),
                ("system_calls", stats.enters),
                ("wakes", stats.wakes),
            ];
            for (name, value) in counts {
                writeln!(f, "ha_transport_{name}{{side=\"{side}\"}} {value}")?;
            }
        }
        Ok(())
    }
}
