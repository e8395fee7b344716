//! What a run carries with it: who it is, when it must end, and how to reach its stream.
//!
//! Every [`ChatRequest`](crate::ChatRequest), [`ToolRound`](crate::ToolRound) and
//! [`ToolCall`](crate::ToolCall) has a [`Context`]. It is a handle: clones speak of the same run.
//! It is never serialised.
//!
//! ```
//! use concentric_core::{CancelReason, ChatRequest};
//!
//! let request = ChatRequest::user("hi");
//! let context = request.context.clone();
//! // Later, from anywhere: the model stream, the running tools and any wait of the run stop.
//! context.cancel(CancelReason::User);
//! assert_eq!(request.context.cancel_reason(), Some(CancelReason::User));
//! ```

mod head;

pub use self::head::HeadHold;
pub use crate::{
    environment::{Clock, Environment, Ids, Random, Sleep},
    outbox::EmitError,
};

use self::head::Holds;
use crate::{
    hub::LiveInterrupts,
    marks::{Marks, Noted},
    method::catch,
    outbox::Outbox,
    slots::Slots,
};
use concentric_proto::{
    CallId, CancelReason, Error, ErrorKind, Event, InterruptId, MessageId, PartKind, Phase,
    RequestId, RoundCall, RunId, Str, StreamId, ThreadId,
    run_state::{RoundPlace, SlotPlace},
};
use std::{
    fmt,
    future::{Future, poll_fn},
    pin::{Pin, pin},
    sync::{
        Arc, LazyLock, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    task::{self, Poll, ready},
    time::{Duration, SystemTime},
};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

/// Work to be done after a run's outcome.
pub(crate) type Deferred = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A handle to a run, and where in the run its holder stands.
///
/// See the [module docs](self).
#[derive(Clone)]
pub struct Context {
    run: Arc<Run>,
    extensions: Values,
    own: Values,
    // What layers outside have marked.
    pub(crate) marks: Marks,
    phase: Phase,
    step: u32,
    depth: u32,
    message_id: Option<MessageId>,
    // Which call of which message, and its id.
    call: Option<(usize, CallId)>,
}

/// Values of any type, which contexts share until one of them is changed: a clone does not call the
/// `Clone` of a value, which may be slow, or panic.
#[derive(Clone, Default)]
struct Values(Option<Arc<http::Extensions>>);

impl Values {
    fn new(values: http::Extensions) -> Self {
        Self((!values.is_empty()).then(|| Arc::new(values)))
    }

    fn get(&self) -> &http::Extensions {
        static NONE: LazyLock<http::Extensions> = LazyLock::new(http::Extensions::new);
        self.0.as_deref().unwrap_or(&NONE)
    }

    fn get_mut(&mut self) -> &mut http::Extensions {
        Arc::make_mut(self.0.get_or_insert_default())
    }
}

struct Run {
    ids: RunIds,
    // Boxed, since few runs have one.
    parent: Option<Box<Context>>,
    cancel: CancellationToken,
    cancel_reason: OnceLock<CancelReason>,
    deadline: Option<SystemTime>,
    environment: Environment,
    outbox: Outbox,
    events: AtomicU64,
    effects: AtomicU64,
    deferred: Mutex<Vec<Deferred>>,
    holds: Holds,
    // Made when somebody asks something.
    live: OnceLock<LiveInterrupts>,
    // Made when somebody asks for a slot.
    slots: OnceLock<Slots>,
    // Made when a layer inside of a model call expects something of those inside of it.
    noted: OnceLock<Noted>,
    // How many loops drive the run: nested ones, and attempts at the same call.
    drivers: AtomicUsize,
    had_outcome: AtomicBool,
}

#[derive(Clone, Default)]
struct RunIds {
    agent: Option<Str>,
    run: Option<RunId>,
    thread: Option<ThreadId>,
    request: Option<RequestId>,
    stream: Option<StreamId>,
}

impl Context {
    /// Creates the context of a new run, with fresh ids and the system's clock.
    pub fn new() -> Self {
        Self::builder().build()
    }

    /// Starts to build the context of a new run.
    pub fn builder() -> ContextBuilder {
        ContextBuilder::default()
    }

    /// Starts to build the context of a run inside this one, as a sub-agent's.
    ///
    /// It has this run's thread, deadline, environment and extensions, and is cancelled with it.
    /// What is this run's [own](Self::own), it has not. What is emitted into it goes into its own
    /// stream.
    pub fn child(&self) -> ContextBuilder {
        ContextBuilder {
            ids: RunIds {
                agent: None,
                run: None,
                stream: None,
                ..self.run.ids.clone()
            },
            deadline: self.run.deadline,
            environment: Some(self.run.environment.clone()),
            extensions: self.extensions.clone(),
            parent: Some(self.clone()),
        }
    }

    /// The agent that runs (`gen_ai.agent.name`).
    pub fn agent(&self) -> Option<&Str> {
        self.run.ids.agent.as_ref()
    }

    /// The run.
    pub fn run_id(&self) -> &RunId {
        // `build` always sets it.
        static NONE: LazyLock<RunId> = LazyLock::new(|| RunId::new(""));
        self.run.ids.run.as_ref().unwrap_or(&NONE)
    }

    /// The conversation that the run belongs to; `None` unless whoever made the request has set it
    /// ([`ContextBuilder::thread_id`]), as the AG-UI server does. Runs inside this one have the same.
    pub fn thread_id(&self) -> Option<&ThreadId> {
        self.run.ids.thread.as_ref()
    }

    /// The HTTP request that started the run; `None` unless the server has set it
    /// ([`ContextBuilder::request_id`]). Runs inside this one have the same.
    pub fn request_id(&self) -> Option<&RequestId> {
        self.run.ids.request.as_ref()
    }

    /// The stream that the run's events go out on; `None` unless the server has set it
    /// ([`ContextBuilder::stream_id`]). A run inside this one has none: its events go out on this
    /// run's stream.
    pub fn stream_id(&self) -> Option<&StreamId> {
        self.run.ids.stream.as_ref()
    }

    /// The run that this one is part of.
    pub fn parent(&self) -> Option<&Self> {
        self.run.parent.as_deref()
    }

    /// Where in the run this is.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// The step, from 0: how many model calls came before.
    pub fn step(&self) -> u32 {
        self.step
    }

    /// How many of the run's model calls this is inside of: 0 outside of the loop, and for its gates and
    /// tools; 1 in a model call; 1 more in that of an agent in the model's place.
    ///
    /// So it tells such an agent's loop from the one around it, and is the same when the run goes on
    /// elsewhere.
    pub fn depth(&self) -> u32 {
        self.depth
    }

    /// Names the message that the model writes in this step.
    pub fn message_id(&self) -> Option<&MessageId> {
        self.message_id.as_ref()
    }

    /// How many events the run has delivered to its consumer so far, over all its loops; events that
    /// layers outside the loop add or drop are not counted.
    ///
    /// It is counted from 0 again when a run is resumed, and is 0 for a run without an agent.
    pub fn event_index(&self) -> u64 {
        self.run.events.load(Ordering::Relaxed)
    }

    /// A key that stays the same when this very tool call is tried again, resumed or replayed.
    ///
    /// Hand it to a service that takes one (`Idempotency-Key`), and the call takes effect once.
    ///
    /// `None` outside a tool call.
    pub fn idempotency_key(&self) -> Option<Str> {
        let (position, call) = self.call.as_ref()?;
        // The message and the call keep their ids when the round is resumed, and neither can be
        // guessed; a client may have chosen the run's.
        Some(match &self.message_id {
            Some(message) => format!("{message}/{position}/{call}").into(),
            None => format!("{}/{}/{position}/{call}", self.run_id(), self.step).into(),
        })
    }

    /// The id of the tool call; `None` outside a tool call.
    ///
    /// An event that a tool emits names its call with it:
    ///
    /// ```
    /// use concentric_core::{Context, Custom, EmitError, Event};
    /// use serde_json::json;
    ///
    /// /// In a tool.
    /// fn progress(context: &Context, percent: u8) -> Result<(), EmitError> {
    ///     let mut event = Custom::new("progress", json!(percent));
    ///     event.call_id = context.call_id().cloned();
    ///     context.emit(Event::Custom(Box::new(event)))
    /// }
    /// # let _ = progress;
    /// ```
    pub fn call_id(&self) -> Option<&CallId> {
        self.call.as_ref().map(|(_, id)| id)
    }

    /// Which of its message's calls this is, from 0; `None` outside a tool call.
    pub fn call_position(&self) -> Option<usize> {
        self.call.as_ref().map(|(position, _)| *position)
    }

    pub(crate) fn is_at_call(&self, position: usize, id: &CallId) -> bool {
        let call = self.call.as_ref();
        call.is_some_and(|(at, call)| *at == position && call == id)
    }

    /// The id of what is asked about this very tool call, which whoever takes the round up from a
    /// history can work out; `None` outside a tool call.
    pub fn interrupt_id(&self) -> Option<InterruptId> {
        let (position, call) = self.call.as_ref()?;
        let message = self.message_id.as_ref();
        Some(InterruptId::for_call(message, *position, call))
    }

    /// Values of any type that travel with the request, put there by whoever made it.
    pub fn extensions(&self) -> &http::Extensions {
        self.extensions.get()
    }

    /// The same, to be changed; clones made before don't see it.
    ///
    /// Clones share the values: where there are others, each value is cloned first.
    pub fn extensions_mut(&mut self) -> &mut http::Extensions {
        self.extensions.get_mut()
    }

    /// Values of this run only, as gates and layers that just one run has. A run
    /// [inside](Self::child) it has [`extensions`](Self::extensions), and not these.
    pub fn own(&self) -> &http::Extensions {
        self.own.get()
    }

    /// The same, to be changed; clones made before don't see it.
    ///
    /// Clones share the values: where there are others, each value is cloned first.
    pub fn own_mut(&mut self) -> &mut http::Extensions {
        self.own.get_mut()
    }

    /// Takes a value out of what is the run's [own](Self::own).
    pub(crate) fn take_own<T>(&mut self) -> Option<T>
    where
        T: Clone + Send + Sync + 'static,
    {
        // Most runs have none, which needs no values of their own.
        self.own().get::<T>()?;
        self.own_mut().remove()
    }

    /// The context at `step`, inside the loop.
    #[must_use]
    pub fn at_step(&self, step: u32, message_id: MessageId) -> Self {
        Self {
            phase: Phase::Model,
            step,
            depth: self.depth.saturating_add(1),
            message_id: Some(message_id),
            ..self.clone()
        }
    }

    /// The context of the batch of tool calls that a message of `step` makes.
    #[must_use]
    pub fn at_round(&self, step: u32, message_id: Option<MessageId>) -> Self {
        Self {
            phase: Phase::Round,
            step,
            message_id,
            ..self.clone()
        }
    }

    /// The context of one call of a round.
    #[must_use]
    pub fn at_call(&self, call: &RoundCall) -> Self {
        Self {
            phase: Phase::Call,
            call: Some((call.position, call.call.id.clone())),
            ..self.clone()
        }
    }

    // ---- time, ids, randomness ----

    /// The clock, ids and randomness of the run.
    pub fn environment(&self) -> &Environment {
        &self.run.environment
    }

    /// The wall time.
    pub fn now(&self) -> SystemTime {
        self.run.environment.clock().now()
    }

    /// Waits for `duration`, or until the run is cancelled or has passed its deadline.
    ///
    /// # Errors
    ///
    /// The run was cancelled ([`ErrorKind::Cancelled`]), or its
    /// deadline passed before `duration` was over ([`ErrorKind::Timeout`]).
    pub async fn sleep(&self, duration: Duration) -> Result<(), Error> {
        let left = self.remaining().filter(|left| *left < duration);
        let clock = self.run.environment.clock();
        let sleep = clock.sleep(left.unwrap_or(duration));
        match (self.run.cancel.run_until_cancelled(sleep).await, left) {
            (Some(()), None) => Ok(()),
            (Some(()), Some(_)) => Err(Error::deadline()),
            (None, _) => Err(cancelled()),
        }
    }

    /// When the run must have ended, in wall time.
    pub fn deadline(&self) -> Option<SystemTime> {
        self.run.deadline
    }

    /// How long the run still has; `None` if it has no deadline.
    pub fn remaining(&self) -> Option<Duration> {
        let deadline = self.run.deadline?;
        Some(deadline.duration_since(self.now()).unwrap_or_default())
    }

    /// Whether the deadline has passed.
    #[inline]
    pub(crate) fn is_late(&self) -> bool {
        self.run
            .deadline
            .is_some_and(|deadline| self.now() >= deadline)
    }

    /// A new id: `prefix` and 18 characters.
    pub fn new_id(&self, prefix: &str) -> Str {
        self.run.environment.ids().next(prefix)
    }

    // ---- cancellation ----

    /// Cancels the run: its model stream, tools and waits stop at once.
    ///
    /// The first reason given counts.
    pub fn cancel(&self, reason: CancelReason) {
        let _ = self.run.cancel_reason.set(reason);
        self.run.cancel.cancel();
        self.run.outbox.call_driver();
    }

    /// Whether the run, or one it is part of, was cancelled.
    #[inline]
    pub fn is_cancelled(&self) -> bool {
        self.run.cancel.is_cancelled()
    }

    /// Resolves when the run, or one it is part of, is cancelled.
    pub fn cancelled(&self) -> impl Future<Output = ()> + Send + '_ {
        self.run.cancel.cancelled()
    }

    /// Resolves when the run is cancelled or has passed its deadline.
    async fn stopped(&self) {
        match self.remaining() {
            // It ends early if the run is cancelled.
            Some(left) => drop(self.sleep(left).await),
            None => self.cancelled().await,
        }
    }

    pub(crate) fn cancelled_owned(&self) -> WaitForCancellationFutureOwned {
        self.run.cancel.clone().cancelled_owned()
    }

    /// Who cancelled the run; `None` if nobody did.
    pub fn cancel_reason(&self) -> Option<CancelReason> {
        if !self.is_cancelled() {
            return None;
        }
        let own = self.run.cancel_reason.get().cloned();
        own.or_else(|| self.parent().and_then(Self::cancel_reason))
            .or(Some(CancelReason::Other(Str::from_static("token"))))
    }

    // ---- the response head ----

    /// Holds back the head of the server's response until the returned value is dropped.
    ///
    /// For a layer outside of the loop that looks something up, as in a store, before it accepts or
    /// refuses the request: a request that is refused meanwhile gets a status, and not a stream that
    /// begins with an error. A server waits for a limited time only, which is 5 seconds for the
    /// AG-UI server. A hold concerns this run alone, and not the run that this one is part of.
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

    /// Resolves when no layer [holds back](Self::hold_head) the response head.
    ///
    /// For the server that drives the run: one task at a time is woken.
    pub fn poll_head(&self, cx: &mut task::Context<'_>) -> Poll<()> {
        self.run.holds.poll_none(cx)
    }

    // ---- effects ----

    /// How many tool calls that may change something were started in this run, and in the runs
    /// inside it, and how many decisions were [remembered](crate::store::Decisions).
    ///
    /// A retry of a whole run compares it before and after an attempt: once it has moved, another
    /// attempt may do things twice, whatever the error that came back says of its
    /// [`effects`](crate::Error::effects); a layer in between may have replaced it.
    pub fn effect_count(&self) -> u64 {
        self.run.effects.load(Ordering::Acquire)
    }

    /// Counts one more such call or decision, in this run and in those that it is part of.
    ///
    /// For a round service that [counts its calls itself](crate::ToolRound::counts_effects), as
    /// `Toolset` of `concentric-tools` does: before anything of the call runs that may have an effect.
    pub fn count_effect(&self) {
        self.count_effects(1);
    }

    pub(crate) fn count_effects(&self, calls: u64) {
        self.run.effects.fetch_add(calls, Ordering::AcqRel);
        if let Some(parent) = self.parent() {
            parent.count_effects(calls);
        }
    }

    // ---- the run's stream, and work after it ----

    /// Puts `event` into the run's stream, after all that was put there before.
    ///
    /// It is an [`Event::State`], an [`Event::Custom`], an [`Event::SubAgent`] or an
    /// [`Event::Part`]: what the model says and what its tools did is not for others to tell.
    ///
    /// # Errors
    ///
    /// The event is none of these, the consumer is 1,024 events behind, or the run has ended.
    pub fn emit(&self, event: Event) -> Result<(), EmitError> {
        if !may_emit(&event) {
            return Err(EmitError::NotAllowed);
        }
        self.run.outbox.push(event).map_err(|(error, _)| error)
    }

    /// Puts `event` into the run's stream, and waits for room if the consumer is behind.
    ///
    /// Nobody reads before the model has begun to answer: a layer inside the loop that has much to
    /// say before it calls on uses [`emit`](Self::emit), and is told that it says too much.
    ///
    /// # Errors
    ///
    /// The event is one that [`emit`](Self::emit) does not take, or the run has ended. There was no
    /// room ([`EmitError::Full`]) before the run was cancelled or passed its deadline.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future while it waits leaves the event out.
    pub async fn send(&self, event: Event) -> Result<(), EmitError> {
        if !may_emit(&event) {
            return Err(EmitError::NotAllowed);
        }
        // Most events find room at once, which needs no timer.
        let event = match self.run.outbox.push(event) {
            Ok(()) => return Ok(()),
            Err((EmitError::Full, event)) => event,
            Err((error, _)) => return Err(error),
        };
        let mut sent = pin!(self.run.outbox.send(event));
        let mut stop = pin!(self.stopped());
        poll_fn(|cx| match sent.as_mut().poll(cx) {
            Poll::Pending => stop.as_mut().poll(cx).map(|()| Err(EmitError::Full)),
            sent => sent,
        })
        .await
    }

    /// Takes the next event that was emitted into the run's stream, or wakes `cx` when there is one.
    ///
    /// For the driver of a custom loop only: an agent takes the events of its run itself, and one
    /// task at a time is woken.
    pub fn poll_emitted(&self, cx: &mut task::Context<'_>) -> Poll<Event> {
        self.run.outbox.poll_pop(cx.waker())
    }

    /// What is asked in the run while it stays open, and in the runs inside it: theirs is that of
    /// the outermost.
    pub fn live(&self) -> &LiveInterrupts {
        match self.parent() {
            Some(outer) => outer.live(),
            None => self.run.live.get_or_init(LiveInterrupts::new),
        }
    }

    /// Leaves `work` to be done after the run's outcome, whichever it is.
    ///
    /// It is spawned on the runtime when the run's body ends or is dropped, at once if that was
    /// before, or, if the run never had one, with its last handle (so `work` must not hold one
    /// itself); and given up after 30 seconds.
    pub fn defer(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.run
            .deferred
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(Box::pin(work));
        // Whoever releases the run later finds it; whoever did before has not.
        if self.run.is_over() {
            self.run.start_deferred();
        }
    }

    /// The values of the run's own slots.
    pub(crate) fn run_slots(&self) -> &Slots {
        self.run.slots.get_or_init(Slots::new)
    }

    /// The same, if somebody has asked for one.
    pub(crate) fn slots_of_run(&self) -> Option<&Slots> {
        self.run.slots.get()
    }

    pub(crate) fn noted(&self) -> Option<&Noted> {
        self.run.noted.get()
    }

    pub(crate) fn noted_or_new(&self) -> &Noted {
        self.run.noted.get_or_init(Noted::default)
    }

    pub(crate) fn place_of_round(&self) -> Option<SlotPlace> {
        self.round().map(SlotPlace::Round)
    }

    pub(crate) fn place_of_call(&self) -> Option<SlotPlace> {
        let (position, _) = self.call.as_ref()?;
        Some(SlotPlace::Call(self.round()?, *position))
    }

    fn round(&self) -> Option<RoundPlace> {
        matches!(self.phase, Phase::Round | Phase::Call).then(|| match &self.message_id {
            Some(message) => RoundPlace::Message(message.clone()),
            None => RoundPlace::Step(self.step),
        })
    }

    #[inline]
    pub(crate) fn outbox(&self) -> &Outbox {
        &self.run.outbox
    }

    #[inline]
    pub(crate) fn count_event(&self) {
        // Only the run's driver counts, so this need not be one atomic step.
        let events = self.run.events.load(Ordering::Relaxed);
        self.run.events.store(events + 1, Ordering::Relaxed);
    }

    /// Says that the caller drives the run.
    pub(crate) fn claim(&self) {
        if self.run.drivers.fetch_add(1, Ordering::AcqRel) == 0 {
            self.run.had_outcome.store(false, Ordering::Release);
            self.run.outbox.open();
        }
    }

    /// Takes a [`claim`](Self::claim) back. Once the run has had its outcome and nobody else drives
    /// it, nothing can be emitted any more, and deferred work starts.
    pub(crate) fn release(&self, how: Release) {
        if how != Release::Attempt {
            self.run.had_outcome.store(true, Ordering::Release);
        }
        if self.run.drivers.fetch_sub(1, Ordering::AcqRel) == 1
            && self.run.had_outcome.load(Ordering::Acquire)
        {
            if how == Release::Dropped {
                self.cancel(CancelReason::Disconnected);
            }
            self.run.outbox.close();
            self.run.start_deferred();
        }
    }
}

