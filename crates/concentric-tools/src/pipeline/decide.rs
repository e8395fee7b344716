//! Decides about a call that is not made.

use super::{GateResult, Pipeline, gate::stopped};
use crate::{call::arrival::decide_arrival, toolset::Toolset};
use concentric_core::{
    Clearance, Context, Error, RoundCall, ToolOutcome, Transcript, hooks::Flow,
    interrupt::SuspendedBy,
};
use std::{ops::ControlFlow, sync::Arc};

/// Decides about `call` as a round does: validates and prepares its arguments, and calls the gates
/// and the hooks. Returns the decision, with the prepared and edited arguments in `call`.
pub(crate) async fn decide_call(
    toolset: &Toolset,
    context: Context,
    transcript: Transcript,
    call: &mut RoundCall,
) -> Result<Flow<ToolOutcome>, Error> {
    toolset.check()?;
    let pipeline = Pipeline {
        toolset: toolset.clone(),
        transcript,
        context,
    };
    let clearance = match pipeline.decide(call).await? {
        ControlFlow::Continue(clearance) => clearance,
        ControlFlow::Break(flow) => return Ok(flow),
    };
    let view = pipeline.view(call, clearance);
    let (mut edited, decided) = toolset.ask_hooks(&pipeline.context, view).await;
    let mut flow = decided?;
    if flow == Flow::Continue
        && edited.arguments() != &call.call.arguments
        && let Some(tool) = pipeline.find(call)
    {
        edited.set_arguments(tool.normal(edited.arguments()));
        flow = decide_arrival(pipeline.rules(), tool, &edited).await?;
        call.call_mut().arguments = edited.arguments().clone();
    }
    Ok(flow)
}

impl Pipeline {
    /// Validates the call, and asks the gates about it.
    async fn decide(
        &self,
        call: &mut RoundCall,
    ) -> Result<ControlFlow<Flow<ToolOutcome>, Clearance>, Error> {
        if let Some(refusal) = call.refusal() {
            let mut outcome = refusal.outcome(&call.call);
            let view = || self.view(call, Clearance::Ungated);
            if let Some(hint) = self.toolset.hint_about(view) {
                outcome.content = hint.into();
            }
            return Ok(ControlFlow::Break(Flow::Answer(outcome)));
        }
        if let Some(tool) = self.find(call) {
            call.call_mut().arguments = tool.normal(&call.call.arguments);
            if let Err(refused) = tool.validate(&call.call) {
                return Ok(ControlFlow::Break(Flow::Answer(refused)));
            }
        }
        let results = self.gate_calls(std::slice::from_mut(call)).await;
        Ok(ControlFlow::Break(
            match results.and_then(|mut results| results.pop()) {
                None => Flow::Answer(stopped(call)),
                Some(GateResult::Enter {
                    clearance: Clearance::Settled(outcome),
                    ..
                }) => Flow::Answer(Arc::unwrap_or_clone(outcome)),
                Some(GateResult::Enter { clearance, .. }) => {
                    return Ok(ControlFlow::Continue(clearance));
                }
                Some(GateResult::Halt(outcome)) => Flow::Halt(outcome.halt.unwrap_or_default()),
                Some(GateResult::Ask(asked)) => {
                    return Err(Error::suspended_by(SuspendedBy::Gate, asked.on));
                }
                Some(GateResult::Suspend(on)) => {
                    return Err(Error::suspended_by(SuspendedBy::UnknownEffect, on));
                }
                Some(GateResult::Fail(error)) => return Err(error),
            },
        ))
    }
}
