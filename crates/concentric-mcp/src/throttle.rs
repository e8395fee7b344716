//! Limits of the rate of log records.

use std::time::Duration;
use tokio::time::Instant;

/// The records of a server per second.
const PER_SECOND: u32 = 64;

/// Allows a number of records per second.
pub(crate) struct Throttle {
    since: Instant,
    count: u32,
}

impl Throttle {
    pub(crate) fn new() -> Self {
        Self {
            since: Instant::now(),
            count: 0,
        }
    }

    /// Counts a record, and returns whether it is within the limit.
    pub(crate) fn allows(&mut self) -> bool {
        if self.since.elapsed() >= Duration::from_secs(1) {
            *self = Self::new();
        }
        self.count = self.count.saturating_add(1);
        self.count <= PER_SECOND
    }
}
