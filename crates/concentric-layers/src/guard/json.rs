//! JSON texts, of which single values are replaced.

use serde_json::value::RawValue;
use std::borrow::Cow;

/// Replaces the strings, the names of fields and the numbers of a JSON text by what `replace` returns for
/// them; `None` if it replaces nothing, or the text is not JSON. All else keeps its form.
///
/// `replace` also receives the name of the field. A string is passed without its escapes. What replaces a number
/// is a string.
pub(super) fn rewrite(
    text: &str,
    mut replace: impl FnMut(Option<&str>, &str) -> Option<String>,
) -> Option<String> {
    let mut rewritten = String::new();
    let mut copied = 0;
    let mut name: Option<String> = None;
    for (start, end) in values(text) {
        let raw = text.get(start..end)?;
        let value = match raw.starts_with('"') {
            true => serde_json::from_str(raw).map(Cow::Owned).ok()?,
            false => Cow::Borrowed(raw),
        };
        let is_name = text.get(end..)?.trim_start().starts_with(':');
        let of = name.take().filter(|_| !is_name);
        if is_name {
            name = Some(value.to_string());
        }
        if let Some(by) = replace(of.as_deref(), &value) {
            rewritten.push_str(text.get(copied..start)?);
            rewritten.push_str(&serde_json::to_string(&by).ok()?);
            copied = end;
        }
    }
    if copied == 0 {
        return None;
    }
    rewritten.push_str(text.get(copied..)?);
    Some(rewritten)
}

/// Whether a text is one JSON value.
pub(super) fn is_json(text: &str) -> bool {
    serde_json::from_str::<&RawValue>(text).is_ok()
}

/// The places of the strings and of other values without parts, in valid JSON.
fn values(text: &str) -> Vec<(usize, usize)> {
    let mut values = Vec::new();
    let mut start = None;
    let (mut is_string, mut is_escaped) = (false, false);
    for (at, byte) in text.bytes().enumerate() {
        match (start, byte) {
            (Some(_), _) if is_escaped => is_escaped = false,
            (Some(_), b'\\') if is_string => is_escaped = true,
            (Some(from), b'"') if is_string => {
                values.push((from, at + 1));
                (start, is_string) = (None, false);
            }
            (Some(_), _) if is_string => {}
            (None, b'"') => (start, is_string) = (Some(at), true),
            (_, b'{' | b'}' | b'[' | b']' | b':' | b',' | b' ' | b'\t' | b'\n' | b'\r') => {
                values.extend(start.take().map(|from| (from, at)));
            }
            (None, _) => start = Some(at),
            (Some(_), _) => {}
        }
    }
    values.extend(start.map(|from| (from, text.len())));
    values
}
