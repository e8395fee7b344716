//! How layers share a limit with other processes.

use concentric_core::{Str, context::Environment, store::QuotaStore};
use std::{
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

/// A limit in a [`QuotaStore`], which processes share by its name.
///
/// ```
/// use concentric_core::store::{Quota, QuotaStore};
/// use concentric_layers::{InFlightLimitLayer, OnOutage, RateLimitLayer, Shared};
/// use std::{sync::Arc, time::Duration};
///
/// fn limits(store: Arc<dyn QuotaStore>) -> (RateLimitLayer, InFlightLimitLayer) {
///     let minute = Quota::per(Duration::from_secs(60));
///     let shared = Shared::new(store, "openai/key-1").on_outage(OnOutage::LocalShare(0.25));
///     (
///         RateLimitLayer::new(minute.requests(500).input_tokens(200_000)).shared(shared.clone()),
///         InFlightLimitLayer::new(200).shared(shared),
///     )
/// }
/// # let _ = limits;
/// ```
#[derive(Clone)]
pub struct Shared {
    pub(crate) store: Arc<dyn QuotaStore>,
    pub(crate) name: Str,
    pub(crate) batch: Duration,
    pub(crate) lease: Duration,
    pub(crate) patience: Duration,
    pub(crate) on_outage: OnOutage,
    pub(crate) environment: Environment,
    outages: Arc<Outages>,
}

/// What a layer does while the store of its limit does not answer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum OnOutage {
    /// Each process allows a share of the limit, such as a quarter if there are four.
    LocalShare(f64),
    /// Calls fail.
    Refuse,
    /// Calls are not limited.
    Allow,
}

#[derive(Default)]
struct Outages {
    count: AtomicU64,
    warned: Mutex<Option<Duration>>,
}

/// The shortest time between two warnings.
const WARNINGS: Duration = Duration::from_secs(60);

impl Shared {
    /// Shares a limit with all processes that use this name in the store. A rate limit with
    /// [keys](crate::RateLimitLayer::by) has a quota `name//key` for each of them, so no other name should contain `//`.
    pub fn new(store: Arc<dyn QuotaStore>, name: impl Into<Str>) -> Self {
        Self {
            store,
            name: name.into(),
            batch: Duration::from_millis(200),
            lease: Duration::from_secs(30),
            patience: Duration::from_millis(500),
            on_outage: OnOutage::LocalShare(0.25),
            environment: Environment::system(),
            outages: Arc::default(),
        }
    }

    /// Sets for which time of its recent use a process takes from a quota at once while no other one waits; 200 ms by
    /// default. The rest is returned after that time.
    ///
    /// A process may exceed the quota of a period by what it uses in this time, and learns later by it that the
    /// provider has rejected a call of another process. With zero, it takes for each call.
    #[must_use]
    pub const fn batch(mut self, time: Duration) -> Self {
        self.batch = time;
        self
    }

    /// Sets the time after which the permits of a process that has died are free; 30 seconds by default, at least a
    /// second. A process renews its permits at a third of it at the latest.
    #[must_use]
    pub fn lease(mut self, time: Duration) -> Self {
        self.lease = time.max(Duration::from_secs(1));
        self
    }

    /// Sets how long the store may take to answer; 500 ms by default. After that, and after an error, the limit is
    /// applied as [`on_outage`](Self::on_outage) sets, until the store answers again.
    #[must_use]
    pub const fn patience(mut self, time: Duration) -> Self {
        self.patience = time;
        self
    }

    /// Sets the policy while the store does not answer; [`LocalShare(0.25)`](OnOutage::LocalShare) by default.
    ///
    /// An outage is logged as a warning, at most once a minute, and [counted](Self::outages).
    #[must_use]
    pub const fn on_outage(mut self, policy: OnOutage) -> Self {
        self.on_outage = policy;
        self
    }

    /// Sets the source of the random id of the process, and the clock of its permits; the default is that of the system.
    #[must_use]
    pub fn environment(mut self, environment: Environment) -> Self {
        self.environment = environment;
        self
    }

    /// Returns how many requests to the store have failed or taken too long, of all clones of this value.
    pub fn outages(&self) -> u64 {
        self.outages.count.load(Ordering::Relaxed)
    }

    /// The share of the limit that the process applies by itself in an outage.
    pub(crate) fn local_share(&self) -> f64 {
        match self.on_outage {
            OnOutage::LocalShare(share) if share.is_finite() => share.clamp(0.0, 1.0),
            _ => 1.0,
        }
    }

    /// Counts a failed request.
    pub(crate) fn failed(&self, error: &dyn fmt::Display, now: Duration) {
        let count = self.outages.count.fetch_add(1, Ordering::Relaxed) + 1;
        let mut warned = self
            .outages
            .warned
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if warned.is_none_or(|at| now >= at.saturating_add(WARNINGS)) {
            *warned = Some(now);
            let policy = self.on_outage;
            tracing::warn!(limit = %self.name, %error, outages = count, ?policy, "the store of a shared limit failed");
        }
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("name", &self.name)
            .field("batch", &self.batch)
            .field("lease", &self.lease)
            .field("patience", &self.patience)
            .field("on_outage", &self.on_outage)
            .finish_non_exhaustive()
    }
}

/// Calls a function when a task is dropped before its end: by a panic, or with its runtime.
pub(crate) struct OnAbort<F: FnOnce()>(Option<F>);

impl<F: FnOnce()> OnAbort<F> {
    pub(crate) const fn new(aborted: F) -> Self {
        Self(Some(aborted))
    }

    /// Ends the task.
    pub(crate) fn end(mut self) {
        self.0 = None;
    }
}

impl<F: FnOnce()> Drop for OnAbort<F> {
    fn drop(&mut self) {
        if let Some(aborted) = self.0.take() {
            aborted();
        }
    }
}
