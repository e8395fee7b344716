//! Notification of the observers of an interrupt.

use crate::{
    gate::{ApprovalEvent, Ask},
    panic::stored,
    rules::Policy,
};
use concentric_core::{Interrupt, InterruptId, ToolCall, store::Tenant};
use std::time::Duration;

/// How long notifications are remembered.
const REMEMBERED_FOR: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// Notifies the observers of an interrupt for `call`, unless they were notified before.
pub(crate) async fn notify_requested(
    rules: &Policy,
    ask: &Ask,
    call: &ToolCall,
    interrupt: &Interrupt,
) {
    if ask.is_observed() && is_first(rules, "request", &interrupt.id, call).await {
        ask.notify(&ApprovalEvent::Requested { call, interrupt });
    }
}

/// Whether this is the first notification of this kind for an interrupt.
pub(crate) async fn is_first(
    rules: &Policy,
    what: &str,
    id: &InterruptId,
    call: &ToolCall,
) -> bool {
    let Some(once) = &rules.once else {
        return true;
    };
    let key = format!("{what}:{id}");
    let first = stored(|| once.once(Tenant::of(&call.context), key.into(), REMEMBERED_FOR));
    first.await.unwrap_or_else(|error| {
        tracing::error!(%error, "looking up the notification of a {what} failed; notifying again");
        true
    })
}
