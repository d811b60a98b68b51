//! The frame: i32 length of all that follows, i32 (coding in the top byte, header length below),
//! header, body. Big-endian. Pure.
//!
//! Invariants: a length is checked against its limit and against the bytes at hand before anything
//! is allocated for it; a frame that cannot be read is an error, after which the connection is of
//! no use; what [`encode`] writes, [`decode`] reads back.

use std::fmt;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use serde::de::{self, MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::command::{Coding, ExtFields, Language, RemotingCommand};

/// Longest frame, its length field included (RocketMQ: com.rocketmq.remoting.frameMaxLength).
pub const MAX_FRAME_LEN: usize = 16 * 1024 * 1024;
/// Most extension fields in one frame.
pub const MAX_EXT_FIELDS: usize = 4096;

const LENGTH_LEN: usize = 4;
const CODING_JSON: u32 = 0;
const CODING_ROCKETMQ: u32 = 1;
/// First bytes of a TLS client hello, read as the length of a frame.
const TLS_RECORD: u32 = 0x16_03_00_00;

/// Why bytes are not a frame, or a command does not fit one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// Longer than [`MAX_FRAME_LEN`].
    #[error("a frame of {len} bytes is over the limit of {MAX_FRAME_LEN}{}", tls_hint(*.len))]
    TooLong {
        /// Length of the frame with its length field.
        len: u64,
    },
    /// The frame or its header ends before what it says it holds.
    #[error("{what} does not fit the {room} bytes there are")]
    Short {
        /// What was read.
        what: &'static str,
        /// Bytes left for it.
        room: usize,
    },
    /// A coding other than JSON and ROCKETMQ.
    #[error("header coding {coding} is neither 0 (JSON) nor 1 (ROCKETMQ)")]
    UnknownCoding {
        /// The top byte of the second word.
        coding: u32,
    },
    /// More than [`MAX_EXT_FIELDS`] fields.
    #[error("more than {MAX_EXT_FIELDS} extension fields")]
    TooManyFields,
    /// Text that is not UTF-8.
    #[error("{what} is not UTF-8")]
    NotText {
        /// What was read.
        what: &'static str,
    },
    /// A JSON header that does not read.
    #[error("JSON header: {0}")]
    Json(#[from] serde_json::Error),
}

fn tls_hint(len: u64) -> &'static str {
    let word = len.saturating_sub(LENGTH_LEN as u64);
    if word & !0xFFFF == u64::from(TLS_RECORD) {
        " (these look like the first bytes of TLS, which is not spoken here)"
    } else {
        ""
    }
}

/// Takes the next whole frame off the front of `buffer`; `None` while it is incomplete. The body
/// shares the buffer's memory.
///
/// # Errors
/// The bytes are not a frame; nothing behind them can be read either.
pub fn decode(buffer: &mut BytesMut) -> Result<Option<RemotingCommand>, FrameError> {
    let Some(length) = buffer.first_chunk::<LENGTH_LEN>() else {
        return Ok(None);
    };
    let length = u32::from_be_bytes(*length);
    let total = u64::from(length) + LENGTH_LEN as u64;
    if total > MAX_FRAME_LEN as u64 {
        return Err(FrameError::TooLong { len: total });
    }
    let total = length as usize + LENGTH_LEN;
    if buffer.len() < total {
        return Ok(None);
    }
    let mut frame = buffer.split_to(total).freeze();
    frame.advance(LENGTH_LEN);
    decode_frame(frame).map(Some)
}

fn decode_frame(mut frame: Bytes) -> Result<RemotingCommand, FrameError> {
    let word = take_u32(&mut frame, "the coding and header length")?;
    let header_len = (word & 0x00FF_FFFF) as usize;
    if header_len > frame.len() {
        return Err(FrameError::Short {
            what: "the header",
            room: frame.len(),
        });
    }
    let header = frame.split_to(header_len);
    let mut command = match word >> 24 {
        CODING_JSON => json_header(&header)?,
        CODING_ROCKETMQ => binary_header(header)?,
        coding => return Err(FrameError::UnknownCoding { coding }),
    };
    command.body = frame;
    Ok(command)
}

/// Appends the whole frame to `out`.
///
/// # Errors
/// The frame would be longer than [`MAX_FRAME_LEN`] or hold too many fields; `out` is unchanged.
pub fn encode(command: &RemotingCommand, out: &mut BytesMut) -> Result<(), FrameError> {
    encode_head(command, out)?;
    out.extend_from_slice(&command.body);
    Ok(())
}

