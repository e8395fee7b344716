use std::{
    fmt,
    marker::PhantomData,
    sync::Arc,
    task::{self, Poll},
    time::Duration,
};

use concentric_core::{
    BoxModel, ChatRequest, ChatResponse, Context, Environment, Error, EventStream, ModelService,
    OpenRound, Phase,
    capability::{Declares, Encloses, InLoop, Outside, Region, SessionTurn, StoredRun},
    service::{BoxFuture, SharedModel},
    store::EventStore,
};
use tower_layer::Layer;
use tower_service::Service;

use super::stream::Translator;
use crate::run::{Hub, Limits, LogBody, Offer, Shared, Translate, Writer};

/// [`Layer`] that keeps the events of runs in memory, so that clients can join them ([`EventLog`]).
///
/// A client whose connection is lost continues the stream of its run from the last event that it has, and any
/// client of the tenant can follow a run. [`Threads`](crate::ag_ui::Threads) serves the events:
///
/// ```no_run
/// use axum::Router;
/// use concentric_core::{AgentLayer, BoxModel, NoTools};
/// use concentric_http::ag_ui::{AgUiLayer, EventLogLayer, Threads};
/// use concentric_layers::{DetachLayer, SuspendLayer};
/// use concentric_store::SqliteStore;
/// use std::sync::Arc;
/// use tower::ServiceBuilder;
///
/// fn app(model: BoxModel, store: SqliteStore) -> Router {
///     let log = EventLogLayer::new();
///     let agent = ServiceBuilder::new()
///         .layer(AgUiLayer::new())
///         .layer(DetachLayer::new())
///         .layer(log.clone())
///         .layer(SuspendLayer::new(Arc::new(store.clone())))
///         .layer(AgentLayer::new(NoTools))
///         .service(model);
///     let threads = Threads::new().runs(store).events(&log);
///     Router::new()
///         .route_service("/agent", agent)
///         .nest_service("/agent/threads", threads)
/// }
/// # let _ = app;
/// ```
///
/// Services created by a layer and its clones share the logs. Setting an option on a clone separates it from
/// the original, without logs.
///
/// # When
///
/// | event | effect |
/// |---|---|
/// | a run starts | its log is known by its tenant, thread and run id, unless a live run has the same |
/// | the [`AgUiLayer`](crate::ag_ui::AgUiLayer) around it sends events | they are those of the log, with the SSE `id` of each: its number, and the tag of the log |
/// | no `AgUiLayer` is around it, as for a run that a `Sweeper` resumes | the log begins with `RUN_STARTED` and a `MESSAGES_SNAPSHOT`, and with the round that the run resumes; its `runId` is that of the request that started the run |
/// | a client reads slowly, or not at all | the run continues: with an `AgUiLayer`, a task drives it from its response head on |
/// | a reader lacks events that are removed | its stream ends with `RUN_ERROR`, `code` `events_lost`, which has no id; the run continues |
/// | the run ends, fails or panics | the log has its terminal event, and is kept for a while |
/// | the body of the run is dropped before its end | the log ends with `RUN_FINISHED`, outcome `cancelled` |
/// | the first content was not received yet, and the run fails | the log has `RUN_ERROR`; it is removed if the client receives an error status |
///
/// # Several processes
///
/// A log is in the memory of the process that drives its run. With [`shared`](Self::shared), it is copied to a store that
/// the processes share, such as the `RedisStore` of `concentric-store`, and a client that reaches another process reads it
/// there: with the same ids and the same responses, without a gap or a repetition.
///
/// ```no_run
/// use concentric_http::ag_ui::EventLogLayer;
/// use concentric_store::{Fault, Options, RedisStore};
///
/// # async fn open() -> Result<EventLogLayer, Fault> {
/// // The events can be lost, so a server with its default settings will do.
/// let options = Options::new().accept_loss(true);
/// let events = RedisStore::open_with("redis://127.0.0.1:6379/0", options).await?;
/// let log = EventLogLayer::new().shared(events);
/// # Ok(log)
/// # }
/// ```
///
/// | event | effect |
/// |---|---|
/// | a run has events | a task writes them to the store, with those of the next 50 milliseconds, in batches of about 256 KiB |
/// | a client of another process reads them | it receives them about 0.1 seconds later: its process reads the log every 100 milliseconds, until the log or the connection ends. Readers of the process that drives the run do not wait |
/// | the run has no events for 10 seconds | the writer shows that it is alive; a log without a sign for 30 seconds is not read any more |
/// | another process resumes the run | the log begins again with its events. Streams of the former log end with `stale_claim`, and writes of the former process are refused |
/// | the store is slow, fails or panics | the run is not affected: the log in memory keeps what is not written, up to 3 times its limits, and is copied when the store works again, until 30 seconds after the end of the run. One warning a minute is logged |
/// | the store lacks events, or fails for 30 seconds | streams of other processes end with `events_lost` |
/// | the thread is [deleted](crate::ag_ui::Threads) | its logs are removed from the store. A run that another process drives is not cancelled by that, but fails at its next write to the deleted conversation |
/// | the store fails, or does not respond in 2 seconds, when a client joins | the client is answered as if the log were not in the store; of a run that is not known to have ended, with `204` and `Retry-After`. One warning a minute is logged |
/// | two processes drive a run, one after the other | the later one has the log, by their clocks, whenever the former one reaches the store. The clocks must agree as far as runs are taken over quickly |
/// | the process ends | the last 50 milliseconds of a run are not copied if its runtime does not wait for them |
///
/// The limits and the retention are those of the store; a log in the store may have more or fewer events than the one in
/// memory. The store needs the ids of the tenants, and sees all content of the events.
///
/// The console shows the runs of its own process, and the `DELETE` request of `useChat` stops those.
///
/// # Place in the stack
///
/// Inside a `DetachLayer`, so that the events of a run without its client are kept, and outside all layers that
/// decide what a consumer may see, such as a guard: the readers receive what this layer receives. Of a run with
/// an `AgUiLayer`, layers outside receive the response head and the terminal item only.
///
/// Inside itself, a `SuspendLayer`, a session or a loop, the first call fails with
/// [`Configuration`](concentric_core::ErrorKind::Configuration). In an agent that is used as a tool, and for a
/// run without a thread id, the layer has no effect.
///
/// # Limits
///
/// A log has at most 256 readers at a time, in each process. Without [`shared`](Self::shared), a client that is sent to
/// another process is answered with `204` while the run is stored.
///
/// # Backpressure
///
/// Forwards the readiness of the inner service. The run of a client is not slowed down by its readers; without an
/// `AgUiLayer` around it, it is driven by the polls of its consumer.
///
/// # Cost
///
/// Each event is written once, to a block that all readers share; it is not allocated by itself. Each run has a box for
/// its future and one for its body, and a task. Without this layer, a run of an `AgUiLayer` has three more small
/// allocations, and its events cost nothing.
///
/// With [`shared`](Self::shared), each run has a second task, and one call of the store at its begin and up to 20 a second
/// while it has events, which share the memory of the log; each reader in another process, 10 a second. A short run has
/// three calls: its begin, its first events, and the rest of them.
#[derive(Clone)]
pub struct EventLogLayer {
    hub: Arc<Hub>,
}

