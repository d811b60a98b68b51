//! Who this broker is, in Java's files: `brokerIdentity`, and `brokerIdentity-temp` while an id is
//! being applied for.
//!
//! Invariants: a file is replaced whole (temporary file, fsync, rename, fsync of the directory); the
//! claim is durable before the controller is asked, the identity before the claim goes; a file of
//! another cluster or broker set is refused, never overwritten.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Longest identity file; names have at most 255 bytes.
const MAX_FILE_LEN: u64 = 4096;

/// A request for an id that may be repeated until it is answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// The id wanted, at least 1.
    pub id: u64,
    /// `<broker address>;<ms>`.
    pub check_code: String,
}

/// What the files say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stored {
    /// No id yet.
    Nothing,
    /// An id was asked for; the answer is not known.
    Claim(Claim),
    /// The id, for ever.
    Identity(u64),
}

/// Why the identity cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IdentityError {
    /// The system refuses.
    #[error("{}: cannot {what}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What was tried.
        what: &'static str,
        /// What the system says.
        source: io::Error,
    },
    /// The file is not what it should be.
    #[error(
        "{}: {content:?} is no identity ({expected}); if this store folder is to join as a new \
         replica, remove the file, else restore it", path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What stands in it.
        content: String,
        /// What should.
        expected: &'static str,
    },
    /// The folder belongs to another broker.
    #[error(
        "{}: this store folder belongs to broker set {found} but the configuration says {wanted}; \
         correct brokerClusterName, brokerName or storePathRootDir", path.display()
    )]
    Foreign {
        /// The file.
        path: PathBuf,
        /// `cluster/name` in the file.
        found: String,
        /// `cluster/name` in the configuration.
        wanted: String,
    },
}

/// The two files of one broker.
#[derive(Debug, Clone)]
pub struct IdentityFiles {
    path: PathBuf,
    claim_path: PathBuf,
    cluster: String,
    name: String,
}

impl IdentityFiles {
    /// The files at `path` and `path`-temp, for this broker set.
    #[must_use]
    pub fn new(path: &Path, cluster: &str, name: &str) -> Self {
        let mut claim_path = path.as_os_str().to_owned();
        claim_path.push("-temp");
        Self {
            path: path.to_owned(),
            claim_path: claim_path.into(),
            cluster: cluster.to_owned(),
            name: name.to_owned(),
        }
    }

    /// Reads what is there. An identity counts more than a claim.
    ///
    /// # Errors
    /// A file is damaged, or of another broker set.
    pub fn load(&self) -> Result<Stored, IdentityError> {
        const WHOLE: &str = "clusterName#brokerName#brokerId";
        const TEMP: &str = "clusterName#brokerName#brokerId#registerCheckCode";
        if let Some(content) = read(&self.path)? {
            let fields = self.fields(&self.path, &content, 3, WHOLE)?;
            return Ok(Stored::Identity(id(
                &self.path, &content, fields[2], WHOLE,
            )?));
        }
        if let Some(content) = read(&self.claim_path)? {
            let fields = self.fields(&self.claim_path, &content, 4, TEMP)?;
            let id = id(&self.claim_path, &content, fields[2], TEMP)?;
            return Ok(Stored::Claim(Claim {
                id,
                check_code: fields[3].to_owned(),
            }));
        }
        Ok(Stored::Nothing)
    }

    fn fields<'a>(
        &self,
        path: &Path,
        content: &'a str,
        count: usize,
        expected: &'static str,
    ) -> Result<Vec<&'a str>, IdentityError> {
        let fields: Vec<&str> = content.trim_end().split('#').collect();
        if fields.len() != count {
            return Err(damaged(path, content, expected));
        }
        if (fields[0], fields[1]) != (self.cluster.as_str(), self.name.as_str()) {
            return Err(IdentityError::Foreign {
                path: path.to_owned(),
                found: format!("{}/{}", fields[0], fields[1]),
                wanted: format!("{}/{}", self.cluster, self.name),
            });
        }
        Ok(fields)
    }

    /// Writes the claim; durable on return.
    ///
    /// # Errors
    /// The system refuses.
    pub fn save_claim(&self, claim: &Claim) -> Result<(), IdentityError> {
        let text = format!(
            "{}#{}#{}#{}",
            self.cluster, self.name, claim.id, claim.check_code
        );
        replace(&self.claim_path, &text)
    }

    /// Writes the identity and then removes the claim; durable on return.
    ///
    /// # Errors
    /// The system refuses; the claim is still there then.
    pub fn save_identity(&self, id: u64) -> Result<(), IdentityError> {
        replace(&self.path, &format!("{}#{}#{id}", self.cluster, self.name))?;
        self.drop_claim()
    }

    /// Removes the claim; durable on return.
    ///
    /// # Errors
    /// The system refuses.
    pub fn drop_claim(&self) -> Result<(), IdentityError> {
        match fs::remove_file(&self.claim_path) {
            Ok(()) => sync_parent(&self.claim_path),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(source) => Err(io_error(&self.claim_path, "remove", source)),
        }
    }
}

