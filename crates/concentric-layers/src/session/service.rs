use super::{
    ResponseFuture, Sessions, TurnBody,
    state::{Shared, State, Turn},
};
use concentric_core::{
    ChatRequest, ChatResponse, Error, ErrorKind, Event, Interrupt, Reply, Resume, Str, Suspended,
    ThreadId, Transcript,
    state::{SessionSlots, SlotError, Slots, ThreadSlots},
};
use futures_core::Stream;
use std::{
    fmt,
    sync::{Arc, Mutex},
    task::{Context, Poll},
};
use tokio::sync::Semaphore;
use tower::BoxError;
use tower_service::Service;

/// A conversation with an agent. A handle: clones speak of the same one.
///
/// See the [module docs](super). It ends with its last handle and body, or when it is
/// [closed](Self::close).
pub struct Session<A> {
    pub(super) shared: Arc<Shared<A>>,
}

impl<A> Session<A> {
    /// The conversation.
    pub fn thread_id(&self) -> &ThreadId {
        &self.shared.thread_id
    }

    /// Creates the request of a turn of the user's, in a new run of the conversation.
    pub fn user(&self, text: impl Into<Str>) -> ChatRequest {
        ChatRequest::user(text).with_context(self.context())
    }

    /// Creates a request that replies to what the last turn waits for, in a new run.
    pub fn replying(&self, replies: Vec<Reply>) -> ChatRequest {
        ChatRequest::replying(replies).with_context(self.context())
    }

    fn context(&self) -> concentric_core::Context {
        let builder = concentric_core::Context::builder();
        builder.thread_id(self.shared.thread_id.clone()).build()
    }

    /// What was said so far; every round of it is closed. Without the turn that runs, or waits for
    /// replies.
    pub fn history(&self) -> Transcript {
        self.shared.lock().history.clone()
    }

    /// What the last turn waits to be told, by [`ChatRequest::replying`].
    pub fn interrupts(&self) -> Vec<Interrupt> {
        self.shared.lock().interrupts()
    }

    /// How many turns run or wait for theirs.
    pub fn turns(&self) -> usize {
        self.shared.lock().turns.len()
    }

    /// The slots of the conversation, to be written down with its [history](Self::history): both are
    /// as the last turn that finished has left them.
    ///
    /// A turn changes a copy, which is put in place when it finishes. What is changed here while a
    /// turn runs is kept, unless the turn changes the same slot.
    pub fn slots(&self) -> &Slots {
        &self.shared.thread
    }

    /// Cancels the turn that runs, if one does; the next one begins.
    pub fn cancel(&self) -> bool {
        self.shared.cancel(|runs| runs) > 0
    }

    /// Cancels the turns that wait for theirs; returns how many.
    pub fn cancel_queued(&self) -> usize {
        self.shared.cancel(|runs| !runs)
    }

    /// Gives the turn up that waits for replies; the next one goes on with what was said before it.
    /// Returns whether there was one.
    pub fn give_up(&self) -> bool {
        let given_up = self.shared.lock().suspended.take();
        given_up.is_some()
    }

    /// Forgets what was said, and the values of the conversation's [slots](Self::slots), which
    /// speak of it; those of the session are kept.
    ///
    /// # Errors
    ///
    /// A turn runs, or waits for its turn.
    pub fn reset(&self) -> Result<(), Error> {
        // Dropped without the lock, since values are the user's.
        let forgotten = self.while_idle(|state| {
            state.history = Transcript::new();
            (state.suspended.take(), self.shared.thread.take())
        })?;
        drop(forgotten);
        Ok(())
    }

    /// Has the next turns run by another agent, which goes on with what was said.
    ///
    /// # Errors
    ///
    /// A turn runs, or waits for its turn, or for replies: these are to the agent that asked.
    pub fn set_agent(&self, agent: A) -> Result<(), Error> {
        let waits = self.while_idle(|state| {
            let waits = state.suspended.is_some();
            if !waits {
                state.agent = agent;
            }
            waits
        })?;
        match waits {
            true => Err(waiting()),
            false => Ok(()),
        }
    }

    fn while_idle<T>(&self, change: impl FnOnce(&mut State<A>) -> T) -> Result<T, Error> {
        let mut state = self.shared.lock();
        if !state.turns.is_empty() {
            let busy = Error::new(ErrorKind::Conflict, "a turn of the session runs");
            return Err(busy.with_code("busy"));
        }
        Ok(change(&mut state))
    }

    /// Creates a session of another conversation, `thread`, that goes on with what was said here: the
    /// two go apart from here. It has a copy of what is durable in the conversation's slots, and the
    /// same slots of the session.
    ///
    /// Who was told that this session starts is not told that the fork does, and nobody refuses it;
    /// of its end they are told, under its own name.
    ///
    /// # Errors
    ///
    /// A value of a slot can't be written down.
    pub fn fork(&self, thread: ThreadId) -> Result<Self, SlotError>
    where
        A: Clone,
    {
        // Of one moment: a turn that finishes meanwhile is in both, or in neither.
        let (history, slots, agent, closed) = {
            let state = self.shared.lock();
            let slots = self.shared.thread.draft();
            let history = state.history.clone();
            (history, slots, state.agent.clone(), state.closed)
        };
        let slots = slots.fork()?;
        let shared = Shared {
            state: Mutex::new(State {
                agent,
                history,
                suspended: None,
                turns: Vec::new(),
                running: None,
                next: 0,
                closed,
            }),
            turn: Arc::new(Semaphore::new(1)),
            queue: self.shared.queue,
            entered: Mutex::new(self.shared.lock_entered().of_fork(thread.clone())),
            thread: slots,
            session: self.shared.session.clone(),
            thread_id: thread,
        };
        Ok(Self {
            shared: Arc::new(shared),
        })
    }

    /// Ends the session: cancels its turns, and takes no more of them.
    pub fn close(&self) {
        self.shared.end();
    }
}

/// What a request says is put behind what was said before.
///
/// # Errors
///
/// A turn waits for replies, and the request has none; or the other way round.
pub(super) fn prepare<A>(
    turn: &mut Turn<A>,
    mut request: ChatRequest,
) -> Result<ChatRequest, Error> {
    let shared = Arc::clone(turn.shared());
    request.context.enter::<Sessions<()>>()?;
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
            return Err(Error::new(
                ErrorKind::Conflict,
                "no turn of the session waits for replies",
            )
            .with_code("run_not_found"));
        }
        (Some(suspended), Some(resume)) => {
            let Some((_, replies)) = resume.take() else {
                state.suspended = Some(suspended);
                let error = Error::new(ErrorKind::Conflict, "the replies were taken already");
                return Err(error.with_code("already_resumed"));
            };
            // Taken once: what they have done is not done again.
            turn.resume(suspended.clone());
            let messages = resume.messages().to_vec();
            let resume = Resume::new(Suspended::State(suspended.state), replies);
            request.set_resume(resume.with_messages(messages));
            turn.draft(&suspended.slots)
        }
    };
    drop(state);
    let extensions = request.context.extensions_mut();
    extensions.insert(ThreadSlots(slots));
    extensions.insert(SessionSlots(shared.session.clone()));
    Ok(request)
}

fn waiting() -> Error {
    let why = "a turn of the session waits for replies";
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
