//! A tolerant reader of fastjson's output: integer map keys without quotes become JSON.
//!
//! Pure. The pre-pass looks only outside of strings and copies nothing when there is nothing to
//! mend; serde_json then bounds the depth.

use std::borrow::Cow;

use serde::de::DeserializeOwned;

/// Puts quotes around integer keys: a run of digits (a sign may lead) that a colon follows. Text
/// inside strings is left alone. Borrows when there is nothing to change.
#[must_use]
pub fn quote_integer_keys(text: &[u8]) -> Cow<'_, [u8]> {
    let mut out: Option<Vec<u8>> = None;
    // Everything before this was copied already, if anything was.
    let mut copied = 0;
    let mut at = 0;
    while at < text.len() {
        match text[at] {
            b'"' => at = string_end(text, at),
            b'-' | b'0'..=b'9' => {
                let end = number_end(text, at);
                if is_bare_key(text, at, end) {
                    let out = out.get_or_insert_with(|| Vec::with_capacity(text.len() + 16));
                    out.extend_from_slice(&text[copied..at]);
                    out.push(b'"');
                    out.extend_from_slice(&text[at..end]);
                    out.push(b'"');
                    copied = end;
                }
                at = end;
            }
            _ => at += 1,
        }
    }
    match out {
        None => Cow::Borrowed(text),
        Some(mut out) => {
            out.extend_from_slice(&text[copied..]);
            Cow::Owned(out)
        }
    }
}

/// Reads a JSON body as Java peers write it.
///
/// # Errors
/// Whatever serde_json says: not JSON, or not of this shape.
pub fn from_json<T: DeserializeOwned>(text: &[u8]) -> Result<T, serde_json::Error> {
    serde_json::from_slice(&quote_integer_keys(text))
}

/// The position behind the string that opens at `at`, or the end of the text.
fn string_end(text: &[u8], at: usize) -> usize {
    let mut at = at + 1;
    while at < text.len() {
        match text[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    text.len()
}

fn number_end(text: &[u8], at: usize) -> usize {
    let tail = &text[at + 1..];
    let more = tail
        .iter()
        .position(|byte| !byte.is_ascii_digit())
        .unwrap_or(tail.len());
    at + 1 + more
}

fn is_bare_key(text: &[u8], start: usize, end: usize) -> bool {
    if text[start] == b'-' && end == start + 1 {
        return false;
    }
    let before = text[..start]
        .iter()
        .rev()
        .find(|byte| !byte.is_ascii_whitespace());
    let after = text[end..].iter().find(|byte| !byte.is_ascii_whitespace());
    matches!(before, Some(b'{' | b',')) && after == Some(&b':')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn mended(text: &str) -> String {
        String::from_utf8(quote_integer_keys(text.as_bytes()).into_owned()).expect("text")
    }

    #[test]
    fn a_table_of_keys() {
        let table = [
            ("{0:123,1:4}", r#"{"0":123,"1":4}"#),
            ("{ -7 : {12: [1, 2,3]} }", r#"{ "-7" : {"12": [1, 2,3]} }"#),
            (r#"{"0":1,"a":"{5:6}"}"#, r#"{"0":1,"a":"{5:6}"}"#),
            (r#"{"a\"":{3:1}}"#, r#"{"a\"":{"3":1}}"#),
            ("[1,2,3]", "[1,2,3]"),
            ("{1e5:0}", "{1e5:0}"),
            ("{-:0}", "{-:0}"),
            ("", ""),
        ];
        for (text, want) in table {
            assert_eq!(mended(text), want, "{text}");
        }
    }

    #[test]
    fn nothing_to_mend_is_borrowed() {
        assert!(matches!(
            quote_integer_keys(br#"{"a":1}"#),
            Cow::Borrowed(_)
        ));
    }

    proptest! {
        #[test]
        fn valid_json_is_never_changed(
            keys in proptest::collection::vec(".{0,12}", 0..6),
            number in any::<i64>(),
        ) {
            let map: std::collections::BTreeMap<_, _> =
                keys.into_iter().map(|key| (key, vec![number, 1, 2])).collect();
            let text = serde_json::to_vec(&map).expect("serializes");
            prop_assert_eq!(quote_integer_keys(&text).into_owned(), text);
        }

        #[test]
        fn any_bytes_end_without_a_panic(text in proptest::collection::vec(any::<u8>(), 0..64)) {
            let once = quote_integer_keys(&text).into_owned();
            prop_assert_eq!(quote_integer_keys(&once).into_owned(), once);
        }
    }
}
