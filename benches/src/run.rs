//! What the benches without criterion share: their arguments, the disk they run on, their lines.

use std::env;
use std::fs;
use std::path::Path;

use tempfile::TempDir;

/// How long a bench is to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// All of it; the figures mean something.
    Full,
    /// `--test`: each part once and briefly, to see that it runs. The figures mean nothing.
    Smoke,
}

impl Length {
    /// `full`, or `smoke` in a smoke run.
    pub fn pick<T>(self, full: T, smoke: T) -> T {
        match self {
            Self::Full => full,
            Self::Smoke => smoke,
        }
    }
}

/// What the command line asks of the bench `name`; `None` if it names other benches only.
#[must_use]
pub fn asked(name: &str) -> Option<Length> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let mut filters = arguments
        .iter()
        .filter(|it| !it.starts_with('-'))
        .peekable();
    if filters.peek().is_some() && !filters.any(|filter| name.contains(filter.as_str())) {
        return None;
    }
    let smoke = arguments.iter().any(|it| it == "--test");
    Some(if smoke { Length::Smoke } else { Length::Full })
}

/// A new folder in `TMPDIR`, gone when it is dropped, and the kind of its file system.
///
/// # Panics
/// If `TMPDIR` takes no folder.
#[must_use]
pub fn folder() -> (TempDir, String) {
    let dir = tempfile::tempdir().expect("TMPDIR takes a folder");
    let kind = file_system(dir.path()).unwrap_or_else(|| "unknown".to_owned());
    (dir, kind)
}

/// As [`folder`], for a bench whose figures are a disk's.
///
/// # Panics
/// If `TMPDIR` takes no folder, or is in memory and the run is no smoke run.
#[must_use]
pub fn disk_folder(length: Length) -> (TempDir, String) {
    let (dir, kind) = folder();
    let no_disk = ["tmpfs", "ramfs"].contains(&kind.as_str());
    assert!(
        !no_disk || length == Length::Smoke,
        "{} is on a {kind}: set TMPDIR to a folder on a disk",
        dir.path().display()
    );
    (dir, kind)
}

/// The kind of the file system that holds `path`, as `/proc/self/mounts` names it.
#[must_use]
pub fn file_system(path: &Path) -> Option<String> {
    let path = path.canonicalize().ok()?;
    let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
    let mut longest: Option<(usize, &str)> = None;
    for line in mounts.lines() {
        let mut fields = line.split(' ').skip(1);
        let (Some(point), Some(kind)) = (fields.next(), fields.next()) else {
            continue;
        };
        // Of two mounts at one place the later one is seen.
        let covers = longest.is_none_or(|(len, _)| point.len() >= len);
        if path.starts_with(point) && covers {
            longest = Some((point.len(), kind));
        }
    }
    longest.map(|(_, kind)| kind.to_owned())
}

/// One line that says whether a bar was met.
pub fn print_bar(length: Length, what: &str, met: bool) {
    let answer = match (length, met) {
        (Length::Smoke, _) => "not judged in a smoke run",
        (Length::Full, true) => "met",
        (Length::Full, false) => "MISSED",
    };
    println!("bar: {what}: {answer}");
}

/// The middle one.
///
/// # Panics
/// If there is none.
#[must_use]
pub fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}
