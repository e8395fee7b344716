//! Resumption of suspended calls with their replies.

use super::{
    asked::{Asked, Bound, Why},
    gating::{Gating, Step, definition, is_read_only},
    question,
    record::ProtocolStep,
    verify::Invalid,
};
use crate::{
    Tool,
    gate::{Ask, Verdict},
};
use concentric_core::{
    Answered, Arguments, Custom, Event, InterruptId, Permit, Reply, RoundCall, Ruling, Str,
    ToolCall, ToolOutcome, call::CallStage, store::Effect,
};
use serde_json::{Value, json};

impl Gating {
    /// Resumes a suspended call.
    pub(super) async fn take_up(
        &self,
        tool: &Tool,
        call: &mut RoundCall,
        answered: &Answered,
    ) -> Step {
        let recovered = answered.taken_up;
        let Some(reply) = answered.replies.first() else {
            return match answered.pending {
                None => self.claimed(tool, call).await,
                // The process ended before a reply.
                Some(_) => self.fresh(tool, call).await,
            };
        };
        let (asked, verdict) = match &answered.pending {
            Some(pending) => match Asked::of(pending) {
                Some(asked) => (asked, None),
                None => return self.invalid(call, Invalid::MISSING),
            },
            None => match self.prove(tool, call, reply, recovered).await {
                Ok((asked, verdict)) => (asked, Some(verdict)),
                Err(step) => return step,
            },
        };
        let drifted = asked.definition != definition(Some(tool.spec()))
            || asked.policy != self.toolset.rules().policy(&self.context);
        call.call_mut().arguments = asked.entering();
        if asked.why == Why::Tool {
            return self.call_again(call, &asked, drifted).await;
        }
        let Ok(ruling) = reply.ruling() else {
            return self.invalid(call, Invalid::MISSING);
        };
        let id = &reply.interrupt_id;
        if let Some(tokens) = &self.toolset.rules().tokens
            && asked.why == Why::Gate
            && answered.pending.is_some()
        {
            // The interrupt is used up now, so the reply must not be returned to the caller.
            self.context.count_effect();
            match tokens.decided(id, &self.context).await {
                Ok(()) => {}
                // Used by the process that ended.
                Err(Invalid::USED) if recovered => {}
                Err(Invalid::USED) => return self.used(tool, call).await,
                Err(invalid) => return self.invalid(call, invalid),
            }
        }
        let mut view = self.view(call);
        if let Some(arrived) = &asked.arrived {
            view.set_arguments(Arguments::new(arrived.clone()));
        }
        if drifted && matches!(ruling, Ruling::Approved { .. }) {
            self.record(call, ProtocolStep::Resumed("invalid"));
            self.tell_denied(id, &view, CHANGED_SINCE).await;
            return Step::settled(changed_since());
        }
        // The gates determine the observers, and a gate may deny the call now.
        let verdict = match verdict {
            Some(verdict) => verdict,
            None => self.decide(&view).await,
        };
        let ask = match verdict {
            Verdict::Deny(reason) => {
                self.record(call, ProtocolStep::Resumed("denied"));
                self.tell_denied(id, &view, reason.clone()).await;
                return Step::settled(ToolOutcome::denied(reason));
            }
            Verdict::Halt(reason) => {
                self.tell_denied(id, &view, reason.clone()).await;
                return Step::halt(reason);
            }
            Verdict::Ask(ask) => ask,
            Verdict::Pass | Verdict::Allow => self.watchers(),
        };
        // The reply was checked on arrival if the interrupt lists accepted kinds; those of older
        // versions do not.
        let mut asking = answered.pending.iter().flat_map(|it| &it.interrupts);
        if asking.any(|interrupt| interrupt.id == *id && !interrupt.lists_replies())
            && asked.why == Why::Gate
            && ruling
                .kind()
                .is_some_and(|kind| !ask.accepted().contains(&kind))
        {
            self.record(call, ProtocolStep::Resumed("invalid"));
            self.tell_denied(id, &view, CHANGED_SINCE).await;
            return Step::settled(changed_since());
        }
        self.rule(tool, call, &ask, id, ruling, Some(&asked)).await
    }

