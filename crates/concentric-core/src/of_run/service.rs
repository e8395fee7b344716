use super::{ModelLayers, OfRunBody, OfRunLayer, ResponseFuture};
use crate::{
    request::ChatRequest,
    response::ChatResponse,
    service::{BoxModel, ModelService},
};
use concentric_proto::Error;
use std::{
    mem,
    task::{Context, Poll, ready},
};
use tower::ServiceExt;
use tower_service::Service;

/// Middleware that applies the layers of a run to its model calls.
///
/// See the [module docs](super) for an example.
#[derive(Clone, Copy, Debug)]
pub struct OfRun<S> {
    inner: S,
    // Erases the service that was polled ready, and leaves a clone in its place.
    erase: fn(&mut S) -> BoxModel,
}

impl<S> OfRun<S> {
    /// Wraps `inner`. The bounds are those required to erase its type.
    pub const fn new(inner: S) -> Self
    where
        S: ModelService<Body: Send + 'static, Future: Send + 'static>
            + Clone
            + Send
            + Sync
            + 'static,
    {
        Self {
            inner,
            erase: |inner| {
                let clone = inner.clone();
                BoxModel::new(mem::replace(inner, clone))
            },
        }
    }

    /// Gets a reference to the inner service.
    pub const fn get_ref(&self) -> &S {
        &self.inner
    }
}

impl<S> Service<ChatRequest> for OfRun<S>
where
    S: ModelService,
{
    type Response = ChatResponse<OfRunBody<S::Body>>;
    type Error = Error;
    type Future = ResponseFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(ready!(self.inner.poll_ready(cx)).map_err(|e| Error::from(e.into())))
    }

    fn call(&mut self, mut request: ChatRequest) -> Self::Future {
        // The check does not fail here; it fails in an agent inside this layer.
        let _ = request.context.enter::<OfRunLayer>();
        // A greater depth is an agent in the model's position, whose model calls are not the run's.
        let own = match request.context.depth() {
            0 | 1 => request.context.take_own::<ModelLayers>(),
            _ => None,
        };
        match own {
            None => ResponseFuture::inner(self.inner.call(request)),
            Some(layers) => {
                let model = layers.around((self.erase)(&mut self.inner));
                ResponseFuture::layered(Box::pin(model.oneshot(request)))
            }
        }
    }
}
