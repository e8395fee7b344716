use std::{error::Error as StdError, fmt, sync::Arc, time::Duration};

use concentric_core::{
    Environment, Error, ErrorKind, ReplyError, Str, store::StoreError, tool::ToolNameTaken,
};
use tower_layer::Layer;

use super::{AgUi, ClientPolicy, Shutdown};

/// [`Layer`] that makes an agent an AG-UI endpoint.
///
/// See the [module docs](super) for an example.
#[derive(Clone)]
pub struct AgUiLayer {
    config: Arc<Config>,
}

/// What the services of one layer share.
#[derive(Clone)]
pub(super) struct Config {
    pub(super) agent: Option<Str>,
    pub(super) environment: Environment,
    pub(super) body_limit: usize,
    pub(super) state_limit: usize,
    pub(super) policy: ClientPolicy,
    pub(super) keep_alive: Option<Duration>,
    pub(super) keep_headers: bool,
    pub(super) shutdown: Option<Shutdown>,
    pub(super) error_message: ErrorMessage,
}

/// What a client is told of an error.
pub(super) type ErrorMessage = Arc<dyn Fn(&Error) -> String + Send + Sync>;

impl AgUiLayer {
    /// Creates a layer with the defaults: bodies of up to 4 MiB, states of up to 1 MiB, the strict
    /// [`ClientPolicy`], and a comment after 15 seconds of silence.
    pub fn new() -> Self {
        Self {
            config: Arc::new(Config {
                agent: None,
                environment: Environment::system(),
                body_limit: 4 << 20,
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

    /// Names the agent (`gen_ai.agent.name`).
    #[must_use]
    pub fn agent(self, name: impl Into<Str>) -> Self {
        self.with(|config| config.agent = Some(name.into()))
    }

    /// Sets the clock, ids and randomness of the runs; the default is the system's.
    #[must_use]
    pub fn environment(self, environment: Environment) -> Self {
        self.with(|config| config.environment = environment)
    }

    /// Sets how many bytes a request's body may have; the default is 4 MiB.
    #[must_use]
    pub fn body_limit(self, bytes: usize) -> Self {
        self.with(|config| config.body_limit = bytes)
    }

    /// Sets how many bytes of JSON the state may have after an
    /// [update](super::AgUiState::update); the default is 1 MiB.
    #[must_use]
    pub fn state_limit(self, bytes: usize) -> Self {
        self.with(|config| config.state_limit = bytes)
    }

    /// Sets what clients may send; the default is [`ClientPolicy::new`].
    #[must_use]
    pub fn client_policy(self, policy: ClientPolicy) -> Self {
        self.with(|config| config.policy = policy)
    }

    /// Sets after how much silence a comment is sent, so that proxies keep the connection; `None`
    /// or zero sends none, and less than a second counts as one. The default is 15 seconds.
    #[must_use]
    pub fn keep_alive(self, silence: impl Into<Option<Duration>>) -> Self {
        // With hardly any silence, the stream would be nothing but comments.
        let silence = silence.into().filter(|silence| !silence.is_zero());
        let silence = silence.map(|silence| silence.max(Duration::from_secs(1)));
        self.with(|config| config.keep_alive = silence)
    }

    /// Puts the request's headers, as an `http::HeaderMap`, into the extensions of the run's
    /// context.
    ///
    /// They hold credentials, and every layer, tool and sub-agent of the run can read them; better
    /// have a layer outside turn them into what is needed, as an extension of the request.
    #[must_use]
    pub fn keep_headers(self) -> Self {
        self.with(|config| config.keep_headers = true)
    }

    /// Ends the streams with `shutdown`.
    #[must_use]
    pub fn shutdown(self, shutdown: Shutdown) -> Self {
        self.with(|config| config.shutdown = Some(shutdown))
    }

    /// Sets what a client is told of an error, in `RUN_ERROR`'s `message`.
    ///
    /// The default is one sentence for each [`ErrorKind`], since an error's own text may show a
    /// part of a key, an address or a stack. Errors are logged in full, by `tracing`.
    #[must_use]
    pub fn error_message(
        self,
        describe: impl Fn(&Error) -> String + Send + Sync + 'static,
    ) -> Self {
        self.with(|config| config.error_message = Arc::new(describe))
    }
}

/// The code of an error that says that a run was not taken up, as a client that answers its
/// questions is told it.
pub(super) fn refusal(error: &Error) -> Option<&str> {
    if let Some(error) = source::<ReplyError>(error) {
        return Some(error.code());
    }
    match source::<StoreError>(error) {
        Some(StoreError::Failed(_) | StoreError::Unwritable(_)) => None,
        Some(error) => Some(error.code()),
        None if error.kind() == ErrorKind::Conflict => error.code().or(Some("conflict")),
        None => None,
    }
}

/// What caused `error`, if it was a `T`.
pub(super) fn source<T: StdError + 'static>(error: &Error) -> Option<&T> {
    let first = error.source();
    std::iter::successors(first, |error| (**error).source()).find_map(|error| error.downcast_ref())
}

/// What a client is told of an error: of a reply what is wrong with it, else one sentence for each
/// kind.
pub(super) fn describe(error: &Error) -> String {
    if let Some(taken) = source::<ToolNameTaken>(error) {
        return format!("{taken}.");
    }
    match (source::<ReplyError>(error), refusal(error)) {
        (Some(error), _) => format!("{error}."),
        (None, Some("run_live")) => "This run is in progress already.".to_owned(),
        (None, Some("run_exists")) => "There is a run with this id already.".to_owned(),
        (None, Some("too_many_waiting")) => {
            "Too many questions wait for replies. Reply to some of them, or cancel them.".to_owned()
        }
        (None, Some(_)) => describe_kind(ErrorKind::Conflict).to_owned(),
        (None, None) => describe_kind(error.kind()).to_owned(),
    }
}

fn describe_kind(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Authentication | ErrorKind::Permission | ErrorKind::Quota => {
            "The agent has no access to its model."
        }
        ErrorKind::NotFound | ErrorKind::Configuration => "The agent is not set up correctly.",
        ErrorKind::InvalidRequest => "The request was refused.",
        ErrorKind::ContextWindow => "The conversation is too long for the model.",
        ErrorKind::ContentFilter => "The request was refused by the model's safety system.",
        ErrorKind::RateLimited | ErrorKind::Overloaded => {
            "There are too many requests at the moment. Please try again later."
        }
        ErrorKind::Timeout => "The answer took too long.",
        ErrorKind::Server | ErrorKind::Connection | ErrorKind::Protocol => {
            "The model could not be reached. Please try again."
        }
        ErrorKind::Truncated => "The answer broke off.",
        ErrorKind::TooLarge => "Something in the request is too large.",
        ErrorKind::Tool => "A tool failed.",
        ErrorKind::Cancelled => "The run was cancelled.",
        ErrorKind::Halted => "The run was stopped.",
        ErrorKind::Conflict => "There is nothing to resume: it was answered, or it has expired.",
        _ => "Something went wrong.",
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
            .field("state_limit", state_limit)
            .field("policy", policy)
            .field("keep_alive", keep_alive)
            .field("keep_headers", keep_headers)
            .field("shutdown", shutdown)
            .finish_non_exhaustive()
    }
}
