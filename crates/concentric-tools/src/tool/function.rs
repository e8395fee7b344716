use super::{
    Tool,
    body::{Body, Started},
};
use crate::{
    IntoOutcome,
    arguments::{Checks, decode_call},
};
use concentric_core::{Context, Str, ToolCall, ToolCallPart, ToolOutcome};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use std::{future::Future, marker::PhantomData};

/// Creates a tool from an async function.
///
/// The argument type defines the tool's JSON Schema: its doc comments are the descriptions, and
/// `#[schemars(..)]` attributes add constraints (see
/// [`ToolsetError::InvalidSchema`](crate::ToolsetError::InvalidSchema)). See [`IntoOutcome`] for
/// the return types.
///
/// ```
/// use concentric_tools::tool;
/// use schemars::JsonSchema;
/// use serde::Deserialize;
///
/// #[derive(Deserialize, JsonSchema)]
/// struct Weather {
///     /// The city, in English.
///     city: String,
/// }
///
/// let weather = tool("weather", "Returns the weather.", |args: Weather| async move {
///     format!("It rains in {}.", args.city)
/// });
/// assert_eq!(
///     weather.spec().input_schema["properties"]["city"]["description"],
///     "The city, in English."
/// );
/// ```
///
/// # Cancel safety
///
/// The function's future is dropped when the run is cancelled or dropped, and on a timeout. It must
/// be safe to drop at any `await`.
pub fn tool<A, F, Fut>(name: impl Into<Str>, description: impl Into<Str>, function: F) -> Tool
where
    A: DeserializeOwned + JsonSchema + 'static,
    F: Fn(A) -> Fut + Send + Sync + 'static,
    Fut: Future<Output: IntoOutcome> + Send + 'static,
{
    let body = Function {
        function,
        arguments: PhantomData,
    };
    Tool::of_type::<A>(name.into(), description.into(), body)
}

/// Creates a tool from an async function that receives the run's [`Context`].
///
/// The context's phase is [`Phase::Call`](concentric_core::Phase::Call), and its [idempotency
/// key](Context::idempotency_key) is unique to this call. See [`tool`](fn@tool) for the rest.
pub fn tool_with_context<A, F, Fut>(
    name: impl Into<Str>,
    description: impl Into<Str>,
    function: F,
) -> Tool
where
    A: DeserializeOwned + JsonSchema + 'static,
    F: Fn(A, Context) -> Fut + Send + Sync + 'static,
    Fut: Future<Output: IntoOutcome> + Send + 'static,
{
    let body = WithContext {
        function,
        arguments: PhantomData,
    };
    Tool::of_type::<A>(name.into(), description.into(), body)
}

struct Function<F, A> {
    function: F,
    arguments: PhantomData<fn(A)>,
}

impl<A, F, Fut> Body for Function<F, A>
where
    A: DeserializeOwned + 'static,
    F: Fn(A) -> Fut + Send + Sync + 'static,
    Fut: Future<Output: IntoOutcome> + Send + 'static,
{
    fn start(&self, call: ToolCall, checks: Option<&Checks>) -> Started {
        match decode_call(call.part(), checks) {
            Ok(arguments) => Started::new((self.function)(arguments)),
            Err(outcome) => Started::Refused(outcome),
        }
    }

    fn validate(&self, call: &ToolCallPart, checks: &Checks) -> Result<(), ToolOutcome> {
        decode_call::<A>(call, Some(checks)).map(drop)
    }
}

struct WithContext<F, A> {
    function: F,
    arguments: PhantomData<fn(A)>,
}

impl<A, F, Fut> Body for WithContext<F, A>
where
    A: DeserializeOwned + 'static,
    F: Fn(A, Context) -> Fut + Send + Sync + 'static,
    Fut: Future<Output: IntoOutcome> + Send + 'static,
{
    fn start(&self, call: ToolCall, checks: Option<&Checks>) -> Started {
        match decode_call(call.part(), checks) {
            Ok(arguments) => Started::new((self.function)(arguments, call.context)),
            Err(outcome) => Started::Refused(outcome),
        }
    }

    fn validate(&self, call: &ToolCallPart, checks: &Checks) -> Result<(), ToolOutcome> {
        decode_call::<A>(call, Some(checks)).map(drop)
    }
}
