use super::{Context, Local};
use concentric_proto::{
    CallId, InterruptId, MessageId, Phase, RoundCall, Str,
    run_state::{RoundPlace, SlotPlace},
};
use std::sync::Arc;

impl Context {
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
        self.depth.into()
    }

    /// Names the message that the model writes in this step.
    pub fn message_id(&self) -> Option<&MessageId> {
        self.local().message_id.as_ref()
    }

    /// A key that stays the same when this very tool call is tried again, resumed or replayed.
    ///
    /// Hand it to a service that takes one (`Idempotency-Key`), and the call takes effect once.
    ///
    /// `None` outside a tool call.
    pub fn idempotency_key(&self) -> Option<Str> {
        let (position, call) = self.local().call.as_ref()?;
        // The message and the call keep their ids when the round is resumed, and neither can be
        // guessed; a client may have chosen the run's.
        Some(match self.message_id() {
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
        self.local().call.as_ref().map(|(_, id)| id)
    }

    /// Which of its message's calls this is, from 0; `None` outside a tool call.
    pub fn call_position(&self) -> Option<usize> {
        self.local().call.as_ref().map(|(position, _)| *position)
    }

    pub(crate) fn is_at_call(&self, position: usize, id: &CallId) -> bool {
        let call = self.local().call.as_ref();
        call.is_some_and(|(at, call)| *at == position && call == id)
    }

    /// The id of what is asked about this very tool call, which whoever takes the round up from a
    /// history can work out; `None` outside a tool call.
    pub fn interrupt_id(&self) -> Option<InterruptId> {
        let (position, call) = self.local().call.as_ref()?;
        Some(InterruptId::for_call(self.message_id(), *position, call))
    }

    /// The context at `step`, inside the loop.
    #[must_use]
    pub fn at_step(&self, step: u32, message_id: MessageId) -> Self {
        let local = Local {
            message_id: Some(message_id),
            ..self.local().clone()
        };
        Self {
            depth: self.depth.saturating_add(1),
            ..self.at(Phase::Model, step, local)
        }
    }

    /// The context of the batch of tool calls that a message of `step` makes.
    #[must_use]
    pub fn at_round(&self, step: u32, message_id: Option<MessageId>) -> Self {
        let local = Local {
            message_id,
            ..self.local().clone()
        };
        self.at(Phase::Round, step, local)
    }

    /// The context of one call of a round.
    #[must_use]
    pub fn at_call(&self, call: &RoundCall) -> Self {
        let local = Local {
            call: Some((call.position, call.call.id.clone())),
            ..self.local().clone()
        };
        self.at(Phase::Call, self.step, local)
    }

    fn at(&self, phase: Phase, step: u32, local: Local) -> Self {
        Self {
            run: Arc::clone(&self.run),
            local: Some(Arc::new(local)),
            phase,
            depth: self.depth,
            step,
        }
    }

    pub(crate) fn place_of_round(&self) -> Option<SlotPlace> {
        self.round().map(SlotPlace::Round)
    }

    pub(crate) fn place_of_call(&self) -> Option<SlotPlace> {
        let (position, _) = self.local().call.as_ref()?;
        Some(SlotPlace::Call(self.round()?, *position))
    }

    fn round(&self) -> Option<RoundPlace> {
        matches!(self.phase, Phase::Round | Phase::Call).then(|| match self.message_id() {
            Some(message) => RoundPlace::Message(message.clone()),
            None => RoundPlace::Step(self.step),
        })
    }
}
