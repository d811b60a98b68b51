//! Java's `.properties` text (java.util.Properties.load): comments, three separators, continued
//! lines, escapes. Pure.

/// One key with its value and where it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Property {
    /// First line of the property, from 1.
    pub(super) line: usize,
    /// Key, escapes resolved.
    pub(super) key: String,
    /// Value, escapes resolved.
    pub(super) value: String,
}

/// A line that is no property.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SyntaxError {
    /// Line, from 1.
    pub(super) line: usize,
    /// What is wrong with it.
    pub(super) why: &'static str,
}

/// Reads every property, in the order of the text.
///
/// # Errors
/// A `\u` escape without four hexadecimal digits, or one that is half of a surrogate pair.
pub(super) fn parse_properties(text: &str) -> Result<Vec<Property>, SyntaxError> {
    let mut properties = Vec::new();
    let mut lines = text
        .split('\n')
        .map(|line| line.strip_suffix('\r').unwrap_or(line));
    let mut number = 0;
    while let Some(first) = lines.next() {
        number += 1;
        let line = number;
        let start = first.trim_start_matches(is_blank);
        if start.is_empty() || start.starts_with(['#', '!']) {
            continue;
        }
        let mut logical = start.to_owned();
        while is_continued(&logical) {
            logical.pop();
            let Some(next) = lines.next() else { break };
            number += 1;
            logical.push_str(next.trim_start_matches(is_blank));
        }
        let (key, value) = split(&logical);
        let unescaped = |text| unescape(text).map_err(|why| SyntaxError { line, why });
        properties.push(Property {
            line,
            key: unescaped(key)?,
            value: unescaped(value)?,
        });
    }
    Ok(properties)
}

fn is_blank(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\u{c}')
}

/// An odd number of backslashes at the end joins the next line; an even one is escaped backslashes.
fn is_continued(line: &str) -> bool {
    line.bytes().rev().take_while(|byte| *byte == b'\\').count() % 2 == 1
}

/// Splits at the first unescaped `=`, `:` or blank; blanks around one `=` or `:` belong to it.
fn split(line: &str) -> (&str, &str) {
    let mut escaped = false;
    let end = line.find(|c| {
        let ends = !escaped && (is_blank(c) || c == '=' || c == ':');
        escaped = c == '\\' && !escaped;
        ends
    });
    let Some(end) = end else { return (line, "") };
    let rest = line[end..].trim_start_matches(is_blank);
    let rest = rest.strip_prefix(['=', ':']).unwrap_or(rest);
    (&line[..end], rest.trim_start_matches(is_blank))
}

fn unescape(text: &str) -> Result<String, &'static str> {
    if !text.contains('\\') {
        return Ok(text.to_owned());
    }
    // UTF-16 units, since Java writes characters beyond the first plane as two escapes.
    let mut units: Vec<u16> = Vec::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        let c = match c {
            '\\' => match chars.next() {
                None => break,
                Some('t') => '\t',
                Some('n') => '\n',
                Some('r') => '\r',
                Some('f') => '\u{c}',
                Some('u') => {
                    let digits: String = chars.by_ref().take(4).collect();
                    let all_hex =
                        digits.len() == 4 && digits.bytes().all(|b| b.is_ascii_hexdigit());
                    match u16::from_str_radix(&digits, 16) {
                        Ok(unit) if all_hex => units.push(unit),
                        _ => return Err("\\u needs four hexadecimal digits"),
                    }
                    continue;
                }
                Some(other) => other,
            },
            other => other,
        };
        units.extend_from_slice(c.encode_utf16(&mut [0; 2]));
    }
    String::from_utf16(&units).map_err(|_| "\\u escapes end in the middle of a character")
}
