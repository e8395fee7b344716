//! Notification of observers, and storage of decisions for further calls.

use super::{
    asked::{Asked, Why},
    gating::{Gating, definition},
    question,
    rule::Rules,
};
use crate::{
    Approval, Digest,
    approval::run_of,
    gate::{ApprovalEvent, Ask, Verdict},
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
use std::any::Any;

/// How long notifications are remembered.
const TOLD_FOR: std::time::Duration = std::time::Duration::from_secs(30 * 24 * 60 * 60);

/// Notifies the observers of an interrupt for `call`, unless they were notified before.
pub(super) async fn tell_requested(
    rules: &Rules,
    ask: &Ask,
    call: &ToolCall,
    interrupt: &Interrupt,
) {
    if ask.is_observed() && is_first(rules, "request", &interrupt.id, call).await {
        ask.notify(&ApprovalEvent::Requested { call, interrupt });
    }
}

/// Whether this is the first notification of this kind for an interrupt.
async fn is_first(rules: &Rules, what: &str, id: &InterruptId, call: &ToolCall) -> bool {
    let Some(once) = &rules.once else {
        return true;
    };
    let key = format!("{what}:{id}");
    let now = call.context.now();
    let until = now.checked_add(TOLD_FOR).unwrap_or(now);
    let first = stored(|| once.once(Tenant::of(&call.context), key.into(), until));
    first.await.unwrap_or_else(|error| {
        tracing::error!(%error, "looking up the notification of a {what} failed; notifying again");
        true
    })
}

impl Gating {
    /// The observers of the gates of this run, even if those gates would not raise the interrupt
    /// again.
    pub(super) fn watchers(&self) -> Ask {
        let own = self.context.extensions().get::<Approval>();
        let gates = self.toolset.rules().gates(&self.context);
        let approvals = gates.filter_map(|gate| (&**gate as &dyn Any).downcast_ref::<Approval>());
        let asks = approvals.chain(own).map(Approval::settings);
        asks.fold(Ask::default(), Ask::and).observers()
    }

    /// Notifies the observers that a waiting call is denied for `reason`.
    pub(super) async fn tell_denied(&self, id: &InterruptId, call: &ToolCall, reason: Str) {
        let ruling = Ruling::Denied {
            reason: Some(reason),
            remember: None,
        };
        self.tell(&self.watchers(), id, call, &ruling).await;
    }

    /// Notifies the observers that the tool of a waiting call no longer exists.
    pub(super) async fn tell_gone(&self, call: &RoundCall) {
        let Some(answered) = call.answered() else {
            return;
        };
        let asked = answered.pending.as_ref().and_then(Asked::of);
        if let (Some(reply), Some(Why::Gate | Why::Changed)) =
            (answered.replies.first(), asked.map(|asked| asked.why))
        {
            let reason = Str::from_static("The tool no longer exists.");
            self.tell_denied(&reply.interrupt_id, &self.view(call), reason)
                .await;
        }
    }

    /// Notifies the observers of a decision, unless they were notified before.
    pub(super) async fn tell(&self, ask: &Ask, id: &InterruptId, call: &ToolCall, ruling: &Ruling) {
        if !ask.is_observed() || !is_first(self.toolset.rules(), "decision", id, call).await {
            return;
        }
        ask.notify(&match ruling {
            Ruling::Approved { .. } => ApprovalEvent::Approved { call },
            Ruling::Denied { reason, .. } => ApprovalEvent::Denied {
                call,
                reason: reason.as_ref(),
            },
            Ruling::Answered(result) => ApprovalEvent::Answered { call, result },
            _ => ApprovalEvent::Cancelled { call },
        });
    }

    /// Stores a decision for further calls.
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
            // The interrupt was not stored, or is older than the limit.
            tracing::warn!("a decision applies only to its call: its scope exceeds the limit");
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
        // Before the write, which may complete even if its future is dropped: after a stored
        // decision the reply must not be returned to the caller.
        context.count_effect();
        if let Err(error) = stored(|| decisions.remember(kept)).await {
            tracing::error!(%error, "a decision applies only to its call: storing it failed");
        }
    }
}

/// Notifies the observers of the decisions about the calls of a suspended round.
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
            // Its observers are notified when the call resumes.
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

/// Notifies the observers that the waiting calls of a round are cancelled.
pub(super) async fn give_up(toolset: &Toolset, context: &Context, state: &MachineState) {
    let (gating, asked) = asked(toolset, context, state);
    let ask = gating.watchers();
    for (id, call) in asked {
        gating.tell(&ask, &id, &call, &Ruling::Cancelled).await;
    }
}

/// The interrupts of a round, each with its call as the approver received it.
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
        // Without the interrupts of agents that the call has started.
        let about = interrupts.iter().filter(|asked| {
            let rest = asked.id.as_str().strip_prefix(id.as_str());
            asked.reason == interrupt::TOOL_CALL
                && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('#'))
        });
        for asked in about {
            if let Some(arguments) = question::arguments(asked) {
                call.call_mut().arguments = arguments;
            }
            all.push((asked.id.clone(), gating.view(&call)));
        }
    }
    (gating, all)
}
