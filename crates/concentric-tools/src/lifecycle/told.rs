//! Whom else a decision concerns: those who watch, and the calls that it is to hold for.

use super::{
    asked::{Asked, Why},
    gating::{Gating, definition},
    question,
    rule::Rules,
};
use crate::{
    Approval, Digest,
    approval::{ApprovalEvent, Ask, run_of},
    gate::{Gate, Verdict},
    panic::stored,
    toolset::Toolset,
};
use concentric_core::{
    Arguments, Context, Interrupt, InterruptId, OpenRound, Reply, RoundCall, Ruling, Str, ToolCall,
    interrupt::{self, RememberFor, RememberWhat},
    machine::MachineState,
    store::{Remembered, Span, Tenant},
};
use serde_json::Value;

/// How long a decision is known to have been told.
const TOLD_FOR: std::time::Duration = std::time::Duration::from_secs(30 * 24 * 60 * 60);

/// Tells the watchers that somebody is asked about `call`, unless they were told.
pub(super) async fn tell_requested(
    rules: &Rules,
    ask: &Ask,
    call: &ToolCall,
    interrupt: &Interrupt,
) {
    if ask.is_watched() && is_first(rules, "request", &interrupt.id, call).await {
        ask.tell(&ApprovalEvent::Requested { call, interrupt });
    }
}

/// Whether nobody was told of this about a question before.
async fn is_first(rules: &Rules, what: &str, id: &InterruptId, call: &ToolCall) -> bool {
    let Some(once) = &rules.once else {
        return true;
    };
    let key = format!("{what}:{id}");
    let now = call.context.now();
    let until = now.checked_add(TOLD_FOR).unwrap_or(now);
    let first = stored(|| once.once(Tenant::of(&call.context), key.into(), until));
    first.await.unwrap_or_else(|error| {
        tracing::error!(%error, "whether a {what} was told is not known");
        true
    })
}

impl Gating {
    /// Whom a question about a call of this run may concern, if the gates that asked it would not
    /// ask any more.
    pub(super) fn watchers(&self) -> Ask {
        let own = self.context.extensions().get::<Approval>();
        let gates = self.toolset.rules().gates(&self.context);
        let asks = gates
            .filter_map(|gate| gate.asks())
            .chain(own.and_then(Gate::asks));
        asks.fold(Ask::default(), Ask::and).only_watched()
    }

    /// Tells the watchers that a call is denied, for `reason`, that somebody was asked about.
    pub(super) async fn tell_denied(&self, id: &InterruptId, call: &ToolCall, reason: Str) {
        let ruling = Ruling::Denied {
            reason: Some(reason),
            remember: None,
        };
        self.tell(&self.watchers(), id, call, &ruling).await;
    }

    /// Tells the watchers that a call was asked about whose tool is gone.
    pub(super) async fn tell_gone(&self, call: &RoundCall) {
        let Some(answered) = &call.answered else {
            return;
        };
        let asked = answered.pending.as_ref().and_then(Asked::of);
        if let (Some(reply), Some(Why::Gate | Why::Changed)) =
            (answered.replies.first(), asked.map(|asked| asked.why))
        {
            let reason = Str::from_static("The tool is gone.");
            self.tell_denied(&reply.interrupt_id, &self.view(call), reason)
                .await;
        }
    }

    /// Tells the watchers of a decision, unless they were told.
    pub(super) async fn tell(&self, ask: &Ask, id: &InterruptId, call: &ToolCall, ruling: &Ruling) {
        if !ask.is_watched() || !is_first(self.toolset.rules(), "decision", id, call).await {
            return;
        }
        ask.tell(&match ruling {
            Ruling::Approved { .. } => ApprovalEvent::Approved { call },
            Ruling::Denied { reason, .. } => ApprovalEvent::Denied {
                call,
                reason: reason.as_ref(),
            },
            Ruling::Answered(result) => ApprovalEvent::Answered { call, result },
            _ => ApprovalEvent::Cancelled { call },
        });
    }

