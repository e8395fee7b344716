use crate::{
    finish::Finish,
    id::{CallId, MessageId, RunId},
    message::{Part, ProviderData, ToolCallPart, ToolResult},
    text::Str,
    transcript::Transcript,
    usage::{FinishReason, Usage},
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;
use std::sync::Arc;

/// One item of a `ChatResponse`'s body.
///
/// Deltas append to the open part. A delta of another kind, a complete part or [`Event::PartEnd`]
/// closes it. [`Event::ToolCallStart`] and [`Event::ToolCallDelta`] are previews: the loop executes
/// [`Event::ToolCall`].
///
/// An event is 32 bytes, and a text delta of up to 23 bytes does not allocate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Event {
    // First, since it is the only variant that fills an event: between the others, it would make each test for the
    // end of a body two comparisons.
    /// A piece of a tool call's arguments.
    ToolCallDelta(ToolCallDelta),
    /// The start of a model call.
    ///
    /// This event precedes the call, with one exception: for a call that begins before the response
    /// future has resolved, it is emitted once the model answers, because nothing is emitted before
    /// the commit point.
    StepStart(Box<StepStart>),
    /// A piece of text.
    TextDelta(Str),
    /// A piece of the model's reasoning.
    ReasoningDelta(Str),
    /// A piece of the model's refusal to answer.
    RefusalDelta(Str),
    /// The end of the open text, reasoning or refusal.
    PartEnd(Box<PartEnd>),
    /// A complete part.
    Part(Box<Part>),
    /// The start of a tool call that the model is writing.
    ToolCallStart(Box<ToolCallStart>),
    /// A complete tool call.
    ToolCall(Box<ToolCallEvent>),
    /// The outcome of a tool call.
    ToolResult(Box<ToolResult>),
    /// The new value of the state that is shared with the consumer (AG-UI `STATE_SNAPSHOT`,
    /// `STATE_DELTA`).
    State(Arc<Value>),
    /// An application-defined event of a layer or a tool.
    Custom(Box<CustomEvent>),
    /// An event of a nested run.
    SubAgent(Box<SubAgentEvent>),
    /// The end of a model call that does not end the run.
    StepFinish(Box<StepFinish>),
    /// The run is about to resume an open round.
    Resumed,
    /// Discards all content since the last [`Event::StepStart`]; the model generates it again. This
    /// event may follow the [`StepFinish`](Self::StepFinish) of that step, if a gate rejects a
    /// complete answer.
    Reset,
    /// The conversation that replaces the one so far, because a step gate rewrote it (AG-UI
    /// `MESSAGES_SNAPSHOT`).
    TranscriptReplaced(Transcript),
    /// The end of the response. The last `Ok` item of a body, exactly once.
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

    /// Creates an [`Event::Finish`] of a completed response.
    pub fn finish(reason: FinishReason, usage: Usage) -> Self {
        Self::Finish(Box::new(Finish::new(reason, usage)))
    }

    /// Returns whether the event is output, which commits the response once a consumer has it.
    ///
    /// The response future of a provider, of an agent, and of a layer that drops or buffers events
    /// resolves when the first such event is ready.
    #[inline]
    pub fn is_content(&self) -> bool {
        !matches!(
            self,
            Self::StepStart(_) | Self::PartEnd(_) | Self::StepFinish(_) | Self::Reset
        )
    }

    /// Returns whether the event ends a body.
    #[inline]
    pub fn is_finish(&self) -> bool {
        matches!(self, Self::Finish(_))
    }
}

/// The start of a model call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct StepStart {
    /// The index of the step, from 0.
    pub step: u32,
    /// The id of the message that the model is about to write.
    pub message_id: MessageId,
}

impl StepStart {
    /// Creates the start of a step.
    pub fn new(step: u32, message_id: MessageId) -> Self {
        Self { step, message_id }
    }
}

/// The end of the open part.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PartEnd {
    /// Data that the provider requires back with the part.
    pub provider_data: Option<Arc<ProviderData>>,
}

