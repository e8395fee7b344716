use super::turns;
use concentric_core::{
    BoxError, Message, Str, ToolCallPart, Turn,
    agent::{RoundDecision, StepDecision, StepDraft, StepGate, StepView},
    hooks::Interest,
};
use serde_json::{Value, json};
use std::collections::HashMap;

/// Detects a model that repeats the same tool call.
///
/// Two calls are the same if they name the same tool and have equal arguments. JSON arguments are
/// compared as values: the order of keys and white space are ignored, and numbers are equal if
/// serde_json parses them to the same value. Arguments that are not valid JSON are compared as
/// text.
///
/// Repetitions are counted over the last [rounds](Self::window) of the run and need not be
/// consecutive: in A, B, A, B, A the last call is the third A. Calls of the same answer count, and
/// so do calls that were denied or skipped. Calls that the provider or a nested agent executes are
/// ignored.
///
/// ```
/// use concentric_core::{AgentLayer, NoTools};
/// use concentric_layers::stop::LoopDetector;
///
/// let agent = AgentLayer::new(NoTools)
///     // The second identical call adds a warning, the fourth one halts the run.
///     .gate(LoopDetector::new(2).warn().named("loop_warning"))
///     .gate(LoopDetector::new(4));
/// # let _ = agent;
/// ```
#[derive(Clone, Debug)]
pub struct LoopDetector {
    name: Str,
    limit: u32,
    window: usize,
    action: Action,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Warn,
    Skip,
    Halt,
}

impl LoopDetector {
    /// Creates a detector that halts the run ([`Halted`](concentric_core::Outcome::Halted)) when a
    /// call is made for the `limit`th time (at least 2) within the last 8 rounds. No call of the
    /// round is executed, and the reason contains the name of the tool. The gate is named
    /// `loop_detector`.
    pub const fn new(limit: u32) -> Self {
        Self {
            name: Str::from_static("loop_detector"),
            limit: if limit < 2 { 2 } else { limit },
            window: 8,
            action: Action::Halt,
        }
    }

    /// Sets the number of rounds to compare, including the current one; the default is 8, the
    /// minimum 1.
    #[must_use]
    pub fn window(mut self, rounds: usize) -> Self {
        self.window = rounds.max(1);
        self
    }

    /// Executes the calls, and then warns the model with a message, instead of halting the run.
    #[must_use]
    pub const fn warn(mut self) -> Self {
        self.action = Action::Warn;
        self
    }

    /// Executes no call of the round, instead of halting the run. Their outcomes contain the reason.
    #[must_use]
    pub const fn skip(mut self) -> Self {
        self.action = Action::Skip;
        self
    }

    /// Sets the name of the gate, which must be unique within an agent.
    #[must_use]
    pub fn named(mut self, name: impl Into<Str>) -> Self {
        self.name = name.into();
        self
    }

    /// Returns a complaint if a call of the newest message, the first of `messages`, was made too
    /// often.
    fn complaint<'a>(&self, messages: impl Iterator<Item = &'a Message>) -> Option<String> {
        let mut messages = messages.take(self.window).peekable();
        let newest = *messages.peek()?;
        let mut counts: HashMap<String, u32> = HashMap::new();
        for call in messages.flat_map(turns::calls) {
            let count = counts.entry(signature(call)).or_default();
            *count = count.saturating_add(1);
        }
        turns::calls(newest).find_map(|call| {
            let count = *counts.get(&signature(call))?;
            (count >= self.limit).then(|| {
                let name = &call.name;
                format!("`{name}` was called {count} times with the same arguments")
            })
        })
    }
}

impl StepGate for LoopDetector {
    fn name(&self) -> &str {
        &self.name
    }

    fn interest(&self) -> Interest {
        Interest::BEFORE_STEP | Interest::BEFORE_ROUND
    }

    async fn before_step(&self, draft: &mut StepDraft) -> Result<StepDecision, BoxError> {
        let mut turns = turns::of_run(draft)?.peekable();
        let is_after_round = turns.peek().is_some_and(|turn| turn.as_round().is_some());
        if self.action == Action::Warn
            && is_after_round
            && let Some(complaint) = self.complaint(turns.filter_map(message_of_round))
        {
            let text = format!("{complaint}. Try something else, or answer.");
            draft.push(turns::said_by(&self.name, text)?);
        }
        Ok(StepDecision::Continue)
    }

    async fn before_round(&self, view: &StepView) -> Result<RoundDecision, BoxError> {
        if self.action == Action::Warn {
            return Ok(RoundDecision::Continue);
        }
        let before = turns::of_run(view)?.filter_map(message_of_round);
        let complaint = self.complaint(view.message.iter().chain(before));
        Ok(match (complaint, self.action) {
            (None, _) => RoundDecision::Continue,
            (Some(complaint), Action::Halt) => RoundDecision::halt(complaint),
            (Some(complaint), _) => RoundDecision::skip(format!(
                "The call was not run: {complaint}. Try something else, or answer."
            )),
        })
    }
}

fn message_of_round(turn: &Turn) -> Option<&Message> {
    turn.as_round().map(|round| round.message())
}

/// Returns a string that is equal for calls that count as the same.
fn signature(call: &ToolCallPart) -> String {
    let arguments = call.arguments.as_str();
    match serde_json::from_str(arguments) {
        Ok(value) => json!([call.name, sorted(value)]),
        Err(_) => json!([call.name, "not JSON", arguments]),
    }
    .to_string()
}

/// Sorts the keys of objects at every depth. The recursion is bounded, because serde_json accepts
/// at most 127 levels of nesting.
fn sorted(value: Value) -> Value {
    match value {
        Value::Object(entries) => {
            let sorted = entries.into_iter().map(|(key, value)| (key, sorted(value)));
            let mut entries: Vec<_> = sorted.collect();
            // With the feature `serde_json/preserve_order`, a map keeps its insertion order.
            entries.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
            entries.into_iter().collect()
        }
        Value::Array(items) => items.into_iter().map(sorted).collect(),
        other => other,
    }
}
