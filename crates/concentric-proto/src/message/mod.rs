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
    /// The id of the message, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<MessageId>,
    /// The sender.
    pub role: Role,
    /// The content, in order.
    pub parts: Vec<Part>,
}

impl Message {
    /// Creates a message from `parts`.
    pub fn new(role: Role, parts: Vec<Part>) -> Self {
        Self {
            id: None,
            role,
            parts,
        }
    }

    /// Creates a user message with one text part.
    pub fn user(text: impl Into<Str>) -> Self {
        Self::new(Role::User, vec![Part::text(text).by(Author::User)])
    }

    /// Creates an assistant message with one text part.
    pub fn assistant(text: impl Into<Str>) -> Self {
        Self::new(Role::Assistant, vec![Part::text(text)])
    }

    /// Sets the id of the message.
    #[must_use]
    pub fn with_id(mut self, id: MessageId) -> Self {
        self.id = Some(id);
        self
    }

    /// Returns the concatenated text parts.
    pub fn text(&self) -> String {
        joined(&self.parts, 0)
    }

    /// Returns the concatenated text parts, starting with the part at index `start`.
    pub fn text_from(&self, start: usize) -> String {
        joined(&self.parts, start)
    }

    /// Iterates over the tool calls in the message, for all executors.
    pub fn tool_calls(&self) -> impl Iterator<Item = &ToolCallPart> {
        self.parts.iter().filter_map(|part| match &part.kind {
            PartKind::ToolCall(call) => Some(call),
            _ => None,
        })
    }
}

/// Returns the concatenated text parts of `parts`, starting at index `start`.
pub(crate) fn joined(parts: &[Part], start: usize) -> String {
    let parts = parts.iter().skip(start);
    parts
        .filter_map(|part| match &part.kind {
            PartKind::Text(text) => Some(text.as_str()),
            _ => None,
        })
        .collect()
}

/// The sender of a [`Message`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Role {
    /// The operator, within a conversation; system text at its start is a
    /// [`SystemSegment`](crate::SystemSegment).
    System,
    /// The user.
    User,
    /// The model.
    Assistant,
    /// A tool that returns the result of a call.
    Tool,
}
