//! The idle end of a session, and the context budget of its agent.

use super::state::Shared;
use concentric_core::{Capability, Environment};
use std::{
    sync::{Arc, Weak},
    time::Duration,
};
use tokio::runtime::Handle;

/// The tokens that a request may have, as derived from the session's agent
/// ([`MakeSession::context_budget`](super::MakeSession::context_budget)).
///
/// A layer that shortens histories reads it from the context of each request, so that it follows a
/// switch of the model:
///
/// ```
/// use concentric_core::ChatRequest;
/// use concentric_layers::session::ContextBudget;
///
/// fn is_too_long(request: &ChatRequest, tokens: u64) -> bool {
///     let budget = request.context.capability::<ContextBudget>();
///     budget.is_some_and(|budget| tokens > budget.0)
/// }
/// # let _ = is_too_long;
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContextBudget(pub u64);

impl Capability for ContextBudget {}

/// The limit of the time without turns.
#[derive(Clone)]
pub(super) struct Idle {
    pub(super) limit: Duration,
    // Known when the session is made.
    pub(super) runtime: Option<Handle>,
}

/// Starts the task that ends the session after it was idle for the limit. The session aborts the
/// task when it ends.
pub(super) fn watch<A>(shared: &Arc<Shared<A>>)
where
    A: Send + 'static,
{
    let settings = &shared.settings;
    if let Some(Idle {
        limit,
        runtime: Some(runtime),
    }) = &settings.idle
    {
        let session = Arc::downgrade(shared);
        let waiting = runtime.spawn(end_when_idle(session, *limit, settings.environment.clone()));
        let _ = shared.idle_end.set(waiting.abort_handle());
    }
}

async fn end_when_idle<A>(session: Weak<Shared<A>>, limit: Duration, environment: Environment) {
    let mut left = limit;
    loop {
        environment.clock().sleep(left).await;
        let Some(session) = session.upgrade() else {
            return;
        };
        let Some(more) = session.end_if_idle(limit) else {
            return;
        };
        left = more;
    }
}
