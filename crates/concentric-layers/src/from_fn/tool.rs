use concentric_core::{
    Error, ToolCall, ToolOutcome,
    service::{BoxTool, ToolService},
};
use std::{
    future::{Future, poll_fn},
    marker::PhantomData,
    mem,
    sync::Arc,
    task::{Context, Poll},
};
use tower_layer::Layer;
use tower_service::Service;

/// Creates a layer from an async function of a tool call and the [`NextTool`] service.
///
/// See the [module docs](super) for an example.
pub const fn tool_from_fn<F>(f: F) -> ToolFromFnLayer<F> {
    ToolFromFnLayer { f }
}

/// The rest of the stack.
#[derive(Debug)]
pub struct NextTool {
    inner: BoxTool,
    // Whether `inner` has been polled ready since it was last called.
    ready: bool,
}

impl NextTool {
    /// Calls the rest of the stack. Calls after the first wait until it is ready.
    ///
    /// # Errors
    ///
    /// The error of the rest of the stack.
    ///
    /// # Cancel safety
    ///
    /// Dropping the returned future cancels the call; `run` can then be called again.
    pub async fn run(&mut self, call: ToolCall) -> Result<ToolOutcome, Error> {
        if !mem::take(&mut self.ready) {
            poll_fn(|cx| self.inner.poll_ready(cx)).await?;
        }
        self.inner.call(call).await
    }
}

/// [`Layer`] created by [`tool_from_fn`].
#[derive(Clone, Copy)]
pub struct ToolFromFnLayer<F> {
    f: F,
}

// The inner service is erased here rather than in `call`, so that the trait bounds of `ToolFromFn`
// do not depend on its type. `S` is kept only for `describe`.
impl<S, F> Layer<S> for ToolFromFnLayer<F>
where
    S: ToolService<Future: Send + 'static> + Clone + Send + Sync + 'static,
    F: Clone,
{
    type Service = ToolFromFn<F, S>;

    fn layer(&self, inner: S) -> Self::Service {
        ToolFromFn {
            inner: Arc::new(BoxTool::new(inner)),
            ready: None,
            f: self.f.clone(),
            of: PhantomData,
        }
    }
}

concentric_core::opaque_debug!(ToolFromFnLayer<F>);

/// Middleware created by [`tool_from_fn`].
pub struct ToolFromFn<F, S> {
    // Never polled, and shared between clones of the middleware; calls use a clone of it.
    inner: Arc<BoxTool>,
    // Polled, until it is called. Not cloned: each clone of the middleware has its own readiness.
    ready: Option<BoxTool>,
    f: F,
    of: PhantomData<fn() -> S>,
}

impl<F, S, Fut> Service<ToolCall> for ToolFromFn<F, S>
where
    F: FnMut(ToolCall, NextTool) -> Fut,
    Fut: Future<Output = Result<ToolOutcome, Error>>,
{
    type Response = ToolOutcome;
    type Error = Error;
    type Future = Fut;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.ready
            .get_or_insert_with(|| BoxTool::clone(&self.inner))
            .poll_ready(cx)
    }

    fn call(&mut self, call: ToolCall) -> Self::Future {
        let inner = self
            .ready
            .take()
            .expect("`poll_ready` must return `Ready(Ok(()))` before `call`");
        (self.f)(call, NextTool { inner, ready: true })
    }
}

impl<F, S> Clone for ToolFromFn<F, S>
where
    F: Clone,
{
    fn clone(&self) -> Self {
        Self {
            inner: Arc::clone(&self.inner),
            ready: None,
            f: self.f.clone(),
            of: PhantomData,
        }
    }
}

concentric_core::opaque_debug!(ToolFromFn<F, S>);
