//! Verification of replies to interrupts that are not stored.

use super::{GateResult, Pipeline};
use crate::{
    Tool,
    call::{
        gates::{decide, definition},
        prompt,
        suspend_record::{Bound, SuspendRecord},
    },
    gate::{Ask, Verdict},
    rules::Invalid,
};
use concentric_core::{
    Arguments, Clearance, CustomEvent, Event, Reply, RoundCall, Str, ToolOutcome,
    machine::check_edit, store::LedgerEntry, trace::TraceStep,
};
use serde_json::json;

impl Pipeline {
    /// Verifies the token of a reply to an interrupt that is not stored. `interrupted` states
    /// whether the process that resumed the call with this reply has ended.
    pub(super) async fn prove(
        &self,
        tool: &Tool,
        call: &mut RoundCall,
        reply: &Reply,
        interrupted: bool,
    ) -> Result<(SuspendRecord, Verdict), GateResult> {
        self.prepare_proof(tool, call, reply)
            .await
            .map_err(GateResult::settled)?;
        let rules = self.rules();
        let (definition, policy) = (definition(Some(tool.spec())), rules.policy(&self.context));
        let view = self.view(call, Clearance::Ungated);
        let mut verdict = Verdict::Pass;
        let proved = match &rules.tokens {
            Some(tokens) => match tokens.check(reply, &view, definition, policy) {
                Ok(()) => {
                    verdict = decide(rules, &view).await;
                    if let Some(result) = self.not_accepted(tool, call, reply, &verdict) {
                        return Err(result);
                    }
                    tokens.take(reply, &self.context).await
                }
                Err(invalid) => Err(invalid),
            },
            None => Err(Invalid::MISSING),
        };
        match proved {
            Ok(()) => {}
            // Used by the process that resumed the run and ended.
            Err(Invalid::USED) if interrupted => {}
            Err(invalid) if invalid.is_drift() => {
                return Err(self.changed_since(call, &reply.interrupt_id, &view).await);
            }
            Err(Invalid::USED) => return Err(self.used(tool, call).await),
            Err(invalid) => return Err(self.invalid(call, invalid)),
        }
        let record = SuspendRecord {
            arguments: call.call.arguments.as_str().into(),
            arrived: None,
            bound: Bound::ToDecision,
            definition,
            policy,
            effect: None,
            inner: None,
        };
        Ok((record, verdict))
    }

    /// Prepares a call as it was when its interrupt was raised.
    async fn prepare_proof(
        &self,
        tool: &Tool,
        call: &mut RoundCall,
        reply: &Reply,
    ) -> Result<(), ToolOutcome> {
        let tokens = self.rules().tokens.as_ref();
        match tokens.map(|tokens| tokens.edited(reply, self.context.now())) {
            // Edited arguments are not prepared again.
            Some(Ok(Some(edited))) => {
                call.call_mut().arguments = Arguments::new(edited);
                tool.validate(&call.call)
            }
            // An invalid token is reported later.
            _ => self.prepare_unverified(tool, call).await,
        }
    }

    /// Handles a reply of a kind that the interrupt does not accept: the interrupt is raised again,
    /// and its tokens are not used up.
    fn not_accepted(
        &self,
        tool: &Tool,
        call: &RoundCall,
        reply: &Reply,
        verdict: &Verdict,
    ) -> Option<GateResult> {
        let kind = reply.decision().ok()?.kind()?;
        match verdict {
            Verdict::Ask(ask) => {
                let (view, id) = (
                    self.view(call, Clearance::Ungated),
                    reply.interrupt_id.clone(),
                );
                let asked = prompt::approval(&view, id.clone(), ask, None, None);
                let why = match asked.check(reply, view.context.now()) {
                    Err(_) => Invalid::NOT_ACCEPTED,
                    Ok(()) => {
                        match check_edit(&call.call, reply, |call| self.toolset.check_edited(call))
                        {
                            Err(_) => Invalid::EDIT,
                            Ok(()) => return None,
                        }
                    }
                };
                self.report_invalid(call, why);
                Some(self.ask_as(tool, &view, ask.clone(), id))
            }
            Verdict::Pass | Verdict::Allow if !Ask::default().accepted().contains(&kind) => {
                Some(self.invalid(call, Invalid::NOT_ACCEPTED))
            }
            _ => None,
        }
    }

    /// Denies a call whose reply is invalid, and reports the reply.
    pub(super) fn invalid(&self, call: &RoundCall, why: Invalid) -> GateResult {
        self.report_invalid(call, why);
        GateResult::settled(ToolOutcome::denied(Str::from_static(match why {
            Invalid::USED => {
                "approval-invalid: the approval of this call was already used. The call was not run again."
            }
            _ => "approval-invalid: the approval of this call is invalid. The call was not run.",
        })))
    }

    /// Reports an invalid reply in the log and in the event stream.
    fn report_invalid(&self, call: &RoundCall, why: Invalid) {
        let code = why.code();
        let tool = &call.call.name;
        tracing::warn!(%tool, code, "a reply to the interrupt of a tool call is invalid");
        self.record(call, TraceStep::Resumed("invalid"));
        let event = CustomEvent::new("approval-invalid", json!({"tool": tool, "code": code}))
            .for_call(call.call.id.clone());
        // The outcome does not depend on a slow consumer.
        let _ = self.context.emit(Event::Custom(Box::new(event)));
    }

    /// Handles a call whose token was used before: it may have executed.
    pub(super) async fn used(&self, tool: &Tool, call: &RoundCall) -> GateResult {
        let denied = self.invalid(call, Invalid::USED);
        if call.state.read_only {
            return denied;
        }
        match self.effect_of(call).await {
            Ok(Some(LedgerEntry::Finished(outcome))) => GateResult::settled(*outcome),
            Ok(Some(LedgerEntry::Started)) => self
                .resolve_effect(Some(tool), call)
                .await
                .unwrap_or_else(GateResult::Fail),
            // The process that used the token may be about to start the call.
            Ok(_) => GateResult::settled(ToolOutcome::unknown(Str::from_static(
                "approval-invalid: the approval of this call was already used, and the call may \
                 have been executed. It was not run again.",
            ))),
            Err(error) => GateResult::Fail(error),
        }
    }
}