    /// Decides about an open call without a reply that is known only from a history: it requires an
    /// approval or does not run, since the history is no proof that the model made it.
    pub(super) async fn claimed(&self, tool: &Tool, call: &mut RoundCall) -> Step {
        if let Err(outcome) = self.prepare_for_proof(tool, call).await {
            return Step::settled(outcome);
        }
        let view = self.view(call);
        let verdict = self.decide(&view).await;
        self.record(call, ProtocolStep::Gated(verdict.as_str()));
        match verdict {
            Verdict::Ask(ask) => self.ask(tool, &view, ask),
            Verdict::Deny(reason) => Step::settled(ToolOutcome::denied(reason)),
            Verdict::Halt(reason) => Step::halt(reason),
            Verdict::Pass | Verdict::Allow => Step::settled(ToolOutcome::cancelled(
                "The call was not run while another call waited for a decision. Call the tool again \
                 if it is still needed.",
            )),
        }
    }

    /// Verifies the token of a reply to an interrupt that is not stored.
    pub(super) async fn prove(
        &self,
        tool: &Tool,
        call: &mut RoundCall,
        reply: &Reply,
        recovered: bool,
    ) -> Result<(Asked, Verdict), Step> {
        let rules = self.toolset.rules();
        let edited = rules
            .tokens
            .as_ref()
            .map(|tokens| tokens.edited(reply, self.context.now()));
        let prepared = match edited {
            // Edited arguments are not prepared again.
            Some(Ok(Some(edited))) => {
                call.call_mut().arguments = Arguments::new(edited);
                tool.validate(&call.call)
            }
            // An invalid token is reported below.
            _ => self.prepare_for_proof(tool, call).await,
        };
        if let Err(outcome) = prepared {
            return Err(Step::settled(outcome));
        }
        let (definition, policy) = (definition(Some(tool.spec())), rules.policy(&self.context));
        let view = self.view(call);
        let mut verdict = Verdict::Pass;
        let proved = match &rules.tokens {
            Some(tokens) => match tokens.check(reply, &view, definition, policy) {
                Ok(()) => {
                    verdict = self.decide(&view).await;
                    if let Some(step) = self.not_accepted(tool, call, reply, &verdict) {
                        return Err(step);
                    }
                    tokens.take(reply, &self.context).await
                }
                Err(invalid) => Err(invalid),
            },
            None => Err(Invalid::MISSING),
        };
        let proved = match proved {
            // Used by the process that resumed the run and ended.
            Err(Invalid::USED) if recovered => Ok(()),
            proved => proved,
        };
        match proved {
            Ok(()) => Ok((
                Asked {
                    why: Why::Gate,
                    arguments: call.call.arguments.as_str().into(),
                    arrived: None,
                    bound: Bound::ToDecision,
                    definition,
                    policy,
                    effect: None,
                    inner: None,
                },
                verdict,
            )),
            Err(invalid) if invalid.is_drift() => {
                self.record(call, ProtocolStep::Resumed("invalid"));
                let (id, view) = (&reply.interrupt_id, self.view(call));
                self.tell_denied(id, &view, CHANGED_SINCE).await;
                Err(Step::settled(changed_since()))
            }
            Err(Invalid::USED) => Err(self.used(tool, call).await),
            Err(invalid) => Err(self.invalid(call, invalid)),
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
    ) -> Option<Step> {
        let kind = reply.ruling().ok()?.kind()?;
        match verdict {
            Verdict::Ask(ask) => {
                let (view, id) = (self.view(call), reply.interrupt_id.clone());
                let asked = question::approval(&view, id.clone(), ask, None, None);
                let why = match asked.check(reply, view.context.now()) {
                    Err(_) => Invalid::NOT_ACCEPTED,
                    Ok(()) => match self.toolset.check_edits().check(&call.call, reply) {
                        Err(_) => Invalid::EDIT,
                        Ok(()) => return None,
                    },
                };
                self.disbelieve(call, why);
                Some(self.ask_as(tool, &view, ask.clone(), id))
            }
            Verdict::Pass | Verdict::Allow if !Ask::default().accepted().contains(&kind) => {
                Some(self.invalid(call, Invalid::NOT_ACCEPTED))
            }
            _ => None,
        }
    }

    pub(super) async fn prepare_for_proof(
        &self,
        tool: &Tool,
        call: &mut RoundCall,
    ) -> Result<(), ToolOutcome> {
        tool.validate(&call.call)?;
        self.prepare(tool, call).await
    }

    /// Denies a call whose reply is invalid, and reports the reply.
    pub(super) fn invalid(&self, call: &RoundCall, why: Invalid) -> Step {
        self.disbelieve(call, why);
        Step::settled(ToolOutcome::denied(Str::from_static(match why {
            Invalid::USED => {
                "approval-invalid: the approval of this call was already used. The call was not run again."
            }
            _ => "approval-invalid: the approval of this call is invalid. The call was not run.",
        })))
    }

    /// Reports an invalid reply in the log and in the event stream.
    fn disbelieve(&self, call: &RoundCall, why: Invalid) {
        let code = why.code();
        let tool = &call.call.name;
        tracing::warn!(%tool, code, "a reply to the interrupt of a tool call is invalid");
        self.record(call, ProtocolStep::Resumed("invalid"));
        let event = Custom::new("approval-invalid", json!({"tool": tool, "code": code}))
            .for_call(call.call.id.clone());
        // The outcome does not depend on a slow consumer.
        let _ = self.context.emit(Event::Custom(Box::new(event)));
    }

    /// Handles a call whose token was used before: it may have executed.
    async fn used(&self, tool: &Tool, call: &RoundCall) -> Step {
        let denied = self.invalid(call, Invalid::USED);
        if is_read_only(call) {
            return denied;
        }
        match self.effect_of(call).await {
            Ok(Some(Effect::Done(outcome))) => Step::settled(*outcome),
            Ok(Some(Effect::Begun)) => match self.ask_what_came(Some(tool), call).await {
                Ok(step) => step,
                Err(error) => Step::Fail(error),
            },
            // The process that used the token may be about to start the call.
            Ok(_) => Step::settled(ToolOutcome::unknown(Str::from_static(
                "approval-invalid: the approval of this call was already used, and the call may \
                 have been executed. It was not run again.",
            ))),
            Err(error) => Step::Fail(error),
        }
    }

    /// Applies a decision to a call.
    pub(super) async fn rule(
        &self,
        tool: &Tool,
        call: &mut RoundCall,
        ask: &Ask,
        id: &InterruptId,
        ruling: Ruling,
        asked: Option<&Asked>,
    ) -> Step {
        let (how, settled) = match &ruling {
            Ruling::Approved { .. } => ("approved", None),
            Ruling::Denied { reason, .. } => {
                let told = match reason {
                    Some(reason) => format!("The call was denied: {reason}").into(),
                    None => Str::from_static("The call was denied."),
                };
                ("denied", Some(ToolOutcome::denied(told)))
            }
            Ruling::Answered(result) => ("answered", Some(self.given(call, result))),
            // `Cancelled`, the only other variant.
            _ => {
                let outcome = ToolOutcome::cancelled("The call was cancelled.");
                ("cancelled", Some(outcome))
            }
        };
        // Observers receive the call as it was decided about; the same is stored.
        let mut view = self.view(call);
        let arrived = asked.and_then(|asked| asked.arrived.clone());
        let mut permit = match arrived.map(Arguments::new) {
            Some(arrived) => {
                view.set_arguments(arrived.clone());
                Permit::AsAsked(arrived)
            }
            None => Permit::Exactly(call.call.arguments.clone()),
        };
        if let Ruling::Approved {
            edited: Some(edited),
            ..
        } = &ruling
        {
            let before = view;
            call.call_mut().arguments = Arguments::new(Value::Object(edited.clone()).to_string());
            view = self.view(call);
            let refused = match tool.validate(&call.call) {
                Err(outcome) => Some((
                    outcome.content.text().into_owned().into(),
                    Step::settled(outcome),
                )),
                Ok(()) => match self.decide_edited(&before, &self.edited_view(call)).await {
                    Verdict::Deny(reason) => {
                        Some((reason.clone(), Step::settled(ToolOutcome::denied(reason))))
                    }
                    Verdict::Halt(reason) => Some((reason.clone(), Step::halt(reason))),
                    // The next interrupt's end ends this one.
                    Verdict::Ask(ask) => {
                        self.record(call, ProtocolStep::Resumed("edited"));
                        let id = question::edited_id(&view, id);
                        return self.ask_as(tool, &view, ask, id);
                    }
                    Verdict::Pass | Verdict::Allow => None,
                },
            };
            if let Some((reason, step)) = refused {
                self.record(call, ProtocolStep::Resumed("denied"));
                let ruling = Ruling::Denied {
                    reason: Some(reason),
                    remember: None,
                };
                self.tell(ask, id, &view, &ruling).await;
                return step;
            }
            permit = Permit::Exactly(call.call.arguments.clone());
        }
        self.record(call, ProtocolStep::Resumed(how));
        self.remember(&view, ask, &ruling).await;
        self.tell(ask, id, &view, &ruling).await;
        if let Some(outcome) = settled {
            return Step::settled(outcome);
        }
        Step::Enter {
            permit,
            free: false,
        }
    }

    /// The call with the edited arguments and without a reply, for the gates.
    pub(super) fn edited_view(&self, call: &RoundCall) -> ToolCall {
        let mut edited = call.clone();
        edited.state.stage = CallStage::Ready;
        self.view(&edited)
    }

    /// Calls a tool again after its own interrupts, if the gates still allow it.
    async fn call_again(&self, call: &mut RoundCall, asked: &Asked, drifted: bool) -> Step {
        if drifted {
            self.record(call, ProtocolStep::Resumed("invalid"));
            return Step::settled(cannot_go_on());
        }
        let mut view = self.view(call);
        view.set_arguments(asked.decided());
        let refused = match self.decide(&view).await {
            Verdict::Deny(reason) => Some(Step::settled(ToolOutcome::denied(reason))),
            Verdict::Halt(reason) => Some(Step::halt(reason)),
            // The call was never approved, and the replies are to the tool's own interrupts.
            Verdict::Ask(_) if asked.bound != Bound::ToDecision => {
                Some(Step::settled(cannot_go_on()))
            }
            Verdict::Ask(_) | Verdict::Pass | Verdict::Allow => None,
        };
        if let Some(step) = refused {
            self.record(call, ProtocolStep::Resumed("denied"));
            return step;
        }
        self.record(call, ProtocolStep::Resumed("approved"));
        if let CallStage::Resumed(resume) = &mut call.state.stage {
            resume.on.state.clone_from(&asked.inner);
        }
        let permit = match (asked.bound, &asked.arrived) {
            (Bound::No, _) => Permit::Any,
            (Bound::ToGates, _) => Permit::Passed(call.call.arguments.clone()),
            (Bound::ToDecision, None) => Permit::Exactly(call.call.arguments.clone()),
            (Bound::ToDecision, Some(_)) => Permit::AsAsked(asked.decided()),
        };
        Step::Enter {
            permit,
            free: false,
        }
    }
}

const CHANGED_SINCE: Str = Str::from_static(
    "The tool or its approval rules changed after the call was approved. The call was not run. \
     Request approval again.",
);

fn changed_since() -> ToolOutcome {
    ToolOutcome::denied(CHANGED_SINCE)
}

fn cannot_go_on() -> ToolOutcome {
    ToolOutcome::failed(Str::from_static(
        "The tool or its approval rules changed after the call started. The call was not continued.",
    ))
}
