use super::{GuardBody, body::Watch, layer::Options};
#[cfg(feature = "fallback")]
use crate::fallback::FailedAttempts;
use concentric_core::{BoxError, ChatRequest, ChatResponse, Error, Event};
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

pin_project! {
    /// Response future for [`Guard`](super::Guard).
    #[must_use = "futures do nothing unless you `.await` or poll them"]
    pub struct ResponseFuture<S, B>
    where
        S: Service<ChatRequest>,
    {
        #[pin]
        call: Option<Oneshot<S, ChatRequest>>,
        watch: Option<Box<Watch>>,
        // The response, until content of it is released.
        response: Option<ChatResponse<GuardBody<B>>>,
        options: Arc<Options>,
        blocked: Option<Error>,
    }
}

impl<S, B> ResponseFuture<S, B>
where
    S: Service<ChatRequest>,
{
    pub(super) fn call(inner: S, request: ChatRequest, options: &Arc<Options>) -> Self {
        Self {
            watch: Watch::new(options, &request),
            call: Some(Oneshot::new(inner, request)),
            response: None,
            options: Arc::clone(options),
            blocked: None,
        }
    }

    /// The future of a call whose input is blocked.
    pub(super) fn blocked(error: Error, options: &Arc<Options>) -> Self {
        let text = options.block_with.clone();
        let response = text.map(|text| ChatResponse::new(GuardBody::blocked(options, text)));
        Self {
            call: None,
            watch: None,
            blocked: response.is_none().then_some(error),
            response,
            options: Arc::clone(options),
        }
    }
}

impl<S, B, E> Future for ResponseFuture<S, B>
where
    S: Service<ChatRequest, Response = ChatResponse<B>, Error = E>,
    E: Into<BoxError>,
    B: Stream<Item = Result<Event, Error>>,
{
    type Output = Result<ChatResponse<GuardBody<B>>, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        if let Some(error) = this.blocked.take() {
            return Poll::Ready(Err(error));
        }
        if let Some(call) = this.call.as_mut().as_pin_mut() {
            let response = ready!(call.poll(cx));
            this.call.set(None);
            let response =
                response.map_err(|error| this.options.error(Error::from(error.into())))?;
            #[cfg(feature = "fallback")]
            let response = redact_attempts(response, this.options);
            let watch = this.watch.take();
            *this.response = Some(response.map_body(|inner| GuardBody::new(inner, watch)));
        }
        if let Some(response) = this.response {
            ready!(response.body.poll_commit(cx))?;
        }
        Poll::Ready(Ok(this.response.take().expect("polled after it was ready")))
    }
}

/// Redacts the errors of models that failed before the one that has answered.
#[cfg(feature = "fallback")]
fn redact_attempts<B>(mut response: ChatResponse<B>, options: &Options) -> ChatResponse<B> {
    if let Some(failed) = response.extensions.get_mut::<FailedAttempts>() {
        failed.edit(|error| options.error(error));
    }
    response
}

impl<S, B> fmt::Debug for ResponseFuture<S, B>
where
    S: Service<ChatRequest>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