impl PartEnd {
    /// Creates the end of a part.
    pub fn new(provider_data: Option<Arc<ProviderData>>) -> Self {
        Self { provider_data }
    }
}

/// The start of a tool call that the model is writing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ToolCallStart {
    /// The index of the call within its step, from 0.
    pub index: u32,
    /// The id of the call.
    pub id: CallId,
    /// The name of the tool.
    pub name: Str,
}

impl ToolCallStart {
    /// Creates the start of a call.
    pub fn new(index: u32, id: CallId, name: impl Into<Str>) -> Self {
        Self {
            index,
            id,
            name: name.into(),
        }
    }
}

/// A piece of a tool call's arguments.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ToolCallDelta {
    /// The index of the call within its step, from 0.
    pub index: u32,
    /// The text to append to the arguments.
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

/// A complete tool call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ToolCallEvent {
    /// The call.
    pub call: ToolCallPart,
    /// Data that the provider requires back with the call.
    pub provider_data: Option<Arc<ProviderData>>,
}

impl ToolCallEvent {
    /// Creates a call with data that its provider requires back.
    pub fn new(call: ToolCallPart, provider_data: Option<Arc<ProviderData>>) -> Self {
        Self {
            call,
            provider_data,
        }
    }
}

/// An event of a nested run, such as the run of an agent that is used as a tool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SubAgentEvent {
    /// The id of the nested run.
    pub run_id: RunId,
    /// The name of the nested agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<Str>,
    /// The tool call in the outer run that started the nested run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call_id: Option<CallId>,
    /// The event of the nested run.
    pub event: Event,
}

impl SubAgentEvent {
    /// Creates an event of the nested run `run_id`.
    pub fn new(run_id: RunId, agent: Option<Str>, call_id: Option<CallId>, event: Event) -> Self {
        Self {
            run_id,
            agent,
            call_id,
            event,
        }
    }
}

/// An application-defined event of a layer or a tool (AG-UI `CUSTOM`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CustomEvent {
    /// The name of the event.
    pub name: Str,
    /// The payload.
    pub value: Value,
    /// The tool call that the event belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call_id: Option<CallId>,
}

impl CustomEvent {
    /// Creates an event named `name`.
    pub fn new(name: impl Into<Str>, value: Value) -> Self {
        Self {
            name: name.into(),
            value,
            call_id: None,
        }
    }

    /// Creates an event named `name` from any serializable value.
    ///
    /// ```
    /// use concentric_proto::CustomEvent;
    ///
    /// let event = CustomEvent::from_serialize("moved", &("a1", 7))?;
    /// assert_eq!(event.read::<(String, u8)>()?, ("a1".to_owned(), 7));
    /// # Ok::<(), serde_json::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The value cannot be serialized.
    pub fn from_serialize(
        name: impl Into<Str>,
        value: &(impl Serialize + ?Sized),
    ) -> serde_json::Result<Self> {
        Ok(Self::new(name, serde_json::to_value(value)?))
    }

    /// Decodes the payload as `T`.
    ///
    /// # Errors
    ///
    /// The payload is not a `T`.
    pub fn read<T: DeserializeOwned>(&self) -> serde_json::Result<T> {
        T::deserialize(&self.value)
    }

    /// Sets the tool call that the event belongs to. The default is that of the context that emits the
    /// event.
    #[must_use]
    pub fn for_call(mut self, id: CallId) -> Self {
        self.call_id = Some(id);
        self
    }
}

impl From<CustomEvent> for Event {
    fn from(event: CustomEvent) -> Self {
        Self::Custom(Box::new(event))
    }
}

/// The end of a model call that does not end the run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct StepFinish {
    /// The index of the step, from 0.
    pub step: u32,
    /// Why the model stopped.
    pub reason: FinishReason,
    /// The tokens used by this call.
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
    fn an_event_and_a_stream_item_are_32_bytes() {
        assert_eq!(size_of::<Event>(), 32);
        assert_eq!(size_of::<Option<Result<Event, crate::error::Error>>>(), 32);
    }
}
