use super::{Media, Part, PartKind};
use crate::text::Str;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::sync::Arc;

/// The outcome of one tool call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ToolOutcome {
    /// Whether the call succeeded, and if not, why.
    pub status: ToolStatus,
    /// The content that is sent to the model.
    pub content: ToolContent,
    /// Structured data for observers and user interfaces; not sent to the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Arc<Value>>,
    /// The reason to halt the run when the round is closed, if the outcome halts it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub halt: Option<Str>,
    /// Excludes the step that made the call from the step limit, if this is set for all calls of
    /// the step.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub free: bool,
    /// The supplier of the outcome.
    #[serde(default, skip_serializing_if = "OutcomeSource::is_executor")]
    pub source: OutcomeSource,
}

/// The supplier of a [`ToolOutcome`].
///
/// Outcomes in a history from a client always count as [`Executor`](Self::Executor).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum OutcomeSource {
    /// The executor of the call, or the layer that rejected the call.
    #[default]
    Executor,
    /// A person, who supplied the result instead of the tool by a reply to an interrupt.
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

    /// Creates the outcome of a successful call. The model receives `content`.
    pub fn done(content: impl Into<ToolContent>) -> Self {
        Self::new(ToolStatus::Done, content.into())
    }

    /// Creates the outcome of a failed or invalid call. The model receives `message`.
    pub fn failed(message: impl Into<Str>) -> Self {
        Self::new(ToolStatus::Failed, ToolContent::Text(message.into()))
    }

    /// Creates the outcome of a call that was not allowed. The model receives `reason`.
    pub fn denied(reason: impl Into<Str>) -> Self {
        Self::new(ToolStatus::Denied, ToolContent::Text(reason.into()))
    }

    /// Creates the outcome of a call that was cancelled before it completed. The model receives
    /// `reason`.
    pub fn cancelled(reason: impl Into<Str>) -> Self {
        Self::new(ToolStatus::Cancelled, ToolContent::Text(reason.into()))
    }

    /// Creates the outcome of a call that was started and whose result is unknown. The model
    /// receives `reason`.
    pub fn unknown(reason: impl Into<Str>) -> Self {
        Self::new(ToolStatus::Unknown, ToolContent::Text(reason.into()))
    }

    /// Creates the outcome of a call that may have executed earlier and is not retried.
    pub fn indeterminate() -> Self {
        Self::unknown(Str::from_static(INDETERMINATE))
    }

    /// Converts the outcome of a call that may have executed earlier: unless it is known, it becomes
    /// unknown, with the text of `self` as the reason.
    #[must_use]
    pub fn into_indeterminate(mut self) -> Self {
        if !matches!(self.status, ToolStatus::Done | ToolStatus::Unknown) {
            let text = format!("{INDETERMINATE} {}", self.content.text());
            self.status = ToolStatus::Unknown;
            self.content = ToolContent::Text(text.into());
        }
        self
    }

    /// Creates the outcome of a successful call from a JSON value. The model receives a string as
    /// plain text and other values as JSON.
    pub fn of_value(result: &Value) -> Self {
        match result {
            Value::String(text) => Self::done(text.as_str()),
            other => Self::done(other.to_string()),
        }
    }

    /// Creates the outcome of a call whose result a person supplied instead of the tool.
    ///
    /// Both the [source](Self::source) and the text that the model receives record this.
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

    /// Attaches structured data that is not sent to the model.
    #[must_use]
    pub fn with_data(mut self, data: impl Into<Arc<Value>>) -> Self {
        self.data = Some(data.into());
        self
    }

    /// Excludes the step that made the call from the step limit, such as for a tool that only loads
    /// instructions.
    #[must_use]
    pub fn free_of_charge(mut self) -> Self {
        self.free = true;
        self
    }

    /// Halts the run once the round is closed.
    #[must_use]
    pub fn and_halt(mut self, reason: impl Into<Str>) -> Self {
        self.halt = Some(reason.into());
        self
    }
}

/// The text for the model of a call that may have executed earlier and is not retried.
const INDETERMINATE: &str =
    "This call was started earlier and its outcome is unknown. It was not retried.";

/// The status of a tool call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ToolStatus {
    /// The tool succeeded.
    Done,
    /// The tool failed, or the call was invalid.
    Failed,
    /// The call was not allowed.
    Denied,
    /// The call was cancelled.
    Cancelled,
    /// The call was started, and its result is unknown.
    Unknown,
}

/// The content of a tool outcome, as it is sent to the model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ToolContent {
    /// Text, which may be JSON.
    Text(Str),
    /// Text, images and other parts.
    Parts(Vec<Part>),
}

impl ToolContent {
    /// Returns the concatenated text.
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

    /// Iterates over the images.
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
