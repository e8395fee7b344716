use super::armed::{Armed, lock};
use crate::{
    pipeline::{Outcomes, cancel_interrupts, notify_decisions},
    toolset::Toolset,
};
use concentric_core::{
    BoxModel, Context, Error, ErrorKind, Event, EventStream, Executor, Finish, FinishReason,
    InterruptId, Message, MessageId, Outcome, PartKind, Reply, ReplyError, Round, RunOverrides,
    ToolCallEvent, ToolSource, ToolSpecs, Transcript, Turn, Usage,
    agent::ToolParts,
    driver::Driver,
    machine::{Input, Machine, ModelStart, RunLimits, RunState},
};
use futures_util::{FutureExt, future::select};
use std::{
    collections::HashSet,
    fmt,
    future::{Future, pending, poll_fn},
    mem,
    pin::{Pin, pin},
    sync::{Arc, Mutex},
    task::{self, Poll},
};

/// The number of events that are processed before the task yields.
const EVENTS_AT_ONCE: usize = 64;

/// Executes the tool calls of a loop other than [`AgentLayer`](concentric_core::AgentLayer)'s, such
/// as a hand-written one.
///
/// The loop passes each message of the model to [`execute_round`], and appends the results. The
/// calls use the same state machine and toolset as an agent's; a round stops, as in an agent, when
/// its context is cancelled or its deadline has passed.
///
/// ```
/// use concentric_core::{CallId, Message, Part, PartKind, Role, ToolCallPart};
/// use concentric_tools::{NoArguments, RoundEnd, ToolLifecycle, Toolset, tool};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), concentric_core::Error> {
/// let tools = Toolset::new().tool(tool("now", "Returns the time.", |NoArguments {}| async { "noon" }));
/// let mut lifecycle = ToolLifecycle::new(tools);
///
/// let call = ToolCallPart::new(CallId::new("call_1"), "now", "{}");
/// let message = Message::new(Role::Assistant, vec![Part::new(PartKind::ToolCall(call))]);
/// let RoundEnd::Closed(round) = lifecycle.execute_round(message).await? else {
///     panic!("no gate requires an approval");
/// };
/// assert_eq!(round.results()[0].outcome.content.text(), "noon");
/// # Ok(())
/// # }
/// ```
///
/// [`execute_round`]: Self::execute_round
pub struct ToolLifecycle {
    pub(super) tools: Toolset,
    pub(super) context: Context,
    own: ToolParts,
    client_tools: ToolSpecs,
    pub(super) machine: Machine,
    pub(super) suspended: Option<RunState>,
    // The answered interrupts of the open round: a state in which they are still open is outdated.
    replied: HashSet<InterruptId>,
    captured: bool,
    pub(super) armed: Arc<Mutex<Armed>>,
    pub(super) on_event: Box<dyn FnMut(Event) + Send>,
}

/// The end of a round.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum RoundEnd {
    /// Every call has an outcome; the model can be called with them.
    Closed(Round),
    /// Calls are suspended; [`ToolLifecycle::resume`] continues the round.
    Suspended(Box<RunState>),
    /// Every call has an outcome, and the loop must end.
    Ended {
        /// The round.
        round: Round,
        /// The reason.
        outcome: Outcome,
    },
}

impl ToolLifecycle {
    /// Creates the lifecycle of a new run.
    pub fn new(tools: Toolset) -> Self {
        Self {
            machine: begin(Transcript::new(), &tools),
            tools,
            context: Context::new(),
            own: ToolParts::default(),
            client_tools: ToolSpecs::default(),
            suspended: None,
            replied: HashSet::new(),
            captured: false,
            armed: Arc::default(),
            on_event: Box::new(drop),
        }
    }

    /// Passes events that tools and layers emit during a round to `take`; by default they are
    /// dropped.
    #[must_use]
    pub fn on_event(mut self, take: impl FnMut(Event) + Send + 'static) -> Self {
        self.on_event = Box::new(take);
        self
    }

    /// Sets the context of the run.
    #[must_use]
    pub fn with_context(mut self, context: Context) -> Self {
        self.context = context;
        self.own.apply(&mut self.context);
        self
    }

