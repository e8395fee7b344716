//! The events that a server sends.

use serde::de::{self, Deserializer};
use serde::ser::Serializer;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::message::{Content, Message};
use super::{Metadata, Optional, RunAgentInput, wire};

/// Declares the enum of all events, its names and its conversions.
macro_rules! events {
    ($( $(#[$meta:meta])* $name:ident = $tag:literal, )*) => {
        /// One event of a run.
        ///
        /// An event of a type that we do not know is kept as [`Event::Unknown`] and written as it
        /// was read.
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
            /// The event's type as it stands on the wire (`type`).
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
    /// A piece of a text message.
    TextMessageContent = "TEXT_MESSAGE_CONTENT",
    /// Closes a text message.
    TextMessageEnd = "TEXT_MESSAGE_END",
    /// A piece of a text message that opens it if need be.
    TextMessageChunk = "TEXT_MESSAGE_CHUNK",
    /// Opens a tool call.
    ToolCallStart = "TOOL_CALL_START",
    /// A piece of a tool call's arguments.
    ToolCallArgs = "TOOL_CALL_ARGS",
    /// Closes a tool call: its arguments are complete.
    ToolCallEnd = "TOOL_CALL_END",
    /// A piece of a tool call that opens it if need be.
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
    /// An event of another system, passed through.
    Raw = "RAW",
    /// An event of the application.
    Custom = "CUSTOM",
    /// The run begins.
    RunStarted = "RUN_STARTED",
    /// The run is over and did not fail.
    RunFinished = "RUN_FINISHED",
    /// The run has failed.
    RunError = "RUN_ERROR",
    /// A step begins.
    StepStarted = "STEP_STARTED",
    /// A step is over.
    StepFinished = "STEP_FINISHED",
    /// Opens a span of reasoning.
    ReasoningStart = "REASONING_START",
    /// Opens a reasoning message.
    ReasoningMessageStart = "REASONING_MESSAGE_START",
    /// A piece of a reasoning message.
    ReasoningMessageContent = "REASONING_MESSAGE_CONTENT",
    /// Closes a reasoning message.
    ReasoningMessageEnd = "REASONING_MESSAGE_END",
    /// A piece of a reasoning message that opens it if need be.
    ReasoningMessageChunk = "REASONING_MESSAGE_CHUNK",
    /// Closes a span of reasoning.
    ReasoningEnd = "REASONING_END",
    /// A provider's opaque data about a message or a tool call.
    ReasoningEncryptedValue = "REASONING_ENCRYPTED_VALUE",
    /// A sub-agent begins.
    SubagentStarted = "SUBAGENT_STARTED",
    /// A sub-agent is over and did not fail.
    SubagentFinished = "SUBAGENT_FINISHED",
    /// A sub-agent has failed.
    SubagentError = "SUBAGENT_ERROR",
}

impl Event {
    /// Whether the event ends its run (`RUN_FINISHED`, `RUN_ERROR`).
    ///
    /// A client takes a stream that stops without one for a success, so a server always sends one.
    pub fn is_terminal(&self) -> bool {
        matches!(self, Self::RunFinished(_) | Self::RunError(_))
    }

    /// Says that the event belongs to the sub-agent `run`, if it is of a type that can say so.
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

/// An event of a type that this version of the protocol does not have, with all of its fields.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct UnknownEvent {
    /// The event's type (`type`).
    #[serde(rename = "type")]
    pub type_name: String,
    /// Everything but the type.
    #[serde(flatten)]
    pub fields: Map<String, Value>,
}

/// Declares an event: what all events have is added here, and for those that are `attributed` the
/// sub-agent that they belong to.
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
                /// The sub-agent that the event belongs to; absent is the agent itself.
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
                /// What the event was made from.
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
        /// Who speaks; absent is the assistant.
        role: TextMessageRole,
        /// A name for the author.
        name: String,
    }
}

event! {
    /// A piece of a text message (`TEXT_MESSAGE_CONTENT`).
    TextMessageContent, attributed;
    required {
        /// The message that the piece belongs to.
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
    /// A piece of a text message that opens it if need be (`TEXT_MESSAGE_CHUNK`).
    TextMessageChunk, attributed;
    required {}
    optional {
        /// The message's identifier; the first chunk needs one.
        message_id: String,
        /// Who speaks; absent is the assistant.
        role: TextMessageRole,
        /// The text to append.
        delta: String,
        /// A name for the author.
        name: String,
    }
}

/// Who speaks in a streamed text message.
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
    /// The person.
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
        /// The tool that is called.
        tool_call_name: String,
    }
    optional {
        /// The assistant's message that the call is part of.
        parent_message_id: String,
    }
}

