use super::{
    Session,
    state::{Shared, State},
    watch::{Entered, Observer, OnEnd, OnStart, Starting, Watch},
};
use concentric_core::{
    BoxError, Declares, Error, Hooks, ThreadId, Transcript,
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

/// Makes sessions of an agent. It is a tower `MakeService`.
///
/// See the [module docs](super) for an example.
#[derive(Clone)]
pub struct MakeSession<A> {
    agent: A,
    queue: usize,
    watches: Vec<Arc<dyn Watch>>,
}

/// The conversation of a session.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SessionTarget {
    /// The id of the conversation.
    pub thread: ThreadId,
    /// The id of the session: that of the conversation that it began with.
    pub session: ThreadId,
    /// The earlier turns.
    pub history: Transcript,
    /// The stored slots of the conversation.
    pub slots: Slots,
    /// The slots of the session.
    pub session_slots: Slots,
}

impl SessionTarget {
    /// Creates the target of a new conversation.
    pub fn new(thread: ThreadId) -> Self {
        Self {
            session: thread.clone(),
            thread,
            history: Transcript::new(),
            slots: Slots::new(),
            session_slots: Slots::new(),
        }
    }

    /// Sets the earlier turns.
    #[must_use]
    pub fn after(mut self, history: Transcript) -> Self {
        self.history = history;
        self
    }

    /// Continues the session that began with the conversation `session`, of which this conversation is a
    /// [fork](Session::fork).
    #[must_use]
    pub fn in_session(mut self, session: ThreadId) -> Self {
        self.session = session;
        self
    }

    /// Sets the slots of the conversation.
    #[must_use]
    pub fn with_slots(mut self, slots: Slots) -> Self {
        self.slots = slots;
        self
    }
}

impl<A> MakeSession<A> {
    /// Creates a factory of sessions without a queue: a session refuses a turn while another one is
    /// active.
    pub const fn new(agent: A) -> Self {
        Self {
            agent,
            queue: 0,
            watches: Vec::new(),
        }
    }

    /// Sets the maximum number of queued turns per session; the default is 0.
    #[must_use]
    pub const fn queue(mut self, turns: usize) -> Self {
        self.queue = turns;
        self
    }

    /// Calls `start` before a session begins. An error refuses the session.
    ///
    /// Callbacks are called in the order in which they were added.
    #[must_use]
    pub fn on_start<F, Fut>(self, start: F) -> Self
    where
        F: Fn(&SessionTarget) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), BoxError>> + Send + 'static,
    {
        self.watch(OnStart(start))
    }

    /// Calls `end` with the history, exactly once, when a session ends.
    ///
    /// A session ends when its last handle is dropped, when it is [closed](Session::close), or when
    /// an `on_start` that was added later refuses it. If it is closed while a turn is active, it
    /// ends after that turn, and the history includes the turn.
    ///
    /// The callback must not block. A panic is logged. Callbacks are called in reverse order.
    #[must_use]
    pub fn on_end(self, end: impl Fn(&Transcript) + Send + Sync + 'static) -> Self {
        self.watch(OnEnd(end))
    }

    /// Calls `hooks` at the start and the end of each session. An error at the start refuses the
    /// session.
    #[must_use]
    pub fn hooks<H>(self, hooks: Arc<H>) -> Self
    where
        H: Hooks,
    {
        self.watch(Observer(hooks))
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
                session_id: target.session,
                thread: target.slots,
                session: target.session_slots,
                entered: Mutex::new(entered),
            }),
        }
    }
}

/// A session must be outside layers that store runs, outside the loop, and not inside another
/// session.
impl<A> Declares for MakeSession<A> {
    type Capabilities = (
        Encloses<SessionTurn>,
        Outside<SessionTurn>,
        Outside<StoredRun>,
        Outside<InLoop>,
    );
}

impl<A> Service<SessionTarget> for MakeSession<A>
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

/// The future that [`MakeSession`] returns.
#[must_use = "futures do nothing unless you `.await` or poll them"]
pub struct MakeFuture<A> {
    starting: Starting,
    // Taken when the future resolves.
    made: Option<MakeSession<A>>,
}

// `starting` is boxed, and `made` is never pinned.
impl<A> Unpin for MakeFuture<A> {}

impl<A> Future for MakeFuture<A> {
    type Output = Result<Session<A>, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let (target, entered) = ready!(self.starting.as_mut().poll(cx))?;
        let sessions = self.made.take().expect("polled after completion");
        Poll::Ready(Ok(sessions.session(target, entered)))
    }
}

impl<A> fmt::Debug for MakeSession<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MakeSession")
            .field("queue", &self.queue)
            .finish_non_exhaustive()
    }
}

concentric_core::opaque_debug!(MakeFuture<A>);
