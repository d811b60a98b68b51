//! The steps that change segment files and directories, each durable when it returns.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::allocate;
use crate::durable::{calls, directory_of};
use crate::error::Error;
use crate::folder::{Folder, segment_name};
use crate::position::Offset;

use super::SegmentStep;

pub(super) fn run(step: &SegmentStep, folder: &Folder, segment_size: u64) -> Result<(), Error> {
    match step {
        SegmentStep::Prepare { bases } => prepare(folder, bases, segment_size),
        SegmentStep::Admit { bases } => admit(folder, bases),
        SegmentStep::Keep { from, to } => keep(folder, from, to),
        SegmentStep::SaveReason { into, reason } => {
            warn_unsaved(save_reason(folder, into, reason));
            Ok(())
        }
        SegmentStep::SaveTail { from, to, into } => {
            warn_unsaved(save_tail(folder, segment_size, *from..*to, into));
            Ok(())
        }
        SegmentStep::Remove { path, into } => remove(folder, path, into.as_deref()),
        SegmentStep::RemoveSaved { path } => remove_saved(path),
        SegmentStep::Erase { at } => erase(folder, segment_size, *at),
        SegmentStep::Rewrite { base, end } => rewrite(folder, segment_size, *base, *end),
        SegmentStep::Sync { base } => {
            let path = folder.segment(*base);
            let synced = File::open(&path).and_then(|file| calls::sync_data(&file, &path));
            synced.map_err(Error::io("sync", &path))
        }
        SegmentStep::Directories => directories(folder),
        SegmentStep::CreateAbort { process } => create_abort(folder, *process),
        SegmentStep::MoveAside { name, into } => move_aside(folder, name, into),
    }
}

fn prepare(folder: &Folder, bases: &[Offset], segment_size: u64) -> Result<(), Error> {
    make_directory(&folder.prepare())?;
    let paths: Vec<_> = bases.iter().map(|base| folder.prepared(*base)).collect();
    allocate::create_all(&paths, segment_size).map(drop)
}

fn admit(folder: &Folder, bases: &[Offset]) -> Result<(), Error> {
    // A segment that is there already has another owner; its bytes are not to be renamed over.
    let mut paths = bases.iter().map(|base| folder.segment(*base));
    if let Some(path) = paths.find(|path| path.exists()) {
        let exists = io::Error::from(io::ErrorKind::AlreadyExists);
        return Err(Error::io("create", &path)(exists));
    }
    let mut named = Vec::with_capacity(bases.len());
    let renamed = bases.iter().try_for_each(|base| {
        let (from, to) = (folder.prepared(*base), folder.segment(*base));
        calls::rename(&from, &to).map_err(Error::io("rename a prepared segment to", &to))?;
        named.push(to);
        Ok(())
    });
    let admitted = renamed.and_then(|()| allocate::sync_directory(&folder.commit_log()));
    if admitted.is_err() {
        for path in named.iter().rev() {
            // It would stand in the way of the next attempt.
            let _ = calls::remove_file(path);
        }
    }
    admitted
}

fn keep(folder: &Folder, from: &Path, to: &Path) -> Result<(), Error> {
    let directory = directory_of(to);
    if directory.starts_with(folder.truncated()) {
        make_directory(&folder.truncated())?;
        make_directory(directory)?;
    }
    copy_range(from, 0, u64::MAX, to)?;
    allocate::sync_directory(directory)
}

/// Keeping a copy is a courtesy: when it fails the cut goes on.
fn warn_unsaved(saved: Result<(), Error>) {
    if let Err(error) = saved {
        tracing::warn!(%error, "bytes to be cut could not be saved first");
    }
}

fn save_reason(folder: &Folder, into: &Path, reason: &str) -> Result<(), Error> {
    make_directory(&folder.truncated())?;
    make_directory(into)?;
    let path = into.join("reason.txt");
    calls::changing(&path)
        .and_then(|()| fs::write(&path, format!("{reason}\n")))
        .and_then(|()| calls::sync_all(&File::open(&path)?, &path))
        .map_err(Error::io("write", &path))?;
    allocate::sync_directory(into)
}

fn save_tail(
    folder: &Folder,
    segment_size: u64,
    range: Range<Offset>,
    into: &Path,
) -> Result<(), Error> {
    let base = range.start - range.start % segment_size;
    let name = format!("{}.from-{}", segment_name(base), range.start);
    let len = range.end - range.start;
    copy_range(
        &folder.segment(base),
        range.start - base,
        len,
        &into.join(name),
    )?;
    allocate::sync_directory(into)
}

