//! Messages of a conversation, in a request and in a `MESSAGES_SNAPSHOT`.
//!
//! Types that are discriminated by a field (`role`, `type`) implement `Deserialize` by hand:
//! serde's derive buffers such a value, and its errors would no longer contain the path.

use serde::de::{self, Deserializer};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::content::{Content, WireContent};
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
