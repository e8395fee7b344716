use super::{
    Tool,
    body::{Body, Started},
};
use crate::{
    IntoOutcome, ToolError,
    arguments::{Checks, decode_call},
};
use concentric_core::{Context, Str, ToolCall, ToolCallPart, ToolOutcome};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use std::{
    future::Future,
    marker::PhantomData,
    panic::resume_unwind,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{self, Poll, ready},
};
use tokio::task::{JoinHandle, spawn_blocking};
use tracing::Span;

/// Creates a tool from a function that blocks its thread, such as a long computation or synchronous
/// I/O.
///
/// The function runs on tokio's pool for blocking work, whose size (512 threads) limits concurrent
/// calls. See [`tool`](fn@crate::tool) for arguments and results.
///
/// # Cancel safety
///
/// A function that has started cannot be stopped: on a cancel, drop or timeout its call ends at
/// once, and the function continues in the background. The outcome of such a call is unknown,
/// unless the tool may run again. A function that still waits for a thread never starts, and its
/// call fails.
pub fn blocking_tool<A, F, R>(
    name: impl Into<Str>,
    description: impl Into<Str>,
    function: F,
) -> Tool
where
    A: DeserializeOwned + JsonSchema + Send + 'static,
    F: Fn(A) -> R + Send + Sync + 'static,
    R: IntoOutcome + 'static,
{
    blocking_tool_with_context(name, description, move |arguments, _| function(arguments))
}

/// Creates a tool from a function that blocks its thread and receives the run's [`Context`].
///
/// The function may poll [`Context::is_cancelled`] in order to stop early. See [`blocking_tool`]
/// for the rest.
pub fn blocking_tool_with_context<A, F, R>(
    name: impl Into<Str>,
    description: impl Into<Str>,
    function: F,
) -> Tool
where
    A: DeserializeOwned + JsonSchema + Send + 'static,
    F: Fn(A, Context) -> R + Send + Sync + 'static,
    R: IntoOutcome + 'static,
{
    let body = Blocking {
        function: Arc::new(function),
        arguments: PhantomData,
    };
    Tool::of_type::<A>(name.into(), description.into(), body)
}

struct Blocking<F, A> {
    function: Arc<F>,
    arguments: PhantomData<fn(A)>,
}

impl<A, F, R> Body for Blocking<F, A>
where
    A: DeserializeOwned + Send + 'static,
    F: Fn(A, Context) -> R + Send + Sync + 'static,
    R: IntoOutcome + 'static,
{
    fn start(&self, call: ToolCall, checks: Option<&Checks>) -> Started {
        let arguments = match decode_call::<A>(call.part(), checks) {
            Ok(arguments) => arguments,
            Err(outcome) => return Started::Refused(outcome),
        };
        let function = Arc::clone(&self.function);
        let start = Arc::new(StartOnce::default());
        let thread = Arc::clone(&start);
        let work = move || match thread.begin() {
            true => function(arguments, call.context).into_outcome(),
            false => Err(ToolError::new("The tool was stopped before it started.")),
        };
        Started::on_thread(OnThread::NotStarted(Some(work)), start)
    }

    fn validate(&self, call: &ToolCallPart, checks: &Checks) -> Result<(), ToolOutcome> {
        decode_call::<A>(call, Some(checks)).map(drop)
    }
}

/// Lets either the function start or its call be abandoned, but not both.
#[derive(Debug, Default)]
pub(super) struct StartOnce(AtomicBool);

impl StartOnce {
    /// Whether this is the first call: of the function's thread, or of the owner that revokes the
    /// start.
    fn is_first(&self) -> bool {
        !self.0.swap(true, Ordering::AcqRel)
    }

    fn begin(&self) -> bool {
        self.is_first()
    }

    /// Revokes the start. Returns whether the function had not started; it never will then.
    pub(super) fn revoke(&self) -> bool {
        self.is_first()
    }
}

/// Work on another thread that is spawned at the first poll.
enum OnThread<W> {
    NotStarted(Option<W>),
    Running(JoinHandle<Result<ToolOutcome, ToolError>>),
}

impl<W> Unpin for OnThread<W> {}

impl<W> Future for OnThread<W>
where
    W: FnOnce() -> Result<ToolOutcome, ToolError> + Send + 'static,
{
    type Output = Result<ToolOutcome, ToolError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> Poll<Self::Output> {
        if let Self::NotStarted(work) = &mut *self
            && let Some(work) = work.take()
        {
            let span = Span::current();
            *self = Self::Running(spawn_blocking(move || span.in_scope(work)));
        }
        let Self::Running(handle) = &mut *self else {
            return Poll::Pending;
        };
        match ready!(Pin::new(handle).poll(cx)) {
            Ok(result) => Poll::Ready(result),
            Err(error) => match error.try_into_panic() {
                Ok(panic) => resume_unwind(panic),
                Err(error) => Poll::Ready(Err(
                    ToolError::new("The tool was stopped.").with_source(error)
                )),
            },
        }
    }
}

impl<W> Drop for OnThread<W> {
    fn drop(&mut self) {
        if let Self::Running(handle) = self {
            // `abort` only stops work that still waits for a thread.
            handle.abort();
        }
    }
}
