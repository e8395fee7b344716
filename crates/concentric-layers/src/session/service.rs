use super::{
    ContextBudget, MakeSession, ResponseFuture, SessionTarget, TurnBody,
    idle::watch,
    keep::suspended,
    state::{Settings, Shared, State, Turn, closed},
    watch::Entered,
};
use concentric_core::{
    ChatRequest, ChatResponse, Error, ErrorKind, Event, Interrupt, Reply, Resume, ResumePoint, Str,
    ThreadId, Transcript,
    state::Slots,
    store::{StoredThread, ThreadStore},
};
use futures_core::Stream;
use std::{
    fmt,
    sync::{Arc, Mutex, OnceLock},
    task::{Context, Poll},
    time::Duration,
};
use tokio::sync::Semaphore;
use tower::BoxError;
use tower_service::Service;

/// A handle to a conversation with an agent. Clones refer to the same conversation.
///
/// See the [module docs](super). The session ends when its last handle and body are dropped, or
/// when it is [closed](Self::close).
pub struct Session<A> {
    pub(super) shared: Arc<Shared<A>>,
}

impl<A> Session<A>
where
    A: Send + 'static,
{
    pub(super) fn new(
        agent: A,
        settings: Settings<A>,
        keep: Option<Arc<dyn ThreadStore>>,
        target: SessionTarget,
        entered: Entered,
        mut stored: StoredThread,
    ) -> Self {
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                budget: settings.budget(&agent),
                agent,
                history: target.history,
                suspended: suspended(&mut stored),
                stored,
                turns: Vec::new(),
                running: None,
                next: 0,
                closed: false,
                idle_since: settings.environment.clock().monotonic(),
            }),
            turn: Arc::new(Semaphore::new(1)),
            settings,
            keep,
            idle_end: OnceLock::new(),
            thread_id: target.thread,
            session_id: target.session,
            tenant: target.tenant,
            thread: target.slots,
            session: target.session_slots,
            entered: Mutex::new(entered),
        });
        watch(&shared);
        Self { shared }
    }
}

impl<A> Session<A> {
    /// Returns the id of the conversation.
    pub fn thread_id(&self) -> &ThreadId {
        &self.shared.thread_id
    }

    /// Creates a request with a user message, in a new run of the conversation.
    pub fn user(&self, text: impl Into<Str>) -> ChatRequest {
        ChatRequest::user(text).with_context(self.context())
    }

    /// Creates a request that replies to the interrupts of the suspended turn, in a new run.
    pub fn replying(&self, replies: Vec<Reply>) -> ChatRequest {
        ChatRequest::replying(replies).with_context(self.context())
    }

    fn context(&self) -> concentric_core::Context {
        let builder = concentric_core::Context::builder();
        let mut context = builder.thread_id(self.shared.thread_id.clone()).build();
        self.shared.own(&mut context);
        context
    }

    /// Returns the history, in which every round is closed. It does not include an active or
    /// suspended turn.
    pub fn history(&self) -> Transcript {
        self.shared.lock().history.clone()
    }

    /// Returns the interrupts of the suspended turn. To reply, use [`ChatRequest::replying`].
    pub fn interrupts(&self) -> Vec<Interrupt> {
        self.shared.lock().interrupts()
    }

    /// Returns the number of active and queued turns.
    pub fn turns(&self) -> usize {
        self.shared.lock().turns.len()
    }

    /// Returns whether a turn is active.
    pub fn is_active(&self) -> bool {
        self.shared.lock().running.is_some()
    }

    /// Returns whether the session has ended, and refuses turns.
    pub fn has_ended(&self) -> bool {
        self.shared.lock().closed
    }

    /// Returns the time since the last turn ended, or since the session began; `None` while a turn
    /// is active or queued.
    pub fn idle(&self) -> Option<Duration> {
        self.shared.idle()
    }

    /// Returns the context budget of the agent
    /// ([`MakeSession::context_budget`]).
    pub fn context_budget(&self) -> Option<u64> {
        self.shared.lock().budget
    }

