use super::{OpenRound, Transcript, Turn, round};
use crate::{
    error::{Error, ErrorKind},
    id::CallId,
    message::{Message, PartKind, Role, ToolCallPart, ToolOutcome, ToolResult},
};
use std::{
    collections::{HashMap, HashSet},
    error::Error as StdError,
    fmt,
};

/// How [`Transcript::from_history`] treats an incomplete history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Repair {
    /// Returns an error.
    Refuse,
    /// Gives a call without a result the outcome [`Unknown`](crate::ToolStatus::Unknown), moves a
    /// late result to its call, and drops results without a call, duplicate results and calls with
    /// a duplicate id.
    Close,
}

/// The reason why a history is invalid.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HistoryError {
    /// A call outside the last message has no result.
    MissingResult(CallId),
    /// A result has no preceding call.
    OrphanResult(CallId),
    /// A call has two results.
    DuplicateResult(CallId),
    /// Two calls of one message have the same id.
    DuplicateCall(CallId),
    /// A round has no call that requires an outcome.
    NoCalls,
    /// A message of [`Role::Tool`] contains parts other than results.
    NotAResult,
    /// A [rewrite](Transcript::rewrite) replaces more turns than the conversation has.
    TooShort {
        /// The number of turns to replace.
        replaced: usize,
        /// The number of turns of the conversation.
        len: usize,
    },
}

impl fmt::Display for HistoryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MissingResult(id) => write!(f, "tool call `{id}` has no result"),
            Self::OrphanResult(id) => write!(f, "result `{id}` has no preceding tool call"),
            Self::DuplicateResult(id) => write!(f, "tool call `{id}` has two results"),
            Self::DuplicateCall(id) => write!(f, "duplicate tool call id `{id}`"),
            Self::NoCalls => f.write_str("a round must contain at least one tool call"),
            Self::NotAResult => f.write_str("a tool message must contain only tool results"),
            Self::TooShort { replaced, len } => {
                write!(
                    f,
                    "cannot replace {replaced} turns of a conversation of {len}"
                )
            }
        }
    }
}

impl StdError for HistoryError {}

impl From<HistoryError> for Error {
    fn from(error: HistoryError) -> Self {
        Self::new(ErrorKind::InvalidRequest, error.to_string()).with_source(error)
    }
}

