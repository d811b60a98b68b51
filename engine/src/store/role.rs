//! Becoming master, ceasing to be it. The promise is durable before the role begins, the epoch's entry
//! before its first byte.

use crate::epoch_file::EpochFileError;
use crate::error::Error;
use crate::position::{Epoch, EpochEntry, MAX_EPOCH};
use crate::steps::{promote_steps, run_steps};

use super::{Disk, Shared, Store};

const FENCED: &str = "this node is no master";

impl Store {
    /// Makes this node master of `epoch`: appends are taken from now on, under an entry that starts at
    /// the log's end. Promise and entry are durable on return. Asked again for the same epoch it
    /// answers the same entry; an epoch served before keeps its start.
    ///
    /// The next queue offsets come from the consume queues and the records behind them; the first
    /// promotion after an open walks those, and the whole log if queues are not kept.
    ///
    /// # Errors
    /// [`Error::StaleEpoch`] if a newer epoch was seen or this one is another master's,
    /// [`Error::NeedsNewerEpoch`] if this epoch was served before a cut, or before a stop after which the
    /// log cannot be proven, [`Error::ReceiverActive`] or
    /// [`Error::WindowOutstanding`] while the slave's side is not finished. [`Error::EpochFile`] if the disk
    /// has no room for the entry: this node is no master then, the epoch is promised and not begun, and
    /// the same call may be made again. After any other failure of a write the store must be opened again.
    pub fn promote(&self, epoch: Epoch) -> Result<EpochEntry, Error> {
        let shared = &*self.shared;
        let mut role = shared.role.lock();
        shared.check_usable()?;
        if role.receiver {
            return Err(Error::ReceiverActive);
        }
        if role.master == Some(epoch)
            && let Some(entry) = shared.epochs().find(epoch)
        {
            return Ok(entry);
        }
        shared.may_serve(&shared.disk.lock(), epoch)?;
        shared.begin_writes(&mut role)?;
        let mut tail = shared.log.lock_tail();
        shared.settle(&mut tail)?;
        shared.load_queue_offsets(&mut tail)?;
        let end = shared.log.end();
        let mut list = (*shared.epochs()).clone();
        let mut changed = list.drop_starting_after(end);
        let entry = match list.find(epoch) {
            Some(entry) => entry,
            None => {
                let entry = EpochEntry { epoch, start: end };
                list.append(entry).map_err(|why| Error::EpochEntry {
                    epoch,
                    start: end,
                    why: why.to_string(),
                })?;
                changed = true;
                entry
            }
        };
        let mut disk = shared.disk.lock();
        let mut state = disk.files.state();
        state.max_epoch = Some(epoch);
        state.served_epoch = Some(epoch);
        state.boot_id = shared.boot_id;
        let steps = promote_steps(state, changed.then(|| list.clone()));
        let settings = shared.log.settings();
        let size = settings.segment_size;
        let done = run_steps(
            &steps,
            &shared.folder,
            size,
            &mut disk.files,
            &settings.hook,
        );
        if let Err(error) = done {
            // The promise may stand: no older epoch is served any more.
            tail.refused = Some(FENCED);
            role.master = None;
            if no_room_for_epochs(&error) && disk.files.has_epochs(&shared.epochs()) {
                // Not a byte came under it, so it may be begun later.
                disk.restart_allowed = shared.boot_id != [0; 16];
                return Err(error);
            }
            return Err(shared.fail_with(&mut disk, error));
        }
        disk.restart_allowed = shared.boot_id != [0; 16];
        shared.set_epochs(list);
        role.master = Some(epoch);
        tail.refused = None;
        Ok(entry)
    }

