use super::{OpenRound, Transcript, Turn, round};
use crate::{CallId, Message, PartKind, Role, ToolCallPart, ToolOutcome, ToolResult};
use std::{collections::HashSet, error::Error as StdError, fmt};

/// What [`Transcript::from_history`] made of a history.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct History {
    /// All that is whole.
    pub transcript: Transcript,
    /// The last message, if it makes calls that have no result yet.
    pub open: Option<OpenRound>,
}

/// What [`Transcript::from_history`] does with a history that is not whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Repair {
    /// Refuses it.
    Refuse,
    /// Gives a call without a result the outcome [`Unknown`](crate::ToolStatus::Unknown), brings a
    /// result that came late back to its call, and drops a result without a call, a second result
    /// and a call whose id stands twice.
    Close,
}

/// Why a history is not whole.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HistoryError {
    /// A call has no result, and is not in the last message.
    MissingResult(CallId),
    /// A result has no call before it.
    OrphanResult(CallId),
    /// A call has two results.
    DuplicateResult(CallId),
    /// Two calls of one message have the same id.
    DuplicateCall(CallId),
    /// A round has no call that needs an outcome.
    NoCalls,
    /// A message of [`Role::Tool`] holds something else than results.
    NotAResult,
}

impl fmt::Display for HistoryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MissingResult(id) => write!(f, "tool call `{id}` has no result"),
            Self::OrphanResult(id) => write!(f, "the result for `{id}` has no tool call before it"),
            Self::DuplicateResult(id) => write!(f, "tool call `{id}` has two results"),
            Self::DuplicateCall(id) => write!(f, "two tool calls have the id `{id}`"),
            Self::NoCalls => f.write_str("a round needs a tool call"),
            Self::NotAResult => f.write_str("a tool's message holds something else than results"),
        }
    }
}

impl StdError for HistoryError {}

pub(super) fn read(
    messages: impl IntoIterator<Item = Message>,
    repair: Repair,
) -> Result<History, HistoryError> {
    let refuse = repair == Repair::Refuse;
    let mut messages: Vec<Message> = messages.into_iter().collect();
    let mut results = take_results(&mut messages, refuse)?;
    let last = messages.len().saturating_sub(1);

    let mut transcript = Transcript::new();
    let mut open = None;
    for (at, mut message) in messages.into_iter().enumerate() {
        if !message.tool_calls().any(round::needs_outcome) {
            transcript.push(Turn::message(message)?);
            continue;
        }
        if !refuse {
            drop_repeated_calls(&mut message);
        }
        let mut calls = OpenRound::new(message)?;
        for (_, result) in results.extract_if(.., |(of, _)| *of == at) {
            match calls.settle(&result.call_id, result.outcome) {
                Err(error) if refuse => return Err(error),
                _ => {}
            }
        }
        let waiting = calls.waiting().next().map(|call| call.id.clone());
        match waiting {
            Some(_) if at == last => open = Some(calls),
            Some(id) if refuse => return Err(HistoryError::MissingResult(id)),
            _ => transcript.push(
                calls.close(|_| ToolOutcome::unknown("No result of this call was recorded.")),
            ),
        }
    }
    Ok(History { transcript, open })
}

/// Takes the results out of `messages`, each with the index of the message that makes its call.
fn take_results(
    messages: &mut Vec<Message>,
    refuse: bool,
) -> Result<Vec<(usize, ToolResult)>, HistoryError> {
    let mut results = Vec::new();
    let mut kept: Vec<Message> = Vec::with_capacity(messages.len());
    for mut message in messages.drain(..) {
        // Whose results belong to the message itself: calls that somebody else executed.
        let others: HashSet<CallId> = ids(&message, |call| !round::needs_outcome(call));
        let own: HashSet<CallId> = ids(&message, round::needs_outcome);
        let mut parts = Vec::with_capacity(message.parts.len());
        let taken = results.len();
        for part in message.parts {
            match part.kind {
                PartKind::ToolResult(result) if own.contains(&result.call_id) => {
                    results.push((kept.len(), result));
                }
                PartKind::ToolResult(result) if !others.contains(&result.call_id) => {
                    // The newest call of that id; only the last message's is in its place.
                    let of = kept
                        .iter()
                        .rposition(|m| m.tool_calls().any(|call| call.id == result.call_id));
                    match of {
                        Some(of) if !refuse || of + 1 == kept.len() => results.push((of, result)),
                        _ if refuse => return Err(HistoryError::OrphanResult(result.call_id)),
                        _ => {}
                    }
                }
                _ if message.role == Role::Tool && refuse => return Err(HistoryError::NotAResult),
                _ if message.role == Role::Tool => {}
                _ => parts.push(part),
            }
        }
        // A message that held nothing but results is gone with them.
        if message.role != Role::Tool && !(parts.is_empty() && results.len() > taken) {
            message.parts = parts;
            kept.push(message);
        }
    }
    *messages = kept;
    Ok(results)
}

fn ids(message: &Message, which: impl Fn(&ToolCallPart) -> bool) -> HashSet<CallId> {
    let calls = message.tool_calls().filter(|call| which(call));
    calls.map(|call| call.id.clone()).collect()
}

fn drop_repeated_calls(message: &mut Message) {
    let mut seen = HashSet::new();
    message.parts.retain(|part| match &part.kind {
        PartKind::ToolCall(call) => seen.insert(call.id.clone()),
        _ => true,
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Part;

    fn call(id: &str) -> Part {
        Part::new(PartKind::ToolCall(ToolCallPart::new(
            CallId::new(id),
            "t",
            "{}",
        )))
    }

    fn result(id: &str) -> Part {
        Part::new(PartKind::ToolResult(ToolResult::new(
            CallId::new(id),
            "t",
            ToolOutcome::done(id),
        )))
    }

    fn said(role: Role, parts: Vec<Part>) -> Message {
        Message::new(role, parts)
    }

    #[test]
    fn a_whole_history_is_kept() {
        let history = Transcript::from_history(
            [
                Message::user("hi"),
                said(Role::Assistant, vec![call("a"), call("b")]),
                said(Role::Tool, vec![result("b")]),
                said(Role::Tool, vec![result("a")]),
                Message::assistant("done"),
            ],
            Repair::Refuse,
        )
        .unwrap();
        assert_eq!(history.transcript.len(), 3);
        assert!(history.open.is_none());
        let round = history.transcript.iter().nth(1).unwrap();
        assert_eq!(round.results()[0].call_id.as_str(), "a");
    }

    #[test]
    fn the_last_message_may_be_open() {
        let history = Transcript::from_history(
            [
                said(Role::Assistant, vec![call("a"), call("b")]),
                said(Role::Tool, vec![result("b")]),
            ],
            Repair::Refuse,
        )
        .unwrap();
        let open = history.open.unwrap();
        assert_eq!(open.waiting().count(), 1);
    }

    #[test]
    fn a_broken_history_is_refused_or_repaired() {
        let broken = || {
            vec![
                said(Role::Assistant, vec![call("a"), call("a"), call("b")]),
                Message::user("never mind"),
                said(Role::Tool, vec![result("b"), result("zzz")]),
                Message::assistant("fine"),
            ]
        };
        assert!(Transcript::from_history(broken(), Repair::Refuse).is_err());
        let history = Transcript::from_history(broken(), Repair::Close).unwrap();
        assert_eq!(history.transcript.len(), 3);
        let round = history.transcript.iter().next().unwrap();
        assert_eq!(round.results().len(), 2);
    }
}
