use std::time::SystemTime;

use concentric_core::Interrupt;
use serde_json::Value;

use super::super as wire;

/// Where the metadata of a question names the sub-agent that asks.
const SUBAGENT: &str = "subagentRunId";

/// The run of the sub-agent that asks, if it is one.
pub(super) fn subagent_of(asked: &Interrupt) -> Option<&str> {
    asked.metadata.get(SUBAGENT)?.as_str()
}

/// A question as the client is asked it; it calls the sub-agent that asks `subagent`, and the call
/// it is about `call`.
pub(super) fn interrupt(
    asked: &Interrupt,
    subagent: Option<&str>,
    call: Option<&str>,
) -> wire::Interrupt {
    let mut interrupt = wire::Interrupt::new(asked.id.as_str(), asked.reason.as_str());
    interrupt.message = asked
        .message
        .as_ref()
        .map(|message| message.as_str().to_owned());
    interrupt.tool_call_id = call.map(str::to_owned);
    interrupt.response_schema = match asked.response_schema.as_deref() {
        Some(Value::Object(schema)) => Some(schema.clone()),
        // `true` is a schema, too, and says nothing.
        _ => None,
    };
    interrupt.expires_at = asked.expires_at.map(rfc3339);
    let mut metadata = asked.metadata.clone();
    if let Some(run) = subagent {
        metadata.remove(SUBAGENT);
        interrupt.subagent_run_id = Some(run.to_owned());
    }
    interrupt.metadata = (!metadata.is_empty()).then_some(metadata);
    interrupt
}

/// A time as text (RFC 3339), in UTC and whole milliseconds; at the most the last of the year 9999,
/// beyond which the form has no years.
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

/// A day, in milliseconds.
const DAY: u64 = 24 * 60 * 60 * 1000;

/// The last millisecond of the year 9999.
const LAST: u64 = 2_932_897 * DAY - 1;

/// The date of a day since 1970, in the Gregorian calendar.
///
/// Years are counted from March, so that the day that not all have is their last
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
    fn times_are_written_as_rfc_3339_has_them() {
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