    /// Returns the slots of the conversation, as the last finished turn has left them. Store them
    /// together with the [history](Self::history).
    ///
    /// A turn changes a copy of the slots, which is applied when it finishes. A value that is
    /// changed here during a turn is kept, unless the turn changes the same slot.
    pub fn slots(&self) -> &Slots {
        &self.shared.thread
    }

    /// Cancels the active turn and returns whether there was one. The next queued turn starts.
    pub fn cancel(&self) -> bool {
        self.shared.cancel(|runs| runs) > 0
    }

    /// Cancels the queued turns and returns their number.
    pub fn cancel_queued(&self) -> usize {
        self.shared.cancel(|runs| !runs)
    }

    /// Discards the suspended turn and returns whether there was one. The next turn continues with
    /// the history from before it.
    pub fn give_up(&self) -> bool {
        let given_up = self.shared.lock().suspended.take();
        given_up.is_some()
    }

    /// Clears the history and the values of the conversation's [slots](Self::slots). The slots of
    /// the session are kept.
    ///
    /// # Errors
    ///
    /// A turn is active or queued ([`Conflict`](ErrorKind::Conflict), code `busy`).
    pub fn reset(&self) -> Result<(), Error> {
        // Dropped after the lock is released, because dropping slot values runs user code.
        let forgotten = self.while_idle(|state| {
            state.history = Transcript::new();
            (state.suspended.take(), self.shared.thread.take())
        })?;
        drop(forgotten);
        Ok(())
    }

    /// Replaces the agent; the next turns continue the conversation with the new one, and with its
    /// [context budget](MakeSession::context_budget).
    ///
    /// # Errors
    ///
    /// A turn is active or queued (code `busy`), or suspended (code `waiting`): its replies belong
    /// to the agent that was interrupted.
    pub fn set_agent(&self, agent: A) -> Result<(), Error> {
        // The callback and the agent that is dropped are the user's, and may use the session.
        let budget = self.shared.settings.budget(&agent);
        let (waits, unused) = self.while_idle(|state| {
            if state.suspended.is_some() {
                return (true, agent);
            }
            state.budget = budget;
            (false, std::mem::replace(&mut state.agent, agent))
        })?;
        drop(unused);
        match waits {
            true => Err(waiting()),
            false => Ok(()),
        }
    }

    fn while_idle<T>(&self, change: impl FnOnce(&mut State<A>) -> T) -> Result<T, Error> {
        let mut state = self.shared.lock();
        if !state.turns.is_empty() {
            let busy = Error::new(
                ErrorKind::Conflict,
                "a turn of the session is active or queued",
            );
            return Err(busy.with_code("busy"));
        }
        Ok(change(&mut state))
    }

    /// Creates a session of a new conversation, `thread`, that starts with a copy of this history.
    ///
    /// The fork has a copy of the durable slots of the conversation, and shares the slots of the
    /// session. With a [store](MakeSession::store), it is stored, and shares its turns with this one. Nothing of it exists before the
    /// [fork callbacks](MakeSession::on_fork) have accepted it.
    ///
    /// The start callbacks of this session are not called for the fork. The end callbacks are
    /// called with the id of the fork.
    ///
    /// # Errors
    ///
    /// A slot value could not be serialized, a fork callback refused the fork, the store failed or
    /// has a conversation of this id, another session has changed this conversation, or this session has
    /// ended.
    pub async fn fork(&self, thread: ThreadId) -> Result<Self, Error>
    where
        A: Clone + Send + 'static,
    {
        let shared = &self.shared;
        let mut target = SessionTarget::new(thread);
        // Read under one lock, so a turn that finishes concurrently is in both or in neither.
        let (slots, agent, source) = {
            let state = shared.lock();
            if state.closed {
                return Err(closed());
            }
            target.history = state.history.clone();
            let source = state.stored.clone();
            (shared.thread.draft(), state.agent.clone(), source)
        };
        target.slots = slots.fork()?;
        target.session = shared.session_id.clone();
        target.session_slots = shared.session.clone();
        target.tenant = shared.tenant.clone();
        for watch in &shared.settings.watches {
            watch.fork(&mut target).await?;
        }
        if self.has_ended() {
            return Err(closed());
        }
        let mut stored = StoredThread::default();
        if let Some(store) = &shared.keep {
            let (history, slots) = (target.history.clone(), target.slots.snapshot()?);
            let mut change = source.change_to(&history, &slots);
            change.session = Some(target.session.clone());
            let (tenant, to) = (target.tenant.clone(), target.thread.clone());
            let version = match source.version {
                0 => store.append(tenant, to, 0, change),
                version => store.fork(tenant, shared.thread_id.clone(), version, to, change),
            };
            stored = StoredThread::new(version.await?, history, slots);
        }
        let entered = Entered::of_fork(&shared.settings.watches, &target);
        let (settings, keep) = (shared.settings.clone(), shared.keep.clone());
        Ok(Self::new(agent, settings, keep, target, entered, stored))
    }

