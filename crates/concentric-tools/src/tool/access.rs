//! What the toolset and the pipeline read of a tool.

use super::{Home, Reconcile, Tool};
use crate::{ErrorFormat, ToolsetError, arguments::normal, truncation::limited};
use concentric_core::{Arguments, Context, Str, ToolCall, ToolCallPart, ToolOutcome, panic::catch};
use std::sync::Arc;

/// The number of runs that contain the run of `context`.
fn depth(context: &Context) -> usize {
    std::iter::successors(context.parent(), |context| context.parent()).count()
}

impl Tool {
    /// Assigns the tool to a toolset. Its errors have the `format` unless its own applies.
    pub(crate) fn of_toolset(mut self, home: Home, format: Option<&ErrorFormat>) -> Self {
        if let Some(outer) = format {
            let core = Arc::make_mut(&mut self.core);
            let own = core.error_format.take();
            core.error_format = Some(own.map_or_else(|| outer.clone(), |own| own.within(format)));
        }
        self.home = Some(home);
        self.stack = Arc::default();
        self
    }

    pub(crate) fn calls_agent(&self) -> bool {
        self.is_agent
    }

    /// Whether it makes other tools available.
    #[cfg(feature = "lazy")]
    pub(crate) const fn reveals(&self) -> bool {
        self.reveals
    }

    /// Marks the tool as one that makes other tools available.
    #[cfg(feature = "lazy")]
    pub(crate) fn revealing(mut self) -> Self {
        self.reveals = true;
        self.stack = Arc::default();
        self
    }

    /// Marks the tool as one that calls an agent.
    #[cfg(feature = "agent-tool")]
    pub(crate) fn calling_agent(mut self) -> Self {
        self.is_agent = true;
        self.stack = Arc::default();
        self
    }

    /// Whether the tool is offered to the run of `context`.
    pub(crate) fn is_offered_to(&self, context: &Context) -> bool {
        !self.is_agent || depth(context) < self.max_depth
    }

    /// The arguments as they are checked: `{}` if the model sent none.
    pub(crate) fn normal(&self, arguments: &Arguments) -> Arguments {
        normal(arguments)
    }

    /// Checks that the arguments of a call match the schema and decode to the function's type.
    /// Returns an outcome that states the position and the reason.
    pub(crate) fn validate(&self, call: &ToolCallPart) -> Result<(), ToolOutcome> {
        match catch(|| self.core.body.validate(call, &self.core.checks)) {
            Ok(result) => result,
            Err(panic) => Err(panic.outcome(&call.name)),
        }
    }

    pub(crate) fn own_error_format(&self) -> Option<&ErrorFormat> {
        self.core.error_format.as_ref()
    }

    pub(crate) fn may_run_again(&self) -> bool {
        self.core.spec.may_run_again()
    }

    pub(crate) fn has_layers(&self) -> bool {
        !self.layers.is_empty()
    }

    pub(crate) const fn has_reconcile(&self) -> bool {
        self.reconcile.is_some()
    }

    /// The outcome of an abandoned call, if the tool can report it.
    pub(crate) async fn reconciled(&self, call: &ToolCall) -> Option<ToolOutcome> {
        let Reconcile(reconcile) = self.reconcile.as_ref()?;
        reconcile(call.clone()).await
    }

    /// Truncates an outcome that did not come from the tool itself.
    pub(crate) fn limited(&self, outcome: ToolOutcome) -> ToolOutcome {
        limited(outcome, self.core.limits.max_result_bytes)
    }

    pub(crate) fn max_calls_of_run(&self) -> Option<(Str, u32)> {
        Some((self.core.spec.name.clone(), self.max_calls?))
    }

    /// The first requirement of the tool that `context` does not meet.
    pub(crate) fn misses(&self, context: &Context) -> Option<ToolsetError> {
        let mut missing = self.requires.iter().filter(|r| !(r.is_met)(context));
        missing.next().map(|missing| ToolsetError::MissingContext {
            tool: self.core.spec.name.clone(),
            type_name: missing.type_name,
        })
    }
}
