//! One remoting command as a value: what a frame says, without how it is coded.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::header::{HeaderError, TypedHeader};

/// Extension fields by exact Java field name; ordered, so that a frame is reproducible.
pub type ExtFields = BTreeMap<String, String>;

/// The version all our frames carry: the ordinal of V5_3_3 in RocketMQ's MQVersion.
pub const PROTOCOL_VERSION: i32 = 479;

const FLAG_RESPONSE: i32 = 1;
const FLAG_ONE_WAY: i32 = 2;

/// How a frame's header is written. Each frame names its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Coding {
    /// A JSON object; what Java processes write unless told otherwise.
    #[default]
    Json,
    /// RocketMQ's binary header. Codes above 32767 do not fit; such frames are written as JSON.
    RocketMq,
}

/// The sender's implementation language (RocketMQ: LanguageCode; the value is its ordinal).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[expect(missing_docs, reason = "the names say all there is")]
pub enum Language {
    Java = 0,
    Cpp = 1,
    DotNet = 2,
    Python = 3,
    Delphi = 4,
    Erlang = 5,
    Ruby = 6,
    Other = 7,
    Http = 8,
    Go = 9,
    Php = 10,
    Oms = 11,
    #[default]
    Rust = 12,
    NodeJs = 13,
}

const LANGUAGES: [(Language, &str); 14] = [
    (Language::Java, "JAVA"),
    (Language::Cpp, "CPP"),
    (Language::DotNet, "DOTNET"),
    (Language::Python, "PYTHON"),
    (Language::Delphi, "DELPHI"),
    (Language::Erlang, "ERLANG"),
    (Language::Ruby, "RUBY"),
    (Language::Other, "OTHER"),
    (Language::Http, "HTTP"),
    (Language::Go, "GO"),
    (Language::Php, "PHP"),
    (Language::Oms, "OMS"),
    (Language::Rust, "RUST"),
    (Language::NodeJs, "NODE_JS"),
];

impl Language {
    /// The name in a JSON header.
    #[must_use]
    pub fn name(self) -> &'static str {
        LANGUAGES[self as usize].1
    }

    /// The language with this JSON name; [`Language::Other`] for names not known here.
    #[must_use]
    pub fn from_name(name: &str) -> Self {
        let known = LANGUAGES.iter().find(|(_, text)| *text == name);
        known.map_or(Self::Other, |(language, _)| *language)
    }

    /// The language with this ordinal; [`Language::Other`] for ordinals not known here.
    #[must_use]
    pub fn from_ordinal(ordinal: u8) -> Self {
        LANGUAGES
            .get(usize::from(ordinal))
            .map_or(Self::Other, |(language, _)| *language)
    }
}

/// A request or an answer (RocketMQ: RemotingCommand).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemotingCommand {
    /// Request code, or response code in an answer.
    pub code: i32,
    /// Who wrote the frame.
    pub language: Language,
    /// The writer's protocol version.
    pub version: i32,
    /// Correlation id; an answer repeats that of its request.
    pub opaque: i32,
    /// Bit 0: answer; bit 1: one-way.
    pub flag: i32,
    /// Text for people, mostly with errors.
    pub remark: Option<String>,
    /// The custom header. An empty value and an absent one mean the same.
    pub ext_fields: ExtFields,
    /// The body; empty when absent.
    pub body: Bytes,
    /// How the header was or will be written.
    pub coding: Coding,
    /// Of an answer: the system must have it by then, in ms of CLOCK_BOOTTIME; later a server sends
    /// FLUSH_SLAVE_TIMEOUT (12) in its place, or, when it is half written, ends the connection.
    pub send_by_ms: Option<u64>,
}

impl RemotingCommand {
    /// A request without header fields.
    #[must_use]
    pub fn request(code: i32) -> Self {
        Self {
            code,
            language: Language::Rust,
            version: PROTOCOL_VERSION,
            opaque: 0,
            flag: 0,
            remark: None,
            ext_fields: ExtFields::new(),
            body: Bytes::new(),
            coding: Coding::Json,
            send_by_ms: None,
        }
    }

    /// A request with a typed header.
    #[must_use]
    pub fn request_with(code: i32, header: &impl TypedHeader) -> Self {
        let mut command = Self::request(code);
        header.write_ext(&mut command.ext_fields);
        command
    }

    /// An answer to `self`: same opaque and coding, flag bit 0 set.
    #[must_use]
    pub fn answer(&self, code: i32) -> Self {
        Self {
            opaque: self.opaque,
            flag: FLAG_RESPONSE,
            coding: self.coding,
            ..Self::request(code)
        }
    }

    /// An answer with a code and a text.
    #[must_use]
    pub fn refuse(&self, code: i32, remark: impl Into<String>) -> Self {
        Self {
            remark: Some(remark.into()),
            ..self.answer(code)
        }
    }

    /// The same command with the fields of `header` added.
    #[must_use]
    pub fn with_header(mut self, header: &impl TypedHeader) -> Self {
        header.write_ext(&mut self.ext_fields);
        self
    }

    /// The same command with this body.
    #[must_use]
    pub fn with_body(mut self, body: impl Into<Bytes>) -> Self {
        self.body = body.into();
        self
    }

    /// The same command with one more field.
    #[must_use]
    pub fn with_field(mut self, name: &str, value: impl Into<String>) -> Self {
        self.ext_fields.insert(name.to_owned(), value.into());
        self
    }

    /// The same command, marked as one that gets no answer.
    #[must_use]
    pub fn one_way(mut self) -> Self {
        self.flag |= FLAG_ONE_WAY;
        self
    }

    /// Whether this is an answer.
    #[must_use]
    pub fn is_response(&self) -> bool {
        self.flag & FLAG_RESPONSE != 0
    }

    /// Whether the sender waits for no answer.
    #[must_use]
    pub fn is_one_way(&self) -> bool {
        self.flag & FLAG_ONE_WAY != 0
    }

    /// One field; `None` when absent or empty.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&str> {
        self.ext_fields
            .get(name)
            .map(String::as_str)
            .filter(|value| !value.is_empty())
    }

    /// Reads the typed header of this command.
    ///
    /// # Errors
    /// A mandatory field is missing, or a field does not parse; the error names it.
    pub fn header<H: TypedHeader>(&self) -> Result<H, HeaderError> {
        H::read_ext(&self.ext_fields)
    }
}
