//! The comparison of a call that arrives at its tool with the one that was decided about.

use super::{
    gates::{decide, definition, halting},
    ledger,
    notify::notify_requested,
    prompt,
    suspend_record::{Bound, SuspendRecord},
};
use crate::{
    Digest, Tool,
    gate::{Ask, Verdict},
    rules::Policy,
    tool::{Arrive, ToolFuture},
};
use concentric_core::{
    Arguments, Clearance, Error, Str, Suspension, ToolCall, ToolOutcome, hooks::Flow,
    interrupt::SuspendedBy,
};
use std::sync::Arc;

/// Runs the calls that arrive at the tools of a toolset.
pub(crate) struct Arrivals(pub(crate) Arc<Policy>);

impl Arrive for Arrivals {
    fn arrive(&self, tool: &Tool, call: ToolCall) -> ToolFuture {
        match check_arrival(tool, &call) {
            Arrival::AsDecided => start_decided(&self.0, tool, call),
            Arrival::Refused(outcome) => ToolFuture::answered(outcome),
            Arrival::Changed { decided, by_gate } => {
                let (tool, rules) = (tool.clone(), Arc::clone(&self.0));
                ToolFuture::boxed(async move {
                    match decide_changed(&rules, &tool, &call, &decided, by_gate).await {
                        Ok(()) => start_decided(&rules, &tool, call).await,
                        Err(Instead::Settled(outcome)) => Ok(outcome),
                        Err(Instead::Asked(asked)) => {
                            let (ask, on) = *asked;
                            for interrupt in &on.interrupts {
                                notify_requested(&rules, &ask, &call, interrupt).await;
                            }
                            Err(Error::suspended_by(SuspendedBy::Change, on))
                        }
                    }
                })
            }
        }
    }
}

/// Decides about a call as [`Arrivals`] do, without running it or notifying observers.
pub(crate) async fn decide_arrival(
    rules: &Policy,
    tool: &Tool,
    call: &ToolCall,
) -> Result<Flow<ToolOutcome>, Error> {
    let changed = match check_arrival(tool, call) {
        Arrival::AsDecided => tool.validate(call.part()).map_err(Instead::Settled),
        Arrival::Refused(outcome) => Err(Instead::Settled(outcome)),
        Arrival::Changed { decided, by_gate } => {
            decide_changed(rules, tool, call, &decided, by_gate).await
        }
    };
    match changed {
        Ok(()) => Ok(Flow::Continue),
        Err(Instead::Settled(mut outcome)) => Ok(match outcome.halt.take() {
            Some(reason) => Flow::Halt(reason),
            None => Flow::Answer(outcome),
        }),
        Err(Instead::Asked(asked)) => Err(Error::suspended_by(SuspendedBy::Change, asked.1)),
    }
}

/// Calls the tool after all decisions have been made.
fn start_decided(rules: &Arc<Policy>, tool: &Tool, mut call: ToolCall) -> ToolFuture {
    if tool.calls_agent() {
        call.context.bequeath(&rules.gates);
    }
    match &rules.ledger {
        Some(ledger) if !tool.spec().annotations.read_only => {
            let (rules, ledger) = (Arc::clone(rules), ledger.clone());
            ToolFuture::boxed(ledger::run(rules, ledger, tool.clone(), call))
        }
        _ => tool.start_function(call),
    }
}

/// The result of comparing a call with the one that was decided about.
enum Arrival {
    /// The call is unchanged.
    AsDecided,
    /// The call must not run, and needs no decision.
    Refused(ToolOutcome),
    /// A layer changed the call.
    Changed {
        /// The arguments that were decided about.
        decided: Arguments,
        /// Whether a gate had decided about the call.
        by_gate: bool,
    },
}

/// The result of a decision about a changed call that must not run now.
enum Instead {
    /// The outcome of the call.
    Settled(ToolOutcome),
    /// The call requires an approval.
    Asked(Box<(Ask, Suspension)>),
}

/// Checks that a call arrives at its tool as it was decided about.
fn check_arrival(tool: &Tool, call: &ToolCall) -> Arrival {
    let (decided, by_gate) = match call.clearance() {
        Clearance::Passed(arguments) => (arguments, false),
        Clearance::Decided(arguments) | Clearance::Approved(arguments) => (arguments, true),
        // Unknown clearances are refused.
        Clearance::Ungated => return Arrival::AsDecided,
        Clearance::Settled(outcome) => return Arrival::Refused((**outcome).clone()),
        _ => {
            let unknown =
                "The permission of this call could not be verified. The call was not run.";
            return Arrival::Refused(call.state().settle_unexecuted(ToolOutcome::denied(unknown)));
        }
    };
    if same(decided, call.arguments()) {
        return Arrival::AsDecided;
    }
    let invalid = tool.validate(call.part()).is_err();
    if invalid && !by_gate {
        // The tool itself reports the invalid arguments.
        return Arrival::AsDecided;
    }
    if invalid || matches!(call.clearance(), Clearance::Approved(_)) {
        tracing::warn!(tool = %call.name(), "a layer changed a call after its approval");
        let changed = ToolOutcome::denied(Str::from_static(
            "A layer changed the arguments of this call after its approval. The call was not \
             run.",
        ));
        return Arrival::Refused(call.state().settle_unexecuted(changed));
    }
    Arrival::Changed {
        decided: decided.clone(),
        by_gate,
    }
}

/// Decides about a call that a layer has changed since `decided`. Notifies no observers.
async fn decide_changed(
    rules: &Policy,
    tool: &Tool,
    call: &ToolCall,
    decided: &Arguments,
    by_gate: bool,
) -> Result<(), Instead> {
    let settled = |outcome| Err(Instead::Settled(call.state().settle_unexecuted(outcome)));
    let ask = match decide(rules, call).await {
        Verdict::Deny(reason) => return settled(ToolOutcome::denied(reason)),
        Verdict::Halt(reason) => return settled(halting(reason)),
        Verdict::Ask(ask) => ask,
        Verdict::Pass | Verdict::Allow if !by_gate => return Ok(()),
        // The unchanged call was allowed or approved, which does not cover the changed one.
        Verdict::Pass | Verdict::Allow => Ask::default(),
    };
    let record = SuspendRecord {
        // The call enters the stack again with the original arguments, and the layer changes them
        // again.
        arguments: decided.as_str().into(),
        arrived: Some(call.arguments().as_str().into()),
        bound: Bound::ToDecision,
        definition: definition(Some(tool.spec())),
        policy: rules.policy(&call.context),
        effect: None,
        inner: None,
    };
    let name = call.name();
    let message = ask.message.clone().unwrap_or_else(|| {
        format!("Allow the call of `{name}`? A layer changed its arguments.").into()
    });
    // A reply applies only to the change that the approver received.
    let arrived = Digest::of_fields(
        "concentric/arrived",
        &[call.arguments().as_str().as_bytes()],
    );
    let id = prompt::id(call, &format!("#{arrived}"));
    let interrupt = prompt::approval(call, id, &ask, Some(message), ask.expires_after)
        .with_metadata("changed", true);
    let on = record.suspension(vec![interrupt]);
    Err(Instead::Asked(Box::new((ask, on))))
}

/// Whether two texts of arguments are the same JSON value.
fn same(a: &Arguments, b: &Arguments) -> bool {
    a == b
        || matches!(
            (Digest::of_json(a.as_str()), Digest::of_json(b.as_str())),
            (Ok(a), Ok(b)) if a == b
        )
}
