//! Single calls, for a loop that executes them by itself.

use super::{RoundEnd, ToolLifecycle};
use crate::{pipeline::decide_call, toolset::Toolset};
use concentric_core::{
    BoxTool, CallId, Context, Error, ErrorKind, Message, RoundCall, RoundEvent, Suspension,
    ToolCall, ToolCallPart, ToolOutcome, ToolRound,
    hooks::Flow,
    interrupt::SuspendedBy,
    machine::{Action, Input},
};
use futures_util::{FutureExt, StreamExt};
use std::{
    collections::HashMap,
    future::poll_fn,
    sync::{Arc, Mutex, PoisonError},
};
use tower::service_fn;
use tower_service::Service;

/// The calls that armed tools have received, with their outcome or the error that suspended them; `None` while a call runs, and if it was dropped.
pub(super) type ArmedCalls = HashMap<CallId, Option<Result<ToolOutcome, Error>>>;

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
        let context = self.context.at_round(self.machine.last_step(), None);
        decide_call(&self.tools, context, self.transcript().clone(), call).await
    }

    /// Returns a service that executes single calls, for a loop of another library that executes the
    /// calls of a message by itself and in any order.
    ///
    /// Each call passes through the same stages as in a round. A call that waits for a reply is an
    /// error with the [suspension](Error::suspension): the other loop must stop. Afterwards,
    /// [`record_round`](Self::record_round) receives the message.
    ///
    /// The service does not know the other calls of the message. So each call is a round of its own:
    /// [`SiblingPolicy`](super::SiblingPolicy), exclusive tools, and limits per round and run do not
    /// apply between the calls, and the [position](concentric_core::Context::call_position) of each
    /// is 0. Events that tools emit are passed on by `record_round`.
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
        let calls = Arc::clone(&self.armed);
        let transcript = self.transcript().clone();
        let context = self.context.at_round(self.machine.last_step(), None);
        BoxTool::new(service_fn(move |call: ToolCall| {
            let id = call.id().clone();
            let call = RoundCall::new(0, call.part().clone());
            let round = ToolRound::new(vec![call], context.clone()).after(transcript.clone());
            execute(tools.clone(), round, id, Arc::clone(&calls))
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
    pub fn record_round(&mut self, message: Message) -> Result<RoundEnd, Error> {
        self.start(message)?;
        let emitted = |context: &Context| poll_fn(|cx| context.poll_emitted(cx)).now_or_never();
        while let Some(event) = emitted(&self.context) {
            (self.on_event)(event);
        }
        let mut calls = std::mem::take(&mut *lock(&self.armed));
        let is_suspended = calls.values().any(|ended| matches!(ended, Some(Err(_))));
        while !self.machine.is_model_next() {
            match self.machine.action() {
                Some(Action::RunTools { calls: made, .. }) => {
                    for (index, call) in made.iter().enumerate() {
                        let input = match calls.remove(&call.call.id) {
                            // Dropped while it ran: its outcome is unknown.
                            Some(None) => None,
                            Some(Some(ended)) => recorded(index, ended),
                            None if is_suspended => Some(held(index)),
                            None => Some(not_made(index)),
                        };
                        input
                            .into_iter()
                            .for_each(|input| self.machine.input(input));
                    }
                    self.machine.input(Input::RoundEnded);
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
    calls: Arc<Mutex<ArmedCalls>>,
) -> Result<ToolOutcome, Error> {
    lock(&calls).insert(id.clone(), None);
    let event = tools.call(round).await?.next().await.transpose()?;
    let ended = match event {
        Some(RoundEvent::Settled { outcome, .. }) => Ok(outcome),
        Some(RoundEvent::Suspended { on, by, .. }) => Err(Error::suspended_by(by, *on)),
        _ => {
            let why = "the call has no outcome";
            return Err(Error::new(ErrorKind::Protocol, why));
        }
    };
    lock(&calls).insert(id, Some(ended.clone()));
    ended
}

fn recorded(index: usize, ended: Result<ToolOutcome, Error>) -> Option<Input> {
    match ended {
        Ok(outcome) => Some(Input::Settled { index, outcome }),
        Err(error) => {
            let (on, by) = error.suspension()?;
            let on = Box::new(on.clone());
            Some(Input::Suspended { index, on, by })
        }
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

fn lock(calls: &Mutex<ArmedCalls>) -> std::sync::MutexGuard<'_, ArmedCalls> {
    calls.lock().unwrap_or_else(PoisonError::into_inner)
}
