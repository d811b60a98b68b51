//! Replacing a small file so that a crash leaves the old content or the new, never a mixture.
//!
//! Order: the new content goes to `F.tmp` beside `F`, is synced, is renamed over `F`, and the directory
//! is synced. A leftover `F.tmp` means nothing and is overwritten by the next replacement.

pub(crate) mod calls;

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

/// A file operation the system refused.
#[derive(Debug, thiserror::Error)]
#[error("{}: cannot {action}: {source}", path.display())]
pub struct FileError {
    /// What was tried, as a verb phrase.
    pub action: &'static str,
    /// What it was tried on.
    pub path: PathBuf,
    /// The system's answer.
    pub source: io::Error,
}

impl FileError {
    pub(crate) fn new(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self {
            action,
            path,
            source,
        }
    }
}

/// The four operations a replacement is made of, so that a test can stop between any two.
pub(crate) trait Disk {
    /// Creates or empties the file and writes `bytes`; nothing is durable.
    fn write(&self, path: &Path, bytes: &[u8]) -> Result<(), FileError>;
    /// Makes the file's bytes and length durable.
    fn sync(&self, path: &Path) -> Result<(), FileError>;
    /// Gives the file another name, over whatever has that name; not durable.
    fn rename(&self, from: &Path, to: &Path) -> Result<(), FileError>;
    /// Makes the names in the directory durable.
    fn sync_dir(&self, path: &Path) -> Result<(), FileError>;
}

/// The file system of this machine.
pub(crate) struct SystemDisk;

impl Disk for SystemDisk {
    fn write(&self, path: &Path, bytes: &[u8]) -> Result<(), FileError> {
        calls::changing(path).map_err(FileError::new("create", path))?;
        let mut file = File::create(path).map_err(FileError::new("create", path))?;
        file.write_all(bytes).map_err(FileError::new("write", path))
    }

    fn sync(&self, path: &Path) -> Result<(), FileError> {
        // On Linux a sync covers everything written to the file, through whichever descriptor.
        let file = File::open(path).map_err(FileError::new("open", path))?;
        calls::sync_all(&file, path).map_err(FileError::new("sync", path))
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<(), FileError> {
        calls::rename(from, to).map_err(FileError::new("rename", from))
    }

    fn sync_dir(&self, path: &Path) -> Result<(), FileError> {
        calls::sync_directory(path).map_err(FileError::new("sync", path))
    }
}

/// Makes `bytes` the content of `path`. On return they are durable under that name.
///
/// # Errors
/// [`FileError`]; the file then has its old content or the new one, and a crash may still bring the
/// old one back.
pub(crate) fn replace(disk: &impl Disk, path: &Path, bytes: &[u8]) -> Result<(), FileError> {
    let temporary = with_suffix(path, ".tmp");
    disk.write(&temporary, bytes)?;
    disk.sync(&temporary)?;
    disk.rename(&temporary, path)?;
    disk.sync_dir(directory_of(path))
}

/// `path` with `suffix` added to its file name.
pub(crate) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// The directory a file's name stands in.
pub(crate) fn directory_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// The whole content of a file of at most `limit` bytes; `None` if there is no such file. A larger
/// file is an error and is not read.
pub(crate) fn read_limited(path: &Path, limit: u64) -> Result<Option<Vec<u8>>, FileError> {
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file.map_err(FileError::new("open", path))?,
    };
    let mut bytes = Vec::new();
    file.take(limit + 1)
        .read_to_end(&mut bytes)
        .map_err(FileError::new("read", path))?;
    if bytes.len() as u64 > limit {
        let too_large = io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("it has more than {limit} bytes, so it is not what its name says"),
        );
        return Err(FileError::new("read", path)(too_large));
    }
    Ok(Some(bytes))
}

#[cfg(test)]
pub(crate) mod crash_disk;
#[cfg(test)]
pub(crate) mod watch;
