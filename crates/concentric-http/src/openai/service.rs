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

use concentric_core::{
    BoxModel, Environment, Str,
    service::SharedModel,
    store::{EventStore, ThreadStore},
};
use http_body::Body;
use tower::BoxError;
use tower_service::Service;

use super::{ResponseBody, background::Background, respond::respond};
use crate::{
    keep_alive::KeepAlive,
    policy::ClientPolicy,
    settings::{Settings, setters},
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
    pub(super) threads: Option<Arc<dyn ThreadStore>>,
    pub(super) background: Background,
    pub(super) shows_reasoning: bool,
    pub(super) read_timeout: Option<Duration>,
    pub(super) settings: Settings,
}

/// What a model's name refers to.
#[derive(Clone)]
pub(super) enum Stack {
    Model(BoxModel),
    Alias(Str),
}

impl OpenAi {
    /// Creates a service without models, with the defaults: bodies of up to 20 MiB that arrive within
    /// 30 seconds, the strict [`ClientPolicy`] with system messages, a comment after 15 seconds of
    /// silence, clients that read within 60 seconds, and reasoning that is not shown.
    pub fn new() -> Self {
        let policy = ClientPolicy::new().system_messages(true);
        let settings = Settings::new(20 << 20, policy);
        Self {
            config: Arc::new(Config {
                models: BTreeMap::new(),
                default_model: None,
                created: seconds(&settings.environment),
                threads: None,
                background: Background::new(&settings.environment),
                shows_reasoning: false,
                read_timeout: Some(Duration::from_secs(60)),
                settings,
            }),
        }
    }

    fn with(mut self, set: impl FnOnce(&mut Config)) -> Self {
        set(Arc::make_mut(&mut self.config));
        self
    }

    fn settings(self, set: impl FnOnce(&mut Settings)) -> Self {
        self.with(|config| {
            set(&mut config.settings);
            config.created = seconds(&config.settings.environment);
            let environment = config.settings.environment.clone();
            config.background.set_environment(&environment);
        })
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

    /// Sets the store of the [responses](super#stored-responses); the default is none, and responses are
    /// not stored.
    ///
    /// ```no_run
    /// use concentric_core::BoxModel;
    /// use concentric_http::openai::OpenAi;
    /// use concentric_store::{Fault, SqliteStore};
    ///
    /// fn api(clerk: BoxModel) -> Result<OpenAi, Fault> {
    ///     let store = SqliteStore::open("responses.db")?;
    ///     Ok(OpenAi::new().model("clerk", clerk).threads(store))
    /// }
    /// # let _ = api;
    /// ```
    #[must_use]
    pub fn threads(self, store: impl ThreadStore) -> Self {
        self.with(|config| config.threads = Some(Arc::new(store)))
    }

    /// Sets the maximum number of [background runs](super#background-responses) of the process; the default is 1,024.
    /// Further requests are answered with `503`.
    #[must_use]
    pub fn background_runs(self, max: usize) -> Self {
        self.with(|config| config.background.set_runs(max))
    }

    /// Sets the maximum number of [background runs](super#background-responses) of a
    /// [`Tenant`](concentric_core::store::Tenant) in the process; the default is no limit besides that of the process. Further
    /// requests of the tenant are answered with `429`. Callers without a tenant share one number, and are answered with `503`.
    #[must_use]
    pub fn background_runs_per_tenant(self, max: usize) -> Self {
        self.with(|config| config.background.set_runs_per_tenant(max))
    }

    /// Sets how long a [background run](super#background-responses) may take; the default is one hour. A run that
    /// takes longer is cancelled, and its response has failed.
    #[must_use]
    pub fn background_timeout(self, timeout: Duration) -> Self {
        self.with(|config| config.background.set_timeout(timeout))
    }

    /// Sets the store in which processes share the [events](super#background-responses) of background responses; the
    /// default is none, and only the process of a run has them.
    ///
    /// ```no_run
    /// use concentric_core::BoxModel;
    /// use concentric_http::openai::OpenAi;
    /// use concentric_store::MemoryStore;
    ///
    /// fn api(clerk: BoxModel, store: MemoryStore) -> OpenAi {
    ///     OpenAi::new()
    ///         .model("clerk", clerk)
    ///         .threads(store.clone())
    ///         .events(store)
    /// }
    /// # let _ = api;
    /// ```
    #[must_use]
    pub fn events(self, store: impl EventStore) -> Self {
        self.with(|config| config.background.set_events(Arc::new(store)))
    }

    /// Sets whether clients receive the reasoning of the models; the default is no.
    ///
    /// A chat has it in `reasoning_content`, as several services do, and a response in items of the
    /// type `reasoning`. Reasoning that clients send back is ignored. A stream that has begun with
    /// reasoning cannot discard it: a later failure of the model no longer has its own status, and a
    /// layer that repeats a part of the run fails the stream.
    #[must_use]
    pub fn reasoning(self, is_shown: bool) -> Self {
        self.with(|config| config.shows_reasoning = is_shown)
    }

    /// Sets how long the client of a stream may read nothing before its run is dropped; the default is
    /// 60 seconds.
    ///
    /// The time counts while a chunk of the stream waits for the client, as far as the server shows
    /// it: chunks that fit into the buffers of the server and of the system count as read. `None` or
    /// zero sets no limit. The minimum is one second; shorter times are raised to it.
    #[must_use]
    pub fn read_timeout(self, timeout: impl Into<Option<Duration>>) -> Self {
        let timeout = KeepAlive::silence(timeout.into());
        self.with(|config| config.read_timeout = timeout)
    }

    setters! {
        body_limit: "20 MiB",
        client_policy: "[`ClientPolicy::new`] with system messages.

Images and files at URLs are rejected unless their hosts are listed
([`ClientPolicy::media_host`]), and inline ones are accepted.",
        error_message: "the `message` of an error response"
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
