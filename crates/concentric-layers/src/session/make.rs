use super::{
    Session,
    idle::Idle,
    state::Settings,
    watch::{Entered, Observer, OnEnd, OnFork, OnStart, Starting, Watch},
};
use concentric_core::{
    BoxError, Declares, Environment, Error, ErrorKind, Hooks, ThreadId, Transcript,
    capability::{Encloses, InLoop, Outside, PreparedRun, SessionTurn, StoredRun},
    state::Slots,
    store::{StoredThread, Tenant, ThreadStore},
};
use std::{
    fmt,
    future::{Future, ready},
    pin::Pin,
    sync::Arc,
    task::{self, Context, Poll},
    time::Duration,
};
use tokio::runtime::Handle;
use tower_service::Service;

/// Makes sessions of an agent. It is a tower `MakeService`.
///
/// See the [module docs](super) for an example.
#[derive(Clone)]
pub struct MakeSession<A> {
    agent: A,
    settings: Settings<A>,
    store: Option<Arc<dyn ThreadStore>>,
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
    /// The owner of the conversation.
    pub tenant: Tenant,
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
            tenant: Tenant::default(),
        }
    }

    /// Sets the owner of the conversation, for its store and its runs.
    #[must_use]
    pub fn with_tenant(mut self, tenant: Tenant) -> Self {
        self.tenant = tenant;
        self
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
    pub fn new(agent: A) -> Self {
        Self {
            agent,
            settings: Settings {
                queue: 0,
                idle: None,
                environment: Environment::system(),
                budget: None,
                watches: Vec::new(),
            },
            store: None,
        }
    }

    /// Sets the maximum number of queued turns per session; the default is 0.
    #[must_use]
    pub fn queue(mut self, turns: usize) -> Self {
        self.settings.queue = turns;
        self
    }

    /// Ends a session that has had no turn for `limit`, as [`close`](Session::close) does; by
    /// default, a session ends with its last handle.
    ///
    /// A suspended turn does not keep a session: with a [store](Self::store), its interrupts can be
    /// replied to after the conversation is opened again, unless a failed attempt has resumed it. With a limit of zero, a session ends as
    /// soon as its task runs. Requires a tokio runtime when the session is made.
    #[must_use]
    pub fn end_when_idle(mut self, limit: Duration) -> Self {
        self.settings.idle = Some(Idle {
            limit,
            runtime: None,
        });
        self
    }

    /// Sets the source of time of the sessions; the default is the system's.
    #[must_use]
    pub fn environment(mut self, environment: Environment) -> Self {
        self.settings.environment = environment;
        self
    }

    /// Stores conversations in `store`, and continues the stored ones; see
    /// [Recovery](super#recovery).
    #[must_use]
    pub fn store(mut self, store: impl ThreadStore) -> Self {
        self.store = Some(Arc::new(store));
        self
    }

    /// Derives the context budget of each session from its agent, also when the agent is
    /// [replaced](Session::set_agent). The layers of a turn receive it as
    /// [`ContextBudget`](super::ContextBudget).
    #[must_use]
    pub fn context_budget(mut self, budget: impl Fn(&A) -> u64 + Send + Sync + 'static) -> Self {
        self.settings.budget = Some(Arc::new(budget));
        self
    }

    /// Calls `fork` with the conversation that a [fork](Session::fork) will have, before the fork
    /// exists. It may change it; an error refuses the fork.
    ///
    /// Callbacks are called in the order in which they were added.
    #[must_use]
    pub fn on_fork<F, Fut>(self, fork: F) -> Self
    where
        F: Fn(&mut SessionTarget) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), BoxError>> + Send + 'static,
    {
        self.watch(OnFork(fork))
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
        self.settings.watches.push(Arc::new(watch));
        self
    }
}

impl<A> MakeSession<A>
where
    A: Send + 'static,
{
    fn session(self, target: SessionTarget, entered: Entered, stored: StoredThread) -> Session<A> {
        Session::new(
            self.agent,
            self.settings,
            self.store,
            target,
            entered,
            stored,
        )
    }
}

/// A session must be outside layers that store runs, outside those that prepare them, outside the loop, and not
/// inside another session.
impl<A> Declares for MakeSession<A> {
    type Capabilities = (
        Encloses<SessionTurn>,
        Outside<SessionTurn>,
        Outside<StoredRun>,
        Outside<PreparedRun>,
        Outside<InLoop>,
    );
}

impl<A> Service<SessionTarget> for MakeSession<A>
where
    A: Clone + Send + 'static,
{
    type Response = Session<A>;
    type Error = Error;
    type Future = MakeFuture<A>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, target: SessionTarget) -> MakeFuture<A> {
        let mut made = self.clone();
        let runtime = Handle::try_current();
        let starting: Starting = match (&mut made.settings.idle, runtime) {
            (Some(_), Err(error)) => {
                let why = "a session that ends when it is idle requires a tokio runtime";
                let error = Error::new(ErrorKind::Configuration, why).with_source(error);
                Box::pin(ready(Err(error)))
            }
            (idle, runtime) => {
                if let Some(idle) = idle {
                    idle.runtime = runtime.ok();
                }
                let watches = self.settings.watches.clone();
                Entered::start(watches, self.store.clone(), target)
            }
        };
        MakeFuture {
            starting,
            made: Some(made),
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

impl<A> Future for MakeFuture<A>
where
    A: Send + 'static,
{
    type Output = Result<Session<A>, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let (target, entered, stored) = task::ready!(self.starting.as_mut().poll(cx))?;
        let sessions = self.made.take().expect("polled after completion");
        Poll::Ready(Ok(sessions.session(target, entered, stored)))
    }
}

impl<A> fmt::Debug for MakeSession<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MakeSession")
            .field("queue", &self.settings.queue)
            .finish_non_exhaustive()
    }
}

concentric_core::opaque_debug!(MakeFuture<A>);
