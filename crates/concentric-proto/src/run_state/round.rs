//! The open round of a run.

use super::Inner;
use crate::{
    call::Refusal,
    id::{CallId, InterruptId},
    interrupt::{self, Answered, Interrupt, Pending, Reply, Ruling},
    message::{Executor, Message, ToolCallPart, ToolOutcome},
    spec::ToolSpecs,
    text::Str,
    transcript::{HistoryError, OpenCall, OpenRound, check_results, needs_outcome},
};
use serde::{Deserialize, Serialize};
use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Stage {
    /// The model is called next.
    Model,
    /// The model is called next, to resume a nested agent.
    Inner(Box<Inner>),
    /// Tool calls are open.
    Round(Box<RoundState>),
    /// The run has ended.
    Ended,
}

impl Stage {
    pub(crate) fn round(step: u32, message: Message, slots: Vec<Slot>) -> Self {
        Self::Round(Box::new(RoundState {
            step,
            message,
            slots,
            begun: false,
        }))
    }

    pub(crate) fn claimed(open: OpenRound, tools: &ToolSpecs) -> Self {
        let names: Arc<[Str]> = tools.iter().map(|tool| tool.name.clone()).collect();
        let slot = |OpenCall { call, outcome }| {
            let spec = tools.get(&call.name);
            let gone = || Refusal::NotOffered(Arc::clone(&names));
            Slot {
                read_only: spec.is_some_and(|spec| spec.annotations.read_only),
                // The client decides which of its own tools exist.
                refusal: (spec.is_none() && call.executor == Executor::Loop).then(gone),
                call,
                answered: None,
                recovered: false,
                begun: false,
                noted: false,
                state: outcome.map_or(SlotState::Waiting(None), SlotState::Settled),
            }
        };
        let mut slots: Vec<Slot> = open.calls.into_iter().map(slot).collect();
        for (position, slot) in slots.iter_mut().enumerate() {
            if slot.state == SlotState::Waiting(None) {
                slot.await_client(&open.message, position);
            }
        }
        Self::Round(Box::new(RoundState {
            step: 0,
            message: open.message,
            slots,
            // A history does not record whether the round was begun; true is the cautious value.
            begun: true,
        }))
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct RoundState {
    pub(crate) step: u32,
    pub(crate) message: Message,
    pub(crate) slots: Vec<Slot>,
    // Whether calls of the round were handed out before.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) begun: bool,
}

impl RoundState {
    pub(super) fn check(&self) -> Result<(), HistoryError> {
        check_slots(&self.message, &self.slots)?;
        match self.slots.is_empty() {
            true => Err(HistoryError::NoCalls),
            false => Ok(()),
        }
    }

    pub(crate) fn to_open(&self) -> OpenRound {
        OpenRound {
            message: self.message.clone(),
            calls: self
                .slots
                .iter()
                .map(|slot| OpenCall {
                    call: slot.call.clone(),
                    outcome: match &slot.state {
                        SlotState::Settled(outcome) => Some(outcome.clone()),
                        _ => None,
                    },
                })
                .collect(),
        }
    }

    pub(crate) fn pending(&self) -> impl Iterator<Item = &Pending> {
        self.slots.iter().filter_map(Slot::pending)
    }

    /// The interrupts of the round that must be replied to together.
    pub(crate) fn asked_together(&self) -> impl Iterator<Item = &Interrupt> {
        let together = self.pending().any(|pending| pending.together);
        self.pending()
            .filter(move |_| together)
            .flat_map(|pending| &pending.interrupts)
    }

    pub(crate) fn questions(&self) -> Questions<'_> {
        let mut recorded = HashMap::new();
        for (at, slot) in self.slots.iter().enumerate() {
            for asked in slot.pending().into_iter().flat_map(|p| &p.interrupts) {
                recorded.entry(&asked.id).or_insert((at, asked));
            }
        }
        Questions {
            recorded,
            round: self,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Slot {
    pub(crate) call: ToolCallPart,
    pub(crate) refusal: Option<Refusal>,
    pub(crate) read_only: bool,
    // The suspension and the replies, if the call was suspended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) answered: Option<Box<Answered>>,
    // Whether a ledger was in place when the call was last handed out.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) noted: bool,
    // Whether the call was running when its process ended.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) recovered: bool,
    // Its tool began and suspended it, and it has waited for something else since.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) begun: bool,
    pub(crate) state: SlotState,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SlotState {
    /// Ready to be handed out.
    Ready,
    /// Suspended. `None`: a history claims this, and no suspension is recorded.
    Waiting(Option<Box<Pending>>),
    /// Handed out.
    Running,
    /// Completed with an outcome.
    Settled(ToolOutcome),
}

impl Slot {
    pub(crate) fn new(call: ToolCallPart, refusal: Option<Refusal>, read_only: bool) -> Self {
        Self {
            call,
            refusal,
            read_only,
            answered: None,
            recovered: false,
            begun: false,
            noted: false,
            state: SlotState::Ready,
        }
    }

    /// Suspends a client call until the client supplies its outcome.
    pub(crate) fn await_client(&mut self, message: &Message, position: usize) {
        if self.call.executor != Executor::Client || self.refusal.is_some() {
            return;
        }
        let id: &CallId = &self.call.id;
        let asked = InterruptId::for_call(message.id.as_ref(), position, id);
        let asked = Interrupt::new(asked, interrupt::CLIENT_TOOL).about(id.clone());
        self.state = SlotState::Waiting(Some(Box::new(Pending::asking(vec![asked]))));
    }

    /// The recorded suspension, if the call is suspended.
    pub(crate) fn pending(&self) -> Option<&Pending> {
        match &self.state {
            SlotState::Waiting(pending) => pending.as_deref(),
            _ => None,
        }
    }

    /// Makes a call ready that is suspended only according to a history, so that approval can be
    /// requested again. Without a round service that can do this, the call is cancelled.
    pub(crate) fn ask_again(&mut self, resumes: bool) {
        if self.state != SlotState::Waiting(None) {
            return;
        }
        if resumes {
            self.answered = Some(Box::default());
            self.state = SlotState::Ready;
        } else {
            self.state = SlotState::Settled(ToolOutcome::cancelled("The call was not run."));
        }
    }

    /// Returns whether the call was handed out only so that approval can be requested.
    pub(crate) fn is_only_asked_about(&self) -> bool {
        let answered = self.answered.as_deref();
        answered.is_some_and(|answered| answered.pending.is_none() && answered.replies.is_empty())
    }

    /// Returns whether the call is ready to be handed out.
    pub(crate) const fn is_ready(&self) -> bool {
        matches!(self.state, SlotState::Ready)
    }

    /// Returns whether the call was handed out and is not settled.
    pub(crate) const fn is_running(&self) -> bool {
        matches!(self.state, SlotState::Running)
    }

    /// Returns whether the outcome of the call halts the run.
    pub(crate) fn halts(&self) -> bool {
        matches!(&self.state, SlotState::Settled(outcome) if outcome.halt.is_some())
    }

    /// Returns whether the call may already have executed and has no recorded outcome.
    pub(crate) fn is_in_doubt(&self) -> bool {
        let asks = |pending: &Pending| {
            let mut asked = pending.interrupts.iter();
            pending.begun || asked.any(|asked| asked.reason == interrupt::UNKNOWN_EFFECT)
        };
        let pending = match &self.state {
            SlotState::Settled(_) => return false,
            SlotState::Waiting(pending) => pending.as_deref(),
            _ => self
                .answered
                .as_deref()
                .and_then(|answered| answered.pending.as_ref()),
        };
        let is_begun = self.recovered || self.begun || pending.is_some_and(asks);
        self.refusal.is_none() && !self.read_only && is_begun
    }

    /// Returns whether the call only waits for other calls of its round.
    pub(crate) fn is_held(&self) -> bool {
        matches!(&self.state, SlotState::Waiting(Some(pending)) if pending.is_held())
    }

    /// Returns whether the call waits for a reply.
    pub(crate) fn asks(&self) -> bool {
        matches!(&self.state, SlotState::Waiting(_)) && !self.is_held()
    }
}

/// The interrupts of a round.
pub(crate) struct Questions<'a> {
    // Each with the index of its call.
    recorded: HashMap<&'a InterruptId, (usize, &'a Interrupt)>,
    round: &'a RoundState,
}

impl<'a> Questions<'a> {
    /// The index of the call that waits for a reply to `id`, and the interrupt if it is recorded.
    pub(crate) fn get(&self, id: &InterruptId) -> Option<(usize, Option<&'a Interrupt>)> {
        match self.recorded.get(id) {
            Some((at, asked)) => Some((*at, Some(asked))),
            None => self.claimed(id).map(|at| (at, None)),
        }
    }

    /// The call that `id` refers to, if it is suspended only according to a history.
    fn claimed(&self, id: &InterruptId) -> Option<usize> {
        let RoundState { message, slots, .. } = self.round;
        let at = id.call_position(message.id.as_ref())?;
        let slot = slots.get(at)?;
        let key = InterruptId::for_call(message.id.as_ref(), at, &slot.call.id);
        let rest = id.as_str().strip_prefix(key.as_str())?;
        let waits = slot.state == SlotState::Waiting(None);
        (waits && (rest.is_empty() || rest.starts_with('#'))).then_some(at)
    }
}

/// The outcome of an [indeterminate](Slot::is_in_doubt) call that the run does not resume.
pub(crate) fn in_doubt() -> ToolOutcome {
    ToolOutcome::unknown(
        "The call was started earlier and its outcome is unknown. It was not retried.",
    )
}

/// Checks that `slots` match the calls of `message` that require an outcome, and that their ids are
/// unique.
pub(super) fn check_slots(message: &Message, slots: &[Slot]) -> Result<(), HistoryError> {
    check_calls(message, slots)?;
    let mut seen = HashSet::new();
    match slots.iter().find(|slot| !seen.insert(&slot.call.id)) {
        Some(slot) => Err(HistoryError::DuplicateCall(slot.call.id.clone())),
        None => Ok(()),
    }
}

impl Slot {
    /// The outcome of a client call, if the client has replied with one.
    pub(crate) fn said_by_client(&self) -> Option<ToolOutcome> {
        if self.call.executor != Executor::Client {
            return None;
        }
        match self.answered.as_deref()?.replies.first()?.ruling().ok()? {
            Ruling::Answered(result) => Some(ToolOutcome::of_value(&result)),
            Ruling::Failed(error) => Some(ToolOutcome::failed(error)),
            _ => None,
        }
    }

    /// Settles a call that has a reply, for round services that cannot resume calls.
    pub(crate) fn settle_by_itself(&mut self) {
        let said = self.said_by_client();
        let is_in_doubt = self.is_in_doubt();
        let Some(answered) = self.answered.take() else {
            return;
        };
        let ruling = answered.replies.first().map(Reply::ruling);
        self.state = SlotState::Settled(match ruling {
            _ if let Some(said) = said => said,
            // A reply does not undo an effect.
            _ if is_in_doubt => in_doubt(),
            Some(Ok(Ruling::Denied { reason, .. })) => ToolOutcome::denied(
                reason.unwrap_or_else(|| Str::from_static("The call was denied.")),
            ),
            Some(Ok(Ruling::Cancelled)) => ToolOutcome::cancelled("The call was cancelled."),
            _ => ToolOutcome::denied("approval-invalid: No approval was requested for this call."),
        });
    }
}

/// Checks that `slots` match the calls of `message` that require an outcome, and that each result
/// in the message has a call.
pub(crate) fn check_calls(message: &Message, slots: &[Slot]) -> Result<(), HistoryError> {
    let mut slots = slots.iter();
    for call in message.tool_calls().filter(|c| needs_outcome(c)) {
        if slots.next().is_none_or(|slot| slot.call != *call) {
            return Err(HistoryError::MissingResult(call.id.clone()));
        }
    }
    match slots.next() {
        Some(slot) => Err(HistoryError::OrphanResult(slot.call.id.clone())),
        None => check_results(message),
    }
}
