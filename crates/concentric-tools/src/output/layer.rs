use super::{OutputBody, ResponseFuture, progress::Progress};
use concentric_core::{
    ChatRequest, ChatResponse, Context as RunContext, Declares, Error, Event, OutputSchema, Str,
    ToolChoice, ToolSpecs,
    capability::{InLoop, Within},
    state::SlotError,
};
use futures_core::Stream;
use std::task::{Context, Poll};
use tower_layer::Layer;
use tower_service::Service;

/// [`Layer`] that sends the schema of the typed answer to the model.
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

impl Declares for OutputLayer {
    type Capabilities = Within<InLoop>;
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

/// Middleware that sends the schema of the typed answer to the model.
///
/// Created by [`OutputLayer`].
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
    /// Sets the schema in the request, and returns its name if this call produces the typed value.
    fn apply(&self, request: &mut ChatRequest) -> Option<Str> {
        let given = request.options.output_schema.as_ref();
        if given.is_some_and(|given| *given != self.schema) {
            self.note_other(&request.context)
                .unwrap_or_else(|error| unknown(&error));
            return None;
        }
        if self.separately {
            let asked = self
                .is_asked(&request.context)
                .unwrap_or_else(|error| unknown(&error));
            if !asked {
                return None;
            }
            request.tools = ToolSpecs::default();
            request.options_mut().tool_choice = None::<ToolChoice>;
        }
        if request.options.output_schema.is_none() {
            request.options_mut().output_schema = Some(self.schema.clone());
        }
        Some(self.schema.name.clone())
    }

    /// Whether the loop's gate has requested the value.
    fn is_asked(&self, context: &RunContext) -> Result<bool, SlotError> {
        let Some(depth) = of_loop(context) else {
            return Ok(false);
        };
        Ok(Progress::of(context, depth, &self.schema.name)?.asked)
    }

    /// Records for the loop's gate that the run uses another schema.
    fn note_other(&self, context: &RunContext) -> Result<(), SlotError> {
        let Some(depth) = of_loop(context) else {
            return Ok(());
        };
        let name = &self.schema.name;
        let progress = Progress::of(context, depth, name)?;
        if !progress.other {
            let other = true;
            Progress { other, ..progress }.note(context, depth, name)?;
        }
        Ok(())
    }
}

/// The nesting depth of the loop that makes this model call, if one does.
fn of_loop(context: &RunContext) -> Option<u32> {
    context.depth().checked_sub(1)
}

fn unknown<T: Default>(error: &SlotError) -> T {
    tracing::error!(%error, "reading the progress of a typed answer failed");
    T::default()
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
        // A failure of `enter` is reported by the agent inside.
        let _ = request.context.enter::<OutputLayer>();
        let schema = self.layer.apply(&mut request);
        ResponseFuture::new(self.inner.call(request), schema)
    }
}
