//! Messages and their parts.

use crate::{CallId, MessageId, Str, ToolOutcome};
use serde::{Deserialize, Serialize};
use serde_json::{Value, value::RawValue};
use std::sync::Arc;

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Message {
    /// Names the message, if anybody named it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<MessageId>,
    /// Who speaks.
    pub role: Role,
    /// What is said, in order.
    pub parts: Vec<Part>,
}

impl Message {
    /// Creates a message of `parts`.
    pub fn new(role: Role, parts: Vec<Part>) -> Self {
        Self {
            id: None,
            role,
            parts,
        }
    }

    /// Creates a user's message of one text.
    pub fn user(text: impl Into<Str>) -> Self {
        Self::new(Role::User, vec![Part::text(text).by(Author::User)])
    }

    /// Creates an assistant's message of one text.
    pub fn assistant(text: impl Into<Str>) -> Self {
        Self::new(Role::Assistant, vec![Part::text(text)])
    }

    /// Names the message.
    #[must_use]
    pub fn with_id(mut self, id: MessageId) -> Self {
        self.id = Some(id);
        self
    }

    /// The text parts, joined.
    pub fn text(&self) -> String {
        self.parts
            .iter()
            .filter_map(|part| match &part.kind {
                PartKind::Text(text) => Some(text.as_str()),
                _ => None,
            })
            .collect()
    }

    /// The tool calls in the message, whoever executes them.
    pub fn tool_calls(&self) -> impl Iterator<Item = &ToolCallPart> {
        self.parts.iter().filter_map(|part| match &part.kind {
            PartKind::ToolCall(call) => Some(call),
            _ => None,
        })
    }
}

/// Who speaks a [`Message`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Role {
    /// The operator, in the middle of a conversation; what stands at its start is a
    /// [`SystemSegment`](crate::SystemSegment).
    System,
    /// The user.
    User,
    /// The model.
    Assistant,
    /// A tool, answering a call.
    Tool,
}

/// One part of a [`Message`]: what it is, who authored it, and what only its provider understands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Part {
    /// The content.
    pub kind: PartKind,
    /// Who authored it.
    #[serde(default, skip_serializing_if = "Author::is_unknown")]
    pub author: Author,
    /// What its provider wants back with it: a signature, an id, encrypted reasoning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider_data: Option<Arc<ProviderData>>,
}

impl Part {
    /// Creates a part by an unknown author.
    pub fn new(kind: PartKind) -> Self {
        Self {
            kind,
            author: Author::Unknown,
            provider_data: None,
        }
    }

    /// Creates a text part.
    pub fn text(text: impl Into<Str>) -> Self {
        Self::new(PartKind::Text(text.into()))
    }

    /// Says who authored the part.
    #[must_use]
    pub fn by(mut self, author: Author) -> Self {
        self.author = author;
        self
    }

    /// Attaches what only the provider understands.
    #[must_use]
    pub fn with_provider_data(mut self, data: Option<Arc<ProviderData>>) -> Self {
        self.provider_data = data;
        self
    }
}

/// The content of a [`Part`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum PartKind {
    /// Text.
    Text(Str),
    /// The model's reasoning, as far as the provider shows it.
    Reasoning(Str),
    /// The model's refusal to answer, where the provider tells it from text.
    Refusal(Str),
    /// An image.
    Image(Media),
    /// Sound.
    Audio(Media),
    /// A document.
    File(Media),
    /// A tool call by the model.
    ToolCall(ToolCallPart),
    /// The result of a tool call that the loop did not execute, in the message that made the call.
    ToolResult(ToolResult),
    /// Something only its provider understands, kept as it came.
    Provider(ProviderData),
}

/// An image, sound or document.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Media {
    /// Where the bytes are.
    pub source: MediaSource,
    /// The media type (RFC 6838), as `image/png`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub media_type: Option<Str>,
    /// The file's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<Str>,
}

impl Media {
    /// Creates a medium of unknown type.
    pub fn new(source: MediaSource) -> Self {
        Self {
            source,
            media_type: None,
            name: None,
        }
    }

    /// Sets the media type.
    #[must_use]
    pub fn with_media_type(mut self, media_type: impl Into<Str>) -> Self {
        self.media_type = Some(media_type.into());
        self
    }

    /// Sets the file's name.
    #[must_use]
    pub fn with_name(mut self, name: impl Into<Str>) -> Self {
        self.name = Some(name.into());
        self
    }
}

/// Where the bytes of a [`Media`] are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum MediaSource {
    /// At a URL that the provider can read.
    Url(Str),
    /// Here, in base64 (RFC 4648 section 4), as every provider wants them.
    Base64(Str),
    /// At the provider, under this id.
    Id(Str),
}

/// Who authored a [`Part`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Author {
    /// Nobody said.
    #[default]
    Unknown,
    /// The user.
    User,
    /// A model.
    Model {
        /// The provider (`gen_ai.provider.name`).
        provider: Str,
        /// The model (`gen_ai.response.model`).
        model: Str,
    },
    /// A tool.
    Tool {
        /// Its name.
        name: Str,
    },
    /// A layer.
    Layer {
        /// Its name.
        name: Str,
    },
}

impl Author {
    fn is_unknown(&self) -> bool {
        matches!(self, Self::Unknown)
    }
}

/// Data that only one provider understands, kept so that it survives a round trip.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ProviderData {
    /// The provider (`gen_ai.provider.name`).
    pub provider: Str,
    /// What it sent.
    pub data: Value,
}

impl ProviderData {
    /// Creates data of `provider`.
    pub fn new(provider: impl Into<Str>, data: Value) -> Self {
        Self {
            provider: provider.into(),
            data,
        }
    }
}

/// A tool call as the model made it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ToolCallPart {
    /// Names the call.
    pub id: CallId,
    /// The tool's name, as the model wrote it.
    pub name: Str,
    /// The arguments, as the model wrote them.
    pub arguments: Arguments,
    /// Who executes the call.
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

    /// Says who executes the call.
    #[must_use]
    pub fn executed_by(mut self, executor: Executor) -> Self {
        self.executor = executor;
        self
    }

    /// Keeps the provider's own id for the call.
    #[must_use]
    pub fn with_provider_id(mut self, id: Option<Str>) -> Self {
        self.provider_id = id;
        self
    }
}

/// Who executes a tool call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Executor {
    /// The loop that called the model.
    #[default]
    Loop,
    /// The provider, on its own side.
    Provider,
    /// Whoever sent the request.
    Client,
    /// An agent that stands in the model's place.
    Agent,
}

/// The arguments of a tool call: the model's own bytes.
///
/// They may be anything, since models write them: empty, cut short, two objects glued together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Arguments(Str);

impl Arguments {
    /// Takes `text` as it is.
    pub fn new(text: impl Into<Str>) -> Self {
        Self(text.into())
    }

    /// What the model wrote.
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }

    /// Whether the model wrote one whole JSON value.
    pub fn is_json(&self) -> bool {
        serde_json::from_str::<&RawValue>(&self.0).is_ok()
    }

    /// What a history may hold: what the model wrote if it is a JSON object, else `{}`.
    ///
    /// Providers refuse every later request of a conversation whose history holds arguments that
    /// are not JSON.
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

/// The outcome of one tool call, as the model is told of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ToolResult {
    /// The call that is answered.
    pub call_id: CallId,
    /// The tool's name.
    pub name: Str,
    /// What came of it.
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
