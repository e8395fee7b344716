//! Resumption of suspended calls with their replies.

use super::{GateResult, Pipeline, recovery::limit};
use crate::{
    Tool,
    call::{
        gates::{decide, decide_edited, definition},
        prompt,
        suspend_record::{Bound, SuspendRecord},
    },
    gate::{Ask, Verdict},
    rules::Invalid,
};
use concentric_core::{
    Arguments, Clearance, Decision, InterruptId, Reply, RoundCall, Str, ToolCall, ToolOutcome,
    call::{CallResume, CallStage},
    interrupt::SuspendedBy,
    trace::TraceStep,
};
use serde_json::{Map, Value};

impl Pipeline {
    /// Decides about a call whose tool is in the toolset.
    pub(super) async fn resume(&self, tool: &Tool, call: &mut RoundCall) -> GateResult {
        match call.state.stage.clone() {
            CallStage::Unverified(unverified) => match unverified.replies.first() {
                Some(reply) => {
                    let interrupted = unverified.interrupted;
                    Box::pin(self.resume_unverified(tool, call, reply, interrupted)).await
                }
                None => Box::pin(self.gate_unverified(tool, call)).await,
            },
            CallStage::Resumed(resume) => {
                Box::pin(self.resume_suspended(tool, call, &resume)).await
            }
            _ => self.gate_fresh(tool, call).await,
        }
    }

    /// Decides about an open call without a reply that only a client's history contains: it requires
    /// an approval or does not run, since the history is no proof that the model made it.
    async fn gate_unverified(&self, tool: &Tool, call: &mut RoundCall) -> GateResult {
        if let Err(outcome) = self.prepare_unverified(tool, call).await {
            return GateResult::settled(outcome);
        }
        let (view, verdict) = self.verdict(call).await;
        match verdict {
            Verdict::Ask(ask) => self.ask(tool, &view, ask),
            Verdict::Deny(reason) => GateResult::settled(ToolOutcome::denied(reason)),
            Verdict::Halt(reason) => GateResult::halt(reason),
            Verdict::Pass | Verdict::Allow => GateResult::settled(ToolOutcome::cancelled(
                "The call was not run while another call waited for a decision. Call the tool again \
                 if it is still needed.",
            )),
        }
    }

    /// Applies a reply that contains the proof of its interrupt.
    async fn resume_unverified(
        &self,
        tool: &Tool,
        call: &mut RoundCall,
        reply: &Reply,
        interrupted: bool,
    ) -> GateResult {
        let (record, verdict) = match self.prove(tool, call, reply, interrupted).await {
            Ok(proved) => proved,
            Err(result) => return result,
        };
        match reply.decision() {
            Ok(decision) => {
                self.apply_reply(tool, call, reply, decision, &record, Some(verdict))
                    .await
            }
            Err(_) => self.invalid(call, Invalid::MISSING),
        }
    }

    async fn resume_suspended(
        &self,
        tool: &Tool,
        call: &mut RoundCall,
        resume: &CallResume,
    ) -> GateResult {
        let Some(reply) = resume.replies.first() else {
            // The process ended before a reply.
            return self.gate_fresh(tool, call).await;
        };
        let Some(record) = SuspendRecord::of(&call.state) else {
            return self.invalid(call, Invalid::MISSING);
        };
        call.call_mut().arguments = record.entering();
        if resume.by == SuspendedBy::Tool {
            return self.call_again(tool, call, record).await;
        }
        let Ok(decision) = reply.decision() else {
            return self.invalid(call, Invalid::MISSING);
        };
        if let Some(tokens) = &self.rules().tokens
            && resume.by == SuspendedBy::Gate
        {
            // The interrupt is used up now, so the reply must not be returned to the caller.
            self.context.count_effect();
            match tokens.decided(&reply.interrupt_id, &self.context).await {
                Ok(()) => {}
                // Used by the process that ended.
                Err(Invalid::USED) if resume.interrupted => {}
                Err(Invalid::USED) => return self.used(tool, call).await,
                Err(invalid) => return self.invalid(call, invalid),
            }
        }
        self.apply_reply(tool, call, reply, decision, &record, None)
            .await
    }

