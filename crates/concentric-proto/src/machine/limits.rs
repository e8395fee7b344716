use crate::{
    call::{LimitScope, Refusal},
    interrupt::{Decision, Reply, ReplyError},
    message::{Arguments, ToolCallPart},
    run_state::{Calls, StoredCall},
    text::Str,
};
use serde_json::Value;
use std::sync::Arc;

/// The limits and the configuration of a run. They are supplied by the driver and not stored with
/// the run's state.
#[derive(Clone)]
#[non_exhaustive]
pub struct RunLimits {
    /// The maximum number of steps; 32 by default. Steps that are free of charge
    /// ([`ToolOutcome::free`](crate::ToolOutcome::free)) do not count, up to the same number.
    pub steps: u32,
    /// The maximum number of tool calls in a run. A call over the limit returns an error, and no
    /// further step starts.
    pub calls: Option<u32>,
    /// The maximum number of tool calls in one answer. A call over the limit returns an error.
    pub calls_per_round: Option<u32>,
    /// The maximum number of calls per tool in a run. A call over the limit returns an error.
    pub calls_per_tool: Vec<(Str, u32)>,
    /// Whether the round service can resume calls that were suspended or were running when a
    /// process ended. Otherwise the machine settles them itself.
    pub resumes: bool,
    /// Whether the round service records tool effects in a ledger.
    pub ledger: bool,
    /// Whether the run waits for permission before it finishes
    /// ([`Action::MayFinish`](super::Action::MayFinish)).
    pub asks_to_finish: bool,
    /// Whether rounds that only contain client calls are handed out as well, without calls
    /// ([`Action::RunTools`](super::Action::RunTools)).
    pub asks_before_round: bool,
    /// The check of edited arguments in replies; by default all edits are accepted. If a reply is
    /// rejected, its interrupt remains open. See [`check_edit`].
    pub edits: Option<Arc<CheckEdit>>,
}

/// Returns the reason for a rejection of the edited call.
type CheckEdit = dyn Fn(&ToolCallPart) -> Result<(), Str> + Send + Sync;

/// Checks the edited arguments in `reply`, if it contains any; `check` receives the edited call and
/// returns the reason for a rejection.
///
/// ```
/// use concentric_proto::{CallId, InterruptId, Reply, ToolCallPart, machine::check_edit};
/// use serde_json::json;
///
/// let small = |call: &ToolCallPart| match call.arguments.as_str().len() {
///     0..=16 => Ok(()),
///     _ => Err("the arguments are too long".into()),
/// };
/// let call = ToolCallPart::new(CallId::new("call_1"), "pay", "{}");
/// let edit = |eur: u64| Reply::approve_edited(InterruptId::new("i"), json!({"eur": eur}));
/// assert!(check_edit(&call, &edit(5), small).is_ok());
/// let error = check_edit(&call, &edit(u64::MAX), small).unwrap_err();
/// assert_eq!(error.code(), "malformed_reply");
/// ```
///
/// # Errors
///
/// [`ReplyError::Malformed`]: the check rejects the edited arguments.
pub fn check_edit(
    call: &ToolCallPart,
    reply: &Reply,
    check: impl Fn(&ToolCallPart) -> Result<(), Str>,
) -> Result<(), ReplyError> {
    let Ok(Decision::Approved {
        edited: Some(edited),
        ..
    }) = reply.decision()
    else {
        return Ok(());
    };
    let mut call = call.clone();
    call.arguments = Arguments::new(Value::Object(edited).to_string());
    check(&call).map_err(|why| ReplyError::Malformed {
        id: reply.interrupt_id.clone(),
        why,
    })
}

impl Default for RunLimits {
    fn default() -> Self {
        Self {
            steps: 32,
            calls: None,
            calls_per_round: None,
            calls_per_tool: Vec::new(),
            resumes: false,
            ledger: false,
            asks_to_finish: false,
            asks_before_round: false,
            edits: None,
        }
    }
}

impl RunLimits {
    /// Counts the calls of a new round, and refuses those over a limit. Refused and denied calls
    /// count.
    pub(super) fn count(&self, calls: &mut Calls, stored: &mut [StoredCall]) {
        let mut in_round = 0;
        for call in stored {
            in_round += 1;
            calls.total = calls.total.saturating_add(1);
            let name = &call.call.name;
            let per_tool = self.calls_per_tool.iter().find(|(tool, _)| tool == name);
            let per_tool = per_tool.map(|(_, limit)| {
                let count = calls.by_tool.entry(name.clone()).or_default();
                *count = count.saturating_add(1);
                (Some(*limit), *count, LimitScope::Tool)
            });
            let limits = [
                Some((self.calls, calls.total, LimitScope::Run)),
                Some((self.calls_per_round, in_round, LimitScope::Round)),
                per_tool,
            ];
            let over = limits.into_iter().flatten().find_map(|(limit, count, of)| {
                let calls = limit.filter(|limit| count > *limit)?;
                Some(Refusal::Limit { calls, of })
            });
            if let Some(over) = over {
                call.refuse(over);
            }
        }
    }

    /// Returns whether the run has exceeded its limit on calls.
    pub(super) fn is_over(&self, calls: &Calls) -> bool {
        self.calls.is_some_and(|limit| calls.total > limit)
    }
}

crate::opaque_debug!(RunLimits);
