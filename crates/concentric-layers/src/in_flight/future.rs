use super::{
    InFlightBody,
    limit::{Limit, Permit, Place},
};
use crate::wait::Stop;
use concentric_core::{BoxError, ChatRequest, ChatResponse, Error, ErrorKind};
use pin_project_lite::pin_project;
use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};
use tokio_util::sync::PollSemaphore;
use tower::util::Oneshot;
use tower_service::Service;

pin_project! {
    /// Response future for [`InFlightLimit`](super::InFlightLimit).
    #[must_use = "futures do nothing unless you `.await` or poll them"]
    pub struct ResponseFuture<S>
    where
        S: Service<ChatRequest>,
    {
        #[pin]
        stage: Stage<S>,
        // Moved to the body, or released on an error: a completed future holds no permit.
        permit: Option<Permit>,
    }
}

pin_project! {
    #[project = StageProj]
    enum Stage<S>
    where
        S: Service<ChatRequest>,
    {
        Waiting { call: Option<(S, ChatRequest)>, waiting: Box<Waiting> },
        Calling { #[pin] call: Oneshot<S, ChatRequest> },
        Failed { error: Option<Error> },
        Done,
    }
}

/// A call that waits for a permit.
struct Waiting {
    limit: Arc<Limit>,
    permit: PollSemaphore,
    stop: Stop,
    // Released when the call stops waiting.
    _place: Place,
}

impl<S> ResponseFuture<S>
where
    S: Service<ChatRequest>,
{
    pub(super) fn new(inner: S, request: ChatRequest, limit: &Arc<Limit>, queue: usize) -> Self {
        if !limit.refuses()
            && let permit @ Some(_) = limit.try_acquire()
        {
            let stage = Stage::Calling {
                call: Oneshot::new(inner, request),
            };
            return Self { stage, permit };
        }
        let stage = match Place::take(limit, queue) {
            Some(place) => Stage::Waiting {
                waiting: Box::new(Waiting {
                    limit: Arc::clone(limit),
                    permit: limit.acquire(),
                    stop: Stop::new(&request.context),
                    _place: place,
                }),
                call: Some((inner, request)),
            },
            None => Stage::failed(full(queue)),
        };
        let permit = None;
        Self { stage, permit }
    }

    /// Fails a call that would wait for a permit that its own run holds.
    pub(super) fn nested() -> Self {
        let why = "`InFlightLimit` is inside the same `InFlightLimit` and would wait for itself: \
                   use a separate `InFlightLimitLayer` for the inner service";
        let error = Error::new(ErrorKind::Configuration, why).with_code("capability");
        Self {
            stage: Stage::failed(error),
            permit: None,
        }
    }
}

impl<S> Stage<S>
where
    S: Service<ChatRequest>,
{
    const fn failed(error: Error) -> Self {
        Self::Failed { error: Some(error) }
    }
}

fn unreachable_store() -> Error {
    let why = "the store of the shared limit of concurrent responses does not answer";
    Error::new(ErrorKind::Overloaded, why).with_code("busy")
}

fn full(queue: usize) -> Error {
    let (code, why) = match queue {
        0 => ("busy", "the limit of concurrent responses is reached"),
        _ => ("queue_full", "the queue of waiting calls is full"),
    };
    Error::new(ErrorKind::Overloaded, why).with_code(code)
}

impl<S, B> Future for ResponseFuture<S>
where
    S: Service<ChatRequest, Response = ChatResponse<B>>,
    S::Error: Into<BoxError>,
{
    type Output = Result<ChatResponse<InFlightBody<B>>, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let result = loop {
            match this.stage.as_mut().project() {
                StageProj::Waiting { call, waiting } => {
                    if let Poll::Ready(stopped) = waiting.stop.poll("an in-flight permit", cx) {
                        break Err(stopped);
                    }
                    // The semaphore is private and is never closed.
                    let permit = ready!(waiting.permit.poll_acquire(cx));
                    *this.permit = permit.map(|permit| Permit::new(permit, &waiting.limit));
                    if waiting.limit.refuses() {
                        break Err(unreachable_store());
                    }
                    let next = match call.take() {
                        Some((inner, request)) => Stage::Calling {
                            call: Oneshot::new(inner, request),
                        },
                        None => Stage::Done,
                    };
                    this.stage.set(next);
                }
                StageProj::Calling { call } => {
                    break ready!(call.poll(cx)).map_err(|error| error.into().into());
                }
                StageProj::Failed { error } => match error.take() {
                    Some(error) => break Err(error),
                    None => return Poll::Pending,
                },
                StageProj::Done => return Poll::Pending,
            }
        };
        this.stage.set(Stage::Done);
        let permit = this.permit.take();
        Poll::Ready(result.map(|answer| answer.map_body(|body| InFlightBody::new(body, permit))))
    }
}

impl<S> fmt::Debug for ResponseFuture<S>
where
    S: Service<ChatRequest>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