impl EventLogLayer {
    /// Creates a layer that keeps the last 4,096 events of a run, up to 1 MiB, until 5 minutes after its end,
    /// and 256 MiB of all runs.
    pub fn new() -> Self {
        let limits = Limits {
            events: 4096,
            bytes: 1 << 20,
            total: 256 << 20,
            behind: (8, 3),
            linger: Duration::from_secs(300),
        };
        Self::of(limits, Environment::system(), None)
    }

    fn of(limits: Limits, environment: Environment, shared: Option<Arc<Shared>>) -> Self {
        Self {
            hub: Arc::new(Hub::new(limits, environment, shared)),
        }
    }

    fn with(self, set: impl FnOnce(&mut Limits)) -> Self {
        let mut limits = self.hub.limits.clone();
        set(&mut limits);
        Self::of(
            limits,
            self.hub.environment.clone(),
            self.hub.shared.clone(),
        )
    }

    /// Sets the number of events that are kept of a run; the default is 4,096. With 0, only the newest ones are
    /// kept, which were written together.
    #[must_use]
    pub fn events(self, max: usize) -> Self {
        self.with(|limits| limits.events = max)
    }

    /// Sets the size of the events that are kept of a run, in bytes; the default is 1 MiB.
    ///
    /// Events that a connected reader lacks are kept up to 3 times this limit, and 8 times that of the
    /// [events](Self::events).
    #[must_use]
    pub fn bytes(self, max: usize) -> Self {
        self.with(|limits| limits.bytes = max)
    }

    /// Sets the size of the events of all runs, in bytes; the default is 256 MiB.
    ///
    /// At the limit, the events of the run that ended first are removed; if no run has ended, the oldest ones
    /// of the run that continues.
    #[must_use]
    pub fn total(self, max: usize) -> Self {
        self.with(|limits| limits.total = max)
    }

