//! The events that a server sends: one table of wire types, and therefore one file.

use serde::de::{self, Deserializer};
use serde::ser::Serializer;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Metadata, Optional, RunAgentInput, wire};
use super::{content::Content, message::Message};

/// Declares the enum of all events, its names and its conversions.
macro_rules! events {
    ($( $(#[$meta:meta])* $name:ident = $tag:literal, )*) => {
        /// One event of a run.
        ///
        /// An event of an unknown type is parsed as [`Event::Unknown`] and serialized unchanged.
        #[derive(Clone, Debug, PartialEq, Serialize)]
        #[serde(tag = "type")]
        #[non_exhaustive]
        pub enum Event {
            $(
                $(#[$meta])*
                #[serde(rename = $tag)]
                $name($name),
            )*
            /// An event of a type that is not in this version of the protocol.
            #[serde(untagged)]
            Unknown(UnknownEvent),
        }

        impl Event {
            /// The event's type on the wire (`type`).
            pub fn type_name(&self) -> &str {
                match self {
                    $( Self::$name(_) => $tag, )*
                    Self::Unknown(event) => &event.type_name,
                }
            }
        }

        impl<'de> Deserialize<'de> for Event {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let mut fields = Map::deserialize(deserializer)?;
                let type_name = match fields.remove("type") {
                    Some(Value::String(name)) => name,
                    Some(_) => return Err(de::Error::custom("expected a string in `type`")),
                    None => return Err(de::Error::missing_field("type")),
                };
                match type_name.as_str() {
                    $(
                        $tag => serde_json::from_value(Value::Object(fields))
                            .map(Self::$name)
                            .map_err(|error| de::Error::custom(format_args!("{}: {error}", $tag))),
                    )*
                    _ => Ok(Self::Unknown(UnknownEvent { type_name, fields })),
                }
            }
        }

        $(
            impl From<$name> for Event {
                fn from(event: $name) -> Self {
                    Self::$name(event)
                }
            }
        )*
    };
}

events! {
    /// Opens a text message.
    TextMessageStart = "TEXT_MESSAGE_START",
    /// A delta of a text message.
    TextMessageContent = "TEXT_MESSAGE_CONTENT",
    /// Closes a text message.
    TextMessageEnd = "TEXT_MESSAGE_END",
    /// A delta of a text message, which opens the message if necessary.
    TextMessageChunk = "TEXT_MESSAGE_CHUNK",
    /// Opens a tool call.
    ToolCallStart = "TOOL_CALL_START",
    /// A delta of a tool call's arguments.
    ToolCallArgs = "TOOL_CALL_ARGS",
    /// Closes a tool call: its arguments are complete.
    ToolCallEnd = "TOOL_CALL_END",
    /// A delta of a tool call, which opens the call if necessary.
    ToolCallChunk = "TOOL_CALL_CHUNK",
    /// The result of a tool call.
    ToolCallResult = "TOOL_CALL_RESULT",
    /// The whole state.
    StateSnapshot = "STATE_SNAPSHOT",
    /// A change of the state.
    StateDelta = "STATE_DELTA",
    /// The whole conversation.
    MessagesSnapshot = "MESSAGES_SNAPSHOT",
    /// A whole activity message.
    ActivitySnapshot = "ACTIVITY_SNAPSHOT",
    /// A change of an activity message.
    ActivityDelta = "ACTIVITY_DELTA",
    /// An event of another system, passed through unchanged.
    Raw = "RAW",
    /// An application-defined event.
    Custom = "CUSTOM",
    /// The start of the run.
    RunStarted = "RUN_STARTED",
    /// The end of a run that did not fail.
    RunFinished = "RUN_FINISHED",
    /// The end of a run that failed.
    RunError = "RUN_ERROR",
    /// The start of a step.
    StepStarted = "STEP_STARTED",
    /// The end of a step.
    StepFinished = "STEP_FINISHED",
    /// Opens a span of reasoning.
    ReasoningStart = "REASONING_START",
    /// Opens a reasoning message.
    ReasoningMessageStart = "REASONING_MESSAGE_START",
    /// A delta of a reasoning message.
    ReasoningMessageContent = "REASONING_MESSAGE_CONTENT",
    /// Closes a reasoning message.
    ReasoningMessageEnd = "REASONING_MESSAGE_END",
    /// A delta of a reasoning message, which opens the message if necessary.
    ReasoningMessageChunk = "REASONING_MESSAGE_CHUNK",
    /// Closes a span of reasoning.
    ReasoningEnd = "REASONING_END",
    /// Opaque data of a provider about a message or a tool call.
    ReasoningEncryptedValue = "REASONING_ENCRYPTED_VALUE",
    /// The start of a sub-agent.
    SubagentStarted = "SUBAGENT_STARTED",
    /// The end of a sub-agent that did not fail.
    SubagentFinished = "SUBAGENT_FINISHED",
    /// The end of a sub-agent that failed.
    SubagentError = "SUBAGENT_ERROR",
}

impl Event {
    /// Returns whether the event ends its run (`RUN_FINISHED`, `RUN_ERROR`).
    ///
    /// Clients treat a stream that ends without such an event as a success, so a server always
    /// sends one.
    pub fn is_terminal(&self) -> bool {
        matches!(self, Self::RunFinished(_) | Self::RunError(_))
    }

    /// Attributes the event to the sub-agent `run`, if its type has that field.
    pub(super) fn attribute(&mut self, run: &str) {
        let to = match self {
            Self::TextMessageStart(event) => &mut event.subagent_run_id,
            Self::TextMessageContent(event) => &mut event.subagent_run_id,
            Self::TextMessageEnd(event) => &mut event.subagent_run_id,
            Self::TextMessageChunk(event) => &mut event.subagent_run_id,
            Self::ToolCallStart(event) => &mut event.subagent_run_id,
            Self::ToolCallArgs(event) => &mut event.subagent_run_id,
            Self::ToolCallEnd(event) => &mut event.subagent_run_id,
            Self::ToolCallChunk(event) => &mut event.subagent_run_id,
            Self::ToolCallResult(event) => &mut event.subagent_run_id,
            Self::StateSnapshot(event) => &mut event.subagent_run_id,
            Self::StateDelta(event) => &mut event.subagent_run_id,
            Self::ActivitySnapshot(event) => &mut event.subagent_run_id,
            Self::ActivityDelta(event) => &mut event.subagent_run_id,
            Self::Raw(event) => &mut event.subagent_run_id,
            Self::Custom(event) => &mut event.subagent_run_id,
            Self::StepStarted(event) => &mut event.subagent_run_id,
            Self::StepFinished(event) => &mut event.subagent_run_id,
            Self::ReasoningStart(event) => &mut event.subagent_run_id,
            Self::ReasoningMessageStart(event) => &mut event.subagent_run_id,
            Self::ReasoningMessageContent(event) => &mut event.subagent_run_id,
            Self::ReasoningMessageEnd(event) => &mut event.subagent_run_id,
            Self::ReasoningMessageChunk(event) => &mut event.subagent_run_id,
            Self::ReasoningEnd(event) => &mut event.subagent_run_id,
            Self::ReasoningEncryptedValue(event) => &mut event.subagent_run_id,
            Self::SubagentStarted(_)
            | Self::SubagentFinished(_)
            | Self::SubagentError(_)
            | Self::MessagesSnapshot(_)
            | Self::RunStarted(_)
            | Self::RunFinished(_)
            | Self::RunError(_)
            | Self::Unknown(_) => return,
        };
        *to = Some(run.to_owned());
    }
}

/// An event of a type that is not in this version of the protocol, with all of its fields.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct UnknownEvent {
    /// The event's type (`type`).
    #[serde(rename = "type")]
    pub type_name: String,
    /// All fields but the type.
    #[serde(flatten)]
    pub fields: Map<String, Value>,
}

/// Declares an event with the common fields, and with the field of the sub-agent if it is
/// `attributed`.
macro_rules! event {
    (
        $(#[$meta:meta])*
        $name:ident, attributed;
        required { $($required:tt)* }
        optional { $($optional:tt)* }
    ) => {
        event! {
            $(#[$meta])*
            $name;
            required { $($required)* }
            optional {
                $($optional)*
                /// The sub-agent that the event belongs to; absent for the agent itself.
                subagent_run_id: String,
            }
        }
    };
    (
        $(#[$meta:meta])*
        $name:ident;
        required { $($required:tt)* }
        optional { $($optional:tt)* }
    ) => {
        wire! {
            $(#[$meta])*
            $name;
            required { $($required)* }
            optional {
                $($optional)*
                /// When the event was created.
                timestamp: Timestamp,
                /// The original event that this event was converted from.
                raw_event: Value,
                /// Extra information.
                metadata: Metadata,
            }
        }
    };
}

// Text messages

event! {
    /// Opens a text message (`TEXT_MESSAGE_START`).
    TextMessageStart, attributed;
    required {
        /// The message's identifier.
        message_id: String,
    }
    optional {
        /// The author's role; the default is the assistant.
        role: TextMessageRole,
        /// A name for the author.
        name: String,
    }
}

event! {
    /// A delta of a text message (`TEXT_MESSAGE_CONTENT`).
    TextMessageContent, attributed;
    required {
        /// The message that the delta belongs to.
        message_id: String,
        /// The text to append.
        delta: String,
    }
    optional {}
}

event! {
    /// Closes a text message (`TEXT_MESSAGE_END`).
    TextMessageEnd, attributed;
    required {
        /// The message that is complete.
        message_id: String,
    }
    optional {}
}

event! {
    /// A delta of a text message, which opens the message if necessary (`TEXT_MESSAGE_CHUNK`).
    TextMessageChunk, attributed;
    required {}
    optional {
        /// The message's identifier; required in the first chunk.
        message_id: String,
        /// The author's role; the default is the assistant.
        role: TextMessageRole,
        /// The text to append.
        delta: String,
        /// A name for the author.
        name: String,
    }
}

/// The author's role of a streamed text message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum TextMessageRole {
    /// The application's developer.
    Developer,
    /// The system.
    System,
    /// The agent.
    Assistant,
    /// The user.
    User,
}

impl Optional for TextMessageRole {}

// Tool calls

event! {
    /// Opens a tool call (`TOOL_CALL_START`).
    ToolCallStart, attributed;
    required {
        /// The call's identifier.
        tool_call_id: String,
        /// The name of the called tool.
        tool_call_name: String,
    }
    optional {
        /// The assistant's message that the call is part of.
        parent_message_id: String,
    }
}

event! {
    /// A delta of a tool call's arguments (`TOOL_CALL_ARGS`).
    ToolCallArgs, attributed;
    required {
        /// The call that the delta belongs to.
        tool_call_id: String,
        /// The JSON text to append.
        delta: String,
    }
    optional {}
}

event! {
    /// Closes a tool call (`TOOL_CALL_END`): its arguments are complete.
    ToolCallEnd, attributed;
    required {
        /// The call whose arguments are complete.
        tool_call_id: String,
    }
    optional {}
}

event! {
    /// A delta of a tool call, which opens the call if necessary (`TOOL_CALL_CHUNK`).
    ToolCallChunk, attributed;
    required {}
    optional {
        /// The call's identifier; required in the first chunk.
        tool_call_id: String,
        /// The name of the called tool; required in the first chunk.
        tool_call_name: String,
        /// The assistant's message that the call is part of.
        parent_message_id: String,
        /// The JSON text to append.
        delta: String,
    }
}

event! {
    /// The result of a tool call (`TOOL_CALL_RESULT`).
    ToolCallResult, attributed;
    required {
        /// The identifier of the message with the result.
        message_id: String,
        /// The call that the result belongs to.
        tool_call_id: String,
        /// The result.
        content: Content,
    }
    optional {
        /// The message's role, which is always `tool`.
        role: ToolRole,
    }
}

/// The role of a tool message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ToolRole {
    /// The tool.
    #[default]
    Tool,
}

impl Optional for ToolRole {}

// State

event! {
    /// The whole state (`STATE_SNAPSHOT`).
    StateSnapshot, attributed;
    required {
        /// The state, which replaces that of the client.
        snapshot: Value,
    }
    optional {}
}

event! {
    /// A change of the state (`STATE_DELTA`).
    StateDelta, attributed;
    required {
        /// The operations, in order (RFC 6902).
        delta: Vec<PatchOperation>,
    }
    optional {}
}

event! {
    /// The whole conversation (`MESSAGES_SNAPSHOT`).
    MessagesSnapshot;
    required {
        /// The messages, which replace those with the same identifiers.
        messages: Vec<Message>,
    }
    optional {}
}

/// One operation of a JSON Patch (RFC 6902); paths are JSON Pointers (RFC 6901).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "lowercase")]
pub enum PatchOperation {
    /// Adds a member or an element.
    Add {
        /// The path of the new value.
        path: String,
        /// The new value.
        value: Value,
    },
    /// Removes a value.
    Remove {
        /// The path of the value.
        path: String,
    },
    /// Replaces a value.
    Replace {
        /// The path of the value.
        path: String,
        /// The new value.
        value: Value,
    },
    /// Moves a value.
    Move {
        /// The source path.
        from: String,
        /// The target path.
        path: String,
    },
    /// Copies a value.
    Copy {
        /// The source path.
        from: String,
        /// The target path.
        path: String,
    },
    /// Fails the patch unless a value equals the expected one.
    Test {
        /// The path of the value.
        path: String,
        /// The expected value.
        value: Value,
    },
}

// Activities

event! {
    /// A whole activity message (`ACTIVITY_SNAPSHOT`).
    ActivitySnapshot, attributed;
    required {
        /// The message's identifier.
        message_id: String,
        /// The kind of activity.
        activity_type: String,
        /// The activity's data.
        content: Map<String, Value>,
    }
    optional {
        /// Whether the snapshot replaces an activity with the same identifier; the default is yes.
        replace: bool,
    }
}

event! {
    /// A change of an activity message (`ACTIVITY_DELTA`).
    ActivityDelta, attributed;
    required {
        /// The message's identifier.
        message_id: String,
        /// The kind of activity.
        activity_type: String,
        /// The operations on the content, in order (RFC 6902).
        patch: Vec<PatchOperation>,
    }
    optional {}
}

// Other events

event! {
    /// An event of another system, passed through unchanged (`RAW`).
    Raw, attributed;
    required {
        /// The event.
        event: Value,
    }
    optional {
        /// The source of the event.
        source: String,
    }
}

event! {
    /// An application-defined event (`CUSTOM`).
    Custom, attributed;
    required {
        /// The event's name.
        name: String,
        /// The event's data.
        value: Value,
    }
    optional {}
}

// The run

event! {
    /// The start of the run (`RUN_STARTED`).
    RunStarted;
    required {
        /// The conversation.
        thread_id: String,
        /// The run.
        run_id: String,
    }
    optional {
        /// The server's version of the protocol.
        protocol_version: String,
        /// The run that this one continues or branches from.
        parent_run_id: String,
        /// The request that started the run.
        input: Box<RunAgentInput>,
    }
}

event! {
    /// The end of a run that did not fail (`RUN_FINISHED`).
    RunFinished;
    required {
        /// The conversation.
        thread_id: String,
        /// The run.
        run_id: String,
    }
    optional {
        /// The run's result.
        result: Value,
        /// The run's outcome; the default is success.
        outcome: RunFinishedOutcome,
        /// The tokens that the run used, by provider and model.
        usage: Vec<TokenUsage>,
    }
}

event! {
    /// The end of a run that failed (`RUN_ERROR`).
    RunError;
    required {
        /// A description of the error, for people.
        message: String,
    }
    optional {
        /// The error code, for programs.
        code: String,
        /// The tokens that the run used, by provider and model.
        usage: Vec<TokenUsage>,
    }
}

/// The outcome of a run that did not fail.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(
    tag = "type",
    rename_all = "lowercase",
    rename_all_fields = "camelCase"
)]
#[non_exhaustive]
pub enum RunFinishedOutcome {
    /// The run completed.
    #[non_exhaustive]
    Success {
        /// The calls of client tools, which the client must execute.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pending_tool_call_ids: Option<Vec<String>>,
    },
    /// The run waits until a request answers all of the interrupts.
    #[non_exhaustive]
    Interrupt {
        /// The interrupts, at least one.
        interrupts: Vec<Interrupt>,
    },
    /// The run was cancelled.
    Cancelled,
}

impl RunFinishedOutcome {
    /// Creates a `success` outcome.
    pub fn success() -> Self {
        Self::Success {
            pending_tool_call_ids: None,
        }
    }

    /// Creates a `success` outcome with tool calls that the client must execute.
    pub fn pending(tool_call_ids: impl Into<Vec<String>>) -> Self {
        Self::Success {
            pending_tool_call_ids: Some(tool_call_ids.into()),
        }
    }

    /// Creates an `interrupt` outcome.
    ///
    /// `interrupts` must not be empty: clients and [`Verifier`](super::Verifier) reject an empty
    /// list.
    pub fn interrupt(interrupts: impl Into<Vec<Interrupt>>) -> Self {
        Self::Interrupt {
            interrupts: interrupts.into(),
        }
    }
}

impl Optional for RunFinishedOutcome {}

wire! {
    /// A question that suspends a run until it is answered.
    Interrupt;
    required {
        /// The interrupt's identifier, which the reply refers to.
        id: String,
        /// The reason of the suspension, for programs.
        reason: String,
    }
    optional {
        /// The question, for people.
        message: String,
        /// The tool call that the interrupt is about.
        tool_call_id: String,
        /// A JSON Schema of the reply's payload.
        response_schema: Map<String, Value>,
        /// The expiry (RFC 3339), after which clients do not reply.
        expires_at: String,
        /// Extra information.
        metadata: Metadata,
        /// The sub-agent that raised the interrupt.
        subagent_run_id: String,
    }
}

/// Token usage of a run with one model.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TokenUsage {
    /// The provider (`gen_ai.provider.name`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    /// The model (`gen_ai.response.model`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// ApprovalTokens in the requests (`gen_ai.usage.input_tokens`).
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "count")]
    pub input_tokens: Option<u64>,
    /// ApprovalTokens in the answers (`gen_ai.usage.output_tokens`).
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "count")]
    pub output_tokens: Option<u64>,
    /// ApprovalTokens in requests and answers.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "count")]
    pub total_tokens: Option<u64>,
    /// Reasoning tokens, which are included in the output tokens.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "count")]
    pub reasoning_tokens: Option<u64>,
    /// Input tokens read from a cache.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "count")]
    pub cached_input_tokens: Option<u64>,
    /// Input tokens written to a cache.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "count")]
    pub cache_write_input_tokens: Option<u64>,
}

