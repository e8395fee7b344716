use std::{
    convert::Infallible,
    fmt,
    future::{Future, poll_fn},
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use concentric_core::{
    BoxModel, Environment, RunUsage, Str,
    panic::catch,
    service::SharedModel,
    store::{Decisions, RunStore, ThreadStore},
};
use http::request::Parts;
use http_body::Body;
use tokio::sync::Semaphore;
use tower::BoxError;
use tower_service::Service;

use super::{
    access::{Access, Forms},
    body::ResponseBody,
    config::Config,
    operator::Operator,
    respond::{panicked, respond},
};
use crate::{ag_ui::EventLogLayer, keep_alive::KeepAlive, shutdown::Shutdown};

/// The maximum number of streams.
const STREAMS: usize = 200;

/// Service that shows runs and pending approvals to operators, and takes their decisions.
///
/// See the [module](super) for its pages and its security.
#[derive(Clone)]
pub struct Console {
    config: Arc<Config>,
}

impl Console {
    /// Creates a console for the operators whom `find` returns, from the head of each request; `None` is answered
    /// with `403`.
    ///
    /// `find` is the host's authentication: it checks a session, a certificate or a token. It is called for each
    /// request except those of the script and the styles. A redirection to a login belongs in a layer around the
    /// console.
    pub fn authorize<F, Fut>(find: F) -> Self
    where
        F: Fn(Parts) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Option<Operator>> + Send + 'static,
    {
        Self::new(Access::new(find))
    }

    /// Creates a console for development: each request from this machine is one of `operator`.
    ///
    /// `peer` returns the address of the connection, which the server knows. Requests from other addresses, of an
    /// unknown address, or through a proxy (`Forwarded`, `Via`, `X-Forwarded-For`, `X-Forwarded-Host`,
    /// `X-Forwarded-Proto`, `X-Real-IP`) are answered with `403`.
    ///
    /// A proxy or a tunnel on this machine that adds none of these headers is not noticed: whoever reaches it is
    /// `operator`. Use [`authorize`](Self::authorize) if there may be one.
    ///
    /// ```
    /// use axum::extract::ConnectInfo;
    /// use concentric_core::store::Tenant;
    /// use concentric_http::console::{Console, Operator};
    /// use std::net::SocketAddr;
    ///
    /// let me = Operator::new("me", [Tenant::default()]).content().decide().cancel();
    /// let console = Console::loopback_only(
    ///     |request| Some(request.extensions.get::<ConnectInfo<SocketAddr>>()?.0),
    ///     me,
    /// );
    /// // Serve it with `into_make_service_with_connect_info::<SocketAddr>()`.
    /// # let _ = console;
    /// ```
    pub fn loopback_only(
        peer: impl Fn(&Parts) -> Option<SocketAddr> + Send + Sync + 'static,
        operator: Operator,
    ) -> Self {
        Self::new(Access::loopback(peer, operator))
    }

    fn new(access: Access) -> Self {
        Self {
            config: Arc::new(Config {
                access,
                hosts: Vec::new(),
                path: Str::from_static("/console"),
                title: Str::from_static("Console"),
                runs: None,
                threads: None,
                decisions: None,
                logs: None,
                cost: None,
                agent: None,
                stacks: Vec::new(),
                forms: Forms::random(),
                environment: Environment::system(),
                keep_alive: Some(Duration::from_secs(15)),
                shutdown: None,
                streams: Arc::new(Semaphore::new(STREAMS)),
            }),
        }
    }

    fn with(mut self, set: impl FnOnce(&mut Config)) -> Self {
        set(Arc::make_mut(&mut self.config));
        self
    }

    /// Adds a host name by which browsers may call the console, without a port. `localhost`, `127.0.0.1` and `[::1]`
    /// are always accepted.
    #[must_use]
    pub fn host(self, name: impl Into<Str>) -> Self {
        self.with(|config| config.hosts.push(name.into()))
    }

    /// Sets the path at which the host mounts the console, for its links; the default is `/console`. With `/`, it is
    /// at the root.
    ///
    /// The console sees the paths below it, as behind `nest_service` of axum.
    #[must_use]
    pub fn path(self, path: impl AsRef<str>) -> Self {
        let path = path.as_ref().trim_matches('/');
        let path = match path.is_empty() {
            true => Str::default(),
            false => format!("/{path}").into(),
        };
        self.with(|config| config.path = path)
    }

    /// Sets the title of the pages; the default is `Console`.
    #[must_use]
    pub fn title(self, title: impl Into<Str>) -> Self {
        self.with(|config| config.title = title.into())
    }

    /// Sets the store of the runs: that of the `SuspendLayer` of `concentric-layers`. Without it, no waiting runs are
    /// listed.
    #[must_use]
    pub fn runs(self, store: impl RunStore) -> Self {
        self.with(|config| config.runs = Some(Arc::new(store)))
    }

    /// Sets the store of the conversations: that of the `ConversationLayer` of `concentric-layers`. Without it,
    /// there are no pages of conversations.
    #[must_use]
    pub fn threads(self, store: impl ThreadStore) -> Self {
        self.with(|config| config.threads = Some(Arc::new(store)))
    }

    /// Sets the store of decisions that apply to further calls: that of `Approval::remember` of `concentric-tools`.
    /// Without it, they are not listed.
    #[must_use]
    pub fn decisions(self, store: impl Decisions) -> Self {
        self.with(|config| config.decisions = Some(Arc::new(store)))
    }

    /// Sets the log of the runs that this process drives. Without it, live runs are not listed.
    #[must_use]
    pub fn events(self, log: &EventLogLayer) -> Self {
        let logs = Arc::clone(log.hub());
        self.with(|config| config.logs = Some(logs))
    }

    /// Sets the cost of the tokens that some runs have used, as a text; `None` if it is unknown, as for a model without
    /// a price. By default, only tokens are shown. `Catalogue::cost` of `concentric-providers` knows prices.
    ///
    /// ```no_run
    /// use concentric_http::console::Console;
    ///
    /// # fn costs(console: Console) -> Console {
    /// // $2.50 per million input tokens, $10 per million output tokens.
    /// console.cost(|usage| {
    ///     let total = usage.total();
    ///     let (input, output) = (total.input_tokens()? as f64, total.output_tokens()? as f64);
    ///     Some(format!("${:.4}", (input * 2.5 + output * 10.0) / 1e6))
    /// })
    /// # }
    /// ```
    #[must_use]
    pub fn cost(self, cost: impl Fn(&RunUsage) -> Option<String> + Send + Sync + 'static) -> Self {
        self.with(|config| config.cost = Some(Arc::new(cost)))
    }

    /// Sets the agent that receives the replies: the one that serves the users, inside their endpoint. Without it,
    /// questions are shown without forms.
    ///
    /// Runs do not record which agent created them: agents with different tools have separate stores and consoles.
    #[must_use]
    pub fn replies(self, agent: impl SharedModel) -> Self {
        let agent = BoxModel::new(agent);
        self.with(|config| config.agent = Some(agent))
    }

    /// Adds the description of a stack ([`describe`](concentric_core::describe::describe)).
    ///
    /// If `name` is that of an agent, the pages of its live runs have the layers, too, and mark those that a run
    /// is in.
    #[must_use]
    pub fn stack(self, name: impl Into<Str>, description: impl Into<String>) -> Self {
        self.with(|config| config.stacks.push((name.into(), description.into())))
    }

    /// Sets the secret from which the tokens of forms are made; the default is a random one.
    ///
    /// Set it where several processes serve one console, so that each accepts the forms of the others. It must be
    /// secret and have at least 32 random bytes.
    #[must_use]
    pub fn secret(self, secret: impl AsRef<[u8]>) -> Self {
        self.with(|config| config.forms = Forms::with_secret(secret.as_ref()))
    }

    /// Sets the silence after which a comment is sent to a page that follows a run; the default is 15 seconds. `None`
    /// or zero disables comments.
    #[must_use]
    pub fn keep_alive(self, silence: impl Into<Option<Duration>>) -> Self {
        let silence = KeepAlive::silence(silence.into());
        self.with(|config| config.keep_alive = silence)
    }

    /// Sets the source of time for pages and for the runs that replies resume; the default is the system.
    #[must_use]
    pub fn environment(self, environment: Environment) -> Self {
        self.with(|config| config.environment = environment)
    }

    /// Sets the handle that ends the streams, and the runs that replies have resumed, when the server shuts down.
    #[must_use]
    pub fn shutdown(self, shutdown: Shutdown) -> Self {
        self.with(|config| config.shutdown = Some(shutdown))
    }
}

impl<RB> Service<http::Request<RB>> for Console
where
    RB: Body + Send + 'static,
    RB::Error: Into<BoxError>,
{
    type Response = http::Response<ResponseBody>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    // Always ready: a reply waits for its agent.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<RB>) -> Self::Future {
        let config = Arc::clone(&self.config);
        let mut responding = Box::pin(respond(Arc::clone(&config), request));
        // The host's authentication and the store may panic. The future is not polled again then.
        Box::pin(poll_fn(move |cx| {
            let polled = catch(|| responding.as_mut().poll(cx));
            match polled {
                Ok(polled) => polled.map(Ok),
                Err(panic) => Poll::Ready(Ok(panicked(&config, &panic))),
            }
        }))
    }
}

impl fmt::Debug for Console {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Console")
            .field("path", &self.config.path)
            .finish_non_exhaustive()
    }
}
