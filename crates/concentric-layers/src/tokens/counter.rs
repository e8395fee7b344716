use concentric_core::{
    ChatRequest, Part, PartKind, ToolContent, ToolResult, ToolSpec, Turn, Usage,
};
use std::sync::Arc;

/// The assumed tokens of content other than text.
const IMAGE: u64 = 1_000;
const AUDIO: u64 = 500;
const FILE: u64 = 3_000;
const OTHER: u64 = 1_000;

/// The tokens that a chat format adds to each message.
const MESSAGE: u64 = 4;

/// Counts the tokens of requests.
///
/// Only [`text`](Self::text) is required. A counter is shared by many runs, as `Arc<dyn TokenCounter>`.
///
/// ```
/// use concentric_layers::tokens::TokenCounter;
///
/// /// A model whose tokens are words.
/// struct Words;
///
/// impl TokenCounter for Words {
///     fn text(&self, text: &str) -> u64 {
///         text.split_whitespace().count() as u64
///     }
/// }
/// ```
pub trait TokenCounter: Send + Sync + 'static {
    /// Counts a text.
    fn text(&self, text: &str) -> u64;

    /// Counts a turn: by default the text, 1,000 tokens for an image, 500 for an audio clip, 3,000 for a
    /// document, and 4 for each message.
    fn turn(&self, turn: &Turn) -> u64 {
        let parts = turn.as_message().parts.iter().map(|it| part(self, it));
        let results = turn.results().iter().map(|it| MESSAGE + result(self, it));
        MESSAGE + parts.sum::<u64>() + results.sum::<u64>()
    }

    /// Counts the system prompt and the tools of a request.
    fn prompt(&self, request: &ChatRequest) -> u64 {
        let system = request.system.iter().map(|it| self.text(&it.text));
        let tools = request.tools.iter().map(|it| tool(self, it));
        system.sum::<u64>() + tools.sum::<u64>()
    }

    /// Counts a whole request, [corrected](Self::corrected).
    ///
    /// The layers of this crate count each turn once: they keep the sum of the turns before it.
    fn request(&self, request: &ChatRequest) -> u64 {
        let turns = request.transcript.rev().map(|turn| self.turn(turn));
        let count = self.prompt(request) + turns.sum::<u64>();
        self.corrected(request.options.model.as_deref(), count)
    }

    /// Whether a request has at most `limit` tokens.
    fn fits(&self, request: &ChatRequest, limit: u64) -> bool {
        self.request(request) <= limit
    }

    /// Corrects a count by what was [observed](Self::observe) of the model that requests name
    /// ([`ChatOptions::model`](concentric_core::ChatOptions::model)).
    fn corrected(&self, model: Option<&str>, count: u64) -> u64 {
        let _ = model;
        count
    }

    /// Records the usage that a provider reported for a request, and the `count` that was not corrected.
    fn observe(&self, model: Option<&str>, count: u64, usage: &Usage) {
        let _ = (model, count, usage);
    }
}

impl<T> TokenCounter for Arc<T>
where
    T: TokenCounter + ?Sized,
{
    fn text(&self, text: &str) -> u64 {
        T::text(self, text)
    }

    fn turn(&self, turn: &Turn) -> u64 {
        T::turn(self, turn)
    }

    fn prompt(&self, request: &ChatRequest) -> u64 {
        T::prompt(self, request)
    }

    fn request(&self, request: &ChatRequest) -> u64 {
        T::request(self, request)
    }

    fn fits(&self, request: &ChatRequest, limit: u64) -> bool {
        T::fits(self, request, limit)
    }

    fn corrected(&self, model: Option<&str>, count: u64) -> u64 {
        T::corrected(self, model, count)
    }

    fn observe(&self, model: Option<&str>, count: u64, usage: &Usage) {
        T::observe(self, model, count, usage);
    }
}

fn part<C>(counter: &C, part: &Part) -> u64
where
    C: TokenCounter + ?Sized,
{
    match &part.kind {
        PartKind::Text(text) | PartKind::Reasoning(text) | PartKind::Refusal(text) => {
            counter.text(text)
        }
        PartKind::ToolCall(call) => {
            counter.text(&call.name) + counter.text(call.arguments.as_str())
        }
        PartKind::ToolResult(of) => result(counter, of),
        PartKind::Image(_) => IMAGE,
        PartKind::Audio(_) => AUDIO,
        PartKind::File(_) => FILE,
        _ => OTHER,
    }
}

fn result<C>(counter: &C, result: &ToolResult) -> u64
where
    C: TokenCounter + ?Sized,
{
    match &result.outcome.content {
        ToolContent::Text(text) => counter.text(text),
        ToolContent::Parts(parts) => parts.iter().map(|it| part(counter, it)).sum(),
        _ => OTHER,
    }
}

fn tool<C>(counter: &C, tool: &ToolSpec) -> u64
where
    C: TokenCounter + ?Sized,
{
    let schema = counter.text(&tool.input_schema.to_string());
    counter.text(&tool.name) + counter.text(&tool.description) + schema
}
