//! The system calls that change a store folder, each with the path it is about. All of the engine's pass
//! here, so that tests can fail any of them, stop in front of it, and know what was synced.

use std::fs::{self, File};
use std::io;
use std::path::Path;

#[cfg(test)]
use super::watch;

/// To be called before a file at `path` is made, written or made longer.
pub(crate) fn changing(path: &Path) -> io::Result<()> {
    #[cfg(test)]
    watch::before(path)?;
    let _ = path;
    Ok(())
}

/// Makes bytes and length of the file at `path` durable.
pub(crate) fn sync_all(file: &File, path: &Path) -> io::Result<()> {
    changing(path)?;
    file.sync_all()?;
    synced(path);
    Ok(())
}

/// Makes the bytes of the file at `path` durable, with what of its length they need.
pub(crate) fn sync_data(file: &File, path: &Path) -> io::Result<()> {
    changing(path)?;
    file.sync_data()?;
    synced(path);
    Ok(())
}

/// Makes the names in a directory durable.
pub(crate) fn sync_directory(path: &Path) -> io::Result<()> {
    changing(path)?;
    File::open(path)?.sync_all()?;
    #[cfg(test)]
    watch::synced_directory(path);
    Ok(())
}

pub(crate) fn rename(from: &Path, to: &Path) -> io::Result<()> {
    changing(to)?;
    fs::rename(from, to)
}

pub(crate) fn remove_file(path: &Path) -> io::Result<()> {
    changing(path)?;
    fs::remove_file(path)
}

/// With all that is in it; stopped halfway, some of it is left.
pub(crate) fn remove_dir_all(path: &Path) -> io::Result<()> {
    changing(path)?;
    fs::remove_dir_all(path)
}

/// Its parent must exist.
pub(crate) fn create_dir(path: &Path) -> io::Result<()> {
    changing(path)?;
    fs::create_dir(path)
}

fn synced(path: &Path) {
    #[cfg(test)]
    watch::synced(path);
    let _ = path;
}
