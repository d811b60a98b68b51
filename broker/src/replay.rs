//! Replays a slave's return to a master from two folders: where it would be cut and why, and whether
//! that is what the case expects.
//!
//! A case is a folder with `master/`, `slave/` and `expect.toml`; its schema stands in
//! fixtures/README.md. A side is a store folder, or an epoch file with a `log.toml` that stands for
//! the log. Nothing in the case is written: where the slave is a store folder the cut is carried out
//! on a copy, and the outcome is read back from that copy.

mod expect;
mod side;

use std::path::Path;

use epochlog_engine::EpochList;
use epochlog_ha::{MasterSide, SlaveSide};
use serde::Serialize;

pub use expect::{Expectation, Mismatch};
use side::{Epochs, Side};

/// Why a case could not be replayed at all.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// A file of the case cannot be read.
    #[error("{path}: {source}")]
    Read {
        /// The file.
        path: String,
        /// What the system says.
        source: std::io::Error,
    },
    /// A file of the case does not follow the schema.
    #[error("{path}: {why}; the schema stands in fixtures/README.md")]
    Schema {
        /// The file.
        path: String,
        /// What is wrong.
        why: String,
    },
    /// A store folder of the case cannot be used.
    #[error("{path}: {why}")]
    Store {
        /// The folder.
        path: String,
        /// What is wrong.
        why: String,
    },
}

/// What the slave does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// Bytes go.
    Cut,
    /// The slave joins and no byte goes.
    Keep,
    /// The slave does not join.
    Refuse,
}

/// The outcome of a handshake; absent fields do not apply.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Outcome {
    /// What the slave does.
    pub action: Action,
    /// Up to which offset both sides agree.
    pub point: Option<u64>,
    /// Bytes removed from the slave's log.
    pub cut_bytes: Option<u64>,
    /// Of a refusal, its fixed word.
    pub reason: Option<String>,
    /// The end of the slave's log afterwards.
    pub slave_end: u64,
    /// The slave's list afterwards; absent when its file cannot be read.
    pub epochs: Option<Vec<(u32, u64)>>,
    /// What the outcome rests on, in words.
    pub why: String,
}

/// Replays the case in `dir`.
///
/// # Errors
/// [`ReplayError`] when the case itself is not usable. A refusal by the slave is an [`Outcome`].
pub fn replay(dir: &Path) -> Result<Outcome, ReplayError> {
    let master = Side::load(&dir.join("master"))?;
    let slave = Side::load(&dir.join("slave"))?;
    let Epochs::Known(master_epochs) = &master.epochs else {
        return Err(ReplayError::Schema {
            path: dir.join("master").display().to_string(),
            why: "the master's epoch file is missing or damaged, so it could not be one".to_owned(),
        });
    };
    let slave_epochs = match &slave.epochs {
        Epochs::Known(list) => list.clone(),
        Epochs::Missing if slave.end == slave.min => EpochList::new(),
        Epochs::Missing => {
            let why = "the slave holds bytes and no epoch file that says whose they are";
            return Ok(refused("epoch-file-missing", why, &slave));
        }
        Epochs::Damaged(why) => return Ok(refused("epoch-file-damaged", why, &slave)),
    };
    let decision = epochlog_ha::decide(
        SlaveSide {
            epochs: &slave_epochs,
            min: slave.min,
            end: slave.end,
            role_epoch: None,
        },
        MasterSide {
            epochs: master_epochs,
            end: master.end,
            role_epoch: None,
        },
        |offset| slave.is_record_start(offset),
    );
    let decision = match decision {
        Ok(decision) => decision,
        Err(refusal) => return Ok(refused(refusal.reason(), &refusal.to_string(), &slave)),
    };
    let (end, epochs) = side::carry_out(&slave, &decision)?;
    let action = if decision.cut_bytes > 0 {
        Action::Cut
    } else {
        Action::Keep
    };
    Ok(Outcome {
        action,
        point: Some(decision.point),
        cut_bytes: Some(slave.end.saturating_sub(end)),
        reason: None,
        slave_end: end,
        epochs: Some(pairs(&epochs)),
        why: decision.why.to_string(),
    })
}

fn refused(reason: &str, why: &str, slave: &Side) -> Outcome {
    let epochs = match &slave.epochs {
        Epochs::Known(list) => Some(pairs(list)),
        Epochs::Missing | Epochs::Damaged(_) => None,
    };
    Outcome {
        action: Action::Refuse,
        point: None,
        cut_bytes: None,
        reason: Some(reason.to_owned()),
        slave_end: slave.end,
        epochs,
        why: why.to_owned(),
    }
}

fn pairs(list: &EpochList) -> Vec<(u32, u64)> {
    list.entries()
        .iter()
        .map(|entry| (entry.epoch, entry.start))
        .collect()
}
