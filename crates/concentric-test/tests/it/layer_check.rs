//! One test per mistake that the layer check detects.

use concentric_core::{
    ChatRequest, ChatResponse, Error, ErrorKind, Event, EventStream, FinishReason, Usage,
};
use concentric_layers::{Next, from_fn, inspect_events};
use concentric_test::{ScriptedModel, Strict, check_layer};
use futures_util::{FutureExt, StreamExt, future::BoxFuture, stream};
use std::{
    future::poll_fn,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};
use tower::{Layer, Service, ServiceExt, layer::layer_fn};

#[tokio::test(start_paused = true)]
async fn good_layers_pass() {
    check_layer(tower::layer::util::Identity::new()).await;
    check_layer(inspect_events(|_: &Event| {})).await;
    check_layer(tower::limit::ConcurrencyLimitLayer::new(1)).await;
    check_layer(tower::timeout::TimeoutLayer::new(Duration::from_secs(60))).await;
    check_layer(tower::buffer::BufferLayer::<ChatRequest>::new(4)).await;
}

#[tokio::test]
async fn the_check_runs_in_real_time() {
    check_layer(inspect_events(|_: &Event| {})).await;
}

/// Calls a clone of the service that it polled ready.
#[derive(Clone)]
struct CallsClone<S>(S);

impl<S> Service<ChatRequest> for CallsClone<S>
where
    S: Service<ChatRequest> + Clone,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: ChatRequest) -> S::Future {
        self.0.clone().call(request)
    }
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "called without being ready")]
async fn a_layer_that_calls_a_clone() {
    check_layer(layer_fn(CallsClone)).await;
}

/// Caches readiness, and shares it with its clones.
#[derive(Clone)]
struct ClonesReadiness<S> {
    inner: S,
    ready: bool,
}

impl<S: Service<ChatRequest>> Service<ChatRequest> for ClonesReadiness<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        if !self.ready {
            std::task::ready!(self.inner.poll_ready(cx))?;
            self.ready = true;
        }
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: ChatRequest) -> S::Future {
        self.ready = false;
        self.inner.call(request)
    }
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "called without being ready")]
async fn a_layer_whose_clone_inherits_readiness() {
    check_layer(layer_fn(|inner| ClonesReadiness {
        inner,
        ready: false,
    }))
    .await;
}

/// Is always ready, without polling the inner service.
#[derive(Clone)]
struct NeverAsks<S>(S);

impl<S: Service<ChatRequest>> Service<ChatRequest> for NeverAsks<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: ChatRequest) -> S::Future {
        self.0.call(request)
    }
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "called without being ready")]
async fn a_layer_that_ignores_inner_readiness() {
    check_layer(layer_fn(NeverAsks)).await;
}

/// Does not register its waker with the inner service.
#[derive(Clone)]
struct LosesWakeups<S>(S);

impl<S: Service<ChatRequest>> Service<ChatRequest> for LosesWakeups<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0
            .poll_ready(&mut Context::from_waker(std::task::Waker::noop()))
    }

    fn call(&mut self, request: ChatRequest) -> S::Future {
        self.0.call(request)
    }
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "an inner service that becomes ready later: the check timed out")]
async fn a_layer_that_loses_a_wakeup() {
    check_layer(layer_fn(LosesWakeups)).await;
}

/// A layer that maps the response with `f`.
fn answers<F>(
    f: F,
) -> impl Layer<
    Strict<ScriptedModel>,
    Service = impl Service<
        ChatRequest,
        Response = ChatResponse<EventStream>,
        Error = Error,
        Future = BoxFuture<'static, Result<ChatResponse<EventStream>, Error>>,
    > + Clone
              + Send
              + Sync
              + 'static,
>
where
    F: Fn(Result<ChatResponse<EventStream>, Error>) -> Result<ChatResponse<EventStream>, Error>
        + Clone
        + Send
        + Sync
        + 'static,
{
    from_fn(move |request: ChatRequest, mut next: Next| {
        let f = f.clone();
        async move { f(next.run(request).await) }.boxed()
    })
}

