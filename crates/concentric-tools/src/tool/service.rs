use super::{
    Tool, ToolFuture,
    body::{Body, Started},
    future::State,
    guard::{Guard, Kept, Limits},
};
use crate::{
    ErrorFormat, ToolError, ToolsetError,
    arguments::{Checks, Validator, checked},
    fatal,
};
use concentric_core::{
    Arguments, Clearance, Delivery, Error, ToolCall, ToolCallPart, ToolOutcome, ToolService,
    ToolSpec, ToolStatus, agent::ToolLayers, panic::catch,
};
use serde_json::Value;
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
    /// The schema of results.
    pub(super) output: Option<Validator>,
    pub(super) error_format: Option<ErrorFormat>,
    pub(super) fault: Option<ToolsetError>,
}

impl Core {
    fn start(self: &Arc<Self>, call: ToolCall, is_checked: bool) -> ToolFuture {
        if let Some(outcome) = call.settled() {
            return ToolFuture::answered(outcome.clone());
        }
        if let Some(fault) = &self.fault {
            return ToolFuture::failed(fatal(Error::from(fault.clone())));
        }
        let mut kept = Kept::of(&call);
        // With layers, the call was counted when it entered them.
        if call.attempts().is_none() && !self.spec.annotations.read_only {
            call.context.count_effect();
        }
        let checks = (!is_checked).then_some(&self.checks);
        let (work, start) = match catch(|| self.body.start(call, checks)) {
            Ok(Started::Running(work)) => (work, None),
            Ok(Started::OnThread(work, start)) => (work, Some(start)),
            Ok(Started::Refused(outcome)) => return ToolFuture::answered(outcome),
            Err(panic) => {
                // The function may have executed before it returned a future.
                kept.start();
                let outcome = panic.outcome(&self.spec.name);
                return ToolFuture::answered(self.given_up(outcome));
            }
        };
        ToolFuture(State::Guarded(Guard::new(
            Arc::clone(self),
            work,
            start,
            kept,
        )))
    }

    /// Checks the result of a successful call against the output schema: its data if it has any,
    /// otherwise its text, as JSON or as a string.
    pub(super) fn check_output(&self, outcome: &ToolOutcome) -> Result<(), ToolError> {
        let Some(schema) = self
            .output
            .as_ref()
            .filter(|_| outcome.status == ToolStatus::Done)
        else {
            return Ok(());
        };
        let checked = match &outcome.data {
            Some(data) => schema.check(&data.to_string()),
            None => {
                let text = outcome.content.text();
                let string = || schema.check(&Value::from(&*text).to_string());
                schema.check(&text).or_else(|why| string().map_err(|_| why))
            }
        };
        checked.map_err(ToolError::invalid_output)
    }

    /// The outcome of a call that was abandoned after it had started.
    pub(super) fn given_up(&self, otherwise: ToolOutcome) -> ToolOutcome {
        match self.spec.may_run_again() {
            true => otherwise,
            false => otherwise.into_indeterminate(),
        }
    }
}

impl Tool {
    /// Calls the tool through its layers.
    pub(crate) fn start(&self, call: ToolCall) -> ToolFuture {
        if self.layers.is_empty() {
            return self.start_innermost(call);
        }
        let stack = self.stack.get_or_init(|| {
            let tool = Self {
                layers: ToolLayers::default(),
                stack: Arc::default(),
                ..self.clone()
            };
            let seal = self.home.as_ref().map(|home| &home.seal);
            self.layers.around(Innermost(tool), seal)
        });
        ToolFuture(State::Layered(Box::new(Oneshot::new(stack.clone(), call))))
    }

    /// Calls the tool inside its layers.
    fn start_innermost(&self, call: ToolCall) -> ToolFuture {
        if let Some(outcome) = call.settled() {
            return ToolFuture::answered(outcome.clone());
        }
        match &self.home {
            Some(home) => home.arrive.arrive(self, call),
            None => self.core.start(call, false),
        }
    }

    /// Calls the tool after all decisions have been made.
    pub(crate) fn start_function(&self, call: ToolCall) -> ToolFuture {
        // A new call is validated before its gates decide.
        let is_checked = match call.clearance() {
            Clearance::Passed(arguments) | Clearance::Decided(arguments) => {
                call.delivery() == Delivery::First && arguments == call.arguments()
            }
            _ => false,
        };
        self.core.start(call, is_checked)
    }
}

impl Service<ToolCall> for Tool {
    type Response = ToolOutcome;
    type Error = Error;
    type Future = ToolFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, call: ToolCall) -> ToolFuture {
        self.start(match call.spec() {
            Some(_) => call,
            None => call.with_spec(Arc::clone(&self.core.spec)),
        })
    }
}

/// The service inside a tool's own layers.
#[derive(Clone)]
struct Innermost(Tool);

impl Service<ToolCall> for Innermost {
    type Response = ToolOutcome;
    type Error = Error;
    type Future = ToolFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, call: ToolCall) -> ToolFuture {
        self.0.start_innermost(call)
    }
}

/// Executes calls with a user's service.
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
    fn start(&self, mut call: ToolCall, checks: Option<&Checks>) -> Started {
        match checked(call.part(), checks) {
            Ok("{}") => call.set_arguments(Arguments::new("{}")),
            Ok(_) => {}
            Err(outcome) => return Started::Refused(outcome),
        }
        Started::new(Oneshot::new(self.0.clone(), call))
    }

    fn validate(&self, call: &ToolCallPart, checks: &Checks) -> Result<(), ToolOutcome> {
        checked(call, Some(checks)).map(drop)
    }
}
