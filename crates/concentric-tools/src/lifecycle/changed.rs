use super::{
    asked::{Asked, Why},
    gating::definition,
    question,
    rule::Rules,
};
use crate::{Digest, Tool};
use concentric_core::{Arguments, Error, Permit, Str, ToolCall, ToolOutcome};

/// Checks that a call arrives at its tool as it was decided about.
///
/// # Errors
///
/// It does not: it is denied, or somebody is asked about it as it is now.
pub(crate) fn check_arrival(
    rules: &Rules,
    tool: &Tool,
    call: &ToolCall,
) -> Result<(), Result<ToolOutcome, Error>> {
    let (decided, asked_before) = match call.permit() {
        Permit::Exactly(arguments) => (arguments, false),
        Permit::AsAsked(arguments) => (arguments, true),
        _ => return Ok(()),
    };
    if same(decided, call.arguments()) {
        return Ok(());
    }
    let name = call.name();
    if asked_before || tool.validate(call.part()).is_err() {
        tracing::warn!(tool = %name, "a layer changed a call that was decided about");
        return Err(Ok(ToolOutcome::denied(Str::from_static(
            "The call was changed on its way to the tool after it was decided about, so it was \
             not run.",
        ))));
    }
    let asked = Asked {
        why: Why::Changed,
        // What enters the stack again is what was decided about; the layer changes it again.
        arguments: decided.as_str().into(),
        arrived: Some(call.arguments().as_str().into()),
        bound: true,
        definition: definition(Some(tool.spec())),
        policy: rules.policy(),
        inner: None,
    };
    let message = format!("May `{name}` be called? Its arguments were changed on the way.");
    // Who replies to one change has not seen the next.
    let arrived = Digest::of_fields(
        "concentric/arrived",
        &[call.arguments().as_str().as_bytes()],
    );
    let id = question::id(call, &format!("#{arrived}"));
    let interrupt =
        question::approval(call, id, Some(message.into()), None).with_metadata("changed", true);
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
