//! Takes typed values out of a properties file and remembers what nobody took.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::ConfError;
use super::properties::parse_properties;

const DAY_MS: u64 = 24 * 3_600_000;

/// Longest configuration file.
const MAX_FILE_LEN: u64 = 1024 * 1024;

/// The keys of one file. Every `take` removes its key and notes the effective value.
#[derive(Debug, Clone)]
pub struct Reader {
    path: PathBuf,
    keys: BTreeMap<String, (usize, String)>,
    /// Where each key stands, taken or not.
    lines: BTreeMap<String, usize>,
    warnings: Vec<String>,
    effective: Vec<(&'static str, String)>,
}

impl Reader {
    /// Reads the file as UTF-8, or as Latin-1 (Java's own reading) when it is not UTF-8.
    ///
    /// # Errors
    /// The file cannot be read, is over 1 MiB, or holds a line that is no property.
    pub fn open(path: &Path) -> Result<Self, ConfError> {
        let read = |source| ConfError::Read {
            path: path.to_owned(),
            source,
        };
        let len = std::fs::metadata(path).map_err(read)?.len();
        if len > MAX_FILE_LEN {
            return Err(read(std::io::Error::other(format!(
                "{len} bytes; a configuration has at most {MAX_FILE_LEN}"
            ))));
        }
        let bytes = std::fs::read(path).map_err(read)?;
        let text = String::from_utf8(bytes)
            .unwrap_or_else(|error| error.into_bytes().into_iter().map(char::from).collect());
        Self::parse(path, &text)
    }

    /// Reads the text of a file that is called `path` in messages.
    ///
    /// # Errors
    /// A line is no property.
    pub fn parse(path: &Path, text: &str) -> Result<Self, ConfError> {
        let mut reader = Self {
            path: path.to_owned(),
            keys: BTreeMap::new(),
            lines: BTreeMap::new(),
            warnings: Vec::new(),
            effective: Vec::new(),
        };
        let properties = parse_properties(text).map_err(|error| ConfError::Syntax {
            path: path.to_owned(),
            line: error.line,
            why: error.why,
        })?;
        for property in properties {
            reader.lines.insert(property.key.clone(), property.line);
            let entry = (property.line, property.value);
            if let Some((line, _)) = reader.keys.insert(property.key.clone(), entry) {
                reader.warnings.push(format!(
                    "{}:{}: {} stands also in line {line}; this one counts",
                    path.display(),
                    property.line,
                    property.key
                ));
            }
        }
        Ok(reader)
    }

    /// What a key stands for when it is absent or blank in the file.
    pub(super) fn set_default(&mut self, key: &str, value: &str) {
        let known = self.keys.get(key);
        if known.is_none_or(|(_, value)| value.trim().is_empty()) {
            self.keys.insert(key.to_owned(), (0, value.to_owned()));
        }
    }

    /// The value of `key`, trimmed; `None` when absent or blank.
    pub fn text(&mut self, key: &'static str) -> Option<String> {
        let value = self
            .keys
            .remove(key)
            .map(|(_, value)| value.trim().to_owned());
        let value = value.filter(|value| !value.is_empty());
        if let Some(value) = &value {
            self.effective.push((key, value.clone()));
        }
        value
    }

    /// The value of `key`, or `default`.
    pub fn text_or(&mut self, key: &'static str, default: impl Into<String>) -> String {
        let value = self.text(key);
        value.unwrap_or_else(|| {
            let default = default.into();
            self.effective.push((key, default.clone()));
            default
        })
    }

    /// A value that `parse` accepts, or `default` when the key is absent or blank.
    ///
    /// # Errors
    /// `parse` does not accept the value; `allowed` says what it would.
    pub fn parsed<T: ToString>(
        &mut self,
        key: &'static str,
        default: T,
        allowed: &str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Result<T, ConfError> {
        let found = self
            .keys
            .remove(key)
            .filter(|(_, value)| !value.trim().is_empty());
        let value = match found {
            None => default,
            Some((_, text)) => parse(text.trim()).ok_or_else(|| self.bad(key, &text, allowed))?,
        };
        self.effective.push((key, value.to_string()));
        Ok(value)
    }

    /// A whole number in `min..=max`.
    ///
    /// # Errors
    /// Not a number, or out of range.
    pub fn number(
        &mut self,
        key: &'static str,
        default: u64,
        min: u64,
        max: u64,
    ) -> Result<u64, ConfError> {
        let allowed = format!("a whole number from {min} to {max}");
        let within = |text: &str| text.parse().ok().filter(|n| (min..=max).contains(n));
        self.parsed(key, default, &allowed, within)
    }

    /// A span in ms, from 10 ms to a day.
    ///
    /// # Errors
    /// As [`Self::number`].
    pub fn ms(&mut self, key: &'static str, default: u64) -> Result<Duration, ConfError> {
        let ms = self.number(key, default, 10, DAY_MS)?;
        Ok(Duration::from_millis(ms))
    }

    /// `true` or `false`, in any case.
    ///
    /// # Errors
    /// Anything else.
    pub fn flag(&mut self, key: &'static str, default: bool) -> Result<bool, ConfError> {
        self.parsed(key, default, "true or false", |text| {
            text.to_ascii_lowercase().parse().ok()
        })
    }

    /// An error about the value of `key`, whether or not it was taken.
    #[must_use]
    pub fn bad(&self, key: &str, value: &str, allowed: &str) -> ConfError {
        ConfError::Value {
            path: self.path.clone(),
            line: self.lines.get(key).copied(),
            key: key.to_owned(),
            value: value.trim().to_owned(),
            allowed: allowed.to_owned(),
        }
    }

    /// An error about a key that is needed.
    #[must_use]
    pub fn missing(&self, key: &'static str, why: &'static str) -> ConfError {
        ConfError::Missing {
            path: self.path.clone(),
            key,
            why,
        }
    }

    /// Ends the reading: the warnings, keys nobody took among them, and the effective values.
    #[must_use]
    pub fn finish(mut self) -> (Vec<String>, Vec<(&'static str, String)>) {
        for (key, (line, _)) in &self.keys {
            self.warnings.push(format!(
                "{}:{line}: {key} is not supported and has no effect",
                self.path.display()
            ));
        }
        (self.warnings, self.effective)
    }
}
