use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::{Arc, OnceLock},
    task::{self, Poll, ready},
    time::Duration,
};

use concentric_core::{CancelReason, Context, context::Sleep};
use tokio_util::{
    sync::{CancellationToken, WaitForCancellationFutureOwned},
    task::{TaskTracker, task_tracker::TaskTrackerToken},
};

use crate::refused::Refused;

/// A handle for graceful shutdown: every open stream ends with its terminal event.
///
/// Pass a clone to every service of the process, such as [`AgUiLayer`](crate::ag_ui::AgUiLayer).
///
/// | event | effect |
/// |---|---|
/// | [`begin`](Self::begin) is called | new requests are answered with `503`, `Retry-After` and a JSON error; open streams continue |
/// | the grace period ends | the runs are cancelled ([`CancelReason::Shutdown`]), and end as cancelled |
/// | a run has not ended 5 seconds later | the run is dropped, and its stream ends in the same way |
/// | the last stream ends | [`drained`](Self::drained) resolves |
///
/// Times are measured by the clock of the runs, and only while a stream is polled. A client that
/// has stopped reading therefore delays [`drained`](Self::drained) until its connection is closed, or
/// the OpenAI-compatible server drops its run: use a timeout around it.
///
/// ```no_run
/// use concentric_core::BoxModel;
/// use concentric_http::{Shutdown, ag_ui::AgUiLayer};
/// use std::time::Duration;
/// use tower_layer::Layer;
///
/// async fn serve(agent: BoxModel) -> std::io::Result<()> {
///     let shutdown = Shutdown::new();
///     let agent = AgUiLayer::new().shutdown(shutdown.clone()).layer(agent);
///     let app = axum::Router::new().route_service("/agent", agent);
///     let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
///     axum::serve(listener, app)
///         .with_graceful_shutdown(async move {
///             // Your signal: ctrl-c, SIGTERM.
///             std::future::pending::<()>().await;
///             shutdown.begin(Duration::from_secs(20));
///             // Now axum stops accepting connections, and waits for the open ones.
///         })
///         .await
/// }
/// # let _ = serve;
/// ```
#[derive(Clone, Default)]
pub struct Shutdown(Arc<Inner>);

#[derive(Default)]
struct Inner {
    begun: CancellationToken,
    // Cancelled by `begin` with a zero grace.
    over: CancellationToken,
    grace: OnceLock<Duration>,
    streams: TaskTracker,
}

impl Shutdown {
    /// Creates a handle, without beginning the shutdown.
    pub fn new() -> Self {
        Self::default()
    }

    /// Begins the shutdown: open streams may continue for `grace`.
    ///
    /// A second call with a zero grace cancels the runs at once; any other further call has no
    /// effect.
    pub fn begin(&self, grace: Duration) {
        let _ = self.0.grace.set(grace);
        self.0.streams.close();
        self.0.begun.cancel();
        if grace.is_zero() {
            self.0.over.cancel();
        }
    }

    /// Returns whether the shutdown has begun.
    pub fn is_begun(&self) -> bool {
        self.0.begun.is_cancelled()
    }

    /// Returns the number of open streams, and of background responses that have not ended.
    pub fn streams(&self) -> usize {
        self.0.streams.len()
    }

    /// Resolves when the shutdown has begun and the last stream has ended.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn drained(&self) {
        self.0.streams.wait().await;
    }

    /// Registers a stream; returns `None` if the shutdown has begun.
    fn enter(&self) -> Option<Guard> {
        // Registers before the check, so that `drained` cannot miss a stream that checks just
        // before `begin`.
        let stream = self.0.streams.token();
        (!self.is_begun()).then(|| Guard {
            shutdown: self.clone(),
            stage: Stage::Running {
                begun: Box::pin(self.0.begun.clone().cancelled_owned()),
            },
            _stream: stream,
        })
    }
}

/// Registers a stream; `None` if the server has no [`Shutdown`].
///
/// # Errors
///
/// The shutdown has begun.
pub(crate) fn enter(shutdown: Option<&Shutdown>) -> Result<Option<Guard>, Refused> {
    let guard = shutdown.map(|it| it.enter().ok_or_else(Refused::shutting_down));
    guard.transpose()
}

impl fmt::Debug for Shutdown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shutdown")
            .field("begun", &self.is_begun())
            .field("streams", &self.streams())
            .finish()
    }
}

/// The time that a cancelled run may take to end.
const LINGER: Duration = Duration::from_secs(5);

/// The registration of one stream, until it is dropped.
pub(crate) struct Guard {
    shutdown: Shutdown,
    stage: Stage,
    _stream: TaskTrackerToken,
}

enum Stage {
    Running {
        begun: Pin<Box<WaitForCancellationFutureOwned>>,
    },
    Grace {
        over: Pin<Box<WaitForCancellationFutureOwned>>,
        sleep: Sleep,
    },
    Cancelled {
        sleep: Sleep,
    },
    /// The run must be dropped. A separate stage, since a finished sleep must not be polled again.
    Late,
}

impl Guard {
    /// Returns whether the shutdown has begun.
    #[cfg(feature = "console")]
    pub(crate) fn is_begun(&self) -> bool {
        self.shutdown.is_begun()
    }

    /// Cancels the run when the grace period ends; resolves when the run must be dropped.
    pub(crate) fn poll_over(&mut self, context: &Context, cx: &mut task::Context<'_>) -> Poll<()> {
        let clock = context.environment().clock();
        loop {
            self.stage = match &mut self.stage {
                Stage::Running { begun } => {
                    ready!(begun.as_mut().poll(cx));
                    let inner = &self.shutdown.0;
                    Stage::Grace {
                        over: Box::pin(inner.over.clone().cancelled_owned()),
                        sleep: clock.sleep(inner.grace.get().copied().unwrap_or_default()),
                    }
                }
                Stage::Grace { over, sleep } => {
                    if over.as_mut().poll(cx).is_pending() {
                        ready!(sleep.as_mut().poll(cx));
                    }
                    context.cancel(CancelReason::Shutdown);
                    Stage::Cancelled {
                        sleep: clock.sleep(LINGER),
                    }
                }
                Stage::Cancelled { sleep } => {
                    ready!(sleep.as_mut().poll(cx));
                    Stage::Late
                }
                Stage::Late => return Poll::Ready(()),
            };
        }
    }
}
