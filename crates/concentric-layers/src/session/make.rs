use super::{
    Session,
    state::{Shared, State},
    watch::{Entered, OnEnd, OnStart, Starting, Watch},
};
use concentric_core::{
    BoxError, Declares, Error, ThreadId, Transcript,
    capability::{Encloses, InLoop, Outside, SessionTurn, StoredRun},
    state::Slots,
};
use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll, ready},
};
use tokio::sync::Semaphore;
use tower_service::Service;

/// Makes sessions of an agent: a tower `MakeService`.
///
/// See the [module docs](super) for an example.
#[derive(Clone)]
pub struct Sessions<A> {
    agent: A,
    queue: usize,
    watches: Vec<Arc<dyn Watch>>,
}

/// Which conversation a session is of.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SessionTarget {
    /// Its name.
    pub thread: ThreadId,
    /// What was said before.
    pub history: Transcript,
    /// The slots of the conversation, as they were kept with it.
    pub slots: Slots,
    /// The slots of the session.
    pub session_slots: Slots,
}

impl SessionTarget {
    /// A conversation that begins.
    pub fn new(thread: ThreadId) -> Self {
        Self {
            thread,
            history: Transcript::new(),
            slots: Slots::new(),
            session_slots: Slots::new(),
        }
    }

    /// Says what was said before.
    #[must_use]
    pub fn after(mut self, history: Transcript) -> Self {
        self.history = history;
        self
    }

    /// Sets the slots of the conversation.
    #[must_use]
    pub fn with_slots(mut self, slots: Slots) -> Self {
        self.slots = slots;
        self
    }
}

impl<A> Sessions<A> {
    /// Creates sessions without a queue: while a turn runs, another one is refused.
    pub const fn new(agent: A) -> Self {
        Self {
            agent,
            queue: 0,
            watches: Vec::new(),
        }
    }

    /// Sets how many turns of a session may wait while one runs; the default is none.
    #[must_use]
    pub const fn queue(mut self, turns: usize) -> Self {
        self.queue = turns;
        self
    }

    /// Calls `start` before a session begins, which it may refuse; those that were added before are
    /// called before it.
    #[must_use]
    pub fn on_start<F, Fut>(self, start: F) -> Self
    where
        F: Fn(&SessionTarget) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), BoxError>> + Send + 'static,
    {
        self.watch(OnStart(start))
    }

    /// Calls `end` with the history when a session that has begun is over, once: when its last handle
    /// is dropped, when it is [closed](Session::close), or when an `on_start` that was added later
    /// refuses it. Closed while a turn runs, it is over when that turn is: the history has what the
    /// turn has said and done.
    ///
    /// It must not block. One that panics is logged. Those that were added before are called after
    /// it.
    #[must_use]
    pub fn on_end(self, end: impl Fn(&Transcript) + Send + Sync + 'static) -> Self {
        self.watch(OnEnd(end))
    }

    /// Tells `hooks` of each session, whose start they may refuse.
    #[cfg(feature = "hooks")]
    #[must_use]
    pub fn hooks<H>(self, hooks: &crate::hooks::HooksLayers<H>) -> Self
    where
        H: crate::hooks::Hooks,
    {
        self.watch(hooks.clone())
    }

    fn watch(mut self, watch: impl Watch) -> Self {
        self.watches.push(Arc::new(watch));
        self
    }

    fn session(self, target: SessionTarget, entered: Entered) -> Session<A> {
        Session {
            shared: Arc::new(Shared {
                state: Mutex::new(State {
                    agent: self.agent,
                    history: target.history,
                    suspended: None,
                    turns: Vec::new(),
                    running: None,
                    next: 0,
                    closed: false,
                }),
                turn: Arc::new(Semaphore::new(1)),
                queue: self.queue,
                thread_id: target.thread,
                thread: target.slots,
                session: target.session_slots,
                entered: Mutex::new(entered),
            }),
        }
    }
}

/// A session stands around what keeps runs, and around the loop, and not inside of them or of another
/// session.
impl<A> Declares for Sessions<A> {
    type Capabilities = (
        Encloses<SessionTurn>,
        Outside<SessionTurn>,
        Outside<StoredRun>,
        Outside<InLoop>,
    );
}

impl<A> Service<SessionTarget> for Sessions<A>
where
    A: Clone,
{
    type Response = Session<A>;
    type Error = Error;
    type Future = MakeFuture<A>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, target: SessionTarget) -> MakeFuture<A> {
        MakeFuture {
            starting: Entered::start(self.watches.clone(), target),
            made: Some(self.clone()),
        }
    }
}

/// Future of a [`Session`].
#[must_use = "futures do nothing unless you `.await` or poll them"]
pub struct MakeFuture<A> {
    starting: Starting,
    // Taken when it resolves.
    made: Option<Sessions<A>>,
}

// What starts is boxed, and what is made is not polled.
impl<A> Unpin for MakeFuture<A> {}

impl<A> Future for MakeFuture<A> {
    type Output = Result<Session<A>, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let (target, entered) = ready!(self.starting.as_mut().poll(cx))?;
        let sessions = self.made.take().expect("polled after completion");
        Poll::Ready(Ok(sessions.session(target, entered)))
    }
}

impl<A> fmt::Debug for Sessions<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sessions")
            .field("queue", &self.queue)
            .finish_non_exhaustive()
    }
}

impl<A> fmt::Debug for MakeFuture<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MakeFuture").finish_non_exhaustive()
    }
}