    /// Adds gates, tool layers and tools for this run only.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Configuration`]: the overrides have step gates or model layers, or the toolset
    /// can't take their tools.
    pub fn with_overrides(mut self, overrides: RunOverrides) -> Result<Self, Error> {
        let own = overrides.into_tool_parts()?;
        self.tools.install_for_run(&own)?;
        self.tools.check()?;
        own.apply(&mut self.context);
        self.own.extend(own);
        let transcript = self.machine.transcript().clone();
        Ok(self.after(transcript))
    }

    /// Sets the earlier conversation.
    #[must_use]
    pub fn after(mut self, transcript: Transcript) -> Self {
        self.machine = begin(transcript, &self.tools);
        self
    }

    /// Sets the tools that the client executes.
    #[must_use]
    pub fn with_client_tools(mut self, tools: ToolSpecs) -> Self {
        self.client_tools = tools;
        self
    }

    /// The tools to offer to the model.
    pub fn specs(&self) -> ToolSpecs {
        let mut specs = self.tools.specs();
        if self.context.parent().is_some() {
            specs.retain(|spec| self.tools.offers(&spec.name, &self.context));
        }
        self.client_tools.iter().chain(&specs).cloned().collect()
    }

    /// Returns the request for the next model call, with the tools that `choose` returns. A call of
    /// another tool is refused in the next round.
    #[cfg(feature = "skills")]
    pub(crate) fn offer(
        &mut self,
        choose: impl FnOnce(&mut concentric_core::ChatRequest) -> Option<Arc<[concentric_core::Str]>>,
    ) -> concentric_core::ChatRequest {
        let mut request = concentric_core::ChatRequest::new(self.transcript().clone());
        request.tools = self.specs();
        request.context = self.context.clone();
        lock(&self.armed).offered = choose(&mut request);
        request
    }

    /// Executes the tool calls in a `message` of the model.
    ///
    /// # Errors
    ///
    /// Returns an error without any change if a round is suspended, or if the message contains no
    /// call that is executed here or by the client; [`push`](Self::push) such a message.
    ///
    /// Returns an error and ends the run if the message does not fit the conversation, a tool fails
    /// in a way that ends the run, or the run's deadline has passed.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the running tools, and leaves the round as if its process had
    /// ended: [`suspend`](Self::suspend) returns its state, and [`resume`](Self::resume) continues
    /// it. Recorded outcomes are kept; the progress of the other calls is unknown.
    pub async fn execute_round(&mut self, message: Message) -> Result<RoundEnd, Error> {
        self.start(message)?;
        self.drive().await
    }

    /// Continues a suspended round, of this or another process.
    ///
    /// `state` must come from a store that only trusted processes write.
    ///
    /// # Errors
    ///
    /// Returns an error and changes nothing if a reply does not match an open interrupt, or if the
    /// round was already resumed from this state ([`ErrorKind::Conflict`]). Also if the run has
    /// named overrides ([`ErrorKind::Configuration`]): only an agent can apply them.
    ///
    /// Returns an error and ends the run if a tool fails in a way that ends the run, or the run's
    /// deadline has passed.
    ///
    /// # Cancel safety
    ///
    /// See [`execute_round`](Self::execute_round). The replies are kept.
    pub async fn resume(
        &mut self,
        state: RunState,
        replies: Vec<Reply>,
    ) -> Result<RoundEnd, Error> {
        if !state.overrides().is_empty() {
            let why = format!(
                "the run was started with the overrides `{}`, which only an agent applies",
                state.overrides().join("`, `")
            );
            return Err(Error::new(ErrorKind::Configuration, why).with_code("overrides"));
        }
        let mut asked = state.interrupts().into_iter();
        // A tool may raise the same interrupt again.
        let is_last = self.suspended.as_ref() == Some(&state);
        if state.transcript().len() < self.machine.transcript().len()
            || (!is_last && asked.any(|asked| self.replied.contains(&asked.id)))
        {
            return Err(Error::new(
                ErrorKind::Conflict,
                "the state is outdated: the round was already resumed from it",
            ));
        }
        let slots = state.slots().to_vec();
        let mut machine = Machine::restore(state, rules(&self.tools));
        let replied: Vec<_> = replies.iter().map(|it| it.interrupt_id.clone()).collect();
        machine
            .reply(replies, self.context.now())
            .map_err(|error| unfit(&error))?;
        // Consumes the action that reports the resumption.
        if machine.state().is_none() {
            machine.action();
        }
        self.context.restore_state(&slots);
        self.machine = machine;
        self.count_step();
        self.suspended = None;
        self.replied.extend(replied);
        self.captured = false;
        self.drive().await
    }

