use super::{
    CallFuture, Hooks,
    tool_future::{Guard, Step, begin},
    tool_shared::Shared,
};
use crate::{service::ToolService, tool_call::ToolCall};
use concentric_proto::{Error, ToolOutcome};
use std::{
    any::type_name,
    fmt, mem,
    sync::Arc,
    task::{Context, Poll, Waker},
};
use tower_service::Service;

/// Middleware that calls [`Hooks`] for tool calls.
///
/// See the [module docs](super) for an example.
pub struct HookedTool<S, H> {
    inner: S,
    shared: Arc<Shared<H>>,
}

impl<S, H> HookedTool<S, H> {
    pub(super) const fn new(inner: S, shared: Arc<Shared<H>>) -> Self {
        Self { inner, shared }
    }

    /// Gets a reference to the inner service.
    pub const fn get_ref(&self) -> &S {
        &self.inner
    }
}

impl<S, H> Service<ToolCall> for HookedTool<S, H>
where
    S: ToolService + Clone,
    H: Hooks,
{
    type Response = ToolOutcome;
    type Error = Error;
    type Future = CallFuture<S, H>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.inner.poll_ready(cx).map_err(|e| Error::from(e.into()))
    }

    fn call(&mut self, call: ToolCall) -> Self::Future {
        let mut guard = Guard::new(Arc::clone(&self.shared));
        // Most hooks do not wait; the inner service is then called at once and need not be cloned.
        // A hook that waits is polled again with the task's waker.
        let mut cx = Context::from_waker(Waker::noop());
        let step = match begin(&mut guard, &mut self.inner, call, &mut cx) {
            Ok(step) => step,
            Err(running) => {
                // The service that was polled ready is used, and a clone that was not is left.
                let clone = self.inner.clone();
                let inner = mem::replace(&mut self.inner, clone);
                Step::Before { running, inner }
            }
        };
        CallFuture::new(guard, step)
    }
}

impl<S, H> Clone for HookedTool<S, H>
where
    S: Clone,
{
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<S, H> fmt::Debug for HookedTool<S, H>
where
    S: fmt::Debug,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HookedTool")
            .field("inner", &self.inner)
            .field("hooks", &format_args!("{}", type_name::<H>()))
            .finish()
    }
}
