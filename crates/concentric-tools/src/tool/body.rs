use super::blocking::StartOnce;
use crate::{IntoOutcome, ToolError, arguments::Checks};
use concentric_core::{ToolCall, ToolCallPart, ToolOutcome};
use pin_project_lite::pin_project;
use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

/// Executes the calls of a tool.
pub(super) trait Body: Send + Sync + 'static {
    /// Starts a call after checking its arguments with `checks`; `None` if they have passed them.
    fn start(&self, call: ToolCall, checks: Option<&Checks>) -> Started;

    /// Checks that the arguments of a call pass `checks` and decode to the function's type. Returns
    /// the outcome for the model if the arguments are invalid.
    fn validate(&self, call: &ToolCallPart, checks: &Checks) -> Result<(), ToolOutcome>;
}

/// A call that was started or refused.
pub(super) enum Started {
    /// Refused because of its arguments, with this outcome.
    Refused(ToolOutcome),
    /// Runs in the polling task.
    Running(Work),
    /// Runs on another thread, once one is free.
    OnThread(Work, Arc<StartOnce>),
}

/// A function's work, erased: a toolset contains tools of many types.
pub(super) type Work = Pin<Box<dyn Future<Output = Result<ToolOutcome, ToolError>> + Send>>;

impl Started {
    pub(super) fn new<F>(work: F) -> Self
    where
        F: Future<Output: IntoOutcome> + Send + 'static,
    {
        Self::Running(Box::pin(Outcome { work }))
    }

    pub(super) fn on_thread<F>(work: F, start: Arc<StartOnce>) -> Self
    where
        F: Future<Output: IntoOutcome> + Send + 'static,
    {
        Self::OnThread(Box::pin(Outcome { work }), start)
    }
}

pin_project! {
    struct Outcome<F> {
        #[pin]
        work: F,
    }
}

impl<F> Future for Outcome<F>
where
    F: Future<Output: IntoOutcome>,
{
    type Output = Result<ToolOutcome, ToolError>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.project().work.poll(cx).map(IntoOutcome::into_outcome)
    }
}
