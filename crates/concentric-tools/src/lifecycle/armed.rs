//! Single calls, for a loop that executes them by itself.

use super::{RoundEnd, ToolLifecycle};
use crate::{pipeline::decide_call, toolset::Toolset};
use concentric_core::{
    BoxTool, CallId, Context, Error, ErrorKind, Message, MessageId, Refusal, RoundCall, RoundEvent,
    Str, Suspension, ToolCall, ToolCallPart, ToolOutcome, ToolRound, ToolSpecs,
    call::CallStage,
    hooks::Flow,
    interrupt::SuspendedBy,
    machine::{Action, Input},
};
use futures_util::{FutureExt, StreamExt};
use std::{
    collections::HashMap,
    future::poll_fn,
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tower::service_fn;
use tower_service::Service;

type ArmedCalls = HashMap<CallId, Option<Result<ToolOutcome, Error>>>;

/// What armed tools know of the next message, whose calls they receive.
#[derive(Default)]
pub(super) struct Armed {
    /// The calls with their outcome or error; `None` while a call runs, and if it was dropped.
    calls: ArmedCalls,
    /// The positions of the calls in the message, by the order in which they arrived.
    positions: HashMap<CallId, usize>,
    /// The id of the message, unless it has one when it is recorded.
    message_id: Option<MessageId>,
    pub(super) step: u32,
    /// The offered tools; all if `None`.
    pub(super) offered: Option<Arc<[Str]>>,
}

impl Armed {
    /// The context of the message's round.
    fn at_round(&mut self, context: &Context) -> Context {
        let new_id = || MessageId::new(context.new_id("msg_"));
        let id = self.message_id.get_or_insert_with(new_id).clone();
        context.at_round(self.step, Some(id))
    }

    /// A call of the message, which is refused if its tool is not offered.
    fn round_call(&self, specs: &ToolSpecs, call: ToolCallPart) -> RoundCall {
        let is_offered = match &self.offered {
            Some(names) => names.contains(&call.name),
            None => specs.get(&call.name).is_some(),
        };
        let position = self.positions.get(&call.id);
        let next = self.positions.len();
        let mut call = RoundCall::new(position.copied().unwrap_or(next), call);
        if !is_offered {
            let all = || specs.iter().map(|spec| spec.name.clone()).collect();
            let names = self.offered.clone().unwrap_or_else(all);
            call.state.stage = CallStage::Rejected(Refusal::NotOffered(names));
        }
        call
    }

    /// Determines the position of a call: that of its context, or the next one.
    fn place(&mut self, call: &ToolCall) {
        let next = self.positions.len();
        let position = call.context.call_position().unwrap_or(next);
        self.positions.entry(call.id().clone()).or_insert(position);
    }

    /// Starts a call of `message`; returns the first result of a call that was already started.
    fn enter(
        &mut self,
        message: &Option<MessageId>,
        id: &CallId,
    ) -> Option<Result<ToolOutcome, Error>> {
        let conflict = |why| Some(Err(Error::new(ErrorKind::Conflict, why)));
        if self.message_id != *message {
            return conflict("the message of the call was already recorded");
        }
        match self.calls.get(id) {
            Some(Some(ended)) => Some(ended.clone()),
            Some(None) => conflict("the call was already started"),
            None => {
                self.calls.insert(id.clone(), None);
                None
            }
        }
    }

    /// Records the end of a call, unless its message was already recorded.
    fn leave(
        &mut self,
        message: &Option<MessageId>,
        id: CallId,
        ended: Result<ToolOutcome, Error>,
    ) {
        if self.message_id == *message {
            self.calls.insert(id, Some(ended));
        }
    }

    /// Takes the calls of the message; the next one has another id.
    fn take_calls(&mut self) -> ArmedCalls {
        self.message_id = None;
        self.positions.clear();
        mem::take(&mut self.calls)
    }
}

impl ToolLifecycle {
    /// Decides about a call without making it: validates and prepares its arguments, and calls the
    /// gates and the `before_call` of the hooks. Nothing is executed, stored or observed.
    ///
    /// Returns [`Flow::Continue`] for a call that may be made, with the prepared and edited arguments
    /// in `call`; its id and its tool are never changed. [`Flow::Answer`] is the outcome of a call
    /// that is refused or denied, or that a hook answers.
    ///
    /// ```
    /// use concentric_core::{CallId, ToolCallPart, hooks::Flow};
    /// use concentric_tools::{NoArguments, ToolLifecycle, Toolset, Verdict, gate_fn, tool};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), concentric_core::Error> {
    /// let tools = Toolset::new()
    ///     .tool(tool("erase", "", |NoArguments {}| async { "erased" }))
    ///     .gate(gate_fn("no", |_| Verdict::deny("Erasing is disabled.")));
    /// let mut call = ToolCallPart::new(CallId::new("call_1"), "erase", "{}");
    /// let flow = ToolLifecycle::new(tools).before_call(&mut call).await?;
    /// assert_eq!(flow, Flow::deny("Erasing is disabled."));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The toolset is invalid. A call that requires an approval is an error with the
    /// [suspension](Error::suspension), whose interrupts are not raised.
    pub async fn before_call(&self, call: &mut ToolCallPart) -> Result<Flow<ToolOutcome>, Error> {
        let (context, mut round_call) = {
            let mut armed = lock(&self.armed);
            let round_call = armed.round_call(&self.specs(), call.clone());
            (armed.at_round(&self.context), round_call)
        };
        let transcript = self.transcript().clone();
        let flow = decide_call(&self.tools, context, transcript, &mut round_call).await?;
        call.arguments = round_call.call.arguments.clone();
        Ok(flow)
    }

    /// Returns a service that executes single calls, for a loop of another library that executes the
    /// calls of a message by itself and in any order.
    ///
    /// Each call passes through the same stages as in a round. A call that waits for a reply is an
    /// error with the [suspension](Error::suspension): the other loop must stop. Afterwards,
    /// [`record_round`](Self::record_round) receives the message. A call that is made again has its
    /// first outcome; if that is not known, it is an error ([`ErrorKind::Conflict`]).
    ///
    /// The service does not know the other calls of the message. So each call is a round of its own:
    /// [`SiblingPolicy`](super::SiblingPolicy), exclusive tools, and limits per round and run do not
    /// apply between the calls. Events that tools emit are passed on by `record_round`.
    ///
    /// The [position](Context::call_position) of a call is that of its context; without one, calls are
    /// counted as they arrive. In a loop that starts calls in another order than that of the message
    /// and gives no positions, the [idempotency key](Context::idempotency_key) of a call that is made
    /// again after [`resume`](Self::resume) differs.
    ///
    /// ```
    /// use concentric_core::{CallId, Context, Message, Part, PartKind, Role, ToolCall, ToolCallPart};
    /// use concentric_tools::{Approval, NoArguments, RoundEnd, ToolLifecycle, Toolset, tool};
    /// use tower::ServiceExt;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), concentric_core::Error> {
    /// let tools = Toolset::new()
    ///     .tool(tool("erase", "", |NoArguments {}| async { "erased" }))
    ///     .gate(Approval::for_tools("erase"));
    /// let mut lifecycle = ToolLifecycle::new(tools);
    /// let part = ToolCallPart::new(CallId::new("call_1"), "erase", "{}");
    ///
    /// // In the other loop.
    /// let call = ToolCall::new(part.clone(), Context::new());
    /// assert!(lifecycle.armed().oneshot(call).await.unwrap_err().suspension().is_some());
    ///
    /// // After it.
    /// let message = Message::new(Role::Assistant, vec![Part::new(PartKind::ToolCall(part))]);
    /// let end = lifecycle.record_round(message)?;
    /// assert!(matches!(end, RoundEnd::Suspended(_)));
    /// # Ok(())
    /// # }
    /// ```
    pub fn armed(&self) -> BoxTool {
        let tools = self.tools.clone();
        let armed = Arc::clone(&self.armed);
        let transcript = self.transcript().clone();
        let (context, specs) = (self.context.clone(), self.specs());
        BoxTool::new(service_fn(move |call: ToolCall| {
            let id = call.id().clone();
            let (call, context) = {
                let mut armed = lock(&armed);
                armed.place(&call);
                let call = armed.round_call(&specs, call.part().clone());
                (call, armed.at_round(&context))
            };
            let round = ToolRound::new(vec![call], context).after(transcript.clone());
            execute(tools.clone(), round, id, Arc::clone(&armed))
        }))
    }

    /// Ends a round whose calls were executed by the [armed](Self::armed) tools.
    ///
    /// If calls of `message` wait for replies, the round is suspended: [`resume`](Self::resume)
    /// continues it. Calls that the other loop has not made are then made after the replies;
    /// otherwise they are settled as cancelled. The outcome of a call that was dropped while it ran is
    /// unknown.
    ///
    /// # Errors
    ///
    /// Those of [`execute_round`](Self::execute_round).
    pub fn record_round(&mut self, mut message: Message) -> Result<RoundEnd, Error> {
        // The calls were executed with this id.
        let id = || lock(&self.armed).message_id.clone();
        message.id = message.id.or_else(id);
        self.start(message)?;
        let emitted = |context: &Context| poll_fn(|cx| context.poll_emitted(cx)).now_or_never();
        while let Some(event) = emitted(&self.context) {
            (self.on_event)(event);
        }
        let mut calls = lock(&self.armed).take_calls();
        let is_suspended = calls
            .values()
            .any(|ended| matches!(ended, Some(Err(error)) if error.suspension().is_some()));
        while !self.machine.is_model_next() {
            match self.machine.action() {
                Some(Action::RunTools { calls: made, .. }) => {
                    let mut end = Input::RoundEnded;
                    for (index, call) in made.iter().enumerate() {
                        match calls.remove(&call.call.id) {
                            // Dropped while it ran: its outcome is unknown.
                            Some(None) => {}
                            Some(Some(ended)) => match recorded(index, ended) {
                                // The run fails after the other outcomes are recorded.
                                failed @ Input::RoundFailed(_) => end = failed,
                                input => self.machine.input(input),
                            },
                            None if is_suspended => self.machine.input(held(index)),
                            None => self.machine.input(not_made(index)),
                        }
                    }
                    self.machine.input(end);
                }
                Some(Action::Emit(event)) if event.is_finish() => return self.end(Some(event)),
                Some(Action::Emit(_)) => {}
                Some(Action::Fail(error)) => return Err(error),
                _ => break,
            }
        }
        self.end(None)
    }
}

/// Executes a round of one call, and records its end.
async fn execute(
    mut tools: Toolset,
    round: ToolRound,
    id: CallId,
    armed: Arc<Mutex<Armed>>,
) -> Result<ToolOutcome, Error> {
    let message = round.context.message_id().cloned();
    if let Some(first) = lock(&armed).enter(&message, &id) {
        return first;
    }
    let event = match tools.call(round).await {
        Ok(mut events) => events.next().await,
        Err(error) => Some(Err(error)),
    };
    let ended = match event {
        Some(Ok(RoundEvent::Settled { outcome, .. })) => Ok(outcome),
        Some(Ok(RoundEvent::Suspended { on, by, .. })) => Err(Error::suspended_by(by, *on)),
        Some(Err(error)) => Err(error),
        _ => Err(Error::new(ErrorKind::Protocol, "the call has no outcome")),
    };
    lock(&armed).leave(&message, id, ended.clone());
    ended
}

fn recorded(index: usize, ended: Result<ToolOutcome, Error>) -> Input {
    let error = match ended {
        Ok(outcome) => return Input::Settled { index, outcome },
        Err(error) => error,
    };
    match error.suspension() {
        Some((on, by)) => Input::Suspended {
            index,
            on: Box::new(on.clone()),
            by,
        },
        None => Input::RoundFailed(error),
    }
}

fn held(index: usize) -> Input {
    Input::Suspended {
        index,
        on: Box::new(Suspension::held()),
        by: SuspendedBy::Gate,
    }
}

fn not_made(index: usize) -> Input {
    Input::Settled {
        index,
        outcome: ToolOutcome::cancelled("The call was not made."),
    }
}

pub(super) fn lock(armed: &Mutex<Armed>) -> MutexGuard<'_, Armed> {
    armed.lock().unwrap_or_else(PoisonError::into_inner)
}