/// Serializes a count, clamped to the largest integer that a client accepts.
fn count<S: Serializer>(count: &Option<u64>, serializer: S) -> Result<S::Ok, S::Error> {
    count
        .map(|count| count.min(Timestamp::MAX.0.unsigned_abs()))
        .serialize(serializer)
}

// Steps

event! {
    /// The start of a step (`STEP_STARTED`).
    StepStarted, attributed;
    required {
        /// The step's name, unique among the open steps of its agent.
        step_name: String,
    }
    optional {}
}

event! {
    /// The end of a step (`STEP_FINISHED`).
    StepFinished, attributed;
    required {
        /// The step's name.
        step_name: String,
    }
    optional {}
}

// Reasoning

event! {
    /// Opens a span of reasoning (`REASONING_START`).
    ReasoningStart, attributed;
    required {
        /// The span's identifier, which a message in it may share.
        message_id: String,
    }
    optional {}
}

event! {
    /// Opens a reasoning message (`REASONING_MESSAGE_START`).
    ReasoningMessageStart, attributed;
    required {
        /// The message's identifier.
        message_id: String,
        /// The message's role, which is always `reasoning`.
        #[serde(default)]
        role: ReasoningRole,
    }
    optional {}
}

event! {
    /// A delta of a reasoning message (`REASONING_MESSAGE_CONTENT`).
    ReasoningMessageContent, attributed;
    required {
        /// The message that the delta belongs to.
        message_id: String,
        /// The text to append.
        delta: String,
    }
    optional {}
}

