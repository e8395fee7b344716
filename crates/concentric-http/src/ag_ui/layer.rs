use std::{fmt, sync::Arc, time::Duration};

#[cfg(doc)]
use concentric_core::ErrorKind;
use concentric_core::{Environment, Error, Str};
use tower_layer::Layer;

use super::AgUi;
use crate::{
    describe::{ErrorMessage, describe},
    keep_alive::KeepAlive,
    policy::ClientPolicy,
    shutdown::Shutdown,
};

/// [`Layer`] that serves an agent as an AG-UI endpoint.
///
/// See the [module docs](super) for an example.
#[derive(Clone)]
pub struct AgUiLayer {
    config: Arc<Config>,
}

/// Configuration shared by the services of one layer.
#[derive(Clone)]
pub(super) struct Config {
    pub(super) agent: Option<Str>,
    pub(super) environment: Environment,
    pub(super) body_limit: usize,
    pub(super) upload_timeout: Option<Duration>,
    pub(super) state_limit: usize,
    pub(super) policy: ClientPolicy,
    pub(super) keep_alive: Option<Duration>,
    pub(super) keep_headers: bool,
    pub(super) shutdown: Option<Shutdown>,
    pub(super) error_message: ErrorMessage,
}

impl AgUiLayer {
    /// Creates a layer with the defaults: bodies of up to 4 MiB that arrive within 30 seconds,
    /// states of up to 1 MiB, the strict [`ClientPolicy`], and a comment after 15 seconds of
    /// silence.
    pub fn new() -> Self {
        Self {
            config: Arc::new(Config {
                agent: None,
                environment: Environment::system(),
                body_limit: 4 << 20,
                upload_timeout: Some(Duration::from_secs(30)),
                state_limit: 1 << 20,
                policy: ClientPolicy::new(),
                keep_alive: Some(Duration::from_secs(15)),
                keep_headers: false,
                shutdown: None,
                error_message: Arc::new(describe),
            }),
        }
    }

    fn with(mut self, set: impl FnOnce(&mut Config)) -> Self {
        set(Arc::make_mut(&mut self.config));
        self
    }

    /// Sets the agent's name (`gen_ai.agent.name`).
    #[must_use]
    pub fn agent(self, name: impl Into<Str>) -> Self {
        self.with(|config| config.agent = Some(name.into()))
    }

    /// Sets the source of time, ids and randomness for the runs; the default is the system.
    #[must_use]
    pub fn environment(self, environment: Environment) -> Self {
        self.with(|config| config.environment = environment)
    }

    /// Sets the maximum size of a request body in bytes; the default is 4 MiB.
    #[must_use]
    pub fn body_limit(self, bytes: usize) -> Self {
        self.with(|config| config.body_limit = bytes)
    }

    /// Sets how long a request body may take to arrive, measured from the call of the service; the
    /// default is 30 seconds.
    ///
    /// A later body is answered with `408`. `None` sets no limit; with zero, the body must be
    /// available immediately.
    #[must_use]
    pub fn upload_timeout(self, timeout: impl Into<Option<Duration>>) -> Self {
        let timeout = timeout.into();
        self.with(|config| config.upload_timeout = timeout)
    }

    /// Sets the maximum size of the state after an [update](super::AgUiState::update), in bytes of
    /// JSON; the default is 1 MiB.
    #[must_use]
    pub fn state_limit(self, bytes: usize) -> Self {
        self.with(|config| config.state_limit = bytes)
    }

    /// Sets the limits on client input; the default is [`ClientPolicy::new`].
    #[must_use]
    pub fn client_policy(self, policy: ClientPolicy) -> Self {
        self.with(|config| config.policy = policy)
    }

    /// Sets the silence after which a comment is sent, so that proxies keep the connection open;
    /// the default is 15 seconds.
    ///
    /// `None` or zero disables comments. The minimum is one second; shorter times are raised to it.
    #[must_use]
    pub fn keep_alive(self, silence: impl Into<Option<Duration>>) -> Self {
        let silence = KeepAlive::silence(silence.into());
        self.with(|config| config.keep_alive = silence)
    }

    /// Adds the request's headers to the extensions of the run's context, as an `http::HeaderMap`.
    ///
    /// Headers contain credentials, which every layer, tool and sub-agent of the run can then read.
    /// Prefer an outer layer that extracts the required values into an extension of the request.
    #[must_use]
    pub fn keep_headers(self) -> Self {
        self.with(|config| config.keep_headers = true)
    }

    /// Sets the handle that ends the streams when the server shuts down.
    #[must_use]
    pub fn shutdown(self, shutdown: Shutdown) -> Self {
        self.with(|config| config.shutdown = Some(shutdown))
    }

    /// Sets the function that makes the `message` of `RUN_ERROR` from an error.
    ///
    /// The default is one sentence for each [`ErrorKind`], since the text of an error may reveal
    /// part of a key, an address or a stack. Errors are logged in full with `tracing`.
    #[must_use]
    pub fn error_message(
        self,
        describe: impl Fn(&Error) -> String + Send + Sync + 'static,
    ) -> Self {
        self.with(|config| config.error_message = Arc::new(describe))
    }
}

impl Default for AgUiLayer {
    fn default() -> Self {
        Self::new()
    }
}

impl<A> Layer<A> for AgUiLayer {
    type Service = AgUi<A>;

    fn layer(&self, agent: A) -> Self::Service {
        AgUi::new(agent, self.config.clone())
    }
}

impl fmt::Debug for AgUiLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Config {
            agent,
            environment: _,
            body_limit,
            upload_timeout,
            state_limit,
            policy,
            keep_alive,
            keep_headers,
            shutdown,
            error_message: _,
        } = &*self.config;
        f.debug_struct("AgUiLayer")
            .field("agent", agent)
            .field("body_limit", body_limit)
            .field("upload_timeout", upload_timeout)
            .field("state_limit", state_limit)
            .field("policy", policy)
            .field("keep_alive", keep_alive)
            .field("keep_headers", keep_headers)
            .field("shutdown", shutdown)
            .finish_non_exhaustive()
    }
}