fn id(
    path: &Path,
    content: &str,
    text: &str,
    expected: &'static str,
) -> Result<u64, IdentityError> {
    // Ids travel as Java's long.
    let id = text.parse::<i64>().ok().filter(|id| *id > 0);
    id.map(i64::cast_unsigned)
        .ok_or_else(|| damaged(path, content, expected))
}

fn damaged(path: &Path, content: &str, expected: &'static str) -> IdentityError {
    let content = content.chars().take(200).collect();
    IdentityError::Damaged {
        path: path.to_owned(),
        content,
        expected,
    }
}

fn read(path: &Path) -> Result<Option<String>, IdentityError> {
    let len = match fs::metadata(path) {
        Ok(metadata) => metadata.len(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(io_error(path, "read", source)),
    };
    if len > MAX_FILE_LEN {
        return Err(damaged(path, "", "at most 4096 bytes"));
    }
    match fs::read(path) {
        Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
        Err(source) => Err(io_error(path, "read", source)),
    }
}

fn replace(path: &Path, text: &str) -> Result<(), IdentityError> {
    write_whole(path, text.as_bytes()).map_err(|source| io_error(path, "write", source))
}

/// Replaces `path` by a file with these bytes, creating its directory if need be; durable on return.
/// A crash leaves the old file or the new one.
///
/// # Errors
/// The system refuses; the old file is still there then.
pub(crate) fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let parent = parent_of(path);
    fs::create_dir_all(parent)?;
    let mut scratch = path.as_os_str().to_owned();
    scratch.push(".tmp");
    let scratch = PathBuf::from(scratch);
    let mut file = File::create(&scratch)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&scratch, path)?;
    File::open(parent)?.sync_all()
}

fn sync_parent(path: &Path) -> Result<(), IdentityError> {
    let parent = parent_of(path);
    let synced = File::open(parent).and_then(|dir| dir.sync_all());
    synced.map_err(|source| io_error(parent, "sync", source))
}

fn parent_of(path: &Path) -> &Path {
    path.parent()
        .filter(|parent| !parent.as_os_str().is_empty())
        .unwrap_or(Path::new("."))
}

fn io_error(path: &Path, what: &'static str, source: io::Error) -> IdentityError {
    IdentityError::Io {
        path: path.to_owned(),
        what,
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(dir: &Path) -> IdentityFiles {
        IdentityFiles::new(&dir.join("brokerIdentity"), "c", "b")
    }

    #[test]
    fn the_files_hold_what_java_writes() {
        let dir = tempfile::tempdir().expect("temp dir");
        let files = files(dir.path());
        assert_eq!(files.load().expect("reads"), Stored::Nothing);
        let claim = Claim {
            id: 2,
            check_code: "10.0.0.1:10911;1700000000000".into(),
        };
        files.save_claim(&claim).expect("writes");
        let temp = fs::read_to_string(dir.path().join("brokerIdentity-temp")).expect("there");
        assert_eq!(temp, "c#b#2#10.0.0.1:10911;1700000000000");
        assert_eq!(files.load().expect("reads"), Stored::Claim(claim));
        files.save_identity(2).expect("writes");
        let text = fs::read_to_string(dir.path().join("brokerIdentity")).expect("there");
        assert_eq!(text, "c#b#2");
        assert_eq!(files.load().expect("reads"), Stored::Identity(2));
        let names = fs::read_dir(dir.path()).expect("lists").count();
        assert_eq!(names, 1, "neither claim nor scratch file is left");
    }

    #[test]
    fn b18_an_identity_wins_over_a_claim_left_by_a_crash() {
        let dir = tempfile::tempdir().expect("temp dir");
        let files = files(dir.path());
        files.save_identity(3).expect("writes");
        let claim = Claim {
            id: 4,
            check_code: "a;1".into(),
        };
        files.save_claim(&claim).expect("writes");
        assert_eq!(files.load().expect("reads"), Stored::Identity(3));
    }

    #[test]
    fn b18_files_of_others_and_damaged_ones_are_refused_by_name() {
        let dir = tempfile::tempdir().expect("temp dir");
        let files = files(dir.path());
        let table = [
            ("brokerIdentity", "c#other#1", "c/other"),
            ("brokerIdentity", "other#b#1", "other/b"),
            ("brokerIdentity", "c#b", "is no identity"),
            ("brokerIdentity", "c#b#0", "is no identity"),
            ("brokerIdentity", "c#b#x", "is no identity"),
            ("brokerIdentity", "c#b#1#code", "is no identity"),
            ("brokerIdentity", "", "is no identity"),
            ("brokerIdentity-temp", "c#b#1", "is no identity"),
            ("brokerIdentity-temp", "c#x#1#code", "c/x"),
        ];
        for (name, content, want) in table {
            let path = dir.path().join(name);
            fs::write(&path, content).expect("writes");
            let error = files.load().expect_err(content).to_string();
            assert!(error.contains(want) && error.contains(name), "{error}");
            fs::remove_file(&path).expect("removes");
        }
    }
}
