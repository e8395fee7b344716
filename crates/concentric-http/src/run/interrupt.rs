//! Interrupts in JSON.

use std::time::SystemTime;

use concentric_core::Interrupt;
use serde_json::Value;

use super::Metadata;

/// The metadata key of the sub-agent's run that raised an interrupt.
const SUBAGENT: &str = "subagentRunId";

/// The run of the sub-agent that raised the interrupt, if any.
pub(crate) fn subagent_of(asked: &Interrupt) -> Option<&str> {
    asked.metadata.get(SUBAGENT)?.as_str()
}

/// Converts an interrupt; `subagent` and `call` are the client's ids of the sub-agent that raised it and of its call.
pub(crate) fn interrupt(asked: &Interrupt, subagent: Option<&str>, call: Option<&str>) -> Metadata {
    let message = asked.message.as_ref().map(|message| message.as_str());
    // `true` is also a schema, but accepts everything.
    let schema = asked.response_schema.as_deref().filter(|it| it.is_object());
    let mut metadata = asked.metadata.clone();
    if subagent.is_some() {
        metadata.remove(SUBAGENT);
    }
    object([
        ("id", Some(asked.id.as_str().into())),
        ("reason", Some(asked.reason.as_str().into())),
        ("message", message.map(Value::from)),
        ("toolCallId", call.map(Value::from)),
        ("responseSchema", schema.cloned()),
        ("expiresAt", asked.expires_at.map(rfc3339).map(Value::from)),
        ("metadata", Some(metadata.into())),
        ("subagentRunId", subagent.map(Value::from)),
    ])
}

/// An object with those of `fields` that have a value.
pub(crate) fn object<V: From<Metadata>>(
    fields: impl IntoIterator<Item = (&'static str, Option<Value>)>,
) -> V {
    let fields = fields.into_iter();
    let fields: Metadata = fields
        .filter_map(|(name, it)| Some((name.to_owned(), it?)))
        .collect();
    fields.into()
}

/// Formats a time as RFC 3339, in UTC with milliseconds. Later times are clamped to the end of the
/// year 9999, the last that the format supports.
pub(crate) fn rfc3339(time: SystemTime) -> String {
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
