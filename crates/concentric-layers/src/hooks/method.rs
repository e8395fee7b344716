use super::failures::report;
use concentric_core::{BoxError, Context, Error, ErrorKind, Str, method::caught};
use std::{
    future::{Future, poll_fn},
    pin::pin,
    task::Poll,
    time::Duration,
};

/// How long a method may take whose run does not depend on it.
const LIMIT: Duration = Duration::from_secs(30);

/// When a method is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Until {
    /// When it has taken too long.
    Limit,
    /// The same, and when the run is to stop.
    Stopped,
}

/// Calls a method that can change nothing any more, and tells what it failed with.
pub(super) async fn tell<F>(
    hook: &str,
    method: &'static str,
    context: &Context,
    until: Until,
    call: impl FnOnce() -> F,
) where
    F: Future<Output = Result<(), BoxError>>,
{
    let given_up = async {
        match until {
            Until::Limit => context.environment().clock().sleep(LIMIT).await,
            Until::Stopped => {
                let left = context.remaining().map_or(LIMIT, |left| left.min(LIMIT));
                // It is cancelled, or the time is up.
                let _ = context.sleep(left).await;
            }
        }
    };
    let error = match caught(|| unless(given_up, call())).await {
        Ok(Some(Ok(()))) => return,
        Ok(Some(Err(error))) => Error::from(error),
        Ok(None) if until == Until::Stopped && is_stopped(context) => return,
        Ok(None) => Error::new(
            ErrorKind::Timeout,
            Str::from_static("it did not come to an end, and was given up"),
        ),
        Err(panic) => panic.error(),
    };
    report(hook, method, error, context);
}

/// Resolves when the run is to stop.
pub(super) async fn stopped(context: &Context) {
    match context.remaining() {
        None => context.cancelled().await,
        // It is cancelled, or the time is up.
        Some(left) => {
            let _ = context.sleep(left).await;
        }
    }
}

fn is_stopped(context: &Context) -> bool {
    context.is_cancelled() || context.remaining().is_some_and(|left| left.is_zero())
}

/// Waits for `future`; `None`, if `end` comes first.
pub(super) async fn unless<F>(end: impl Future<Output = ()>, future: F) -> Option<F::Output>
where
    F: Future,
{
    let (mut future, mut end) = (pin!(future), pin!(end));
    poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => end.as_mut().poll(cx).map(|()| None),
    })
    .await
}
