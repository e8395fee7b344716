//! Messages of a conversation, in a request and in a `MESSAGES_SNAPSHOT`.
//!
//! Types that are discriminated by a field (`role`, `type`) implement `Deserialize` by hand:
//! serde's derive buffers such a value, and its errors would no longer contain the path.

use std::fmt;

use serde::de::{self, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Metadata, wire};

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "role", rename_all = "lowercase")]
#[non_exhaustive]
pub enum Message {
    /// Instructions of the application's developer.
    Developer(DeveloperMessage),
    /// Instructions of the system.
    System(SystemMessage),
    /// The agent's text and tool calls.
    Assistant(AssistantMessage),
    /// The user's message.
    User(UserMessage),
    /// The result of a tool call.
    Tool(ToolMessage),
    /// Progress for display, which is not sent to the model.
    Activity(ActivityMessage),
    /// The model's reasoning, or a summary of it.
    Reasoning(ReasoningMessage),
}

impl Message {
    /// The message's identifier, unique in its thread.
    pub fn id(&self) -> &str {
        match self {
            Self::Developer(message) => &message.id,
            Self::System(message) => &message.id,
            Self::Assistant(message) => &message.id,
            Self::User(message) => &message.id,
            Self::Tool(message) => &message.id,
            Self::Activity(message) => &message.id,
            Self::Reasoning(message) => &message.id,
        }
    }

    /// The message's role on the wire.
    pub fn role(&self) -> &'static str {
        match self {
            Self::Developer(_) => "developer",
            Self::System(_) => "system",
            Self::Assistant(_) => "assistant",
            Self::User(_) => "user",
            Self::Tool(_) => "tool",
            Self::Activity(_) => "activity",
            Self::Reasoning(_) => "reasoning",
        }
    }

    /// The sub-agent that produced the message, if any (`subagentRunId`).
    pub fn subagent_run_id(&self) -> Option<&str> {
        match self {
            Self::Developer(message) => message.subagent_run_id.as_deref(),
            Self::System(message) => message.subagent_run_id.as_deref(),
            Self::Assistant(message) => message.subagent_run_id.as_deref(),
            Self::User(message) => message.subagent_run_id.as_deref(),
            Self::Tool(message) => message.subagent_run_id.as_deref(),
            Self::Activity(message) => message.subagent_run_id.as_deref(),
            Self::Reasoning(message) => message.subagent_run_id.as_deref(),
        }
    }
}

