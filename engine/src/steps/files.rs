//! The small files beside the log: state file, epoch file, checkpoint. Each write is durable when it
//! returns.

use std::path::PathBuf;

use crate::checkpoint::{Checkpoint, CheckpointFile};
use crate::epoch_file::EpochFile;
use crate::epoch_list::EpochList;
use crate::error::Error;
use crate::folder::Folder;
use crate::state_file::{State, StateFile};

/// The small files of an open store. Nothing is written before the first step asks for it.
pub(crate) struct Files {
    state_path: PathBuf,
    checkpoint_path: PathBuf,
    state: Option<StateFile>,
    epochs: EpochFile,
    checkpoint: Option<CheckpointFile>,
}

impl Files {
    pub(crate) fn new(folder: &Folder) -> Self {
        Self {
            state_path: folder.state_file(),
            checkpoint_path: folder.checkpoint(),
            state: None,
            epochs: EpochFile::new(folder.epoch_file()),
            checkpoint: None,
        }
    }

    /// The state that is durable now.
    pub(crate) fn state(&self) -> State {
        self.state
            .as_ref()
            .map(|file| *file.current())
            .unwrap_or_default()
    }

    pub(crate) fn write_state(&mut self, state: &State) -> Result<(), Error> {
        match &mut self.state {
            Some(file) => file.store(*state)?,
            None => self.state = Some(StateFile::open(&self.state_path, *state)?),
        }
        Ok(())
    }

    /// Makes `state` the content of a file that holds no state that can be read.
    pub(crate) fn renew_state(&mut self, state: &State) -> Result<(), Error> {
        self.state = Some(StateFile::renew(&self.state_path, *state)?);
        Ok(())
    }

    pub(crate) fn replace_epochs(&self, list: &EpochList) -> Result<(), Error> {
        Ok(self.epochs.replace(list)?)
    }

    /// Whether `list` is what the epoch file says, and its backup too: a replacement that failed changed neither.
    pub(crate) fn has_epochs(&self, list: &EpochList) -> bool {
        let says = |file: &EpochFile| {
            let found = file.load();
            found.is_ok_and(|found| found.unwrap_or_default() == *list)
        };
        says(&self.epochs) && says(&EpochFile::new(self.epochs.backup_path()))
    }

    /// The checkpoint as it stands, made if there is none.
    pub(crate) fn checkpoint(&mut self) -> Result<Checkpoint, Error> {
        Ok(self.open_checkpoint()?.current())
    }

    pub(crate) fn write_checkpoint(&mut self, checkpoint: Checkpoint) -> Result<(), Error> {
        Ok(self.open_checkpoint()?.store(checkpoint)?)
    }

    fn open_checkpoint(&mut self) -> Result<&mut CheckpointFile, Error> {
        if self.checkpoint.is_none() {
            self.checkpoint = Some(CheckpointFile::open(&self.checkpoint_path)?);
        }
        Ok(self.checkpoint.as_mut().expect("opened above"))
    }
}
