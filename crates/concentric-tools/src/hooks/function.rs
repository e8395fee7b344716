use super::{BeforeCall, Flow, ToolHooks, ToolHooksLayer};
use concentric_core::{BoxError, Str, ToolCall, ToolOutcome};
use std::{
    any::type_name,
    fmt,
    future::{Future, ready},
    time::Duration,
};

/// Creates a layer that calls `f` before each tool call; see [`ToolHooks::before`].
///
/// ```
/// use concentric_tools::{Flow, before_fn};
///
/// let layer = before_fn("no_root", |call| match call.arguments().as_str().contains("/root") {
///     true => Ok(Flow::block("Access to /root is not allowed.")),
///     false => Ok(Flow::Continue),
/// });
/// # let _ = layer;
/// ```
///
/// For an async function use `tool_from_fn` of `concentric-layers`.
pub fn before_fn<F>(id: impl Into<Str>, f: F) -> ToolHooksLayer<BeforeFn<F>>
where
    F: Fn(&mut BeforeCall) -> Result<Flow, BoxError> + Send + Sync + 'static,
{
    ToolHooksLayer::new(BeforeFn { id: id.into(), f })
}

/// Creates a layer that calls `f` with the outcome of each tool call; see [`ToolHooks::after`], and
/// [`Toolset::hooks`](crate::Toolset::hooks) for the outcomes of calls that do not run.
///
/// ```
/// use concentric_tools::after_fn;
///
/// let layer = after_fn("log", |call, outcome, took| {
///     println!("{}: {:?} in {took:?}", call.name(), outcome.status);
///     Ok(None)
/// });
/// # let _ = layer;
/// ```
pub fn after_fn<F>(id: impl Into<Str>, f: F) -> ToolHooksLayer<AfterFn<F>>
where
    F: Fn(&ToolCall, &ToolOutcome, Duration) -> Result<Option<ToolOutcome>, BoxError>
        + Send
        + Sync
        + 'static,
{
    ToolHooksLayer::new(AfterFn { id: id.into(), f })
}

/// [`ToolHooks`] created by [`before_fn`].
#[derive(Clone)]
pub struct BeforeFn<F> {
    id: Str,
    f: F,
}

impl<F> ToolHooks for BeforeFn<F>
where
    F: Fn(&mut BeforeCall) -> Result<Flow, BoxError> + Send + Sync + 'static,
{
    fn id(&self) -> &str {
        &self.id
    }

    fn before(&self, call: &mut BeforeCall) -> impl Future<Output = Result<Flow, BoxError>> + Send {
        ready((self.f)(call))
    }
}

impl<F> fmt::Debug for BeforeFn<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BeforeFn")
            .field("id", &self.id)
            .field("f", &format_args!("{}", type_name::<F>()))
            .finish()
    }
}

/// [`ToolHooks`] created by [`after_fn`].
#[derive(Clone)]
pub struct AfterFn<F> {
    id: Str,
    f: F,
}

impl<F> ToolHooks for AfterFn<F>
where
    F: Fn(&ToolCall, &ToolOutcome, Duration) -> Result<Option<ToolOutcome>, BoxError>
        + Send
        + Sync
        + 'static,
{
    fn id(&self) -> &str {
        &self.id
    }

    fn after(
        &self,
        call: &ToolCall,
        outcome: &ToolOutcome,
        took: Duration,
    ) -> impl Future<Output = Result<Option<ToolOutcome>, BoxError>> + Send {
        ready((self.f)(call, outcome, took))
    }
}

impl<F> fmt::Debug for AfterFn<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AfterFn")
            .field("id", &self.id)
            .field("f", &format_args!("{}", type_name::<F>()))
            .finish()
    }
}
