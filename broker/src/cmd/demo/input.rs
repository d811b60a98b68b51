//! What the demo sends: the messages of a store folder, the lines of a text file, or by default the
//! log in fixtures/ that Apache RocketMQ wrote.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use epochlog_engine::{inspect, sys_flag};

/// Where the default input lies, below the working directory or one above it.
const FIXTURE: &str = "fixtures/java-clean-three-epochs";
/// Longest topic a broker takes from a client; a log may hold longer ones.
const MAX_SENT_TOPIC_LEN: usize = 127;
/// Topics that brokers and consumers fill themselves.
const INTERNAL_TOPICS: [&str; 2] = ["%RETRY%", "%DLQ%"];
/// What a client says of a body it has compressed; everything else in SYSFLAG is the broker's.
const KEPT_FLAGS: i32 = sys_flag::COMPRESSED | sys_flag::COMPRESSION_TYPE_MASK;
/// Longest text file read as input.
const MAX_TEXT_LEN: u64 = 1 << 30;

/// One message to send, without an attempt id.
#[derive(Debug, Clone, Default)]
pub(crate) struct Outgoing {
    /// Topic.
    pub(crate) topic: String,
    /// Queue, as it was.
    pub(crate) queue_id: i32,
    /// The user's flag.
    pub(crate) flag: i32,
    /// Compression bits and the like, as they were.
    pub(crate) sys_flag: i32,
    /// When the original was born, ms since 1970.
    pub(crate) born_timestamp_ms: i64,
    /// How often the original was consumed in vain.
    pub(crate) reconsume_times: i32,
    /// Properties in their stored form.
    pub(crate) properties: String,
    /// Body.
    pub(crate) body: Bytes,
}

impl Outgoing {
    /// A message with a body and nothing else.
    pub(crate) fn text(topic: &str, body: &str) -> Self {
        Self {
            topic: topic.to_owned(),
            body: Bytes::copy_from_slice(body.as_bytes()),
            ..Self::default()
        }
    }
}

/// The messages and where they came from.
#[derive(Debug)]
pub(crate) struct Input {
    /// In the order of the log or file.
    pub(crate) messages: Vec<Outgoing>,
    /// For people.
    pub(crate) origin: String,
}

/// Why there is nothing to send.
#[derive(Debug, thiserror::Error)]
pub enum InputError {
    /// The file or folder cannot be read.
    #[error("{path}: {why}")]
    Unreadable {
        /// The input.
        path: String,
        /// What is wrong.
        why: String,
    },
    /// It holds no message that can be sent.
    #[error("{path} holds no message that a client may send")]
    Empty {
        /// The input.
        path: String,
    },
    /// The default input is not where the demo looks.
    #[error(
        "{FIXTURE} was not found in the working directory or above it; run the demo inside the \
         repository, or name an --input"
    )]
    NoFixture,
}

/// Loads `from`, or the default, repeated or shortened to `count` messages.
pub(crate) fn load(from: Option<&Path>, count: Option<usize>) -> Result<Input, InputError> {
    let path = match from {
        Some(path) => path.to_owned(),
        None => fixture().ok_or(InputError::NoFixture)?,
    };
    let mut input = if path.is_dir() {
        from_store(&path)?
    } else {
        from_text(&path)?
    };
    if input.messages.is_empty() {
        return Err(InputError::Empty {
            path: path.display().to_string(),
        });
    }
    if let Some(count) = count {
        let originals = input.messages;
        input.messages = originals.iter().cycle().take(count).cloned().collect();
    }
    Ok(input)
}

fn fixture() -> Option<PathBuf> {
    let here = std::env::current_dir().ok()?;
    here.ancestors()
        .map(|above| above.join(FIXTURE))
        .find(|path| path.is_dir())
}

fn unreadable(path: &Path, why: impl ToString) -> InputError {
    InputError::Unreadable {
        path: path.display().to_string(),
        why: why.to_string(),
    }
}

fn from_store(path: &Path) -> Result<Input, InputError> {
    let found = inspect::scan(path).map_err(|error| unreadable(path, error))?;
    let mut messages = Vec::new();
    let mut left_out = 0;
    for record in found.records() {
        let view = record.map_err(|error| unreadable(path, error))?;
        let record = view.record();
        let of_consumers = INTERNAL_TOPICS
            .iter()
            .any(|start| record.topic().starts_with(start));
        if of_consumers || record.topic().len() > MAX_SENT_TOPIC_LEN {
            left_out += 1;
            continue;
        }
        messages.push(Outgoing {
            topic: record.topic().to_owned(),
            queue_id: record.queue_id(),
            flag: record.flag(),
            sys_flag: record.sys_flag() & KEPT_FLAGS,
            born_timestamp_ms: record.born_timestamp_ms(),
            reconsume_times: record.reconsume_times(),
            properties: String::from_utf8_lossy(record.properties_bytes()).into_owned(),
            body: Bytes::copy_from_slice(record.body()),
        });
    }
    let mut origin = format!(
        "{} messages from the store {}",
        messages.len(),
        path.display()
    );
    if left_out > 0 {
        let text = format!(
            "; {left_out} left out: retry topics of consumers, and topics longer than \
             {MAX_SENT_TOPIC_LEN} bytes, which brokers do not take from producers"
        );
        origin.push_str(&text);
    }
    Ok(Input { messages, origin })
}

fn from_text(path: &Path) -> Result<Input, InputError> {
    let len = std::fs::metadata(path)
        .map_err(|error| unreadable(path, error))?
        .len();
    if len > MAX_TEXT_LEN {
        return Err(unreadable(
            path,
            format!("{len} bytes are more than {MAX_TEXT_LEN}"),
        ));
    }
    let text = std::fs::read_to_string(path).map_err(|error| unreadable(path, error))?;
    let lines = text.lines().filter(|line| !line.is_empty());
    let messages: Vec<_> = lines.map(|line| Outgoing::text("demo", line)).collect();
    let origin = format!("{} lines of {}", messages.len(), path.display());
    Ok(Input { messages, origin })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_become_messages_and_a_count_repeats_or_shortens_them() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lines");
        std::fs::write(&path, "one\n\ntwo\nthree\n").unwrap();
        let bodies = |count| {
            let input = load(Some(&path), count).unwrap();
            let texts = input
                .messages
                .iter()
                .map(|one| String::from_utf8(one.body.to_vec()));
            texts.collect::<Result<Vec<_>, _>>().unwrap()
        };
        assert_eq!(bodies(None), ["one", "two", "three"]);
        assert_eq!(bodies(Some(2)), ["one", "two"]);
        assert_eq!(bodies(Some(5)), ["one", "two", "three", "one", "two"]);
    }

    #[test]
    fn nothing_to_send_is_an_error_that_names_the_input() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("empty");
        std::fs::write(&path, "\n").unwrap();
        let error = load(Some(&path), None).unwrap_err().to_string();
        assert!(error.contains("empty"), "{error}");
        assert!(load(Some(&dir.path().join("absent")), None).is_err());
    }
}
