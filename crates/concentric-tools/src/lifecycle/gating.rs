use super::{
    asked::{Asked, Bound, Why},
    client,
    doubt::{replied_effect, without_doubt},
    question,
    record::{ProtocolEntry, ProtocolStep},
    rule::{Rules, Siblings},
    told::tell_requested,
};
use crate::{
    Digest, Tool,
    approval::Approval,
    gate::{ApprovalEvent, Ask, Decided, Gate, Verdict},
    panic::Caught,
    toolset::Toolset,
};
use concentric_core::{
    Answered, Arguments, BoxError, Context, Error, Executor, Interrupt, InterruptId, Pending,
    Permit, Refusal, Reply, RoundCall, RoundEvent, Str, ToolCall, ToolOutcome, ToolRound, ToolSpec,
    Transcript, ask::Unanswered, call::CallStage, interrupt::SuspendedBy, panic::catch,
    store::Effect,
};
use futures_util::future::join_all;
use std::{
    any::Any,
    future::{Future, poll_fn},
    pin::{Pin, pin},
    sync::Arc,
    task::Poll,
};

/// A call that may enter the stack.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) index: usize,
    pub(crate) call: RoundCall,
    pub(crate) permit: Permit,
}

impl Entry {
    /// Settles the call without running it, and returns the outcome.
    pub(crate) fn give_up(&mut self) -> Arc<ToolOutcome> {
        if let Permit::Settled(outcome) = &self.permit {
            // Already settled: the client executed it, or it was refused.
            return Arc::clone(outcome);
        }
        let outcome = given_up(&self.call);
        self.permit = Permit::Settled(Arc::clone(&outcome));
        outcome
    }
}

/// The result of the gates for a round.
#[derive(Default)]
pub(crate) struct Gated {
    /// The calls that may enter the stack, in order.
    pub(crate) entries: Vec<Entry>,
    /// The calls that are suspended.
    pub(crate) waiting: Vec<RoundEvent>,
    /// The calls that wait for a reply while the run stays open.
    pub(crate) live: Vec<LiveCall>,
    /// The indexes and states of the calls in `live`, for when the run stops.
    pub(crate) asking: Vec<(usize, RoundCall)>,
}

/// Resolves when a call that waits in an open run may enter the stack, or must be suspended.
pub(crate) type LiveCall = Pin<Box<dyn Future<Output = Replied> + Send>>;

/// The result of a reply to a call that waits in an open run.
pub(crate) enum Replied {
    /// The call enters the stack.
    Enter(Box<Entry>),
    /// The call is suspended: the edited arguments require an approval that does not keep the
    /// run open.
    Wait(usize, Box<Pending>),
}

/// The decision about a call.
pub(super) enum Step {
    /// The call enters the stack. `free`: no interrupt was raised for it, so it may be held with
    /// its siblings.
    Enter { permit: Permit, free: bool },
    /// The call is suspended.
    Wait(Pending),
    /// The call requires an approval.
    Ask(Box<Question>),
    /// The call ends the run, with this outcome.
    Halt(ToolOutcome),
    /// The decision failed, and the run fails.
    Fail(Error),
}

/// An interrupt for a call, with the state to store.
pub(super) struct Question {
    ask: Ask,
    interrupt: Interrupt,
    pending: Pending,
}

impl Step {
    /// Converts the outcome of a call that will not run to an unknown one, if the call may have
    /// executed.
    fn without_doubt(self, call: &RoundCall) -> Self {
        match self {
            Self::Enter {
                permit: Permit::Settled(outcome),
                free,
            } => Self::Enter {
                permit: settled(call, Arc::unwrap_or_clone(outcome)),
                free,
            },
            Self::Halt(outcome) => Self::Halt(without_doubt(call, outcome)),
            step => step,
        }
    }

    pub(super) fn halt(reason: Str) -> Self {
        Self::Halt(halting(reason))
    }

    pub(super) fn settled(outcome: ToolOutcome) -> Self {
        Self::Enter {
            permit: Permit::Settled(Arc::new(outcome)),
            free: false,
        }
    }
}

