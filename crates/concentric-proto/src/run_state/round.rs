//! The open round of a run.

use super::{Inner, StoredCall};
use crate::{
    call::{CallStage, Refusal, Unverified},
    id::InterruptId,
    interrupt::{Interrupt, Reply},
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
    pub(crate) fn round(step: u32, message: Message, calls: Vec<StoredCall>) -> Self {
        Self::Round(Box::new(RoundState {
            step,
            message,
            calls,
            begun: false,
            accepted: Vec::new(),
        }))
    }

    pub(crate) fn claimed(open: OpenRound, tools: &ToolSpecs) -> Self {
        let names: Arc<[Str]> = tools.iter().map(|tool| tool.name.clone()).collect();
        let stored = |OpenCall { call, outcome }: OpenCall| {
            let spec = tools.get(&call.name);
            let gone = || Refusal::NotOffered(Arc::clone(&names));
            let read_only = spec.is_some_and(|spec| spec.annotations.read_only);
            // The client decides which of its own tools exist.
            let refusal = (spec.is_none() && call.executor == Executor::Loop).then(gone);
            let unverified = || Unverified {
                refusal,
                ..Unverified::default()
            };
            let mut stored = StoredCall::new(call, None, read_only);
            stored.state.stage = outcome.map_or_else(
                || CallStage::Unverified(Box::new(unverified())),
                CallStage::Settled,
            );
            stored
        };
        let mut calls: Vec<StoredCall> = open.calls.into_iter().map(stored).collect();
        for (position, call) in calls.iter_mut().enumerate() {
            if call.is_claimed() {
                call.await_client(&open.message, position);
            }
        }
        Self::Round(Box::new(RoundState {
            step: 0,
            message: open.message,
            calls,
            // A history does not record whether the round was begun; true is the cautious value.
            begun: true,
            accepted: Vec::new(),
        }))
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct RoundState {
    pub(crate) step: u32,
    pub(crate) message: Message,
    pub(crate) calls: Vec<StoredCall>,
    // Whether calls of the round were handed out before.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) begun: bool,
    // The accepted replies to calls that are settled.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) accepted: Vec<Reply>,
}

impl RoundState {
    pub(super) fn check(&self) -> Result<(), HistoryError> {
        check_open(&self.message, &self.calls)?;
        match self.calls.is_empty() {
            true => Err(HistoryError::NoCalls),
            false => Ok(()),
        }
    }

    pub(crate) fn to_open(&self) -> OpenRound {
        OpenRound {
            message: self.message.clone(),
            calls: self
                .calls
                .iter()
                .map(|call| OpenCall {
                    call: ToolCallPart::clone(&call.call),
                    outcome: call.outcome().cloned(),
                })
                .collect(),
        }
    }

    /// Settles the call at `at`.
    pub(crate) fn settle(&mut self, at: usize, outcome: ToolOutcome) {
        if let Some(call) = self.calls.get_mut(at) {
            self.accepted.extend_from_slice(call.state.stage.replies());
            call.state.stage = CallStage::Settled(outcome);
        }
    }

    /// Settles the calls for which `outcome` returns an outcome.
    pub(crate) fn settle_each(&mut self, outcome: impl Fn(&StoredCall) -> Option<ToolOutcome>) {
        for at in 0..self.calls.len() {
            if let Some(outcome) = self.calls.get(at).and_then(&outcome) {
                self.settle(at, outcome);
            }
        }
    }

    pub(crate) fn interrupts(&self) -> impl Iterator<Item = &Interrupt> {
        self.calls.iter().flat_map(StoredCall::interrupts)
    }

    /// The interrupts of the round that must be replied to together.
    pub(crate) fn asked_together(&self) -> impl Iterator<Item = &Interrupt> {
        let together = self.calls.iter().any(StoredCall::is_together);
        self.interrupts().filter(move |_| together)
    }

    /// The accepted replies to interrupts of the round.
    pub(crate) fn replies(&self) -> impl Iterator<Item = &Reply> {
        let open = self
            .calls
            .iter()
            .flat_map(|call| call.state.stage.replies());
        self.accepted.iter().chain(open)
    }

    pub(crate) fn questions(&self) -> Questions<'_> {
        let mut recorded = HashMap::new();
        for (at, call) in self.calls.iter().enumerate() {
            for asked in call.interrupts() {
                recorded.entry(&asked.id).or_insert((at, asked));
            }
        }
        Questions {
            recorded,
            round: self,
        }
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
        let RoundState { message, calls, .. } = self.round;
        let at = id.call_position(message.id.as_ref())?;
        let call = calls.get(at)?;
        let key = InterruptId::for_call(message.id.as_ref(), at, &call.call.id);
        let rest = id.as_str().strip_prefix(key.as_str())?;
        (call.is_claimed() && (rest.is_empty() || rest.starts_with('#'))).then_some(at)
    }
}

/// Checks that `calls` match the calls of `message` that require an outcome, and that their ids are
/// unique.
pub(super) fn check_open(message: &Message, calls: &[StoredCall]) -> Result<(), HistoryError> {
    check_calls(message, calls)?;
    let mut seen = HashSet::new();
    match calls.iter().find(|call| !seen.insert(&call.call.id)) {
        Some(call) => Err(HistoryError::DuplicateCall(call.call.id.clone())),
        None => Ok(()),
    }
}

/// Checks that `calls` match the calls of `message` that require an outcome, and that each result
/// in the message has a call.
pub(crate) fn check_calls(message: &Message, calls: &[StoredCall]) -> Result<(), HistoryError> {
    let mut calls = calls.iter();
    for call in message.tool_calls().filter(|c| needs_outcome(c)) {
        if calls.next().is_none_or(|stored| *stored.call != *call) {
            return Err(HistoryError::MissingResult(call.id.clone()));
        }
    }
    match calls.next() {
        Some(stored) => Err(HistoryError::OrphanResult(stored.call.id.clone())),
        None => check_results(message),
    }
}
