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
    Arguments, Clearance, Context, Decision, InterruptId, OpenRound, Reply, RoundCall, Str,
    ToolCall,
    interrupt::{self, ScopeCalls, ScopeLifetime, SuspendedBy},
    machine::RunState,
    store::{StoredDecision, StoredScope, Tenant},
};
use serde_json::Value;
use std::any::Any;

impl Pipeline {
    /// The observers of the gates of this run, even if those gates would not raise the interrupt
    /// again.
    pub(super) fn observers(&self) -> Ask {
        let gates = self.rules().gates(&self.context);
        let approvals = gates.filter_map(|gate| (gate as &dyn Any).downcast_ref());
        let asks = approvals.map(Approval::settings);
        asks.fold(Ask::default(), Ask::and).observers()
    }

    /// Notifies the observers that a waiting call is denied for `reason`.
    pub(super) async fn notify_denied(&self, id: &InterruptId, call: &ToolCall, reason: Str) {
        let decision = Decision::Denied {
            reason: Some(reason),
            remember: None,
        };
        self.notify_decision(&self.observers(), id, call, &decision)
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
            self.notify_denied(
                &reply.interrupt_id,
                &self.view(call, Clearance::Ungated),
                reason,
            )
            .await;
        }
    }

    /// Notifies the observers of a decision, unless they were notified before.
    pub(super) async fn notify_decision(
        &self,
        ask: &Ask,
        id: &InterruptId,
        call: &ToolCall,
        decision: &Decision,
    ) {
        if !ask.is_observed() || !is_first(self.rules(), "decision", id, call).await {
            return;
        }
        ask.notify(&match decision {
            Decision::Approved { .. } => ApprovalEvent::Approved { call },
            Decision::Denied { reason, .. } => ApprovalEvent::Denied {
                call,
                reason: reason.as_ref(),
            },
            Decision::Answered(result) => ApprovalEvent::Answered { call, result },
            _ => ApprovalEvent::Cancelled { call },
        });
    }

    /// Stores a decision for further calls.
    pub(super) async fn store_decision(&self, call: &ToolCall, ask: &Ask, decision: &Decision) {
        let (remember, allow, reason) = match decision {
            Decision::Approved { remember, .. } => (remember, true, None),
            Decision::Denied { remember, reason } => (remember, false, reason.clone()),
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
        let (thread, session) = (context.thread_id(), context.session_id());
        let span = match (remember.span, session, thread) {
            (ScopeLifetime::Always, ..) => StoredScope::Always,
            (ScopeLifetime::Session, Some(session), _) => StoredScope::Session(session.clone()),
            (ScopeLifetime::Session | ScopeLifetime::Thread, _, Some(thread)) => {
                StoredScope::Thread(thread.clone())
            }
            _ => StoredScope::Run {
                thread: thread.cloned(),
                run: run_of(context),
            },
        };
        let arguments = match remember.what {
            ScopeCalls::Tool => None,
            ScopeCalls::Arguments => match Digest::of_json(call.arguments().as_str()) {
                Ok(digest) => Some(digest.to_string().into()),
                Err(_) => return,
            },
        };
        let kept = StoredDecision::new(
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
    state: &RunState,
    replies: &[Reply],
) {
    let (pipeline, asked) = asked(toolset, context, state);
    for (id, mut call) in asked {
        let reply = replies.iter().find(|reply| reply.interrupt_id == id);
        let Some(Ok(decision)) = reply.map(Reply::decision) else {
            continue;
        };
        let (Some(tool), Verdict::Ask(ask)) = (
            toolset.find(call.name()),
            decide(pipeline.rules(), &call).await,
        ) else {
            // Its observers are notified when the call resumes.
            continue;
        };
        if let Decision::Approved {
            edited: Some(edited),
            ..
        } = &decision
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
        pipeline.notify_decision(&ask, &id, &call, &decision).await;
    }
}

/// Notifies the observers that the waiting calls of a round are cancelled.
pub(crate) async fn cancel_interrupts(toolset: &Toolset, context: &Context, state: &RunState) {
    let (pipeline, asked) = asked(toolset, context, state);
    let ask = pipeline.observers();
    for (id, call) in asked {
        pipeline
            .notify_decision(&ask, &id, &call, &Decision::Cancelled)
            .await;
    }
}

/// The interrupts of a round, each with its call as the approver received it.
fn asked(
    toolset: &Toolset,
    context: &Context,
    state: &RunState,
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
    for (position, (call, _)) in calls.enumerate() {
        let mut call = RoundCall::new(position, call.clone());
        call.spec = toolset
            .find(&call.call.name)
            .map(|tool| tool.spec().clone());
        let id = prompt::id(&pipeline.view(&call, Clearance::Ungated), "");
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
            all.push((asked.id.clone(), pipeline.view(&call, Clearance::Ungated)));
        }
    }
    (pipeline, all)
}