/// Prepares the calls of a round, and decides about all of them before any runs. Returns an error
/// if the ledger fails.
pub(crate) async fn gate_round(toolset: Toolset, round: ToolRound) -> Result<Gated, Error> {
    let gating = Gating {
        toolset,
        transcript: round.transcript,
        context: round.context,
    };
    let mut calls = round.calls;
    let Some(steps) = gating.steps(&mut calls).await else {
        let given_up = calls.into_iter().enumerate().map(|(index, call)| Entry {
            index,
            permit: Permit::Settled(given_up(&call)),
            call,
        });
        return Ok(Gated {
            entries: given_up.collect(),
            ..Gated::default()
        });
    };

    let halted = steps.iter().any(|step| matches!(step, Step::Halt(_)));
    let asks = |step: &Step| matches!(step, Step::Wait(_) | Step::Ask(_));
    let asked = !halted && steps.iter().any(asks);
    let mut gated = Gated::default();
    for (index, (call, step)) in calls.into_iter().zip(steps).enumerate() {
        let enter = |call, permit| Entry {
            index,
            call,
            permit,
        };
        match step {
            Step::Fail(error) => return Err(error),
            Step::Halt(outcome) => {
                let permit = Permit::Settled(Arc::new(outcome));
                gated.entries.push(enter(call, permit));
            }
            // Already settled: the client executed it, or it was refused.
            Step::Enter {
                permit: permit @ Permit::Settled(_),
                ..
            } if halted => gated.entries.push(enter(call, permit)),
            Step::Wait(_) if halted => {
                let outcome = Arc::unwrap_or_clone(given_up(&call)).into_indeterminate();
                gated
                    .entries
                    .push(enter(call, Permit::Settled(Arc::new(outcome))));
            }
            _ if halted => {
                let permit = Permit::Settled(given_up(&call));
                gated.entries.push(enter(call, permit));
            }
            Step::Enter { permit, free } => {
                if asked && free && gating.holds(&call) {
                    gating.record(&call, ProtocolStep::Suspended);
                    let pending = gating.together(Pending::held());
                    gated.waiting.push(RoundEvent::waiting(index, pending));
                } else {
                    gated.entries.push(enter(call, permit));
                }
            }
            Step::Wait(pending) => {
                gating.record(&call, ProtocolStep::Suspended);
                let pending = gating.together(pending);
                gated.waiting.push(RoundEvent::waiting(index, pending));
            }
            Step::Ask(question) => {
                let Question {
                    ask,
                    interrupt,
                    pending,
                } = *question;
                let view = gating.view(&call);
                tell_requested(gating.toolset.rules(), &ask, &view, &interrupt).await;
                if ask.live.is_some() {
                    gated.asking.push((index, call.clone()));
                    let live = gating.clone().wait_live(index, call, ask, interrupt);
                    gated.live.push(Box::pin(live));
                } else {
                    gating.record(&call, ProtocolStep::Suspended);
                    let pending = gating.together(pending);
                    gated.waiting.push(RoundEvent::waiting(index, pending));
                }
            }
        }
    }
    Ok(gated)
}

/// The outcome of a call that does not start because its run stops.
fn given_up(call: &RoundCall) -> Arc<ToolOutcome> {
    let stopped = || ToolOutcome::cancelled("The run was stopped before the call was started.");
    Arc::new(match (call.refusal(), call.call.executor) {
        (Some(refusal), _) => refusal.outcome(&call.call),
        (None, Executor::Client) => client::outcome(call),
        (None, _) => replied_effect(call).unwrap_or_else(|| without_doubt(call, stopped())),
    })
}

/// The clearance of a call that does not run.
fn settled(call: &RoundCall, outcome: ToolOutcome) -> Permit {
    Permit::Settled(Arc::new(without_doubt(call, outcome)))
}