pub(super) fn read(
    messages: impl IntoIterator<Item = Message>,
    repair: Repair,
) -> Result<(Transcript, Option<OpenRound>), HistoryError> {
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
        let settled = calls.settle_all(results.remove(&at).unwrap_or_default());
        if refuse {
            settled?;
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
    Ok((transcript, open))
}

/// Takes the results out of `messages`, indexed by the message that makes their calls.
fn take_results(
    messages: &mut Vec<Message>,
    refuse: bool,
) -> Result<HashMap<usize, Vec<ToolResult>>, HistoryError> {
    let mut results: HashMap<usize, Vec<ToolResult>> = HashMap::new();
    let mut kept: Vec<Message> = Vec::with_capacity(messages.len());
    // The message with the newest call of each id, as an index into `kept`.
    let mut newest: HashMap<CallId, usize> = HashMap::new();
    for mut message in messages.drain(..) {
        // Results of these calls stay in the message: the loop did not execute them.
        let others: HashSet<CallId> = ids(&message, |call| !round::needs_outcome(call));
        let own: HashSet<CallId> = ids(&message, round::needs_outcome);
        let mut parts = Vec::with_capacity(message.parts.len());
        let mut has_results = false;
        for part in message.parts {
            match part.kind {
                PartKind::ToolResult(result) if own.contains(&result.call_id) => {
                    results.entry(kept.len()).or_default().push(result);
                    has_results = true;
                }
                PartKind::ToolResult(result) if !others.contains(&result.call_id) => {
                    match newest.get(&result.call_id) {
                        // In a valid history, results directly follow the message with their calls.
                        Some(of) if !refuse || of + 1 == kept.len() => {
                            results.entry(*of).or_default().push(result);
                            has_results = true;
                        }
                        _ if refuse => return Err(HistoryError::OrphanResult(result.call_id)),
                        _ => {}
                    }
                }
                _ if message.role == Role::Tool && refuse => return Err(HistoryError::NotAResult),
                _ if message.role == Role::Tool => {}
                _ => parts.push(part),
            }
        }
        // A message that contained only results is now empty.
        if message.role != Role::Tool && !(parts.is_empty() && has_results) {
            message.parts = parts;
            let calls = message.tool_calls().map(|call| call.id.clone());
            newest.extend(calls.map(|id| (id, kept.len())));
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
    use crate::{
        message::{Executor, Part, ToolStatus},
        transcript::Round,
    };

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

    fn message(role: Role, parts: Vec<Part>) -> Message {
        Message::new(role, parts)
    }

    #[test]
    fn a_complete_history_is_preserved() {
        let (transcript, open) = Transcript::from_history(
            [
                Message::user("hi"),
                message(Role::Assistant, vec![call("a"), call("b")]),
                message(Role::Tool, vec![result("b")]),
                message(Role::Tool, vec![result("a")]),
                Message::assistant("done"),
            ],
            Repair::Refuse,
        )
        .unwrap();
        assert_eq!(transcript.len(), 3);
        assert!(open.is_none());
        let round = transcript.iter().nth(1).unwrap();
        assert_eq!(round.results()[0].call_id.as_str(), "a");
    }

    #[test]
    fn the_last_message_may_be_open() {
        let (_, open) = Transcript::from_history(
            [
                message(Role::Assistant, vec![call("a"), call("b")]),
                message(Role::Tool, vec![result("b")]),
            ],
            Repair::Refuse,
        )
        .unwrap();
        assert_eq!(open.unwrap().waiting().count(), 1);
    }

    /// Large enough that quadratic time would be noticed.
    const MANY: usize = 40_000;

    fn many(part: fn(&str) -> Part) -> impl DoubleEndedIterator<Item = Part> + Clone {
        (0..MANY).map(move |n| part(&format!("c{n}")))
    }

    #[test]
    fn a_message_with_many_calls_is_read() {
        let calls = || message(Role::Assistant, many(call).collect());
        // All results in one message, and each in a message of its own.
        let together = vec![message(Role::Tool, many(result).rev().collect())];
        let apart = many(result).map(|part| message(Role::Tool, vec![part]));
        for results in [together, apart.collect()] {
            for repair in [Repair::Refuse, Repair::Close] {
                let whole = [calls()].into_iter().chain(results.clone());
                let (transcript, open) = Transcript::from_history(whole, repair).unwrap();
                assert!(open.is_none());
                let results = transcript.last().unwrap().results();
                assert_eq!(results.len(), MANY);
                assert_eq!(results[7].call_id.as_str(), "c7");
            }
        }
        let missing = [calls(), message(Role::Tool, many(result).skip(1).collect())];
        let (_, open) = Transcript::from_history(missing, Repair::Refuse).unwrap();
        assert_eq!(open.unwrap().waiting().count(), 1);
    }

    #[test]
    fn many_messages_with_one_call_each_are_read() {
        let calls = many(call).map(|part| message(Role::Assistant, vec![part]));
        let results = many(result).map(|part| message(Role::Tool, vec![part]));
        let in_turn = calls.clone().zip(results.clone());
        let in_turn = in_turn.flat_map(|(call, result)| [call, result]);
        let (transcript, _) = Transcript::from_history(in_turn, Repair::Refuse).unwrap();
        assert_eq!(transcript.len(), MANY);
        // All results after all calls.
        let late = calls.chain(results);
        let (transcript, _) = Transcript::from_history(late, Repair::Close).unwrap();
        assert_eq!(transcript.len(), MANY);
        let done = transcript.rev().flat_map(Turn::results);
        let done = done.filter(|result| result.outcome.status == ToolStatus::Done);
        assert_eq!(done.count(), MANY);
    }

    #[test]
    fn many_results_in_the_message_of_their_calls_are_read() {
        let elsewhere = many(call).map(|mut part| {
            if let PartKind::ToolCall(call) = &mut part.kind {
                call.executor = Executor::Provider;
            }
            part
        });
        let message = message(Role::Assistant, elsewhere.chain(many(result)).collect());
        let (transcript, _) = Transcript::from_history([message], Repair::Refuse).unwrap();
        assert_eq!(transcript.len(), 1);
    }

    #[test]
    fn a_round_with_many_calls_round_trips() {
        let calls = || message(Role::Assistant, many(call).collect());
        let results = many(result).filter_map(|part| match part.kind {
            PartKind::ToolResult(result) => Some(result),
            _ => None,
        });
        let results: Vec<ToolResult> = results.collect();
        let round = Round::new(calls(), results.iter().rev().cloned().collect()).unwrap();
        assert_eq!(round.results(), results);

        let mut open = OpenRound::new(calls()).unwrap();
        open.settle_all(results).unwrap();
        let json = serde_json::to_string(&open).unwrap();
        assert_eq!(serde_json::from_str::<OpenRound>(&json).unwrap(), open);
    }

    #[test]
    fn an_invalid_result_is_reported_by_its_id() {
        let with = |results: &[&str]| {
            let results = results.iter().map(|id| {
                let outcome = ToolOutcome::done(*id);
                ToolResult::new(CallId::new(*id), "t", outcome)
            });
            let message = message(Role::Assistant, vec![call("a"), call("b")]);
            Round::new(message, results.collect()).unwrap_err()
        };
        let id = CallId::new;
        assert_eq!(with(&["b", "x"]), HistoryError::MissingResult(id("a")));
        assert_eq!(
            with(&["x", "b", "a", "a"]),
            HistoryError::OrphanResult(id("x"))
        );
        assert_eq!(
            with(&["b", "a", "a", "x"]),
            HistoryError::DuplicateResult(id("a"))
        );

        let message = message(Role::Assistant, vec![call("a"), call("b")]);
        let mut open = OpenRound::new(message).unwrap();
        let results = ["x", "a", "a", "b"].map(|id| {
            let outcome = ToolOutcome::done(id);
            ToolResult::new(CallId::new(id), "t", outcome)
        });
        let settled = open.settle_all(results.to_vec());
        assert_eq!(settled, Err(HistoryError::OrphanResult(id("x"))));
        assert_eq!(open.waiting().count(), 0, "valid results are applied");
    }

    #[test]
    fn an_invalid_history_is_rejected_or_repaired() {
        let broken = || {
            vec![
                message(Role::Assistant, vec![call("a"), call("a"), call("b")]),
                Message::user("never mind"),
                message(Role::Tool, vec![result("b"), result("zzz")]),
                Message::assistant("fine"),
            ]
        };
        assert!(Transcript::from_history(broken(), Repair::Refuse).is_err());
        let (transcript, _) = Transcript::from_history(broken(), Repair::Close).unwrap();
        assert_eq!(transcript.len(), 3);
        let round = transcript.iter().next().unwrap();
        assert_eq!(round.results().len(), 2);
    }
}