event! {
    /// Closes a reasoning message (`REASONING_MESSAGE_END`).
    ReasoningMessageEnd, attributed;
    required {
        /// The message that is complete.
        message_id: String,
    }
    optional {}
}

event! {
    /// A delta of a reasoning message, which opens the message if necessary
    /// (`REASONING_MESSAGE_CHUNK`).
    ReasoningMessageChunk, attributed;
    required {}
    optional {
        /// The message's identifier; required in the first chunk.
        message_id: String,
        /// The text to append.
        delta: String,
    }
}

event! {
    /// Closes a span of reasoning (`REASONING_END`).
    ReasoningEnd, attributed;
    required {
        /// The span's identifier.
        message_id: String,
    }
    optional {}
}

event! {
    /// Opaque data of a provider about a message or a tool call (`REASONING_ENCRYPTED_VALUE`).
    ReasoningEncryptedValue, attributed;
    required {
        /// The kind of entity that the data is about.
        subtype: EncryptedEntity,
        /// The identifier of the entity.
        entity_id: String,
        /// The data, which must be sent back unchanged.
        encrypted_value: String,
    }
    optional {}
}

/// The role of a reasoning message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ReasoningRole {
    /// Reasoning.
    #[default]
    Reasoning,
}

/// The kind of entity that a provider's opaque data is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum EncryptedEntity {
    /// A tool call.
    ToolCall,
    /// A text or reasoning message.
    Message,
}

