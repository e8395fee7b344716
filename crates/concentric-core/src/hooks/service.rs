use super::{
    Hooks, HooksBody, HooksLayer, Interest, ResponseFuture,
    at::At,
    watch::{AFTER, BEFORE, Ends, Watch},
};
use crate::{request::ChatRequest, response::ChatResponse};
use concentric_proto::{Error, Event};
use futures_core::Stream;
use std::{
    fmt,
    task::{Context, Poll},
};
use tower::BoxError;
use tower_service::Service;

/// Middleware that calls [`Hooks`] for runs, or for model calls if `MODEL` is true.
///
/// See the [module docs](super) for an example.
pub struct Hooked<S, H, const MODEL: bool> {
    inner: S,
    at: At<H>,
    interest: Interest,
}

impl<S, H, const MODEL: bool> Hooked<S, H, MODEL>
where
    H: Hooks,
{
    pub(super) fn new(inner: S, at: At<H>) -> Self {
        Self {
            inner,
            interest: at.interest(),
            at,
        }
    }

    /// Gets a reference to the inner service.
    pub const fn get_ref(&self) -> &S {
        &self.inner
    }

    const fn decides(&self) -> bool {
        self.interest.intersects(BEFORE)
    }
}

impl<S, B, H, const MODEL: bool> Service<ChatRequest> for Hooked<S, H, MODEL>
where
    S: Service<ChatRequest, Response = ChatResponse<B>> + Clone,
    S::Error: Into<BoxError>,
    B: Stream<Item = Result<Event, Error>>,
    H: Hooks,
{
    type Response = ChatResponse<HooksBody<B, H>>;
    type Error = Error;
    type Future = ResponseFuture<S, H>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        match self.decides() {
            // The future waits for the inner service after `before` has decided to call it.
            true => Poll::Ready(Ok(())),
            false => self.inner.poll_ready(cx).map_err(|e| Error::from(e.into())),
        }
    }

    fn call(&mut self, mut request: ChatRequest) -> Self::Future {
        // Cannot fail here; misplaced layers inside or around this one fail.
        let _ = match MODEL {
            true => request.context.enter::<HooksLayer<H, true>>(),
            false => request.context.enter::<HooksLayer<H, false>>(),
        };
        let observes_end = self.interest.intersects(AFTER);
        let ends = observes_end.then(|| Ends::join(&mut request.context, self.at.phase()));
        let watch = Watch::new(self.at.clone(), self.interest, &request, ends);
        match self.decides() {
            true => ResponseFuture::before(self.at.clone(), self.inner.clone(), request, watch),
            false => ResponseFuture::inner(self.inner.call(request), watch),
        }
    }
}

impl<S, H, const MODEL: bool> Clone for Hooked<S, H, MODEL>
where
    S: Clone,
{
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            at: self.at.clone(),
            interest: self.interest,
        }
    }
}

impl<S, H, const MODEL: bool> fmt::Debug for Hooked<S, H, MODEL>
where
    S: fmt::Debug,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hooked")
            .field("inner", &self.inner)
            .field("interest", &self.interest)
            .finish_non_exhaustive()
    }
}
