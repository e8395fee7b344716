use super::{
    answer::record,
    body::{DurableBody, Live, Step},
};
use concentric_core::{
    BoxError, ChatRequest, ChatResponse, Error, Event,
    durable::{JournalHandle, StepName},
    service::{BoxFuture, CloneService},
};
use futures_core::Stream;
use pin_project_lite::pin_project;
use std::{
    future::{Future, poll_fn},
    pin::Pin,
    task::{Context, Poll, ready},
};
use tokio::sync::mpsc;
use tower::util::Oneshot;
use tower_service::Service;

/// The number of events that wait for the consumer.
const BEHIND: usize = 64;

/// Middleware that makes model calls durable steps.
#[derive(Clone, Copy)]
pub struct Durable<S> {
    inner: S,
}

impl<S> Durable<S> {
    pub(super) const fn new(inner: S) -> Self {
        Self { inner }
    }

    /// Gets a reference to the inner service.
    pub const fn get_ref(&self) -> &S {
        &self.inner
    }
}

impl<S, B> Service<ChatRequest> for Durable<S>
where
    S: Service<ChatRequest, Response = ChatResponse<B>> + CloneService + Send + 'static,
    S::Error: Into<BoxError>,
    S::Future: Send + 'static,
    B: Stream<Item = Result<Event, Error>> + Send + 'static,
{
    type Response = ChatResponse<DurableBody<B>>;
    type Error = Error;
    type Future = ResponseFuture<S, B>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: ChatRequest) -> Self::Future {
        // Not ready: the future waits for the readiness of a clone.
        let inner = self.inner.clone();
        let stage = match request.context.capability::<JournalHandle>().cloned() {
            None => Stage::Passed {
                call: Oneshot::new(inner, request),
            },
            Some(journal) => {
                // The layers inside may answer a replay without being called.
                request.context.skip_stack_check();
                Stage::Step {
                    call: Box::pin(step(inner, request, journal)),
                }
            }
        };
        ResponseFuture { stage }
    }
}

async fn step<S, B>(
    inner: S,
    request: ChatRequest,
    journal: JournalHandle,
) -> Result<ChatResponse<DurableBody<B>>, Error>
where
    S: Service<ChatRequest, Response = ChatResponse<B>> + Send + 'static,
    S::Error: Into<BoxError>,
    S::Future: Send + 'static,
    B: Stream<Item = Result<Event, Error>> + Send + 'static,
{
    let context = request.context.clone();
    let (send, mut live) = mpsc::channel(BEHIND);
    let name = StepName::Model(context.step());
    let work = move |_| -> Pin<Box<dyn Future<Output = _> + Send>> {
        Box::pin(record(inner, request, send))
    };
    let mut step = journal.step(name, Box::new(work));
    let begun = poll_fn(|cx| {
        if let Poll::Ready(Some(Live::Head(head))) = live.poll_recv(cx) {
            return Poll::Ready(Ok(Ok(head)));
        }
        step.as_mut().poll(cx).map(|result| match live.try_recv() {
            // The step ended at once, as a journal with work of its own task may report it.
            Ok(Live::Head(head)) => {
                step = Box::pin(std::future::ready(result));
                Ok(Ok(head))
            }
            _ => result.map(Err),
        })
    });
    let (head, body) = match begun.await? {
        Ok(head) => (head, Step::Live(live, step)),
        Err(recorded) => match Step::replay(&recorded, &context)? {
            Some(replayed) => replayed,
            // Dropped without another poll, as in the run.
            None => std::future::pending().await,
        },
    };
    Ok(ChatResponse::new(DurableBody::step(body)).with_head(head))
}

pin_project! {
    /// Response future for [`Durable`].
    #[must_use = "futures do nothing unless you `.await` or poll them"]
    pub struct ResponseFuture<S, B>
    where
        S: Service<ChatRequest>,
    {
        #[pin]
        stage: Stage<S, B>,
    }
}

pin_project! {
    #[project = StageProj]
    enum Stage<S, B>
    where
        S: Service<ChatRequest>,
    {
        Passed { #[pin] call: Oneshot<S, ChatRequest> },
        Step { call: BoxFuture<ChatResponse<DurableBody<B>>> },
    }
}

impl<S, B> Future for ResponseFuture<S, B>
where
    S: Service<ChatRequest, Response = ChatResponse<B>>,
    S::Error: Into<BoxError>,
{
    type Output = Result<ChatResponse<DurableBody<B>>, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().stage.project() {
            StageProj::Passed { call } => Poll::Ready(match ready!(call.poll(cx)) {
                Ok(response) => Ok(response.map_body(DurableBody::passed)),
                Err(error) => Err(Error::from(error.into())),
            }),
            StageProj::Step { call } => call.as_mut().poll(cx),
        }
    }
}

concentric_core::opaque_debug!(Durable<S>);

impl<S, B> std::fmt::Debug for ResponseFuture<S, B>
where
    S: Service<ChatRequest>,
{
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
