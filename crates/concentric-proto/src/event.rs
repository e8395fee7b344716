use crate::{
    finish::Finish,
    id::{CallId, MessageId, RunId},
    message::{Part, ProviderData, ToolCallPart, ToolResult},
    text::Str,
    usage::{FinishReason, Usage},
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::sync::Arc;

/// One item of a `ChatResponse`'s body.
///
/// Deltas append to the part that is open; a delta of another kind, a whole part or
/// [`Event::PartEnd`] closes it. [`Event::ToolCallStart`] and [`Event::ToolCallDelta`] are a
/// preview: the call that a loop executes is [`Event::ToolCall`].
///
/// An event is 32 bytes, and a text delta of up to 23 bytes allocates nothing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Event {
    /// A model call begins.
    ///
    /// It precedes the call, except for the first call before a response future has resolved: that
    /// one is shown once its model answers, since nothing is shown before the commit point.
    StepStart(Box<StepStart>),
    /// More text.
    TextDelta(Str),
    /// More of the model's reasoning.
    ReasoningDelta(Str),
    /// More of the model's refusal to answer.
    RefusalDelta(Str),
    /// The open text, reasoning or refusal is whole.
    PartEnd(Box<PartEnd>),
    /// A whole part.
    Part(Box<Part>),
    /// The model begins to write a tool call.
    ToolCallStart(Box<ToolCallStart>),
    /// More of a tool call's arguments.
    ToolCallDelta(ToolCallDelta),
    /// A whole tool call.
    ToolCall(Box<ToolCallEvent>),
    /// A tool call has its outcome.
    ToolResult(Box<ToolResult>),
    /// The state shared with the consumer is now this (AG-UI `STATE_SNAPSHOT`, `STATE_DELTA`).
    State(Arc<Value>),
    /// Something that a layer or a tool has to say.
    Custom(Box<Custom>),
    /// An event of a run inside this one.
    SubAgent(Box<SubAgentEvent>),
    /// A model call ended, and the answer goes on.
    StepFinish(Box<StepFinish>),
    /// The run took up an open round, and is about to go on with it.
    Resumed,
    /// All that was said since the last [`Event::StepStart`] is void; it will be said again. It may come
    /// after that step's [`StepFinish`](Self::StepFinish), where a gate
    /// rejects an answer that is whole.
    Reset,
    /// The answer is whole. The last `Ok` item of a body, exactly once.
    Finish(Box<Finish>),
}

impl Event {
    /// Creates an [`Event::TextDelta`].
    pub fn text(text: impl Into<Str>) -> Self {
        Self::TextDelta(text.into())
    }

    /// Creates an [`Event::ToolCall`] for the loop to execute.
    pub fn tool_call(call: ToolCallPart) -> Self {
        Self::ToolCall(Box::new(ToolCallEvent {
            call,
            provider_data: None,
        }))
    }

    /// Creates an [`Event::Finish`] of an answer that completed.
    pub fn finish(reason: FinishReason, usage: Usage) -> Self {
        Self::Finish(Box::new(Finish::new(reason, usage)))
    }

    /// Whether a consumer has been shown something once it has this event.
    ///
    /// The future of a provider, of an agent, and of a layer that drops or holds events back
    /// resolves when the first such event is ready.
    #[inline]
    pub fn is_content(&self) -> bool {
        !matches!(
            self,
            Self::StepStart(_) | Self::PartEnd(_) | Self::StepFinish(_) | Self::Reset
        )
    }

    /// Whether the event ends a body.
    #[inline]
    pub fn is_finish(&self) -> bool {
        matches!(self, Self::Finish(_))
    }
}

/// A model call begins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct StepStart {
    /// The step, from 0.
    pub step: u32,
    /// Names the message that the model is about to write.
    pub message_id: MessageId,
}

impl StepStart {
    /// Creates the beginning of a step.
    pub fn new(step: u32, message_id: MessageId) -> Self {
        Self { step, message_id }
    }
}

/// The open part is whole.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PartEnd {
    /// What the provider wants back with the part.
    pub provider_data: Option<Arc<ProviderData>>,
}

impl PartEnd {
    /// Creates the end of a part.
    pub fn new(provider_data: Option<Arc<ProviderData>>) -> Self {
        Self { provider_data }
    }
}

/// The model begins to write a tool call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ToolCallStart {
    /// Which of the step's calls, from 0.
    pub index: u32,
    /// Names the call.
    pub id: CallId,
    /// The tool's name.
    pub name: Str,
}

impl ToolCallStart {
    /// Creates the beginning of a call.
    pub fn new(index: u32, id: CallId, name: impl Into<Str>) -> Self {
        Self {
            index,
            id,
            name: name.into(),
        }
    }
}

/// More of a tool call's arguments.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ToolCallDelta {
    /// Which of the step's calls, from 0.
    pub index: u32,
    /// What to append to its arguments.
    pub arguments: Str,
}

impl ToolCallDelta {
    /// Creates a piece of a call's arguments.
    pub fn new(index: u32, arguments: impl Into<Str>) -> Self {
        Self {
            index,
            arguments: arguments.into(),
        }
    }
}

/// A whole tool call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ToolCallEvent {
    /// The call.
    pub call: ToolCallPart,
    /// What the provider wants back with it.
    pub provider_data: Option<Arc<ProviderData>>,
}

impl ToolCallEvent {
    /// Creates a call that its provider wants something back with.
    pub fn new(call: ToolCallPart, provider_data: Option<Arc<ProviderData>>) -> Self {
        Self {
            call,
            provider_data,
        }
    }
}

/// An event of a run inside another one: of an agent that is a tool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SubAgentEvent {
    /// The inner run.
    pub run_id: RunId,
    /// Its agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<Str>,
    /// The tool call that the inner run is, in the run that this event is in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call_id: Option<CallId>,
    /// What happened in it.
    pub event: Event,
}

impl SubAgentEvent {
    /// Creates an event of the run `run_id`.
    pub fn new(run_id: RunId, agent: Option<Str>, call_id: Option<CallId>, event: Event) -> Self {
        Self {
            run_id,
            agent,
            call_id,
            event,
        }
    }
}

/// Something that a layer or a tool has to say (AG-UI `CUSTOM`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Custom {
    /// What it is.
    pub name: Str,
    /// What it says.
    pub value: Value,
    /// The tool call it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call_id: Option<CallId>,
}

impl Custom {
    /// Creates an event named `name`.
    pub fn new(name: impl Into<Str>, value: Value) -> Self {
        Self {
            name: name.into(),
            value,
            call_id: None,
        }
    }

    /// Says which tool call it belongs to.
    #[must_use]
    pub fn for_call(mut self, id: CallId) -> Self {
        self.call_id = Some(id);
        self
    }
}

/// A model call ended, and the answer goes on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct StepFinish {
    /// The step, from 0.
    pub step: u32,
    /// Why the model stopped.
    pub reason: FinishReason,
    /// The tokens of this call.
    pub usage: Usage,
}

impl StepFinish {
    /// Creates the end of a step.
    pub fn new(step: u32, reason: FinishReason, usage: Usage) -> Self {
        Self {
            step,
            reason,
            usage,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_32_bytes_also_as_an_item() {
        assert_eq!(size_of::<Event>(), 32);
        assert_eq!(size_of::<Option<Result<Event, crate::error::Error>>>(), 32);
    }
}
