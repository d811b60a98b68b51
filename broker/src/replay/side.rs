//! One side of a case: a store folder, or an epoch file with a `log.toml` in place of the log.

use std::path::{Path, PathBuf};

use epochlog_engine::{EpochFile, EpochFileError, EpochList, Store, StoreConfig, inspect};
use epochlog_ha::Decision;
use serde::Deserialize;

use super::ReplayError;

/// What the epoch file says.
#[derive(Debug)]
pub(super) enum Epochs {
    /// A list, which may be empty.
    Known(EpochList),
    /// There is no file.
    Missing,
    /// There is one and it cannot be trusted.
    Damaged(String),
}

/// A master or a slave as its folder shows it.
#[derive(Debug)]
pub(super) struct Side {
    pub(super) epochs: Epochs,
    pub(super) min: u64,
    pub(super) end: u64,
    log: Log,
}

#[derive(Debug)]
enum Log {
    /// Records of one length from `min` on; `None`: every offset starts a record.
    Described { record_len: Option<u64> },
    /// A real folder and the offsets at which its records start.
    Folder { dir: PathBuf, starts: Vec<u64> },
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Description {
    min: u64,
    end: u64,
    /// Never read by a decision; present so that a case can show that it does not matter.
    #[serde(rename = "confirm")]
    _confirm: Option<u64>,
    record_len: Option<u64>,
}

impl Side {
    /// Reads a side; writes nothing.
    pub(super) fn load(dir: &Path) -> Result<Self, ReplayError> {
        let epochs = match EpochFile::new(dir.join("epochFileCheckpoint")).load() {
            Ok(Some(list)) => Epochs::Known(list),
            Ok(None) => Epochs::Missing,
            Err(error @ EpochFileError::Damaged { .. }) => Epochs::Damaged(error.to_string()),
            Err(error) => return Err(unusable(dir, &error)),
        };
        if dir.join("commitlog").is_dir() {
            Self::from_folder(dir, epochs)
        } else {
            Self::from_description(dir, epochs)
        }
    }

    fn from_folder(dir: &Path, epochs: Epochs) -> Result<Self, ReplayError> {
        let inspection = inspect::scan(dir).map_err(|error| unusable(dir, &error))?;
        let mut starts = Vec::new();
        for record in inspection.records() {
            let record = record.map_err(|error| unusable(dir, &error))?;
            starts.push(record.record().physical_offset());
        }
        Ok(Self {
            epochs,
            min: inspection.min_offset,
            end: inspection.end_offset,
            log: Log::Folder {
                dir: dir.to_owned(),
                starts,
            },
        })
    }

    fn from_description(dir: &Path, epochs: Epochs) -> Result<Self, ReplayError> {
        let path = dir.join("log.toml");
        let shown = path.display().to_string();
        let text = std::fs::read_to_string(&path).map_err(|source| ReplayError::Read {
            path: shown.clone(),
            source,
        })?;
        let said: Description = toml::from_str(&text).map_err(|error| ReplayError::Schema {
            path: shown.clone(),
            why: error.to_string(),
        })?;
        if said.min > said.end || said.record_len == Some(0) {
            let why = "min must not be above end, and record_len not 0".to_owned();
            return Err(ReplayError::Schema { path: shown, why });
        }
        Ok(Self {
            epochs,
            min: said.min,
            end: said.end,
            log: Log::Described {
                record_len: said.record_len,
            },
        })
    }

    /// Whether a record starts at `offset`.
    pub(super) fn is_record_start(&self, offset: u64) -> bool {
        match &self.log {
            Log::Described { record_len: None } => true,
            Log::Described {
                record_len: Some(len),
            } => offset
                .checked_sub(self.min)
                .is_some_and(|into| into % len == 0),
            Log::Folder { starts, .. } => starts.binary_search(&offset).is_ok(),
        }
    }
}

fn unusable(dir: &Path, error: &dyn std::error::Error) -> ReplayError {
    ReplayError::Store {
        path: dir.display().to_string(),
        why: error.to_string(),
    }
}

/// Carries a decision out and says where the slave's log and list end up: on a copy of the folder,
/// read back afterwards, or in the mind where the log is only described.
pub(super) fn carry_out(
    slave: &Side,
    decision: &Decision,
) -> Result<(u64, EpochList), ReplayError> {
    let Log::Folder { dir, .. } = &slave.log else {
        return Ok((decision.point, decision.epochs.clone()));
    };
    let copy = tempfile::tempdir().map_err(|source| ReplayError::Read {
        path: dir.display().to_string(),
        source,
    })?;
    copy_folder(dir, copy.path())?;
    let apply = || -> Result<(), epochlog_engine::Error> {
        let mut config = StoreConfig::new(copy.path());
        config.adopt_segment_size = true;
        let store = Store::open(config)?;
        store.truncate(decision.point, decision.epochs.clone(), "replay of a case")?;
        store.close()
    };
    apply().map_err(|error| unusable(dir, &error))?;
    let after = Side::load(copy.path())?;
    match after.epochs {
        Epochs::Known(list) => Ok((after.end, list)),
        Epochs::Missing | Epochs::Damaged(_) => Err(ReplayError::Store {
            path: dir.display().to_string(),
            why: "the cut left an unusable epoch file".to_owned(),
        }),
    }
}

fn copy_folder(from: &Path, to: &Path) -> Result<(), ReplayError> {
    let failed = |path: &Path, source| ReplayError::Read {
        path: path.display().to_string(),
        source,
    };
    std::fs::create_dir_all(to).map_err(|source| failed(to, source))?;
    for entry in std::fs::read_dir(from).map_err(|source| failed(from, source))? {
        let path = entry.map_err(|source| failed(from, source))?.path();
        let target = to.join(path.file_name().unwrap_or_default());
        if path.is_dir() {
            copy_folder(&path, &target)?;
        } else {
            std::fs::copy(&path, &target).map_err(|source| failed(&path, source))?;
        }
    }
    Ok(())
}