    /// Sets how long events are kept after the end of their run; the default is 5 minutes.
    #[must_use]
    pub fn linger(self, time: Duration) -> Self {
        self.with(|limits| limits.linger = time)
    }

    /// Sets the source of time and randomness of the logs; the default is the system.
    #[must_use]
    pub fn environment(self, environment: Environment) -> Self {
        Self::of(
            self.hub.limits.clone(),
            environment,
            self.hub.shared.clone(),
        )
    }

    /// Sets the store to which the events are copied, so that clients of other processes join the runs; by default
    /// none. See [Several processes](#several-processes).
    #[must_use]
    pub fn shared(self, store: impl EventStore) -> Self {
        let shared = Arc::new(Shared::new(Arc::new(store)));
        let (limits, environment) = (self.hub.limits.clone(), self.hub.environment.clone());
        Self::of(limits, environment, Some(shared))
    }

    pub(crate) const fn hub(&self) -> &Arc<Hub> {
        &self.hub
    }
}

fn without_client(run: &Context) -> Box<dyn Translate> {
    Box::new(Translator::without_client(run))
}

impl Default for EventLogLayer {
    fn default() -> Self {
        Self::new()
    }
}

/// The region inside the layer, where the events of a run are already kept.
impl Region for EventLogLayer {}

impl Declares for EventLogLayer {
    type Capabilities = (
        Encloses<Self>,
        Outside<Self>,
        Outside<SessionTurn>,
        Outside<StoredRun>,
        Outside<InLoop>,
    );
}

// The inner service is erased here, because its bodies are moved into tasks.
impl<S: SharedModel> Layer<S> for EventLogLayer {
    type Service = EventLog<S>;

    fn layer(&self, inner: S) -> Self::Service {
        EventLog {
            inner: BoxModel::new(inner),
            hub: Arc::clone(&self.hub),
            erased: PhantomData,
        }
    }
}

impl fmt::Debug for EventLogLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (logs, bytes) = self.hub.counts();
        f.debug_struct("EventLogLayer")
            .field("limits", &self.hub.limits)
            .field("logs", &logs)
            .field("bytes", &bytes)
            .finish()
    }
}

/// Middleware that keeps the events of runs in memory.
pub struct EventLog<S> {
    inner: BoxModel,
    hub: Arc<Hub>,
    // For the description of the stack.
    erased: PhantomData<fn() -> S>,
}

impl<S> Clone for EventLog<S> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            hub: Arc::clone(&self.hub),
            erased: PhantomData,
        }
    }
}

impl<S: ModelService> Service<ChatRequest> for EventLog<S> {
    type Response = ChatResponse<EventStream>;
    type Error = Error;
    type Future = BoxFuture<ChatResponse<EventStream>>;

    fn poll_ready(&mut self, cx: &mut task::Context<'_>) -> Poll<Result<(), Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: ChatRequest) -> Self::Future {
        let context = &mut request.context;
        // The events of an agent that is used as a tool are part of its caller's run.
        if context.phase() == Phase::Run && context.parent().is_some() {
            return self.inner.call(request);
        }
        if let Err(fault) = context.enter::<EventLogLayer>() {
            return Box::pin(async move { Err(fault.into()) });
        }
        // Clients find a run by its thread.
        if context.thread_id().is_none() {
            return self.inner.call(request);
        }
        // Removed, since the log must not contain itself.
        let offer = context.extensions_mut().remove::<Offer>();
        let (run, transcript) = (context.clone(), request.transcript.clone());
        let (hub, call) = (Arc::clone(&self.hub), self.inner.call(request));
        Box::pin(async move {
            let writer = Writer::begin(&hub, offer.as_ref(), &run, without_client);
            drop((hub, offer, run));
            let Some(mut writer) = writer else {
                return call.await;
            };
            match call.await {
                Ok(response) => {
                    writer.head(&response.head, &response.extensions);
                    if !writer.has_client() {
                        writer.snapshot(&transcript, response.extensions.get::<OpenRound>());
                    }
                    Ok(response.map_body(|body| EventStream::new(LogBody::new(body, writer))))
                }
                Err(error) => {
                    writer.fail(&error);
                    Err(error)
                }
            }
        })
    }
}

impl<S> fmt::Debug for EventLog<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventLog")
            .field("inner", &self.inner)
            .finish_non_exhaustive()
    }
}
