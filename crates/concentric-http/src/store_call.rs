//! Calls of stores, which are the host's code.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    task::Poll,
    time::Duration,
};

use concentric_core::{
    Environment,
    panic::{CaughtPanic, caught},
    store::StoreError,
};

/// The result of a call of a store, which may panic, or not end within `limit`.
pub(crate) async fn store_call<T, F>(
    environment: &Environment,
    limit: Duration,
    method: impl FnOnce() -> F,
) -> Result<T, StoreError>
where
    F: Future<Output = Result<T, StoreError>>,
{
    match within(environment, limit, caught(method)).await {
        Some(called) => called.unwrap_or_else(|panic| Err(panicked(&panic))),
        None => Err(not_answered()),
    }
}

/// The error of a store that has not answered in time.
pub(crate) fn not_answered() -> StoreError {
    StoreError::failed("the store did not answer in time")
}

/// The error of a store that has panicked, which is logged.
pub(crate) fn panicked(panic: &CaughtPanic) -> StoreError {
    tracing::error!(panic = panic.text(), "a store panicked");
    StoreError::failed("the store panicked")
}

/// Waits for a future, but not for longer than `limit`.
pub(crate) async fn within<F: Future>(
    environment: &Environment,
    limit: Duration,
    future: F,
) -> Option<F::Output> {
    let (mut future, mut sleep) = (pin!(future), None);
    poll_fn(|cx| {
        if let Poll::Ready(output) = future.as_mut().poll(cx) {
            return Poll::Ready(Some(output));
        }
        let sleep = sleep.get_or_insert_with(|| environment.clock().sleep(limit));
        sleep.as_mut().poll(cx).map(|()| None)
    })
    .await
}