/// Appends the frame up to its body, so that a large body need not be copied.
///
/// # Errors
/// As [`encode`].
pub fn encode_head(command: &RemotingCommand, out: &mut BytesMut) -> Result<(), FrameError> {
    if command.ext_fields.len() > MAX_EXT_FIELDS {
        return Err(FrameError::TooManyFields);
    }
    let start = out.len();
    out.put_u64(0);
    let coding = match i16::try_from(command.code) {
        Ok(code) if command.coding == Coding::RocketMq => {
            write_binary_header(command, code, out);
            CODING_ROCKETMQ
        }
        _ => {
            let header = JsonHeaderOut(command);
            if let Err(error) = serde_json::to_writer((&mut *out).writer(), &header) {
                out.truncate(start);
                return Err(error.into());
            }
            CODING_JSON
        }
    };
    let header_len = out.len() - start - 8;
    let total = out.len() - start + command.body.len();
    match (u32::try_from(total - LENGTH_LEN), u32::try_from(header_len)) {
        (Ok(length), Ok(header_len)) if total <= MAX_FRAME_LEN => {
            out[start..start + 4].copy_from_slice(&length.to_be_bytes());
            out[start + 4..start + 8].copy_from_slice(&(header_len | coding << 24).to_be_bytes());
            Ok(())
        }
        _ => {
            out.truncate(start);
            Err(FrameError::TooLong { len: total as u64 })
        }
    }
}

fn take_u32(from: &mut Bytes, what: &'static str) -> Result<u32, FrameError> {
    from.try_get_u32().map_err(|_| FrameError::Short {
        what,
        room: from.len(),
    })
}

/// Takes a text with its i32 length; an empty one is null in RocketMQ's coding.
fn take_text(from: &mut Bytes, len: usize, what: &'static str) -> Result<String, FrameError> {
    if len > from.len() {
        return Err(FrameError::Short {
            what,
            room: from.len(),
        });
    }
    let bytes = from.split_to(len);
    let text = std::str::from_utf8(&bytes).map_err(|_| FrameError::NotText { what })?;
    Ok(text.to_owned())
}

/// i16 code, u8 language, i16 version, i32 opaque, i32 flag, i32 + remark, i32 + fields of
/// (i16 + key, i32 + value).
fn binary_header(mut from: Bytes) -> Result<RemotingCommand, FrameError> {
    const FIXED_LEN: usize = 13;
    if from.len() < FIXED_LEN {
        return Err(FrameError::Short {
            what: "the fixed part of the header",
            room: from.len(),
        });
    }
    let mut command = RemotingCommand::request(i32::from(from.get_i16()));
    command.coding = Coding::RocketMq;
    command.language = Language::from_ordinal(from.get_u8());
    command.version = i32::from(from.get_i16());
    command.opaque = from.get_i32();
    command.flag = from.get_i32();
    let remark_len = take_u32(&mut from, "the length of the remark")? as usize;
    let remark = take_text(&mut from, remark_len, "the remark")?;
    command.remark = Some(remark).filter(|text| !text.is_empty());
    let ext_len = take_u32(&mut from, "the length of the extension fields")? as usize;
    if ext_len > from.len() {
        return Err(FrameError::Short {
            what: "the extension fields",
            room: from.len(),
        });
    }
    let mut ext = from.split_to(ext_len);
    while !ext.is_empty() {
        if command.ext_fields.len() == MAX_EXT_FIELDS {
            return Err(FrameError::TooManyFields);
        }
        let key_len = ext.try_get_u16().map_err(|_| FrameError::Short {
            what: "the length of a field name",
            room: ext.len(),
        })?;
        let key = take_text(&mut ext, usize::from(key_len), "a field name")?;
        let value_len = take_u32(&mut ext, "the length of a field value")? as usize;
        let value = take_text(&mut ext, value_len, "a field value")?;
        if !key.is_empty() && !value.is_empty() {
            command.ext_fields.insert(key, value);
        }
    }
    Ok(command)
}

