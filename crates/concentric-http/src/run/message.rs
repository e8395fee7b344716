//! Messages of the history in a request.
//!
//! Types that are discriminated by a field (`role`, `type`) implement `Deserialize` by hand:
//! serde's derive buffers such a value, and its errors would no longer contain the path.

use serde::Deserialize;
use serde::de::{self, Deserializer};

use super::{
    Metadata,
    content::{Content, WireContent},
};

/// One message of a conversation.
#[derive(Debug)]
pub(crate) struct Message {
    /// The message's identifier, unique in its thread.
    pub(crate) id: String,
    /// The sub-agent that produced the message, if any.
    pub(crate) subagent_run_id: Option<String>,
    pub(crate) kind: MessageKind,
}

#[derive(Debug)]
pub(crate) enum MessageKind {
    /// Instructions of the application, with the role `system` or `developer`.
    System {
        role: &'static str,
        text: String,
    },
    Assistant(Assistant),
    User(Content),
    Tool(ToolMessage),
    /// Reasoning or an activity, which is not sent to the model.
    Aside,
}

/// The agent's text and tool calls.
#[derive(Debug, Default)]
pub(crate) struct Assistant {
    pub(crate) text: Option<String>,
    pub(crate) tool_calls: Vec<ToolCall>,
}

/// The result of a tool call.
#[derive(Debug)]
pub(crate) struct ToolMessage {
    pub(crate) tool_call_id: String,
    pub(crate) content: Content,
    /// The error of a failed call.
    pub(crate) error: Option<String>,
    pub(crate) metadata: Option<Metadata>,
}

/// A tool call by the agent.
#[derive(Debug, Deserialize)]
pub(crate) struct ToolCall {
    pub(crate) id: String,
    #[serde(rename = "type", default)]
    _kind: ToolCallType,
    pub(crate) function: FunctionCall,
}

impl ToolCall {
    pub(crate) fn new(id: String, function: FunctionCall) -> Self {
        let _kind = ToolCallType::Function;
        Self {
            id,
            _kind,
            function,
        }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum ToolCallType {
    #[default]
    Function,
}

/// A function's name and its arguments, a string of JSON.
#[derive(Debug, Deserialize)]
pub(crate) struct FunctionCall {
    pub(crate) name: String,
    pub(crate) arguments: String,
}

/// The fields of all roles.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireMessage {
    role: Role,
    id: String,
    content: Option<WireContent>,
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
        let message = WireMessage::deserialize(deserializer)?;
        let missing = de::Error::missing_field;
        let required = |content: Option<WireContent>| content.ok_or_else(|| missing("content"));
        let kind = match message.role {
            Role::Developer => MessageKind::System {
                role: "developer",
                text: required(message.content)?.text()?,
            },
            Role::System => MessageKind::System {
                role: "system",
                text: required(message.content)?.text()?,
            },
            Role::Assistant => MessageKind::Assistant(Assistant {
                text: message.content.map(WireContent::text).transpose()?,
                tool_calls: message.tool_calls.unwrap_or_default(),
            }),
            Role::User => MessageKind::User(required(message.content)?.content()?),
            Role::Tool => MessageKind::Tool(ToolMessage {
                tool_call_id: message.tool_call_id.ok_or_else(|| missing("toolCallId"))?,
                content: required(message.content)?.content()?,
                error: message.error,
                metadata: message.metadata,
            }),
            Role::Activity => {
                message
                    .activity_type
                    .ok_or_else(|| missing("activityType"))?;
                required(message.content)?.object()?;
                MessageKind::Aside
            }
            Role::Reasoning => {
                required(message.content)?.text()?;
                MessageKind::Aside
            }
        };
        Ok(Self {
            id: message.id,
            subagent_run_id: message.subagent_run_id,
            kind,
        })
    }
}
