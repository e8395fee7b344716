//! The idle end of a session.

use super::state::Shared;
use concentric_core::Environment;
use std::{
    sync::{Arc, Weak},
    time::Duration,
};
use tokio::runtime::Handle;

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
