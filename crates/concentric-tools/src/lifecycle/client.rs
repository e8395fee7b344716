//! Calls that the client executes. The client's result is checked against the output schema.

use crate::{arguments::Validator, overlong::limited, tool::MAX_RESULT_BYTES};
use concentric_core::{Reply, RoundCall, Ruling, Str, ToolOutcome};

/// The outcome of a client's call after a reply.
pub(super) fn outcome(call: &RoundCall) -> ToolOutcome {
    let ruling = call.state.stage.replies().first().map(Reply::ruling);
    match ruling {
        Some(Ok(Ruling::Answered(result))) => {
            let schema = call.spec.as_ref().and_then(|s| s.output_schema.as_ref());
            if let Some(schema) = schema
                && let Err(why) =
                    Validator::new(schema).and_then(|schema| schema.check(&result.to_string()))
            {
                return ToolOutcome::failed(format!(
                    "The client's result of `{}` does not match the output schema: {why}",
                    call.call.name
                ));
            }
            limited(ToolOutcome::of_value(&result), MAX_RESULT_BYTES)
        }
        Some(Ok(Ruling::Failed(error))) => ToolOutcome::failed(error),
        Some(Ok(Ruling::Denied { reason, .. })) => {
            ToolOutcome::denied(reason.unwrap_or_else(|| Str::from_static("The call was denied.")))
        }
        _ => ToolOutcome::cancelled("The call was cancelled."),
    }
}
