use std::{
    convert::Infallible,
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use concentric_core::{
    Environment,
    panic::catch,
    store::{RunStore, ThreadStore},
};
use tower_service::Service;

use super::{super::EventLogLayer, ThreadsBody, respond::respond};
use crate::{keep_alive::KeepAlive, refused::Refused, run::Hub, shutdown::Shutdown};

/// Service that lists, shows and deletes the threads of a tenant, and shows and cancels runs.
///
/// A client that has lost its connection, or its messages, reads them here. Paths are those below the mount
/// point:
///
/// ```no_run
/// use axum::Router;
/// use concentric_core::BoxModel;
/// use concentric_http::ag_ui::{AgUiLayer, Threads};
/// use concentric_store::SqliteStore;
/// use tower_layer::Layer;
///
/// fn app(agent: BoxModel, store: SqliteStore) -> Router {
///     let threads = Threads::new().threads(store.clone()).runs(store);
///     Router::new()
///         .route_service("/agent", AgUiLayer::new().layer(agent))
///         .nest_service("/agent/threads", threads)
/// }
/// # let _ = app;
/// ```
///
/// | request | response |
/// |---|---|
/// | `GET /` | `{"threads": [{"threadId", "turns", "updatedAt"}], "next"?}`: those that were written last, the newest first. `updatedAt` is in milliseconds since 1970 |
/// | `GET /?before=NEXT&limit=N` | the threads after those of the page with this `next`; at most 100, by default 50. A thread that is written meanwhile moves to the first page |
/// | `GET /THREAD` | `{"threadId", "turns", "start", "end", "messages"}`: the messages of the turns from position `start` to before `end`, which are the newest ones, and the number of all turns |
/// | `GET /THREAD?before=N`, `?after=N`, `&limit=N` | the turns before position `N`, such as `start` of a page, or those from it on, such as `end`; at most 500, by default 50, and fewer if they have more than 4 MiB. A position beyond the end is that of the end |
/// | `DELETE /THREAD` | `204`; the store [also deletes](ThreadStore::delete) the runs that it has of the thread. Then those that this process drives are cancelled, and the events of all are removed; if the store fails, nothing is changed. If the store of shared events fails, they remain until they expire, and the response is `500` |
/// | `GET /THREAD/runs` | `{"threadId", "runs": [{"runId", "status"}]}`: the runs that have not ended, of this process or stored |
/// | `GET /THREAD/runs/RUN` | `{"threadId", "runId", "status"}`, and the `lastEventId` of a run that is driven here, the interrupts of one that waits (`outcome`), and [how a run ended](#how-a-run-ended) |
/// | `GET /THREAD/runs/RUN/events` | the events of a run ([below](#joining-a-run)) |
/// | `POST /THREAD/runs/RUN/cancel` | `202`; the run is cancelled at once if it is driven here, or else [by its process](RunStore::cancel) |
/// | `HEAD`, `OPTIONS` | the headers of `GET`; the accepted methods |
///
/// A turn is a message, or an answer with the results of its tool calls. Messages have the form of the
/// protocol; one that is stored without an id has one that is made from its position.
///
/// `RUN` is the `runId` of a request. A stored run is found by that of the request that started it, also while
/// another request resumes it and when it has ended. Of several that were started with one id, the one that is driven
/// or abandoned is found, or else the newest. The `status` is one of these:
///
/// | `status` | the run |
/// |---|---|
/// | `running` | is driven by a process |
/// | `abandoned` | has lost its process, and can be resumed |
/// | `quarantined` | has ended each process that resumed it ([`RunStatus`](concentric_core::store::RunStatus)) |
/// | `waiting` | waits for replies |
/// | `ended` | has ended, and the store or its [log](EventLogLayer) still has it |
///
/// # How a run ended
///
/// A run that has ended has an `outcome` and its `metadata`, or an `error`:
///
/// | [outcome](concentric_core::Outcome) or error | response |
/// |---|---|
/// | `Completed` | `"outcome": {"type": "success"}` |
/// | `Halted`, `StepLimit`, `CallLimit` | the same, and `"metadata": {"outcome", "reason"?}`: `halted`, `step_limit` or `call_limit`, and the reason of a halt |
/// | `Aborted` | `"outcome": {"type": "cancelled"}`, `"metadata": {"reason"}`, which is `user` for a run that was withdrawn, and `expired` for one that was not resumed in time |
/// | an error | `"error": {"code"}`, its [kind](concentric_core::ErrorKind) |
///
/// The [store](Self::runs) has this for as long as it keeps the run; a run is stored
/// [before its first tools](RunStore::begin). As long as the process that has driven the run keeps its log, the
/// `outcome`, the `metadata` and the `error` are those of its terminal event, which may have more fields. Of a run
/// that was ended by an earlier release, they may be missing.
///
/// # Joining a run
///
/// With [`events`](Self::events), a client receives the events of a run after the one that it names: in the header
/// `Last-Event-ID`, or in the parameter `after`, by its `id` or its number. Without either, it receives all of
/// them. Events are numbered from 1.
///
/// | the run | response |
/// |---|---|
/// | has a log | `200`, the further events, as they come |
/// | has a log, and another one at the time of the id: the run was resumed by another process | `200`, all events, beginning with `RUN_STARTED` and a `MESSAGES_SNAPSHOT` |
/// | has a log that ended with an error, and has not ended in the store: another process continues it, or will | `204`, as without a log |
/// | has a log with 256 readers | `429`, `too_many_readers` |
/// | has a log without the next event | `410`, `events_gone`: the client reads the thread and the status |
/// | is driven by another process, or was, and its log is [shared](EventLogLayer#several-processes) | as if it were driven here; a run of an endpoint with another protocol has no shared log for this one, so the response is `204` or `404` |
/// | has no log here, and the store of shared logs fails, or does not respond in 2 seconds | `204`; with `Retry-After` if the run may have events |
/// | has ended, and the client has its last event | `204` |
/// | is stored, and has no log here or in a store that its process shares | `204`; with `Retry-After` if it may be resumed here |
/// | is unknown | `404` |
///
/// A stream ends with the terminal event of the run; with `RUN_ERROR`, `code` `events_lost`, if the client
/// reads too slowly, or the store of a shared log does not have the events or fails; or with `shutting_down`,
/// after the grace period of the [shutdown](Self::shutdown). These two have no id, nor does a `stale_claim` of
/// a shared log. After `RUN_ERROR` with another `code`, such as `stale_claim`, another process may continue the
/// run: if its status is `running` or `abandoned`, the client joins it again. The first event is not always
/// `RUN_STARTED`, so a client that checks the order of events continues the stream that it had.
///
/// # Access
///
/// The host authenticates the caller, in a layer around this service, and puts the
/// [`Tenant`](concentric_core::store::Tenant) into the extensions of the request. Threads and runs of other
/// tenants do not exist for it. A cancellation must have the content type `application/json`, even without a
/// body, so that no page of another origin can send it without a preflight request.
///
/// # Errors
///
/// Errors have the form `{"error": {"code", "message", "field"?}}`.
///
/// | status | code | cause |
/// |---|---|---|
/// | 400 | `invalid_request` | the parameter `field` is invalid |
/// | 404 | `not_found` | the path, or an id in it, is invalid |
/// | 404 | `thread_not_found` | the thread does not exist |
/// | 404 | `run_not_found` | the run has no log, and was never stored or is not kept any more |
/// | 405 | `method_not_allowed` | `Allow` has the methods |
/// | 409 | `run_waiting`, `run_ended` | a run that is not driven can't be cancelled; one that waits gets a reply with the status `cancelled` |
/// | 410 | `events_gone` | the log does not have the event after the named one |
/// | 414 | `too_large` | the query has more than 4,096 bytes |
/// | 415 | `unsupported_media_type` | a cancellation is not JSON |
/// | 429 | `too_many_readers` | 256 streams read the events of the run in this process |
/// | 500 | `internal` | the store has failed, which is logged |
/// | 503 | `shutting_down` | a stream can't begin any more |
#[derive(Clone)]
pub struct Threads {
    config: Arc<Config>,
}

/// Configuration shared by the clones of a service.
#[derive(Clone)]
pub(super) struct Config {
    pub(super) threads: Option<Arc<dyn ThreadStore>>,
    pub(super) runs: Option<Arc<dyn RunStore>>,
    pub(super) logs: Option<Arc<Hub>>,
    pub(super) environment: Environment,
    pub(super) keep_alive: Option<Duration>,
    pub(super) shutdown: Option<Shutdown>,
}

impl Threads {
    /// Creates a service that knows no threads and no runs.
    pub fn new() -> Self {
        Self {
            config: Arc::new(Config {
                threads: None,
                runs: None,
                logs: None,
                environment: Environment::system(),
                keep_alive: Some(Duration::from_secs(15)),
                shutdown: None,
            }),
        }
    }

    fn with(mut self, set: impl FnOnce(&mut Config)) -> Self {
        set(Arc::make_mut(&mut self.config));
        self
    }

    /// Sets the store of the threads, which are listed, read and deleted.
    #[must_use]
    pub fn threads(self, store: impl ThreadStore) -> Self {
        self.with(|config| config.threads = Some(Arc::new(store)))
    }

    /// Sets the store of the runs: that of the `SuspendLayer` of `concentric-layers`.
    #[must_use]
    pub fn runs(self, store: impl RunStore) -> Self {
        self.with(|config| config.runs = Some(Arc::new(store)))
    }

    /// Sets the logs of the runs that this process drives, and of [others](EventLogLayer#several-processes), which
    /// clients can [join](Self#joining-a-run).
    #[must_use]
    pub fn events(self, log: &EventLogLayer) -> Self {
        let logs = Arc::clone(log.hub());
        self.with(|config| config.logs = Some(logs))
    }

    /// Sets the silence after which a comment is sent to a client that has joined a run; the default is
    /// 15 seconds. See [`AgUiLayer::keep_alive`](crate::ag_ui::AgUiLayer::keep_alive).
    #[must_use]
    pub fn keep_alive(self, silence: impl Into<Option<Duration>>) -> Self {
        let silence = KeepAlive::silence(silence.into());
        self.with(|config| config.keep_alive = silence)
    }

    /// Sets the source of time; the default is the system.
    #[must_use]
    pub fn environment(self, environment: Environment) -> Self {
        self.with(|config| config.environment = environment)
    }

    /// Sets the handle that ends the streams when the server shuts down. Their runs are not affected.
    #[must_use]
    pub fn shutdown(self, shutdown: Shutdown) -> Self {
        self.with(|config| config.shutdown = Some(shutdown))
    }
}

impl Default for Threads {
    fn default() -> Self {
        Self::new()
    }
}

impl<RB> Service<http::Request<RB>> for Threads {
    type Response = http::Response<ThreadsBody>;
    type Error = Infallible;
    type Future = ThreadsFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<RB>) -> Self::Future {
        // No request has a body that is read.
        let (parts, _) = request.into_parts();
        ThreadsFuture {
            respond: Some(Box::pin(respond(Arc::clone(&self.config), parts))),
        }
    }
}

/// Response future for [`Threads`].
#[must_use = "futures do nothing unless you `.await` or poll them"]
pub struct ThreadsFuture {
    // Taken while it is polled, so that it is not polled again after a panic.
    respond: Option<Respond>,
}

type Respond = Pin<Box<dyn Future<Output = Result<http::Response<ThreadsBody>, Refused>> + Send>>;

impl Future for ThreadsFuture {
    type Output = Result<http::Response<ThreadsBody>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(mut respond) = self.respond.take() else {
            return Poll::Pending;
        };
        let response = match catch(|| respond.as_mut().poll(cx)) {
            Ok(Poll::Ready(response)) => response,
            Ok(Poll::Pending) => {
                self.respond = Some(respond);
                return Poll::Pending;
            }
            Err(panic) => Err(Refused::panicked(&panic)),
        };
        let refused = |refused: Refused| refused.into_response().map(ThreadsBody::whole);
        Poll::Ready(Ok(response.unwrap_or_else(refused)))
    }
}

impl fmt::Debug for Threads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Threads").finish_non_exhaustive()
    }
}

impl fmt::Debug for ThreadsFuture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ThreadsFuture").finish_non_exhaustive()
    }
}
