use super::Progress;
use concentric_core::{ChatRequest, OutputSchema, ToolChoice, ToolSpecs};
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
    fn apply(&self, request: &mut ChatRequest) {
        if self.separately {
            let asked = request.context.state::<Progress>();
            let asked = asked
                .map(|progress| progress.asked)
                .unwrap_or_else(|error| {
                    tracing::error!(%error, "whether a typed answer is asked for is not known");
                    false
                });
            if !asked {
                return;
            }
            request.tools = ToolSpecs::default();
            request.options_mut().tool_choice = None::<ToolChoice>;
        }
        if request.options.output_schema.is_none() {
            request.options_mut().output_schema = Some(self.schema.clone());
        }
    }
}

impl<S> Service<ChatRequest> for WithOutput<S>
where
    S: Service<ChatRequest>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: ChatRequest) -> S::Future {
        self.layer.apply(&mut request);
        self.inner.call(request)
    }
}
