use super::{Cost, Price};
use crate::{Capabilities, Sources};
use concentric_core::{Str, Usage};
use serde::Deserialize;

/// Information about a model. `None` means unknown.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct ModelInfo {
    /// The provider's name (`gen_ai.provider.name`).
    pub provider: Str,
    /// The model's name, without a date if the undated name is valid.
    pub model: Str,
    /// Other names of the model.
    #[serde(default)]
    pub aliases: Vec<Str>,
    /// The maximum number of tokens of the conversation and the response together.
    pub context_window: Option<u64>,
    /// The maximum number of tokens of a response, including reasoning.
    pub max_output: Option<u64>,
    /// The knowledge cutoff: a month or a day, such as `2025-12`.
    pub knowledge: Option<Str>,
    /// The supported inputs: `text`, `image`, `audio`, `video`, `pdf`.
    pub input: Option<Vec<Str>>,
    /// Whether the model supports tools.
    pub tools: Option<bool>,
    /// Whether the model supports an output schema.
    pub structured_output: Option<bool>,
    /// Whether the model supports a temperature.
    pub temperature: Option<bool>,
    /// The model's reasoning features.
    pub reasoning: Option<Reasoning>,
    /// The model's price.
    pub price: Option<Price>,
}

/// The reasoning features of a model.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct Reasoning {
    /// Whether the model reasons.
    pub supported: bool,
    /// The supported efforts, with the provider's names.
    pub efforts: Vec<Str>,
    /// Whether a token budget for reasoning is supported.
    pub budget: bool,
    /// Whether reasoning can be disabled.
    pub optional: bool,
}

impl ModelInfo {
    /// Creates a model with only a name.
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

    /// The cost of a call; `None` if the price or the number of tokens is unknown.
    ///
    /// The result applies to a single call: see the [module docs](super).
    pub fn cost(&self, usage: &Usage) -> Option<Cost> {
        self.price.as_ref()?.cost(usage)
    }

    /// Removes the features from `api` that this model is known not to support, for
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
