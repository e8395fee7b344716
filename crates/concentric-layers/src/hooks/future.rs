use super::{
    HooksBody,
    failures::report,
    method::{stopped, unless},
    place::{Has, Place, of_run},
    watch::{Ends, Watch},
};
use concentric_core::{
    ChatRequest, ChatResponse, Context as RunContext, Error, ErrorKind, Event, Head, Outcome,
    Phase, Str, method::caught,
};
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
    pub struct ResponseFuture<S, P>
    where
        S: Service<ChatRequest>,
        P: Place,
    {
        // Dropped before `watch` calls the hooks.
        #[pin]
        step: Step<S>,
        // Moved to the body.
        watch: Option<Watch<P>>,
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

impl<S, P> ResponseFuture<S, P>
where
    S: Service<ChatRequest>,
    P: Place,
{
    pub(super) fn before(
        place: P,
        has: Has,
        inner: S,
        request: ChatRequest,
        ends: Option<(Ends, bool)>,
    ) -> Self {
        let watch = Watch::new(place.clone(), has, request.context.clone(), ends);
        Self {
            step: Step::Before {
                before: Box::pin(before(place, request)),
                inner: Some(inner),
            },
            watch: Some(watch),
        }
    }

    pub(super) fn inner(
        place: P,
        has: Has,
        context: RunContext,
        ends: Option<(Ends, bool)>,
        future: S::Future,
    ) -> Self {
        Self {
            step: Step::Inner { future },
            watch: Some(Watch::new(place, has, context, ends)),
        }
    }
}

async fn before<P>(place: P, mut request: ChatRequest) -> Before
where
    P: Place,
{
    let context = request.context.clone();
    let view = &mut request;
    let said = caught(|| unless(stopped(&context), place.before(view))).await;
    let error = match said {
        Ok(Some(Ok(answer))) => return Ok((request, answer)),
        Ok(Some(Err(error))) => Error::from(error),
        Ok(None) => match context.cancel_reason() {
            // A request that resumes a run fails instead, so that the run remains suspended.
            Some(reason) if P::PHASE == Phase::Run && request.resume.is_none() => {
                let answer = of_run(&mut request, None, Outcome::Aborted { reason })?;
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
            report(place.id(), P::BEFORE, panic.error(), &context);
            Error::new(
                ErrorKind::Other,
                format!("the hook `{}` panicked", place.id()),
            )
        }
    };
    Err(match error.phase() {
        Some(_) => error,
        None => error.with_phase(P::PHASE),
    })
}

impl<S, B, P> Future for ResponseFuture<S, P>
where
    S: Service<ChatRequest, Response = ChatResponse<B>>,
    S::Error: Into<BoxError>,
    B: Stream<Item = Result<Event, Error>>,
    P: Place,
{
    type Output = Result<ChatResponse<HooksBody<B, P>>, Error>;

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
                        watch.answered(&Head::default());
                        let body = HooksBody::own(answer, watch);
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
                    if !watch.is_told_of_end() {
                        *this.watch = None;
                        return Poll::Ready(Err(error));
                    }
                    watch.start(Some(Err(error)));
                }
            }
        }
    }
}

impl<S, P> fmt::Debug for ResponseFuture<S, P>
where
    S: Service<ChatRequest>,
    P: Place,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
