use super::turns;
use concentric_core::{
    BoxError, Message, Str, ToolCallPart, Turn,
    agent::{BeforeRound, BeforeStep, StepGate, StepView},
};
use serde_json::{Value, json};
use std::collections::HashMap;

/// Notices that a model makes the same call again and again.
///
/// Two calls are the same if they are of one tool and their arguments say the same: the order of keys,
/// at any depth, and white space make no difference, and numbers are the same if serde_json reads them
/// so. Arguments that are not JSON are the same if their text is.
///
/// Each call is counted by itself, over the last [few rounds](Self::window) of the run, whatever was
/// called between: in A, B, A, B, A the last is the third A. Calls of one answer count, too, and those
/// that were denied or skipped. The calls of an agent in the model's place, and of the provider, are
/// not looked at.
///
/// ```
/// use concentric_core::{AgentLayer, NoTools};
/// use concentric_layers::stop::{LoopAction, LoopDetector};
///
/// let agent = AgentLayer::new(NoTools)
///     // The second time the model is told, the fourth time is the last.
///     .gate(LoopDetector::new(2).action(LoopAction::Warn).named("loop_warning"))
///     .gate(LoopDetector::new(4));
/// # let _ = agent;
/// ```
#[derive(Clone, Debug)]
pub struct LoopDetector {
    name: Str,
    limit: u32,
    window: usize,
    action: LoopAction,
}

/// What a [`LoopDetector`] does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum LoopAction {
    /// The calls are run, and then the model is told to try something else.
    Warn,
    /// No call of the round is run, and the model is told why.
    Skip,
    /// No call of the round is run, and the run is stopped
    /// ([`Halted`](concentric_core::Outcome::Halted)); the reason names the tool.
    #[default]
    Halt,
}

impl LoopDetector {
    /// Creates a detector that acts when a call is made for the `limit`th time, of the last 8 rounds;
    /// the least is 2. It halts the run. The gate's name is `loop_detector`.
    pub const fn new(limit: u32) -> Self {
        Self {
            name: Str::from_static("loop_detector"),
            limit: if limit < 2 { 2 } else { limit },
            window: 8,
            action: LoopAction::Halt,
        }
    }

    /// Sets how many rounds back it looks, this one included; the default is 8, the least 1.
    #[must_use]
    pub fn window(mut self, rounds: usize) -> Self {
        self.window = rounds.max(1);
        self
    }

    /// Sets what it does; the default is [`Halt`](LoopAction::Halt).
    #[must_use]
    pub fn action(mut self, action: LoopAction) -> Self {
        self.action = action;
        self
    }

    /// Names the gate, if an agent has several.
    #[must_use]
    pub fn named(mut self, name: impl Into<Str>) -> Self {
        self.name = name.into();
        self
    }

    /// What there is to say of the first of `messages`, the newest, if one of its calls was made too
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

    async fn before_step(&self, step: &StepView) -> Result<BeforeStep, BoxError> {
        let mut turns = turns::of_run(step)?.peekable();
        let is_after_round = turns.peek().is_some_and(|turn| turn.as_round().is_some());
        if self.action != LoopAction::Warn || !is_after_round {
            return Ok(BeforeStep::Continue);
        }
        Ok(match self.complaint(turns.filter_map(message_of_round)) {
            None => BeforeStep::Continue,
            Some(complaint) => {
                let text = format!("{complaint}. Try something else, or answer.");
                BeforeStep::Say(vec![turns::said_by(&self.name, text)?])
            }
        })
    }

    async fn before_round(&self, step: &StepView) -> Result<BeforeRound, BoxError> {
        if self.action == LoopAction::Warn {
            return Ok(BeforeRound::Continue);
        }
        let before = turns::of_run(step)?.filter_map(message_of_round);
        let complaint = self.complaint(step.message.iter().chain(before));
        Ok(match (complaint, self.action) {
            (None, _) => BeforeRound::Continue,
            (Some(complaint), LoopAction::Halt) => BeforeRound::halt(complaint),
            (Some(complaint), _) => BeforeRound::skip(format!(
                "The call was not run: {complaint}. Try something else, or answer."
            )),
        })
    }
}

fn message_of_round(turn: &Turn) -> Option<&Message> {
    turn.as_round().map(|round| round.message())
}

/// What two calls have in common that are the same.
fn signature(call: &ToolCallPart) -> String {
    let arguments = call.arguments.as_str();
    match serde_json::from_str(arguments) {
        Ok(value) => json!([call.name, sorted(value)]),
        Err(_) => json!([call.name, "not JSON", arguments]),
    }
    .to_string()
}

/// The same value, with its keys in order at every depth; serde_json reads none that is nested deeper
/// than 127 levels.
fn sorted(value: Value) -> Value {
    match value {
        Value::Object(entries) => {
            let sorted = entries.into_iter().map(|(key, value)| (key, sorted(value)));
            let mut entries: Vec<_> = sorted.collect();
            // A map may keep the order in which it is filled (`serde_json/preserve_order`).
            entries.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
            entries.into_iter().collect()
        }
        Value::Array(items) => items.into_iter().map(sorted).collect(),
        other => other,
    }
}
