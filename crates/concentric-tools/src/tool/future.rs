use super::guard::Guard;
use concentric_core::{BoxTool, Error, ToolCall, ToolOutcome, service::BoxFuture};
use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};
use tower::util::Oneshot;

/// Response future for [`Tool`](super::Tool).
///
/// # Cancel safety
///
/// Dropping the future drops the running function.
#[must_use = "futures do nothing unless you `.await` or poll them"]
pub struct ToolFuture(pub(super) State);

pub(super) enum State {
    /// The outcome, without a function to run. Taken when the future resolves.
    Answered(Option<Result<ToolOutcome, Error>>),
    /// The function runs.
    Guarded(Guard),
    /// The tool's own layers run. Boxed, since few tools have any.
    Layered(Box<Oneshot<BoxTool, ToolCall>>),
    /// The call runs with its effect recorded in the ledger.
    Written(BoxFuture<ToolOutcome>),
}

impl ToolFuture {
    pub(crate) const fn answered(outcome: ToolOutcome) -> Self {
        Self(State::Answered(Some(Ok(outcome))))
    }

    pub(crate) fn boxed(
        future: impl Future<Output = Result<ToolOutcome, Error>> + Send + 'static,
    ) -> Self {
        Self(State::Written(Box::pin(future)))
    }

    pub(crate) const fn failed(error: Error) -> Self {
        Self(State::Answered(Some(Err(error))))
    }
}

impl Future for ToolFuture {
    type Output = Result<ToolOutcome, Error>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            State::Guarded(guard) => Pin::new(guard).poll(cx),
            State::Layered(call) => Pin::new(call).poll(cx),
            State::Written(call) => call.as_mut().poll(cx),
            State::Answered(answer) => answer.take().map_or(Poll::Pending, Poll::Ready),
        }
    }
}

concentric_core::opaque_debug!(ToolFuture);
