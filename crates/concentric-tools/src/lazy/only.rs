use super::{Place, ResponseFuture, offer};
use concentric_core::{
    ChatRequest, ChatResponse, Declares, ToolSpec,
    capability::{InLoop, Within},
};
use std::{
    any::type_name,
    fmt,
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
pub const fn offer_tools<F>(f: F) -> OfferToolsLayer<F>
where
    F: Fn(&ChatRequest, &ToolSpec) -> bool,
{
    OfferToolsLayer { f }
}

/// [`Layer`] that applies [`OfferTools`]; created by [`offer_tools`].
#[derive(Clone, Copy)]
pub struct OfferToolsLayer<F> {
    f: F,
}

impl<F> Declares for OfferToolsLayer<F> {
    type Capabilities = Within<InLoop>;
}

impl<S, F> Layer<S> for OfferToolsLayer<F>
where
    F: Clone,
{
    type Service = OfferTools<S, F>;

    fn layer(&self, inner: S) -> Self::Service {
        OfferTools {
            inner,
            f: self.f.clone(),
        }
    }
}

impl<F> fmt::Debug for OfferToolsLayer<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OfferToolsLayer")
            .field(&format_args!("{}", type_name::<F>()))
            .finish()
    }
}

/// Middleware that offers the tools selected by a function; created by [`offer_tools`].
#[derive(Clone, Copy)]
pub struct OfferTools<S, F> {
    inner: S,
    f: F,
}

impl<S, F> OfferTools<S, F> {
    /// Gets a reference to the inner service.
    pub const fn get_ref(&self) -> &S {
        &self.inner
    }
}

impl<S, F, B> Service<ChatRequest> for OfferTools<S, F>
where
    S: Service<ChatRequest, Response = ChatResponse<B>>,
    F: Fn(&ChatRequest, &ToolSpec) -> bool,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = ResponseFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: ChatRequest) -> Self::Future {
        // A failure of `enter` is reported by the agent inside.
        let _ = request.context.enter::<OfferToolsLayer<F>>();
        let mut tools = request.tools.clone();
        let offered = offer(&mut tools, |spec| match (self.f)(&request, spec) {
            true => Place::Always,
            false => Place::Hidden,
        });
        request.tools = tools;
        ResponseFuture::new(self.inner.call(request), offered)
    }
}

impl<S, F> fmt::Debug for OfferTools<S, F>
where
    S: fmt::Debug,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OfferTools")
            .field("inner", &self.inner)
            .field("f", &format_args!("{}", type_name::<F>()))
            .finish()
    }
}