fn copy_range(source: &Path, at: u64, len: u64, target: &Path) -> Result<(), Error> {
    let mut from = File::open(source).map_err(Error::io("open", source))?;
    from.seek(SeekFrom::Start(at))
        .map_err(Error::io("read", source))?;
    calls::changing(target).map_err(Error::io("create", target))?;
    let mut to = File::create(target).map_err(Error::io("create", target))?;
    io::copy(&mut from.take(len), &mut to)
        .and_then(|_| calls::sync_all(&to, target))
        .map_err(Error::io("copy a segment to", target))
}

fn remove(folder: &Folder, path: &Path, into: Option<&Path>) -> Result<(), Error> {
    let moved = into.is_some_and(|into| match move_into(path, into) {
        Ok(()) => true,
        Err(error) => {
            warn_unsaved(Err(error));
            false
        }
    });
    if !moved {
        match calls::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(Error::io("remove", path)(error));
            }
            _ => {}
        }
    }
    allocate::sync_directory(&folder.commit_log())
}

fn remove_saved(path: &Path) -> Result<(), Error> {
    let is_dir = fs::symlink_metadata(path).is_ok_and(|it| it.is_dir());
    let removed = if is_dir {
        calls::remove_dir_all(path)
    } else {
        calls::remove_file(path)
    };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(Error::io("remove", path)(error));
        }
        _ => {}
    }
    allocate::sync_directory(directory_of(path))
}

fn move_into(path: &Path, into: &Path) -> Result<(), Error> {
    let target = into.join(path.file_name().unwrap_or_default());
    calls::rename(path, &target).map_err(Error::io("move a segment to", &target))?;
    allocate::sync_directory(into)
}

fn erase(folder: &Folder, segment_size: u64, at: Offset) -> Result<(), Error> {
    let base = at - at % segment_size;
    let path = folder.segment(base);
    OpenOptions::new()
        .write(true)
        .open(&path)
        .and_then(|file| allocate::erase(&file, &path, at - base, segment_size))
        .map_err(Error::io("erase the end of", &path))
}

fn rewrite(folder: &Folder, segment_size: u64, base: Offset, end: Offset) -> Result<(), Error> {
    let (path, fresh) = (folder.segment(base), folder.prepared(base));
    make_directory(&folder.prepare())?;
    let mut target = allocate::create(&fresh, segment_size)?;
    let source = File::open(&path).map_err(Error::io("open", &path))?;
    let copied = io::copy(&mut source.take(end - base), &mut target)
        .and_then(|_| calls::sync_all(&target, &fresh))
        .and_then(|()| calls::rename(&fresh, &path));
    copied.map_err(Error::io("replace", &path))?;
    allocate::sync_directory(&folder.commit_log())
}

fn directories(folder: &Folder) -> Result<(), Error> {
    make_directory(&folder.commit_log())?;
    let directory = folder.prepare();
    let entries = match fs::read_dir(&directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(Error::io("list", &directory))?,
    };
    for entry in entries {
        let path = entry.map_err(Error::io("list", &directory))?.path();
        calls::remove_file(&path).map_err(Error::io("remove", &path))?;
    }
    Ok(())
}

fn create_abort(folder: &Folder, process: u32) -> Result<(), Error> {
    let path = folder.abort();
    calls::changing(&path)
        .and_then(|()| fs::write(&path, process.to_string()))
        .and_then(|()| calls::sync_all(&File::open(&path)?, &path))
        .map_err(Error::io("write", &path))?;
    allocate::sync_directory(folder.root())
}

fn move_aside(folder: &Folder, name: &str, into: &Path) -> Result<(), Error> {
    let from = folder.root().join(name);
    if !from.exists() {
        return Ok(());
    }
    make_directory(into)?;
    // Under a name that is free: an earlier one of that name may be there.
    let numbered = (1..).map(|number| into.join(format!("{name}.{number}")));
    let target = std::iter::once(into.join(name))
        .chain(numbered)
        .find(|path| !path.exists())
        .unwrap_or_else(|| into.join(name));
    calls::rename(&from, &target).map_err(Error::io("move aside", &from))?;
    allocate::sync_directory(into)?;
    allocate::sync_directory(folder.root())
}

/// Makes a directory and its name durable; its parent must exist.
fn make_directory(path: &Path) -> Result<(), Error> {
    match calls::create_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(()),
        made => made.map_err(Error::io("create", path))?,
    }
    let parent: PathBuf = path.parent().map(Path::to_path_buf).unwrap_or_default();
    allocate::sync_directory(&parent)
}
