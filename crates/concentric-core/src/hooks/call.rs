use super::failures::report;
use crate::{context::Context, panic::caught};
use concentric_proto::{Error, ErrorKind, Str};
use std::{
    future::{Future, poll_fn},
    pin::pin,
    task::Poll,
    time::Duration,
};
use tower::BoxError;

/// The time limit of methods that the run does not depend on.
const LIMIT: Duration = Duration::from_secs(30);

/// When a method is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Until {
    /// When it exceeds the time limit.
    Limit,
    /// When it exceeds the time limit, or the run is cancelled or passes its deadline.
    Stopped,
}

/// Calls a method that cannot change the outcome, and reports its failure.
pub(super) async fn notify<F>(
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
                // Ends at the cancellation of the run or after `left`.
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
            Str::from_static("the method did not return within its time limit"),
        ),
        Err(panic) => panic.error(),
    };
    report(hook, method, error, context);
}

/// Resolves when the run is cancelled or passes its deadline.
pub(super) async fn stopped(context: &Context) {
    match context.remaining() {
        None => context.cancelled().await,
        // Ends at the cancellation of the run or after `left`.
        Some(left) => {
            let _ = context.sleep(left).await;
        }
    }
}

fn is_stopped(context: &Context) -> bool {
    context.is_cancelled() || context.remaining().is_some_and(|left| left.is_zero())
}

/// Waits for `future`. Returns `None` if `end` resolves first.
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
