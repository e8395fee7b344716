//! Calls that the client executes. The client's result is checked against the output schema.

use crate::{arguments::Validator, overlong::limited, tool::MAX_RESULT_BYTES};
use concentric_core::{Reply, RoundCall, Ruling, ToolOutcome};

/// The outcome of a client's call after a reply.
pub(super) fn outcome(call: &RoundCall) -> ToolOutcome {
    let ruling = match call.state.stage.replies().first().map(Reply::ruling) {
        Some(Ok(ruling)) => ruling,
        _ => Ruling::Cancelled,
    };
    if let Ruling::Answered(result) = &ruling {
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
    let decided = call.state.decide(&call.call.arguments, None, &ruling);
    decided.map_or_else(
        |outcome| outcome,
        |_| ToolOutcome::cancelled("The call was cancelled."),
    )
}
