use super::{Context, Local};
use concentric_proto::{
    CallId, InterruptId, MessageId, Phase, RoundCall, Str,
    run_state::{RoundPlace, SlotPlace},
};
use std::sync::Arc;

impl Context {
    /// The phase of the run.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// The index of the step: the number of earlier model calls.
    pub fn step(&self) -> u32 {
        self.step
    }

    /// The number of the run's model calls around this context: 0 outside the loop, and for its gates
    /// and tools; 1 in a model call; 1 more in a model call of an agent in the model's place.
    ///
    /// The depth distinguishes the loop of such an agent from the loop around it, and is the same when
    /// another process resumes the run.
    pub fn depth(&self) -> u32 {
        self.depth.into()
    }

    /// The id of the message that the model generates in this step.
    pub fn message_id(&self) -> Option<&MessageId> {
        self.local().message_id.as_ref()
    }

    /// A key that is the same when this tool call is retried, resumed or replayed; `None` outside a
    /// tool call.
    ///
    /// A service that accepts such a key (`Idempotency-Key`) executes the call once.
    pub fn idempotency_key(&self) -> Option<Str> {
        let (position, call) = self.local().call.as_ref()?;
        // The ids of the message and the call are kept when the round is resumed and cannot be
        // guessed, whereas a client may have chosen the run's id.
        Some(match self.message_id() {
            Some(message) => format!("{message}/{position}/{call}").into(),
            None => format!("{}/{}/{position}/{call}", self.run_id(), self.step).into(),
        })
    }

    /// The id of the tool call; `None` outside a tool call. Events that are
    /// [emitted](Self::emit) through this context have it.
    pub fn call_id(&self) -> Option<&CallId> {
        self.local().call.as_ref().map(|(_, id)| id)
    }

    /// The index of the tool call in its message; `None` outside a tool call.
    pub fn call_position(&self) -> Option<usize> {
        self.local().call.as_ref().map(|(position, _)| *position)
    }

    pub(crate) fn is_at_call(&self, position: usize, id: &CallId) -> bool {
        let call = self.local().call.as_ref();
        call.is_some_and(|(at, call)| *at == position && call == id)
    }

    /// The id of the interrupt about this tool call, which a process that resumes the round from a
    /// history can derive; `None` outside a tool call.
    pub fn interrupt_id(&self) -> Option<InterruptId> {
        let (position, call) = self.local().call.as_ref()?;
        Some(InterruptId::for_call(self.message_id(), *position, call))
    }

    /// Returns the context of the model call of `step`.
    #[must_use]
    pub fn at_step(&self, step: u32, message_id: MessageId) -> Self {
        let local = self.local().for_message(Some(message_id));
        Self {
            depth: self.depth.saturating_add(1),
            ..self.at(Phase::Model, step, local)
        }
    }

    /// Returns the context of the round of tool calls of a message of `step`.
    #[must_use]
    pub fn at_round(&self, step: u32, message_id: Option<MessageId>) -> Self {
        let local = self.local().for_message(message_id);
        self.at(Phase::Round, step, local)
    }

    /// Converts the context of a model call of `run` into that of the round of its message.
    pub(crate) fn into_round(self, run: &Self) -> Self {
        Self {
            phase: Phase::Round,
            depth: run.depth,
            ..self
        }
    }

    /// Returns the context of one call of a round.
    #[must_use]
    pub fn at_call(&self, call: &RoundCall) -> Self {
        let local = Local {
            call: Some((call.position, call.call.id.clone())),
            ..self.local().clone()
        };
        self.at(Phase::Call, self.step, local)
    }

    #[inline]
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

impl Local {
    #[inline]
    fn for_message(&self, message_id: Option<MessageId>) -> Self {
        Self {
            message_id,
            call: self.call.clone(),
            extensions: self.extensions.clone(),
            gates: self.gates.clone(),
            tool_layers: self.tool_layers.clone(),
            marks: self.marks.clone(),
            shared: self.shared.clone(),
        }
    }
}
