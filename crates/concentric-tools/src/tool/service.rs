use super::{
    Tool, ToolFuture,
    body::{Body, Started},
    future::State,
    guard::{Guard, Kept, Limits},
};
use crate::{ToolsetError, arguments::Checks, fatal, panic::catch};
use concentric_core::{Arguments, BoxTool, Error, ToolCall, ToolOutcome, ToolService, ToolSpec};
use std::{
    sync::Arc,
    task::{Context, Poll},
};
use tower::util::Oneshot;
use tower_service::Service;

/// A tool without its layers.
#[derive(Clone)]
pub(crate) struct Core {
    pub(super) spec: Arc<ToolSpec>,
    pub(super) body: Arc<dyn Body>,
    pub(super) checks: Checks,
    pub(super) limits: Limits,
    pub(super) fault: Option<ToolsetError>,
}

impl Core {
    fn start(self: &Arc<Self>, call: ToolCall) -> ToolFuture {
        if let Some(refusal) = &call.refusal {
            return ToolFuture::answered(refusal.outcome(&call.call));
        }
        if let Some(fault) = &self.fault {
            return ToolFuture::failed(fatal(Error::from(fault.clone())));
        }
        let kept = Kept::of(&call, &self.limits);
        match catch(|| self.body.start(call, &self.checks)) {
            Ok(Started::Running(work)) => {
                ToolFuture(State::Guarded(Guard::new(Arc::clone(self), work, kept)))
            }
            Ok(Started::Refused(outcome)) => ToolFuture::answered(outcome),
            Err(panic) => ToolFuture::answered(panic.outcome(&self.spec.name)),
        }
    }
}

impl Tool {
    /// Calls the tool, layers and all.
    pub(crate) fn start(&self, call: ToolCall) -> ToolFuture {
        if self.layers.is_empty() {
            return self.core.start(call);
        }
        let stack = self.stack.get_or_init(|| {
            self.layers
                .around(BoxTool::new(Innermost(Arc::clone(&self.core))))
        });
        ToolFuture(State::Layered(Box::new(Oneshot::new(stack.clone(), call))))
    }
}

impl Service<ToolCall> for Tool {
    type Response = ToolOutcome;
    type Error = Error;
    type Future = ToolFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut call: ToolCall) -> ToolFuture {
        call.spec.get_or_insert_with(|| Arc::clone(&self.core.spec));
        self.start(call)
    }
}

/// What a tool's own layers stand around.
#[derive(Clone)]
struct Innermost(Arc<Core>);

impl Service<ToolCall> for Innermost {
    type Response = ToolOutcome;
    type Error = Error;
    type Future = ToolFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, call: ToolCall) -> ToolFuture {
        self.0.start(call)
    }
}

/// Executes calls by a service that was given.
pub(super) struct ServiceBody<S>(S);

impl<S> ServiceBody<S> {
    pub(super) const fn new(service: S) -> Self {
        Self(service)
    }
}

impl<S> Body for ServiceBody<S>
where
    S: ToolService<Future: Send + 'static> + Clone + Send + Sync + 'static,
{
    fn start(&self, mut call: ToolCall, checks: &Checks) -> Started {
        match checks.check(&call.call) {
            Ok("{}") => call.call.arguments = Arguments::new("{}"),
            Ok(_) => {}
            Err(outcome) => return Started::Refused(outcome),
        }
        Started::new(Oneshot::new(self.0.clone(), call))
    }
}
