//! Reading files of which the last good one is kept beside them as `.bak`.

use std::fmt::Display;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The last good one beside a file of the broker's settings.
pub(crate) fn backup(path: &Path) -> PathBuf {
    let mut backup = path.as_os_str().to_owned();
    backup.push(".bak");
    backup.into()
}

/// What `read` finds in the file, or in its backup where the file is missing or damaged; `None` where
/// both are missing.
///
/// # Errors
/// That of the file, if it is damaged and the backup does not help; that of the backup, if there is only
/// the backup.
pub(crate) fn read_or_backup<T, E: Display>(
    path: &Path,
    read: impl Fn(&Path) -> Result<Option<T>, E>,
) -> Result<Option<T>, E> {
    match read(path) {
        Ok(None) => read(&backup(path)),
        Ok(found) => Ok(found),
        Err(error) => match read(&backup(path)) {
            Ok(Some(found)) => {
                tracing::warn!(%error, "using the backup");
                Ok(Some(found))
            }
            _ => Err(error),
        },
    }
}

/// All bytes of a file of at most `max_len`; `None` if it is missing.
///
/// # Errors
/// It is longer, or cannot be read.
pub(crate) fn read_limited(path: &Path, max_len: u64) -> Result<Option<Vec<u8>>, String> {
    let len = match fs::metadata(path) {
        Ok(metadata) => metadata.len(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.to_string()),
    };
    if len > max_len {
        return Err(format!("{len} bytes; at most {max_len} are read"));
    }
    fs::read(path).map(Some).map_err(|error| error.to_string())
}
