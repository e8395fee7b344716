//! Decisions that are stored for further calls.

use crate::{
    Digest,
    gate::{Ask, Verdict},
    panic::stored,
};
use concentric_core::{
    BoxError, Context, RunId, Str, ToolCall,
    store::{Decisions, RunKey, Tenant},
};
use std::sync::Arc;

/// Looks for a stored decision about a call like `call`; without one, an approval is required.
pub(super) async fn recall(
    decisions: Arc<dyn Decisions>,
    call: ToolCall,
    ask: Ask,
) -> Result<Verdict, BoxError> {
    let context = &call.context;
    let recalled = stored(|| {
        decisions.recall(
            Tenant::of(context),
            call.name().clone(),
            run_of(context),
            context.thread_id().cloned(),
            context.session_id().cloned(),
        )
    })
    .await;
    let remembered = match recalled {
        Ok(remembered) => remembered,
        Err(error) => {
            tracing::warn!(%error, "reading stored decisions failed; the call requires an approval");
            return Ok(Verdict::Ask(ask));
        }
    };
    let definition = call.spec().map(|spec| Digest::of_spec(spec).to_string());
    let arguments = Digest::of_json(call.arguments().as_str()).map(|digest| digest.to_string());
    let holds = remembered.iter().filter(|decision| {
        let of_arguments = match (&decision.arguments, &arguments) {
            (None, _) => true,
            (Some(of), Ok(arguments)) => **of == **arguments,
            (Some(_), Err(_)) => false,
        };
        of_arguments && definition.as_deref() == Some(&*decision.definition)
    });
    let mut verdict = Verdict::Ask(ask);
    for decision in holds {
        if !decision.allow {
            let reason = decision.reason.clone();
            return Ok(Verdict::Deny(reason.unwrap_or_else(|| {
                Str::from_static("Calls like this one were denied before.")
            })));
        }
        // A call with a reply is decided by that reply.
        if call.replies().is_empty() {
            verdict = Verdict::Allow;
        }
    }
    Ok(verdict)
}

/// The stable id of the run of `context`, that of the stored run: a client may give two runs of a
/// conversation the same id.
pub(crate) fn run_of(context: &Context) -> RunId {
    match RunKey::of(context) {
        Some(key) => key.run,
        None => context.run_id().clone(),
    }
}
