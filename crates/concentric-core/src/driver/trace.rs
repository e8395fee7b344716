//! The steps of a trace that only the driver knows.

use super::run::Run;
use crate::{
    request::ChatRequest,
    step_gate::{Decided, Moment},
    tool_call::ToolRound,
    trace::TraceStep,
};
use concentric_proto::{Error, machine::Input};

/// Records the call of a model.
pub(super) fn model_called(request: &ChatRequest) {
    request.context.record(|| TraceStep::ModelCalled {
        step: request.context.step(),
        turns: request.transcript.len(),
        tools: request.tools.len(),
    });
}

impl<M, R> Run<M, R> {
    /// Records the start of a round; a round that continues after a suspension has one.
    pub(super) fn trace_round(&self, round: &ToolRound) {
        if self.machine.is_round_new() {
            self.context.record(|| TraceStep::RoundStarted {
                step: round.context.step(),
                calls: round.calls.len(),
            });
        }
    }

    /// Records the decision of the step gates.
    pub(super) fn trace_decision(&self, moment: Moment, decided: &Result<Decided, Error>) {
        self.context.record(|| TraceStep::Decided {
            before: moment.name(),
            decision: match decided.as_ref().map(|decided| &decided.input) {
                Ok(None) => "continue",
                Ok(Some(Input::Ask(_))) => "ask",
                Ok(Some(Input::Halt(_))) => "halt",
                Ok(Some(Input::SkipRound(_))) => "skip",
                Ok(Some(Input::Reject | Input::Continue)) => "retry",
                Ok(Some(_)) => "finish",
                Err(_) => "error",
            },
        });
    }
}
