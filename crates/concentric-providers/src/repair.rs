//! Repair of almost-valid JSON that some servers send.

use std::borrow::Cow;

/// Replaces `NaN` and infinities, which Python's `json` emits, with `null`, and unpaired
/// surrogates, which result from a character that is split across two deltas, with the replacement
/// character.
pub(crate) fn repair(text: &str) -> Cow<'_, str> {
    let odd = ["NaN", "Infinity", "\\ud", "\\uD"];
    if !odd.iter().any(|odd| text.contains(odd)) {
        return text.into();
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((outside, after)) = rest.split_once('"') {
        push_outside(&mut out, outside);
        let end = string_end(after);
        let (string, after) = after.split_at(end);
        out.push('"');
        push_string(&mut out, string);
        // The closing quotation mark, if there is one.
        let (quote, after) = after.split_at(usize::from(!after.is_empty()));
        out.push_str(quote);
        rest = after;
    }
    push_outside(&mut out, rest);
    out.into()
}

/// The end of the string that `text` starts in.
fn string_end(text: &str) -> usize {
    let mut escaped = false;
    text.bytes()
        .position(|byte| match byte {
            _ if escaped => {
                escaped = false;
                false
            }
            b'\\' => {
                escaped = true;
                false
            }
            byte => byte == b'"',
        })
        .unwrap_or(text.len())
}

fn push_outside(out: &mut String, text: &str) {
    if text.contains("NaN") || text.contains("Infinity") {
        let text = text.replace("-Infinity", "null");
        out.push_str(&text.replace("Infinity", "null").replace("NaN", "null"));
    } else {
        out.push_str(text);
    }
}

fn push_string(out: &mut String, text: &str) {
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        let (before, escape) = rest.split_at(at);
        out.push_str(before);
        let (length, whole) = match (surrogate(escape), escape.get(6..).and_then(surrogate)) {
            (Some(Half::High), Some(Half::Low)) => (12, true),
            (Some(_), _) => (6, false),
            // `\` and the escaped character, which is ASCII in valid JSON.
            (None, _) => (if escape.is_char_boundary(2) { 2 } else { 1 }, true),
        };
        let (escape, after) = escape.split_at(length.min(escape.len()));
        out.push_str(if whole { escape } else { "\\ufffd" });
        rest = after;
    }
    out.push_str(rest);
}

#[derive(PartialEq, Eq)]
enum Half {
    High,
    Low,
}

/// The half of a surrogate pair that `text` starts with, as an escape.
fn surrogate(text: &str) -> Option<Half> {
    let digits = text.strip_prefix("\\u")?.get(..4)?;
    match u16::from_str_radix(digits, 16).ok()? {
        0xd800..=0xdbff => Some(Half::High),
        0xdc00..=0xdfff => Some(Half::Low),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::repair;

    #[test]
    fn valid_json_is_unchanged() {
        for text in [
            r#"{"a":"NaN \" Infinity \\","b":[1,-0]}"#,
            r#"{"a":"\ud83d\ude00 \\ud83d"}"#,
            r#"{"a":"ä\u00e4"}"#,
        ] {
            assert_eq!(repair(text), text);
        }
    }

    #[test]
    fn almost_valid_json_is_repaired() {
        let cases = [
            (r#"{"a":NaN,"b":-Infinity}"#, r#"{"a":null,"b":null}"#),
            (r#"{"a":"x\ud83d"}"#, r#"{"a":"x\ufffd"}"#),
            (
                r#"{"a":"\ude00\ud83d\ude00"}"#,
                r#"{"a":"\ufffd\ud83d\ude00"}"#,
            ),
            (r#"{"a":"\ud83d\n"}"#, r#"{"a":"\ufffd\n"}"#),
        ];
        for (text, fixed) in cases {
            assert_eq!(repair(text), fixed);
            serde_json::from_str::<serde_json::Value>(fixed).unwrap();
        }
    }

    #[test]
    fn truncated_json_does_not_panic() {
        for text in [
            r#"{"a":"NaN \"#,
            r#"{"a":NaN,"b":"\u"#,
            r#"{"a":NaN,"ä\ä"#,
            r#"NaN""#,
        ] {
            repair(text);
        }
    }
}