/// How a driver leaves its run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Release {
    /// It failed before there was a body; another attempt may follow.
    Attempt,
    /// It delivered the run's outcome.
    Outcome,
    /// Its consumer dropped the body.
    Dropped,
}

fn may_emit(event: &Event) -> bool {
    match event {
        Event::State(_) | Event::Custom(_) | Event::SubAgent(_) => true,
        Event::Part(part) => !matches!(part.kind, PartKind::ToolCall(_) | PartKind::ToolResult(_)),
        _ => false,
    }
}

impl Run {
    /// Whether the run has had its outcome, and nobody drives it.
    fn is_over(&self) -> bool {
        self.drivers.load(Ordering::Acquire) == 0 && self.had_outcome.load(Ordering::Acquire)
    }

    fn start_deferred(&self) {
        let mut deferred = self.deferred.lock().unwrap_or_else(PoisonError::into_inner);
        let work = std::mem::take(&mut *deferred);
        drop(deferred);
        if work.is_empty() {
            return;
        }
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            tracing::warn!(
                count = work.len(),
                "no runtime to do a run's deferred work on"
            );
            return;
        };
        for mut task in work {
            let mut limit = self.environment.clock().sleep(DEFERRED_LIMIT);
            runtime.spawn(poll_fn(move |cx| {
                match catch(|| task.as_mut().poll(cx)) {
                    Ok(Poll::Pending) => {}
                    Ok(Poll::Ready(())) => return Poll::Ready(()),
                    Err(panic) => {
                        tracing::error!(panic = panic.text(), "a run's deferred work panicked");
                        return Poll::Ready(());
                    }
                }
                ready!(limit.as_mut().poll(cx));
                tracing::warn!("a run's deferred work was given up");
                Poll::Ready(())
            }));
        }
    }
}

