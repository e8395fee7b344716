use std::{
    collections::BTreeMap,
    convert::Infallible,
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, SystemTime},
};

use concentric_core::{BoxModel, Environment, Error, Str, service::SharedModel};
use http_body::Body;
use tower::BoxError;
use tower_service::Service;

use super::{ResponseBody, respond::respond};
use crate::{
    describe::{ErrorMessage, describe},
    keep_alive::KeepAlive,
    policy::ClientPolicy,
    shutdown::Shutdown,
};

/// Service that answers requests of OpenAI's clients with models and agents.
///
/// See the [module docs](super) for an example and for the routes. Clones share the models.
#[derive(Clone)]
pub struct OpenAi {
    config: Arc<Config>,
}

#[derive(Clone)]
pub(super) struct Config {
    pub(super) models: BTreeMap<Str, Stack>,
    pub(super) default_model: Option<Str>,
    pub(super) created: u64,
    pub(super) environment: Environment,
    pub(super) body_limit: usize,
    pub(super) upload_timeout: Option<Duration>,
    pub(super) policy: ClientPolicy,
    pub(super) keep_alive: Option<Duration>,
    pub(super) shutdown: Option<Shutdown>,
    pub(super) error_message: ErrorMessage,
}

/// What a model's name refers to.
#[derive(Clone)]
pub(super) enum Stack {
    Model(BoxModel),
    Alias(Str),
}

impl OpenAi {
    /// Creates a service without models, with the defaults: bodies of up to 20 MiB that arrive within
    /// 30 seconds, the strict [`ClientPolicy`] with system messages, and a comment after 15 seconds
    /// of silence.
    pub fn new() -> Self {
        let environment = Environment::system();
        Self {
            config: Arc::new(Config {
                models: BTreeMap::new(),
                default_model: None,
                created: seconds(&environment),
                environment,
                body_limit: 20 << 20,
                upload_timeout: Some(Duration::from_secs(30)),
                policy: ClientPolicy::new().system_messages(true),
                keep_alive: Some(Duration::from_secs(15)),
                shutdown: None,
                error_message: Arc::new(describe),
            }),
        }
    }

    fn with(mut self, set: impl FnOnce(&mut Config)) -> Self {
        set(Arc::make_mut(&mut self.config));
        self
    }

    /// Adds a model or an agent, with its layers. A later one replaces an earlier one of the same
    /// name.
    ///
    /// Clients see the name only: the model that the stack calls is that of the stack.
    #[must_use]
    pub fn model(self, name: impl Into<Str>, stack: impl SharedModel) -> Self {
        let stack = Stack::Model(BoxModel::new(stack));
        self.with(|config| {
            config.models.insert(name.into(), stack);
        })
    }

    /// Adds another name for the model `model`.
    #[must_use]
    pub fn alias(self, name: impl Into<Str>, model: impl Into<Str>) -> Self {
        let alias = Stack::Alias(model.into());
        self.with(|config| {
            config.models.insert(name.into(), alias);
        })
    }

    /// Sets the model of requests without a model; the default is none, and such requests are
    /// rejected. A request with an unknown model is rejected in any case.
    #[must_use]
    pub fn default_model(self, name: impl Into<Str>) -> Self {
        self.with(|config| config.default_model = Some(name.into()))
    }

    /// Sets the source of time, ids and randomness for the runs; the default is the system.
    #[must_use]
    pub fn environment(self, environment: Environment) -> Self {
        self.with(|config| {
            config.created = seconds(&environment);
            config.environment = environment;
        })
    }

    /// Sets the maximum size of a request body in bytes; the default is 20 MiB.
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

    /// Sets the limits on client input; the default is [`ClientPolicy::new`] with system messages.
    ///
    /// Images and files at URLs are rejected unless their hosts are listed
    /// ([`ClientPolicy::media_host`]), and inline ones are accepted.
    #[must_use]
    pub fn client_policy(self, policy: ClientPolicy) -> Self {
        self.with(|config| config.policy = policy)
    }

    /// Sets the silence after which a stream has a comment, so that proxies keep the connection
    /// open; the default is 15 seconds.
    ///
    /// `None` or zero disables comments. The minimum is one second; shorter times are raised to it.
    #[must_use]
    pub fn keep_alive(self, silence: impl Into<Option<Duration>>) -> Self {
        let silence = KeepAlive::silence(silence.into());
        self.with(|config| config.keep_alive = silence)
    }

    /// Sets the handle that ends the runs when the server shuts down.
    #[must_use]
    pub fn shutdown(self, shutdown: Shutdown) -> Self {
        self.with(|config| config.shutdown = Some(shutdown))
    }

    /// Sets the function that makes the `message` of an error response from the error of a run.
    ///
    /// The default is one sentence for each [`ErrorKind`](concentric_core::ErrorKind), since the
    /// text of an error may reveal part of a key, an address or a stack. Errors are logged in full
    /// with `tracing`.
    #[must_use]
    pub fn error_message(
        self,
        describe: impl Fn(&Error) -> String + Send + Sync + 'static,
    ) -> Self {
        self.with(|config| config.error_message = Arc::new(describe))
    }
}

impl Config {
    /// The model of a name.
    pub(super) fn model(&self, name: &str) -> Option<&BoxModel> {
        match self.models.get(name)? {
            Stack::Model(model) => Some(model),
            // An alias of an alias refers to no model.
            Stack::Alias(model) => match self.models.get(model)? {
                Stack::Model(model) => Some(model),
                Stack::Alias(_) => None,
            },
        }
    }
}

/// The time in seconds since 1970.
pub(super) fn seconds(environment: &Environment) -> u64 {
    let now = environment.clock().now();
    let since = now.duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

impl Default for OpenAi {
    fn default() -> Self {
        Self::new()
    }
}

impl<RB> Service<http::Request<RB>> for OpenAi
where
    RB: Body + Send + 'static,
    RB::Error: Into<BoxError>,
{
    type Response = http::Response<ResponseBody>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    // Always ready: each request waits for its model.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<RB>) -> Self::Future {
        let config = self.config.clone();
        Box::pin(async move { Ok(respond(&config, request).await) })
    }
}

impl fmt::Debug for OpenAi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&Str> = self.config.models.keys().collect();
        f.debug_struct("OpenAi")
            .field("models", &names)
            .finish_non_exhaustive()
    }
}