/// The suspension of a tool that waits, with the state for calling it again.
pub(crate) fn suspend_tool(
    rules: &Rules,
    context: &Context,
    tool: Option<&Tool>,
    arguments: &Arguments,
    permit: &Permit,
    pending: &Pending,
) -> Pending {
    let mut suspended = pending.clone();
    suspended.together |= rules.together;
    // A suspension by the lifecycle is already complete.
    if !matches!(pending.by, None | Some(SuspendedBy::Tool)) {
        return suspended;
    }
    let arrived = match permit {
        Permit::AsAsked(arrived) => Some(arrived.as_str().into()),
        _ => None,
    };
    let asked = Asked {
        why: Why::Tool,
        arguments: arguments.as_str().into(),
        bound: match permit {
            Permit::Any => Bound::No,
            Permit::Passed(_) => Bound::ToGates,
            // Unknown variants get the strictest bound.
            _ => Bound::ToDecision,
        },
        arrived,
        definition: definition(tool.map(Tool::spec)),
        policy: rules.policy(context),
        effect: None,
        inner: pending.state.clone(),
    };
    let together = suspended.together;
    suspended = asked.pending(suspended.interrupts);
    suspended.together = together;
    suspended
}

pub(super) fn definition(spec: Option<&Arc<ToolSpec>>) -> Digest {
    match spec {
        Some(spec) => Digest::of_spec(spec),
        None => Digest::of_fields("concentric/no-definition", &[]),
    }
}

#[derive(Clone)]
pub(super) struct Gating {
    pub(super) toolset: Toolset,
    pub(super) transcript: Transcript,
    pub(super) context: Context,
}

impl Gating {
    pub(super) fn record(&self, call: &RoundCall, step: ProtocolStep) {
        self.toolset.record(|| ProtocolEntry {
            call_id: call.call.id.clone(),
            tool: call.call.name.clone(),
            origin: call.origin(),
            step,
        });
    }

    /// Whether a call without an interrupt waits for its siblings with one.
    fn holds(&self, call: &RoundCall) -> bool {
        match self.toolset.rules().siblings {
            Siblings::RunAll => false,
            Siblings::RunReadOnly => !is_read_only(call),
            Siblings::HoldAll => true,
        }
    }

    fn together(&self, pending: Pending) -> Pending {
        match self.toolset.rules().together {
            true => pending.together(),
            false => pending,
        }
    }

    /// The call as gates and approvers receive it.
    pub(super) fn view(&self, call: &RoundCall) -> ToolCall {
        let transcript = self.transcript.clone();
        ToolCall::of_round(call.clone(), Permit::Any, transcript, &self.context)
    }

    /// Decides about each of `calls`; `None` if the run is cancelled meanwhile.
    async fn steps(&self, calls: &mut [RoundCall]) -> Option<Vec<Step>> {
        let steps = async {
            match calls {
                // Most rounds have one call and need no `join_all`.
                [call] => vec![self.step(call).await],
                calls => join_all(calls.iter_mut().map(|call| self.step(call))).await,
            }
        };
        let mut steps = pin!(steps);
        // Cancelling the run wakes the task that polls the round.
        poll_fn(|cx| match self.context.is_cancelled() {
            true => Poll::Ready(None),
            false => steps.as_mut().poll(cx).map(Some),
        })
        .await
    }

    /// Decides about one call, and updates it for the stack.
    async fn step(&self, call: &mut RoundCall) -> Step {
        if let Some(refusal) = call.refusal() {
            return Step::settled(refusal.outcome(&call.call));
        }
        if call.call.executor == Executor::Client {
            return Step::settled(client::outcome(call));
        }
        if let Some(step) = self.effect_replied(call).await {
            return step;
        }
        match self.recover(call).await {
            Ok(None) => {
                let step = self.decided(call).await.without_doubt(call);
                self.unless_begun(call, step).await
            }
            Ok(Some(step)) => step,
            Err(error) => Step::Fail(error),
        }
    }

    /// Converts the outcome of a call that is known only from a history and will not run to an
    /// unknown one, if the ledger has an entry for it.
    async fn unless_begun(&self, call: &RoundCall, step: Step) -> Step {
        let claimed = matches!(call.state.stage, CallStage::Unverified(_));
        match step {
            Step::Enter {
                permit: Permit::Settled(outcome),
                free,
            } if claimed && !is_read_only(call) => match self.effect_of(call).await {
                // The ledger has no entry of an execution.
                Ok(None | Some(Effect::New)) => Step::Enter {
                    permit: Permit::Settled(outcome),
                    free,
                },
                Ok(Some(Effect::Done(known))) if *known == *outcome => Step::settled(*known),
                Ok(Some(_)) => Step::settled(Arc::unwrap_or_clone(outcome).into_indeterminate()),
                Err(error) => Step::Fail(error),
            },
            step => step,
        }
    }