// Sub-agents

event! {
    /// The start of a sub-agent (`SUBAGENT_STARTED`).
    SubagentStarted;
    required {
        /// The sub-agent's run, unique per invocation.
        subagent_run_id: String,
        /// The sub-agent's name.
        name: String,
    }
    optional {
        /// The sub-agent's purpose.
        description: String,
        /// The parent sub-agent; absent if the agent itself started it.
        parent_subagent_run_id: String,
        /// The tool call that started the sub-agent.
        parent_tool_call_id: String,
        /// The message with that tool call.
        parent_message_id: String,
    }
}

event! {
    /// The end of a sub-agent that did not fail (`SUBAGENT_FINISHED`).
    SubagentFinished;
    required {
        /// The sub-agent's run.
        subagent_run_id: String,
    }
    optional {
        /// The sub-agent's result.
        result: Value,
        /// The sub-agent's outcome; the default is success.
        outcome: SubagentOutcome,
    }
}

event! {
    /// The end of a sub-agent that failed (`SUBAGENT_ERROR`).
    SubagentError;
    required {
        /// The sub-agent's run.
        subagent_run_id: String,
        /// A description of the error, for people.
        message: String,
    }
    optional {
        /// The error code, for programs.
        code: String,
    }
}

/// The outcome of a sub-agent that did not fail.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    tag = "type",
    rename_all = "lowercase",
    rename_all_fields = "camelCase"
)]
#[non_exhaustive]
pub enum SubagentOutcome {
    /// The sub-agent completed.
    Success,
    /// The sub-agent is suspended with the run.
    Suspended {
        /// The interrupts that the sub-agent waits for.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        interrupt_ids: Option<Vec<String>>,
    },
}

