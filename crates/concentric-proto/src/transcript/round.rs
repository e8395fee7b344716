use super::HistoryError;
use crate::{
    id::{CallId, InterruptId},
    interrupt::Reply,
    message::{Executor, Message, PartKind, ToolCallPart, ToolOutcome, ToolResult, ToolStatus},
};
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet};

/// Returns whether a round must contain an outcome for `call`, which is the case if the loop or the
/// client executes it.
pub(crate) fn needs_outcome(call: &ToolCallPart) -> bool {
    matches!(call.executor, Executor::Loop | Executor::Client)
}

/// Checks that each result in `message` belongs to a call in it that the loop does not execute.
pub(crate) fn check_results(message: &Message) -> Result<(), HistoryError> {
    let results = message.parts.iter().filter_map(|part| match &part.kind {
        PartKind::ToolResult(result) => Some(&result.call_id),
        _ => None,
    });
    let mut results = results.peekable();
    // Most messages contain no results.
    if results.peek().is_none() {
        return Ok(());
    }
    let calls = message.tool_calls().filter(|call| !needs_outcome(call));
    let calls: HashSet<&CallId> = calls.map(|call| &call.id).collect();
    match results.find(|id| !calls.contains(id)) {
        Some(orphan) => Err(HistoryError::OrphanResult(orphan.clone())),
        None => Ok(()),
    }
}

/// An assistant message with tool calls, and one outcome for each of them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "RoundData")]
pub struct Round {
    message: Message,
    // One per call that requires an outcome, in the order of the calls.
    results: Vec<ToolResult>,
}

#[derive(Deserialize)]
struct RoundData {
    message: Message,
    results: Vec<ToolResult>,
}

impl TryFrom<RoundData> for Round {
    type Error = HistoryError;

    fn try_from(data: RoundData) -> Result<Self, HistoryError> {
        Self::new(data.message, data.results)
    }
}

impl Round {
    /// Creates a round from a message and the outcomes of its calls, in any order.
    ///
    /// # Errors
    ///
    /// If a call has no outcome or more than one, an outcome has no call, two calls have the same
    /// id, or no call requires an outcome.
    pub fn new(message: Message, results: Vec<ToolResult>) -> Result<Self, HistoryError> {
        check_results(&message)?;
        let mut results: Vec<Option<ToolResult>> = results.into_iter().map(Some).collect();
        let mut places = HashMap::with_capacity(results.len());
        for (at, result) in results.iter().flatten().enumerate() {
            places.entry(result.call_id.clone()).or_insert(at);
        }
        let mut ordered = Vec::with_capacity(results.len());
        let mut seen = HashSet::new();
        for call in message.tool_calls().filter(|call| needs_outcome(call)) {
            if !seen.insert(&call.id) {
                return Err(HistoryError::DuplicateCall(call.id.clone()));
            }
            let place = places.get(&call.id).and_then(|at| results.get_mut(*at));
            let Some(result) = place.and_then(Option::take) else {
                return Err(HistoryError::MissingResult(call.id.clone()));
            };
            ordered.push(result);
        }
        if let Some(left) = results.into_iter().flatten().next() {
            return Err(if seen.contains(&left.call_id) {
                HistoryError::DuplicateResult(left.call_id)
            } else {
                HistoryError::OrphanResult(left.call_id)
            });
        }
        if ordered.is_empty() {
            return Err(HistoryError::NoCalls);
        }
        Ok(Self {
            message,
            results: ordered,
        })
    }

    /// Creates a round without checks. `results` must contain one result per call, in order.
    pub(crate) const fn closed(message: Message, results: Vec<ToolResult>) -> Self {
        Self { message, results }
    }

    /// The message that makes the calls.
    pub fn message(&self) -> &Message {
        &self.message
    }

    /// The outcomes, in the order of the calls.
    pub fn results(&self) -> &[ToolResult] {
        &self.results
    }

    /// Converts the outcomes of client tools to replies; see [`OpenRound::client_replies`].
    pub fn client_replies(&self) -> Vec<Reply> {
        let calls = self.message.tool_calls().filter(|call| needs_outcome(call));
        let outcomes = self.results.iter().map(|result| Some(&result.outcome));
        client_replies(&self.message, calls.zip(outcomes))
    }
}

fn client_replies<'a>(
    message: &Message,
    calls: impl Iterator<Item = (&'a ToolCallPart, Option<&'a ToolOutcome>)>,
) -> Vec<Reply> {
    let reply = |(position, (call, outcome)): (usize, (&ToolCallPart, Option<&ToolOutcome>))| {
        let outcome = outcome.filter(|_| call.executor == Executor::Client)?;
        let id = InterruptId::for_call(message.id.as_ref(), position, &call.id);
        Some(match outcome.status {
            ToolStatus::Denied => Reply::deny(id, outcome.content.text()),
            ToolStatus::Cancelled => Reply::cancel(id),
            ToolStatus::Failed | ToolStatus::Unknown => {
                Reply::answer_failed(id, outcome.content.text())
            }
            ToolStatus::Done => Reply::answer(id, outcome.content.text()),
        })
    };
    calls.enumerate().filter_map(reply).collect()
}

/// An assistant message with tool calls, some of which have no outcome yet.
///
/// An open round is plain data and not part of a transcript. `ChatRequest::resume_history` resumes
/// a run from it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "OpenRoundData")]
pub struct OpenRound {
    pub(crate) message: Message,
    pub(crate) calls: Vec<OpenCall>,
}

#[derive(Deserialize)]
struct OpenRoundData {
    message: Message,
    calls: Vec<OpenCall>,
}