    /// Keeps a decision for other calls.
    pub(super) async fn remember(&self, call: &ToolCall, ask: &Ask, ruling: &Ruling) {
        let (remember, allow, reason) = match ruling {
            Ruling::Approved { remember, .. } => (remember, true, None),
            Ruling::Denied { remember, reason } => (remember, false, reason.clone()),
            _ => return,
        };
        let (Some(remember), Some(decisions)) = (remember, &ask.decisions) else {
            return;
        };
        let most = ask.remember_at_most;
        if most.is_some_and(|most| remember.what > most.what || remember.span > most.span) {
            // Nobody has recorded the question, or it was asked before there was this limit.
            tracing::warn!(
                "a decision holds for its call only: it is to hold for more than it may"
            );
            return;
        }
        let context = &call.context;
        let span = match (remember.span, context.thread_id()) {
            (RememberFor::Always, _) => Span::Always,
            (RememberFor::Thread, Some(thread)) => Span::Thread(thread.clone()),
            (RememberFor::Thread, None) | (RememberFor::Run, _) => Span::Run {
                thread: context.thread_id().cloned(),
                run: run_of(context),
            },
        };
        let arguments = match remember.what {
            RememberWhat::Tool => None,
            RememberWhat::Arguments => match Digest::of_json(call.arguments().as_str()) {
                Ok(digest) => Some(digest.to_string().into()),
                Err(_) => return,
            },
        };
        let kept = Remembered::new(
            Tenant::of(context),
            call.name().clone(),
            definition(call.spec()).to_string().into(),
            arguments,
            span,
            allow,
            reason,
            context.now(),
        );
        // Before the write, which may take place even if its future is dropped: a reply that is given
        // back leaves no decision behind.
        context.count_effect();
        if let Err(error) = stored(|| decisions.remember(kept)).await {
            tracing::error!(%error, "a decision holds for its call only: it can't be kept");
        }
    }
}

/// Tells the watchers what was decided about the calls of a suspended round.
pub(super) async fn notify(
    toolset: &Toolset,
    context: &Context,
    state: &MachineState,
    replies: &[Reply],
) {
    let (gating, asked) = asked(toolset, context, state);
    for (id, mut call) in asked {
        let reply = replies.iter().find(|reply| reply.interrupt_id == id);
        let Some(Ok(ruling)) = reply.map(Reply::ruling) else {
            continue;
        };
        let (Some(tool), Verdict::Ask(ask)) =
            (toolset.find(call.name()), gating.decide(&call).await)
        else {
            // What is made of it is told when it is taken up.
            continue;
        };
        if let Ruling::Approved {
            edited: Some(edited),
            ..
        } = &ruling
        {
            let before = call.clone();
            call.set_arguments(Arguments::new(Value::Object(edited.clone()).to_string()));
            if tool.validate(call.part()).is_err()
                || !matches!(
                    gating.decide_edited(&before, &call).await,
                    Verdict::Pass | Verdict::Allow
                )
            {
                continue;
            }
        }
        gating.tell(&ask, &id, &call, &ruling).await;
    }
}

/// Tells the watchers that the calls of a round are given up that somebody was asked about.
pub(super) async fn give_up(toolset: &Toolset, context: &Context, state: &MachineState) {
    let (gating, asked) = asked(toolset, context, state);
    let ask = gating.watchers();
    for (id, call) in asked {
        gating.tell(&ask, &id, &call, &Ruling::Cancelled).await;
    }
}

/// The questions about the calls of a round, each with its call as it was asked about.
fn asked(
    toolset: &Toolset,
    context: &Context,
    state: &MachineState,
) -> (Gating, Vec<(InterruptId, ToolCall)>) {
    let open = state.open_round();
    let message_id = open.as_ref().and_then(|open| open.message().id.clone());
    let gating = Gating {
        toolset: toolset.clone(),
        transcript: state.transcript().clone(),
        context: context.at_round(context.step(), message_id),
    };
    let interrupts = state.interrupts();
    let mut all = Vec::new();
    let calls = open.iter().flat_map(OpenRound::calls);
    for (position, open) in calls.enumerate() {
        let mut call = RoundCall::new(position, open.call.clone());
        call.spec = toolset
            .find(&call.call.name)
            .map(|tool| tool.spec().clone());
        let id = question::id(&gating.view(&call), "");
        // The questions about this very call: one of an agent that it calls is another's.
        let about = interrupts.iter().filter(|asked| {
            let rest = asked.id.as_str().strip_prefix(id.as_str());
            asked.reason == interrupt::TOOL_CALL
                && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('#'))
        });
        for asked in about {
            if let Some(arguments) = question::arguments(asked) {
                call.call.arguments = arguments;
            }
            all.push((asked.id.clone(), gating.view(&call)));
        }
    }
    (gating, all)
}
