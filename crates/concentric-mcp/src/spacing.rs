//! The times of the requests for event streams.

use std::time::Duration;
use tokio::time::Instant;

/// The bounds of the time between two requests for event streams.
const MIN_SPACING: Duration = Duration::from_secs(1);
const MAX_SPACING: Duration = Duration::from_secs(30);

/// Spaces the requests for event streams, whatever the server does: the time between two of them
/// doubles while streams end early. Streams that end together are requested together.
#[derive(Default)]
pub(crate) struct Spacing {
    /// The time of the last request, which may be to come, and the time until the next one.
    last: Option<(Instant, Duration)>,
}

impl Spacing {
    /// The time of the next request.
    pub(crate) fn next(&mut self, now: Instant) -> Instant {
        let (at, spacing) = match self.last {
            Some((last, _)) if now < last => return last,
            Some((last, spacing)) if now < last + spacing + MAX_SPACING => {
                let doubled = spacing.saturating_mul(2).min(MAX_SPACING);
                (now.max(last + spacing), doubled)
            }
            _ => (now, MIN_SPACING),
        };
        self.last = Some((at, spacing));
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_that_end_early_are_requested_less_often() {
        let (mut spacing, mut now) = (Spacing::default(), Instant::now());
        let mut waits = Vec::new();
        for _ in 0..8 {
            let at = spacing.next(now);
            waits.push((at - now).as_secs());
            // Another stream that ended meanwhile is requested with it.
            assert!(at == now || spacing.next(now) == at);
            now = at;
        }
        assert_eq!(waits, [0, 1, 2, 4, 8, 16, 30, 30]);
        now += Duration::from_secs(61);
        assert_eq!(spacing.next(now), now);
        assert_eq!(spacing.next(now), now + MIN_SPACING);
    }
}
