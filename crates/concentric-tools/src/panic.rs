use concentric_core::{
    Str, ToolOutcome,
    method::{Panic, catch, caught},
    store::{StoreError, StoreFuture},
};
use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

/// What the model is told of a tool, or of a layer on it, that panicked; the panic's own text goes to
/// the log.
pub(crate) fn outcome(panic: &Panic, tool: &str) -> ToolOutcome {
    let text = panic.text();
    tracing::error!(tool, panic = text, "a tool, or a layer on it, panicked");
    ToolOutcome::failed(Str::from_static("The tool failed unexpectedly."))
}

/// Calls a store; its panic is a failure of it.
pub(crate) async fn stored<T>(call: impl FnOnce() -> StoreFuture<T>) -> Result<T, StoreError> {
    caught(call).await.unwrap_or_else(|panic| {
        tracing::error!(panic = panic.text(), "a store panicked");
        Err(StoreError::failed("the store panicked"))
    })
}

/// A text of foreign code, for the log.
pub(crate) fn text(text: &dyn fmt::Display) -> String {
    catch(|| text.to_string()).unwrap_or_else(|_| "a text that panicked".to_owned())
}

/// A future whose panics are caught: when it is polled, and when it is dropped.
///
/// It is dropped as soon as it is done.
pub(crate) struct Caught<F>(Option<F>);

impl<F> Caught<F> {
    pub(crate) const fn new(future: F) -> Self {
        Self(Some(future))
    }

    pub(crate) fn clear(&mut self) {
        if let Some(future) = self.0.take() {
            // Nobody is left to be told.
            let _ = catch(|| drop(future));
        }
    }
}

impl<F> Future for Caught<F>
where
    F: Future + Unpin,
{
    type Output = Result<F::Output, Panic>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(future) = &mut self.0 else {
            return Poll::Pending;
        };
        let output = match catch(|| Pin::new(future).poll(cx)) {
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready(output)) => Ok(output),
            Err(panic) => Err(panic),
        };
        self.clear();
        Poll::Ready(output)
    }
}

impl<F> Drop for Caught<F> {
    fn drop(&mut self) {
        self.clear();
    }
}
