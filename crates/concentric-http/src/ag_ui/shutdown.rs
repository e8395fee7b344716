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

/// Ends a server's streams in an orderly way: no stream is cut off without its terminal event.
///
/// Give a clone to every [`AgUiLayer`](super::AgUiLayer) of the process.
///
/// | when | |
/// |---|---|
/// | [`begin`](Self::begin) was called | a new request is answered with `503`, `Retry-After` and a JSON error; streams go on |
/// | the grace is over | the runs are cancelled ([`CancelReason::Shutdown`]), and end with `RUN_FINISHED`, outcome `cancelled` |
/// | a run has not ended 5 seconds later | it is dropped, and its stream ends with the same event |
/// | no stream is left | [`drained`](Self::drained) resolves |
///
/// Time is told by the runs' clock, and only while a stream is read: one whose client has stopped
/// reading holds [`drained`](Self::drained) up until its connection is closed, so put a limit on
/// the wait.
///
/// ```no_run
/// use concentric_core::BoxModel;
/// use concentric_http::ag_ui::{AgUiLayer, Shutdown};
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
///             // From here on axum accepts no connection, and waits for those that are open.
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
    // Cancelled when there is no grace, or no more of it.
    over: CancellationToken,
    grace: OnceLock<Duration>,
    streams: TaskTracker,
}

impl Shutdown {
    /// Creates a handle; nothing shuts down yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Begins to shut down: running streams may go on for `grace`.
    ///
    /// Called a second time with no grace at all, it ends the runs at once; otherwise the first
    /// call counts.
    pub fn begin(&self, grace: Duration) {
        let _ = self.0.grace.set(grace);
        self.0.streams.close();
        self.0.begun.cancel();
        if grace.is_zero() {
            self.0.over.cancel();
        }
    }

    /// Whether it has begun.
    pub fn is_begun(&self) -> bool {
        self.0.begun.is_cancelled()
    }

    /// How many streams there are.
    pub fn streams(&self) -> usize {
        self.0.streams.len()
    }

    /// Resolves when it has begun and no stream is left.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn drained(&self) {
        self.0.streams.wait().await;
    }

    /// Counts a stream; `None` if it comes too late.
    pub(super) fn enter(&self) -> Option<Guard> {
        // Counts first, so that `drained` does not miss a stream that looked before `begin`.
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

impl fmt::Debug for Shutdown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shutdown")
            .field("begun", &self.is_begun())
            .field("streams", &self.streams())
            .finish()
    }
}

/// How long a cancelled run may take to end.
const LINGER: Duration = Duration::from_secs(5);

/// One stream, which is counted until this is dropped.
pub(super) struct Guard {
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
    /// A sleep is not polled again.
    Late,
}

impl Guard {
    /// Cancels the run when the grace is over; resolves when the run is to be dropped.
    pub(super) fn poll_over(&mut self, context: &Context, cx: &mut task::Context<'_>) -> Poll<()> {
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
