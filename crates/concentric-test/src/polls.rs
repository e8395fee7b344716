use futures_util::Stream;
use pin_project_lite::pin_project;
use std::{
    future::{Future, poll_fn},
    pin::{Pin, pin},
    task::{Context, Poll, Waker},
};

pin_project! {
    /// A future or stream that polls the inner one twice per poll: first with a no-op waker, then
    /// with the task's waker.
    ///
    /// The inner one must tolerate spurious polls and wake the waker of its last poll. One that
    /// keeps its first waker, or registers none, is never woken: run the test with
    /// [`watched`](crate::watched).
    ///
    /// ```
    /// use concentric_core::{AgentLayer, ChatRequest, Error};
    /// use concentric_test::{Pace, ScriptedModel, ScriptedTools, Spurious, watched};
    /// use futures_util::StreamExt;
    /// use tower::{Layer, ServiceExt};
    ///
    /// let events = watched(async {
    ///     let model = ScriptedModel::new().paced(Pace::NextTick).text("Hello!");
    ///     let agent = AgentLayer::new(ScriptedTools::new()).layer(model);
    ///     let answer = Spurious::new(agent.oneshot(ChatRequest::user("hi"))).await?;
    ///     Ok::<_, Error>(Spurious::new(answer.body).count().await)
    /// });
    /// assert_eq!(events.unwrap(), 4);
    /// ```
    #[derive(Clone, Copy, Debug)]
    #[must_use = "futures and streams do nothing unless polled"]
    pub struct Spurious<T> {
        #[pin]
        inner: T,
    }
}

impl<T> Spurious<T> {
    /// Wraps a future or a stream.
    pub const fn new(inner: T) -> Self {
        Self { inner }
    }
}

impl<F> Future for Spurious<F>
where
    F: Future,
{
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let mut inner = self.project().inner;
        match inner.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Pending => inner.poll(cx),
            ready @ Poll::Ready(_) => ready,
        }
    }
}

impl<S> Stream for Spurious<S>
where
    S: Stream,
{
    type Item = S::Item;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<S::Item>> {
        let mut inner = self.project().inner;
        match inner
            .as_mut()
            .poll_next(&mut Context::from_waker(Waker::noop()))
        {
            Poll::Pending => inner.poll_next(cx),
            ready @ Poll::Ready(_) => ready,
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.inner.size_hint()
    }
}

/// Drops a future at each of its await points: before its first poll, at its first `Pending`, and
/// so on until it completes. Returns the number of drops.
///
/// `make` creates the future anew each time. `check` is called after each drop, and after
/// completion, with the number of polls.
///
/// ```
/// use concentric_core::{AgentLayer, ChatRequest, Error};
/// use concentric_test::{Pace, ScriptedModel, ScriptedTools, drop_at_each_wait};
/// use tower::{Layer, ServiceExt};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let model = ScriptedModel::new().paced(Pace::NextTick).text("Hello!").repeat();
/// let agent = AgentLayer::new(ScriptedTools::new()).layer(model.clone());
/// let run = || {
///     let agent = agent.clone();
///     async move { agent.oneshot(ChatRequest::user("hi")).await?.text().await }
/// };
/// let drops = drop_at_each_wait(run, async |_| assert_eq!(model.live(), 0)).await;
/// assert!(drops > 1);
/// # }
/// ```
///
/// # Panics
///
/// Panics if the future is still pending after 10,000 polls.
#[expect(clippy::panic, reason = "an assertion")]
pub async fn drop_at_each_wait<F>(
    mut make: impl FnMut() -> F,
    mut check: impl AsyncFnMut(usize),
) -> usize
where
    F: Future,
{
    for polls in 0..10_000 {
        let has_ended = {
            let mut future = pin!(make());
            let mut left = polls;
            let ended = poll_fn(|cx| {
                if left == 0 {
                    return Poll::Ready(false);
                }
                left -= 1;
                match future.as_mut().poll(cx) {
                    Poll::Ready(_) => Poll::Ready(true),
                    // At the last await point it is dropped at once.
                    Poll::Pending if left == 0 => Poll::Ready(false),
                    Poll::Pending => Poll::Pending,
                }
            });
            ended.await
        };
        check(polls).await;
        if has_ended {
            return polls;
        }
    }
    panic!("the future still waits after 10,000 polls")
}
