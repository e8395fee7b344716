//! Sanitizes text from providers for errors: bounded, on one line, without secrets.

use crate::ApiKey;
use http::HeaderValue;
use std::borrow::Cow;

/// The maximum length of a message, in bytes.
const MAX: usize = 1024;

/// The replacement for a secret.
const GONE: &str = "[REDACTED]";

/// The values of a request that must not appear in errors.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Secrets<'a> {
    pub(crate) key: Option<&'a ApiKey>,
    pub(crate) headers: &'a [HeaderValue],
}

impl<'a> Secrets<'a> {
    /// The secrets that occur in `text`, in the form in which they occur, the longest first.
    fn found_in(self, text: &str) -> Vec<Cow<'a, str>> {
        // Shorter secrets would match ordinary text.
        const LEAST: usize = 4;
        let key = self.key.map(ApiKey::expose);
        let headers = self.headers.iter();
        let headers = headers.filter_map(|value| value.to_str().ok());
        let headers = headers.flat_map(|value| [Some(value), credentials(value)]);
        let mut found: Vec<Cow<'a, str>> = Vec::new();
        for secret in headers.flatten().chain(key) {
            if secret.len() < LEAST {
                continue;
            }
            let forms = [Some(Cow::Borrowed(secret)), escaped(secret).map(Cow::Owned)];
            let forms = forms.into_iter().flatten();
            found.extend(forms.filter(|form| text.contains(&**form)));
        }
        found.sort_by_key(|form| std::cmp::Reverse(form.len()));
        found
    }

    /// Whether any secret occurs in `text`.
    pub(crate) fn occur_in(self, text: &str) -> bool {
        !self.found_in(text).is_empty()
    }
}

/// The credentials after the scheme of an `authorization` header.
fn credentials(value: &str) -> Option<&str> {
    let (scheme, credentials) = value.split_once(' ')?;
    let schemes = ["Basic", "Bearer"];
    let is_known = schemes
        .iter()
        .any(|known| scheme.eq_ignore_ascii_case(known));
    is_known.then(|| credentials.trim())
}

/// The JSON-escaped form of `secret`, if it differs.
fn escaped(secret: &str) -> Option<String> {
    let json = serde_json::to_string(secret).ok()?;
    let text = json.strip_prefix('"')?.strip_suffix('"')?;
    (text != secret).then(|| text.to_owned())
}

/// Sanitizes `text` for an error.
pub(crate) fn scrub(text: &str, secrets: Secrets<'_>) -> String {
    let mut text = Cow::Borrowed(text);
    for secret in secrets.found_in(&text) {
        text = text.replace(&*secret, GONE).into();
    }
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

/// Appends `word`, without parts that look like an API key.
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

    fn of(key: &ApiKey) -> Secrets<'_> {
        Secrets {
            key: Some(key),
            headers: &[],
        }
    }

    #[test]
    fn keys_are_redacted() {
        let key = ApiKey::new("canary");
        let text =
            "bad key `canary`,\n\tor \"sk-proj-0123456789abcdef\" or Bearer eyJhbGciOiJIUzI1NiJ9.x";
        assert_eq!(
            scrub(text, of(&key)),
            "bad key `[REDACTED]`, or \"[REDACTED]\" or Bearer [REDACTED]"
        );
    }

    #[test]
    fn headers_and_escaped_secrets_are_redacted() {
        let key = ApiKey::new(r#"ca"na\ry"#);
        let headers = ["gate", "gateway", "Bearer token-of-mine", "no"];
        let headers = headers.map(HeaderValue::from_static);
        let secrets = Secrets {
            key: Some(&key),
            headers: &headers,
        };
        for (text, expected) in [
            (r#"ca"na\ry"#, "[REDACTED]"),
            (r#"{"key":"ca\"na\\ry"}"#, r#"{"key":"[REDACTED]"}"#),
            ("gateway gate", "[REDACTED] [REDACTED]"),
            ("Bearer token-of-mine", "[REDACTED]"),
            (
                "`token-of-mine` is bearer of no",
                "`[REDACTED]` is bearer of no",
            ),
        ] {
            assert!(secrets.occur_in(text), "{text}");
            assert_eq!(scrub(text, secrets), expected);
        }
        assert!(!secrets.occur_in("no"));
    }

    #[test]
    fn ordinary_words_are_kept() {
        let text = "Invalid 'task-specific-parameters-2': sk-short; see https://x.test/a?b=c";
        assert_eq!(scrub(text, Secrets::default()), text);
        assert_eq!(scrub(text, of(&ApiKey::new("k"))), text);
    }

    #[test]
    fn text_is_bounded_at_a_character() {
        let text = scrub(&"ä".repeat(5000), Secrets::default());
        assert!(text.len() <= MAX + '…'.len_utf8() && text.ends_with('…'));
    }
}
