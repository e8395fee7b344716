//! Interrupts that request an approval.

use super::{Approvable, GateResult, Pipeline};
use crate::{
    Tool,
    call::{
        gates::{decide, definition},
        prompt,
        suspend_record::{Bound, SuspendRecord},
    },
    gate::{Ask, Verdict},
};
use concentric_core::{Clearance, InterruptId, RoundCall, ToolCall, ToolOutcome, trace::TraceStep};

impl Pipeline {
    /// Decides about a call without an interrupt.
    pub(super) async fn gate_fresh(&self, tool: &Tool, call: &mut RoundCall) -> GateResult {
        let has_gates = self.rules().has_gates(&self.context);
        let enter = |clearance| GateResult::Enter {
            clearance,
            may_hold: true,
        };
        if let Err(outcome) = self.prepare(tool, call).await {
            if has_gates {
                self.record(call, TraceStep::Invalid);
            }
            // Settled, so that the arguments, which no gate has checked, cannot run.
            return GateResult::settled(outcome);
        }
        if !has_gates {
            return enter(Clearance::Ungated);
        }
        let (view, verdict) = self.verdict(call).await;
        match verdict {
            Verdict::Pass => enter(Clearance::Passed(call.call.arguments.clone())),
            Verdict::Allow => enter(Clearance::Decided(call.call.arguments.clone())),
            Verdict::Ask(ask) => self.ask(tool, &view, ask),
            Verdict::Deny(reason) => GateResult::settled(ToolOutcome::denied(reason)),
            Verdict::Halt(reason) => GateResult::halt(reason),
        }
    }

    /// The call as gates receive it, and the strictest verdict of the gates.
    pub(super) async fn verdict(&self, call: &RoundCall) -> (ToolCall, Verdict) {
        let view = self.view(call, Clearance::Ungated);
        let verdict = decide(self.rules(), &view).await;
        self.record(call, TraceStep::Gated(verdict.as_str()));
        (view, verdict)
    }

    /// Requires an approval for `call`.
    pub(super) fn ask(&self, tool: &Tool, call: &ToolCall, ask: Ask) -> GateResult {
        self.ask_as(tool, call, ask, prompt::id(call, ""))
    }

    /// Requires an approval for `call`, with the given interrupt id.
    pub(super) fn ask_as(
        &self,
        tool: &Tool,
        call: &ToolCall,
        ask: Ask,
        id: InterruptId,
    ) -> GateResult {
        let edited = prompt::is_edit(call, &id);
        let rules = self.rules();
        let (definition, policy) = (definition(Some(tool.spec())), rules.policy(&self.context));
        let tokens = rules.tokens.as_ref();
        let expires_after = match tokens {
            Some(tokens) => Some(tokens.lifetime_of(ask.expires_after)),
            None => ask.expires_after,
        };
        let mut interrupt =
            prompt::approval(call, id.clone(), &ask, ask.message.clone(), expires_after);
        if edited {
            interrupt = interrupt.with_metadata("edited", true);
        }
        // A live interrupt needs no token, which would remain valid after the reply.
        if let (Some(tokens), Some(expires_at), None) = (tokens, interrupt.expires_at, &ask.live)
            && let Some(token) = tokens.sign(call, id, definition, policy, expires_at, edited)
        {
            interrupt = interrupt.with_metadata("token", token.as_str());
        }
        let record = SuspendRecord {
            arguments: call.arguments().as_str().into(),
            arrived: None,
            bound: Bound::ToDecision,
            definition,
            policy,
            effect: None,
            inner: None,
        };
        let on = record.suspension(vec![interrupt.clone()]);
        GateResult::Ask(Box::new(Approvable { ask, interrupt, on }))
    }
}