impl Optional for SubagentOutcome {}

// Field types

/// The time at which an event was created, by convention in milliseconds since the Unix epoch: a
/// safe integer of JavaScript (`-(2^53 - 1)..=2^53 - 1`).
///
/// Clients fail the run on a fraction, or on an integer outside of this range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "i64", into = "i64")]
pub struct Timestamp(i64);

impl Timestamp {
    /// The smallest timestamp.
    pub const MIN: Self = Self(-((1 << 53) - 1));
    /// The largest timestamp.
    pub const MAX: Self = Self((1 << 53) - 1);

    /// Creates a timestamp, clamped to the valid range.
    pub const fn from_millis(millis: i64) -> Self {
        if millis < Self::MIN.0 {
            Self::MIN
        } else if millis > Self::MAX.0 {
            Self::MAX
        } else {
            Self(millis)
        }
    }

    /// Returns the milliseconds since the Unix epoch.
    pub const fn as_millis(self) -> i64 {
        self.0
    }
}

impl TryFrom<i64> for Timestamp {
    type Error = &'static str;

    fn try_from(millis: i64) -> Result<Self, Self::Error> {
        let timestamp = Self::from_millis(millis);
        if timestamp.0 == millis {
            Ok(timestamp)
        } else {
            Err("expected a timestamp between -(2^53 - 1) and 2^53 - 1")
        }
    }
}

impl From<Timestamp> for i64 {
    fn from(timestamp: Timestamp) -> Self {
        timestamp.0
    }
}

impl Optional for Timestamp {}
