//! Observers of the start and the end of sessions.

use super::SessionTarget;
use concentric_core::{
    BoxError, Error, Hooks, ThreadId, Transcript,
    panic::catch,
    state::Slots,
    store::{StoredThread, ThreadStore},
};
use std::{future::Future, pin::Pin, sync::Arc};

type Told<'a> = Pin<Box<dyn Future<Output = Result<(), BoxError>> + Send + 'a>>;

/// An observer of sessions. Its future is boxed, once per session.
pub(super) trait Watch: Send + Sync + 'static {
    fn start<'a>(&'a self, target: &'a SessionTarget) -> Told<'a>;
    fn end(&self, thread: &ThreadId, history: &Transcript);
    fn fork<'a>(&'a self, _: &'a mut SessionTarget) -> Told<'a> {
        Box::pin(async { Ok(()) })
    }
}

pub(super) struct OnFork<F>(pub(super) F);

impl<F, Fut> Watch for OnFork<F>
where
    F: Fn(&mut SessionTarget) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<(), BoxError>> + Send + 'static,
{
    fn start<'a>(&'a self, _: &'a SessionTarget) -> Told<'a> {
        Box::pin(async { Ok(()) })
    }

    fn end(&self, _: &ThreadId, _: &Transcript) {}

    fn fork<'a>(&'a self, target: &'a mut SessionTarget) -> Told<'a> {
        Box::pin((self.0)(target))
    }
}

pub(super) struct OnStart<F>(pub(super) F);

impl<F, Fut> Watch for OnStart<F>
where
    F: Fn(&SessionTarget) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<(), BoxError>> + Send + 'static,
{
    fn start<'a>(&'a self, target: &'a SessionTarget) -> Told<'a> {
        Box::pin((self.0)(target))
    }

    fn end(&self, _: &ThreadId, _: &Transcript) {}
}

pub(super) struct OnEnd<F>(pub(super) F);

impl<F> Watch for OnEnd<F>
where
    F: Fn(&Transcript) + Send + Sync + 'static,
{
    fn start<'a>(&'a self, _: &'a SessionTarget) -> Told<'a> {
        Box::pin(async { Ok(()) })
    }

    fn end(&self, _: &ThreadId, history: &Transcript) {
        (self.0)(history);
    }
}

pub(super) struct Observer<H>(pub(super) Arc<H>);

impl<H> Watch for Observer<H>
where
    H: Hooks,
{
    fn start<'a>(&'a self, target: &'a SessionTarget) -> Told<'a> {
        Box::pin(self.0.session_started(&target.thread, &target.history))
    }

    fn end(&self, thread: &ThreadId, history: &Transcript) {
        self.0.session_ended(thread, history);
    }
}

/// The observers whose `start` was called and whose `end` must be called, in order.
pub(super) struct Entered {
    watches: Vec<Arc<dyn Watch>>,
    thread: ThreadId,
    // The initial history, for a session that is dropped before it begins.
    history: Transcript,
}

pub(super) type Starting =
    Pin<Box<dyn Future<Output = Result<(SessionTarget, Entered, StoredThread), Error>> + Send>>;

impl Entered {
    /// Loads the conversation, and calls `start` of the observers until one of them refuses.
    pub(super) fn start(
        watches: Vec<Arc<dyn Watch>>,
        store: Option<Arc<dyn ThreadStore>>,
        mut target: SessionTarget,
    ) -> Starting {
        Box::pin(async move {
            let mut stored = StoredThread::default();
            if let Some(store) = store {
                let loaded = store.load(target.tenant.clone(), target.thread.clone());
                if let Some(loaded) = loaded.await? {
                    stored = loaded;
                    target.history = stored.history.clone();
                    target.slots = Slots::restore(stored.slots.clone());
                    if let Some(session) = &stored.session {
                        target.session = session.clone();
                    }
                }
            }
            let mut entered = Self {
                watches: Vec::with_capacity(watches.len()),
                thread: target.thread.clone(),
                history: target.history.clone(),
            };
            for watch in watches {
                entered.watches.push(Arc::clone(&watch));
                watch.start(&target).await.map_err(Error::from)?;
            }
            Ok((target, entered, stored))
        })
    }

    /// Returns the observers of the fork `target`, whose end they receive.
    pub(super) fn of_fork(watches: &[Arc<dyn Watch>], target: &SessionTarget) -> Self {
        Self {
            watches: watches.to_vec(),
            thread: target.thread.clone(),
            history: target.history.clone(),
        }
    }

    /// Moves the observers out, so that only the caller reports the end.
    pub(super) fn take(&mut self) -> Self {
        Self {
            watches: std::mem::take(&mut self.watches),
            thread: self.thread.clone(),
            history: self.history.clone(),
        }
    }

    /// Reports the end of the session to each observer, once.
    pub(super) fn end(&mut self, history: &Transcript) {
        while let Some(watch) = self.watches.pop() {
            if let Err(panic) = catch(|| watch.end(&self.thread, history)) {
                tracing::warn!(thread = %self.thread, ?panic, "an observer panicked at the end of a session");
            }
        }
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        let history = std::mem::take(&mut self.history);
        self.end(&history);
    }
}
