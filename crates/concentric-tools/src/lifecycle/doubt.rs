//! Recovery of calls that may already have executed: their process ended, or their approval was
//! used before.
//!
//! The known effect takes precedence over changed tools and gates: a call that was started is never
//! reported as not run.

use super::{
    asked::{Asked, Bound, Why},
    effects::{goes_on, key_of},
    gating::{Gating, Step, definition, is_read_only},
    question,
    record::ProtocolStep,
    rule::Rules,
};
use crate::{Tool, overlong::limited, panic::Caught, tool::MAX_RESULT_BYTES};
use concentric_core::{
    Answered, Arguments, Error, Pending, Reply, RoundCall, Ruling, ToolCall, ToolOutcome,
    ToolStatus,
    interrupt::SuspendedBy,
    store::{Effect, EffectKey, Tenant},
};
use serde_json::Value;
use std::sync::Arc;

/// Whether an earlier process started `call` and ended.
pub(crate) fn is_recovered(call: &RoundCall) -> bool {
    call.is_recovered() && !is_read_only(call)
}

/// Whether `call` was started before and has no recorded outcome: its process ended, its tool was
/// waiting, or its outcome was requested.
fn in_doubt(call: &RoundCall) -> bool {
    !is_read_only(call) && call.state.may_have_executed()
}

/// The outcome of a `call` that is not run: `otherwise`, or unknown if the call may have executed.
pub(crate) fn without_doubt(call: &RoundCall, otherwise: ToolOutcome) -> ToolOutcome {
    match in_doubt(call) {
        true => otherwise.into_indeterminate(),
        false => otherwise,
    }
}

/// The outcome of a call that is stopped at its tool: `otherwise`, or unknown if it started before.
pub(crate) fn not_gone_on(call: &ToolCall, otherwise: ToolOutcome) -> ToolOutcome {
    let read_only = call.spec().is_some_and(|spec| spec.annotations.read_only);
    match !read_only && (call.is_recovered() || goes_on(call)) {
        true => otherwise.into_indeterminate(),
        false => otherwise,
    }
}

impl Gating {
    /// Settles a call with the reply to the interrupt that asked for its outcome.
    pub(super) async fn effect_replied(&self, call: &mut RoundCall) -> Option<Step> {
        let answered = call.answered()?;
        let ruling = answered.replies.first().map(Reply::ruling);
        let asked = Asked::of(answered.pending.as_ref()?)?;
        if asked.why != Why::Effect {
            return None;
        }
        call.call_mut().arguments = asked.entering();
        let (outcome, how) = match ruling {
            Some(Ok(Ruling::Answered(result))) => (self.given(call, &result), "answered"),
            _ => (ToolOutcome::indeterminate(), "cancelled"),
        };
        self.record(call, ProtocolStep::Resumed(how));
        Some(Step::settled(
            match (&self.toolset.rules().effects, asked.effect) {
                (Some(effects), Some(key)) => {
                    let key = EffectKey::new(Tenant::of(&self.context), key);
                    effects.resolve(key, outcome).await
                }
                _ => outcome,
            },
        ))
    }

    /// The outcome with a result that an approver provided.
    pub(super) fn given(&self, call: &RoundCall, result: &Value) -> ToolOutcome {
        let outcome = ToolOutcome::by_person(result);
        match self.toolset.find(&call.call.name) {
            Some(tool) => tool.limited(outcome),
            None => limited(outcome, MAX_RESULT_BYTES),
        }
    }

    /// Settles a call whose process ended, or raises an interrupt that asks for its outcome; `None`
    /// if the call did not execute or may run again. Returns an error if the ledger fails.
    pub(super) async fn recover(&self, call: &mut RoundCall) -> Result<Option<Step>, Error> {
        let tool = self.toolset.find(&call.call.name);
        if let Some(tool) = tool {
            call.spec = Some(tool.spec().clone());
        }
        if !is_recovered(call) {
            return Ok(None);
        }
        let again = tool.is_some_and(Tool::may_run_again);
        match self.effect_of(call).await? {
            // A ledger that was added later has no entry.
            Some(Effect::New) if call.is_recorded() => {
                call.state.earlier = None;
                Ok(None)
            }
            Some(Effect::Done(outcome)) if outcome.status == ToolStatus::Done || !again => {
                Ok(Some(Step::settled(*outcome)))
            }
            _ if again => Ok(None),
            _ => self.ask_what_came(tool, call).await.map(Some),
        }
    }

    /// The ledger entry of a call; `None` without a ledger.
    pub(super) async fn effect_of(&self, call: &RoundCall) -> Result<Option<Effect>, Error> {
        let Some(effects) = &self.toolset.rules().effects else {
            return Ok(None);
        };
        match self.effect_key(call) {
            Some(key) => effects.known(key).await.map(Some),
            None => Ok(None),
        }
    }

    fn effect_key(&self, call: &RoundCall) -> Option<EffectKey> {
        let answered = call.answered().as_ref().map(by_tool);
        key_of(&self.context.at_call(call), answered.as_ref())
    }

