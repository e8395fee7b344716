use super::ToolOutcome;
use crate::{id::CallId, text::Str};
use serde::{Deserialize, Serialize};
use serde_json::{Value, value::RawValue};

/// A tool call as the model made it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ToolCallPart {
    /// The id of the call.
    pub id: CallId,
    /// The tool's name, as the model wrote it.
    pub name: Str,
    /// The arguments, as the model wrote them.
    pub arguments: Arguments,
    /// The executor of the call.
    #[serde(default)]
    pub executor: Executor,
    /// The provider's own id for the call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider_id: Option<Str>,
}

impl ToolCallPart {
    /// Creates a call for the loop to execute.
    pub fn new(id: CallId, name: impl Into<Str>, arguments: impl Into<Arguments>) -> Self {
        Self {
            id,
            name: name.into(),
            arguments: arguments.into(),
            executor: Executor::Loop,
            provider_id: None,
        }
    }

    /// Sets the executor of the call.
    #[must_use]
    pub fn executed_by(mut self, executor: Executor) -> Self {
        self.executor = executor;
        self
    }

    /// Sets the provider's own id for the call.
    #[must_use]
    pub fn with_provider_id(mut self, id: Option<Str>) -> Self {
        self.provider_id = id;
        self
    }
}

/// The party that executes a tool call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Executor {
    /// The loop that called the model.
    #[default]
    Loop,
    /// The provider, on its own servers.
    Provider,
    /// The client that sent the request.
    Client,
    /// An agent that is used as the model.
    Agent,
}

/// The arguments of a tool call, exactly as the model wrote them.
///
/// The text may be invalid JSON: empty, truncated, or two concatenated objects.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Arguments(Str);

impl Arguments {
    /// Creates arguments from any text.
    pub fn new(text: impl Into<Str>) -> Self {
        Self(text.into())
    }

    /// The text as the model wrote it.
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }

    /// Returns whether the text is one complete JSON value.
    pub fn is_json(&self) -> bool {
        serde_json::from_str::<&RawValue>(&self.0).is_ok()
    }

    /// The arguments to put into a history: the text itself if it is a JSON object, else `{}`.
    ///
    /// Providers reject all later requests of a conversation whose history contains arguments that
    /// are not valid JSON.
    pub fn for_history(&self) -> &str {
        let text = self.0.trim_start();
        if text.starts_with('{') && self.is_json() {
            &self.0
        } else {
            "{}"
        }
    }
}

impl From<Str> for Arguments {
    fn from(text: Str) -> Self {
        Self(text)
    }
}

impl From<&str> for Arguments {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

impl From<String> for Arguments {
    fn from(text: String) -> Self {
        Self(text.into())
    }
}

impl From<Value> for Arguments {
    fn from(value: Value) -> Self {
        Self(value.to_string().into())
    }
}

/// The outcome of one tool call, with the id of the call and the name of the tool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ToolResult {
    /// The id of the call.
    pub call_id: CallId,
    /// The tool's name.
    pub name: Str,
    /// The outcome of the call.
    pub outcome: ToolOutcome,
}

impl ToolResult {
    /// Creates the result of a call.
    pub fn new(call_id: CallId, name: impl Into<Str>, outcome: ToolOutcome) -> Self {
        Self {
            call_id,
            name: name.into(),
            outcome,
        }
    }
}
