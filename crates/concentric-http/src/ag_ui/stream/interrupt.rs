use std::fmt::Write;

use concentric_core::Interrupt;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::run::{self, Metadata, TOKEN, object};

/// Converts an interrupt to its wire form. It is at position `index` in the outcome of `run`;
/// `subagent` and `call` are the client's ids of the sub-agent that raised it and of its call.
pub(super) fn interrupt(
    asked: &Interrupt,
    run: &str,
    index: usize,
    subagent: Option<&str>,
    call: Option<&str>,
) -> Value {
    let mut interrupt = run::interrupt(asked, subagent, call);
    let mut binding = binding(asked.id.as_str(), run, index);
    if let Some(schema) = interrupt.get("responseSchema") {
        binding.insert("responseSchemaHash".to_owned(), digest(schema).into());
    }
    if let Some(time) = interrupt.get("expiresAt") {
        binding.insert("expiresAt".to_owned(), time.clone());
    }
    if let Some(Value::Object(metadata)) = interrupt.get_mut("metadata") {
        if let Some(token) = metadata.get(TOKEN).cloned() {
            metadata.insert(BINDING_PAYLOAD.to_owned(), json!({ TOKEN: token }));
        }
        metadata.insert(BINDING.to_owned(), binding.into());
    }
    interrupt.into()
}

/// The metadata key under which `@tanstack/ai-client` expects the binding of a resolvable
/// interrupt.
const BINDING: &str = "tanstack:interruptBinding";

/// The metadata key of the data that this client returns with its reply.
const BINDING_PAYLOAD: &str = "tanstack:interruptPayload";

/// The binding that `@tanstack/ai-client` needs to resolve an interrupt with its own form and to
/// return the token: version 1, of the kind that needs no client tool.
///
/// The client compares the run and a digest of the schema.
fn binding(id: &str, run: &str, index: usize) -> Metadata {
    object([
        ("v", Some(1.into())),
        ("kind", Some("generic".into())),
        ("interruptId", Some(id.into())),
        ("interruptedRunId", Some(run.into())),
        ("generation", Some(0.into())),
        ("definitionId", Some("concentric".into())),
        ("key", Some(id.into())),
        ("batchIndex", Some(index.into())),
    ])
}

/// The SHA-256 of a value's canonical form.
fn digest(value: &Value) -> String {
    let mut text = String::new();
    canonical(value, &mut text);
    let mut digest = "sha256:".to_owned();
    for byte in Sha256::digest(text.as_bytes()) {
        // Writing to a `String` does not fail.
        let _ = write!(digest, "{byte:02x}");
    }
    digest
}

/// Writes canonical JSON, with sorted keys and JavaScript numbers (RFC 8785).
fn canonical(value: &Value, out: &mut String) {
    match value {
        Value::Null | Value::Bool(_) | Value::String(_) => {
            let _ = write!(out, "{value}");
        }
        Value::Number(number) => out.push_str(
            &number
                .as_f64()
                .map_or_else(|| number.to_string(), javascript_number),
        ),
        Value::Array(items) => {
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                canonical(item, out);
            }
            out.push(']');
        }
        Value::Object(fields) => {
            let mut fields: Vec<_> = fields.iter().collect();
            // JavaScript compares strings by UTF-16 code units.
            fields.sort_by(|(a, _), (b, _)| a.encode_utf16().cmp(b.encode_utf16()));
            out.push('{');
            for (index, (key, value)) in fields.into_iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                canonical(&Value::String(key.clone()), out);
                out.push(':');
                canonical(value, out);
            }
            out.push('}');
        }
    }
}

/// Formats a number like JavaScript (ECMA-262, `Number::toString`).
fn javascript_number(number: f64) -> String {
    if number == 0.0 {
        return "0".to_owned();
    }
    // The shortest digits that identify the number, as in JavaScript, and the exponent.
    let text = format!("{:e}", number.abs());
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let digits = digits.replace('.', "");
    let exponent: i32 = exponent.parse().unwrap_or_default();
    let len = i32::try_from(digits.len()).unwrap_or(i32::MAX);
    let point = exponent + 1;
    let zeros = |count: i32| "0".repeat(usize::try_from(count).unwrap_or_default());
    let split = |at: i32| digits.split_at_checked(usize::try_from(at).unwrap_or_default());
    let written = match point {
        1..=21 if len <= point => format!("{digits}{}", zeros(point - len)),
        1..=21 => split(point).map_or_else(String::new, |(a, b)| format!("{a}.{b}")),
        -5..=0 => format!("0.{}{digits}", zeros(-point)),
        _ => {
            let (first, rest) = split(1).unwrap_or((&digits, ""));
            let dot = if rest.is_empty() { "" } else { "." };
            format!("{first}{dot}{rest}e{exponent:+}")
        }
    };
    if number < 0.0 {
        return format!("-{written}");
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_formatted_like_javascript() {
        for (number, text) in [
            (0.0, "0"),
            (-0.0, "0"),
            (1.0, "1"),
            (-1.5, "-1.5"),
            (0.1, "0.1"),
            (1e-6, "0.000001"),
            (1.5e-7, "1.5e-7"),
            (1e-7, "1e-7"),
            (123_456.789, "123456.789"),
            (1e20, "100000000000000000000"),
            (1e21, "1e+21"),
            (1.25e25, "1.25e+25"),
            (18_446_744_073_709_551_615.0, "18446744073709552000"),
            (5e-324, "5e-324"),
            (f64::MAX, "1.7976931348623157e+308"),
        ] {
            assert_eq!(javascript_number(number), text);
        }
    }

    #[test]
    fn the_canonical_form_sorts_keys_by_utf_16() {
        let mut text = String::new();
        let value =
            json!({"b": [1.0, "\u{1}\u{2028}"], "\u{fb01}": null, "\u{1f600}": true, "a": {}});
        canonical(&value, &mut text);
        let expected =
            "{\"a\":{},\"b\":[1,\"\\u0001\u{2028}\"],\"\u{1f600}\":true,\"\u{fb01}\":null}";
        assert_eq!(text, expected);
    }
}