    /// Applies a reply if the tool and the gates still allow it. `verdict` is that of the gates, if
    /// they have decided.
    async fn apply_reply(
        &self,
        tool: &Tool,
        call: &mut RoundCall,
        reply: &Reply,
        decision: Decision,
        record: &SuspendRecord,
        verdict: Option<Verdict>,
    ) -> GateResult {
        let id = &reply.interrupt_id;
        let arrived = record.arrived.clone().map(Arguments::new);
        let mut view = self.view(call, Clearance::Ungated);
        if let Some(arrived) = &arrived {
            view.set_arguments(arrived.clone());
        }
        if self.has_drifted(tool, record) && matches!(decision, Decision::Approved { .. }) {
            return self.changed_since(call, id, &view).await;
        }
        // The gates determine the observers, and a gate may deny the call now.
        let verdict = match verdict {
            Some(verdict) => verdict,
            None => decide(self.rules(), &view).await,
        };
        let ask = match verdict {
            Verdict::Deny(reason) => {
                self.record(call, TraceStep::Resumed("denied"));
                self.notify_denied(id, &view, reason.clone()).await;
                return GateResult::settled(ToolOutcome::denied(reason));
            }
            Verdict::Halt(reason) => {
                self.notify_denied(id, &view, reason.clone()).await;
                return GateResult::halt(reason);
            }
            Verdict::Ask(ask) => ask,
            Verdict::Pass | Verdict::Allow => self.observers(),
        };
        if is_refused_kind(call, id, &ask, &decision) {
            return self.changed_since(call, id, &view).await;
        }
        self.apply(tool, call, &ask, id, decision, arrived).await
    }

    /// Applies a decision to a call; `arrived` contains the arguments that were decided about, if a
    /// layer had changed the call.
    pub(super) async fn apply(
        &self,
        tool: &Tool,
        call: &mut RoundCall,
        ask: &Ask,
        id: &InterruptId,
        decision: Decision,
        arrived: Option<Arguments>,
    ) -> GateResult {
        let decided = call
            .state
            .decide(&call.call.arguments, arrived.as_ref(), &decision);
        // Observers receive the call as it was decided about; the same is stored.
        let mut view = self.view(call, Clearance::Ungated);
        if let Some(arrived) = arrived {
            view.set_arguments(arrived);
        }
        if let Decision::Approved {
            edited: Some(edited),
            ..
        } = &decision
        {
            match self.edit_call(tool, call, ask, id, edited, &view).await {
                Ok(edited) => view = edited,
                Err(result) => return result,
            }
        }
        let (how, result) = match (&decision, decided) {
            (_, Ok(clearance)) => ("approved", GateResult::enter(clearance)),
            (Decision::Denied { .. }, Err(outcome)) => ("denied", GateResult::settled(outcome)),
            (Decision::Answered(_), Err(outcome)) => {
                let outcome = limit(Some(tool), outcome);
                ("answered", GateResult::settled(outcome))
            }
            (_, Err(outcome)) => ("cancelled", GateResult::settled(outcome)),
        };
        self.record(call, TraceStep::Resumed(how));
        self.store_decision(&view, ask, &decision).await;
        self.notify_decision(ask, id, &view, &decision).await;
        result
    }

    /// Replaces the arguments of a call with those that an approver edited, and returns the call as
    /// observers receive it. The gates decide about it again.
    async fn edit_call(
        &self,
        tool: &Tool,
        call: &mut RoundCall,
        ask: &Ask,
        id: &InterruptId,
        edited: &Map<String, Value>,
        before: &ToolCall,
    ) -> Result<ToolCall, GateResult> {
        call.call_mut().arguments = Arguments::new(Value::Object(edited.clone()).to_string());
        let view = self.view(call, Clearance::Ungated);
        let (reason, result) = match tool.validate(&call.call) {
            Err(outcome) => (
                outcome.content.text().into_owned().into(),
                GateResult::settled(outcome),
            ),
            Ok(()) => {
                // The gates decide as if there were no reply.
                let mut fresh = call.clone();
                fresh.state.stage = CallStage::Ready;
                let fresh = self.view(&fresh, Clearance::Ungated);
                match decide_edited(self.rules(), before, &fresh).await {
                    Verdict::Pass | Verdict::Allow => return Ok(view),
                    Verdict::Deny(reason) => {
                        let outcome = ToolOutcome::denied(reason.clone());
                        (reason, GateResult::settled(outcome))
                    }
                    Verdict::Halt(reason) => (reason.clone(), GateResult::halt(reason)),
                    // The next interrupt's end ends this one.
                    Verdict::Ask(ask) => {
                        self.record(call, TraceStep::Resumed("edited"));
                        let id = prompt::edited_id(&view, id);
                        return Err(self.ask_as(tool, &view, ask, id));
                    }
                }
            }
        };
        self.record(call, TraceStep::Resumed("denied"));
        let denied = Decision::Denied {
            reason: Some(reason),
            remember: None,
        };
        self.notify_decision(ask, id, &view, &denied).await;
        Err(result)
    }