    /// Decides about a call that the loop accepted and that has not executed.
    async fn decided(&self, call: &mut RoundCall) -> Step {
        let Some(tool) = self.toolset.find(&call.call.name) else {
            let refusal = Refusal::NotOffered(self.toolset.names());
            self.tell_gone(call).await;
            return Step::settled(refusal.outcome(&call.call));
        };
        // The toolset's own spec applies, not the one that the model received.
        call.spec = Some(tool.spec().clone());
        // The replies are kept: they identify a resumed call to observers.
        match call.answered() {
            Some(answered) if !is_held(&answered) => self.take_up(tool, call, &answered).await,
            _ => self.fresh(tool, call).await,
        }
    }

    /// Decides about a call without an interrupt.
    pub(super) async fn fresh(&self, tool: &Tool, call: &mut RoundCall) -> Step {
        if !self.toolset.has_gates(&self.context) {
            return match self.prepare(tool, call).await {
                Ok(()) => Step::Enter {
                    permit: Permit::Any,
                    free: true,
                },
                Err(outcome) => Step::settled(outcome),
            };
        }
        if let Err(outcome) = self.prepare(tool, call).await {
            // Settled, so that the arguments, which no gate has checked, cannot run.
            self.record(call, ProtocolStep::Invalid);
            return Step::settled(outcome);
        }
        let view = self.view(call);
        let verdict = self.decide(&view).await;
        self.record(call, ProtocolStep::Gated(verdict.as_str()));
        match verdict {
            Verdict::Pass => Step::Enter {
                permit: Permit::Passed(call.call.arguments.clone()),
                free: true,
            },
            Verdict::Allow => Step::Enter {
                permit: Permit::Exactly(call.call.arguments.clone()),
                free: true,
            },
            Verdict::Ask(ask) => self.ask(tool, &view, ask),
            Verdict::Deny(reason) => Step::settled(ToolOutcome::denied(reason)),
            Verdict::Halt(reason) => Step::halt(reason),
        }
    }

    /// Decodes, validates and edits the arguments. Returns an outcome with the position and the
    /// reason if the arguments are invalid.
    pub(super) async fn prepare(
        &self,
        tool: &Tool,
        call: &mut RoundCall,
    ) -> Result<(), ToolOutcome> {
        let rules = self.toolset.rules();
        call.call_mut().arguments = tool.normal(&call.call.arguments);
        // Without gates and edits, the tool's own validation suffices.
        let is_soon_enough = rules.prepare.is_empty() && !call.is_recovered();
        if is_soon_enough && !self.toolset.has_gates(&self.context) {
            return Ok(());
        }
        tool.validate(&call.call)?;
        for prepare in &rules.prepare {
            let prepared = match catch(|| prepare.call(self.view(call))) {
                Ok(prepares) => Caught::new(prepares).await,
                Err(panic) => Err(panic),
            };
            call.call_mut().arguments = match prepared {
                Ok(Ok(arguments)) => tool.normal(&arguments),
                Ok(Err(error)) => {
                    return Err(error
                        .settle(&call.call.name)
                        .unwrap_or_else(|error| ToolOutcome::failed(error.message())));
                }
                Err(panic) => return Err(panic.outcome(&call.call.name)),
            };
            tool.validate(&call.call)?;
        }
        self.record(call, ProtocolStep::Prepared(call.call.arguments.clone()));
        Ok(())
    }

    /// The strictest verdict of the gates.
    pub(super) async fn decide(&self, call: &ToolCall) -> Verdict {
        decide(self.toolset.rules(), call).await
    }

