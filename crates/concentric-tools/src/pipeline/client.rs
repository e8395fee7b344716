//! Calls that the client executes. The client's result is checked against the output schema.

use crate::{arguments::Validator, tool::MAX_RESULT_BYTES, truncation::limited};
use concentric_core::{Decision, Reply, RoundCall, ToolOutcome};

/// The outcome of a client's call after a reply.
pub(super) fn outcome(call: &RoundCall) -> ToolOutcome {
    let decision = match call.state.stage.replies().first().map(Reply::decision) {
        Some(Ok(decision)) => decision,
        _ => Decision::Cancelled,
    };
    if let Decision::Answered(result) = &decision {
        let schema = call.spec.as_ref().and_then(|s| s.output_schema.as_ref());
        let checked = schema.map(|schema| {
            Validator::new(schema).and_then(|schema| schema.check(&result.to_string()))
        });
        return match checked {
            Some(Err(why)) => ToolOutcome::failed(format!(
                "The client's result of `{}` does not match the output schema: {why}",
                call.call.name
            )),
            _ => limited(ToolOutcome::of_value(result), MAX_RESULT_BYTES),
        };
    }
    let decided = call.state.decide(&call.call.arguments, None, &decision);
    decided.map_or_else(
        |outcome| outcome,
        |_| ToolOutcome::cancelled("The call was cancelled."),
    )
}
