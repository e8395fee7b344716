//! Whom else a decision concerns: those who watch, and the calls that it is to hold for.

use super::{
    gating::{Gating, definition},
    question,
};
use crate::{
    Digest,
    approval::{ApprovalEvent, Ask, run_of},
    gate::Verdict,
    toolset::Toolset,
};
use concentric_core::{
    Arguments, Context, InterruptId, Reply, RoundCall, Ruling, ToolCall, interrupt,
    interrupt::{RememberFor, RememberWhat},
    machine::MachineState,
    store::{Remembered, Span, Tenant},
};
use serde_json::Value;

/// How long a decision is known to have been told.
const TOLD_FOR: std::time::Duration = std::time::Duration::from_secs(30 * 24 * 60 * 60);

impl Gating {
    /// Tells the watchers of a decision, unless they were told.
    pub(super) async fn tell(&self, ask: &Ask, id: &InterruptId, call: &ToolCall, ruling: &Ruling) {
        if !ask.is_watched() {
            return;
        }
        if let Some(once) = &self.toolset.rules().once {
            let tenant = Tenant::of(&call.context);
            let key = format!("decision:{id}");
            let until = call.context.now() + TOLD_FOR;
            match once.once(tenant, key.into(), until).await {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => {
                    tracing::error!(%error, "whether a decision was told is not known");
                }
            }
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
        let context = &call.context;
        let span = match (remember.span, context.thread_id()) {
            (RememberFor::Always, _) => Span::Always,
            (RememberFor::Thread, Some(thread)) => Span::Thread(thread.clone()),
            (RememberFor::Thread, None) | (RememberFor::Run, _) => Span::Run(run_of(context)),
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
        if let Err(error) = decisions.remember(kept).await {
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
    let Some(open) = state.open_round() else {
        return;
    };
    let gating = Gating {
        toolset: toolset.clone(),
        transcript: state.transcript().clone(),
        context: context.at_round(context.step(), open.message().id.clone()),
    };
    let asked = state.interrupts();
    for (position, open) in open.calls().iter().enumerate() {
        let Some(tool) = toolset.find(&open.call.name) else {
            continue;
        };
        let mut call = RoundCall::new(position, open.call.clone());
        let id = question::id(&gating.view(&call), "");
        // The questions about this very call: one of an agent that it calls is another's.
        let about = asked.iter().filter(|asked| {
            let rest = asked.id.as_str().strip_prefix(id.as_str());
            asked.reason == interrupt::TOOL_CALL
                && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('#'))
        });
        for asked in about {
            let reply = replies.iter().find(|reply| reply.interrupt_id == asked.id);
            let Some(Ok(ruling)) = reply.map(Reply::ruling) else {
                continue;
            };
            if let Some(arguments) = question::arguments(asked) {
                call.call.arguments = arguments;
            }
            let mut view = gating.view(&call).with_spec(tool.spec().clone());
            let Verdict::Ask(ask) = gating.decide(&view).await else {
                continue;
            };
            if let Ruling::Approved {
                edited: Some(edited),
                ..
            } = &ruling
            {
                view.set_arguments(Arguments::new(Value::Object(edited.clone()).to_string()));
                // What is made of them is told when they are taken up.
                if tool.validate(view.part()).is_err()
                    || matches!(
                        gating.decide(&view).await,
                        Verdict::Deny(_) | Verdict::Halt(_)
                    )
                {
                    continue;
                }
            }
            gating.tell(&ask, &asked.id, &view, &ruling).await;
        }
    }
}
