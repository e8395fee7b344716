//! The ledger: records effects before and after tools execute.

use super::{
    doubt::{ask_effect, reconciled},
    rule::Rules,
};
use crate::{Digest, Tool, fatal, panic::stored};
use concentric_core::{
    Answered, Context, Error, Interrupt, InterruptId, Pending, Str, ToolCall, ToolOutcome,
    ToolStatus,
    interrupt::SuspendedBy,
    store::{Effect, EffectKey, Intent, Ledger, StoreError, StoreFuture},
};
use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{self, Poll, ready},
};

/// The ledger of a toolset.
#[derive(Clone)]
pub(crate) struct Effects(Arc<dyn Ledger>);

impl Effects {
    pub(crate) fn new(ledger: impl Ledger) -> Self {
        Self(Arc::new(ledger))
    }

    /// Returns the ledger entry of `key`.
    pub(super) async fn known(&self, key: EffectKey) -> Result<Effect, Error> {
        stored(|| self.0.known(key)).await.map_err(failed)
    }

    /// Records the outcome that an operator reported, and returns the recorded one.
    pub(super) async fn resolve(&self, key: EffectKey, outcome: ToolOutcome) -> ToolOutcome {
        match self.settle(key, outcome.clone()).await {
            Ok(settled) => settled,
            Err(error) => {
                tracing::error!(%error, "recording the outcome of a call in the ledger failed");
                outcome
            }
        }
    }

    /// Records the outcome of a started call, and returns the recorded one: a slow process that was
    /// considered dead may have recorded its outcome first.
    pub(super) async fn settle(
        &self,
        key: EffectKey,
        outcome: ToolOutcome,
    ) -> Result<ToolOutcome, Error> {
        stored(|| self.0.finish(key.clone(), outcome.clone()))
            .await
            .map_err(failed)?;
        Ok(match self.known(key).await? {
            Effect::Done(first) => *first,
            // The ledger has lost the outcome.
            _ => outcome,
        })
    }
}

impl fmt::Debug for Effects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Effects").finish_non_exhaustive()
    }
}

/// Calls `tool`, unless the ledger has an entry of the call.
pub(crate) async fn run(
    rules: Arc<Rules>,
    effects: Effects,
    tool: Tool,
    call: ToolCall,
) -> Result<ToolOutcome, Error> {
    let Some(key) = key_of(&call.context, call.answered()) else {
        return tool.start_function(call).await;
    };
    let arguments: Str = call.arguments().as_str().into();
    let intent =
        Intent::new(call.name().clone(), arguments, &call.context).repeatable(tool.may_run_again());
    let begun = Begin::new(&call.context, &effects, key.clone(), intent).await;
    match begun.map_err(failed)? {
        Effect::New => {}
        // A failed call may be repeated if that is harmless; its success then replaces the failure
        // in the ledger.
        Effect::Done(outcome) if outcome.status == ToolStatus::Done || !tool.may_run_again() => {
            return Ok(*outcome);
        }
        Effect::Begun if !tool.may_run_again() => {
            let Some(outcome) = reconciled(&tool, &call).await else {
                return match ask_effect(&rules, Some(&tool), &call, Some(key)) {
                    Ok(asked) => Err(Error::waiting(asked)),
                    Err(unknown) => Ok(unknown),
                };
            };
            return effects.settle(key, outcome).await;
        }
        // Started before, and repeating it is harmless.
        _ => {}
    }
    let result = tool.start_function(call).await;
    // The effect of a call that failed with an error, is suspended or was abandoned is unknown, so
    // its entry stays started.
    if let Ok(outcome) = &result
        && outcome.status != ToolStatus::Unknown
        && let Err(error) = stored(|| effects.0.finish(key, outcome.clone())).await
    {
        // The entry stays started; a run that resumes elsewhere asks for the outcome.
        tracing::error!(%error, "recording the outcome of a call in the ledger failed");
    }
    result
}

/// The creation of a ledger entry before an effect.
///
/// If the future is dropped before it resolves, the call never starts, and the entry is retracted
/// after it was created.
struct Begin<'a> {
    context: &'a Context,
    effects: &'a Effects,
    key: EffectKey,
    // Taken when the future resolves.
    record: Option<StoreFuture<Effect>>,
}

impl<'a> Begin<'a> {
    fn new(context: &'a Context, effects: &'a Effects, key: EffectKey, intent: Intent) -> Self {
        let (ledger, name) = (Arc::clone(&effects.0), key.clone());
        let record = async move { stored(|| ledger.begin(name, intent)).await };
        Self {
            context,
            effects,
            key,
            record: Some(Box::pin(record)),
        }
    }
}

impl Future for Begin<'_> {
    type Output = Result<Effect, StoreError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> Poll<Self::Output> {
        let Some(record) = &mut self.record else {
            return Poll::Pending;
        };
        let recorded = ready!(record.as_mut().poll(cx));
        self.record = None;
        Poll::Ready(recorded)
    }
}

impl Drop for Begin<'_> {
    fn drop(&mut self) {
        let Some(record) = self.record.take() else {
            return;
        };
        let (ledger, key) = (Arc::clone(&self.effects.0), self.key.clone());
        self.context.defer(async move {
            // Another attempt may have created the entry.
            if let Ok(Effect::New) = record.await
                && let Err(error) = stored(|| ledger.retract(key)).await
            {
                tracing::warn!(%error, "retracting the ledger entry of a call that never started failed");
            }
        });
    }
}

/// A call without a ledger entry must not run.
fn failed(error: StoreError) -> Error {
    fatal(Error::from(error))
}

/// The ledger key of a call with these replies; `None` outside of a call.
pub(super) fn key_of(context: &Context, answered: Option<&Answered>) -> Option<EffectKey> {
    let mut key = EffectKey::of(context)?;
    // The effect after the replies has its own entry: the entry of the part that raised the
    // interrupts does not cover it.
    if let Some(asked) = answered.and_then(asked_by_itself) {
        key.key = format!("{}#{asked}", key.key).into();
    }
    Some(key)
}

/// Whether the call resumes with replies to its tool's own interrupts.
pub(crate) fn goes_on(call: &ToolCall) -> bool {
    call.answered().and_then(of_itself).is_some()
}

/// The tool's own suspension, if the replies are to it.
fn of_itself(answered: &Answered) -> Option<&Pending> {
    let pending = answered.pending.as_ref()?;
    (!pending.is_held() && pending.by == Some(SuspendedBy::Tool)).then_some(pending)
}

/// Identifies the tool's own suspension and the set of answered interrupts, independent of the
/// replies' contents: the tool continues once from there. A tool that waits again uses another id
/// or state.
fn asked_by_itself(answered: &Answered) -> Option<Digest> {
    let pending = of_itself(answered)?;
    let replies = &answered.replies;
    let is_replied = |id: &InterruptId| replies.iter().any(|reply| reply.interrupt_id == *id);
    let state = pending.state.as_ref().map(ToString::to_string);
    let mut fields = vec![state.as_deref().unwrap_or_default().as_bytes()];
    for Interrupt { id, .. } in &pending.interrupts {
        let replied: &[u8] = if is_replied(id) { b"replied" } else { b"" };
        fields.extend([id.as_str().as_bytes(), replied]);
    }
    Some(Digest::of_fields("concentric/asked", &fields))
}
