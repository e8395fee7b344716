use super::{Context, Run};
use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{self, Poll, Waker},
};

impl Context {
    /// Delays the head of the server's response until the returned value is dropped.
    ///
    /// For a layer outside the loop that reads a store, for instance, before it accepts or rejects the
    /// request: the response to a rejected request then has an error status, instead of a stream that
    /// starts with an error. A server waits for a limited time, which is 5 seconds for the AG-UI
    /// server. A hold affects this run only, and not the run around it.
    ///
    /// ```
    /// use concentric_core::{ChatRequest, Error, ErrorKind};
    /// use concentric_layers::{Next, from_fn};
    /// # async fn is_known(_: &ChatRequest) -> bool { true }
    ///
    /// let known_only = from_fn(async |request: ChatRequest, mut next: Next| {
    ///     let hold = request.context.hold_head();
    ///     if !is_known(&request).await {
    ///         return Err(Error::new(ErrorKind::Conflict, "unknown conversation"));
    ///     }
    ///     // The rest of the stack decides in its first poll.
    ///     drop(hold);
    ///     next.run(request).await
    /// });
    /// # let _ = known_only;
    /// ```
    pub fn hold_head(&self) -> HeadHold {
        HeadHold::new(Arc::clone(&self.run))
    }

    /// Resolves when no layer [delays](Self::hold_head) the response head.
    ///
    /// For the server that drives the run: only one task at a time is woken.
    pub fn poll_head(&self, cx: &mut task::Context<'_>) -> Poll<()> {
        self.run.holds.poll_none(cx)
    }
}

/// The number of layers of a run that have not yet accepted or rejected its request.
#[derive(Default)]
pub(super) struct Holds(Mutex<State>);

#[derive(Default)]
struct State {
    holds: usize,
    server: Option<Waker>,
}

impl Holds {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn release(&self) {
        let mut state = self.lock();
        state.holds -= 1;
        let server = match state.holds {
            0 => state.server.take(),
            _ => None,
        };
        drop(state);
        if let Some(server) = server {
            server.wake();
        }
    }

    pub(super) fn poll_none(&self, cx: &task::Context<'_>) -> Poll<()> {
        let mut state = self.lock();
        if state.holds == 0 {
            return Poll::Ready(());
        }
        let replaced = state.server.replace(cx.waker().clone());
        drop(state);
        // Dropping a waker calls the executor, which must not happen under the lock.
        drop(replaced);
        Poll::Pending
    }
}

/// Delays the response head of a run until it is dropped; see
/// [`Context::hold_head`](super::Context::hold_head).
#[must_use = "the response head is delayed only until this is dropped"]
pub struct HeadHold {
    run: Arc<Run>,
}

impl HeadHold {
    pub(super) fn new(run: Arc<Run>) -> Self {
        run.holds.lock().holds += 1;
        Self { run }
    }
}

impl Drop for HeadHold {
    fn drop(&mut self) {
        self.run.holds.release();
    }
}

impl fmt::Debug for HeadHold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HeadHold").finish_non_exhaustive()
    }
}