    /// Notifies the observers of [`Approval`](crate::Approval)s of decisions that another process
    /// will apply, without running anything. With [`Toolset::notify_once`] that process does not
    /// notify them again.
    ///
    /// # Errors
    ///
    /// Returns an error, without a notification, if a reply does not match an open interrupt.
    pub async fn notify_decisions(&self, state: &RunState, replies: &[Reply]) -> Result<(), Error> {
        state
            .check_replies(replies, self.context.now())
            .map_err(|error| unfit(&error))?;
        notify_decisions(&self.tools, &self.context, state, replies).await;
        Ok(())
    }

    /// The state to store of a suspended round, or of one whose future was dropped, with the values
    /// of the run's durable [slots](concentric_core::state).
    pub fn suspend(&self) -> Option<RunState> {
        let dropped = || {
            let state = self
                .machine
                .state()
                .filter(|it| it.open_round().is_some())?;
            Some(match self.context.stored_state() {
                Ok(slots) => state.with_slots(slots),
                Err(error) => {
                    tracing::error!(%error, "serializing the slots of a run failed");
                    state
                }
            })
        };
        self.suspended.clone().or_else(dropped)
    }

    /// Returns the conversation, including all tool results, once after each round. Returns `None`
    /// while a round is suspended, and on further calls.
    pub fn capture_turn(&mut self) -> Option<Transcript> {
        if self.captured || self.suspend().is_some() {
            return None;
        }
        self.captured = true;
        Some(self.machine.transcript().clone())
    }

    /// Appends a turn between rounds.
    ///
    /// # Errors
    ///
    /// Returns an error if a round is suspended or the run has ended.
    pub fn push(&mut self, turn: Turn) -> Result<(), Error> {
        match self.machine.push(turn) {
            true => Ok(()),
            false => Err(invalid("a round is suspended or the run has ended")),
        }
    }

    /// The conversation so far, with closed rounds only.
    pub fn transcript(&self) -> &Transcript {
        self.machine.transcript()
    }

    /// Passes a message of the model to the machine.
    pub(super) fn start(&mut self, message: Message) -> Result<(), Error> {
        if self.suspend().is_some() {
            return Err(invalid("a round is suspended; call `resume` first"));
        }
        if self.machine.is_ended() {
            return Err(invalid("the run has ended"));
        }
        let own = |of: &Executor| matches!(of, Executor::Loop | Executor::Client);
        if !message.tool_calls().any(|call| own(&call.executor)) {
            return Err(invalid(
                "the message contains no tool call to execute; call `push` instead",
            ));
        }
        self.captured = false;
        self.replied.clear();
        let id = message.id.clone();
        let id = id.unwrap_or_else(|| MessageId::new(self.context.new_id("msg_")));
        let mut start = ModelStart::new(id);
        start.tools = self.specs();
        start.head.tools.clone_from(&lock(&self.armed).offered);
        start.client_tools = self.client_tools.iter().map(|s| s.name.clone()).collect();
        // The action that requests the model call.
        self.machine.action();
        self.machine.input(Input::ModelStarted(start));
        for part in message.parts {
            self.machine.input(Input::ModelEvent(match part.kind {
                PartKind::ToolCall(call) => {
                    let call = ToolCallEvent::new(call, part.provider_data);
                    Event::ToolCall(Box::new(call))
                }
                _ => Event::Part(Box::new(part)),
            }));
        }
        let finish = Finish::new(FinishReason::ToolCalls, Usage::default());
        self.machine
            .input(Input::ModelEvent(Event::Finish(Box::new(finish))));
        self.count_step();
        Ok(())
    }

    /// Sets the step of the calls that armed tools receive: the one after the last message.
    fn count_step(&self) {
        lock(&self.armed).step = self.machine.last_step().saturating_add(1);
    }