/// Declares the message types and their conversions to [`Message`].
macro_rules! messages {
    ($( $(#[$meta:meta])* $name:ident as $variant:ident;
        required { $($required:tt)* }
        optional { $($optional:tt)* }
    )*) => {
        $(
            wire! {
                $(#[$meta])*
                $name;
                required {
                    /// The message's identifier, unique in its thread.
                    id: String,
                    $($required)*
                }
                optional {
                    $($optional)*
                    /// Extra information.
                    metadata: Metadata,
                    /// The sub-agent that produced the message.
                    subagent_run_id: String,
                }
            }

            impl From<$name> for Message {
                fn from(message: $name) -> Self {
                    Self::$variant(message)
                }
            }
        )*
    };
}

messages! {
    /// Instructions of the application's developer.
    DeveloperMessage as Developer;
    required {
        /// The text.
        content: String,
    }
    optional {
        /// A name for the author.
        name: String,
        /// Opaque data of the model's provider, which must be sent back unchanged.
        encrypted_value: String,
    }

    /// Instructions of the system.
    SystemMessage as System;
    required {
        /// The text.
        content: String,
    }
    optional {
        /// A name for the author.
        name: String,
        /// Opaque data of the model's provider, which must be sent back unchanged.
        encrypted_value: String,
    }

    /// The agent's text and tool calls.
    AssistantMessage as Assistant;
    required {}
    optional {
        /// The text, absent if the message only calls tools.
        content: String,
        /// The tool calls.
        tool_calls: Vec<ToolCall>,
        /// A name for the author.
        name: String,
        /// Opaque data of the model's provider, which must be sent back unchanged.
        encrypted_value: String,
    }

    /// The user's message.
    UserMessage as User;
    required {
        /// The text, or the parts of a multimodal message.
        content: Content,
    }
    optional {
        /// A name for the author.
        name: String,
        /// Opaque data of the model's provider, which must be sent back unchanged.
        encrypted_value: String,
    }

    /// The result of a tool call.
    ToolMessage as Tool;
    required {
        /// The call that the result belongs to.
        tool_call_id: String,
        /// The result.
        content: Content,
    }
    optional {
        /// The error of a failed call.
        error: String,
        /// Opaque data of the model's provider, which must be sent back unchanged.
        encrypted_value: String,
    }

    /// Progress for display, which is not sent to the model.
    ActivityMessage as Activity;
    required {
        /// The kind of activity, by which a client selects its rendering.
        activity_type: String,
        /// The activity's data.
        content: serde_json::Map<String, Value>,
    }
    optional {}

    /// The model's reasoning, or a summary of it.
    ReasoningMessage as Reasoning;
    required {
        /// The text.
        content: String,
    }
    optional {
        /// Opaque data of the model's provider, which must be sent back unchanged.
        encrypted_value: String,
    }
}

/// The fields of all roles.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireMessage {
    role: Role,
    id: String,
    content: Option<WireContent>,
    name: Option<String>,
    encrypted_value: Option<String>,
    metadata: Option<Metadata>,
    subagent_run_id: Option<String>,
    tool_calls: Option<Vec<ToolCall>>,
    tool_call_id: Option<String>,
    error: Option<String>,
    activity_type: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Role {
    Developer,
    System,
    Assistant,
    User,
    Tool,
    Activity,
    Reasoning,
}

/// The field `content`, before it is checked against the role.
enum WireContent {
    Text(String),
    Parts(Vec<ContentPart>),
    Object(serde_json::Map<String, Value>),
}

impl WireContent {
    fn text<E: de::Error>(self) -> Result<String, E> {
        match self {
            Self::Text(text) => Ok(text),
            // Several clients send text as parts for every role.
            Self::Parts(parts) => parts
                .into_iter()
                .map(|part| match part {
                    ContentPart::Text(part) => Ok(part.text),
                    _ => Err(invalid_field("content", "expected text only for this role")),
                })
                .collect(),
            Self::Object(_) => Err(invalid_field("content", "expected a string")),
        }
    }

    fn content<E: de::Error>(self) -> Result<Content, E> {
        match self {
            Self::Text(text) => Ok(Content::Text(text)),
            Self::Parts(parts) => Ok(Content::Parts(parts)),
            Self::Object(_) => Err(invalid_field(
                "content",
                "expected a string or an array of content parts",
            )),
        }
    }

    fn object<E: de::Error>(self) -> Result<serde_json::Map<String, Value>, E> {
        match self {
            Self::Object(object) => Ok(object),
            _ => Err(invalid_field("content", "expected an object")),
        }
    }
}

/// An error about a field of the value being parsed; `InputError` extracts the field's name.
fn invalid_field<E: de::Error>(field: &str, problem: &str) -> E {
    E::custom(format_args!("invalid field `{field}`: {problem}"))
}

impl<'de> Deserialize<'de> for WireContent {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ContentVisitor;

        impl<'de> Visitor<'de> for ContentVisitor {
            type Value = WireContent;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string, an array of content parts or an object")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<WireContent, E> {
                Ok(WireContent::Text(text.to_owned()))
            }

            fn visit_string<E: de::Error>(self, text: String) -> Result<WireContent, E> {
                Ok(WireContent::Text(text))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<WireContent, A::Error> {
                let mut parts = Vec::new();
                while let Some(part) = seq.next_element()? {
                    parts.push(part);
                }
                Ok(WireContent::Parts(parts))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<WireContent, A::Error> {
                Deserialize::deserialize(de::value::MapAccessDeserializer::new(map))
                    .map(WireContent::Object)
            }
        }

        deserializer.deserialize_any(ContentVisitor)
    }
}

impl<'de> Deserialize<'de> for Message {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let WireMessage {
            role,
            id,
            content,
            name,
            encrypted_value,
            metadata,
            subagent_run_id,
            tool_calls,
            tool_call_id,
            error,
            activity_type,
        } = WireMessage::deserialize(deserializer)?;
        let missing = de::Error::missing_field;
        let required = |content: Option<WireContent>| content.ok_or_else(|| missing("content"));

        Ok(match role {
            Role::Developer => Self::Developer(DeveloperMessage {
                id,
                content: required(content)?.text()?,
                name,
                encrypted_value,
                metadata,
                subagent_run_id,
            }),
            Role::System => Self::System(SystemMessage {
                id,
                content: required(content)?.text()?,
                name,
                encrypted_value,
                metadata,
                subagent_run_id,
            }),
            Role::Assistant => Self::Assistant(AssistantMessage {
                id,
                content: content.map(WireContent::text).transpose()?,
                tool_calls,
                name,
                encrypted_value,
                metadata,
                subagent_run_id,
            }),
            Role::User => Self::User(UserMessage {
                id,
                content: required(content)?.content()?,
                name,
                encrypted_value,
                metadata,
                subagent_run_id,
            }),
            Role::Tool => Self::Tool(ToolMessage {
                id,
                tool_call_id: tool_call_id.ok_or_else(|| missing("toolCallId"))?,
                content: required(content)?.content()?,
                error,
                encrypted_value,
                metadata,
                subagent_run_id,
            }),
            Role::Activity => Self::Activity(ActivityMessage {
                id,
                activity_type: activity_type.ok_or_else(|| missing("activityType"))?,
                content: required(content)?.object()?,
                metadata,
                subagent_run_id,
            }),
            Role::Reasoning => Self::Reasoning(ReasoningMessage {
                id,
                content: required(content)?.text()?,
                encrypted_value,
                metadata,
                subagent_run_id,
            }),
        })
    }
}

/// The content of a message or a result.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Content {
    /// Text alone.
    Text(String),
    /// Parts, in order.
    Parts(Vec<ContentPart>),
}