fn finish() -> Event {
    Event::finish(FinishReason::Stop, Usage::default())
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "an item follows the terminal item")]
async fn a_layer_that_finishes_twice() {
    check_layer(answers(|result| {
        Ok(result?.map_body(|body| EventStream::new(body.chain(stream::iter([Ok(finish())])))))
    }))
    .await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "the body ended early after `text")]
async fn a_layer_that_loses_the_finish() {
    check_layer(answers(|result| {
        Ok(result?.map_body(|body| {
            EventStream::new(
                body.filter(|item| {
                    std::future::ready(!matches!(item, Ok(event) if event.is_finish()))
                }),
            )
        }))
    }))
    .await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "the error was lost")]
async fn a_layer_that_swallows_an_error() {
    check_layer(answers(|result| {
        Ok(result?.map_body(|body| {
            EventStream::new(body.map(|item| Ok(item.unwrap_or_else(|_| finish()))))
        }))
    }))
    .await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "the layer replaced the error")]
async fn a_layer_that_replaces_an_error() {
    check_layer(answers(|result| {
        result.map_err(|_| Error::new(ErrorKind::Other, "something went wrong"))
    }))
    .await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "the layer added a finish to a body that ended early")]
async fn a_layer_that_finishes_a_truncated_response() {
    check_layer(answers(|result| {
        Ok(result?.map_body(|body| {
            EventStream::new(stream::unfold(
                (body, false),
                async |(mut body, ended)| match body.next().await {
                    _ if ended => None,
                    None => Some((Ok(finish()), (body, true))),
                    Some(item) => {
                        let ended = item.as_ref().map_or(true, Event::is_finish);
                        Some((item, (body, ended)))
                    }
                },
            ))
        }))
    }))
    .await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "the layer keeps a body that was dropped")]
async fn a_layer_that_keeps_reading_in_a_task() {
    check_layer(answers(|result| {
        Ok(result?.map_body(|mut body| {
            let (send, mut receive) = tokio::sync::mpsc::unbounded_channel();
            tokio::spawn(async move {
                while let Some(item) = body.next().await {
                    let _ = send.send(item);
                }
            });
            EventStream::new(stream::poll_fn(move |cx| receive.poll_recv(cx)))
        }))
    }))
    .await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "the layer keeps a call that was dropped")]
async fn a_layer_that_calls_in_a_task() {
    check_layer(from_fn(async |request: ChatRequest, mut next: Next| {
        tokio::spawn(async move { next.run(request).await })
            .await
            .unwrap()
    }))
    .await;
}

/// Has a size hint of exactly one item.
struct Promises(EventStream);

impl futures_util::Stream for Promises {
    type Item = Result<Event, Error>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_next_unpin(cx)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (1, Some(1))
    }
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "the size hint is 1 to Some(1), but 5 items follow")]
async fn a_layer_with_a_wrong_size_hint() {
    check_layer(answers(|result| {
        Ok(result?.map_body(|body| EventStream::new(Promises(body))))
    }))
    .await;
}

/// Keeps readiness in a task.
#[tokio::test(start_paused = true)]
#[should_panic(expected = "the layer keeps the inner service's readiness")]
async fn a_layer_that_keeps_readiness() {
    #[derive(Clone)]
    struct Keeps(Strict<ScriptedModel>);

    impl Service<ChatRequest> for Keeps {
        type Response = <Strict<ScriptedModel> as Service<ChatRequest>>::Response;
        type Error = Error;
        type Future = BoxFuture<'static, Result<Self::Response, Error>>;

        fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
            let mut spare = self.0.clone();
            tokio::spawn(async move {
                let _ = poll_fn(|cx| spare.poll_ready(cx)).await;
                std::future::pending::<()>().await;
            });
            self.0.poll_ready(cx)
        }

        fn call(&mut self, request: ChatRequest) -> Self::Future {
            self.0.clone().oneshot(request).boxed()
        }
    }
    check_layer(layer_fn(Keeps)).await;
}