event! {
    /// A piece of a tool call's arguments (`TOOL_CALL_ARGS`).
    ToolCallArgs, attributed;
    required {
        /// The call that the piece belongs to.
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
    /// A piece of a tool call that opens it if need be (`TOOL_CALL_CHUNK`).
    ToolCallChunk, attributed;
    required {}
    optional {
        /// The call's identifier; the first chunk needs one.
        tool_call_id: String,
        /// The tool that is called; the first chunk needs it.
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
        /// The identifier of the message that holds the result.
        message_id: String,
        /// The call that this is the result of.
        tool_call_id: String,
        /// The result.
        content: Content,
    }
    optional {
        /// The message's role, which is always the tool's.
        role: ToolRole,
    }
}

/// The role of a tool's message.
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
        /// The state; it replaces what the client has.
        snapshot: Value,
    }
    optional {}
}

event! {
    /// A change of the state (`STATE_DELTA`).
    StateDelta, attributed;
    required {
        /// The operations, in their order (RFC 6902).
        delta: Vec<PatchOperation>,
    }
    optional {}
}

event! {
    /// The whole conversation (`MESSAGES_SNAPSHOT`).
    MessagesSnapshot;
    required {
        /// The messages; they replace those of the same identifier.
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
        /// Where.
        path: String,
        /// What.
        value: Value,
    },
    /// Removes what is there.
    Remove {
        /// Where.
        path: String,
    },
    /// Replaces what is there.
    Replace {
        /// Where.
        path: String,
        /// By what.
        value: Value,
    },
    /// Moves a value.
    Move {
        /// Where it is.
        from: String,
        /// Where it goes.
        path: String,
    },
    /// Copies a value.
    Copy {
        /// Where it is.
        from: String,
        /// Where the copy goes.
        path: String,
    },
    /// Fails the patch unless the value is there.
    Test {
        /// Where.
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
        /// What kind of activity it is.
        activity_type: String,
        /// The activity's data.
        content: Map<String, Value>,
    }
    optional {
        /// Whether it replaces an activity of the same identifier; absent is yes.
        replace: bool,
    }
}

event! {
    /// A change of an activity message (`ACTIVITY_DELTA`).
    ActivityDelta, attributed;
    required {
        /// The message that changes.
        message_id: String,
        /// What kind of activity it is.
        activity_type: String,
        /// The operations on its content, in their order (RFC 6902).
        patch: Vec<PatchOperation>,
    }
    optional {}
}

// Whatever else

event! {
    /// An event of another system, passed through (`RAW`).
    Raw, attributed;
    required {
        /// The event.
        event: Value,
    }
    optional {
        /// Where it is from.
        source: String,
    }
}

event! {
    /// An event of the application (`CUSTOM`).
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
    /// The run begins (`RUN_STARTED`).
    RunStarted;
    required {
        /// The conversation.
        thread_id: String,
        /// The run.
        run_id: String,
    }
    optional {
        /// The version of the protocol that the server speaks.
        protocol_version: String,
        /// The run that this one continues or branches from.
        parent_run_id: String,
        /// The request that started the run.
        input: Box<RunAgentInput>,
    }
}

event! {
    /// The run is over and did not fail (`RUN_FINISHED`).
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
        /// How the run ended; absent is success.
        outcome: RunFinishedOutcome,
        /// The tokens that the run used, by provider and model.
        usage: Vec<TokenUsage>,
    }
}

