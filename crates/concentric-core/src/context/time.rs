use super::{Context, cancel::cancelled};
use concentric_proto::Error;
use std::time::{Duration, SystemTime};

impl Context {
    /// The current wall time.
    pub fn now(&self) -> SystemTime {
        self.run.environment.clock().now()
    }

    /// Waits for `duration`, or until the run is cancelled or its deadline has passed.
    ///
    /// # Errors
    ///
    /// The run was cancelled ([`ErrorKind::Cancelled`](crate::ErrorKind::Cancelled)), or its deadline
    /// passed before `duration` was over ([`ErrorKind::Timeout`](crate::ErrorKind::Timeout)).
    pub async fn sleep(&self, duration: Duration) -> Result<(), Error> {
        let left = self.remaining().filter(|left| *left < duration);
        let clock = self.run.environment.clock();
        let sleep = clock.sleep(left.unwrap_or(duration));
        match (self.token().run_until_cancelled(sleep).await, left) {
            (Some(()), None) => Ok(()),
            (Some(()), Some(_)) => Err(Error::deadline()),
            (None, _) => Err(cancelled()),
        }
    }

    /// The deadline of the run, in wall time.
    #[inline]
    pub fn deadline(&self) -> Option<SystemTime> {
        match self.of_shared() {
            None => self.run.deadline,
            Some(_) => None,
        }
    }

    /// The time until the deadline; `None` if the run has no deadline.
    pub fn remaining(&self) -> Option<Duration> {
        let deadline = self.deadline()?;
        Some(deadline.duration_since(self.now()).unwrap_or_default())
    }

    /// Whether the deadline has passed.
    #[inline]
    pub(crate) fn is_late(&self) -> bool {
        self.deadline()
            .is_some_and(|deadline| self.now() >= deadline)
    }

    /// Resolves when the run is cancelled or its deadline has passed.
    pub(super) async fn stopped(&self) {
        match self.remaining() {
            // The sleep ends early if the run is cancelled.
            Some(left) => drop(self.sleep(left).await),
            None => self.cancelled().await,
        }
    }
}
