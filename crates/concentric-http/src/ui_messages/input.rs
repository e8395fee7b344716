//! The request body.
//!
//! Types with unknown fields implement `Deserialize` by hand: serde's derive buffers a flattened value, and its errors
//! would no longer contain the path.

use std::fmt;

use serde::{
    Deserialize,
    de::{self, Deserializer, MapAccess, Visitor},
};
use serde_json::Value;

use crate::run::{Metadata, ResumeEntry};

/// The request that starts a run, or continues an answer.
#[derive(Debug)]
pub(super) struct ChatInput {
    /// The chat.
    pub(super) id: String,
    pub(super) messages: Vec<UiMessage>,
    pub(super) trigger: Trigger,
    /// The message that is regenerated, edited or continued.
    pub(super) message_id: Option<String>,
    /// Replies to interrupts that the protocol has no form for.
    pub(super) resume: Vec<ResumeEntry>,
    /// The other fields, which the application has added.
    pub(super) others: Metadata,
}

/// The cause of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
pub(super) enum Trigger {
    #[default]
    #[serde(rename = "submit-message")]
    Submit,
    #[serde(rename = "regenerate-message")]
    Regenerate,
}

impl ChatInput {
    /// Whether the answer replaces those to the last message, since the user has edited it or wants another answer.
    pub(super) fn is_regenerated(&self) -> bool {
        let is_edited = |last: &UiMessage| {
            last.role == Role::User && self.message_id.as_deref() == Some(last.id.as_str())
        };
        self.trigger == Trigger::Regenerate || self.messages.last().is_some_and(is_edited)
    }
}

impl<'de> Deserialize<'de> for ChatInput {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InputVisitor;

        impl<'de> Visitor<'de> for InputVisitor {
            type Value = ChatInput;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object with a chat's id and messages")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<ChatInput, A::Error> {
                let (mut id, mut messages, mut resume) = (None, None, None);
                let (mut trigger, mut message_id) = (None, None);
                let mut others = Metadata::new();
                while let Some(name) = map.next_key::<String>()? {
                    match name.as_str() {
                        "id" => id = Some(map.next_value()?),
                        "messages" => messages = Some(map.next_value()?),
                        "trigger" => trigger = map.next_value()?,
                        "resume" => resume = map.next_value()?,
                        "messageId" => message_id = map.next_value()?,
                        _ => drop(others.insert(name, map.next_value()?)),
                    }
                }
                Ok(ChatInput {
                    id: id.ok_or_else(|| de::Error::missing_field("id"))?,
                    messages: messages.ok_or_else(|| de::Error::missing_field("messages"))?,
                    trigger: trigger.unwrap_or_default(),
                    message_id,
                    resume: resume.unwrap_or_default(),
                    others,
                })
            }
        }

        deserializer.deserialize_map(InputVisitor)
    }
}

/// One message of the chat. The answer of a run is one message, with all of its steps.
#[derive(Debug, Deserialize)]
pub(super) struct UiMessage {
    pub(super) id: String,
    pub(super) role: Role,
    /// Of an answer: its usage, and the data of the application.
    pub(super) metadata: Option<Value>,
    /// Not a `Vec`, whose first allocation has room for four of these large parts.
    pub(super) parts: Box<[UiPart]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Role {
    System,
    User,
    Assistant,
}

/// A part of a message, of any type: which fields it has depends on the type.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct UiPart {
    pub(super) r#type: String,
    /// The text of a part of type `text` or `reasoning`.
    pub(super) text: Option<String>,

    // ---- files ----
    pub(super) media_type: Option<String>,
    pub(super) url: Option<String>,
    pub(super) filename: Option<String>,

    // ---- tool calls ----
    /// The name of the tool, for the type `dynamic-tool`.
    pub(super) tool_name: Option<String>,
    pub(super) tool_call_id: Option<String>,
    pub(super) state: Option<String>,
    pub(super) input: Option<Value>,
    pub(super) raw_input: Option<Value>,
    pub(super) output: Option<Value>,
    pub(super) error_text: Option<String>,
    pub(super) preliminary: Option<bool>,
    pub(super) provider_executed: Option<bool>,
    pub(super) approval: Option<Approval>,

    // ---- data and sources ----
    pub(super) id: Option<String>,
    pub(super) data: Option<Value>,
    pub(super) source_id: Option<String>,
    pub(super) title: Option<String>,
}

/// The approval of a tool call, once it was requested.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Approval {
    pub(super) id: String,
    pub(super) approved: Option<bool>,
    pub(super) reason: Option<String>,
    pub(super) signature: Option<String>,
    pub(super) request_reason: Option<String>,
    pub(super) descriptor: Option<Value>,
}

/// A part that is a tool call.
pub(super) struct Call<'a> {
    pub(super) id: &'a str,
    pub(super) name: &'a str,
    pub(super) part: &'a UiPart,
}

/// The result that the client has of a call.
pub(super) enum CallResult<'a> {
    Output(&'a Value),
    Error(&'a str),
    Denied(&'a str),
}

impl UiPart {
    /// The call of a part that is one, and whose input is complete.
    pub(super) fn call(&self) -> Option<Call<'_>> {
        let name = match self.r#type.as_str() {
            "dynamic-tool" => self.tool_name.as_deref()?,
            of => of.strip_prefix("tool-")?,
        };
        let id = self.tool_call_id.as_deref()?;
        let part = self;
        (self.state.as_deref() != Some("input-streaming")).then_some(Call { id, name, part })
    }
}

impl<'a> Call<'a> {
    /// The arguments, as text.
    pub(super) fn arguments(&self) -> String {
        // Of a call with invalid arguments, the client has the text.
        let (input, raw) = (self.part.input.as_ref(), self.part.raw_input.as_ref());
        match input.or(raw) {
            None | Some(Value::Null) => "{}".to_owned(),
            Some(Value::String(text)) => text.clone(),
            Some(input) => input.to_string(),
        }
    }

    pub(super) fn result(&self) -> Option<CallResult<'a>> {
        let part = self.part;
        match part.state.as_deref()? {
            "output-available" if part.preliminary != Some(true) => Some(CallResult::Output(
                part.output.as_ref().unwrap_or(&Value::Null),
            )),
            "output-error" => Some(CallResult::Error(
                part.error_text.as_deref().unwrap_or_default(),
            )),
            "output-denied" => {
                let approval = part.approval.as_ref();
                let reason = approval.and_then(|approval| approval.reason.as_deref());
                Some(CallResult::Denied(reason.unwrap_or_default()))
            }
            _ => None,
        }
    }

    /// The decision that the client has made, and not sent before.
    pub(super) fn decision(&self) -> Option<&'a Approval> {
        let is_decided = self.part.state.as_deref() == Some("approval-responded");
        self.part.approval.as_ref().filter(|_| is_decided)
    }
}
