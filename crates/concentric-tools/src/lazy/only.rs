use super::{Place, ResponseFuture, offer};
use concentric_core::{
    ChatRequest, ChatResponse, Declares, Str, ToolSpec,
    capability::{InLoop, Within},
};
use std::{
    sync::Arc,
    task::{Context, Poll},
};
use tower_layer::Layer;
use tower_service::Service;

/// Creates a layer that offers, in each step, only the tools for which `f` returns `true`.
///
/// `f` is called for each tool of the request, once per model call. Most providers reject a request
/// without any tool if the model [must](concentric_core::ToolChoice::Required) call one.
///
/// ```
/// use concentric_tools::lazy::offer_tools;
///
/// // After eight steps the model must answer with the available information.
/// let layer = offer_tools(|request, _tool| request.context.step() < 8);
/// # let _ = layer;
/// ```
pub fn offer_tools<F>(f: F) -> OfferToolsLayer
where
    F: Fn(&ChatRequest, &ToolSpec) -> bool + Send + Sync + 'static,
{
    OfferToolsLayer::new(move |request| {
        let mut tools = request.tools.clone();
        let offered = offer(&mut tools, |spec| match f(request, spec) {
            true => Place::Always,
            false => Place::Hidden,
        });
        request.tools = tools;
        offered
    })
}

/// Edits a request; returns the names of the offered tools, if not all.
type Offer = dyn Fn(&mut ChatRequest) -> Option<Arc<[Str]>> + Send + Sync;

/// [`Layer`] that restricts the offered tools; created by [`offer_tools`], or by wrapping a toolset
/// for [`LazyTools`](super::LazyTools::wrap) or `Skills`.
#[derive(Clone)]
#[must_use = "a layer does nothing unless it is inside an agent"]
pub struct OfferToolsLayer(Arc<Offer>);

impl OfferToolsLayer {
    pub(crate) fn new(
        offer: impl Fn(&mut ChatRequest) -> Option<Arc<[Str]>> + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(offer))
    }

    /// Applies the layer to a request; returns the names of the offered tools, if not all.
    pub(crate) fn apply(&self, request: &mut ChatRequest) -> Option<Arc<[Str]>> {
        (self.0)(request)
    }
}

impl Declares for OfferToolsLayer {
    type Capabilities = Within<InLoop>;
}

impl<S> Layer<S> for OfferToolsLayer {
    type Service = OfferTools<S>;

    fn layer(&self, inner: S) -> Self::Service {
        OfferTools {
            inner,
            layer: self.clone(),
        }
    }
}

concentric_core::opaque_debug!(OfferToolsLayer);

/// Middleware that restricts the offered tools; created by [`OfferToolsLayer`].
#[derive(Clone, Debug)]
pub struct OfferTools<S> {
    inner: S,
    layer: OfferToolsLayer,
}

impl<S, B> Service<ChatRequest> for OfferTools<S>
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
        let _ = request.context.enter::<OfferToolsLayer>();
        let offered = self.layer.apply(&mut request);
        ResponseFuture::new(self.inner.call(request), offered)
    }
}
