use super::{
    HooksBody, HooksLayer, ResponseFuture,
    place::{Has, Place},
    watch::Ends,
};
use concentric_core::{ChatRequest, ChatResponse, Error, Event};
use futures_core::Stream;
use std::task::{Context, Poll};
use tower::BoxError;
use tower_service::Service;

/// Middleware that calls [`Hooks`](super::Hooks).
///
/// See the [module docs](super) for an example.
#[derive(Clone, Debug)]
pub struct Hooked<S, P> {
    inner: S,
    place: P,
    has: Has,
}

impl<S, P> Hooked<S, P>
where
    P: Place,
{
    pub(super) fn new(inner: S, place: P) -> Self {
        Self {
            inner,
            place,
            has: P::has(),
        }
    }

    /// Gets a reference to the inner service.
    pub const fn get_ref(&self) -> &S {
        &self.inner
    }
}

impl<S, B, P> Service<ChatRequest> for Hooked<S, P>
where
    S: Service<ChatRequest, Response = ChatResponse<B>> + Clone,
    S::Error: Into<BoxError>,
    B: Stream<Item = Result<Event, Error>>,
    P: Place,
{
    type Response = ChatResponse<HooksBody<B, P>>;
    type Error = Error;
    type Future = ResponseFuture<S, P>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        match self.has.before {
            // The future waits for the inner service after `before` has decided to call it.
            true => Poll::Ready(Ok(())),
            false => self.inner.poll_ready(cx).map_err(|e| Error::from(e.into())),
        }
    }

    fn call(&mut self, mut request: ChatRequest) -> Self::Future {
        // Cannot fail here; misplaced layers inside or around this one fail.
        let _ = request.context.enter::<HooksLayer<P>>();
        let after = self.has.after;
        let ends = after.then(|| Ends::join(&mut request.context, P::PHASE));
        let place = self.place.clone();
        match self.has.before {
            true => ResponseFuture::before(place, self.has, self.inner.clone(), request, ends),
            false => {
                let context = request.context.clone();
                let future = self.inner.call(request);
                ResponseFuture::inner(place, self.has, context, ends, future)
            }
        }
    }
}
