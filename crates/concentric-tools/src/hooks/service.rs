use super::{
    ResponseFuture, ToolHooks,
    future::{Guard, Step, begin, matched},
    shared::Shared,
};
use crate::{Matcher, matcher::Matched};
use concentric_core::{Error, ToolCall, ToolOutcome, ToolService};
use std::{
    any::type_name,
    fmt, mem,
    sync::Arc,
    task::{Context, Poll, Waker},
};
use tower_service::Service;

/// Middleware that calls [`ToolHooks`].
///
/// See the [module docs](super) for an example.
pub struct HookedTool<S, H> {
    inner: S,
    shared: Arc<Shared<H>>,
    scope: Option<Matcher>,
}

impl<S, H> HookedTool<S, H> {
    pub(super) const fn new(inner: S, shared: Arc<Shared<H>>, scope: Option<Matcher>) -> Self {
        Self {
            inner,
            shared,
            scope,
        }
    }

    /// Gets a reference to the inner service.
    pub const fn get_ref(&self) -> &S {
        &self.inner
    }
}

impl<S, H> HookedTool<S, H>
where
    S: Clone,
{
    /// Takes the service that was polled ready, and leaves a clone that was not.
    fn take_inner(&mut self) -> S {
        let clone = self.inner.clone();
        mem::replace(&mut self.inner, clone)
    }
}

impl<S, H> Service<ToolCall> for HookedTool<S, H>
where
    S: ToolService + Clone,
    H: ToolHooks,
{
    type Response = ToolOutcome;
    type Error = Error;
    type Future = ResponseFuture<S, H>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.inner.poll_ready(cx).map_err(|e| Error::from(e.into()))
    }

    fn call(&mut self, call: ToolCall) -> Self::Future {
        let mut guard = Guard::new(Arc::clone(&self.shared));
        let applies = match self.scope.as_ref().map(|scope| scope.matches(&call)) {
            None => true,
            Some(Matched::Now(result)) => matched(result, &self.shared.hooks),
            Some(Matched::Later(matching)) => {
                let rest = Some((self.take_inner(), call));
                return ResponseFuture::new(guard, Step::Matching { matching, rest });
            }
        };
        if !applies {
            let future = self.inner.call(call);
            return ResponseFuture::new(guard, Step::Passing { future });
        }
        // Most hooks do not wait; the inner service is then called at once and need not be cloned.
        // A hook that waits is polled again with the task's waker.
        let mut cx = Context::from_waker(Waker::noop());
        let step = match begin(&mut guard, &mut self.inner, call, &mut cx) {
            Ok(step) => step,
            Err(running) => Step::Before {
                running,
                inner: self.take_inner(),
            },
        };
        ResponseFuture::new(guard, step)
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
            scope: self.scope.clone(),
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
            .field("scope", &self.scope)
            .finish()
    }
}