impl Content {
    /// The concatenated text; other parts are skipped.
    pub fn text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Parts(parts) => parts
                .iter()
                .filter_map(|part| match part {
                    ContentPart::Text(part) => Some(part.text.as_str()),
                    _ => None,
                })
                .collect(),
        }
    }
}

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match WireContent::deserialize(deserializer)? {
            WireContent::Text(text) => Ok(Self::Text(text)),
            WireContent::Parts(parts) => Ok(Self::Parts(parts)),
            WireContent::Object(_) => Err(de::Error::custom(
                "expected a string or an array of content parts",
            )),
        }
    }
}

impl From<&str> for Content {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Content {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<Vec<ContentPart>> for Content {
    fn from(parts: Vec<ContentPart>) -> Self {
        Self::Parts(parts)
    }
}

/// One part of a multimodal message or result.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
#[non_exhaustive]
pub enum ContentPart {
    /// Text.
    Text(TextPart),
    /// An image.
    Image(MediaPart),
    /// An audio recording.
    Audio(MediaPart),
    /// A video.
    Video(MediaPart),
    /// A document, such as a PDF.
    Document(MediaPart),
}

wire! {
    /// Text in a multimodal message.
    TextPart;
    required {
        /// The text.
        text: String,
    }
    optional {
        /// The part's identifier.
        id: String,
        /// Extra information.
        metadata: Value,
    }
}

wire! {
    /// An image, audio recording, video or document in a multimodal message.
    MediaPart;
    required {
        /// The source of the bytes.
        source: PartSource,
    }
    optional {
        /// The part's identifier.
        id: String,
        /// Extra information.
        metadata: Value,
    }
}

impl<'de> Deserialize<'de> for ContentPart {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct WirePart {
            r#type: PartType,
            id: Option<String>,
            text: Option<String>,
            source: Option<PartSource>,
            metadata: Option<Value>,
        }

