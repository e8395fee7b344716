//! The search for secrets in bytes.

use http::{HeaderValue, header::HeaderName};
use memchr::memchr;
use std::{fmt, ops::Range};

/// A header is secret if its name contains one of these.
const SECRET_HEADERS: [&str; 6] = ["auth", "cookie", "key", "token", "secret", "signature"];

/// Secret query parameters and JSON fields; [folded](fold).
pub(super) const SECRET_NAMES: [&str; 12] = [
    "accesstoken",
    "apikey",
    "authorization",
    "clientsecret",
    "password",
    "privatekey",
    "refreshtoken",
    "secret",
    "xamzcredential",
    "xamzsecuritytoken",
    "xamzsignature",
    "xapikey",
];

/// Merges ranges that overlap or touch.
pub(super) fn merge(mut ranges: Vec<Range<usize>>) -> Vec<Range<usize>> {
    ranges.retain(|range| !range.is_empty());
    ranges.sort_by_key(|range| range.start);
    let mut merged: Vec<Range<usize>> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match merged.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    merged
}

fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~' | b'+')
}

/// Returns the word that begins at `at`.
pub(super) fn token(bytes: &[u8], at: usize) -> Range<usize> {
    let rest = bytes.get(at..).unwrap_or_default();
    at..at + rest.iter().take_while(|byte| is_token(**byte)).count()
}

/// Returns `true` if a word may begin at `at`: the byte before it is no word character, or belongs
/// to a JSON escape sequence.
pub(super) fn begins(bytes: &[u8], at: usize) -> bool {
    let before = bytes.get(..at).unwrap_or_default();
    match before {
        [.., b'\\', b'n' | b'r' | b't' | b'b' | b'f'] => true,
        [.., b'\\', b'u', _, _, _, _] => true,
        [.., last] => !is_token(*last),
        [] => true,
    }
}

/// Returns `true` if a header is secret.
pub(super) fn is_secret(name: &HeaderName, value: &HeaderValue) -> bool {
    let named = SECRET_HEADERS
        .iter()
        .any(|part| name.as_str().contains(part));
    named || value.is_sensitive()
}

/// Normalizes the spelling of a name.
pub(super) fn fold(name: &[u8]) -> Vec<u8> {
    let kept = name.iter().filter(|byte| !matches!(byte, b'-' | b'_'));
    kept.map(u8::to_ascii_lowercase).collect()
}

/// Returns the values of secret JSON fields. None contains another, so that each byte is scanned at
/// most once.
pub(super) fn fields(bytes: &[u8]) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let mut from = 0;
    while let Some(colon) = memchr(b':', bytes.get(from..).unwrap_or_default()) {
        let colon = from + colon;
        from = colon + 1;
        if let Some(value) = field(bytes, colon) {
            from = from.max(value.end);
            found.push(value);
        }
    }
    found
}

/// Returns the string after the colon of a secret field. In JSON within JSON, its quotes are
/// escaped with backslashes.
fn field(bytes: &[u8], colon: usize) -> Option<Range<usize>> {
    let name = bytes.get(..colon)?.trim_ascii_end().strip_suffix(b"\"")?;
    let slashes = name.iter().rev().take_while(|byte| **byte == b'\\').count();
    let name = name.get(..name.len() - slashes)?;
    let length = name
        .iter()
        .rev()
        .take_while(|byte| is_token(**byte))
        .count();
    let (before, name) = name.split_at_checked(name.len() - length)?;
    let quote = [vec![b'\\'; slashes], vec![b'"']].concat();
    let name = Some(fold(name)).filter(|_| before.ends_with(&quote))?;
    if !SECRET_NAMES.iter().any(|secret| secret.as_bytes() == name) {
        return None;
    }
    let value = bytes.get(colon + 1..)?.trim_ascii_start();
    let value = value.strip_prefix(&*quote)?;
    let start = bytes.len() - value.len();
    // The closing quote has at most as many backslashes as the opening one.
    let mut escapes = 0;
    for (index, byte) in value.iter().enumerate() {
        match byte {
            b'"' if escapes <= slashes => return Some(start..start + index - escapes),
            b'\\' => escapes += 1,
            _ => escapes = 0,
        }
    }
    // The input ends within the string.
    Some(start..bytes.len())
}

/// Percent-encodes `text` for a query.
pub(super) fn percent(text: &str) -> String {
    use fmt::Write;
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~') {
            out.push(byte.into());
        } else {
            // Writing to a `String` does not fail.
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}
