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
use concentric_core::{
    ChatRequest, Context, CustomEvent, Declares,
    capability::{InLoop, SessionTurn, Within},
};
use serde_json::Value;
use std::sync::Arc;

pub(crate) type Counter = Arc<dyn TokenCounter>;

pub(crate) fn default_counter() -> Counter {
    Arc::new(Estimator::new())
}

/// Records that a loop inside the layer `L` is an error, within a conversation that is stored: the run would begin with
/// the shortened conversation, and store it in place of the whole one.
pub(crate) fn place<L>(context: &mut Context)
where
    L: Declares<Capabilities = Within<InLoop>>,
{
    let is_stored = context.region::<SessionTurn>().is_some();
    #[cfg(feature = "conversation")]
    let is_stored = is_stored || context.region::<crate::ConversationLayer>().is_some();
    if is_stored && context.region::<InLoop>().is_none() {
        // The loop returns the error. A model without a loop stores nothing.
        let _ = context.enter::<L>();
    }
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