    /// Ends the session: cancels its turns and refuses further ones.
    pub fn close(&self) {
        self.shared.end();
    }
}

/// Prepares the request of a turn: appends its messages to the history, or resumes the suspended
/// turn.
///
/// # Errors
///
/// A turn is suspended and the request has no replies, or the reverse.
pub(super) fn prepare<A>(
    turn: &mut Turn<A>,
    mut request: ChatRequest,
) -> Result<ChatRequest, Error> {
    let shared = Arc::clone(turn.shared());
    request.context.enter::<MakeSession<()>>()?;
    let mut state = shared.lock();
    let slots = match (state.suspended.take(), request.resume.take()) {
        (None, None) => {
            let mut history = state.history.clone();
            for turn in request.transcript.iter() {
                history.push(turn.clone());
            }
            request.transcript = history;
            turn.draft(&shared.thread)
        }
        (suspended @ Some(_), None) => {
            state.suspended = suspended;
            return Err(waiting());
        }
        (None, Some(_)) => {
            return Err(
                Error::new(ErrorKind::Conflict, "no turn of the session is suspended")
                    .with_code("run_not_found"),
            );
        }
        (Some(suspended), Some(resume)) => {
            let Some((_, replies)) = resume.take() else {
                state.suspended = Some(suspended);
                let error = Error::new(ErrorKind::Conflict, "the replies were already used");
                return Err(error.with_code("already_resumed"));
            };
            // Taken once, so that the replies are not applied twice.
            turn.resume(suspended.clone());
            let messages = resume.messages().to_vec();
            let resume = Resume::new(ResumePoint::State(suspended.state), replies);
            request.set_resume(resume.with_messages(messages));
            turn.draft(&suspended.slots)
        }
    };
    let budget = state.budget;
    drop(state);
    request.context.set_thread_slots(slots);
    request.context.set_session_slots(shared.session.clone());
    request.context.set_session_id(shared.session_id.clone());
    shared.own(&mut request.context);
    if let Some(budget) = budget {
        request.context.provide(ContextBudget(budget));
    }
    Ok(request)
}

fn waiting() -> Error {
    let why = "a turn of the session is suspended: reply to its interrupts or call `give_up`";
    Error::new(ErrorKind::Conflict, why).with_code("waiting")
}

impl<A, B> Service<ChatRequest> for Session<A>
where
    A: Service<ChatRequest, Response = ChatResponse<B>> + Clone,
    A::Error: Into<BoxError>,
    B: Stream<Item = Result<Event, Error>>,
{
    type Response = ChatResponse<TurnBody<A, B>>;
    type Error = Error;
    type Future = ResponseFuture<A>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: ChatRequest) -> ResponseFuture<A> {
        ResponseFuture::new(&self.shared, request)
    }
}

impl<A> Clone for Session<A> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<A> fmt::Debug for Session<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("turns", &self.turns())
            .finish_non_exhaustive()
    }
}