    /// Begins a new incarnation without opening anew, and returns its number: what this node held as
    /// the one before is not to be counted on any more. Durable on return; the log stays.
    ///
    /// # Errors
    /// [`Error::IsMaster`] while master; nothing has changed then.
    pub fn renew_incarnation(&self) -> Result<u64, Error> {
        let shared = &*self.shared;
        let mut role = shared.role.lock();
        shared.check_usable()?;
        if role.master.is_some() {
            return Err(Error::IsMaster {
                why: "only a slave gives its log up",
            });
        }
        shared.begin_writes(&mut role)?;
        let mut disk = shared.disk.lock();
        let mut state = disk.given_up();
        state.incarnation += 1;
        let written = disk.files.write_state(&state);
        written.map_err(|error| shared.fail_with(&mut disk, error))?;
        disk.restart_allowed = false;
        Ok(state.incarnation)
    }

    /// Follows another master's `epoch`: appends are refused from now on, and no epoch below it will be
    /// served. The promise is durable on return. The log stays as it is.
    ///
    /// # Errors
    /// [`Error::StaleEpoch`] if a newer epoch was seen; nothing has changed then.
    pub fn demote(&self, epoch: Epoch) -> Result<(), Error> {
        let shared = &*self.shared;
        let mut role = shared.role.lock();
        shared.check_usable()?;
        let mut disk = shared.disk.lock();
        let mut state = disk.files.state();
        check_range(epoch)?;
        if let Some(max_epoch) = state.max_epoch.filter(|max| epoch < *max) {
            return Err(Error::StaleEpoch {
                asked: epoch,
                max_epoch,
            });
        }
        drop(disk);
        shared.log.lock_tail().refused = Some(FENCED);
        role.master = None;
        disk = shared.disk.lock();
        if state.max_epoch != Some(epoch) {
            state = disk.files.state();
            state.max_epoch = Some(epoch);
            let written = disk.files.write_state(&state);
            written.map_err(|error| shared.fail_with(&mut disk, error))?;
        }
        Ok(())
    }

    /// Refuses appends from now on, without a word about who is master. Nothing is written.
    pub fn fence(&self) {
        let mut role = self.shared.role.lock();
        self.shared.log.lock_tail().refused = Some(FENCED);
        role.master = None;
    }

    /// The epoch this node is master of.
    #[must_use]
    pub fn master_epoch(&self) -> Option<Epoch> {
        self.shared.role.lock().master
    }
}

impl Shared {
    /// Whether this node may be master of `epoch`.
    fn may_serve(&self, disk: &Disk, epoch: Epoch) -> Result<(), Error> {
        check_range(epoch)?;
        let state = disk.files.state();
        // A newer master's entry, or another's of this epoch: the bytes from there on are not this node's.
        let newest = self.epochs().last().map(|last| last.epoch);
        let foreign = |newest: &Epoch| {
            *newest > epoch || *newest == epoch && state.served_epoch != Some(epoch)
        };
        if let Some(max_epoch) = newest.filter(foreign) {
            return Err(Error::StaleEpoch {
                asked: epoch,
                max_epoch,
            });
        }
        match state.max_epoch {
            Some(max_epoch) if epoch < max_epoch => Err(Error::StaleEpoch {
                asked: epoch,
                max_epoch,
            }),
            Some(max_epoch) if epoch == max_epoch => match state.served_epoch {
                Some(served) if served == epoch && disk.restart_allowed => Ok(()),
                Some(served) if served == epoch => Err(Error::NeedsNewerEpoch { epoch }),
                _ => Err(Error::StaleEpoch {
                    asked: epoch,
                    max_epoch,
                }),
            },
            _ => Ok(()),
        }
    }
}

/// Whether the disk had no room for the epoch file.
fn no_room_for_epochs(error: &Error) -> bool {
    use std::io::ErrorKind;
    let Error::EpochFile(EpochFileError::File(error)) = error else {
        return false;
    };
    matches!(
        error.source.kind(),
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded
    )
}

fn check_range(epoch: Epoch) -> Result<(), Error> {
    if epoch <= MAX_EPOCH {
        return Ok(());
    }
    let why = format!("epochs end at {MAX_EPOCH}");
    Err(Error::EpochEntry {
        epoch,
        start: 0,
        why,
    })
}
