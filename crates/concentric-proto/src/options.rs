//! The system text and the options of a request.

use crate::text::Str;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::sync::{Arc, LazyLock};

/// The system text of a request, in segments; cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct System(Arc<Vec<SystemSegment>>);

impl Default for System {
    /// Creates a system text without segments; does not allocate.
    fn default() -> Self {
        static NONE: LazyLock<System> = LazyLock::new(|| System(Arc::default()));
        NONE.clone()
    }
}

impl System {
    /// Appends a segment.
    pub fn push(&mut self, segment: SystemSegment) {
        Arc::make_mut(&mut self.0).push(segment);
    }

    /// Prepends a segment.
    pub fn push_front(&mut self, segment: SystemSegment) {
        Arc::make_mut(&mut self.0).insert(0, segment);
    }

    /// The segments, in order.
    pub fn iter(&self) -> std::slice::Iter<'_, SystemSegment> {
        self.0.iter()
    }

    /// Returns whether all segments are empty.
    pub fn is_empty(&self) -> bool {
        self.texts().next().is_none()
    }

    /// The text of the non-empty segments, separated by blank lines.
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

/// One segment of the system text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SystemSegment {
    /// The text.
    pub text: Str,
    /// How long the text stays the same, which determines what a provider can cache.
    #[serde(default)]
    pub stability: Stability,
}

impl SystemSegment {
    /// Creates a segment whose text never changes.
    pub fn new(text: impl Into<Str>) -> Self {
        Self {
            text: text.into(),
            stability: Stability::Fixed,
        }
    }

    /// Sets how long the text stays the same.
    #[must_use]
    pub fn stable_for(mut self, stability: Stability) -> Self {
        self.stability = stability;
        self
    }
}

/// How long the text of a [`SystemSegment`] stays the same.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Stability {
    /// The text never changes, such as instructions.
    #[default]
    Fixed,
    /// The text is fixed for a conversation, such as the user's name.
    Thread,
    /// The text is fixed for a run, such as recalled memories.
    Run,
    /// The text is fixed for one model call, such as the time of day.
    Step,
}

/// The options of a model call. The provider's default applies to options that are `None`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct ChatOptions {
    /// The model (`gen_ai.request.model`).
    pub model: Option<Str>,
    /// Whether the model must call a tool, and which one.
    pub tool_choice: Option<ToolChoice>,
    /// Whether the model may make several calls in one answer.
    pub parallel_tool_calls: Option<bool>,
    /// The JSON Schema that the answer must match.
    pub output_schema: Option<OutputSchema>,
    /// The maximum number of output tokens (`gen_ai.request.max_tokens`).
    pub max_output_tokens: Option<u32>,
    /// The sampling temperature (`gen_ai.request.temperature`).
    pub temperature: Option<f32>,
    /// The nucleus sampling probability (`gen_ai.request.top_p`).
    pub top_p: Option<f32>,
    /// The frequency penalty (`gen_ai.request.frequency_penalty`).
    pub frequency_penalty: Option<f32>,
    /// The presence penalty (`gen_ai.request.presence_penalty`).
    pub presence_penalty: Option<f32>,
    /// Stop sequences (`gen_ai.request.stop_sequences`).
    pub stop: Vec<Str>,
    /// The random seed (`gen_ai.request.seed`).
    pub seed: Option<i64>,
    /// The reasoning effort in the provider's terms, such as `low`, `medium` or `high`.
    pub reasoning_effort: Option<Str>,
    /// Fields of the provider's own request format. They are sent unchanged and override other
    /// options.
    pub provider: Map<String, Value>,
    /// The application's own metadata, sent to providers that accept metadata.
    pub metadata: Map<String, Value>,
}

impl ChatOptions {
    /// Returns empty options; does not allocate.
    pub fn none() -> Arc<Self> {
        static NONE: LazyLock<Arc<ChatOptions>> = LazyLock::new(Arc::default);
        NONE.clone()
    }
}

/// Whether a model must call a tool, and which one.
///
/// In a run of an agent, [`Required`](Self::Required) and [`Tool`](Self::Tool) apply until the agent has run a round of
/// tools. From then on, the model decides, so that it can end the run, unless a step gate or hook sets the choice again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ToolChoice {
    /// The model decides.
    Auto,
    /// The model must not call a tool.
    None,
    /// The model must call at least one tool.
    Required,
    /// The model must call this tool.
    Tool(Str),
}

/// The JSON Schema of a model's answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct OutputSchema {
    /// The name of the schema.
    pub name: Str,
    /// The schema, which must describe an object.
    pub schema: Arc<Value>,
    /// Whether the provider enforces the schema strictly.
    pub strict: bool,
}

impl OutputSchema {
    /// Creates a schema that the provider enforces strictly.
    pub fn new(name: impl Into<Str>, schema: impl Into<Arc<Value>>) -> Self {
        Self {
            name: name.into(),
            schema: schema.into(),
            strict: true,
        }
    }
}
