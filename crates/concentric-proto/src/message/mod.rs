//! Messages and their parts.

mod media;
mod outcome;
mod part;
mod tool;

pub use self::{
    media::{Media, MediaSource},
    outcome::{OutcomeSource, ToolContent, ToolOutcome, ToolStatus},
    part::{Author, Part, PartKind, ProviderData},
    tool::{Arguments, Executor, ToolCallPart, ToolResult},
};

use crate::{id::MessageId, text::Str};
use serde::{Deserialize, Serialize};

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
        joined(&self.parts, 0)
    }

    /// The text parts from the part at index `start` on, joined.
    pub fn text_from(&self, start: usize) -> String {
        joined(&self.parts, start)
    }

    /// The tool calls in the message, whoever executes them.
    pub fn tool_calls(&self) -> impl Iterator<Item = &ToolCallPart> {
        self.parts.iter().filter_map(|part| match &part.kind {
            PartKind::ToolCall(call) => Some(call),
            _ => None,
        })
    }
}

/// The text parts among `parts` from index `start` on, joined.
pub(crate) fn joined(parts: &[Part], start: usize) -> String {
    let parts = parts.iter().skip(start);
    parts
        .filter_map(|part| match &part.kind {
            PartKind::Text(text) => Some(text.as_str()),
            _ => None,
        })
        .collect()
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
