use super::{
    Output, OutputBody, ResponseFuture,
    progress::{Current, Progress},
};
use concentric_core::{
    ChatRequest, ChatResponse, Context as RunContext, Declares, Error, Event, Str, ToolChoice,
    ToolSpecs,
    capability::{InLoop, Within},
    state::SlotError,
};
use futures_core::Stream;
use std::task::{Context, Poll};
use tower_layer::Layer;
use tower_service::Service;

impl<T> Declares for Output<T> {
    type Capabilities = Within<InLoop>;
}

/// Sends the schema with model calls.
impl<S, T> Layer<S> for Output<T> {
    type Service = WithOutput<S, T>;

    fn layer(&self, inner: S) -> WithOutput<S, T> {
        WithOutput {
            inner,
            output: self.clone(),
        }
    }
}

/// Middleware that sends the schema of the typed answer to the model.
///
/// Created by [`Output`].
#[derive(Debug)]
pub struct WithOutput<S, T> {
    inner: S,
    output: Output<T>,
}

impl<S: Clone, T> Clone for WithOutput<S, T> {
    fn clone(&self) -> Self {
        self.output.layer(self.inner.clone())
    }
}

impl<T> Output<T> {
    /// Sets the schema in the request, and returns its name if this call produces the typed value.
    fn apply(&self, request: &mut ChatRequest) -> Option<Str> {
        let given = request.options.output_schema.as_ref();
        if given.is_some_and(|given| *given != self.inner.schema) {
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
            request.options_mut().output_schema = Some(self.inner.schema.clone());
        }
        Some(self.inner.schema.name.clone())
    }

    /// Whether the loop's gate has requested the value.
    fn is_asked(&self, context: &RunContext) -> Result<bool, SlotError> {
        let Some(depth) = of_loop(context) else {
            return Ok(false);
        };
        Ok(Progress::of(context, depth, &self.inner.schema.name)?.asked)
    }

    /// Records for the loop's gate that the run uses another schema.
    fn note_other(&self, context: &RunContext) -> Result<(), SlotError> {
        let Some(depth) = of_loop(context) else {
            return Ok(());
        };
        let name = &self.inner.schema.name;
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

impl<S, T, B> Service<ChatRequest> for WithOutput<S, T>
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
        let _ = request.context.enter::<Output<T>>();
        let schema = self.output.apply(&mut request);
        Current::note(&request.context, schema.as_ref()).unwrap_or_else(|error| unknown(&error));
        ResponseFuture::new(self.inner.call(request), schema)
    }
}
