//! What tools do to the world, written down before and after.

use super::{
    asked::Asked,
    doubt::{ask_effect, reconciled},
    rule::Rules,
};
use crate::{Digest, Tool, fatal, panic::stored};
use concentric_core::{
    Answered, Context, Error, Interrupt, InterruptId, Pending, Str, ToolCall, ToolOutcome,
    ToolStatus,
    store::{Effect, EffectKey, Intent, Ledger, StoreError, StoreFuture},
};
use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{self, Poll, ready},
};

/// Where effects are written down.
#[derive(Clone)]
pub(crate) struct Effects(Arc<dyn Ledger>);

impl Effects {
    pub(crate) fn new(ledger: impl Ledger) -> Self {
        Self(Arc::new(ledger))
    }

    /// What is known of the effect of `key`.
    pub(super) async fn known(&self, key: EffectKey) -> Result<Effect, Error> {
        stored(|| self.0.known(key)).await.map_err(failed)
    }

    /// Writes down what a person says that a call did, and returns what counts.
    pub(super) async fn resolve(&self, key: EffectKey, outcome: ToolOutcome) -> ToolOutcome {
        match self.settle(key, outcome.clone()).await {
            Ok(settled) => settled,
            Err(error) => {
                tracing::error!(%error, "what came of a call can't be written down");
                outcome
            }
        }
    }

    /// Writes down what came of a call that was begun, and returns what counts: a process that was
    /// thought dead may have said before what it did.
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
            // A ledger that has forgotten what it was told.
            _ => outcome,
        })
    }
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
    let Some(key) = key_of(&call.context, call.answered()) else {
        return tool.start_function(call).await;
    };
    let arguments: Str = call.arguments().as_str().into();
    let intent =
        Intent::new(call.name().clone(), arguments, &call.context).repeatable(tool.may_run_again());
    let begun = Begin::new(&call.context, &effects, key.clone(), intent).await;
    match begun.map_err(failed)? {
        Effect::New => {}
        // A failed effect may be repeated where that does no harm; its success then replaces the
        // failure in the ledger.
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
        // Begun before, and to begin it again does no harm.
        _ => {}
    }
    let result = tool.start_function(call).await;
    // The effect of a call that failed with an error, waits, or was given up is not known: it stays
    // begun.
    if let Ok(outcome) = &result
        && outcome.status != ToolStatus::Unknown
        && let Err(error) = stored(|| effects.0.finish(key, outcome.clone())).await
    {
        // It stays begun, and somebody is asked about it if the run goes on elsewhere.
        tracing::error!(%error, "what came of a call can't be written down");
    }
    result
}

/// The record of an effect that is about to begin.
///
/// If it is dropped before it resolves, the call never starts: once the record was made, it is
/// retracted.
struct Begin<'a> {
    context: &'a Context,
    effects: &'a Effects,
    key: EffectKey,
    // Taken out when it resolves.
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
            // Another attempt may have begun it before.
            if let Ok(Effect::New) = record.await
                && let Err(error) = stored(|| ledger.retract(key)).await
            {
                tracing::warn!(%error, "the record of a call that never started was not retracted");
            }
        });
    }
}

/// What is not known to be written down is not done.
fn failed(error: StoreError) -> Error {
    fatal(Error::from(error))
}

/// What the ledger calls the effect of a call that was answered so; `None` outside a call.
pub(super) fn key_of(context: &Context, answered: Option<&Answered>) -> Option<EffectKey> {
    let mut key = EffectKey::of(context)?;
    // What it does once it has its replies is begun for itself: that it was begun to ask says
    // nothing of it.
    if let Some(asked) = answered.and_then(asked_by_itself) {
        key.key = format!("{}#{asked}", key.key).into();
    }
    Some(key)
}

/// Whether the tool itself has asked something, and this is what was replied.
pub(crate) fn goes_on(call: &ToolCall) -> bool {
    call.answered().and_then(of_itself).is_some()
}

/// What the tool itself has asked, if this is what was replied.
fn of_itself(answered: &Answered) -> Option<&Pending> {
    let pending = answered.pending.as_ref()?;
    (!pending.is_held() && Asked::of(pending).is_none()).then_some(pending)
}

/// Names what the tool itself has asked and which of it was replied to, whatever the replies say: it
/// is begun once from there. A tool that asks again does so under another id, or in another state.
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
