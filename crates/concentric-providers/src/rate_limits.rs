//! The rate limits that a provider reports in headers.

use crate::retry_after::{days, seconds};
use concentric_core::{Allowance, RateLimits};
use http::HeaderMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The names of amounts in `anthropic-ratelimit-{}-limit` and `x-ratelimit-limit-{}`, with the index of the
/// amount. Of several names for an amount in one response, the first counts. Those with a period are used by
/// Cerebras and Mistral, and the empty one by Together and OpenRouter.
const NAMES: [(&str, usize); 9] = [
    ("requests", 0),
    ("req-minute", 0),
    ("requests-minute", 0),
    ("requests-day", 0),
    ("", 0),
    ("tokens", 1),
    ("tokens-minute", 1),
    ("input-tokens", 2),
    ("output-tokens", 3),
];

/// The longest time that is read; longer ones are cut.
const LONGEST: Duration = Duration::from_secs(60 * 60 * 24 * 366);

/// Reads the rate limits of a response. `None` if it has none.
pub(crate) fn read(headers: &HeaderMap, now: SystemTime) -> Option<RateLimits> {
    // Each with the rank of its name.
    let mut amounts = [(usize::MAX, Allowance::default()); 4];
    for (name, value) in headers {
        let Some((part, rank, amount)) = header(name.as_str()) else {
            continue;
        };
        let (Ok(text), Some((best, allowance))) = (value.to_str(), amounts.get_mut(amount)) else {
            continue;
        };
        if rank > *best {
            continue;
        }
        if rank < *best {
            (*best, *allowance) = (rank, Allowance::default());
        }
        let text = text.trim();
        match part {
            // Azure reports -1 for an amount without a limit.
            "limit" => allowance.limit = text.parse().ok(),
            "remaining" => allowance.remaining = text.parse().ok(),
            _ => allowance.reset = time(text, now),
        }
    }
    let amounts = amounts.map(|(_, allowance)| match allowance {
        // The time of a limit that is not known.
        Allowance {
            limit: None,
            remaining: None,
            ..
        } => Allowance::default(),
        known => known,
    });
    let mut limits = RateLimits::default();
    [
        limits.requests,
        limits.tokens,
        limits.input_tokens,
        limits.output_tokens,
    ] = amounts;
    (limits != RateLimits::default()).then_some(limits)
}

/// The part that a header states, the rank of its name, and the index of its amount.
fn header(name: &str) -> Option<(&str, usize, usize)> {
    let (amount, part) = match name.strip_prefix("x-ratelimit-") {
        Some(rest) => {
            let (part, amount) = rest.split_once('-').unwrap_or((rest, ""));
            (amount, part)
        }
        None => name
            .strip_prefix("anthropic-ratelimit-")?
            .rsplit_once('-')?,
    };
    let is_part = matches!(part, "limit" | "remaining" | "reset");
    let rank = NAMES.iter().position(|(known, _)| *known == amount)?;
    let (_, amount) = NAMES.get(rank)?;
    is_part.then_some((part, rank, *amount))
}

/// Parses the time of a reset:
///
/// - `2026-08-02T17:44:25Z` (RFC 3339) of Anthropic,
/// - `6m0s`, `12ms` of OpenAI and Groq,
/// - `59.6`, seconds of Azure, Cerebras and Together; a number that is too large for these is the time since
///   1970 in seconds or milliseconds.
fn time(text: &str, now: SystemTime) -> Option<SystemTime> {
    // About 30 years.
    const SECONDS: Duration = Duration::from_secs(1_000_000_000);
    const MILLIS: Duration = Duration::from_secs(100_000_000_000);
    if let Some(at) = date(text) {
        return Some(at);
    }
    let after = match seconds(text, 1.0, Duration::MAX) {
        Some(number) if number < SECONDS => number,
        Some(number) => {
            let unit = if number < MILLIS { 1 } else { 1_000 };
            return UNIX_EPOCH.checked_add(number / unit);
        }
        None => duration(text)?,
    };
    now.checked_add(after.min(LONGEST))
}

