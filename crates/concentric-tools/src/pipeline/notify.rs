//! Notification of observers, and storage of decisions for further calls.

use super::Pipeline;
use crate::{
    Approval, Digest,
    approval::run_of,
    call::{
        gates::{decide, decide_edited, definition},
        notify::is_first,
        prompt,
    },
    gate::{ApprovalEvent, Ask, Verdict},
    panic::stored,
    toolset::Toolset,
};
use concentric_core::{
    Arguments, Context, InterruptId, OpenRound, Permit, Reply, RoundCall, Ruling, Str, ToolCall,
    interrupt::{self, RememberFor, RememberWhat, SuspendedBy},
    machine::MachineState,
    store::{Remembered, Span, Tenant},
};
use serde_json::Value;
use std::any::Any;

impl Pipeline {
    /// The observers of the gates of this run, even if those gates would not raise the interrupt
    /// again.
    pub(super) fn observers(&self) -> Ask {
        let own = self.context.extensions().get::<Approval>();
        let gates = self.rules().gates(&self.context);
        let approvals = gates.filter_map(|gate| (&**gate as &dyn Any).downcast_ref::<Approval>());
        let asks = approvals.chain(own).map(Approval::settings);
        asks.fold(Ask::default(), Ask::and).observers()
    }

    /// Notifies the observers that a waiting call is denied for `reason`.
    pub(super) async fn notify_denied(&self, id: &InterruptId, call: &ToolCall, reason: Str) {
        let ruling = Ruling::Denied {
            reason: Some(reason),
            remember: None,
        };
        self.notify_decision(&self.observers(), id, call, &ruling)
            .await;
    }

    /// Notifies the observers that the tool of a waiting call no longer exists.
    pub(super) async fn notify_missing_tool(&self, call: &RoundCall) {
        let Some(resume) = call.state.resumed() else {
            return;
        };
        if let (Some(reply), SuspendedBy::Gate | SuspendedBy::Change) =
            (resume.replies.first(), resume.by)
        {
            let reason = Str::from_static("The tool no longer exists.");
            self.notify_denied(&reply.interrupt_id, &self.view(call, Permit::Any), reason)
                .await;
        }
    }

    /// Notifies the observers of a decision, unless they were notified before.
    pub(super) async fn notify_decision(
        &self,
        ask: &Ask,
        id: &InterruptId,
        call: &ToolCall,
        ruling: &Ruling,
    ) {
        if !ask.is_observed() || !is_first(self.rules(), "decision", id, call).await {
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
    pub(super) async fn store_decision(&self, call: &ToolCall, ask: &Ask, ruling: &Ruling) {
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
pub(crate) async fn notify_decisions(
    toolset: &Toolset,
    context: &Context,
    state: &MachineState,
    replies: &[Reply],
) {
    let (pipeline, asked) = asked(toolset, context, state);
    for (id, mut call) in asked {
        let reply = replies.iter().find(|reply| reply.interrupt_id == id);
        let Some(Ok(ruling)) = reply.map(Reply::ruling) else {
            continue;
        };
        let (Some(tool), Verdict::Ask(ask)) = (
            toolset.find(call.name()),
            decide(pipeline.rules(), &call).await,
        ) else {
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
                    decide_edited(pipeline.rules(), &before, &call).await,
                    Verdict::Pass | Verdict::Allow
                )
            {
                continue;
            }
        }
        pipeline.notify_decision(&ask, &id, &call, &ruling).await;
    }
}

/// Notifies the observers that the waiting calls of a round are cancelled.
pub(crate) async fn cancel_interrupts(toolset: &Toolset, context: &Context, state: &MachineState) {
    let (pipeline, asked) = asked(toolset, context, state);
    let ask = pipeline.observers();
    for (id, call) in asked {
        pipeline
            .notify_decision(&ask, &id, &call, &Ruling::Cancelled)
            .await;
    }
}

/// The interrupts of a round, each with its call as the approver received it.
fn asked(
    toolset: &Toolset,
    context: &Context,
    state: &MachineState,
) -> (Pipeline, Vec<(InterruptId, ToolCall)>) {
    let open = state.open_round();
    let message_id = open.as_ref().and_then(|open| open.message().id.clone());
    let pipeline = Pipeline {
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
        let id = prompt::id(&pipeline.view(&call, Permit::Any), "");
        // Without the interrupts of agents that the call has started.
        let about = interrupts.iter().filter(|asked| {
            let rest = asked.id.as_str().strip_prefix(id.as_str());
            asked.reason == interrupt::TOOL_CALL
                && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('#'))
        });
        for asked in about {
            if let Some(arguments) = prompt::arguments(asked) {
                call.call_mut().arguments = arguments;
            }
            all.push((asked.id.clone(), pipeline.view(&call, Permit::Any)));
        }
    }
    (pipeline, all)
}
