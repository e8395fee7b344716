use super::{OutputBody, Progress, ResponseFuture};
use concentric_core::{
    ChatRequest, ChatResponse, Error, Event, OutputSchema, Str, ToolChoice, ToolSpecs,
};
use futures_core::Stream;
use std::task::{Context, Poll};
use tower_layer::Layer;
use tower_service::Service;

/// [`Layer`] that tells the model what its answer is to be.
///
/// See the [module docs](super).
#[derive(Clone, Debug)]
pub struct OutputLayer {
    schema: OutputSchema,
    separately: bool,
}

impl OutputLayer {
    pub(super) const fn new(schema: OutputSchema, separately: bool) -> Self {
        Self { schema, separately }
    }
}

impl<S> Layer<S> for OutputLayer {
    type Service = WithOutput<S>;

    fn layer(&self, inner: S) -> WithOutput<S> {
        WithOutput {
            inner,
            layer: self.clone(),
        }
    }
}

/// Middleware that tells the model what its answer is to be.
///
/// Made by [`OutputLayer`].
#[derive(Clone, Debug)]
pub struct WithOutput<S> {
    inner: S,
    layer: OutputLayer,
}

impl<S> WithOutput<S> {
    /// Gets a reference to the inner service.
    pub const fn get_ref(&self) -> &S {
        &self.inner
    }
}

impl OutputLayer {
    /// Asks for the value, and returns the schema's name, if this call is for it.
    fn apply(&self, request: &mut ChatRequest) -> Option<Str> {
        if self.separately {
            let asked = request.context.state::<Progress>();
            let asked = asked
                .map(|progress| progress.asked)
                .unwrap_or_else(|error| {
                    tracing::error!(%error, "whether a typed answer is asked for is not known");
                    false
                });
            if !asked {
                return None;
            }
            request.tools = ToolSpecs::default();
            request.options_mut().tool_choice = None::<ToolChoice>;
        }
        match &request.options.output_schema {
            Some(schema) if *schema != self.schema => return None,
            Some(_) => {}
            None => request.options_mut().output_schema = Some(self.schema.clone()),
        }
        Some(self.schema.name.clone())
    }
}

impl<S, B> Service<ChatRequest> for WithOutput<S>
where
    S: Service<ChatRequest, Response = ChatResponse<B>>,
    B: Stream<Item = Result<Event, Error>>,
{
    type Response = ChatResponse<OutputBody<B>>;
    type Error = S::Error;
    type Future = ResponseFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: ChatRequest) -> Self::Future {
        let schema = self.layer.apply(&mut request);
        ResponseFuture::new(self.inner.call(request), schema)
    }
}
