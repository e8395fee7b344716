use concentric_core::{
    panic::{CaughtPanic, catch, caught},
    store::{StoreError, StoreFuture},
};
use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

/// Calls a store, and converts a panic into an error.
pub(crate) async fn stored<T>(call: impl FnOnce() -> StoreFuture<T>) -> Result<T, StoreError> {
    caught(call).await.unwrap_or_else(|panic| {
        tracing::error!(panic = panic.text(), "a store panicked");
        Err(StoreError::failed("the store panicked"))
    })
}

/// Formats a value of foreign code for the log.
pub(crate) fn text(text: &dyn fmt::Display) -> String {
    catch(|| text.to_string()).unwrap_or_else(|_| "a value whose `Display` panicked".to_owned())
}

/// A future whose panics are caught when it is polled or dropped.
///
/// The inner future is dropped as soon as it completes.
pub(crate) struct Caught<F>(Option<F>);

impl<F> Caught<F> {
    pub(crate) const fn new(future: F) -> Self {
        Self(Some(future))
    }

    pub(crate) fn clear(&mut self) {
        if let Some(future) = self.0.take() {
            // No caller is left to receive the panic.
            let _ = catch(|| drop(future));
        }
    }
}

impl<F> Future for Caught<F>
where
    F: Future + Unpin,
{
    type Output = Result<F::Output, CaughtPanic>;

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