/// Parses a duration in Go's format, such as `1h2m3.5s`.
fn duration(mut text: &str) -> Option<Duration> {
    let mut sum = Duration::ZERO;
    while !text.is_empty() {
        let unit = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, rest) = text.split_at_checked(unit)?;
        let end = rest
            .find(|c: char| c.is_ascii_digit() || c == '.')
            .unwrap_or(rest.len());
        let (unit, rest) = rest.split_at_checked(end)?;
        let unit = match unit {
            "d" => 86_400.0,
            "h" => 3_600.0,
            "m" => 60.0,
            "s" => 1.0,
            "ms" => 1e-3,
            "us" | "µs" | "μs" => 1e-6,
            "ns" => 1e-9,
            _ => return None,
        };
        sum = sum.saturating_add(seconds(number, unit, Duration::MAX)?);
        text = rest;
    }
    Some(sum)
}

/// Parses a date and time of RFC 3339.
fn date(text: &str) -> Option<SystemTime> {
    let (date, time) = text.split_once(['T', 't', ' '])?;
    let zone = time.find(['Z', 'z', '+', '-'])?;
    let (time, zone) = time.split_at_checked(zone)?;
    let mut numbers = date.split('-').map(str::parse::<u64>);
    let (year, month, day) = (
        numbers.next()?.ok()?,
        numbers.next()?.ok()?,
        numbers.next()?.ok()?,
    );
    let mut parts = time.split(':');
    let mut number = || parts.next()?.parse::<u64>().ok();
    let (hour, minute) = (number()?, number()?);
    let second = seconds(parts.next()?, 1.0, Duration::MAX)?;
    let is_valid = (1970..=9999).contains(&year)
        && (1..=12).contains(&month)
        && (1..=31).contains(&day)
        && hour < 24
        && minute < 60
        && second < Duration::from_secs(61);
    if !is_valid {
        return None;
    }
    let local = days(year, month, day)? * 86_400 + hour * 3_600 + minute * 60;
    let local = Duration::from_secs(local).checked_add(second)?;
    let offset = |text: &str| {
        let (hours, minutes) = text.split_once(':')?;
        let (hours, minutes): (u64, u64) = (hours.parse().ok()?, minutes.parse().ok()?);
        (hours < 24 && minutes < 60).then(|| Duration::from_secs((hours * 60 + minutes) * 60))
    };
    let since = match zone.split_at_checked(1)? {
        ("+", east) => local.checked_sub(offset(east)?)?,
        ("-", west) => local.checked_add(offset(west)?)?,
        (_, "") => local,
        _ => return None,
    };
    UNIX_EPOCH.checked_add(since)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_format_of_a_time_is_parsed() {
        let now = UNIX_EPOCH + Duration::from_secs(1_785_692_665);
        let ms = |ms| Some(now + Duration::from_millis(ms));
        let at = |text| time(text, now);
        for (text, expected) in [
            // OpenAI, Groq.
            ("0s", ms(0)),
            ("12ms", ms(12)),
            ("6m0s", ms(360_000)),
            ("5m45.6s", ms(345_600)),
            ("1h2m3s", ms(3_723_000)),
            ("23.055s", ms(23_055)),
            ("1d", ms(86_400_000)),
            ("1500µs", Some(now + Duration::from_micros(1_500))),
            ("5us3ns", Some(now + Duration::from_nanos(5_003))),
            // Azure, Together, Cerebras.
            ("0", ms(0)),
            ("2", ms(2_000)),
            ("59.5", ms(59_500)),
            ("-1", ms(0)),
            // Seconds and milliseconds since 1970.
            ("1785692670", ms(5_000)),
            ("1785692670000", ms(5_000)),
            // Anthropic.
            ("2026-08-02T17:44:25Z", ms(0)),
            ("2026-08-02T17:44:26.250Z", ms(1_250)),
            ("2026-08-02t19:44:25+02:00", ms(0)),
            ("2026-08-02T12:14:25-05:30", ms(0)),
            ("1969-12-31T23:59:59Z", None),
            ("1970-01-01T00:30:00+01:00", None),
            ("2026-13-02T17:44:25Z", None),
            ("2026-08-02T17:44:25", None),
            ("2026-08-02T17:44:25Zulu", None),
            ("2026-08-02T17:44:25+2", None),
            ("2026-08-02T17:44:NaNZ", None),
            ("", Some(now)),
            ("soon", None),
            ("s", None),
            ("5", ms(5_000)),
            ("5x", None),
            ("5m3", None),
            ("1.2.3s", None),
            ("inf", None),
            ("ANTHROPIC-RATELIMIT-REQUESTS-RESET-XXX", None),
        ] {
            assert_eq!(at(text), expected, "{text}");
        }
        let far = Some(now + LONGEST);
        for text in ["99999999999999999999s", "9999999d", "999999999"] {
            assert_eq!(at(text), far, "{text}");
        }
        // Beyond the range of the type, or just far in the future.
        let _ = at("99999999999999999999999999");
        let _ = at("9999-12-31T23:59:60-23:59");
    }

    fn headers(list: &[(&'static str, &'static str)]) -> HeaderMap {
        let header = |(name, value): &(&'static str, &str)| {
            let value = value.parse().unwrap();
            (http::HeaderName::from_static(name), value)
        };
        list.iter().map(header).collect()
    }

    fn expected(limit: u64, remaining: u64, reset: Option<SystemTime>) -> Allowance {
        let mut allowance = Allowance::default();
        allowance.limit = Some(limit);
        allowance.remaining = Some(remaining);
        allowance.reset = reset;
        allowance
    }

    #[test]
    fn the_headers_of_each_provider_are_read() {
        let now = UNIX_EPOCH + Duration::from_secs(1_785_692_665);
        let after = |seconds| Some(now + Duration::from_secs(seconds));
        let limits = |list: &[_]| read(&headers(list), now);
        assert_eq!(limits(&[]), None);

        let openai = limits(&[
            ("x-ratelimit-limit-requests", "500"),
            ("x-ratelimit-remaining-requests", "499"),
            ("x-ratelimit-reset-requests", "2s"),
            ("x-ratelimit-limit-tokens", "200000"),
            ("x-ratelimit-remaining-tokens", "199184"),
            ("x-ratelimit-reset-tokens", "1m1s"),
        ])
        .unwrap();
        assert_eq!(openai.requests, expected(500, 499, after(2)));
        assert_eq!(openai.tokens, expected(200_000, 199_184, after(61)));
        assert_eq!(openai.input_tokens, Allowance::default());

        let anthropic = limits(&[
            ("anthropic-ratelimit-requests-limit", "50"),
            ("anthropic-ratelimit-requests-remaining", "49"),
            ("anthropic-ratelimit-requests-reset", "2026-08-02T17:44:26Z"),
            ("anthropic-ratelimit-input-tokens-limit", "40000"),
            ("anthropic-ratelimit-input-tokens-remaining", "0"),
            (
                "anthropic-ratelimit-input-tokens-reset",
                "2026-08-02T17:45:25Z",
            ),
            ("anthropic-ratelimit-output-tokens-limit", "8000"),
            ("anthropic-ratelimit-output-tokens-remaining", "7000"),
            ("anthropic-ratelimit-output-tokens-reset", "?"),
        ])
        .unwrap();
        assert_eq!(anthropic.requests, expected(50, 49, after(1)));
        assert_eq!(anthropic.input_tokens, expected(40_000, 0, after(60)));
        assert_eq!(anthropic.output_tokens, expected(8_000, 7_000, None));
        assert_eq!(anthropic.tokens, Allowance::default());

        // Azure: no limit on tokens.
        let azure = limits(&[
            ("x-ratelimit-limit-tokens", "-1"),
            ("x-ratelimit-remaining-tokens", "-1"),
            ("x-ratelimit-reset-tokens", "0"),
        ]);
        assert_eq!(azure, None);
        let azure = limits(&[
            ("x-ratelimit-remaining-requests", "119"),
            ("x-ratelimit-key", "gpt"),
        ]);
        assert_eq!(azure.unwrap().requests.remaining, Some(119));

        let mistral = limits(&[
            ("x-ratelimit-limit-req-minute", "360"),
            ("x-ratelimit-remaining-req-minute", "358"),
            ("x-ratelimit-limit-tokens-minute", "200000"),
            ("x-ratelimit-remaining-tokens-minute", "199533"),
        ])
        .unwrap();
        assert_eq!(mistral.requests, expected(360, 358, None));
        assert_eq!(mistral.tokens, expected(200_000, 199_533, None));

        let together = limits(&[
            ("x-ratelimit-limit", "2"),
            ("x-ratelimit-remaining", "1"),
            ("x-ratelimit-reset", "2"),
        ]);
        assert_eq!(together.unwrap().requests, expected(2, 1, after(2)));
    }
}