    async fn drive(&mut self) -> Result<RoundEnd, Error> {
        let context = self.context.clone();
        let mut stopped = pin!(stopped(&context).fuse());
        let mut given_up = None;
        let mut round = Driven::new(self);
        let last = loop {
            let next = poll_fn(|cx| {
                if stopped.as_mut().poll(cx).is_ready() {
                    given_up = round.driver.machine().state();
                }
                round.poll(cx)
            });
            match next.await {
                Some(Ok(event)) if !event.is_finish() => {}
                end => break end.transpose(),
            }
        };
        drop(round);
        // The observers of interrupts that the stop has cancelled.
        if let Some(state) = given_up {
            cancel_interrupts(&self.tools, &self.context, &state).await;
        }
        self.end(last?)
    }

    /// Converts the last event of a round.
    pub(super) fn end(&mut self, last: Option<Event>) -> Result<RoundEnd, Error> {
        let outcome = match last {
            Some(Event::Finish(finish)) => match finish.state {
                Some(state) => {
                    let state = state.with_slots(self.context.stored_state()?);
                    self.suspended = Some(state.clone());
                    return Ok(RoundEnd::Suspended(Box::new(state)));
                }
                None => Some(finish.outcome),
            },
            // The round is closed; the caller calls the model.
            None if !self.machine.is_ended() => None,
            _ => return Err(invalid("the run has no next action")),
        };
        let last = self.machine.transcript().last();
        let Some(round) = last.and_then(Turn::as_round).cloned() else {
            return Err(invalid("there is no open round"));
        };
        Ok(match outcome {
            Some(outcome) => RoundEnd::Ended { round, outcome },
            None => RoundEnd::Closed(round),
        })
    }
}

/// A round in progress. Dropping it drops the running tools and keeps the machine.
struct Driven<'a> {
    lifecycle: &'a mut ToolLifecycle,
    driver: Pin<Box<Driver<BoxModel, EventStream, Toolset, Outcomes>>>,
}

impl<'a> Driven<'a> {
    fn new(lifecycle: &'a mut ToolLifecycle) -> Self {
        let none = Machine::new(Transcript::new(), RunLimits::default());
        let driver = Driver::for_rounds(
            mem::replace(&mut lifecycle.machine, none),
            lifecycle.tools.clone(),
            lifecycle.specs(),
            lifecycle.context.clone(),
        );
        Self { lifecycle, driver }
    }

    /// Returns the next event of the machine; `None` if the caller calls the model next.
    fn poll(&mut self, cx: &mut task::Context<'_>) -> Poll<Option<Result<Event, Error>>> {
        for _ in 0..EVENTS_AT_ONCE {
            match self.lifecycle.context.poll_emitted(cx) {
                Poll::Ready(emitted) => (self.lifecycle.on_event)(emitted),
                Poll::Pending if self.driver.machine().is_model_next() => {
                    return Poll::Ready(None);
                }
                Poll::Pending => return self.driver.as_mut().poll_event(cx),
            }
        }
        cx.waker().wake_by_ref();
        match self.driver.machine().is_model_next() {
            true => Poll::Pending,
            // The driver observes a stop, also while events do not end.
            false => self.driver.as_mut().poll_event(cx),
        }
    }
}

impl Drop for Driven<'_> {
    fn drop(&mut self) {
        mem::swap(
            &mut self.lifecycle.machine,
            self.driver.as_mut().machine_mut(),
        );
    }
}

/// Resolves when a run is cancelled, or its deadline has passed.
async fn stopped(context: &Context) {
    let late = async {
        match context.remaining() {
            Some(left) => context.environment().clock().sleep(left).await,
            None => pending().await,
        }
    };
    select(pin!(context.cancelled()), pin!(late)).await;
}

/// Creates the machine of a loop whose caller calls the model.
fn begin(transcript: Transcript, tools: &Toolset) -> Machine {
    Machine::new(transcript, rules(tools))
}

/// The limits of the tools; the caller limits the model calls.
fn rules(tools: &Toolset) -> RunLimits {
    let mut rules = ToolSource::rules(tools);
    rules.steps = u32::MAX;
    rules
}

fn unfit(error: &ReplyError) -> Error {
    Error::new(ErrorKind::InvalidRequest, error.to_string())
        .with_code(error.code())
        .with_source(error.clone())
}

fn invalid(reason: &'static str) -> Error {
    Error::new(ErrorKind::InvalidRequest, reason)
}

impl fmt::Debug for ToolLifecycle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ToolLifecycle")
            .field("tools", &self.tools)
            .field("suspended", &self.suspended.is_some())
            .finish_non_exhaustive()
    }
}
