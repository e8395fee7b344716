//! Decides about a call that is not made.

use super::{GateResult, Pipeline, gate::stopped};
use crate::toolset::Toolset;
use concentric_core::{
    Clearance, Context, Error, RoundCall, ToolCallPart, ToolOutcome, Transcript, hooks::Flow,
    interrupt::SuspendedBy,
};
use std::sync::Arc;

/// Decides about `call` as a round does: validates and prepares its arguments, and calls the gates
/// and the hooks. Returns the decision, with the prepared and edited arguments in `call`.
pub(crate) async fn decide_call(
    toolset: &Toolset,
    context: Context,
    transcript: Transcript,
    call: &mut ToolCallPart,
) -> Result<Flow<ToolOutcome>, Error> {
    toolset.check()?;
    let pipeline = Pipeline {
        toolset: toolset.clone(),
        transcript,
        context,
    };
    let mut round_call = RoundCall::new(0, call.clone());
    let mut flow = pipeline.decide(&mut round_call).await?;
    if flow == Flow::Continue {
        let view = pipeline.view(&round_call, Clearance::Ungated);
        let (edited, decided) = toolset.ask_hooks(&pipeline.context, view).await;
        flow = decided?;
        if flow == Flow::Continue && edited.arguments() != &round_call.call.arguments {
            round_call.call_mut().arguments = edited.arguments().clone();
            // The gates decide about a changed call once more.
            flow = pipeline.decide(&mut round_call).await?;
        }
    }
    call.arguments = round_call.call.arguments.clone();
    Ok(flow)
}

impl Pipeline {
    /// Validates the call, and asks the gates about it.
    async fn decide(&self, call: &mut RoundCall) -> Result<Flow<ToolOutcome>, Error> {
        if let Some(tool) = self.find(call) {
            call.call_mut().arguments = tool.normal(&call.call.arguments);
            if let Err(refused) = tool.validate(&call.call) {
                return Ok(Flow::Answer(refused));
            }
        }
        let results = self.gate_calls(std::slice::from_mut(call)).await;
        Ok(match results.and_then(|mut results| results.pop()) {
            None => Flow::Answer(stopped(call)),
            Some(GateResult::Enter {
                clearance: Clearance::Settled(outcome),
                ..
            }) => Flow::Answer(Arc::unwrap_or_clone(outcome)),
            Some(GateResult::Enter { .. }) => Flow::Continue,
            Some(GateResult::Halt(outcome)) => Flow::Halt(outcome.halt.unwrap_or_default()),
            Some(GateResult::Ask(asked)) => {
                return Err(Error::suspended_by(SuspendedBy::Gate, asked.on));
            }
            Some(GateResult::Suspend(on)) => {
                return Err(Error::suspended_by(SuspendedBy::UnknownEffect, on));
            }
            Some(GateResult::Fail(error)) => return Err(error),
        })
    }
}
