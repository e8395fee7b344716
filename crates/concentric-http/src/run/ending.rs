//! The ends of runs.

use concentric_core::{
    CancelReason, Context, Error, ErrorKind, Interrupt, Outcome, Phase, Str, ToolNameTaken,
    ToolSpecs, Usage,
    interrupt::{CLIENT_TOOL, TOOL_CALL},
    panic::catch,
};
use tracing::field::display;

use super::{Metadata, TOKEN, object, subagent_of};
use crate::describe::{ErrorMessage, describe, refusal, source};

/// The message of an error for the client.
pub(crate) fn message(describe_by: &ErrorMessage, error: &Error) -> String {
    // The host's function may panic.
    catch(|| describe_by(error)).unwrap_or_else(|_| describe(error))
}

/// The name conflict between a tool of the client and an agent's tool, if that is the cause of
/// `error`.
pub(crate) fn name_taken<'a>(
    error: &'a Error,
    tools: &ToolSpecs,
    run: &Context,
) -> Option<&'a ToolNameTaken> {
    let taken = source::<ToolNameTaken>(error)?;
    // The conflict may also be with a tool that a layer of the host added to the request.
    tools.get(&taken.name)?;
    let thread = run.thread_id().map(display);
    tracing::info!(
        thread_id = thread, run_id = %run.run_id(), tool = taken.name.as_str(),
        "client tool has the name of an agent's tool"
    );
    Some(taken)
}

/// The code and message of a conflict between a new run and another run.
pub(super) fn conflict<'a>(
    error: &'a Error,
    describe_by: &ErrorMessage,
    run: &Context,
) -> Option<(&'a str, String)> {
    // A conflict in the model phase comes from the provider.
    if error.kind() != ErrorKind::Conflict || error.phase() == Some(Phase::Model) {
        return None;
    }
    let code = refusal(error)?;
    let thread = run.thread_id().map(display);
    tracing::warn!(thread_id = thread, run_id = %run.run_id(), code, "run rejected");
    Some((code, message(describe_by, error)))
}

/// The name of a cancellation's cause.
pub(crate) fn reason_of(reason: &CancelReason) -> &str {
    match reason {
        CancelReason::User => "user",
        CancelReason::Disconnected => "disconnected",
        CancelReason::Shutdown => "shutdown",
        CancelReason::Other(reason) => reason.as_str(),
        _ => "other",
    }
}

/// The metadata of the end of a run that was stopped before its goal.
pub(crate) fn stopped(outcome: &Outcome) -> Metadata {
    let (stopped, reason) = match outcome {
        Outcome::Aborted { reason } => (None, Some(reason_of(reason))),
        Outcome::Halted { reason } => (Some("halted"), Some(reason.as_str())),
        Outcome::StepLimit => (Some("step_limit"), None),
        Outcome::CallLimit => (Some("call_limit"), None),
        _ => (None, None),
    };
    let fields = [("outcome", stopped), ("reason", reason)];
    let set = |(name, value): (&str, Option<&str>)| Some((name.to_owned(), value?.into()));
    fields.into_iter().filter_map(set).collect()
}

/// The largest integer that a client accepts, a safe integer of JavaScript.
const MAX_COUNT: u64 = (1 << 53) - 1;

/// The tokens that a run used; `None` if there are none.
pub(crate) fn token_usage(
    usage: &Usage,
    provider: Option<&Str>,
    model: Option<&Str>,
) -> Option<Metadata> {
    if *usage == Usage::default() {
        return None;
    }
    let name = |name: Option<&Str>| name.map(|name| name.as_str().into());
    let count = |count: Option<u64>| count.map(|count| count.min(MAX_COUNT).into());
    Some(object([
        ("provider", name(provider)),
        ("model", name(model)),
        ("inputTokens", count(usage.input_tokens())),
        ("outputTokens", count(usage.output_tokens())),
        ("totalTokens", count(usage.total_tokens())),
        ("reasoningTokens", count(usage.reasoning_tokens())),
        ("cachedInputTokens", count(usage.cached_input_tokens())),
        ("cacheWriteInputTokens", count(usage.cache_write_tokens())),
    ]))
}

/// Returns whether a later request can answer `interrupt`: its run is stored, the interrupt has
/// a token, or the history will contain the result of a client tool.
///
/// An interrupt of a sub-agent needs the state of the run around it, which a token does not
/// contain.
pub(crate) fn accepts_reply(is_stored: bool, interrupt: &Interrupt) -> bool {
    is_stored
        || subagent_of(interrupt).is_none()
            && (interrupt.reason == CLIENT_TOOL || interrupt.metadata.contains_key(TOKEN))
}

/// The error of a run that ends with an interrupt whose reply could not be accepted.
pub(crate) fn unanswerable(interrupt: &Interrupt) -> Error {
    let add = match subagent_of(interrupt) {
        None if interrupt.reason == TOOL_CALL => {
            "add `SuspendLayer` around the agent, or `Toolset::tokens`"
        }
        _ => "add `SuspendLayer` around the agent",
    };
    let message = format!(
        "no reply to interrupt `{}` can be accepted, since the run is not stored: {add}",
        interrupt.id
    );
    Error::new(ErrorKind::Configuration, message).with_code("not_resumable")
}

pub(crate) fn undecidable() -> Error {
    Error::new(
        ErrorKind::Configuration,
        "the run waits for a decision that this endpoint cannot accept",
    )
}
