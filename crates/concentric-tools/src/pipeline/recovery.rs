//! Recovery of calls that may already have executed: their process ended, or their approval was
//! used before.
//!
//! The known effect takes precedence over changed tools and gates: a call that was started is never
//! reported as not run.

use super::{GateResult, Pipeline};
use crate::{
    Tool,
    call::{
        effect::{ask_effect, reconciled},
        ledger::key_with_state,
        suspend_record::SuspendRecord,
    },
    tool::MAX_RESULT_BYTES,
    truncation::limited,
};
use concentric_core::{
    Arguments, Clearance, Decision, Error, Reply, RoundCall, ToolCall, ToolOutcome, ToolStatus,
    interrupt::SuspendedBy,
    store::{EffectKey, LedgerEntry, Tenant},
    trace::TraceStep,
};
use serde_json::Value;

impl Pipeline {
    /// Settles a call with the reply to the interrupt that requested its outcome.
    pub(super) async fn settle_with_effect(&self, call: &mut RoundCall) -> Option<GateResult> {
        let outcome = replied_effect(self.toolset.find(&call.call.name), call)?;
        let record = SuspendRecord::of(&call.state)?;
        call.call_mut().arguments = record.entering();
        self.record(
            call,
            TraceStep::Resumed(match outcome.status {
                ToolStatus::Unknown => "cancelled",
                _ => "answered",
            }),
        );
        Some(GateResult::settled(
            match (&self.rules().ledger, record.effect) {
                (Some(ledger), Some(key)) => {
                    let key = EffectKey::new(Tenant::of(&self.context), key);
                    ledger.resolve(key, outcome).await
                }
                _ => outcome,
            },
        ))
    }

    /// Settles a [recovered](RoundCall::is_recovered) call, or raises an interrupt that requests its outcome; `None`
    /// if the call did not execute or may run again. Returns an error if the ledger fails.
    pub(super) async fn recover(&self, call: &mut RoundCall) -> Result<Option<GateResult>, Error> {
        let tool = self.find(call);
        if call.state.read_only {
            return Ok(None);
        }
        let again = tool.is_some_and(Tool::may_run_again);
        match self.effect_of(call).await? {
            // A ledger that was added later has no entry.
            Some(LedgerEntry::New) if call.is_recorded() => {
                call.state.earlier = None;
                Ok(None)
            }
            Some(LedgerEntry::Finished(outcome))
                if outcome.status == ToolStatus::Done || !again =>
            {
                Ok(Some(GateResult::settled(*outcome)))
            }
            _ if again => Ok(None),
            _ => self.resolve_effect(tool, call).await.map(Some),
        }
    }

    /// The ledger entry of a call; `None` without a ledger.
    pub(super) async fn effect_of(&self, call: &RoundCall) -> Result<Option<LedgerEntry>, Error> {
        match (&self.rules().ledger, self.effect_key(call)) {
            (Some(ledger), Some(key)) => ledger.known(key).await.map(Some),
            _ => Ok(None),
        }
    }

    fn effect_key(&self, call: &RoundCall) -> Option<EffectKey> {
        let state = SuspendRecord::of(&call.state).and_then(|record| record.inner);
        let context = self.context.at_call(call);
        key_with_state(&context, call.state.resumed(), state.as_deref())
    }

    /// Settles a started call with its tool's `reconcile`, or raises an interrupt; the outcome
    /// stays unknown if an interrupted run is not stored.
    pub(super) async fn resolve_effect(
        &self,
        tool: Option<&Tool>,
        call: &RoundCall,
    ) -> Result<GateResult, Error> {
        let started = self.as_started(tool, call).await;
        let (rules, key) = (self.rules(), self.effect_key(call));
        if let Some(tool) = tool
            && let Some(outcome) = reconciled(tool, &started).await
        {
            return Ok(GateResult::settled(match (&rules.ledger, key) {
                (Some(ledger), Some(key)) => ledger.settle(key, outcome).await?,
                _ => outcome,
            }));
        }
        let asked = ask_effect(rules, tool, &started, key);
        Ok(asked.map_or_else(GateResult::settled, GateResult::Suspend))
    }

    /// The call as it was started.
    async fn as_started(&self, tool: Option<&Tool>, call: &RoundCall) -> ToolCall {
        let mut started = call.clone();
        let resume = call.state.resumed();
        let replied = resume.and_then(|it| it.replies.first());
        let is_by_tool = resume.is_some_and(|it| it.by == SuspendedBy::Tool);
        match (SuspendRecord::of(&call.state), replied.map(Reply::decision)) {
            (
                Some(_),
                Some(Ok(Decision::Approved {
                    edited: Some(edited),
                    ..
                })),
            ) if !is_by_tool => {
                started.call_mut().arguments = Arguments::new(Value::Object(edited).to_string());
            }
            (Some(record), _) => started.call_mut().arguments = record.decided(),
            (None, _) => {
                // If preparing fails, the model's arguments are kept.
                if let Some(tool) = tool
                    && self.prepare(tool, &mut started).await.is_err()
                {
                    started.call_mut().arguments = call.call.arguments.clone();
                }
            }
        }
        self.view(&started, Clearance::Ungated)
    }

    /// Converts the outcome of a call that only a client's history contains and that will not run
    /// to an unknown one, if the ledger has an entry for it.
    pub(super) async fn unless_started(
        &self,
        call: &RoundCall,
        outcome: ToolOutcome,
    ) -> GateResult {
        match self.effect_of(call).await {
            // The ledger has no entry of an execution.
            Ok(None | Some(LedgerEntry::New)) => GateResult::settled(outcome),
            Ok(Some(LedgerEntry::Finished(known))) if *known == outcome => {
                GateResult::settled(*known)
            }
            Ok(Some(_)) => GateResult::settled(outcome.into_indeterminate()),
            Err(error) => GateResult::Fail(error),
        }
    }
}

/// The outcome of `call` from the reply to the interrupt that requested it.
pub(super) fn replied_effect(tool: Option<&Tool>, call: &RoundCall) -> Option<ToolOutcome> {
    let resume = call.state.resumed()?;
    if resume.by != SuspendedBy::UnknownEffect {
        return None;
    }
    let decision = resume.replies.first()?.decision();
    let decided = call.state.decide(
        &call.call.arguments,
        None,
        &decision.unwrap_or(Decision::Cancelled),
    );
    decided.err().map(|outcome| limit(tool, outcome))
}

/// Limits the size of a result that an approver provided.
pub(super) fn limit(tool: Option<&Tool>, outcome: ToolOutcome) -> ToolOutcome {
    match tool {
        Some(tool) => tool.limited(outcome),
        None => limited(outcome, MAX_RESULT_BYTES),
    }
}