    /// Settles a started call with its tool's `reconcile`, or raises an interrupt; the outcome
    /// stays unknown if an interrupted run is not stored.
    pub(super) async fn ask_what_came(
        &self,
        tool: Option<&Tool>,
        call: &RoundCall,
    ) -> Result<Step, Error> {
        let begun = self.as_begun(tool, call).await;
        let key = self.effect_key(call);
        if let Some(tool) = tool
            && let Some(outcome) = reconciled(tool, &begun).await
        {
            let rules = self.toolset.rules();
            return Ok(Step::settled(match (&rules.effects, key) {
                (Some(effects), Some(key)) => effects.settle(key, outcome).await?,
                _ => outcome,
            }));
        }
        let asked = ask_effect(self.toolset.rules(), tool, &begun, key);
        Ok(asked.map_or_else(Step::settled, Step::Wait))
    }

    /// The call as it was started.
    async fn as_begun(&self, tool: Option<&Tool>, call: &RoundCall) -> ToolCall {
        let mut begun = call.clone();
        let answered = call.answered();
        let answered = answered.as_ref();
        let asked = answered.and_then(|answered| Asked::of(answered.pending.as_ref()?));
        let replied = answered.and_then(|answered| answered.replies.first());
        match (asked, replied.map(Reply::ruling)) {
            (
                Some(asked),
                Some(Ok(Ruling::Approved {
                    edited: Some(edited),
                    ..
                })),
            ) if asked.why != Why::Tool => {
                begun.call_mut().arguments = Arguments::new(Value::Object(edited).to_string());
            }
            (Some(asked), _) => begun.call_mut().arguments = asked.decided(),
            (None, _) => {
                // If preparing fails, the model's arguments are kept.
                if let Some(tool) = tool
                    && self.prepare(tool, &mut begun).await.is_err()
                {
                    begun.call_mut().arguments = call.call.arguments.clone();
                }
            }
        }
        self.view(&begun)
    }
}

/// The outcome of `call` from the reply to the interrupt that asked for it.
pub(super) fn replied_effect(call: &RoundCall) -> Option<ToolOutcome> {
    let answered = call.answered()?;
    let asked = Asked::of(answered.pending.as_ref()?)?;
    let ruling = answered.replies.first()?.ruling();
    (asked.why == Why::Effect).then(|| match ruling {
        Ok(Ruling::Answered(result)) => limited(ToolOutcome::by_person(&result), MAX_RESULT_BYTES),
        _ => ToolOutcome::indeterminate(),
    })
}

/// Recovers the outcome of a call that was abandoned while it ran, as after a crash. Returns a
/// suspension if the run must ask for the outcome, or an error if the ledger fails.
pub(crate) async fn find_outcome(
    rules: Arc<Rules>,
    tool: Tool,
    call: ToolCall,
    unknown: ToolOutcome,
) -> Result<ToolOutcome, Error> {
    let effects = rules.effects.as_ref();
    let effect = effects.zip(key_of(&call.context, call.answered()));
    if let Some((effects, key)) = &effect
        && let Effect::Done(outcome) = effects.known(key.clone()).await?
    {
        // The call ended before an outer layer abandoned it.
        return Ok(*outcome);
    }
    match (reconciled(&tool, &call).await, effect) {
        (Some(outcome), Some((effects, key))) => effects.settle(key, outcome).await,
        (Some(outcome), None) => Ok(outcome),
        (None, Some((_, key))) => match ask_effect(&rules, Some(&tool), &call, Some(key)) {
            Ok(asked) => Err(Error::waiting(asked)),
            Err(_) => Ok(unknown),
        },
        (None, None) => Ok(unknown),
    }
}

/// The replies to the tool itself, without the lifecycle's own state.
pub(super) fn by_tool(answered: &Answered) -> Answered {
    let pending = answered.pending.as_ref();
    let asked = pending
        .and_then(Asked::of)
        .filter(|asked| asked.why == Why::Tool);
    let pending = match (pending, asked) {
        (Some(pending), Some(asked)) => {
            let mut own = Pending::asking(pending.interrupts.clone()).by(SuspendedBy::Tool);
            own.state = asked.inner;
            Some(own)
        }
        (pending, _) => pending.cloned(),
    };
    let mut own = Answered::new(pending, answered.replies.clone());
    own.accepted_at = answered.accepted_at;
    own.taken_up = answered.taken_up;
    own
}

/// The outcome of a started call, if its tool can report it.
pub(super) async fn reconciled(tool: &Tool, call: &ToolCall) -> Option<ToolOutcome> {
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
pub(super) fn ask_effect(
    rules: &Rules,
    tool: Option<&Tool>,
    call: &ToolCall,
    key: Option<EffectKey>,
) -> Result<Pending, ToolOutcome> {
    if !call.context.is_suspension_stored() {
        let tool = call.name();
        tracing::warn!(%tool, "the outcome of a call is unknown; no interrupt was raised, since interrupted runs are not stored");
        return Err(ToolOutcome::indeterminate());
    }
    let asked = Asked {
        why: Why::Effect,
        arguments: call.arguments().as_str().into(),
        arrived: None,
        bound: Bound::ToDecision,
        definition: definition(tool.map(Tool::spec)),
        policy: rules.policy(&call.context),
        effect: key.map(|key| key.key),
        inner: None,
    };
    let id = question::id(call, "#effect");
    Ok(asked.pending(vec![question::effect(call, id)]))
}