        #[derive(Deserialize)]
        #[serde(rename_all = "lowercase")]
        enum PartType {
            Text,
            Image,
            Audio,
            Video,
            Document,
        }

        let WirePart {
            r#type,
            id,
            text,
            source,
            metadata,
        } = WirePart::deserialize(deserializer)?;
        let variant = match r#type {
            PartType::Text => {
                let text = text.ok_or_else(|| de::Error::missing_field("text"))?;
                return Ok(Self::Text(TextPart { text, id, metadata }));
            }
            PartType::Image => Self::Image,
            PartType::Audio => Self::Audio,
            PartType::Video => Self::Video,
            PartType::Document => Self::Document,
        };
        let source = source.ok_or_else(|| de::Error::missing_field("source"))?;
        Ok(variant(MediaPart {
            source,
            id,
            metadata,
        }))
    }
}

/// The source of a part's bytes.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(
    tag = "type",
    rename_all = "lowercase",
    rename_all_fields = "camelCase"
)]
#[non_exhaustive]
pub enum PartSource {
    /// Inline data.
    Data {
        /// The bytes in base64.
        value: String,
        /// Their media type.
        mime_type: String,
    },
    /// A URL.
    Url {
        /// The URL.
        value: String,
        /// The media type of the resource.
        #[serde(skip_serializing_if = "Option::is_none")]
        mime_type: Option<String>,
    },
    /// A file in a provider's file store.
    File {
        /// The file's identifier in the store.
        value: String,
        /// The provider.
        #[serde(skip_serializing_if = "Option::is_none")]
        provider: Option<String>,
        /// The file's media type.
        #[serde(skip_serializing_if = "Option::is_none")]
        mime_type: Option<String>,
    },
}

impl<'de> Deserialize<'de> for PartSource {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct WireSource {
            r#type: SourceType,
            value: String,
            mime_type: Option<String>,
            provider: Option<String>,
        }

        #[derive(Deserialize)]
        #[serde(rename_all = "lowercase")]
        enum SourceType {
            Data,
            Url,
            File,
        }

        let WireSource {
            r#type,
            value,
            mime_type,
            provider,
        } = WireSource::deserialize(deserializer)?;
        Ok(match r#type {
            SourceType::Data => {
                let mime_type = mime_type.ok_or_else(|| de::Error::missing_field("mimeType"))?;
                Self::Data { value, mime_type }
            }
            SourceType::Url => Self::Url { value, mime_type },
            SourceType::File => Self::File {
                value,
                provider,
                mime_type,
            },
        })
    }
}

/// A tool call by the agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct ToolCall {
    /// The call's identifier.
    pub id: String,
    /// The kind of call (`type`); the default is a function.
    #[serde(rename = "type", default)]
    pub kind: ToolCallType,
    /// The function's name and arguments.
    pub function: FunctionCall,
    /// Opaque data of the model's provider, which must be sent back unchanged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encrypted_value: Option<String>,
    /// Extra information.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Metadata>,
}

impl ToolCall {
    /// Creates a call of the function `name` with `arguments`, a string of JSON.
    pub fn new(
        id: impl Into<String>,
        name: impl Into<String>,
        arguments: impl Into<String>,
    ) -> Self {
        Self {
            id: id.into(),
            kind: ToolCallType::Function,
            function: FunctionCall::new(name, arguments),
            encrypted_value: None,
            metadata: None,
        }
    }
}

/// The kind of a [`ToolCall`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum ToolCallType {
    /// A function with JSON arguments.
    #[default]
    Function,
}

wire! {
    /// A function's name and its arguments.
    FunctionCall;
    required {
        /// The function's name.
        name: String,
        /// The arguments: a string of JSON, unchanged from the model.
        arguments: String,
    }
    optional {}
}
