use std::{fmt::Write, time::SystemTime};

use concentric_core::Interrupt;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::super::{Metadata, resume::TOKEN};

/// The metadata key of the sub-agent's run that raised an interrupt.
const SUBAGENT: &str = "subagentRunId";

/// The run of the sub-agent that raised the interrupt, if any.
pub(super) fn subagent_of(asked: &Interrupt) -> Option<&str> {
    asked.metadata.get(SUBAGENT)?.as_str()
}

/// Converts an interrupt to its wire form. It is at position `index` in the outcome of `run`;
/// `subagent` and `call` are the client's ids of the sub-agent that raised it and of its call.
pub(super) fn interrupt(
    asked: &Interrupt,
    run: &str,
    index: usize,
    subagent: Option<&str>,
    call: Option<&str>,
) -> Value {
    let message = asked.message.as_ref().map(|message| message.as_str());
    // `true` is also a schema, but accepts everything.
    let schema = asked.response_schema.as_deref().filter(|it| it.is_object());
    let expires_at = asked.expires_at.map(rfc3339);
    let mut metadata = asked.metadata.clone();
    if subagent.is_some() {
        metadata.remove(SUBAGENT);
    }
    if let Some(token) = metadata.get(TOKEN).cloned() {
        metadata.insert(BINDING_PAYLOAD.to_owned(), json!({ TOKEN: token }));
    }
    let mut binding = binding(asked.id.as_str(), run, index);
    if let Some(schema) = schema {
        binding.insert("responseSchemaHash".to_owned(), digest(schema).into());
    }
    if let Some(time) = &expires_at {
        binding.insert("expiresAt".to_owned(), time.as_str().into());
    }
    metadata.insert(BINDING.to_owned(), binding.into());
    let fields = [
        ("id", Some(asked.id.as_str().into())),
        ("reason", Some(asked.reason.as_str().into())),
        ("message", message.map(Value::from)),
        ("toolCallId", call.map(Value::from)),
        ("responseSchema", schema.cloned()),
        ("expiresAt", expires_at.map(Value::from)),
        ("metadata", Some(metadata.into())),
        ("subagentRunId", subagent.map(Value::from)),
    ];
    object(fields)
}

/// An object with those of `fields` that have a value.
pub(super) fn object<V: From<Metadata>>(
    fields: impl IntoIterator<Item = (&'static str, Option<Value>)>,
) -> V {
    let fields = fields.into_iter();
    let fields: Metadata = fields
        .filter_map(|(name, it)| Some((name.to_owned(), it?)))
        .collect();
    fields.into()
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

/// Formats a time as RFC 3339, in UTC with milliseconds. Later times are clamped to the end of the
/// year 9999, the last that the format supports.
fn rfc3339(time: SystemTime) -> String {
    let since = time
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    let millis = u64::try_from(since.as_millis())
        .unwrap_or(u64::MAX)
        .min(LAST);
    let (days, rest) = (millis / DAY, millis % DAY);
    let (year, month, day) = date(days);
    let (hours, minutes) = (rest / 3_600_000, rest / 60_000 % 60);
    let (seconds, millis) = (rest / 1000 % 60, rest % 1000);
    format!("{year:04}-{month:02}-{day:02}T{hours:02}:{minutes:02}:{seconds:02}.{millis:03}Z")
}

/// The length of a day in milliseconds.
const DAY: u64 = 24 * 60 * 60 * 1000;

/// The last millisecond of the year 9999.
const LAST: u64 = 2_932_897 * DAY - 1;

/// The Gregorian date of a day, counted from 1970-01-01.
///
/// The algorithm counts years from March, so that the leap day is the last day of a year
/// (`https://howardhinnant.github.io/date_algorithms.html`, `civil_from_days`).
const fn date(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 {
        from_march + 3
    } else {
        from_march - 9
    };
    let year = era * 400 + year_of_era + (month <= 2) as u64;
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

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

    #[test]
    fn times_are_formatted_as_rfc_3339() {
        for (millis, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (951_868_799_999, "2000-02-29T23:59:59.999Z"),
            (1_709_164_800_001, "2024-02-29T00:00:00.001Z"),
            (1_798_761_599_000, "2026-12-31T23:59:59.000Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
            (253_402_300_799_999, "9999-12-31T23:59:59.999Z"),
            (253_402_300_800_000, "9999-12-31T23:59:59.999Z"),
            (u64::MAX / 4, "9999-12-31T23:59:59.999Z"),
        ] {
            let time = SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(millis));
            if let Some(time) = time {
                assert_eq!(rfc3339(time), text);
            }
        }
    }
}
