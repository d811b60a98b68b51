//! Message properties in RocketMQ's text form: `name 0x01 value 0x02`, repeated.
//!
//! Reading follows Java's parser: nothing is escaped, a pair without a name or without a value is
//! dropped, the last of several equal names wins (RocketMQ: MessageDecoder.string2messageProperties).

use std::borrow::Cow;

use crate::record::MAX_PROPERTIES_LEN;

const NAME_VALUE_SEPARATOR: u8 = 0x01;
const PROPERTY_SEPARATOR: u8 = 0x02;

/// The pairs of a property text, in the order they are stored.
///
/// Bytes that are not UTF-8 read as the replacement character, as in Java; only then does a pair cost
/// an allocation.
#[derive(Clone, Copy, Debug)]
pub struct Properties<'a> {
    rest: &'a [u8],
}

impl<'a> Properties<'a> {
    /// The pairs of `bytes`; nothing in them is an error, what is no pair is skipped.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// The value of `name` among the pairs that are left; the last one if there are several.
    #[must_use]
    pub fn get(self, name: &str) -> Option<Cow<'a, str>> {
        self.filter(|(found, _)| found == name)
            .last()
            .map(|(_, value)| value)
    }
}

impl<'a> Iterator for Properties<'a> {
    type Item = (Cow<'a, str>, Cow<'a, str>);

    fn next(&mut self) -> Option<Self::Item> {
        while !self.rest.is_empty() {
            let end = position(self.rest, PROPERTY_SEPARATOR);
            let pair = &self.rest[..end.unwrap_or(self.rest.len())];
            self.rest = end.map_or(&[][..], |end| &self.rest[end + 1..]);
            let Some(middle) = position(pair, NAME_VALUE_SEPARATOR) else {
                continue;
            };
            let (name, value) = (&pair[..middle], &pair[middle + 1..]);
            if !name.is_empty() && !value.is_empty() {
                return Some((
                    String::from_utf8_lossy(name),
                    String::from_utf8_lossy(value),
                ));
            }
        }
        None
    }
}

fn position(bytes: &[u8], wanted: u8) -> Option<usize> {
    bytes.iter().position(|&byte| byte == wanted)
}

/// Builds a property text that reads back as what was put in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PropertiesBuilder {
    text: String,
}

/// Why a pair cannot be a property. The builder is as it was.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PropertyError {
    /// RocketMQ drops pairs without a name or a value.
    #[error("property {name:?}: name and value must not be empty")]
    Empty {
        /// The name given.
        name: String,
    },
    /// A separator inside the name or the value would make other pairs of it.
    #[error("property {name:?}: the characters 1 and 2 separate properties and cannot be inside")]
    Separator {
        /// The name given.
        name: String,
    },
    /// The text would be longer than a record can hold.
    #[error(
        "property {name:?}: properties would take {len} bytes; the limit is {MAX_PROPERTIES_LEN}"
    )]
    TooLong {
        /// The name given.
        name: String,
        /// Bytes with this pair.
        len: usize,
    },
}

impl PropertiesBuilder {
    /// An empty text.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a pair at the end.
    ///
    /// # Errors
    /// [`PropertyError`] if the pair would not read back as it is or the text would be too long.
    pub fn push(&mut self, name: &str, value: &str) -> Result<&mut Self, PropertyError> {
        let owned = || name.to_owned();
        if name.is_empty() || value.is_empty() {
            return Err(PropertyError::Empty { name: owned() });
        }
        if name.contains(['\u{1}', '\u{2}']) || value.contains(['\u{1}', '\u{2}']) {
            return Err(PropertyError::Separator { name: owned() });
        }
        let len = self.text.len() + name.len() + value.len() + 2;
        if len > MAX_PROPERTIES_LEN {
            return Err(PropertyError::TooLong { name: owned(), len });
        }
        self.text.push_str(name);
        self.text.push(char::from(NAME_VALUE_SEPARATOR));
        self.text.push_str(value);
        self.text.push(char::from(PROPERTY_SEPARATOR));
        Ok(self)
    }

    /// The text so far.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.text.as_bytes()
    }

    /// The text, given up by the builder.
    #[must_use]
    pub fn into_string(self) -> String {
        self.text
    }
}

