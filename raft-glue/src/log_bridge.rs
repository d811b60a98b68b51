//! What the `raft` crate logs by slog, given to tracing.

use slog::{Drain, Level, Logger, OwnedKVList, Record, o};

struct Bridge;

impl Drain for Bridge {
    type Ok = ();
    type Err = slog::Never;

    fn log(&self, record: &Record<'_>, _values: &OwnedKVList) -> Result<(), slog::Never> {
        let text = record.msg();
        match record.level() {
            Level::Critical | Level::Error => tracing::error!(target: "raft", "{text}"),
            Level::Warning => tracing::warn!(target: "raft", "{text}"),
            // Raft tells of every election step by step: that is for debugging.
            Level::Info => tracing::debug!(target: "raft", "{text}"),
            Level::Debug | Level::Trace => tracing::trace!(target: "raft", "{text}"),
        }
        Ok(())
    }
}

pub(crate) fn logger() -> Logger {
    Logger::root(Bridge, o!())
}
