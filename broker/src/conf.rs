//! RocketMQ's own configuration files, read into typed settings.
//!
//! A key is the Java setter's name. Keys nobody here reads are warned about once each, with file and
//! line; a value that does not fit is an error that names file, line, key, value and what is
//! allowed. Nothing is read from the environment except `HOME`, for Java's default folders.

mod broker;
mod controller;
mod embedded;
mod properties;
mod reader;
mod retention;

use std::path::PathBuf;

pub use broker::{BrokerConf, FlushDiskType};
pub use controller::{ControllerConf, ControllerPeer};
pub use embedded::EmbeddedConf;
#[cfg(test)]
use properties::parse_properties;
pub use reader::Reader;
pub use retention::RetentionConf;

/// Why a configuration file cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfError {
    /// The file cannot be read.
    #[error("{}: cannot read the configuration: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// A line is no property.
    #[error("{}:{line}: {why}", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A value does not fit its key.
    #[error("{}{}: {key}={value} is not allowed: {allowed}", path.display(), line_text(*.line))]
    Value {
        /// The file.
        path: PathBuf,
        /// Line, from 1; `None` when the key is absent and its default does not fit.
        line: Option<usize>,
        /// The key.
        key: String,
        /// What stands there.
        value: String,
        /// What would be allowed.
        allowed: String,
    },
    /// A key that must be there is not.
    #[error("{}: {key} is missing: {why}", path.display())]
    Missing {
        /// The file.
        path: PathBuf,
        /// The key.
        key: &'static str,
        /// What it is for.
        why: &'static str,
    },
}

fn line_text(line: Option<usize>) -> String {
    line.map_or_else(String::new, |line| format!(":{line}"))
}

#[cfg(test)]
mod tests;
