use std::{fmt, sync::Arc, time::Duration};

use concentric_core::{Environment, store::Tenant};
use http::request::Parts;
use tower_layer::Layer;

use super::{
    Admission,
    gate::{Gate, Limits},
};

/// [`Layer`] that applies [`Admission`].
///
/// All services of one layer and its clones share their limits. A limit that is set on a clone makes
/// it a layer of its own, which counts anew. See the [module docs](super) for an example.
#[derive(Clone)]
pub struct AdmissionLayer {
    config: Config,
    gate: Arc<Gate>,
}

/// What the services of one layer share.
#[derive(Clone)]
pub(super) struct Config {
    pub(super) queue_timeout: Duration,
    pub(super) retry_after: Duration,
    pub(super) tenant: TenantOf,
    pub(super) environment: Environment,
}

pub(super) type TenantOf = Arc<dyn Fn(&Parts) -> Tenant + Send + Sync>;

impl AdmissionLayer {
    /// Creates a layer that lets at most `max` requests run at once.
    ///
    /// One tenant may have all of them, up to 64 requests wait for up to 10 seconds, of which one
    /// tenant has up to 8, and `retry-after` is 5 seconds. With zero every request is refused.
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

    /// Sets how many requests of one tenant run at once; the default is as many as in all. With zero
    /// every request is refused.
    #[must_use]
    pub fn per_tenant(self, max: usize) -> Self {
        self.limits(|limits| limits.per_tenant = max)
    }

    /// Sets how many requests wait; the default is 64. With zero none waits.
    #[must_use]
    pub fn queue(self, max: usize) -> Self {
        self.limits(|limits| limits.queue = max)
    }

    /// Sets how many requests of one tenant wait, so that one tenant does not fill the queue; the
    /// default is 8. With zero none waits.
    #[must_use]
    pub fn queue_per_tenant(self, max: usize) -> Self {
        self.limits(|limits| limits.queue_per_tenant = max)
    }

    /// Sets how long a request waits; the default is 10 seconds. With zero none waits.
    #[must_use]
    pub const fn queue_timeout(mut self, timeout: Duration) -> Self {
        self.config.queue_timeout = timeout;
        self
    }

    /// Sets the `retry-after` of a refused request, which is rounded up to whole seconds and at least
    /// one; the default is 5 seconds.
    #[must_use]
    pub const fn retry_after(mut self, time: Duration) -> Self {
        self.config.retry_after = time;
        self
    }

    /// Sets whose a request is; the default is the [`Tenant`] of its extensions, or else the empty one.
    ///
    /// It must be something that the host has authenticated: a client that chooses its tenant evades
    /// the tenant's limit.
    #[must_use]
    pub fn tenant(mut self, of: impl Fn(&Parts) -> Tenant + Send + Sync + 'static) -> Self {
        self.config.tenant = Arc::new(of);
        self
    }

    /// Sets the clock of the queue's timeout; the default is the system's.
    #[must_use]
    pub fn environment(mut self, environment: Environment) -> Self {
        self.config.environment = environment;
        self
    }

    /// How many requests run.
    pub fn running(&self) -> usize {
        self.gate.counts().0
    }

    /// How many requests wait.
    pub fn waiting(&self) -> usize {
        self.gate.counts().1
    }

    /// How many tenants have requests that run or wait.
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