    /// Decides about `edited`, which is `call` with arguments that an approver edited. Another
    /// approval is required only if a gate requires one that did not require one for `call`.
    pub(super) async fn decide_edited(&self, call: &ToolCall, edited: &ToolCall) -> Verdict {
        let rules = self.toolset.rules();
        let verdicts = decide_each(rules, edited).await;
        if !matches!(strictest(verdicts.clone()), Verdict::Ask(_)) {
            return strictest(verdicts);
        }
        let before = decide_each(rules, call).await;
        let had_asked = |at: usize| matches!(before.get(at), Some(Verdict::Ask(_)));
        let asks = verdicts.into_iter().enumerate();
        let (known, new): (Vec<_>, Vec<_>) = asks
            .filter(|(_, verdict)| matches!(verdict, Verdict::Ask(_)))
            .partition(|(at, _)| had_asked(*at));
        match new.is_empty() {
            true => Verdict::Allow,
            // The interrupt has the message of the new gates, and the observers of all.
            false => strictest(new.into_iter().chain(known).map(|(_, verdict)| verdict)),
        }
    }

    /// Requires an approval for `call`.
    pub(super) fn ask(&self, tool: &Tool, call: &ToolCall, ask: Ask) -> Step {
        self.ask_as(tool, call, ask, question::id(call, ""))
    }

    /// Requires an approval for `call`, with the given interrupt id.
    pub(super) fn ask_as(&self, tool: &Tool, call: &ToolCall, ask: Ask, id: InterruptId) -> Step {
        let edited = question::is_edit(call, &id);
        let rules = self.toolset.rules();
        let (definition, policy) = (definition(Some(tool.spec())), rules.policy(&self.context));
        let tokens = rules.tokens.as_ref();
        let expires_after = match tokens {
            Some(tokens) => Some(tokens.lifetime_of(ask.expires_after)),
            None => ask.expires_after,
        };
        let mut interrupt =
            question::approval(call, id.clone(), &ask, ask.message.clone(), expires_after);
        if edited {
            interrupt = interrupt.with_metadata("edited", true);
        }
        // A live interrupt needs no token, which would remain valid after the reply.
        if let (Some(tokens), Some(expires_at), None) = (tokens, interrupt.expires_at, &ask.live)
            && let Some(token) = tokens.sign(call, id, definition, policy, expires_at, edited)
        {
            interrupt = interrupt.with_metadata("token", token.as_str());
        }
        let asked = Asked {
            why: Why::Gate,
            arguments: call.arguments().as_str().into(),
            arrived: None,
            bound: Bound::ToDecision,
            definition,
            policy,
            effect: None,
            inner: None,
        };
        let pending = asked.pending(vec![interrupt.clone()]);
        Step::Ask(Box::new(Question {
            ask,
            interrupt,
            pending,
        }))
    }

    /// Waits for a reply while the run stays open.
    async fn wait_live(
        self,
        index: usize,
        mut call: RoundCall,
        mut ask: Ask,
        mut interrupt: Interrupt,
    ) -> Replied {
        let permit = loop {
            let step = self.ask_live(&mut call, ask, interrupt).await;
            match step.without_doubt(&call) {
                Step::Enter { permit, .. } => break permit,
                Step::Halt(outcome) => break Permit::Settled(Arc::new(outcome)),
                Step::Ask(question) => {
                    let question = *question;
                    let view = self.view(&call);
                    let rules = self.toolset.rules();
                    tell_requested(rules, &question.ask, &view, &question.interrupt).await;
                    if question.ask.live.is_none() {
                        self.record(&call, ProtocolStep::Suspended);
                        let pending = self.together(question.pending);
                        return Replied::Wait(index, Box::new(pending));
                    }
                    (ask, interrupt) = (question.ask, question.interrupt);
                }
                // A reply leads to neither.
                Step::Wait(_) | Step::Fail(_) => {
                    break settled(&call, ToolOutcome::cancelled("The call was cancelled."));
                }
            }
        };
        Replied::Enter(Box::new(Entry {
            index,
            call,
            permit,
        }))
    }