/// Writes what `binary_header` reads. Lengths that do not fit their field cannot occur in a frame
/// within the limit, except a field name over 32767 bytes: it is left out.
fn write_binary_header(command: &RemotingCommand, code: i16, out: &mut BytesMut) {
    out.put_i16(code);
    out.put_u8(command.language as u8);
    out.put_i16(i16::try_from(command.version).unwrap_or(i16::MAX));
    out.put_i32(command.opaque);
    out.put_i32(command.flag);
    put_text(command.remark.as_deref().unwrap_or(""), out);
    let length_at = out.len();
    out.put_u32(0);
    for (key, value) in &command.ext_fields {
        if let Ok(key_len) = i16::try_from(key.len()) {
            out.put_i16(key_len);
            out.put_slice(key.as_bytes());
            put_text(value, out);
        }
    }
    let length = wire_len(out.len() - length_at - 4);
    out[length_at..length_at + 4].copy_from_slice(&length.to_be_bytes());
}

fn put_text(text: &str, out: &mut BytesMut) {
    out.put_u32(wire_len(text.len()));
    out.put_slice(text.as_bytes());
}

/// A length over u32 makes the frame too long anyway, which the caller finds by the whole.
fn wire_len(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct JsonHeaderIn {
    code: i32,
    language: Option<String>,
    version: i32,
    opaque: i32,
    flag: i32,
    remark: Option<String>,
    #[serde(rename = "extFields")]
    ext_fields: Option<BoundedFields>,
}

fn json_header(text: &[u8]) -> Result<RemotingCommand, FrameError> {
    let header: JsonHeaderIn = serde_json::from_slice(text)?;
    let language = header
        .language
        .as_deref()
        .map_or(Language::Other, Language::from_name);
    Ok(RemotingCommand {
        code: header.code,
        language,
        version: header.version,
        opaque: header.opaque,
        flag: header.flag,
        remark: header.remark,
        ext_fields: header.ext_fields.map(|fields| fields.0).unwrap_or_default(),
        body: Bytes::new(),
        coding: Coding::Json,
        send_by_ms: None,
    })
}

/// Extension fields, bounded in number.
struct BoundedFields(ExtFields);

impl<'de> Deserialize<'de> for BoundedFields {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = BoundedFields;

            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(
                    out,
                    "an object of at most {MAX_EXT_FIELDS} extension fields"
                )
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut fields = ExtFields::new();
                while let Some((key, value)) = map.next_entry::<String, Scalar>()? {
                    if fields.len() == MAX_EXT_FIELDS {
                        return Err(de::Error::invalid_length(fields.len() + 1, &self));
                    }
                    if let Some(text) = value.0 {
                        fields.insert(key, text);
                    }
                }
                Ok(BoundedFields(fields))
            }
        }
        from.deserialize_map(Fields)
    }
}

/// A field's value as text; `None` for null. Values that other writers leave unquoted are taken.
struct Scalar(Option<String>);

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = Scalar;

            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(out, "text, a number, a boolean or null")
            }

            fn visit_str<E>(self, text: &str) -> Result<Scalar, E> {
                Ok(Scalar(Some(text.to_owned())))
            }

            fn visit_string<E>(self, text: String) -> Result<Scalar, E> {
                Ok(Scalar(Some(text)))
            }

            fn visit_bool<E>(self, value: bool) -> Result<Scalar, E> {
                Ok(Scalar(Some(value.to_string())))
            }

            fn visit_i64<E>(self, value: i64) -> Result<Scalar, E> {
                Ok(Scalar(Some(value.to_string())))
            }

            fn visit_u64<E>(self, value: u64) -> Result<Scalar, E> {
                Ok(Scalar(Some(value.to_string())))
            }

            fn visit_f64<E>(self, value: f64) -> Result<Scalar, E> {
                Ok(Scalar(Some(value.to_string())))
            }

            fn visit_unit<E>(self) -> Result<Scalar, E> {
                Ok(Scalar(None))
            }
        }
        from.deserialize_any(Text)
    }
}

/// The members in alphabetical order, as fastjson writes them.
struct JsonHeaderOut<'a>(&'a RemotingCommand);

impl Serialize for JsonHeaderOut<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let command = self.0;
        let mut map = to.serialize_map(None)?;
        map.serialize_entry("code", &command.code)?;
        if !command.ext_fields.is_empty() {
            map.serialize_entry("extFields", &command.ext_fields)?;
        }
        map.serialize_entry("flag", &command.flag)?;
        map.serialize_entry("language", command.language.name())?;
        map.serialize_entry("opaque", &command.opaque)?;
        if let Some(remark) = &command.remark {
            map.serialize_entry("remark", remark)?;
        }
        map.serialize_entry("serializeTypeCurrentRPC", "JSON")?;
        map.serialize_entry("version", &command.version)?;
        map.end()
    }
}

#[cfg(test)]
mod tests;
