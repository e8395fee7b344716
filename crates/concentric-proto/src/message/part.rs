use super::{Media, ToolCallPart, ToolResult};
use crate::text::Str;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::sync::Arc;

/// One part of a [`Message`](super::Message).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Part {
    /// The content.
    pub kind: PartKind,
    /// The author of the part.
    #[serde(default, skip_serializing_if = "Author::is_unknown")]
    pub author: Author,
    /// Data that the provider requires back with the part: a signature, an id, encrypted reasoning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider_data: Option<Arc<ProviderData>>,
}

impl Part {
    /// Creates a part with an unknown author.
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

    /// Sets the author.
    #[must_use]
    pub fn by(mut self, author: Author) -> Self {
        self.author = author;
        self
    }

    /// Attaches data that the provider requires back with the part.
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
    /// The model's reasoning, if the provider exposes it.
    Reasoning(Str),
    /// The model's refusal to answer, if the provider distinguishes it from text.
    Refusal(Str),
    /// An image.
    Image(Media),
    /// An audio clip.
    Audio(Media),
    /// A document.
    File(Media),
    /// A tool call by the model.
    ToolCall(ToolCallPart),
    /// The result of a tool call that the loop did not execute, in the same message as the call.
    ToolResult(ToolResult),
    /// A part that only its provider can interpret, preserved unchanged.
    Provider(ProviderData),
}

/// The author of a [`Part`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Author {
    /// No author is recorded.
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
        /// The name of the tool.
        name: Str,
    },
    /// A layer.
    Layer {
        /// The name of the layer.
        name: Str,
    },
}

impl Author {
    fn is_unknown(&self) -> bool {
        matches!(self, Self::Unknown)
    }
}

/// Data that only one provider can interpret, preserved for later requests.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ProviderData {
    /// The provider (`gen_ai.provider.name`).
    pub provider: Str,
    /// The data as the provider sent it.
    pub data: Value,
}

impl ProviderData {
    /// Creates data from `provider`.
    pub fn new(provider: impl Into<Str>, data: Value) -> Self {
        Self {
            provider: provider.into(),
            data,
        }
    }
}