impl Drop for Run {
    // A run that failed before it had a body ends with its last handle.
    fn drop(&mut self) {
        self.start_deferred();
    }
}

/// How long a run's deferred work may take.
const DEFERRED_LIMIT: Duration = Duration::from_secs(30);

pub(crate) fn cancelled() -> Error {
    Error::new(ErrorKind::Cancelled, "the run was cancelled")
}

impl Default for Context {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Extensions hold what the host put there, which may be secret.
        f.debug_struct("Context")
            .field("agent", &self.run.ids.agent)
            .field("run", &self.run.ids.run)
            .field("thread", &self.run.ids.thread)
            .field("phase", &self.phase)
            .field("step", &self.step)
            .field("cancelled", &self.is_cancelled())
            .finish_non_exhaustive()
    }
}

/// Builds a [`Context`].
#[derive(Default)]
pub struct ContextBuilder {
    ids: RunIds,
    deadline: Option<SystemTime>,
    environment: Option<Environment>,
    extensions: Values,
    parent: Option<Context>,
}

impl ContextBuilder {
    /// Names the agent.
    #[must_use]
    pub fn agent(mut self, name: impl Into<Str>) -> Self {
        self.ids.agent = Some(name.into());
        self
    }

    /// Names the run; the default is a new id.
    #[must_use]
    pub fn run_id(mut self, id: RunId) -> Self {
        self.ids.run = Some(id);
        self
    }

