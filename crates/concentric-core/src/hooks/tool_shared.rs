use super::{BeforeCall, Flow, Hooks, Interest, failures::report};
use crate::{
    panic::{CaughtPanic, catch, caught},
    tool_call::ToolCall,
};
use concentric_proto::{Error, ToolOutcome};
use std::{
    future::Future,
    sync::{Arc, Mutex},
    task::{self, Poll, ready},
    time::Duration,
};
use tokio_util::sync::ReusableBoxFuture;
use tower::BoxError;

/// Hooks shared by all services of a layer.
pub(super) struct Shared<H> {
    pub(super) hooks: Arc<H>,
    pub(super) interest: Interest,
    before: Idle<Before>,
    after: Idle<After>,
}

/// The call after `before_call`, and the result of the method.
pub(super) type Before = (
    BeforeCall,
    Result<Result<Flow<ToolOutcome>, BoxError>, CaughtPanic>,
);
/// The result of a call, for `after_call` or `on_call_error`.
pub(super) type After = Result<ToolOutcome, Error>;

impl<H> Shared<H>
where
    H: Hooks,
{
    pub(super) fn new(hooks: Arc<H>) -> Self {
        Self {
            interest: hooks.interest(),
            hooks,
            before: Idle::default(),
            after: Idle::default(),
        }
    }

    pub(super) fn start_before(self: &Arc<Self>, call: ToolCall) -> Running<Before> {
        let shared = Arc::clone(self);
        self.before.start(async move {
            let mut call = BeforeCall::new(call);
            let view = &mut call;
            let flow = caught(|| shared.hooks.before_call(view)).await;
            (call, flow)
        })
    }

    pub(super) fn poll_before(
        &self,
        running: &mut Running<Before>,
        cx: &mut task::Context<'_>,
    ) -> Poll<Before> {
        running.poll(&self.before, cx)
    }

    pub(super) fn start_after(
        self: &Arc<Self>,
        call: ToolCall,
        result: After,
        took: Duration,
    ) -> Running<After> {
        let shared = Arc::clone(self);
        self.after.start(async move {
            let hooks = &shared.hooks;
            let (method, returned) = match &result {
                Ok(outcome) => {
                    let after = caught(|| hooks.after_call(&call, outcome, took));
                    ("after_call", after.await)
                }
                Err(error) => {
                    let after = caught(|| hooks.on_call_error(&call, error, took));
                    ("on_call_error", after.await)
                }
            };
            let error = match returned {
                Ok(Ok(None)) => return result,
                Ok(Ok(Some(outcome))) => return Ok(outcome),
                Ok(Err(error)) => Error::from(error),
                Err(panic) => panic.error(),
            };
            shared.failed(method, error, &call);
            result
        })
    }

    pub(super) fn failed(&self, method: &'static str, error: Error, call: &ToolCall) {
        if catch(|| report(self.hooks.id(), method, error, &call.context)).is_err() {
            let tool = call.name();
            tracing::error!(%tool, method, "the id of a hook panicked");
        }
    }

    pub(super) fn poll_after(
        &self,
        running: &mut Running<After>,
        cx: &mut task::Context<'_>,
    ) -> Poll<After> {
        running.poll(&self.after, cx)
    }
}

/// The box of a method's last future, for reuse.
struct Idle<T>(Mutex<Option<ReusableBoxFuture<'static, T>>>);

impl<T> Idle<T> {
    fn start(&self, future: impl Future<Output = T> + Send + 'static) -> Running<T> {
        let idle = self.0.try_lock().ok().and_then(|mut idle| idle.take());
        Running(Some(match idle {
            Some(mut idle) => {
                idle.set(future);
                idle
            }
            None => ReusableBoxFuture::new(future),
        }))
    }
}

impl<T> Default for Idle<T> {
    fn default() -> Self {
        Self(Mutex::new(None))
    }
}

/// A running method.
pub(super) struct Running<T>(Option<ReusableBoxFuture<'static, T>>);

impl<T> Running<T> {
    fn poll(&mut self, idle: &Idle<T>, cx: &mut task::Context<'_>) -> Poll<T> {
        let Some(future) = &mut self.0 else {
            return Poll::Pending;
        };
        let output = ready!(future.poll(cx));
        // Completed, so the box is empty.
        if let Ok(mut idle) = idle.0.try_lock() {
            *idle = self.0.take();
        }
        Poll::Ready(output)
    }
}
