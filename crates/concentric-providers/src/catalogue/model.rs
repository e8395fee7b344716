use super::{Cost, Price};
use crate::{Capabilities, Sources};
use concentric_core::{Str, Usage};
use serde::{Deserialize, Serialize};

/// What is known of a model. What is `None` is not known.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct ModelInfo {
    /// The provider's name (`gen_ai.provider.name`).
    pub provider: Str,
    /// The model's name, without a date if it goes by that.
    pub model: Str,
    /// Other names for it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub aliases: Vec<Str>,
    /// How many tokens the conversation and the answer may have together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context_window: Option<u64>,
    /// How many tokens an answer may have, reasoning included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_output: Option<u64>,
    /// Until when its knowledge of the world goes: a month or a day, as `2025-12`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub knowledge: Option<Str>,
    /// What it takes: `text`, `image`, `audio`, `video`, `pdf`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<Vec<Str>>,
    /// Whether it calls tools.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tools: Option<bool>,
    /// Whether it writes JSON of a schema.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub structured_output: Option<bool>,
    /// Whether it can be told a temperature.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temperature: Option<bool>,
    /// Whether and how it reasons.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<Reasoning>,
    /// What it costs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub price: Option<Price>,
}

/// Whether and how a model reasons before it answers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct Reasoning {
    /// Whether it does.
    pub supported: bool,
    /// How much it can be told to, in the provider's words.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub efforts: Vec<Str>,
    /// Whether it can be told how many tokens to spend on it.
    pub budget: bool,
    /// Whether it can be told not to.
    pub optional: bool,
}

impl ModelInfo {
    /// Creates a model of which only the name is known.
    pub fn new(provider: impl Into<Str>, model: impl Into<Str>) -> Self {
        Self {
            provider: provider.into(),
            model: model.into(),
            ..Self::default()
        }
    }

    /// Sets the price.
    #[must_use]
    pub fn price(mut self, price: Price) -> Self {
        self.price = Some(price);
        self
    }

    /// Adds another name.
    #[must_use]
    pub fn alias(mut self, name: impl Into<Str>) -> Self {
        self.aliases.push(name.into());
        self
    }

    /// What a call costs; `None` if the price is not known, or not how many tokens it took.
    ///
    /// Of one call: see the [module docs](super).
    pub fn cost(&self, usage: &Usage) -> Option<Cost> {
        self.price.as_ref()?.cost(usage)
    }

    /// Takes away from what an API can do what this model is known not to: for
    /// [`ProviderLayer::capabilities`](crate::ProviderLayer::capabilities).
    #[must_use]
    pub fn narrow(&self, mut api: Capabilities) -> Capabilities {
        if self.tools == Some(false) {
            api.tools = false;
            api.tool_choice = false;
            api.parallel_tool_calls = false;
        }
        if self.structured_output == Some(false) {
            api.output_schema = false;
            api.output_schema_with_tools = false;
        }
        api.temperature &= self.temperature != Some(false);
        if let Some(reasoning) = &self.reasoning {
            api.reasoning_effort &= !reasoning.efforts.is_empty();
        }
        if let Some(input) = &self.input {
            let takes = |kind: &str| input.iter().any(|input| *input == *kind);
            if !takes("image") {
                api.images = Sources::NONE;
                api.images_in_results = false;
            }
            if !takes("audio") {
                api.audio = Sources::NONE;
            }
            if !takes("pdf") {
                api.files = Sources::NONE;
            }
        }
        api
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &Str> {
        std::iter::once(&self.model).chain(&self.aliases)
    }

    pub(super) fn is(&self, other: &Self) -> bool {
        self.provider == other.provider && self.model == other.model
    }
}