event! {
    /// The run has failed (`RUN_ERROR`).
    RunError;
    required {
        /// What went wrong, for a person.
        message: String,
    }
    optional {
        /// What went wrong, for a program.
        code: String,
        /// The tokens that the run used, by provider and model.
        usage: Vec<TokenUsage>,
    }
}

/// How a run ended that did not fail.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(
    tag = "type",
    rename_all = "lowercase",
    rename_all_fields = "camelCase"
)]
#[non_exhaustive]
pub enum RunFinishedOutcome {
    /// The agent has answered.
    #[non_exhaustive]
    Success {
        /// Calls of the client's own tools, which the client is to execute.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pending_tool_call_ids: Option<Vec<String>>,
    },
    /// The run waits for somebody, and goes on when a request answers all of the interrupts.
    #[non_exhaustive]
    Interrupt {
        /// What is asked; at least one.
        interrupts: Vec<Interrupt>,
    },
    /// The user has cancelled the run.
    Cancelled,
}

impl RunFinishedOutcome {
    /// The agent has answered.
    pub fn success() -> Self {
        Self::Success {
            pending_tool_call_ids: None,
        }
    }

    /// The agent has answered, and the client is to execute these tool calls.
    pub fn pending(tool_call_ids: impl Into<Vec<String>>) -> Self {
        Self::Success {
            pending_tool_call_ids: Some(tool_call_ids.into()),
        }
    }

    /// The run waits for answers to `interrupts`, of which there must be one at least: clients
    /// refuse an empty list, and so does [`Verifier`](super::Verifier).
    pub fn interrupt(interrupts: impl Into<Vec<Interrupt>>) -> Self {
        Self::Interrupt {
            interrupts: interrupts.into(),
        }
    }
}

impl Optional for RunFinishedOutcome {}

wire! {
    /// A question that suspends a run until somebody answers it.
    Interrupt;
    required {
        /// The interrupt's identifier, which the answer names.
        id: String,
        /// Why the run waits, for a program.
        reason: String,
    }
    optional {
        /// The question, for a person.
        message: String,
        /// The tool call that the question is about.
        tool_call_id: String,
        /// A JSON Schema of the answer's payload.
        response_schema: Map<String, Value>,
        /// When the question ends to make sense (RFC 3339); clients refuse to answer it afterwards.
        expires_at: String,
        /// Extra information.
        metadata: Metadata,
        /// The sub-agent that asks.
        subagent_run_id: String,
    }
}

/// Tokens that a run used at one provider's model.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TokenUsage {
    /// The provider (`gen_ai.provider.name`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    /// The model (`gen_ai.response.model`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Tokens in the requests (`gen_ai.usage.input_tokens`).
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "count")]
    pub input_tokens: Option<u64>,
    /// Tokens in the answers (`gen_ai.usage.output_tokens`).
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "count")]
    pub output_tokens: Option<u64>,
    /// Tokens in both.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "count")]
    pub total_tokens: Option<u64>,
    /// Tokens of reasoning, which are output tokens too.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "count")]
    pub reasoning_tokens: Option<u64>,
    /// Input tokens that were read from a cache.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "count")]
    pub cached_input_tokens: Option<u64>,
    /// Input tokens that were written to a cache.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "count")]
    pub cache_write_input_tokens: Option<u64>,
}

/// Writes a count, at most the largest that a client takes for an integer.
fn count<S: Serializer>(count: &Option<u64>, serializer: S) -> Result<S::Ok, S::Error> {
    count
        .map(|count| count.min(Timestamp::MAX.0.unsigned_abs()))
        .serialize(serializer)
}

// Steps

event! {
    /// A step begins (`STEP_STARTED`).
    StepStarted, attributed;
    required {
        /// The step's name, unique among the open steps of its agent.
        step_name: String,
    }
    optional {}
}

event! {
    /// A step is over (`STEP_FINISHED`).
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
        /// The span's identifier; a message in it may have the same.
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
        /// The message's role, which is always that of reasoning.
        #[serde(default)]
        role: ReasoningRole,
    }
    optional {}
}

