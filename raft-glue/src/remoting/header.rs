//! Typed headers: structs that are read from and written to extension fields by exact Java names.
//!
//! Java only logs a missing mandatory field and goes on with null; here it is an error that names
//! the field, which a server answers with code 1.

use super::command::ExtFields;

/// A field that is missing or does not parse.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// A mandatory field is absent or empty.
    #[error("field {field} is missing")]
    Missing {
        /// The Java field name.
        field: &'static str,
    },
    /// A field is there but does not parse.
    #[error("field {field} is {value:?}, which is not {expected}")]
    Bad {
        /// The Java field name.
        field: &'static str,
        /// The start of what was sent.
        value: String,
        /// What would be allowed.
        expected: &'static str,
    },
}

/// A struct that travels in extension fields. Implemented by the typed headers of this module.
pub trait TypedHeader: Sized {
    /// Reads the struct; fields it does not know are ignored.
    ///
    /// # Errors
    /// A mandatory field is missing, or a field does not parse.
    fn read_ext(ext: &ExtFields) -> Result<Self, HeaderError>;

    /// Adds the struct's fields to `ext`; absent optional fields are left out.
    fn write_ext(&self, ext: &mut ExtFields);
}

/// A scalar that travels as text: what Java's `toString` prints.
pub trait FieldValue: Sized {
    /// What a message about a bad value says is allowed.
    const EXPECTED: &'static str;

    /// Reads the text.
    fn parse(text: &str) -> Option<Self>;

    /// Writes the text.
    fn print(&self) -> String;
}

impl FieldValue for i32 {
    const EXPECTED: &'static str = "a 32 bit decimal number";

    fn parse(text: &str) -> Option<Self> {
        text.parse().ok()
    }

    fn print(&self) -> String {
        self.to_string()
    }
}

impl FieldValue for i64 {
    const EXPECTED: &'static str = "a 64 bit decimal number";

    fn parse(text: &str) -> Option<Self> {
        text.parse().ok()
    }

    fn print(&self) -> String {
        self.to_string()
    }
}

impl FieldValue for bool {
    const EXPECTED: &'static str = "true or false";

    fn parse(text: &str) -> Option<Self> {
        // Java's Boolean.parseBoolean: any case; everything else would be false there.
        if text.eq_ignore_ascii_case("true") {
            Some(true)
        } else if text.eq_ignore_ascii_case("false") {
            Some(false)
        } else {
            None
        }
    }

    fn print(&self) -> String {
        self.to_string()
    }
}

impl FieldValue for String {
    const EXPECTED: &'static str = "text";

    fn parse(text: &str) -> Option<Self> {
        Some(text.to_owned())
    }

    fn print(&self) -> String {
        self.clone()
    }
}

/// One struct member: a mandatory value or an optional one.
pub(super) trait Member: Sized {
    fn read(ext: &ExtFields, field: &'static str) -> Result<Self, HeaderError>;
    fn write(&self, ext: &mut ExtFields, field: &'static str);
}

impl<T: FieldValue> Member for T {
    fn read(ext: &ExtFields, field: &'static str) -> Result<Self, HeaderError> {
        match read_value(ext, field)? {
            Some(value) => Ok(value),
            None => Err(HeaderError::Missing { field }),
        }
    }

    fn write(&self, ext: &mut ExtFields, field: &'static str) {
        ext.insert(field.to_owned(), self.print());
    }
}

impl<T: FieldValue> Member for Option<T> {
    fn read(ext: &ExtFields, field: &'static str) -> Result<Self, HeaderError> {
        read_value(ext, field)
    }

    fn write(&self, ext: &mut ExtFields, field: &'static str) {
        if let Some(value) = self {
            ext.insert(field.to_owned(), value.print());
        }
    }
}

fn read_value<T: FieldValue>(
    ext: &ExtFields,
    field: &'static str,
) -> Result<Option<T>, HeaderError> {
    let Some(text) = ext.get(field).filter(|text| !text.is_empty()) else {
        return Ok(None);
    };
    match T::parse(text) {
        Some(value) => Ok(Some(value)),
        None => Err(HeaderError::Bad {
            field,
            value: text.chars().take(64).collect(),
            expected: T::EXPECTED,
        }),
    }
}

/// Declares a header struct: each member names its Java field behind `=`. A member of type
/// `Option` may be absent.
macro_rules! typed_header {
    ($(#[$meta:meta])* $vis:vis struct $name:ident {
        $($(#[$field_meta:meta])* $member:ident: $kind:ty = $field:literal,)+
    }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Eq, Default)]
        $vis struct $name {
            $($(#[$field_meta])* pub $member: $kind,)+
        }

        impl $crate::remoting::TypedHeader for $name {
            fn read_ext(
                ext: &$crate::remoting::ExtFields,
            ) -> Result<Self, $crate::remoting::HeaderError> {
                Ok(Self { $($member: <$kind as $crate::remoting::header::Member>::read(ext, $field)?,)+ })
            }

            fn write_ext(&self, ext: &mut $crate::remoting::ExtFields) {
                $($crate::remoting::header::Member::write(&self.$member, ext, $field);)+
            }
        }
    };
}

pub(super) use typed_header;

#[cfg(test)]
mod tests {
    use super::*;

    typed_header! {
        /// A header with one of each.
        struct Sample {
            name: String = "brokerName",
            id: i64 = "brokerId",
            epoch: Option<i32> = "masterEpoch",
            leader: Option<bool> = "isLeader",
        }
    }

    fn ext(pairs: &[(&str, &str)]) -> ExtFields {
        pairs
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect()
    }

    #[test]
    fn values_come_back_as_written_and_absent_ones_are_left_out() {
        let sample = Sample {
            name: "a".into(),
            id: -1,
            epoch: None,
            leader: Some(true),
        };
        let mut fields = ExtFields::new();
        sample.write_ext(&mut fields);
        assert_eq!(
            fields,
            ext(&[
                ("brokerName", "a"),
                ("brokerId", "-1"),
                ("isLeader", "true")
            ])
        );
        assert_eq!(Sample::read_ext(&fields), Ok(sample));
    }

    #[test]
    fn numbers_are_decimal_text_without_blanks() {
        assert_eq!(i64::parse("-1"), Some(-1));
        assert_eq!(i32::parse(" 1"), None);
        assert_eq!(bool::parse("TRUE"), Some(true));
    }

    #[test]
    fn e52_a_missing_or_bad_field_is_named() {
        let missing = Sample::read_ext(&ext(&[("brokerName", "a")]));
        assert_eq!(missing, Err(HeaderError::Missing { field: "brokerId" }));
        let empty = Sample::read_ext(&ext(&[("brokerName", ""), ("brokerId", "1")]));
        assert_eq!(
            empty,
            Err(HeaderError::Missing {
                field: "brokerName"
            })
        );
        let bad = Sample::read_ext(&ext(&[
            ("brokerName", "a"),
            ("brokerId", "1"),
            ("masterEpoch", "99999999999"),
        ]));
        let text = bad.expect_err("does not fit 32 bits").to_string();
        assert!(
            text.contains("masterEpoch") && text.contains("99999999999"),
            "{text}"
        );
        let odd = Sample::read_ext(&ext(&[
            ("brokerName", "a"),
            ("brokerId", "1"),
            ("isLeader", "yes"),
        ]));
        assert!(odd.is_err());
    }
}
