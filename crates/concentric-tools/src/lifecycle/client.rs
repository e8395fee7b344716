//! Calls that the client executes: what it answers is checked, and goes on as a result.

use crate::{arguments::Validator, overlong::limited, tool::MAX_RESULT_BYTES};
use concentric_core::{Reply, RoundCall, Ruling, Str, ToolOutcome};

/// What came of a call of the client's, which was replied to.
pub(super) fn outcome(call: &RoundCall) -> ToolOutcome {
    let replies = call.answered.as_ref().map(|answered| &answered.replies);
    let ruling = replies
        .and_then(|replies| replies.first())
        .map(Reply::ruling);
    match ruling {
        Some(Ok(Ruling::Answered(result))) => {
            let schema = call.spec.as_ref().and_then(|s| s.output_schema.as_ref());
            if let Some(schema) = schema
                && let Err(why) =
                    Validator::new(schema).and_then(|schema| schema.check(&result.to_string()))
            {
                return ToolOutcome::failed(format!(
                    "The result of `{}` is not what it is to be: {why}",
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
