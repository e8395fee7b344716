use super::{ModelLayers, OfRunBody, ResponseFuture};
use crate::{BoxModel, ChatRequest, ChatResponse, Error, ModelService};
use std::{
    mem,
    task::{Context, Poll, ready},
};
use tower::ServiceExt;
use tower_service::Service;

/// Middleware that puts the layers of a run around its model calls.
///
/// See the [module docs](super) for an example.
#[derive(Clone, Copy, Debug)]
pub struct OfRun<S> {
    inner: S,
}

impl<S> OfRun<S> {
    /// Wraps `inner`.
    pub const fn new(inner: S) -> Self {
        Self { inner }
    }

    /// Gets a reference to the inner service.
    pub const fn get_ref(&self) -> &S {
        &self.inner
    }
}

// What is asked of `S` is what it takes to erase it, for a run that has layers.
impl<S> Service<ChatRequest> for OfRun<S>
where
    S: ModelService<Body: Send + 'static, Future: Send + 'static> + Clone + Send + Sync + 'static,
{
    type Response = ChatResponse<OfRunBody<S::Body>>;
    type Error = Error;
    type Future = ResponseFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(ready!(self.inner.poll_ready(cx)).map_err(|e| Error::from(e.into())))
    }

    fn call(&mut self, mut request: ChatRequest) -> Self::Future {
        match request.context.extensions_mut().remove::<ModelLayers>() {
            None => ResponseFuture::inner(self.inner.call(request)),
            Some(layers) => {
                let clone = self.inner.clone();
                let ready = mem::replace(&mut self.inner, clone);
                let model = layers.around(BoxModel::new(ready));
                ResponseFuture::layered(Box::pin(model.oneshot(request)))
            }
        }
    }
}
