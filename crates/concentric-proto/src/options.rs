//! The parts of a request beside the conversation: system text and options.

use crate::text::Str;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::sync::{Arc, LazyLock};

/// What a model is told before the conversation, in order; cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct System(Arc<Vec<SystemSegment>>);

impl Default for System {
    /// No segments; allocates nothing.
    fn default() -> Self {
        static NONE: LazyLock<System> = LazyLock::new(|| System(Arc::default()));
        NONE.clone()
    }
}

impl System {
    /// Adds a segment at the end.
    pub fn push(&mut self, segment: SystemSegment) {
        Arc::make_mut(&mut self.0).push(segment);
    }

    /// Adds a segment at the start.
    pub fn push_front(&mut self, segment: SystemSegment) {
        Arc::make_mut(&mut self.0).insert(0, segment);
    }

    /// The segments, in order.
    pub fn iter(&self) -> std::slice::Iter<'_, SystemSegment> {
        self.0.iter()
    }

    /// Whether no segment has text.
    pub fn is_empty(&self) -> bool {
        self.texts().next().is_none()
    }

    /// The segments that have text as one text, with a blank line between two.
    pub fn text(&self) -> String {
        self.texts().collect::<Vec<_>>().join("\n\n")
    }

    fn texts(&self) -> impl Iterator<Item = &str> {
        let texts = self.iter().map(|segment| segment.text.as_str());
        texts.filter(|text| !text.is_empty())
    }
}

impl<'a> IntoIterator for &'a System {
    type Item = &'a SystemSegment;
    type IntoIter = std::slice::Iter<'a, SystemSegment>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// One piece of what a model is told before the conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SystemSegment {
    /// What it says.
    pub text: Str,
    /// How long it stays the same, which decides what a provider may cache.
    #[serde(default)]
    pub stability: Stability,
}

impl SystemSegment {
    /// Creates a segment that is always the same.
    pub fn new(text: impl Into<Str>) -> Self {
        Self {
            text: text.into(),
            stability: Stability::Fixed,
        }
    }

    /// Says how long it stays the same.
    #[must_use]
    pub fn stable_for(mut self, stability: Stability) -> Self {
        self.stability = stability;
        self
    }
}

/// How long a [`SystemSegment`] stays the same.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Stability {
    /// Always: instructions.
    #[default]
    Fixed,
    /// For a conversation: who the user is.
    Thread,
    /// For a run: what was recalled.
    Run,
    /// For a model call: the time of day.
    Step,
}

/// How a model is to answer. What is `None` is left to the provider.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct ChatOptions {
    /// The model (`gen_ai.request.model`).
    pub model: Option<Str>,
    /// Whether it must call a tool, and which.
    pub tool_choice: Option<ToolChoice>,
    /// Whether it may make several calls in one answer.
    pub parallel_tool_calls: Option<bool>,
    /// The JSON Schema its text must match.
    pub output_schema: Option<OutputSchema>,
    /// The most tokens it may write (`gen_ai.request.max_tokens`).
    pub max_output_tokens: Option<u32>,
    /// `gen_ai.request.temperature`.
    pub temperature: Option<f32>,
    /// `gen_ai.request.top_p`.
    pub top_p: Option<f32>,
    /// `gen_ai.request.frequency_penalty`.
    pub frequency_penalty: Option<f32>,
    /// `gen_ai.request.presence_penalty`.
    pub presence_penalty: Option<f32>,
    /// Texts that end the answer (`gen_ai.request.stop_sequences`).
    pub stop: Vec<Str>,
    /// `gen_ai.request.seed`.
    pub seed: Option<i64>,
    /// How much it is to reason, in the provider's words: `low`, `medium`, `high`.
    pub reasoning_effort: Option<Str>,
    /// Fields of the provider's own request, which go into it as they are and win.
    pub provider: Map<String, Value>,
    /// What the host wants to know about the request later; the provider is sent it where it takes
    /// such.
    pub metadata: Map<String, Value>,
}

impl ChatOptions {
    /// No options; allocates nothing.
    pub fn none() -> Arc<Self> {
        static NONE: LazyLock<Arc<ChatOptions>> = LazyLock::new(Arc::default);
        NONE.clone()
    }
}

/// Whether a model must call a tool, and which.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ToolChoice {
    /// As it likes.
    Auto,
    /// None.
    None,
    /// At least one.
    Required,
    /// This one.
    Tool(Str),
}

/// The JSON Schema of a model's answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct OutputSchema {
    /// Names the schema.
    pub name: Str,
    /// The schema, of an object.
    pub schema: Arc<Value>,
    /// Whether the provider is to enforce it to the letter.
    pub strict: bool,
}

impl OutputSchema {
    /// Creates a schema that the provider is to enforce.
    pub fn new(name: impl Into<Str>, schema: impl Into<Arc<Value>>) -> Self {
        Self {
            name: name.into(),
            schema: schema.into(),
            strict: true,
        }
    }
}