    /// Raises an interrupt while the run stays open, and applies the reply.
    async fn ask_live(&self, call: &mut RoundCall, ask: Ask, interrupt: Interrupt) -> Step {
        let view = self.view(call);
        let id = interrupt.id.clone();
        let mut open = OpenQuestion(Some((&ask, &view)));
        let reply = match &ask.live {
            Some((live, timeout)) => {
                let (edits, part) = (self.toolset.check_edits(), Arc::clone(&call.call));
                let check = move |reply: &Reply| edits.check(&part, reply);
                let reply = live
                    .ask_checked(interrupt, *timeout, &view.context, check)
                    .await;
                reply.inspect_err(log_unanswered).ok()
            }
            None => None,
        };
        // From here on observers receive the actual end.
        open.0 = None;
        drop(open);
        let ruling = reply.as_ref().map(Reply::ruling);
        match ruling {
            Some(Ok(ruling)) => match self.toolset.find(&call.call.name) {
                Some(tool) => self.rule(tool, call, &ask, &id, ruling, None).await,
                None => Step::settled(ToolOutcome::cancelled("The call was cancelled.")),
            },
            _ => {
                let reason = Str::from_static(match self.context.is_cancelled() {
                    true => "The run was stopped before the call was approved.",
                    false => "The call was not approved in time.",
                });
                ask.notify(&ApprovalEvent::Denied {
                    call: &view,
                    reason: Some(&reason),
                });
                Step::settled(ToolOutcome::denied(reason))
            }
        }
    }
}

/// A live interrupt that waits for a reply: notifies the observers if it is dropped.
struct OpenQuestion<'a>(Option<(&'a Ask, &'a ToolCall)>);

impl Drop for OpenQuestion<'_> {
    fn drop(&mut self) {
        if let Some((ask, call)) = self.0 {
            ask.notify(&ApprovalEvent::Cancelled { call });
        }
    }
}

/// Logs why a live interrupt has no reply: a warning if it was not delivered.
fn log_unanswered(error: &Unanswered) {
    match error {
        Unanswered::Late | Unanswered::Cancelled => {
            tracing::debug!(%error, "a live interrupt was not answered");
        }
        _ => tracing::warn!(%error, "a live interrupt was not delivered"),
    }
}

/// The strictest verdict of the gates.
pub(super) async fn decide(rules: &Rules, call: &ToolCall) -> Verdict {
    strictest(decide_each(rules, call).await)
}

fn strictest(verdicts: impl IntoIterator<Item = Verdict>) -> Verdict {
    verdicts.into_iter().fold(Verdict::Pass, Verdict::and)
}

/// The verdicts of the gates, in their order.
async fn decide_each(rules: &Rules, call: &ToolCall) -> Vec<Verdict> {
    let own = call.context.extensions().get::<Approval>();
    let gates = || rules.gates(&call.context).map(|gate| &**gate);
    // An approval of the agent applies the rules of the run itself.
    let own = own.filter(|_| !gates().any(|gate| (gate as &dyn Any).is::<Approval>()));
    let gates = gates().chain(own.map(|own| own as &dyn Gate));
    let (mut verdicts, mut later) = (Vec::new(), Vec::new());
    for (at, gate) in gates.enumerate() {
        verdicts.push(match catch(|| gate.decide(call)) {
            Ok(Decided::Now(decided)) => decided,
            Ok(Decided::Later(decides)) => {
                later.push(async move { (at, gate, Caught::new(decides).await) });
                Verdict::Pass
            }
            Err(_) => undecided(gate, &"it panicked".into()),
        });
    }
    for (at, gate, decided) in join_all(later).await {
        let decided = decided.unwrap_or_else(|_| Err("it panicked".into()));
        if let Some(verdict) = verdicts.get_mut(at) {
            *verdict = decided.unwrap_or_else(|error| undecided(gate, &error));
        }
    }
    verdicts
}

/// The verdict of a gate that failed.
fn undecided(gate: &dyn Gate, error: &BoxError) -> Verdict {
    let gate = catch(|| gate.policy()).unwrap_or_default();
    tracing::error!(%error, %gate, "a gate failed; the call is denied");
    Verdict::deny("The permission check of this call failed. The call was not run.")
}

/// The outcome of a call for which a gate ends the run.
pub(super) fn halting(reason: Str) -> ToolOutcome {
    ToolOutcome::denied(reason.clone()).and_halt(reason)
}

pub(super) fn is_read_only(call: &RoundCall) -> bool {
    let spec = call.spec.as_ref();
    spec.is_some_and(|spec| spec.annotations.read_only)
}

fn is_held(answered: &Answered) -> bool {
    answered.pending.as_ref().is_some_and(Pending::is_held)
}
