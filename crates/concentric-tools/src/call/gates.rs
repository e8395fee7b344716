//! The verdict of all gates about a call.

use crate::{
    Approval, Digest,
    gate::{Decided, Gate, Verdict},
    panic::Caught,
    rules::Policy,
};
use concentric_core::{BoxError, Str, ToolCall, ToolOutcome, ToolSpec, panic::catch};
use futures_util::future::join_all;
use std::{any::Any, sync::Arc};

/// The strictest verdict of the gates.
pub(crate) async fn decide(rules: &Policy, call: &ToolCall) -> Verdict {
    strictest(decide_each(rules, call).await)
}

fn strictest(verdicts: impl IntoIterator<Item = Verdict>) -> Verdict {
    verdicts.into_iter().fold(Verdict::Pass, Verdict::and)
}

/// The verdicts of the gates, in their order.
async fn decide_each(rules: &Policy, call: &ToolCall) -> Vec<Verdict> {
    let context = &call.context;
    let is_approval = |gate: &dyn Gate| (gate as &dyn Any).is::<Approval>();
    // An agent's `Approval` takes those of the run into account.
    let is_included = rules.agent_gates(context).any(is_approval);
    let own = context.run_gates().iter().map(|gate| &**gate);
    let own = own.filter(|gate| !(is_included && is_approval(*gate)));
    let gates = rules.agent_gates(context).chain(own);
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
    // Not within the current span, into which its exporter would copy the text.
    tracing::error!(parent: None, %error, %gate, "a gate failed; the call is denied");
    Verdict::deny("The permission check of this call failed. The call was not run.")
}

/// Decides about `edited`, which is `call` with arguments that an approver edited. Another approval
/// is required only if a gate requires one that did not require one for `call`.
pub(crate) async fn decide_edited(rules: &Policy, call: &ToolCall, edited: &ToolCall) -> Verdict {
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

/// The outcome of a call for which a gate ends the run.
pub(crate) fn halting(reason: Str) -> ToolOutcome {
    ToolOutcome::denied(reason.clone()).and_halt(reason)
}

/// The digest of a tool's definition.
pub(crate) fn definition(spec: Option<&Arc<ToolSpec>>) -> Digest {
    match spec {
        Some(spec) => Digest::of_spec(spec),
        None => Digest::of_fields("concentric/no-definition", &[]),
    }
}
