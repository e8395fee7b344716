//! The parts that layers which shorten conversations have in common.
#![cfg_attr(
    not(all(feature = "clear-results", feature = "compaction", feature = "trim")),
    allow(
        dead_code,
        unreachable_pub,
        unused_imports,
        unused_macros,
        reason = "each layer uses some of them"
    )
)]

mod body;
mod memo;
mod service;
mod step;
mod turn;

pub use self::body::{ResponseFuture, WindowBody};
pub(crate) use self::{
    body::{Reported, Sent},
    memo::{ByDepth, Memo, Total},
    service::middleware,
    step::{Mark, Searched, Step},
    turn::{changed, current_exchange, fingerprint, is_by_user, media, newest_messages, note},
};

use crate::tokens::{ContextBudget, Estimator, TokenCounter};
use concentric_core::{ChatRequest, Context, CustomEvent};
use serde_json::Value;
use std::sync::Arc;

pub(crate) type Counter = Arc<dyn TokenCounter>;

pub(crate) fn default_counter() -> Counter {
    Arc::new(Estimator::new())
}

/// The tokens that the request may have, if a layer outside limits them.
pub(crate) fn budget(request: &ChatRequest) -> Option<u64> {
    let budget = request.context.capability::<ContextBudget>();
    budget.map(|ContextBudget(tokens)| *tokens)
}

/// Emits a custom event. A consumer that does not read loses it.
pub(crate) fn emit(context: &Context, name: &'static str, value: Value) {
    let _ = context.emit(CustomEvent::new(name, value));
}
