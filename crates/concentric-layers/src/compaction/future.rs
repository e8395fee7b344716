use super::{
    WindowBody,
    call::{Call, Prepared},
    hooks::Cause,
    layer::Settings,
};
use crate::{repeats::count_repeat, window::Sent};
use concentric_core::{BoxError, ChatRequest, ChatResponse, Error, Event, run_state::RunEdits};
use futures_core::Stream;
use pin_project_lite::pin_project;
use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};
use tower::util::Oneshot;
use tower_service::Service;

// Boxed, since the future has no name; a call without a compaction makes none.
type Compacting = Pin<Box<dyn Future<Output = Result<Call, Error>> + Send>>;

pin_project! {
    /// Response future for [`Compaction`](super::Compaction).
    #[must_use = "futures do nothing unless you `.await` or poll them"]
    pub struct ResponseFuture<S>
    where
        S: Service<ChatRequest>,
    {
        #[pin]
        inner: Option<Oneshot<S, ChatRequest>>,
        compacting: Option<Compacting>,
        service: S,
        // For another attempt, if the model rejects the conversation.
        call: Option<Call>,
        recovers: bool,
        // The attempts of the call that is made again.
        attempts: u32,
        sent: Option<Sent>,
        edits: Option<RunEdits>,
    }
}

impl<S> ResponseFuture<S>
where
    S: Service<ChatRequest>,
{
    pub(super) fn new(service: S, settings: &Arc<Settings>, request: ChatRequest) -> Self {
        let call = Call::new(settings, request);
        let cause = call.due();
        let (compacting, call) = match cause {
            Some(cause) => (Some(Box::pin(call.compact(cause)) as Compacting), None),
            None => (None, Some(call)),
        };
        Self {
            inner: None,
            compacting,
            service,
            call,
            recovers: settings.recovers,
            attempts: 0,
            sent: None,
            edits: None,
        }
    }
}

impl<S, B> Future for ResponseFuture<S>
where
    S: Service<ChatRequest, Response = ChatResponse<B>> + Clone,
    S::Error: Into<BoxError>,
    B: Stream<Item = Result<Event, Error>>,
{
    type Output = Result<ChatResponse<WindowBody<B>>, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            if let Some(compacting) = this.compacting {
                let call = ready!(compacting.as_mut().poll(cx));
                *this.compacting = None;
                *this.call = Some(call?);
            }
            if this.inner.is_none() {
                let Some(call) = this.call else {
                    return Poll::Pending;
                };
                let Prepared {
                    request,
                    sent,
                    edits,
                } = call.prepare()?;
                (*this.sent, *this.edits) = (Some(sent), edits);
                if *this.attempts > 0 {
                    count_repeat(&request.context);
                }
                let inner = Oneshot::new(this.service.clone(), request);
                this.inner.set(Some(inner));
            }
            let Some(inner) = this.inner.as_mut().as_pin_mut() else {
                return Poll::Pending;
            };
            let answer = ready!(inner.poll(cx));
            this.inner.set(None);
            let call = this.call.take();
            match answer {
                Ok(answer) => {
                    let answer = WindowBody::wrap(answer, this.sent.take());
                    return Poll::Ready(Ok(match this.edits.take() {
                        Some(edits) => answer.with_edits(edits),
                        None => answer,
                    }));
                }
                Err(error) => {
                    let error = Error::from(error.into());
                    let error = match *this.attempts {
                        0 => error,
                        before => {
                            let attempts = error.attempts().saturating_add(before);
                            error.with_attempts(attempts)
                        }
                    };
                    match call.filter(|call| call.is_recoverable(&error)) {
                        Some(call) if *this.recovers => {
                            *this.recovers = false;
                            *this.attempts = error.attempts();
                            let call = call.rejected_with(error);
                            *this.compacting = Some(Box::pin(call.compact(Cause::Overflow)));
                        }
                        _ => return Poll::Ready(Err(error)),
                    }
                }
            }
        }
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
