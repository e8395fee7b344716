//! What tools do to the world, written down before and after.

use super::{
    asked::Asked,
    gating::{ask_effect, reconciled},
    rule::Rules,
};
use crate::{Tool, fatal};
use concentric_core::{
    Error, Str, ToolCall, ToolOutcome, ToolStatus,
    store::{Effect, EffectKey, Intent, Ledger, StoreError},
};
use std::{fmt, sync::Arc};

/// Where effects are written down.
#[derive(Clone)]
pub(crate) struct Effects(Arc<dyn Ledger>);

impl Effects {
    pub(crate) fn new(ledger: impl Ledger) -> Self {
        Self(Arc::new(ledger))
    }

    /// Writes down what a person says that a call did, and returns what counts.
    pub(super) async fn resolve(&self, call: &ToolCall, outcome: ToolOutcome) -> ToolOutcome {
        let Some(key) = EffectKey::of(&call.context) else {
            return outcome;
        };
        match self.settle(key, call, outcome.clone()).await {
            Ok(settled) => settled,
            Err(error) => {
                tracing::error!(%error, "what came of a call can't be written down");
                outcome
            }
        }
    }

    /// Writes down what came of a call that was begun, and returns what counts: a process that was
    /// thought dead may have said before what it did.
    async fn settle(
        &self,
        key: EffectKey,
        call: &ToolCall,
        outcome: ToolOutcome,
    ) -> Result<ToolOutcome, StoreError> {
        self.0.finish(key.clone(), outcome.clone()).await?;
        Ok(match self.0.begin(key, intent(call)).await? {
            Effect::Done(first) => *first,
            // `Begun`, by a ledger that has forgotten what it was told.
            _ => outcome,
        })
    }
}

fn intent(call: &ToolCall) -> Intent {
    let arguments: Str = call.arguments().as_str().into();
    Intent::new(call.name().clone(), arguments, &call.context)
}

impl fmt::Debug for Effects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Effects").finish_non_exhaustive()
    }
}

/// Calls `tool`, unless the ledger says that it was called.
pub(crate) async fn run(
    rules: Arc<Rules>,
    effects: Effects,
    tool: Tool,
    call: ToolCall,
) -> Result<ToolOutcome, Error> {
    let Some(key) = EffectKey::of(&call.context) else {
        return tool.start_function(call).await;
    };
    let arguments: Str = call.arguments().as_str().into();
    let intent = Intent::new(call.name().clone(), arguments, &call.context);
    match effects.0.begin(key.clone(), intent).await.map_err(failed)? {
        Effect::New => {}
        // It waited by itself, and is called with the replies.
        Effect::Begun if goes_on(&call) && !call.is_recovered() => {}
        // An effect that failed may be tried again where that does no harm.
        Effect::Done(outcome) if outcome.status == ToolStatus::Done || !tool.may_run_again() => {
            return Ok(*outcome);
        }
        Effect::Begun if !tool.may_run_again() => {
            let Some(outcome) = reconciled(&tool, &call).await else {
                return Err(Error::waiting(ask_effect(&rules, &tool, &call)));
            };
            effects
                .0
                .finish(key, outcome.clone())
                .await
                .map_err(failed)?;
            return Ok(outcome);
        }
        // Begun before, and to begin it again does no harm.
        _ => {}
    }
    let result = tool.start_function(call).await;
    // What an error leaves behind is not known, and a call that waits is not done.
    if let Ok(outcome) = &result
        && let Err(error) = effects.0.finish(key, outcome.clone()).await
    {
        // It stays begun, and somebody is asked about it if the run goes on elsewhere.
        tracing::error!(%error, "what came of a call can't be written down");
    }
    result
}

/// What is not known to be written down is not done.
fn failed(error: StoreError) -> Error {
    fatal(Error::from(error))
}

/// Whether the tool itself has asked something, and this is what was replied.
pub(crate) fn goes_on(call: &ToolCall) -> bool {
    let pending = call
        .answered()
        .and_then(|answered| answered.pending.as_ref());
    pending.is_some_and(|pending| Asked::of(pending).is_none())
}
