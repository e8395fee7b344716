//! Text of a provider's that goes into an error: bounded, on one line, without keys.

use crate::ApiKey;

/// No message is longer, in bytes.
const MAX: usize = 1024;

/// What stands where a key stood.
const GONE: &str = "[REDACTED]";

/// The key that is in `text`, if it is. One that is shorter than any secret is in many a text.
pub(crate) fn told<'a>(text: &str, key: Option<&'a ApiKey>) -> Option<&'a str> {
    const LEAST: usize = 4;
    let key = key.map(ApiKey::expose)?;
    (key.len() >= LEAST && text.contains(key)).then_some(key)
}

/// Makes `text` fit for an error.
pub(crate) fn scrub(text: &str, key: Option<&ApiKey>) -> String {
    let text = match told(text, key) {
        Some(key) => text.replace(key, GONE),
        None => text.to_owned(),
    };
    let mut out = String::with_capacity(text.len().min(MAX));
    let mut spaces = false;
    for word in text.split_inclusive(|c: char| c.is_whitespace() || c.is_control()) {
        let word = word.trim_matches(|c: char| c.is_whitespace() || c.is_control());
        if word.is_empty() {
            continue;
        }
        if spaces {
            out.push(' ');
        }
        spaces = true;
        push_word(&mut out, word);
        if out.len() > MAX {
            let end = (0..=MAX).rev().find(|&i| out.is_char_boundary(i));
            out.truncate(end.unwrap_or(0));
            out.push('…');
            break;
        }
    }
    out
}

/// Appends `word` without what looks like anybody's key.
fn push_word(out: &mut String, word: &str) {
    const PREFIXES: [&str; 7] = ["sk-", "AIza", "gsk_", "xai-", "hf_", "key-", "eyJ"];
    const LEAST: usize = 16;
    let is_key = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '~' | '+');
    let mut rest = word;
    while !rest.is_empty() {
        let start = rest.find(is_key).unwrap_or(rest.len());
        let (before, token) = rest.split_at(start);
        out.push_str(before);
        let end = token.find(|c| !is_key(c)).unwrap_or(token.len());
        let (token, after) = token.split_at(end);
        let digits = token.bytes().any(|b| b.is_ascii_digit());
        if token.len() >= LEAST && digits && PREFIXES.iter().any(|p| token.starts_with(p)) {
            out.push_str(GONE);
        } else {
            out.push_str(token);
        }
        rest = after;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_do_not_stay() {
        let key = ApiKey::new("canary");
        let text =
            "bad key `canary`,\n\tor \"sk-proj-0123456789abcdef\" or Bearer eyJhbGciOiJIUzI1NiJ9.x";
        assert_eq!(
            scrub(text, Some(&key)),
            "bad key `[REDACTED]`, or \"[REDACTED]\" or Bearer [REDACTED]"
        );
    }

    #[test]
    fn words_do() {
        let text = "Invalid 'task-specific-parameters-2': sk-short; see https://x.test/a?b=c";
        assert_eq!(scrub(text, None), text);
        assert_eq!(scrub(text, Some(&ApiKey::new("k"))), text);
    }

    #[test]
    fn text_is_bounded_at_a_character() {
        let text = scrub(&"ä".repeat(5000), None);
        assert!(text.len() <= MAX + '…'.len_utf8() && text.ends_with('…'));
    }
}
