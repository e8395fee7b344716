use super::{ResponseFuture, tools::Hidden};
use concentric_core::{
    ChatRequest, ChatResponse, Declares,
    capability::{InLoop, Within},
};
use std::{
    sync::Arc,
    task::{Context, Poll},
};
use tower_layer::Layer;
use tower_service::Service;

/// [`Layer`] that applies [`Lazy`]; created by [`LazyTools::wrap`](super::LazyTools::wrap).
#[derive(Clone, Debug)]
#[must_use = "a layer does nothing unless it is inside an agent"]
pub struct LazyLayer {
    pub(super) hidden: Arc<Hidden>,
}

impl Declares for LazyLayer {
    type Capabilities = Within<InLoop>;
}

impl<S> Layer<S> for LazyLayer {
    type Service = Lazy<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Lazy {
            inner,
            hidden: Arc::clone(&self.hidden),
        }
    }
}

/// Middleware that removes tools from each request until they are found.
///
/// See the [module docs](super) for an example.
#[derive(Clone, Debug)]
pub struct Lazy<S> {
    inner: S,
    hidden: Arc<Hidden>,
}

impl<S> Lazy<S> {
    /// Gets a reference to the inner service.
    pub const fn get_ref(&self) -> &S {
        &self.inner
    }
}

impl<S, B> Service<ChatRequest> for Lazy<S>
where
    S: Service<ChatRequest, Response = ChatResponse<B>>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = ResponseFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: ChatRequest) -> Self::Future {
        // A failure of `enter` is reported by the agent inside.
        let _ = request.context.enter::<LazyLayer>();
        let offered = self.hidden.hide(&mut request);
        ResponseFuture::new(self.inner.call(request), offered)
    }
}
