use std::{fmt, sync::Arc, time::Duration};

use concentric_core::{Environment, store::Tenant};
use http::request::Parts;
use tower_layer::Layer;

use super::{
    Admission,
    gate::{Gate, Limits},
};

/// [`Layer`] that limits the concurrent runs of a server ([`Admission`]).
///
/// All services of one layer and its clones share their limits. Setting a limit on a clone
/// separates it from the original, with new counts. See the [module docs](super) for an example.
#[derive(Clone)]
pub struct AdmissionLayer {
    config: Config,
    gate: Arc<Gate>,
}

/// Configuration shared by the services of one layer.
#[derive(Clone)]
pub(super) struct Config {
    pub(super) queue_timeout: Duration,
    pub(super) retry_after: Duration,
    pub(super) tenant: TenantOf,
    pub(super) environment: Environment,
}

pub(super) type TenantOf = Arc<dyn Fn(&Parts) -> Tenant + Send + Sync>;

impl AdmissionLayer {
    /// Creates a layer that runs at most `max` requests at once.
    ///
    /// By default, one tenant may use all of them, up to 64 requests wait for up to 10 seconds, up
    /// to 8 of them from one tenant, and `retry-after` is 5 seconds. With zero, every request is
    /// rejected.
    pub fn new(max: usize) -> Self {
        Self {
            config: Config {
                queue_timeout: Duration::from_secs(10),
                retry_after: Duration::from_secs(5),
                tenant: Arc::new(|parts| parts.extensions.get().cloned().unwrap_or_default()),
                environment: Environment::system(),
            },
            gate: Arc::new(Gate::new(Limits {
                total: max,
                per_tenant: usize::MAX,
                queue: 64,
                queue_per_tenant: 8,
            })),
        }
    }

    fn limits(mut self, set: impl FnOnce(&mut Limits)) -> Self {
        let mut limits = self.gate.limits();
        set(&mut limits);
        self.gate = Arc::new(Gate::new(limits));
        self
    }

    /// Sets the maximum number of requests of one tenant that run at once; the default is no limit
    /// per tenant. With zero, every request is rejected.
    #[must_use]
    pub fn per_tenant(self, max: usize) -> Self {
        self.limits(|limits| limits.per_tenant = max)
    }

    /// Sets the maximum number of waiting requests; the default is 64. With zero, requests do not
    /// wait.
    #[must_use]
    pub fn queue(self, max: usize) -> Self {
        self.limits(|limits| limits.queue = max)
    }

    /// Sets the maximum number of waiting requests of one tenant, so that one tenant cannot fill
    /// the queue; the default is 8. With zero, requests do not wait.
    #[must_use]
    pub fn queue_per_tenant(self, max: usize) -> Self {
        self.limits(|limits| limits.queue_per_tenant = max)
    }

    /// Sets how long a request waits; the default is 10 seconds. With zero, requests do not wait.
    #[must_use]
    pub const fn queue_timeout(mut self, timeout: Duration) -> Self {
        self.config.queue_timeout = timeout;
        self
    }

    /// Sets the `retry-after` header of a rejected request, rounded up to whole seconds and at
    /// least one; the default is 5 seconds.
    #[must_use]
    pub const fn retry_after(mut self, time: Duration) -> Self {
        self.config.retry_after = time;
        self
    }

    /// Sets the function that determines the tenant of a request; the default reads the [`Tenant`]
    /// in its extensions. Requests without one share the empty tenant.
    ///
    /// The tenant must be authenticated by the host: a client that chooses its tenant evades the
    /// tenant's limit.
    #[must_use]
    pub fn tenant(mut self, of: impl Fn(&Parts) -> Tenant + Send + Sync + 'static) -> Self {
        self.config.tenant = Arc::new(of);
        self
    }

    /// Sets the clock of the queue timeout; the default is the system clock.
    #[must_use]
    pub fn environment(mut self, environment: Environment) -> Self {
        self.config.environment = environment;
        self
    }

    /// Returns the number of running requests.
    pub fn running(&self) -> usize {
        self.gate.counts().0
    }

    /// Returns the number of waiting requests.
    pub fn waiting(&self) -> usize {
        self.gate.counts().1
    }

    /// Returns the number of tenants with running or waiting requests.
    pub fn tenants(&self) -> usize {
        self.gate.tenants()
    }
}

impl<S> Layer<S> for AdmissionLayer {
    type Service = Admission<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Admission::new(inner, self.config.clone(), Arc::clone(&self.gate))
    }
}

impl fmt::Debug for AdmissionLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Config {
            queue_timeout,
            retry_after,
            tenant: _,
            environment: _,
        } = &self.config;
        f.debug_struct("AdmissionLayer")
            .field("limits", &self.gate.limits())
            .field("queue_timeout", queue_timeout)
            .field("retry_after", retry_after)
            .field("running", &self.running())
            .field("waiting", &self.waiting())
            .finish_non_exhaustive()
    }
}
