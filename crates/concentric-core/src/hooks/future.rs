use super::{
    Hooks, HooksBody,
    at::{At, end_run},
    call::{stopped, unless},
    failures::report,
    watch::Watch,
};
use crate::{panic::caught, request::ChatRequest, response::ChatResponse};
use concentric_proto::{Error, ErrorKind, Event, Outcome, Phase, ResponseHead, Str};
use futures_core::Stream;
use pin_project_lite::pin_project;
use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};
use tower::{BoxError, util::Oneshot};
use tower_service::Service;

pin_project! {
    /// Response future for [`Hooked`](super::Hooked).
    #[must_use = "futures do nothing unless you `.await` or poll them"]
    pub struct ResponseFuture<S, H>
    where
        S: Service<ChatRequest>,
        H: Hooks,
    {
        // Dropped before `watch` calls the hooks.
        #[pin]
        step: Step<S>,
        // Moved to the body.
        watch: Option<Watch<H>>,
    }
}

pin_project! {
    #[project = StepProj]
    enum Step<S>
    where
        S: Service<ChatRequest>,
    {
        Before { before: BoxBefore, inner: Option<S> },
        /// Waits for the inner service and calls it.
        Call { #[pin] call: Oneshot<S, ChatRequest> },
        /// The inner service was called immediately.
        Inner { #[pin] future: S::Future },
        /// The call failed, and the hooks are called with its end.
        Failed,
    }
}

/// The request after the hook, and the hook's answer in place of the inner service.
type Before = Result<(ChatRequest, Option<Vec<Event>>), Error>;
type BoxBefore = Pin<Box<dyn Future<Output = Before> + Send>>;

impl<S, H> ResponseFuture<S, H>
where
    S: Service<ChatRequest>,
    H: Hooks,
{
    pub(super) fn before(at: At<H>, inner: S, request: ChatRequest, watch: Watch<H>) -> Self {
        Self {
            step: Step::Before {
                before: Box::pin(before(at, request)),
                inner: Some(inner),
            },
            watch: Some(watch),
        }
    }

    pub(super) const fn inner(future: S::Future, watch: Watch<H>) -> Self {
        Self {
            step: Step::Inner { future },
            watch: Some(watch),
        }
    }
}

async fn before<H>(at: At<H>, mut request: ChatRequest) -> Before
where
    H: Hooks,
{
    let phase = at.phase();
    let context = request.context.clone();
    let view = &mut request;
    let decided = caught(|| unless(stopped(&context), at.before(view))).await;
    let error = match decided {
        Ok(Some(Ok(answer))) => return Ok((request, answer)),
        Ok(Some(Err(error))) => Error::from(error),
        Ok(None) => match context.cancel_reason() {
            // A request that resumes a run fails instead, so that the run remains suspended.
            Some(reason) if phase == Phase::Run && request.resume.is_none() => {
                let answer = end_run(&mut request, None, Outcome::Aborted { reason })?;
                return Ok((request, Some(answer)));
            }
            Some(_) => Error::new(
                ErrorKind::Cancelled,
                Str::from_static("the run was cancelled"),
            ),
            None => Error::new(
                ErrorKind::Timeout,
                Str::from_static("the run has passed its deadline"),
            ),
        },
        Err(panic) => {
            report(at.id(), at.before_name(), panic.error(), &context);
            Error::new(ErrorKind::Other, format!("the hook `{}` panicked", at.id()))
        }
    };
    Err(match error.phase() {
        Some(_) => error,
        None => error.with_phase(phase),
    })
}

impl<S, B, H> Future for ResponseFuture<S, H>
where
    S: Service<ChatRequest, Response = ChatResponse<B>>,
    S::Error: Into<BoxError>,
    B: Stream<Item = Result<Event, Error>>,
    H: Hooks,
{
    type Output = Result<ChatResponse<HooksBody<B, H>>, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            let result = match this.step.as_mut().project() {
                StepProj::Before { before, inner } => match ready!(before.as_mut().poll(cx)) {
                    Ok((request, None)) => {
                        let inner = inner.take().expect("polled after completion");
                        let call = Oneshot::new(inner, request);
                        this.step.set(Step::Call { call });
                        continue;
                    }
                    Ok((request, Some(answer))) => {
                        request.context.skip_stack_check();
                        let mut watch = this.watch.take().expect("polled after completion");
                        watch.answered(&ResponseHead::default());
                        let body = HooksBody::answer(answer, watch);
                        return Poll::Ready(Ok(ChatResponse::new(body)));
                    }
                    Err(error) => Err(error),
                },
                StepProj::Call { call } => ready!(call.poll(cx)).map_err(|e| e.into().into()),
                StepProj::Inner { future } => ready!(future.poll(cx)).map_err(|e| e.into().into()),
                StepProj::Failed => {
                    let watch = this.watch.as_mut().expect("polled after completion");
                    let error = ready!(watch.poll(cx)).and_then(Result::err);
                    *this.watch = None;
                    return Poll::Ready(Err(error.expect("the hooks were called with the error")));
                }
            };
            match result {
                Ok(response) => {
                    let mut watch = this.watch.take().expect("polled after completion");
                    watch.answered(&response.head);
                    return Poll::Ready(Ok(response.map_body(|body| HooksBody::new(body, watch))));
                }
                Err(error) => {
                    // The inner call is dropped before the hooks receive the end.
                    this.step.set(Step::Failed);
                    let watch = this.watch.as_mut().expect("polled after completion");
                    if !watch.awaits_end() {
                        *this.watch = None;
                        return Poll::Ready(Err(error));
                    }
                    watch.start(Some(Err(error)));
                }
            }
        }
    }
}

impl<S, H> fmt::Debug for ResponseFuture<S, H>
where
    S: Service<ChatRequest>,
    H: Hooks,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
