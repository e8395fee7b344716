use super::{Context, Run};
use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{self, Poll, Waker},
};

impl Context {
    /// Holds back the head of the server's response until the returned value is dropped.
    ///
    /// For a layer outside of the loop that looks something up, as in a store, before it accepts or
    /// refuses the request: a request that is refused meanwhile gets a status, and not a stream that
    /// begins with an error. A server waits for a limited time only, which is 5 seconds for the
    /// AG-UI server. A hold concerns this run alone, and not the run that this one is part of.
    ///
    /// ```
    /// use concentric_core::{
    ///     ChatRequest, Error, ErrorKind,
    ///     layers::{Next, from_fn},
    /// };
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

    /// Resolves when no layer [holds back](Self::hold_head) the response head.
    ///
    /// For the server that drives the run: one task at a time is woken.
    pub fn poll_head(&self, cx: &mut task::Context<'_>) -> Poll<()> {
        self.run.holds.poll_none(cx)
    }
}

/// The layers of a run that have not decided yet whether they accept its request.
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
        // A waker is the executor's, which must not be called under the lock.
        drop(replaced);
        Poll::Pending
    }
}

/// Holds back the response head of a run until it is dropped; see
/// [`Context::hold_head`](super::Context::hold_head).
#[must_use = "the response head is held back only until this is dropped"]
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