    /// Names the conversation.
    #[must_use]
    pub fn thread_id(mut self, id: ThreadId) -> Self {
        self.ids.thread = Some(id);
        self
    }

    /// Names the HTTP request that started the run.
    #[must_use]
    pub fn request_id(mut self, id: RequestId) -> Self {
        self.ids.request = Some(id);
        self
    }

    /// Names the stream that the events go out on.
    #[must_use]
    pub fn stream_id(mut self, id: StreamId) -> Self {
        self.ids.stream = Some(id);
        self
    }

    /// Says when the run must have ended, in wall time.
    #[must_use]
    pub fn deadline(mut self, deadline: SystemTime) -> Self {
        // A child never outlives its parent.
        self.deadline = Some(self.deadline.map_or(deadline, |d| d.min(deadline)));
        self
    }

    /// Sets the clock, ids and randomness.
    #[must_use]
    pub fn environment(mut self, environment: Environment) -> Self {
        self.environment = Some(environment);
        self
    }

    /// Sets the values that travel with the request.
    #[must_use]
    pub fn extensions(mut self, extensions: http::Extensions) -> Self {
        self.extensions = Values::new(extensions);
        self
    }

    /// Creates the context.
    pub fn build(mut self) -> Context {
        let environment = self.environment.unwrap_or_else(Environment::system);
        if self.ids.run.is_none() {
            self.ids.run = Some(RunId::new(environment.ids().next("run_")));
        }
        let cancel = match &self.parent {
            Some(parent) => parent.run.cancel.child_token(),
            None => CancellationToken::new(),
        };
        Context {
            run: Arc::new(Run {
                ids: self.ids,
                parent: self.parent.map(Box::new),
                cancel,
                cancel_reason: OnceLock::new(),
                deadline: self.deadline,
                environment,
                outbox: Outbox::default(),
                events: AtomicU64::new(0),
                effects: AtomicU64::new(0),
                deferred: Mutex::default(),
                holds: Holds::default(),
                live: OnceLock::new(),
                slots: OnceLock::new(),
                noted: OnceLock::new(),
                drivers: AtomicUsize::new(0),
                had_outcome: AtomicBool::new(false),
            }),
            extensions: self.extensions,
            own: Values::default(),
            marks: Marks::default(),
            phase: Phase::Run,
            step: 0,
            depth: 0,
            message_id: None,
            call: None,
        }
    }
}

impl fmt::Debug for ContextBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ContextBuilder").finish_non_exhaustive()
    }
}
