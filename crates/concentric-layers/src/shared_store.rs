//! Requests to the store of a limit that processes share.

use concentric_core::{
    Str,
    context::{Environment, Sleep},
};
use std::{future::poll_fn, pin::pin, task::Poll};

/// A random id, of a process or a reservation.
pub(crate) fn random_id(environment: &Environment) -> Str {
    let half = || environment.random().next_u64();
    format!("{:016x}{:016x}", half(), half()).into()
}

/// Waits for `work`, and drops it when `late` resolves.
pub(crate) async fn within<T>(mut late: Sleep, work: impl Future<Output = T>) -> Option<T> {
    let mut work = pin!(work);
    poll_fn(|cx| match work.as_mut().poll(cx) {
        Poll::Ready(done) => Poll::Ready(Some(done)),
        Poll::Pending => late.as_mut().poll(cx).map(|()| None),
    })
    .await
}