event! {
    /// A piece of a reasoning message (`REASONING_MESSAGE_CONTENT`).
    ReasoningMessageContent, attributed;
    required {
        /// The message that the piece belongs to.
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
    /// A piece of a reasoning message that opens it if need be (`REASONING_MESSAGE_CHUNK`).
    ReasoningMessageChunk, attributed;
    required {}
    optional {
        /// The message's identifier; the first chunk needs one.
        message_id: String,
        /// The text to append.
        delta: String,
    }
}

event! {
    /// Closes a span of reasoning (`REASONING_END`).
    ReasoningEnd, attributed;
    required {
        /// The span that is over.
        message_id: String,
    }
    optional {}
}

event! {
    /// A provider's opaque data about a message or a tool call (`REASONING_ENCRYPTED_VALUE`).
    ReasoningEncryptedValue, attributed;
    required {
        /// What the data is about.
        subtype: EncryptedEntity,
        /// Its identifier.
        entity_id: String,
        /// The data, to be sent back as it is.
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

/// What a provider's opaque data is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum EncryptedEntity {
    /// A tool call.
    ToolCall,
    /// A message, of text or of reasoning.
    Message,
}

// Sub-agents

event! {
    /// A sub-agent begins (`SUBAGENT_STARTED`).
    SubagentStarted;
    required {
        /// The sub-agent's run: one per invocation, and never used again.
        subagent_run_id: String,
        /// The sub-agent's name.
        name: String,
    }
    optional {
        /// What it does.
        description: String,
        /// The sub-agent that started it, if it was not the agent itself.
        parent_subagent_run_id: String,
        /// The tool call that started it.
        parent_tool_call_id: String,
        /// The message that started it.
        parent_message_id: String,
    }
}

event! {
    /// A sub-agent is over and did not fail (`SUBAGENT_FINISHED`).
    SubagentFinished;
    required {
        /// The sub-agent's run.
        subagent_run_id: String,
    }
    optional {
        /// The sub-agent's result.
        result: Value,
        /// How it ended; absent is success.
        outcome: SubagentOutcome,
    }
}

event! {
    /// A sub-agent has failed (`SUBAGENT_ERROR`).
    SubagentError;
    required {
        /// The sub-agent's run.
        subagent_run_id: String,
        /// What went wrong, for a person.
        message: String,
    }
    optional {
        /// What went wrong, for a program.
        code: String,
    }
}

/// How a sub-agent ended that did not fail.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    tag = "type",
    rename_all = "lowercase",
    rename_all_fields = "camelCase"
)]
#[non_exhaustive]
pub enum SubagentOutcome {
    /// It has answered.
    Success,
    /// It waits for the interrupts of the run.
    Suspended {
        /// The interrupts that it waits for.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        interrupt_ids: Option<Vec<String>>,
    },
}

impl Optional for SubagentOutcome {}

// Parts

/// When an event was created: an integer that JavaScript can hold (`-(2^53 - 1)..=2^53 - 1`), by
/// convention in milliseconds since the Unix epoch.
///
/// A client ends the run over a fraction or an integer outside of this range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "i64", into = "i64")]
pub struct Timestamp(i64);

impl Timestamp {
    /// The earliest.
    pub const MIN: Self = Self(-((1 << 53) - 1));
    /// The latest.
    pub const MAX: Self = Self((1 << 53) - 1);

    /// Creates a timestamp; out of range, it is the nearest in range.
    pub const fn from_millis(millis: i64) -> Self {
        if millis < Self::MIN.0 {
            Self::MIN
        } else if millis > Self::MAX.0 {
            Self::MAX
        } else {
            Self(millis)
        }
    }

    /// Milliseconds since the Unix epoch.
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
            Err("a timestamp is an integer between -(2^53 - 1) and 2^53 - 1")
        }
    }
}

impl From<Timestamp> for i64 {
    fn from(timestamp: Timestamp) -> Self {
        timestamp.0
    }
}

impl Optional for Timestamp {}
