use super::{
    asked::{Asked, Bound, Why},
    doubt::not_gone_on,
    gating::{decide, definition, halting},
    question,
    rule::Rules,
    told::tell_requested,
};
use crate::{Digest, Tool, gate::Verdict};
use concentric_core::{Arguments, Error, Permit, Str, ToolCall, ToolOutcome};

/// How a call arrives at its tool.
pub(crate) enum Arrival {
    /// As it was decided about.
    AsDecided,
    /// In a way that nobody is asked about.
    Refused(ToolOutcome),
    /// Changed by a layer.
    Changed {
        /// What was decided about.
        decided: Arguments,
        /// Whether a gate minds the call at all.
        minded: bool,
    },
}

/// Checks that a call arrives at its tool as it was decided about.
pub(crate) fn check_arrival(tool: &Tool, call: &ToolCall) -> Arrival {
    let (decided, minded) = match call.permit() {
        Permit::Passed(arguments) => (arguments, false),
        Permit::Exactly(arguments) | Permit::AsAsked(arguments) => (arguments, true),
        // The strictest check there is, for what is not known here, is not to let it pass.
        Permit::Any => return Arrival::AsDecided,
        Permit::Settled(outcome) => return Arrival::Refused((**outcome).clone()),
        _ => {
            let unknown = "The call was decided about in a way that is not known here.";
            return Arrival::Refused(not_gone_on(call, ToolOutcome::denied(unknown)));
        }
    };
    if same(decided, call.arguments()) {
        return Arrival::AsDecided;
    }
    let invalid = tool.validate(call.part()).is_err();
    if invalid && !minded {
        // The tool itself says what is wrong with it.
        return Arrival::AsDecided;
    }
    if invalid || matches!(call.permit(), Permit::AsAsked(_)) {
        tracing::warn!(tool = %call.name(), "a layer changed a call that was decided about");
        let changed = ToolOutcome::denied(Str::from_static(
            "The call was changed on its way to the tool after it was decided about, so it was \
             not run.",
        ));
        return Arrival::Refused(not_gone_on(call, changed));
    }
    Arrival::Changed {
        decided: decided.clone(),
        minded,
    }
}

/// Decides about a call that a layer has changed since `decided` was decided about.
///
/// # Errors
///
/// It does not run: it is denied, or somebody is asked about it as it is now.
pub(crate) async fn decide_changed(
    rules: &Rules,
    tool: &Tool,
    call: &ToolCall,
    decided: &Arguments,
    minded: bool,
) -> Result<(), Result<ToolOutcome, Error>> {
    let ask = match decide(rules, call).await {
        Verdict::Deny(reason) => return Err(Ok(not_gone_on(call, ToolOutcome::denied(reason)))),
        Verdict::Halt(reason) => return Err(Ok(not_gone_on(call, halting(reason)))),
        Verdict::Ask(ask) => ask,
        Verdict::Pass | Verdict::Allow if !minded => return Ok(()),
        // Somebody, or a rule, has decided about the others.
        Verdict::Pass | Verdict::Allow => crate::approval::Ask::default(),
    };
    let asked = Asked {
        why: Why::Changed,
        // What enters the stack again is what was decided about; the layer changes it again.
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
        format!("May `{name}` be called? Its arguments were changed on the way.").into()
    });
    // Who replies to one change has not seen the next.
    let arrived = Digest::of_fields(
        "concentric/arrived",
        &[call.arguments().as_str().as_bytes()],
    );
    let id = question::id(call, &format!("#{arrived}"));
    let interrupt = question::approval(call, id, &ask, Some(message), ask.expires_after)
        .with_metadata("changed", true);
    tell_requested(rules, &ask, call, &interrupt).await;
    Err(Err(Error::waiting(asked.pending(vec![interrupt]))))
}

/// Whether two texts of arguments mean the same.
fn same(a: &Arguments, b: &Arguments) -> bool {
    a == b
        || matches!(
            (Digest::of_json(a.as_str()), Digest::of_json(b.as_str())),
            (Ok(a), Ok(b)) if a == b
        )
}