/// Java's `String.hashCode` of `text`, over UTF-16 units: the tags code of a consume queue.
#[must_use]
pub fn java_string_hash(text: &str) -> i32 {
    text.encode_utf16().fold(0_i32, |hash, unit| {
        hash.wrapping_mul(31).wrapping_add(i32::from(unit))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    type Pairs = Vec<(String, String)>;

    fn pairs(bytes: &[u8]) -> Pairs {
        Properties::new(bytes)
            .map(|(n, v)| (n.into_owned(), v.into_owned()))
            .collect()
    }

    fn pair(name: &str, value: &str) -> (String, String) {
        (name.to_owned(), value.to_owned())
    }

    #[test]
    fn reads_as_javas_parser_does() {
        let cases: &[(&[u8], Pairs)] = &[
            (b"", vec![]),
            (b"\x02\x02", vec![]),
            (b"TAGS\x01A\x02", vec![pair("TAGS", "A")]),
            (b"TAGS\x01A", vec![pair("TAGS", "A")]),
            (
                b"a\x01b\x02c\x01d\x02",
                vec![pair("a", "b"), pair("c", "d")],
            ),
            (b"\x01b\x02c\x01d", vec![pair("c", "d")]),
            (b"a\x01\x02c\x01d", vec![pair("c", "d")]),
            (b"a\x01", vec![]),
            (b"nothing\x02c\x01d\x02", vec![pair("c", "d")]),
            (b"a\x01b\x01c\x02", vec![pair("a", "b\u{1}c")]),
            (b"\x01\x01x\x02", vec![]),
            (b"k\x01\xff\x02", vec![pair("k", "\u{fffd}")]),
        ];
        for (bytes, expected) in cases {
            assert_eq!(&pairs(bytes), expected, "{bytes:?}");
        }
    }

    #[test]
    fn the_last_of_equal_names_wins() {
        let properties = Properties::new(b"a\x011\x02b\x012\x02a\x013\x02");
        assert_eq!(properties.get("a").as_deref(), Some("3"));
        assert_eq!(properties.get("b").as_deref(), Some("2"));
        assert_eq!(properties.get("c"), None);
    }

    #[test]
    fn a_built_text_reads_back() {
        let mut builder = PropertiesBuilder::new();
        builder
            .push("TAGS", "订单")
            .unwrap()
            .push("KEYS", "k1 k2")
            .unwrap();
        assert_eq!(
            builder.as_bytes(),
            "TAGS\u{1}订单\u{2}KEYS\u{1}k1 k2\u{2}".as_bytes()
        );
        assert_eq!(
            pairs(builder.as_bytes()),
            [pair("TAGS", "订单"), pair("KEYS", "k1 k2")]
        );
    }

    #[test]
    fn the_builder_refuses_what_would_not_read_back() {
        let mut builder = PropertiesBuilder::new();
        let empty = |name: &str| PropertyError::Empty {
            name: name.to_owned(),
        };
        assert_eq!(builder.push("", "x"), Err(empty("")));
        assert_eq!(builder.push("x", ""), Err(empty("x")));
        for (name, value) in [
            ("a\u{1}", "b"),
            ("a\u{2}", "b"),
            ("a", "\u{1}"),
            ("a", "b\u{2}"),
        ] {
            let error = PropertyError::Separator {
                name: name.to_owned(),
            };
            assert_eq!(builder.push(name, value), Err(error));
        }
        builder
            .push("n", &"v".repeat(MAX_PROPERTIES_LEN - 3))
            .unwrap();
        assert_eq!(builder.as_bytes().len(), MAX_PROPERTIES_LEN);
        let error = PropertyError::TooLong {
            name: "m".to_owned(),
            len: MAX_PROPERTIES_LEN + 4,
        };
        assert_eq!(builder.push("m", "w"), Err(error));
        assert_eq!(builder.into_string().len(), MAX_PROPERTIES_LEN);
    }

    #[test]
    fn hashes_as_java_does() {
        // Computed with java.lang.String.hashCode.
        for (text, hash) in [
            ("", 0),
            ("A", 65),
            ("TagA", 2_598_919),
            ("Aa", 2112),
            ("BB", 2112),
        ] {
            assert_eq!(java_string_hash(text), hash, "{text}");
        }
        assert_eq!(java_string_hash("\u{1F600}"), 0xD83D * 31 + 0xDE00);
    }
}
