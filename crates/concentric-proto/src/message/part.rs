use super::{Media, ToolCallPart, ToolResult};
use crate::text::Str;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::sync::Arc;

/// One part of a [`Message`](super::Message): what it is, who authored it, and what only its provider understands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Part {
    /// The content.
    pub kind: PartKind,
    /// Who authored it.
    #[serde(default, skip_serializing_if = "Author::is_unknown")]
    pub author: Author,
    /// What its provider wants back with it: a signature, an id, encrypted reasoning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider_data: Option<Arc<ProviderData>>,
}

impl Part {
    /// Creates a part by an unknown author.
    pub fn new(kind: PartKind) -> Self {
        Self {
            kind,
            author: Author::Unknown,
            provider_data: None,
        }
    }

    /// Creates a text part.
    pub fn text(text: impl Into<Str>) -> Self {
        Self::new(PartKind::Text(text.into()))
    }

    /// Says who authored the part.
    #[must_use]
    pub fn by(mut self, author: Author) -> Self {
        self.author = author;
        self
    }

    /// Attaches what only the provider understands.
    #[must_use]
    pub fn with_provider_data(mut self, data: Option<Arc<ProviderData>>) -> Self {
        self.provider_data = data;
        self
    }
}

/// The content of a [`Part`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum PartKind {
    /// Text.
    Text(Str),
    /// The model's reasoning, as far as the provider shows it.
    Reasoning(Str),
    /// The model's refusal to answer, where the provider tells it from text.
    Refusal(Str),
    /// An image.
    Image(Media),
    /// Sound.
    Audio(Media),
    /// A document.
    File(Media),
    /// A tool call by the model.
    ToolCall(ToolCallPart),
    /// The result of a tool call that the loop did not execute, in the message that made the call.
    ToolResult(ToolResult),
    /// Something only its provider understands, kept as it came.
    Provider(ProviderData),
}

/// Who authored a [`Part`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Author {
    /// Nobody said.
    #[default]
    Unknown,
    /// The user.
    User,
    /// A model.
    Model {
        /// The provider (`gen_ai.provider.name`).
        provider: Str,
        /// The model (`gen_ai.response.model`).
        model: Str,
    },
    /// A tool.
    Tool {
        /// Its name.
        name: Str,
    },
    /// A layer.
    Layer {
        /// Its name.
        name: Str,
    },
}

impl Author {
    fn is_unknown(&self) -> bool {
        matches!(self, Self::Unknown)
    }
}

/// Data that only one provider understands, kept so that it survives a round trip.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ProviderData {
    /// The provider (`gen_ai.provider.name`).
    pub provider: Str,
    /// What it sent.
    pub data: Value,
}

impl ProviderData {
    /// Creates data of `provider`.
    pub fn new(provider: impl Into<Str>, data: Value) -> Self {
        Self {
            provider: provider.into(),
            data,
        }
    }
}