    /// Calls a tool again after its own interrupts, if the gates still allow it.
    async fn call_again(
        &self,
        tool: &Tool,
        call: &mut RoundCall,
        record: SuspendRecord,
    ) -> GateResult {
        let cannot_continue = || {
            GateResult::settled(ToolOutcome::failed(
                "The tool or its approval rules changed after the call started. The call was not \
                 continued.",
            ))
        };
        if self.has_drifted(tool, &record) {
            self.record(call, TraceStep::Resumed("invalid"));
            return cannot_continue();
        }
        let mut view = self.view(call, Clearance::Ungated);
        view.set_arguments(record.decided());
        let refused = match decide(self.rules(), &view).await {
            Verdict::Deny(reason) => Some(GateResult::settled(ToolOutcome::denied(reason))),
            Verdict::Halt(reason) => Some(GateResult::halt(reason)),
            // The call was never approved, and the replies are to the tool's own interrupts.
            Verdict::Ask(_) if record.bound != Bound::ToDecision => Some(cannot_continue()),
            Verdict::Ask(_) | Verdict::Pass | Verdict::Allow => None,
        };
        if let Some(result) = refused {
            self.record(call, TraceStep::Resumed("denied"));
            return result;
        }
        self.record(call, TraceStep::Resumed("approved"));
        let clearance = match (record.bound, &record.arrived) {
            (Bound::No, _) => Clearance::Ungated,
            (Bound::ToGates, _) => Clearance::Passed(call.call.arguments.clone()),
            (Bound::ToDecision, None) => Clearance::Decided(call.call.arguments.clone()),
            (Bound::ToDecision, Some(_)) => Clearance::Approved(record.decided()),
        };
        // The tool receives its own state.
        if let CallStage::Resumed(resume) = &mut call.state.stage {
            resume.on.state = record.inner;
        }
        GateResult::enter(clearance)
    }

    /// Whether the tool or the rules have changed since a call was suspended.
    fn has_drifted(&self, tool: &Tool, record: &SuspendRecord) -> bool {
        record.definition != definition(Some(tool.spec()))
            || record.policy != self.rules().policy(&self.context)
    }

    /// Denies a call that was approved under other rules.
    pub(super) async fn changed_since(
        &self,
        call: &RoundCall,
        id: &InterruptId,
        view: &ToolCall,
    ) -> GateResult {
        self.record(call, TraceStep::Resumed("invalid"));
        self.notify_denied(id, view, CHANGED_SINCE).await;
        GateResult::settled(ToolOutcome::denied(CHANGED_SINCE))
    }
}

/// Whether a reply is of a kind that the interrupt does not accept. Replies are checked on arrival
/// if the interrupt lists the accepted kinds; those of older versions do not.
fn is_refused_kind(call: &RoundCall, id: &InterruptId, ask: &Ask, decision: &Decision) -> bool {
    let by_gate = call.state.resumed().filter(|it| it.by == SuspendedBy::Gate);
    let mut interrupts = by_gate.into_iter().flat_map(|it| &it.on.interrupts);
    interrupts.any(|interrupt| interrupt.id == *id && !interrupt.lists_replies())
        && decision
            .kind()
            .is_some_and(|kind| !ask.accepted().contains(&kind))
}

const CHANGED_SINCE: Str = Str::from_static(
    "The tool or its approval rules changed after the call was approved. The call was not run. \
     Request approval again.",
);
