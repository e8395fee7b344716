//! The ledger: records effects before and after tools execute.

use super::effect::{ask_effect, reconciled};
use crate::{
    Digest, Tool,
    rules::{LedgerHandle, Policy},
};
use concentric_core::{
    Context, Error, Interrupt, InterruptId, Str, ToolCall, ToolOutcome, ToolStatus,
    call::CallResume,
    interrupt::SuspendedBy,
    store::{EffectKey, Intent, LedgerEntry},
};
use serde_json::Value;
use std::sync::Arc;

/// Calls `tool`, unless the ledger has an entry of the call.
pub(super) async fn run(
    rules: Arc<Policy>,
    ledger: LedgerHandle,
    tool: Tool,
    call: ToolCall,
) -> Result<ToolOutcome, Error> {
    let Some(key) = key_of(&call) else {
        return tool.start_function(call).await;
    };
    let arguments: Str = call.arguments().as_str().into();
    let intent =
        Intent::new(call.name().clone(), arguments, &call.context).repeatable(tool.may_run_again());
    match ledger.begin(&call.context, key.clone(), intent).await? {
        LedgerEntry::New => {}
        // A failed call may be repeated if that is harmless; its success then replaces the failure
        // in the ledger.
        LedgerEntry::Finished(outcome)
            if outcome.status == ToolStatus::Done || !tool.may_run_again() =>
        {
            return Ok(*outcome);
        }
        LedgerEntry::Started if !tool.may_run_again() => {
            let Some(outcome) = reconciled(&tool, &call).await else {
                return match ask_effect(&rules, Some(&tool), &call, Some(key)) {
                    Ok(on) => Err(Error::suspended_by(SuspendedBy::UnknownEffect, on)),
                    Err(unknown) => Ok(unknown),
                };
            };
            return ledger.settle(key, outcome).await;
        }
        // Started before, and repeating it is harmless.
        _ => {}
    }
    let result = tool.start_function(call).await;
    // The effect of a call that failed with an error, is suspended or was abandoned is unknown, so
    // its entry stays started.
    if let Ok(outcome) = &result
        && outcome.status != ToolStatus::Unknown
    {
        ledger.finish(key, outcome.clone()).await;
    }
    result
}

/// The ledger key of a call; `None` outside of a round.
pub(crate) fn key_of(call: &ToolCall) -> Option<EffectKey> {
    let resumed = call.resumed();
    let state = resumed.and_then(|resume| resume.on.state.as_deref());
    key_with_state(&call.context, resumed, state)
}

/// The ledger key of the call of `context`, which resumes with `state` of its tool.
pub(crate) fn key_with_state(
    context: &Context,
    resumed: Option<&CallResume>,
    state: Option<&Value>,
) -> Option<EffectKey> {
    let mut key = EffectKey::of(context)?;
    // The effect after the replies has its own entry: the entry of the part that raised the
    // interrupts does not cover it.
    if let Some(resume) = resumed.filter(|resume| resume.by == SuspendedBy::Tool) {
        key.key = format!("{}#{}", key.key, part_of(resume, state)).into();
    }
    Some(key)
}

/// Identifies the tool's own suspension and the set of answered interrupts, independent of the
/// replies' contents: the tool continues once from there. A tool that waits again uses another id
/// or state.
fn part_of(resume: &CallResume, state: Option<&Value>) -> Digest {
    let is_replied =
        |id: &InterruptId| resume.replies.iter().any(|reply| reply.interrupt_id == *id);
    let state = state.map(ToString::to_string);
    let mut fields = vec![state.as_deref().unwrap_or_default().as_bytes()];
    for Interrupt { id, .. } in &resume.on.interrupts {
        let replied: &[u8] = if is_replied(id) { b"replied" } else { b"" };
        fields.extend([id.as_str().as_bytes(), replied]);
    }
    Digest::of_fields("concentric/asked", &fields)
}
