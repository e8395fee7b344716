//! The delay that a provider requests before a retry.

use http::HeaderMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Reads `retry-after-ms`, `x-ms-retry-after-ms` (milliseconds) and `retry-after` (seconds, with an
/// optional fraction, or a date; RFC 9110, section 10.2.3). Returns the longest of several delays,
/// limited to `max`.
pub(crate) fn read(headers: &HeaderMap, now: SystemTime, max: Duration) -> Option<Duration> {
    let texts = |name: &str| {
        let values = headers.get_all(name).iter();
        values.filter_map(|value| value.to_str().ok().map(str::trim))
    };
    let millis = ["retry-after-ms", "x-ms-retry-after-ms"]
        .into_iter()
        .flat_map(texts)
        .filter_map(|ms| seconds(ms, 1e-3, max));
    let after = texts("retry-after").filter_map(|text| {
        seconds(text, 1.0, max).or_else(|| {
            let at = date(text, now)?;
            Some(at.duration_since(now).unwrap_or_default())
        })
    });
    Some(millis.chain(after).max()?.min(max))
}

/// Parses a number of units, such as seconds with `unit` 1.
pub(crate) fn seconds(text: &str, unit: f64, max: Duration) -> Option<Duration> {
    // Excludes the names that `f64` parses as infinity and NaN.
    if !text.starts_with(|c: char| c.is_ascii_digit() || c == '-' || c == '.') {
        return None;
    }
    let seconds = text.parse::<f64>().ok()? * unit;
    Some(Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(max))
}

/// Parses a date in any of the formats that RFC 9110, section 5.6.7, requires recipients to accept:
///
/// - `Sun, 06 Nov 1994 08:49:37 GMT`, the only format that servers may generate today,
/// - `Sunday, 06-Nov-94 08:49:37 GMT` (RFC 850),
/// - `Sun Nov  6 08:49:37 1994` (C's `asctime`).
fn date(text: &str, now: SystemTime) -> Option<SystemTime> {
    const MONTHS: [&str; 12] = [
        "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
    ];
    let words: Vec<&str> = text
        .split([' ', ',', '-'])
        .filter(|word| !word.is_empty())
        .collect();
    let (day, month, year, time) = match words[..] {
        [_, day, month, year, time, "GMT"] => (day, month, year, time),
        [_, month, day, time, year] => (day, month, year, time),
        _ => return None,
    };
    let day: u64 = day.parse().ok()?;
    let month = MONTHS.iter().position(|m| *m == month)? as u64 + 1;
    let year = match year.len() {
        2 => full_year(year.parse().ok()?, now),
        _ => year.parse().ok()?,
    };
    let mut time = time.split(':').map(str::parse::<u64>);
    let (hour, minute, second) = (time.next()?.ok()?, time.next()?.ok()?, time.next()?.ok()?);
    let sane = (1970..=9999).contains(&year)
        && (1..=31).contains(&day)
        && hour < 24
        && minute < 60
        && second < 61;
    if !sane {
        return None;
    }
    let seconds = days(year, month, day)? * 86_400 + hour * 3_600 + minute * 60 + second;
    UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
}

/// The year that ends with `digits` and is at most 50 years after `now`.
fn full_year(digits: u64, now: SystemTime) -> u64 {
    // The mean length of a Gregorian year, in seconds.
    const YEAR: u64 = 31_556_952;
    let now = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    let latest = 1970 + now.as_secs() / YEAR + 50;
    latest - (latest - digits) % 100
}

/// Days since 1970-01-01, computed with Howard Hinnant's `days_from_civil`.
pub(crate) fn days(year: u64, month: u64, day: u64) -> Option<u64> {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year / 400;
    let year_of_era = year % 400;
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    (era * 146_097 + day_of_era).checked_sub(719_468)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_format_is_parsed() {
        let now = UNIX_EPOCH + Duration::from_secs(784_111_777);
        let max = Duration::from_secs(100);
        let ms = Duration::from_millis;
        let cases: &[(&str, &str, Option<Duration>)] = &[
            ("retry-after", "3", Some(ms(3000))),
            ("retry-after", " 2.5 ", Some(ms(2500))),
            ("retry-after", "0", Some(ms(0))),
            ("retry-after", "-5", Some(ms(0))),
            ("retry-after", "99999999999999999999999", Some(max)),
            ("retry-after", "101", Some(max)),
            (
                "retry-after",
                "Sun, 06 Nov 1994 08:49:47 GMT",
                Some(ms(10_000)),
            ),
            ("retry-after", "Sun, 06 Nov 1994 08:49:27 GMT", Some(ms(0))),
            ("retry-after", "Fri, 31 Dec 9999 23:59:59 GMT", Some(max)),
            (
                "retry-after",
                "Sunday, 06-Nov-94 08:49:47 GMT",
                Some(ms(10_000)),
            ),
            (
                "retry-after",
                "Wednesday, 21-Oct-37 07:28:00 GMT",
                Some(max),
            ),
            // 44 years in the future, not 56 years in the past.
            ("retry-after", "Thursday, 06-Nov-44 08:49:37 GMT", Some(max)),
            ("retry-after", "Tuesday, 06-Nov-45 08:49:37 GMT", None),
            ("retry-after", "Sun Nov  6 08:49:47 1994", Some(ms(10_000))),
            ("retry-after", "Wed Oct 21 07:28:00 2037", Some(max)),
            ("retry-after", "Sun Nov  6 08:49:47 94 1994", None),
            ("retry-after", "soon", None),
            ("retry-after", "NaN", None),
            ("retry-after", "inf", None),
            ("retry-after", "", None),
            ("retry-after", "Sun, 06 Nov 0001 08:49:37 GMT", None),
            ("retry-after", "Sun, 06 Nov", None),
            ("retry-after-ms", "1500", Some(ms(1500))),
            (
                "x-ms-retry-after-ms",
                "20.5",
                Some(Duration::from_micros(20_500)),
            ),
        ];
        for (name, value, expected) in cases {
            let mut headers = HeaderMap::new();
            headers.insert(*name, value.parse().unwrap());
            assert_eq!(read(&headers, now, max), *expected, "{name}: {value}");
        }
        assert_eq!(read(&HeaderMap::new(), now, max), None);
    }

    #[test]
    fn the_longest_delay_wins() {
        let mut headers = HeaderMap::new();
        headers.insert("retry-after", "1".parse().unwrap());
        headers.insert("retry-after-ms", "0".parse().unwrap());
        let after = read(&headers, UNIX_EPOCH, Duration::from_secs(9));
        assert_eq!(after, Some(Duration::from_secs(1)));
    }
}