impl TryFrom<OpenRoundData> for OpenRound {
    type Error = HistoryError;

    // The message defines the calls; only the outcomes are taken from the data.
    fn try_from(data: OpenRoundData) -> Result<Self, HistoryError> {
        let mut open = Self::new(data.message)?;
        let places = open.places();
        for OpenCall { call, outcome } in data.calls {
            let place = places.get(&call.id).and_then(|at| open.calls.get_mut(*at));
            let Some(slot) = place.filter(|slot| slot.call == call) else {
                return Err(HistoryError::OrphanResult(call.id));
            };
            if let Some(outcome) = outcome {
                slot.settle(outcome)?;
            }
        }
        Ok(open)
    }
}

/// One call of an [`OpenRound`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct OpenCall {
    pub(crate) call: ToolCallPart,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) outcome: Option<ToolOutcome>,
}

impl OpenCall {
    fn settle(&mut self, outcome: ToolOutcome) -> Result<(), HistoryError> {
        if self.outcome.is_some() {
            return Err(HistoryError::DuplicateResult(self.call.id.clone()));
        }
        self.outcome = Some(outcome);
        Ok(())
    }
}

impl OpenRound {
    /// Creates an open round from a message; no call has an outcome yet.
    ///
    /// # Errors
    ///
    /// If no call requires an outcome, or two calls have the same id.
    pub fn new(message: Message) -> Result<Self, HistoryError> {
        check_results(&message)?;
        let mut seen = HashSet::new();
        let mut calls = Vec::new();
        for call in message.tool_calls().filter(|call| needs_outcome(call)) {
            if !seen.insert(call.id.clone()) {
                return Err(HistoryError::DuplicateCall(call.id.clone()));
            }
            calls.push(OpenCall {
                call: call.clone(),
                outcome: None,
            });
        }
        if calls.is_empty() {
            return Err(HistoryError::NoCalls);
        }
        Ok(Self { message, calls })
    }

    /// The message that makes the calls.
    pub fn message(&self) -> &Message {
        &self.message
    }

    /// The calls, in the order of the message, each with its outcome, if there is one.
    pub fn calls(
        &self,
    ) -> impl ExactSizeIterator<Item = (&ToolCallPart, Option<&ToolOutcome>)> + DoubleEndedIterator
    {
        let calls = self.calls.iter();
        calls.map(|open| (&open.call, open.outcome.as_ref()))
    }

    /// Iterates over the calls without an outcome.
    pub fn waiting(&self) -> impl Iterator<Item = &ToolCallPart> {
        self.calls
            .iter()
            .filter(|open| open.outcome.is_none())
            .map(|open| &open.call)
    }

    /// Converts the outcomes of client tools to replies for a stored run.
    ///
    /// Use this if the history contains the results of client tools and the stored run waits for
    /// replies to [`CLIENT_TOOL`](crate::interrupt::CLIENT_TOOL) interrupts. Remove the replies to
    /// interrupts that the run does not wait for.
    pub fn client_replies(&self) -> Vec<Reply> {
        let calls = self.calls.iter();
        client_replies(
            &self.message,
            calls.map(|open| (&open.call, open.outcome.as_ref())),
        )
    }

    /// Iterates over the calls without an outcome, each with the id of its first interrupt.
    ///
    /// A host that has only a history uses these ids to reply (`ChatRequest::resume_history`).
    pub fn questions(&self) -> impl Iterator<Item = (InterruptId, &ToolCallPart)> {
        let calls = self.calls.iter().enumerate();
        calls
            .filter(|(_, open)| open.outcome.is_none())
            .map(|(position, open)| {
                let message = self.message.id.as_ref();
                let id = InterruptId::for_call(message, position, &open.call.id);
                (id, &open.call)
            })
    }

    /// Sets the outcome of a call.
    ///
    /// # Errors
    ///
    /// If the call does not exist or already has an outcome.
    pub fn settle(&mut self, id: &CallId, outcome: ToolOutcome) -> Result<(), HistoryError> {
        match self.calls.iter_mut().find(|open| open.call.id == *id) {
            Some(open) => open.settle(outcome),
            None => Err(HistoryError::OrphanResult(id.clone())),
        }
    }

    /// Sets the outcomes of all calls in `results` for which this is possible.
    ///
    /// # Errors
    ///
    /// The first error of [`settle`](Self::settle). The other outcomes are set regardless.
    pub fn settle_all(&mut self, results: Vec<ToolResult>) -> Result<(), HistoryError> {
        let places = self.places();
        let settled = results.into_iter().map(|result| {
            let place = places.get(&result.call_id);
            match place.and_then(|at| self.calls.get_mut(*at)) {
                Some(open) => open.settle(result.outcome),
                None => Err(HistoryError::OrphanResult(result.call_id)),
            }
        });
        settled.fold(Ok(()), Result::and)
    }

    /// The index of each call.
    fn places(&self) -> HashMap<CallId, usize> {
        let calls = self.calls.iter().enumerate();
        calls.map(|(at, open)| (open.call.id.clone(), at)).collect()
    }

    /// Converts the open round to a [`Round`], with the outcome `otherwise` for calls without one.
    pub fn close(self, mut otherwise: impl FnMut(&ToolCallPart) -> ToolOutcome) -> Round {
        let results = self
            .calls
            .into_iter()
            .map(|OpenCall { call, outcome, .. }| {
                let outcome = outcome.unwrap_or_else(|| otherwise(&call));
                ToolResult::new(call.id, call.name, outcome)
            })
            .collect();
        Round {
            message: self.message,
            results,
        }
    }
}
