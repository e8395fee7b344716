//! The outcome of a call that may already have executed.

use super::{
    gates::definition,
    ledger::key_of,
    prompt,
    suspend_record::{Bound, SuspendRecord},
};
use crate::{Tool, panic::Caught, rules::Policy};
use concentric_core::{
    Error, Suspension, ToolCall, ToolOutcome,
    interrupt::SuspendedBy,
    store::{EffectKey, LedgerEntry},
};
use std::sync::Arc;

/// Recovers the outcome of a call that was abandoned while it ran, as after a crash. Returns a
/// suspension if the run must ask for the outcome, or an error if the ledger fails.
pub(crate) async fn find_outcome(
    rules: Arc<Policy>,
    tool: Tool,
    call: ToolCall,
    unknown: ToolOutcome,
) -> Result<ToolOutcome, Error> {
    let ledger = rules.ledger.as_ref();
    let effect = ledger.zip(key_of(&call));
    if let Some((ledger, key)) = &effect
        && let LedgerEntry::Finished(outcome) = ledger.known(key.clone()).await?
    {
        // The call ended before an outer layer abandoned it.
        return Ok(*outcome);
    }
    match (reconciled(&tool, &call).await, effect) {
        (Some(outcome), Some((ledger, key))) => ledger.settle(key, outcome).await,
        (Some(outcome), None) => Ok(outcome),
        (None, Some((_, key))) => match ask_effect(&rules, Some(&tool), &call, Some(key)) {
            Ok(on) => Err(Error::suspended_by(SuspendedBy::UnknownEffect, on)),
            Err(_) => Ok(unknown),
        },
        (None, None) => Ok(unknown),
    }
}

/// The outcome of a started call, if its tool can report it.
pub(crate) async fn reconciled(tool: &Tool, call: &ToolCall) -> Option<ToolOutcome> {
    match Caught::new(Box::pin(tool.reconciled(call))).await {
        Ok(outcome) => outcome,
        Err(_) => {
            let tool = call.name();
            tracing::error!(%tool, "the `reconcile` function of a tool panicked");
            None
        }
    }
}

/// Creates the interrupt that asks for the outcome of a started call; `key` is its ledger key.
/// Returns an unknown outcome if an interrupted run is not stored, so that no reply could be
/// accepted. The ledger entry stays started.
pub(crate) fn ask_effect(
    rules: &Policy,
    tool: Option<&Tool>,
    call: &ToolCall,
    key: Option<EffectKey>,
) -> Result<Suspension, ToolOutcome> {
    if !call.context.is_suspension_stored() {
        let tool = call.name();
        tracing::warn!(%tool, "the outcome of a call is unknown; no interrupt was raised, since interrupted runs are not stored");
        return Err(ToolOutcome::indeterminate());
    }
    let record = SuspendRecord {
        arguments: call.arguments().as_str().into(),
        arrived: None,
        bound: Bound::ToDecision,
        definition: definition(tool.map(Tool::spec)),
        policy: rules.policy(&call.context),
        effect: key.map(|key| key.key),
        inner: None,
    };
    let id = prompt::id(call, "#effect");
    Ok(record.suspension(vec![prompt::effect(call, id)]))
}
