//! Names of outcomes, as observers record them.

use concentric_core::{Error, FinishReason, Outcome, ToolCall, ToolStatus};

/// The value of a required field that is unknown.
pub(crate) const OTHER: &str = "_OTHER";

/// The name of a call's tool; a model may have invented any other.
pub(crate) fn tool_name(call: &ToolCall) -> &str {
    call.spec().map_or(OTHER, |spec| spec.name.as_str())
}

/// The code of an error, if it has the form of a name: a provider may send any text.
pub(crate) fn code_name(error: &Error) -> Option<&str> {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.:".contains(&byte);
    let is_name = |code: &&str| code.len() <= 64 && code.bytes().all(is_part);
    error.code().filter(is_name)
}

pub(crate) const fn outcome_name(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Completed => "completed",
        Outcome::Interrupted => "interrupted",
        Outcome::Halted { .. } => "halted",
        Outcome::Aborted { .. } => "aborted",
        Outcome::StepLimit => "step_limit",
        Outcome::CallLimit => "call_limit",
        _ => "other",
    }
}

pub(crate) const fn reason_name(reason: &FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
        FinishReason::ToolCalls => "tool_calls",
        FinishReason::ContentFilter => "content_filter",
        // The provider's own text may be anything.
        _ => "other",
    }
}

pub(crate) const fn status_name(status: ToolStatus) -> &'static str {
    match status {
        ToolStatus::Done => "done",
        ToolStatus::Failed => "failed",
        ToolStatus::Denied => "denied",
        ToolStatus::Cancelled => "cancelled",
        ToolStatus::Unknown => "unknown",
        _ => "other",
    }
}
