use super::{Media, Part, PartKind};
use crate::text::Str;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::sync::Arc;

/// What came of one tool call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ToolOutcome {
    /// How it went.
    pub status: ToolStatus,
    /// What the model is told.
    pub content: ToolContent,
    /// Structured data for observers and user interfaces; the model does not see it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Arc<Value>>,
    /// The run ends when the round is closed, for this reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub halt: Option<Str>,
    /// The step that made the call is not charged to the step limit, if this holds for all of its
    /// calls.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub free: bool,
    /// Who supplied it.
    #[serde(default, skip_serializing_if = "OutcomeSource::is_executor")]
    pub source: OutcomeSource,
}

/// Who supplied a [`ToolOutcome`].
///
/// A history that a client writes never says so: what it brings counts as its executor's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum OutcomeSource {
    /// Whoever executes the call: its tool, or what decided that it does not run.
    #[default]
    Executor,
    /// A person, in the tool's place: by the reply to a question about the call.
    Person,
}

impl OutcomeSource {
    #[expect(
        clippy::trivially_copy_pass_by_ref,
        reason = "serde passes a reference"
    )]
    const fn is_executor(&self) -> bool {
        matches!(self, Self::Executor)
    }
}

impl ToolOutcome {
    fn new(status: ToolStatus, content: ToolContent) -> Self {
        Self {
            status,
            content,
            data: None,
            halt: None,
            free: false,
            source: OutcomeSource::Executor,
        }
    }

    /// The tool did its work, and says this to the model.
    pub fn done(content: impl Into<ToolContent>) -> Self {
        Self::new(ToolStatus::Done, content.into())
    }

    /// The tool, or the call, failed; the model is told why.
    pub fn failed(message: impl Into<Str>) -> Self {
        Self::new(ToolStatus::Failed, ToolContent::Text(message.into()))
    }

    /// The call was not allowed; the model is told why.
    pub fn denied(reason: impl Into<Str>) -> Self {
        Self::new(ToolStatus::Denied, ToolContent::Text(reason.into()))
    }

    /// The call was given up before it was done.
    pub fn cancelled(reason: impl Into<Str>) -> Self {
        Self::new(ToolStatus::Cancelled, ToolContent::Text(reason.into()))
    }

    /// The tool was started, and nobody knows what it did.
    pub fn unknown(reason: impl Into<Str>) -> Self {
        Self::new(ToolStatus::Unknown, ToolContent::Text(reason.into()))
    }

    /// The tool did its work, and this is its result: the model reads a string as it is, and the
    /// rest as JSON.
    pub fn of_value(result: &Value) -> Self {
        match result {
            Value::String(text) => Self::done(text.as_str()),
            other => Self::done(other.to_string()),
        }
    }

    /// A result that a person supplied in the tool's place: its [source](Self::source) says so, and
    /// so does the text that the model reads.
    ///
    /// ```
    /// use concentric_proto::{OutcomeSource, ToolOutcome};
    ///
    /// let outcome = ToolOutcome::by_person(&"paid in cash".into());
    /// assert_eq!(outcome.source, OutcomeSource::Person);
    /// assert_eq!(
    ///     outcome.content.text(),
    ///     "A person supplied this result, not the tool:\npaid in cash"
    /// );
    /// ```
    pub fn by_person(result: &Value) -> Self {
        let text = match result {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let mut outcome = Self::done(format!(
            "A person supplied this result, not the tool:\n{text}"
        ));
        outcome.source = OutcomeSource::Person;
        outcome
    }

    /// Attaches structured data that the model does not see.
    #[must_use]
    pub fn with_data(mut self, data: impl Into<Arc<Value>>) -> Self {
        self.data = Some(data.into());
        self
    }

    /// Does not charge the step that made the call to the step limit, as for one that only loads
    /// instructions.
    #[must_use]
    pub fn free_of_charge(mut self) -> Self {
        self.free = true;
        self
    }

    /// Ends the run once the round is closed.
    #[must_use]
    pub fn and_halt(mut self, reason: impl Into<Str>) -> Self {
        self.halt = Some(reason.into());
        self
    }
}

/// How a tool call went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ToolStatus {
    /// The tool did its work.
    Done,
    /// The tool failed, or the call was wrong.
    Failed,
    /// The call was not allowed.
    Denied,
    /// The call was given up.
    Cancelled,
    /// Nobody knows.
    Unknown,
}

/// What a model is told of a tool call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ToolContent {
    /// Text, which may be JSON.
    Text(Str),
    /// Text, images and more.
    Parts(Vec<Part>),
}

impl ToolContent {
    /// The text in it, joined.
    pub fn text(&self) -> std::borrow::Cow<'_, str> {
        match self {
            Self::Text(text) => text.as_str().into(),
            Self::Parts(parts) => parts
                .iter()
                .filter_map(|part| match &part.kind {
                    PartKind::Text(text) => Some(text.as_str()),
                    _ => None,
                })
                .collect::<String>()
                .into(),
        }
    }

    /// The images in it.
    pub fn images(&self) -> impl Iterator<Item = &Media> {
        let parts = match self {
            Self::Text(_) => &[][..],
            Self::Parts(parts) => parts,
        };
        parts.iter().filter_map(|part| match &part.kind {
            PartKind::Image(image) => Some(image),
            _ => None,
        })
    }
}

impl From<Str> for ToolContent {
    fn from(text: Str) -> Self {
        Self::Text(text)
    }
}

impl From<&str> for ToolContent {
    fn from(text: &str) -> Self {
        Self::Text(text.into())
    }
}

impl From<String> for ToolContent {
    fn from(text: String) -> Self {
        Self::Text(text.into())
    }
}

impl From<Vec<Part>> for ToolContent {
    fn from(parts: Vec<Part>) -> Self {
        Self::Parts(parts)
    }
}
